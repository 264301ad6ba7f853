"""What the expressions of a method do to its object, and what is known of their values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mlxcheck.contracts.followed import Read, SelfCall
from mlxcheck.contracts.values import (
    SOMETHING,
    UNKNOWN,
    State,
    Value,
    compared,
    constant,
    join,
    made_by,
    refine,
    truth,
)

if TYPE_CHECKING:
    from mlxcheck.contracts.classes import Member
    from mlxcheck.contracts.lifecycle import Lifecycle

__all__ = ["Expressions"]


class Expressions:
    """Evaluates the expressions of one method.

    Args:
        life: Where what is seen is noted.
        member: The method.
    """

    def __init__(self, life: Lifecycle, member: Member) -> None:
        self.life = life
        self.member = member
        function = member.function
        first = (
            [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
            if function
            else []
        )
        plain = member.kind in {"method", "property"}
        self.myself = first[0] if plain and first else ""

    def value(self, node: ast.expr | None, state: State) -> Value:
        """Evaluate an expression; note what it reads and calls, and change the state."""
        if node is None:
            return UNKNOWN
        known = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if known is not None:
            found: Value = known(node, state)
            return found
        for child in ast.iter_child_nodes(node):
            self._any(child, state)
        return made_by(node)

    def mine(self, node: ast.AST | None) -> bool:
        """Return whether an expression is the object itself."""
        return isinstance(node, ast.Name) and bool(self.myself) and node.id == self.myself

    def assign(self, target: ast.expr, value: Value, state: State) -> None:
        """Bind a target of an assignment."""
        if isinstance(target, ast.Name):
            state.names[target.id] = value
        elif isinstance(target, ast.Attribute) and self.mine(target.value):
            self._set(target.attr, value, target, state)
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self.assign(part, UNKNOWN, state)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, UNKNOWN, state)
        else:
            for child in ast.iter_child_nodes(target):
                self._any(child, state)

    def _set(self, name: str, value: Value, node: ast.AST, state: State) -> None:
        setter = self.life.model.setter(name)
        if setter is not None and setter.function is not None:
            names = [a.arg for a in setter.function.args.args][1:]
            self._follow(setter, dict.fromkeys(names, value), state)
            return
        state.attributes[name] = value
        place = self.member.owner.place(node)
        self.life.sets.setdefault(name, place)
        state.sure |= {name}

    def _any(self, node: ast.AST, state: State) -> None:
        if isinstance(node, ast.expr):
            self.value(node, state)
        else:
            for child in ast.iter_child_nodes(node):
                self._any(child, state)

    def _follow(self, member: Member, names: dict[str, Value], state: State) -> Value:
        value, after = self.life.call(member, names, state)
        if after is not None:
            state.attributes, state.sure = after.attributes, after.sure
        return value

    def _on_name(self, node: ast.Name, state: State) -> Value:
        return state.names.get(node.id, UNKNOWN)

    def _on_attribute(self, node: ast.Attribute, state: State) -> Value:
        if not self.mine(node.value):
            self.value(node.value, state)
            return UNKNOWN
        return self._read(node.attr, node, state)

    def _read(self, name: str, node: ast.AST, state: State) -> Value:
        member = self.life.model.find(name)
        if member is not None and member.kind == "property":
            return self._follow(member, {}, state)
        if name in state.attributes:
            return state.attributes[name]
        if member is not None:
            return made_by(member.node) if member.kind == "value" else SOMETHING
        if name not in state.guarded and not (name.startswith("__") and name.endswith("__")):
            place = self.member.owner.place(node)
            read = Read(name=name, place=place, member=self.member, when=state.when)
            kept = self.life.reads.setdefault((name, place), read)
            if len(state.when) < len(kept.when):
                self.life.reads[name, place] = read
        return UNKNOWN

    def _on_namedexpr(self, node: ast.NamedExpr, state: State) -> Value:
        value = self.value(node.value, state)
        self.assign(node.target, value, state)
        return value

    def _on_unaryop(self, node: ast.UnaryOp, state: State) -> Value:
        known = truth(self.value(node.operand, state))
        if isinstance(node.op, ast.Not) and known is not None:
            return constant(not known)
        return UNKNOWN

    def _on_boolop(self, node: ast.BoolOp, state: State) -> Value:
        ends = isinstance(node.op, ast.Or)
        before = (state.when, state.guarded)
        values: list[Value] = []
        for number, part in enumerate(node.values):
            values.append(self.value(part, state))
            known = truth(values[-1])
            if known is ends:
                break
            if number + 1 < len(node.values):
                refine(part, state, self.myself, holds=not ends)
                if known is None:
                    state.when = (*state.when, _told(part, holds=not ends))
        state.when, state.guarded = before
        # What was learned for the next part alone is forgotten with it.
        state.attributes.update(
            {
                name: UNKNOWN
                for name in _named_in(node, self.myself) & set(state.attributes)
                if truth(values[-1]) is None and not state.attributes[name].known
            }
        )
        undecided = [v for v in values if truth(v) is not (not ends)]
        if not undecided:
            return values[-1]
        return undecided[0] if len(undecided) == 1 and undecided[0] is values[-1] else UNKNOWN

    def _on_ifexp(self, node: ast.IfExp, state: State) -> Value:
        known = truth(self.value(node.test, state))
        if known is not None:
            return self.value(node.body if known else node.orelse, state)
        found: list[Value] = []
        for holds, part in ((True, node.body), (False, node.orelse)):
            inner = state.copy()
            inner.when = (*state.when, _told(node.test, holds=holds))
            refine(node.test, inner, self.myself, holds=holds)
            found.append(self.value(part, inner))
        return join(*found)

    def _on_compare(self, node: ast.Compare, state: State) -> Value:
        values = [self.value(part, state) for part in (node.left, *node.comparators)]
        return compared(values[0], node.ops[0], values[1]) if len(values) == 2 else UNKNOWN  # noqa: PLR2004

    def _on_lambda(self, node: ast.Lambda, state: State) -> Value:
        inner = state.copy()
        inner.when = (*state.when, "a lambda is called later")
        self.value(node.body, inner)
        return SOMETHING

    def _on_call(self, node: ast.Call, state: State) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id in {
            "getattr",
            "hasattr",
            "setattr",
        }:
            return self._by_name(node, state)
        member = self._method(node.func)
        given = self._given(node, state)
        if member is None:
            self.value(node.func, state)
            return made_by(node)
        mine = 0 if self._explicit(node) else member.bound
        if member.kind == "property":
            return UNKNOWN
        place = self.member.owner.place(node)
        call = SelfCall(
            member=member,
            place=place,
            positional=len([a for a in node.args if not isinstance(a, ast.Starred)]) + mine,
            keywords=tuple(k.arg for k in node.keywords if k.arg),
            whole="*" not in given and not _rests(node),
        )
        self.life.calls.setdefault((member.name, place), call)
        return self._follow(member, self.life.bind(member, node, given), state)

    def _explicit(self, node: ast.Call) -> bool:
        """Return whether the object is given to a method of a class by hand."""
        return bool(node.args) and self.mine(node.args[0]) and not self._super(node.func)

    def _super(self, func: ast.expr) -> bool:
        return (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Call)
            and ast.unparse(func.value.func) == "super"
        )

    def _method(self, func: ast.expr) -> Member | None:
        """Return which of the object's own methods an expression names, if it does."""
        if not isinstance(func, ast.Attribute):
            return None
        model = self.life.model
        if self.mine(func.value):
            found = model.find(func.attr)
            return found if found and found.function else None
        if self._super(func):
            return model.find(func.attr, after=self.member.owner)
        owner = ast.unparse(func.value).rpartition(".")[2]
        for each in model.mro:
            if each.node.name == owner:
                return each.find(func.attr)
        return None

    def _given(self, node: ast.Call, state: State) -> dict[str, Value]:
        given: dict[str, Value] = {}
        shift = int(self._method(node.func) is not None and self._explicit(node))
        for number, part in enumerate(node.args[shift:]):
            if isinstance(part, ast.Starred):
                if not self.value(part.value, state).rest:
                    given["*"] = UNKNOWN
            else:
                given[str(number)] = self.value(part, state)
        for keyword in node.keywords:
            value = self.value(keyword.value, state)
            if keyword.arg:
                given[keyword.arg] = value
            elif not value.rest:
                given["*"] = UNKNOWN
        return given

    def _by_name(self, node: ast.Call, state: State) -> Value:
        asks = ast.unparse(node.func)
        about_me = bool(node.args) and self.mine(node.args[0]) and len(node.args) > 1
        for part in node.args[1 if about_me else 0 :]:
            self.value(part, state)
        if not about_me:
            return UNKNOWN
        name = node.args[1]
        if not isinstance(name, ast.Constant):
            if asks == "setattr":
                self.life.loose.append(self.member.owner.place(node))
            return UNKNOWN
        if asks == "setattr":
            self._set(str(name.value), UNKNOWN, node, state)
        elif asks == "getattr" and len(node.args) == 2:  # noqa: PLR2004 - without a default
            return self._read(str(name.value), node, state)
        return UNKNOWN


def _rests(node: ast.Call) -> bool:
    starred = any(isinstance(a, ast.Starred) for a in node.args)
    return starred or any(k.arg is None for k in node.keywords)


def _told(test: ast.expr, *, holds: bool) -> str:
    text = ast.unparse(test)
    return text if holds else f"not ({text})"


def _named_in(node: ast.AST, myself: str) -> set[str]:
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and ast.unparse(each.value) == myself
    }
