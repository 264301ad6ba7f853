"""Following one method, statement by statement; see `lifecycle`."""

from __future__ import annotations

import ast
from functools import reduce
from typing import TYPE_CHECKING

from mlxcheck.contracts.expressions import Expressions
from mlxcheck.contracts.followed import Stop
from mlxcheck.contracts.values import (
    NONE,
    UNKNOWN,
    State,
    Value,
    join,
    join_states,
    refine,
    truth,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.contracts.classes import Member
    from mlxcheck.contracts.lifecycle import Lifecycle

__all__ = ["Body", "catches_missing"]

_CATCHES = {"AttributeError", "Exception", "BaseException"}


class Body(Expressions):
    """The statements of one method.

    Args:
        life: Where what is seen is noted.
        member: The method.
    """

    def __init__(self, life: Lifecycle, member: Member) -> None:
        super().__init__(life, member)
        self._exits: list[tuple[Value, State]] = []
        self._loops: list[list[State]] = []

    def run(self, state: State) -> tuple[Value, State | None]:
        """Follow the method; return its value and the state after it, None for no way out."""
        function = self.member.function
        end = self._block(function.body if function else [], state)
        if end is not None:
            self._exits.append((NONE, end))
        if not self._exits:
            return UNKNOWN, None
        states: list[State | None] = [each for _, each in self._exits]
        return (
            reduce(join, [value for value, _ in self._exits]),
            reduce(join_states, states),
        )

    def _block(self, body: Sequence[ast.stmt], state: State) -> State | None:
        now: State | None = state
        for node in body:
            if now is None:
                return None
            now = self._statement(node, now)
        return now

    def _statement(self, node: ast.stmt, state: State) -> State | None:
        known = getattr(self, f"_at_{type(node).__name__.lower()}", None)
        if known is not None:
            after: State | None = known(node, state)
            return after
        for child in ast.iter_child_nodes(node):
            self._any(child, state)
        return state

    def _at_assign(self, node: ast.Assign, state: State) -> State:
        value = self.value(node.value, state)
        for target in node.targets:
            self.assign(target, value, state)
        return state

    def _at_annassign(self, node: ast.AnnAssign, state: State) -> State:
        if node.value is not None:
            self.assign(node.target, self.value(node.value, state), state)
        return state

    def _at_augassign(self, node: ast.AugAssign, state: State) -> State:
        self.value(node.value, state)
        if isinstance(node.target, ast.Attribute) and self.mine(node.target.value):
            self._read(node.target.attr, node.target, state)
            state.attributes[node.target.attr] = UNKNOWN
        else:
            self.assign(node.target, UNKNOWN, state)
        return state

    def _at_if(self, node: ast.If, state: State) -> State | None:
        return self._choose(node.test, node.body, node.orelse, state)

    def _choose(
        self,
        test: ast.expr,
        body: Sequence[ast.stmt],
        orelse: Sequence[ast.stmt],
        state: State,
    ) -> State | None:
        known = truth(self.value(test, state))
        text = ast.unparse(test)
        if known is not None:
            state.decided = (*state.decided, (text, known))
            return self._block(body if known else orelse, state)
        ends: list[State | None] = []
        for holds, part in ((True, body), (False, orelse)):
            inner = state.copy()
            inner.when = (*state.when, text if holds else f"not ({text})")
            refine(test, inner, self.myself, holds=holds)
            ends.append(self._block(part, inner))
        after = join_states(*ends)
        # Past a branch that ends the method, the rest runs under the other one's condition.
        if after is not None and None not in ends:
            after.when, after.guarded = state.when, state.guarded & after.guarded
        return after

    def _at_while(self, node: ast.While, state: State) -> State | None:
        self.value(node.test, state)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return self._loop(node, state, ast.unparse(node.test), skipped=not endless)

    def _at_for(self, node: ast.For | ast.AsyncFor, state: State) -> State | None:
        self.value(node.iter, state)
        self.assign(node.target, UNKNOWN, state)
        text = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        return self._loop(node, state, text, skipped=True)

    _at_asyncfor = _at_for

    def _loop(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        state: State,
        text: str,
        *,
        skipped: bool,
    ) -> State | None:
        self._loops.append([])
        inner = state.copy()
        if skipped:
            inner.when = (*state.when, text)
        end = self._block(node.body, inner)
        left: list[State | None] = [end, *self._loops.pop()]
        if skipped:
            left.append(state)
        after = reduce(join_states, left, None)
        if after is None:
            return None
        after.when, after.guarded = state.when, state.guarded
        return self._block(node.orelse, after)

    def _at_break(self, _node: ast.Break, state: State) -> None:
        if self._loops:
            self._loops[-1].append(state)

    def _at_continue(self, _node: ast.Continue, state: State) -> None:
        if self._loops:
            self._loops[-1].append(state)

    def _at_with(self, node: ast.With | ast.AsyncWith, state: State) -> State | None:
        for item in node.items:
            value = self.value(item.context_expr, state)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, state)
        return self._block(node.body, state)

    _at_asyncwith = _at_with

    def _at_try(self, node: ast.Try, state: State) -> State | None:
        before = state.copy()
        if any(catches_missing(handler) for handler in node.handlers):
            state.guarded |= _every_name(node.body)
        tried = self._block(node.body, state)
        end = self._block(node.orelse, tried) if tried is not None else None
        for handler in node.handlers:
            inner = join_states(before.copy(), tried.copy() if tried else None) or before.copy()
            inner.when = (
                *before.when,
                f"except {ast.unparse(handler.type)}" if handler.type else "except",
            )
            inner.guarded = before.guarded
            if handler.name:
                inner.names[handler.name] = UNKNOWN
            end = join_states(end, self._block(handler.body, inner))
        if end is not None:
            end.when, end.guarded = before.when, before.guarded
        final = end if end is not None else before.copy()
        done = self._block(node.finalbody, final)
        return done if end is not None else None

    _at_trystar = _at_try

    def _at_match(self, node: ast.Match, state: State) -> State | None:
        self.value(node.subject, state)
        subject = ast.unparse(node.subject)
        ends: list[State | None] = [state.copy()]
        for case in node.cases:
            inner = state.copy()
            inner.when = (*state.when, f"{subject} matches {ast.unparse(case.pattern)}")
            ends.append(self._block(case.body, inner))
        after = reduce(join_states, ends)
        if after is not None:
            after.when = state.when
        return after

    def _at_return(self, node: ast.Return, state: State) -> None:
        value = self.value(node.value, state) if node.value else NONE
        self._exits.append((value, state))

    def _at_raise(self, node: ast.Raise, state: State) -> None:
        for part in (node.exc, node.cause):
            self.value(part, state)
        if node.exc is not None:
            self._stop(node, state)

    def _at_assert(self, node: ast.Assert, state: State) -> State | None:
        known = truth(self.value(node.test, state))
        if known is False:
            self._stop(node, state)
            return None
        refine(node.test, state, self.myself, holds=True)
        return state

    def _stop(self, node: ast.Raise | ast.Assert, state: State) -> None:
        if state.when:
            return
        place = self.member.owner.place(node)
        told = ast.Assert(test=node.test) if isinstance(node, ast.Assert) else node
        self.life.stops[place] = Stop(
            place=place,
            text=ast.unparse(told),
            member=self.member,
            decided=state.decided,
        )

    def _at_functiondef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, state: State
    ) -> State:
        """Follow a function inside: it runs later, if at all."""
        own = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        if self.myself not in own:
            inner = state.copy()
            inner.when = (*state.when, f"{node.name} is called later")
            inner.names.update(dict.fromkeys(own, UNKNOWN))
            kept, self._exits = self._exits, []
            self._block(node.body, inner)
            self._exits = kept
        return state

    _at_asyncfunctiondef = _at_functiondef

    def _at_classdef(self, _node: ast.ClassDef, state: State) -> State:
        return state

    def _at_import(self, _node: ast.stmt, state: State) -> State:
        return state

    _at_importfrom = _at_global = _at_nonlocal = _at_import


def catches_missing(handler: ast.ExceptHandler) -> bool:
    """Return whether a missing attribute does not get past a handler."""
    if handler.type is None:
        return True
    caught = {
        ast.unparse(each).rpartition(".")[2]
        for each in ast.walk(handler.type)
        if isinstance(each, ast.Name | ast.Attribute)
    }
    return bool(caught & _CATCHES)


def _every_name(body: Sequence[ast.stmt]) -> frozenset[str]:
    return frozenset(
        each.attr for node in body for each in ast.walk(node) if isinstance(each, ast.Attribute)
    )
