"""Which expressions in the sources of callers are the object that a stub stands for.

An expression has the role by annotation, by being made from the class, by the attribute or
name through which callers hold it, or because it is handed on from where it had the role.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mlxcheck.contracts.sources import Definition, Library, Source

__all__ = ["Evidence", "Function", "Role", "Roles", "annotated", "reached", "role_of"]

Role = Literal["one", "many"]
"""The object itself, or a sequence of such."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
"""A function or method, as it is defined."""

_SAME = {"Optional", "Annotated", "Final", "ClassVar", "Union"}
_MANY = {"List", "list", "Sequence", "Iterable", "Iterator", "tuple", "Tuple", "Collection"}
_DEEPEST = 8
"""Bases of bases that are looked through for a method."""
_HANDS_ON = {"list", "reversed", "sorted", "tuple", "iter"}


@dataclass
class Evidence:
    """What is known about who holds the role.

    Attributes:
        library: Where sources come from.
        classes: The names of the stub, of the base, and of what lies between.
        homes: The modules and names of these: another class may bear the name of one.
        given: Names of variables and attributes that were said to hold it.
        attributes: Attributes that hold it.
        others: Attributes that something else is put into or annotated as, with its name.
        returned: Functions and methods whose value has it, by name.
        parameters: Parameters that hold it, by their function.
    """

    library: Library
    classes: frozenset[str]
    homes: frozenset[tuple[str, str]] = frozenset()
    given: frozenset[str] = frozenset()
    attributes: dict[str, Role] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    returned: dict[str, Role] = field(default_factory=dict)
    parameters: dict[ast.AST, dict[str, Role]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How much is known; it grows only."""
        handed = sum(map(len, self.parameters.values()))
        return len(self.attributes) + len(self.returned) + handed + len(self.others)

    def names_class(self, node: ast.AST, source: Source) -> bool:
        """Return whether an expression is one of the classes, and none of the same name."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        text = ast.unparse(node)
        name = text.rpartition(".")[2]
        name = source.imports.get(name, name).rpartition(".")[2]
        if name not in self.classes:
            return False
        found = self.library.definition(text, source)
        if found is None:
            return (
                text.partition(".")[0] in source.imports or (source.module, name) in self.homes
            )
        return (found[0].module, found[1].name) in self.homes

    def held(self, attribute: str) -> Role | None:
        """Return whether an attribute of anything holds the role."""
        if attribute in self.given:
            return "one"
        return self.attributes.get(attribute)

    def annotate(self, function: Function, source: Source) -> None:
        """Note what a function's annotations say."""
        args = function.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            role = annotated(arg.annotation, source, self)
            if role or arg.arg in self.given:
                self.parameters.setdefault(function, {})[arg.arg] = role or "one"
        role = annotated(function.returns, source, self)
        if role is None:
            return
        properties = {"property", "cached_property"}
        if properties & {ast.unparse(d).rpartition(".")[2] for d in function.decorator_list}:
            self.attributes[function.name] = role
        else:
            self.returned[function.name] = role


class Roles:
    """Tells the role of expressions in one scope.

    Args:
        evidence: Of all callers.
        source: The file.
        names: The local names that have it.
    """

    def __init__(self, evidence: Evidence, source: Source, names: Mapping[str, Role]) -> None:
        self.evidence = evidence
        self.source = source
        self.names = names

    def __call__(self, node: ast.AST | None) -> Role | None:
        """Return an expression's role, None for none."""
        return role_of(node, self)

    def hand_on(self, function: Function, bound: int, call: ast.Call) -> None:
        """Note that a call gives the role to a function's parameters."""
        for name, role in self._handed(function, bound, call).items():
            self.evidence.parameters.setdefault(function, {}).setdefault(name, role)

    def given(self, function: Function, call: ast.Call) -> set[str]:
        """Return the parameters to which a call of a method gives the role."""
        first = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][:1]
        return set(self._handed(function, int(first in (["self"], ["cls"])), call))

    def _handed(self, function: Function, bound: int, call: ast.Call) -> dict[str, Role]:
        args = function.args
        names = [a.arg for a in (*args.posonlyargs, *args.args)][bound:]
        known = {*names, *(a.arg for a in args.kwonlyargs)}
        pairs = [
            *zip(names, call.args, strict=False),
            *((k.arg, k.value) for k in call.keywords if k.arg in known),
        ]
        return {name: role for name, part in pairs if name and (role := self(part))}


def role_of(node: ast.AST | None, roles: Roles) -> Role | None:
    """Return an expression's role in a scope, None for none."""
    found: Role | None = None
    if isinstance(node, ast.Name):
        found = roles.names.get(node.id)
    elif isinstance(node, ast.Attribute):
        found = roles.evidence.held(node.attr)
    elif isinstance(node, ast.NamedExpr | ast.Await | ast.Starred):
        found = roles(node.value)
    elif isinstance(node, ast.BoolOp):
        found = _agreed(roles(part) for part in node.values)
    elif isinstance(node, ast.IfExp):
        found = _agreed((roles(node.body), roles(node.orelse)))
    elif isinstance(node, ast.Subscript) and roles(node.value) == "many":
        found = "many" if isinstance(node.slice, ast.Slice) else "one"
    elif isinstance(node, ast.List | ast.Tuple) and node.elts:
        found = "many" if all(roles(part) for part in node.elts) else None
    elif isinstance(node, ast.Call):
        found = _of_call(node, roles)
    return found


def _of_call(node: ast.Call, roles: Roles) -> Role | None:
    if roles.evidence.names_class(node.func, roles.source):
        return "one"
    name = ast.unparse(node.func).rpartition(".")[2]
    if name == "cast" and node.args:
        return annotated(node.args[0], roles.source, roles.evidence)
    if name in _HANDS_ON and node.args:
        return roles(node.args[0])
    if name == "next" and node.args and roles(node.args[0]) == "many":
        return "one"
    return roles.evidence.returned.get(name)


def _agreed(roles: Iterable[Role | None]) -> Role | None:
    """Return the role of a choice: alternatives without one are None, or empty."""
    found = {role for role in roles if role}
    return found.pop() if len(found) == 1 else None


def annotated(node: ast.expr | None, source: Source, evidence: Evidence) -> Role | None:
    """Return what an annotation says of the role."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return None
    if isinstance(node, ast.Name | ast.Attribute):
        return "one" if evidence.names_class(node, source) else None
    if isinstance(node, ast.BinOp):
        return _agreed(annotated(part, source, evidence) for part in (node.left, node.right))
    if isinstance(node, ast.Subscript):
        of = ast.unparse(node.value).rpartition(".")[2]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        inner = [annotated(part, source, evidence) for part in parts]
        if of in _SAME:
            return _agreed(inner)
        if of in _MANY and inner and inner[0] == "one" and len({*inner} - {None}) == 1:
            alone = len(inner) == 1 or ast.unparse(parts[-1]) == "..."
            return "many" if alone else None
    return None


def reached(
    call: ast.Call, source: Source, around: Definition | None, library: Library
) -> tuple[Source, Function, int] | None:
    """Return the function that a call reaches, and how many arguments are supplied to it.

    Args:
        call: The call.
        source: The file.
        around: The class around it.
        library: Where sources come from.
    """
    func = call.func
    if isinstance(func, ast.Attribute) and isinstance(around, ast.ClassDef):
        on = ast.unparse(func.value)
        if on in {"self", "cls"}:
            return _method(source, around, func.attr, library)
        if on == "super()":
            return _inherited(source, around, func.attr, library, 0)
    if not isinstance(func, ast.Name | ast.Attribute):
        return None
    found = library.definition(ast.unparse(func), source)
    if found is None:
        return None
    where, node = found
    if isinstance(node, ast.ClassDef):
        return _method(where, node, "__init__", library)
    static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
    inside = any(
        node in owner.body
        for owner in where.definitions.values()
        if isinstance(owner, ast.ClassDef)
    )
    return where, node, int(inside and not static and isinstance(func, ast.Attribute))


def _method(
    source: Source, owner: ast.ClassDef, name: str, library: Library, depth: int = 0
) -> tuple[Source, Function, int] | None:
    for node in owner.body:
        if isinstance(node, Function) and node.name == name:
            static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
            return source, node, int(not static)
    return _inherited(source, owner, name, library, depth + 1)


def _inherited(
    source: Source, owner: ast.ClassDef, name: str, library: Library, depth: int
) -> tuple[Source, Function, int] | None:
    for base in owner.bases if depth < _DEEPEST else ():
        found = library.definition(ast.unparse(base), source)
        if found and isinstance(found[1], ast.ClassDef):
            method = _method(found[0], found[1], name, library, depth)
            if method:
                return method
    return None
