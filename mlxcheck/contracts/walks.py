"""Going through one file of a caller, scope by scope; see `callers`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from mlxcheck.contracts.bodies import catches_missing
from mlxcheck.contracts.classes import Place, line_of
from mlxcheck.contracts.roles import Function, Role, Roles, annotated, reached
from mlxcheck.contracts.uses import How, Loose, Use

if TYPE_CHECKING:
    from mlxcheck.contracts.sources import Source
    from mlxcheck.contracts.uses import Around

__all__ = ["Walk"]

_ASK = {"getattr", "hasattr", "setattr", "delattr"}
_HARMLESS = frozenset(
    [
        *_ASK,
        *(
            "isinstance",
            "type",
            "id",
            "print",
            "repr",
            "str",
            "len",
            "bool",
            "callable",
            "cast",
        ),
        *("enumerate", "zip", "any", "all", "list", "tuple", "reversed", "sorted", "iter"),
        *("next", "super", "ref", "append"),
    ]
)
"""What may be given the object without doing anything to it that could be looked at."""


class Walk:
    """Goes through one file.

    Args:
        source: The file.
        around: What it shares with the others.
    """

    def __init__(self, source: Source, around: Around) -> None:
        self._evidence, self._sources, self._own, self._replaced, self._uses = around
        self._source = source
        self._names: dict[str, Role] = {}
        self._roles = Roles(self._evidence, source, self._names)
        self._class: ast.ClassDef | None = None
        self._in_class = False
        self._when: tuple[str, ...] = ()
        self._guarded: frozenset[str] = frozenset()

    def scope(
        self, body: list[ast.stmt], names: dict[str, Role], around: ast.ClassDef | None
    ) -> None:
        """Go through a module's, class's or function's body."""
        kept = (self._names, self._roles, self._class, self._when, self._guarded)
        self._names, self._class = names, around
        self._roles = Roles(self._evidence, self._source, names)
        self._when, self._guarded = (), frozenset()
        self._block(body)
        self._names, self._roles, self._class, self._when, self._guarded = kept

    def _block(self, body: list[ast.stmt]) -> None:
        kept = self._when
        for node in body:
            self._visit(node)
            # Past a branch that leaves, the rest runs under the other branch's condition.
            if isinstance(node, ast.If) and _leaves(node.body) and not node.orelse:
                self._when = (*self._when, f"not ({ast.unparse(node.test)})")
        self._when = kept

    def _visit(self, node: ast.AST) -> None:
        known = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if known is not None:
            known(node)
        else:
            self._children(node)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _on_classdef(self, node: ast.ClassDef) -> None:
        kept, self._in_class = self._in_class, True
        self.scope(node.body, dict(self._names), node)
        self._in_class = kept

    def _on_functiondef(self, node: Function) -> None:
        if node in self._replaced:
            return
        around = self._class
        names = {**self._names, **self._evidence.parameters.get(node, {})}
        args = [*node.args.posonlyargs, *node.args.args]
        if around in self._own and args and args[0].arg == "self":
            names["self"] = "one"
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self._visit(default)
        kept, self._in_class = self._in_class, False
        self.scope(node.body, names, around)
        self._in_class = kept

    _on_asyncfunctiondef = _on_functiondef

    def _on_assign(self, node: ast.Assign) -> None:
        self._visit(node.value)
        for target in node.targets:
            self._bind(target, node.value)

    def _on_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._visit(node.value)
        role = annotated(node.annotation, self._source, self._evidence)
        self._hold(node.target, role, None if role else ast.unparse(node.annotation))
        if role is None and node.value is not None:
            self._bind(node.target, node.value)

    def _on_namedexpr(self, node: ast.NamedExpr) -> None:
        self._visit(node.value)
        self._bind(node.target, node.value)

    def _on_for(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit(node.iter)
        self._each(node.target, node.iter)
        self._block(node.body)
        self._block(node.orelse)

    _on_asyncfor = _on_for

    def _on_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._generators(node.generators)
        self._visit(node.elt)

    _on_setcomp = _on_generatorexp = _on_listcomp

    def _on_dictcomp(self, node: ast.DictComp) -> None:
        self._generators(node.generators)
        self._visit(node.key)
        self._visit(node.value)

    def _generators(self, generators: list[ast.comprehension]) -> None:
        for each in generators:
            self._visit(each.iter)
            self._each(each.target, each.iter)
            for test in each.ifs:
                self._visit(test)

    def _each(self, target: ast.expr, items: ast.expr) -> None:
        role: Role | None = "one" if self._roles(items) == "many" else None
        if (
            isinstance(items, ast.Call)
            and ast.unparse(items.func) == "enumerate"
            and items.args
        ):
            role = "one" if self._roles(items.args[0]) == "many" else None
            if isinstance(target, ast.Tuple):
                target = target.elts[-1]
        self._hold(target, role, None)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, given in zip(target.elts, value.elts, strict=False):
                self._bind(part, given)
            return
        role = self._roles(value)
        other = None
        if role is None and isinstance(value, ast.Call):
            name = ast.unparse(value.func).rpartition(".")[2]
            other = name if name.lstrip("_")[:1].isupper() else None
        self._hold(target, role, other)

    def _hold(self, target: ast.expr, role: Role | None, other: str | None) -> None:
        """Note what a target holds from here on: the role, or something else."""
        if isinstance(target, ast.Name):
            if self._in_class:
                self._keep(target.id, role, other, target)
            elif role:
                self._names[target.id] = role
            else:
                self._names.pop(target.id, None)
        elif isinstance(target, ast.Attribute):
            if self._roles(target.value) == "one":
                self._note("write", target.attr, target)
            elif role:
                self._evidence.attributes.setdefault(target.attr, role)
            elif other:
                self._evidence.others.setdefault(
                    target.attr, f"{other} at {self._place(target)}"
                )
            self._visit(target.value)
        else:
            self._children(target)

    def _keep(self, name: str, role: Role | None, other: str | None, node: ast.AST) -> None:
        """Note what an attribute holds."""
        if role:
            self._evidence.attributes.setdefault(name, role)
        elif other:
            self._evidence.others.setdefault(name, f"{other} at {self._place(node)}")

    def _on_if(self, node: ast.If | ast.IfExp) -> None:
        self._visit(node.test)
        text, kept = ast.unparse(node.test), (self._when, self._guarded)
        asked = self._asked_for(node.test)
        body: list[Any] = node.body if isinstance(node.body, list) else [node.body]
        orelse: list[Any] = node.orelse if isinstance(node.orelse, list) else [node.orelse]
        self._when, self._guarded = (*kept[0], text), kept[1] | asked
        self._block(body)
        self._when, self._guarded = (*kept[0], f"not ({text})"), kept[1]
        self._block(orelse)
        self._when, self._guarded = kept

    _on_ifexp = _on_if

    def _on_while(self, node: ast.While) -> None:
        self._visit(node.test)
        self._block(node.body)
        self._block(node.orelse)

    def _on_with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self._visit(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, item.context_expr)
        self._block(node.body)

    _on_asyncwith = _on_with

    def _on_boolop(self, node: ast.BoolOp) -> None:
        kept = self._guarded
        for part in node.values:
            self._visit(part)
            if isinstance(node.op, ast.And):
                self._guarded |= self._asked_for(part)
        self._guarded = kept

    def _on_try(self, node: ast.Try) -> None:
        kept = self._guarded
        if any(catches_missing(handler) for handler in node.handlers):
            self._guarded |= {"*"}
        self._block(node.body)
        self._guarded = kept
        for handler in node.handlers:
            self._block(handler.body)
        self._block(node.orelse)
        self._block(node.finalbody)

    def _asked_for(self, test: ast.AST) -> frozenset[str]:
        """Return the attributes that a condition asks the object for."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return frozenset().union(*(self._asked_for(part) for part in test.values))
        if isinstance(test, ast.Compare):
            return self._asked_for(test.left)
        if isinstance(test, ast.Call) and ast.unparse(test.func) in {"hasattr", "getattr"}:
            name = test.args[1] if len(test.args) > 1 else None
            if self._roles(test.args[0]) and isinstance(name, ast.Constant):
                return frozenset({str(name.value)})
        return frozenset()

    def _on_attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and self._roles(node.value) == "one":
            self._note("read", node.attr, node)
        elif isinstance(node.ctx, ast.Store | ast.Del) and self._roles(node.value) == "one":
            self._note("write", node.attr, node)
        self._visit(node.value)

    def _on_call(self, node: ast.Call) -> None:
        func = node.func
        name = ast.unparse(func)
        if name in _ASK and node.args and self._roles(node.args[0]) == "one":
            self._by_name(name, node)
        elif self._evidence.names_class(func, self._source):
            self._note("make", name.rpartition(".")[2], node, node)
        elif isinstance(func, ast.Attribute) and self._roles(func.value) == "one":
            self._note("call", func.attr, node, node)
            self._visit(func.value)
        else:
            self._visit(func)
            self._hand_on(node, name)
        for part in (*node.args, *node.keywords):
            self._visit(part)

    def _by_name(self, how: str, node: ast.Call) -> None:
        name = node.args[1] if len(node.args) > 1 else None
        if not isinstance(name, ast.Constant):
            self._out_of_sight(how, f"{how} with a computed name", node)
        elif how == "setattr":
            self._note("write", str(name.value), node)
        else:
            kept = self._guarded
            if how == "hasattr" or len(node.args) > 2:  # noqa: PLR2004 - with a default
                self._guarded |= {"*"}
            self._note("read", str(name.value), node)
            self._guarded = kept

    def _hand_on(self, node: ast.Call, name: str) -> None:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not any(self._roles(part) for part in given):
            return
        short = name.rpartition(".")[2]
        found = reached(node, self._source, self._class, self._evidence.library)
        if found and found[0] in self._sources:
            self._roles.hand_on(found[1], found[2], node)
        elif short not in _HARMLESS and not self._known_by_name(short, node):
            self._out_of_sight(
                short, f"handed to {short}, which is not among the callers", node
            )

    def _known_by_name(self, name: str, call: ast.Call) -> bool:
        """Return whether every caller's function of a name holds the role where it is given."""
        found = [
            node
            for source in self._sources
            for node in source.definitions.values()
            if isinstance(node, Function) and node.name == name
        ]
        known = self._evidence.parameters
        return bool(found) and all(
            self._roles.given(node, call) <= set(known.get(node, {})) for node in found
        )

    def _note(
        self,
        how: How,
        name: str,
        node: ast.AST,
        call: ast.Call | None = None,
    ) -> None:
        if self._class in self._own and how != "make" and self._myself(node):
            return
        place = self._place(node)
        doubt = self._doubt(node) if how != "make" else ""
        if doubt:
            self._out_of_sight(name, doubt, node)
            return
        starred = call is not None and (
            any(isinstance(a, ast.Starred) for a in call.args)
            or any(k.arg is None for k in call.keywords)
        )
        given = [a for a in call.args if not isinstance(a, ast.Starred)] if call else []
        use = Use(
            how=how,
            name=name,
            place=place,
            when=self._when,
            guarded=bool({name, "*"} & self._guarded),
            positional=len(given),
            keywords=tuple(k.arg for k in call.keywords if k.arg) if call else (),
            whole=not starred,
        )
        column = getattr(node, "col_offset", 0)
        self._uses.found.setdefault((how, name, place, column), use)

    def _myself(self, node: ast.AST) -> bool:
        """Return whether a use is one of the class's own ``self``."""
        inner = node.func if isinstance(node, ast.Call) else node
        if isinstance(node, ast.Call) and isinstance(inner, ast.Name):
            inner = node.args[0] if node.args else node
            return isinstance(inner, ast.Name) and inner.id == "self"
        value = getattr(inner, "value", None)
        return isinstance(value, ast.Name) and value.id == "self"

    def _doubt(self, node: ast.AST) -> str:
        """Say why what holds the object may hold something else here."""
        inner = node.func if isinstance(node, ast.Call) else node
        holder = getattr(inner, "value", None)
        name = holder.attr if isinstance(holder, ast.Attribute) else ""
        other = self._evidence.others.get(name)
        if other is None or name in self._evidence.given:
            return ""
        return f"{name} holds {other} too"

    def _out_of_sight(self, name: str, reason: str, node: ast.AST) -> None:
        place = self._place(node)
        loose = Loose(name=name, reason=reason, place=place)
        self._uses.loose.setdefault((name, place), loose)

    def _place(self, node: ast.AST) -> Place:
        return line_of(self._source, node)


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
