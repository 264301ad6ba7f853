"""Classes as they stand in their sources: members, bases, and the order of resolution."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Literal

from mlxcheck.contracts.signatures import signature_of
from mlxcheck.contracts.sources import Library, Source, scope_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ClassModel", "Member", "Place", "class_model", "line_of", "places_of", "taken"]

_KEEPS = {
    "abstractmethod", "cache", "contextmanager", "final", "inference_mode", "lru_cache",
    "no_grad", "override", "wraps",
}  # fmt: skip
"""Decorators after which a method is called as it is written."""

_NO_MEMBERS = {"ABC", "ABCMeta", "Generic", "Protocol", "object"}
"""Bases from outside that bring no attribute that anybody would read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file.

    Attributes:
        file: Its whole path.
        shown: The path from the top package on.
        line: From 1.
    """

    file: str
    shown: str
    line: int

    def __str__(self) -> str:
        return f"{self.shown}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Something in the body of a class.

    Attributes:
        name: Its name.
        kind: How it is reached.
        owner: The class that defines it.
        place: Where.
        node: The function, or what is assigned, if anything can be told of it.
        decorators: Those that may change how it is called.
        abstract: It is there to be overridden.
    """

    name: str
    kind: Literal["method", "static", "class", "property", "value"]
    owner: ClassModel = field(repr=False)
    place: Place
    node: ast.AST | None
    decorators: tuple[str, ...] = ()
    abstract: bool = False

    @property
    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function behind it, if it is one."""
        node = self.node
        return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None

    @property
    def signature(self) -> Signature | None:
        """How it is called, ``self`` or ``cls`` included; None where it is no method."""
        if self.function is None or self.kind in {"property", "value"}:
            return None
        return signature_of(self.function.args)

    @property
    def bound(self) -> int:
        """How many arguments are supplied by looking it up on an object."""
        return 0 if self.kind == "static" else 1


@dataclass(frozen=True, eq=False)
class ClassModel:
    """A class of a source.

    Attributes:
        name: Its qualified name.
        source: The file.
        node: Its definition.
        members: What its body defines.
        setters: Its property setters.
        mro: Itself and the bases that could be found, in the order of resolution.
        unknown: Bases that could not be found, of itself and of its bases.
    """

    name: str
    source: Source
    node: ast.ClassDef
    members: dict[str, Member] = field(default_factory=dict)
    setters: dict[str, Member] = field(default_factory=dict)
    mro: list[ClassModel] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def find(self, name: str, after: ClassModel | None = None) -> Member | None:
        """Return a member by the order of resolution.

        Args:
            name: The member's.
            after: Only what comes after this class, as ``super()`` looks.
        """
        start = self.mro.index(after) + 1 if after in self.mro else 0
        found = (model.members[name] for model in self.mro[start:] if name in model.members)
        return next(found, None)

    def setter(self, name: str) -> Member | None:
        """Return a property's setter by the order of resolution."""
        found = (model.setters[name] for model in self.mro if name in model.setters)
        return next(found, None)

    def place(self, node: ast.AST) -> Place:
        """Return the place of something in this class's file."""
        return line_of(self.source, node)


def line_of(source: Source, node: ast.AST) -> Place:
    """Return the place of a node."""
    line = getattr(node, "lineno", 1)
    return Place(file=str(source.path), shown=source.shown, line=line)


def places_of(member: Member, name: str) -> list[Place]:
    """Return where a method assigns an attribute on its object."""
    return [
        member.owner.place(node)
        for node in ast.walk(member.function or ast.Pass())
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if node.attr == name and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]


def taken(member: Member) -> Signature:
    """Return how a method is called, with a first parameter even where it is static."""
    signature = member.signature or Signature()
    if member.kind != "static":
        return signature
    first = Parameter("self", Parameter.POSITIONAL_ONLY)
    rest = list(signature.parameters.values())
    before = any(each.kind is Parameter.POSITIONAL_ONLY for each in rest)
    kind = Parameter.POSITIONAL_ONLY if before else Parameter.POSITIONAL_OR_KEYWORD
    return signature.replace(parameters=[first.replace(kind=kind), *rest])


def class_model(
    library: Library,
    source: Source,
    node: ast.ClassDef,
    pins: Mapping[str, ClassModel] | None = None,
    _open: tuple[ast.ClassDef, ...] = (),
) -> ClassModel:
    """Return a class with its bases, as far as their sources are there.

    Args:
        library: Where sources come from.
        source: The class's file.
        node: Its definition.
        pins: Classes by name that stand in for bases of that name: the base that a stub is
            to be held against may come from another release than the one that it imports.
    """
    names = {id(each): name for name, each in source.definitions.items()}
    model = ClassModel(names.get(id(node), node.name), source, node)
    _fill(model)
    rows: list[list[ClassModel]] = []
    for base in node.bases:
        found = _base(library, source, base, dict(pins or {}), (*_open, node))
        if isinstance(found, ClassModel):
            rows.append(list(found.mro))
            model.unknown.extend(found.unknown)
        elif found:
            model.unknown.append(found)
    model.mro.extend([model, *_merged(rows)])
    return model


def _base(
    library: Library,
    source: Source,
    node: ast.expr,
    pins: dict[str, ClassModel],
    opened: tuple[ast.ClassDef, ...],
) -> ClassModel | str | None:
    """Return a base, its name where it cannot be found, or None where it does not matter."""
    while isinstance(node, ast.Subscript):
        node = node.value
    text = ast.unparse(node)
    origin = source.imports.get(text, text).rpartition(".")[2]
    if origin in pins:
        return pins[origin]
    if origin in _NO_MEMBERS:
        return None
    reached = library.definition(text, source)
    if reached is None:  # a class inside a function may name its neighbours
        inner = [d for n, d in source.definitions.items() if n.endswith(f"<locals>.{text}")]
        reached = (source, inner[0]) if inner else None
    if reached is None or not isinstance(reached[1], ast.ClassDef) or reached[1] in opened:
        return text
    return class_model(library, reached[0], reached[1], pins, opened)


def _merged(rows: list[list[ClassModel]]) -> list[ClassModel]:
    """Merge the orders of the bases as Python does (C3); classes are told by definition."""
    merged: list[ClassModel] = []
    rows = [list(row) for row in rows]
    while any(rows):
        rows = [row for row in rows if row]
        tails = {id(each.node) for row in rows for each in row[1:]}
        heads = [row[0] for row in rows if id(row[0].node) not in tails]
        head = heads[0] if heads else rows[0][0]
        merged.append(head)
        rows = [[each for each in row if each.node is not head.node] for row in rows]
    return merged


def _fill(model: ClassModel) -> None:
    dataclassed = any("dataclass" in ast.unparse(d) for d in model.node.decorator_list)
    for node in scope_nodes(model.node.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _add_function(model, node)
        elif isinstance(node, ast.ClassDef):
            _add_value(model, node.name, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.value is not None or dataclassed:
                _add_value(model, node.target.id, node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        value = node.value if target is each else None
                        _add_value(model, each.id, value, at=node)


def _add_value(
    model: ClassModel, name: str, node: ast.AST | None, at: ast.AST | None = None
) -> None:
    place = model.place(at or node or model.node)
    member = Member(name=name, kind="value", owner=model, place=place, node=node)
    model.members[name] = member


def _add_function(model: ClassModel, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    words = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
    last = [word.rpartition(".")[2] for word in words]
    kind: Literal["method", "static", "class", "property"] = "method"
    if "staticmethod" in last:
        kind = "static"
    elif "classmethod" in last:
        kind = "class"
    elif {"property", "cached_property", "abstractproperty"} & set(last):
        kind = "property"
    known = _KEEPS | {"staticmethod", "classmethod"}
    member = Member(
        name=node.name,
        kind=kind,
        owner=model,
        place=model.place(node),
        node=node,
        decorators=tuple(w for w, short in zip(words, last, strict=True) if short not in known),
        abstract=bool({"abstractmethod", "abstractproperty"} & set(last)),
    )
    if "setter" in last:
        model.setters[node.name] = member
    elif "deleter" not in last and "overload" not in last:
        model.members[node.name] = member
