"""What can be known of a value from sources alone: a constant, not None, or nothing."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

__all__ = [
    "NONE",
    "REST",
    "SOMETHING",
    "UNKNOWN",
    "State",
    "Value",
    "compared",
    "constant",
    "join",
    "join_states",
    "made_by",
    "refine",
    "truth",
]


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value.

    Attributes:
        known: It is the constant `const`.
        const: The constant; text of its type and value, so that 1 is not True.
        some: It is not None.
        rest: It is a function's own ``*args`` or ``**kwargs``, and nothing was given.
    """

    known: bool = False
    const: object = None
    some: bool = False
    rest: bool = False


UNKNOWN = Value()
"""Nothing is known."""
SOMETHING = Value(some=True)
"""An object; which one is not known."""
NONE = Value(known=True)
"""None."""
REST = Value(rest=True)
"""Further arguments, of which none was given."""


@dataclass
class State:
    """What is known at one point of a method.

    Attributes:
        attributes: Of the object.
        names: Local names.
        when: Conditions under which this point is reached that could not be decided.
        decided: Conditions that could, and how.
        guarded: Attributes that were asked for with `hasattr` on the way here.
        sure: Attributes that have been assigned on every way here.
    """

    attributes: dict[str, Value] = field(default_factory=dict)
    names: dict[str, Value] = field(default_factory=dict)
    when: tuple[str, ...] = ()
    decided: tuple[tuple[str, bool], ...] = ()
    guarded: frozenset[str] = frozenset()
    sure: frozenset[str] = frozenset()

    def copy(self) -> State:
        """Return a state that can be changed alone."""
        return replace(self, attributes=dict(self.attributes), names=dict(self.names))


def constant(value: object) -> Value:
    """Return what is known of a constant."""
    return Value(known=True, const=value, some=value is not None)


def join(one: Value, other: Value) -> Value:
    """Return what is known of a value that is one or the other."""
    if one == other and type(one.const) is type(other.const):
        return one
    return SOMETHING if one.some and other.some else UNKNOWN


def join_states(one: State | None, other: State | None) -> State | None:
    """Return what is known where two ways meet; None is a way that ends before."""
    if one is None or other is None:
        return other if one is None else one
    return State(
        attributes=_joined(one.attributes, other.attributes),
        names=_joined(one.names, other.names),
        when=one.when if len(one.when) <= len(other.when) else other.when,
        decided=tuple(each for each in one.decided if each in other.decided),
        guarded=one.guarded & other.guarded,
        sure=one.sure & other.sure,
    )


def _joined(one: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    return {
        name: join(one.get(name, UNKNOWN), other.get(name, UNKNOWN)) for name in {*one, *other}
    }


def truth(value: Value) -> bool | None:
    """Return whether a value is true; None where that is not known."""
    return bool(value.const) if value.known else None


def compared(left: Value, how: ast.cmpop, right: Value) -> Value:
    """Return what a comparison gives."""
    if isinstance(how, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        same: bool | None = None
        if left.known and right.known:
            same = left.const == right.const and type(left.const) is type(right.const)
        elif (left == NONE and right.some) or (right == NONE and left.some):
            same = False
        if same is not None:
            return constant(same == isinstance(how, ast.Is | ast.Eq))
    return UNKNOWN


def made_by(node: ast.AST | None) -> Value:
    """Return what is known of an expression without knowing what its names mean.

    A call of something that is written as a class makes an object.
    """
    if isinstance(node, ast.Constant):
        return constant(node.value)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2].lstrip("_")
        return SOMETHING if name[:1].isupper() and not name.isupper() else UNKNOWN
    made = ast.List | ast.Tuple | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.Lambda
    return SOMETHING if isinstance(node, made | ast.JoinedStr | ast.ClassDef) else UNKNOWN


def refine(test: ast.expr, state: State, myself: str, *, holds: bool) -> None:
    """Add to a state what follows from a condition that was taken to hold, or not to.

    Args:
        test: The condition.
        state: Is changed.
        myself: The name of the object, as ``self``.
        holds: Whether it was taken to hold.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        refine(test.operand, state, myself, holds=not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) == holds:
            for part in test.values:
                refine(part, state, myself, holds=holds)
    elif isinstance(test, ast.Call):
        if holds and (name := _asked_for(test, myself)):
            state.guarded |= {name}
    elif isinstance(test, ast.Compare):
        nothing = test.comparators[0]
        if len(test.ops) == 1 and isinstance(nothing, ast.Constant) and nothing.value is None:
            is_none = isinstance(test.ops[0], ast.Is | ast.Eq) == holds
            _learn(test.left, state, myself, NONE if is_none else SOMETHING)
    elif holds:
        _learn(test, state, myself, SOMETHING)


def _learn(node: ast.expr, state: State, myself: str, value: Value) -> None:
    if isinstance(node, ast.NamedExpr):
        _learn(node.target, state, myself, value)
        node = node.value
    if isinstance(node, ast.Name):
        if not state.names.get(node.id, UNKNOWN).known:
            state.names[node.id] = value
    elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == myself:
        if not state.attributes.get(node.attr, UNKNOWN).known:
            state.attributes[node.attr] = value
    elif isinstance(node, ast.Call) and value.some and (name := _asked_for(node, myself)):
        state.guarded |= {name}


def _asked_for(call: ast.Call, myself: str) -> str:
    """Return the attribute that ``hasattr`` or ``getattr`` asks an object for."""
    named = isinstance(call.func, ast.Name) and call.func.id in {"hasattr", "getattr"}
    if named and len(call.args) > 1 and ast.unparse(call.args[0]) == myself:
        name = call.args[1]
        return str(name.value) if isinstance(name, ast.Constant) else ""
    return ""
