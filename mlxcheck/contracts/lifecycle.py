"""What happens to an object of a class when it is made and its methods are called.

The constructor is followed through the methods that it calls, as the order of resolution has
them, with every parameter at its default. Branches whose condition is known are followed in
the one way that they go; others in both. Nothing is run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcheck.contracts.bodies import Body
from mlxcheck.contracts.values import REST, UNKNOWN, State, Value, made_by

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Mapping

    from mlxcheck.contracts.classes import ClassModel, Member, Place
    from mlxcheck.contracts.followed import Read, SelfCall, Stop

__all__ = ["Lifecycle"]

_DEEPEST = 60
_MOST = 20_000


@dataclass
class Lifecycle:
    """The methods of one class, followed.

    Attributes:
        model: The class.
        sets: Attributes that are assigned, and where first.
        always: Those of them that the method that was entered assigns on every way through.
        reads: Attributes that are read and are nothing of the class's body.
        calls: Calls of its own methods.
        stops: Where it cannot go on.
        ran: The methods that were followed.
        loose: Where attributes are assigned under computed names.
        cut: Following was given up somewhere: too deep, or too much.
    """

    model: ClassModel
    sets: dict[str, Place] = field(default_factory=dict)
    always: dict[str, Place] = field(default_factory=dict)
    reads: dict[tuple[str, Place], Read] = field(default_factory=dict)
    calls: dict[tuple[str, Place], SelfCall] = field(default_factory=dict)
    stops: dict[Place, Stop] = field(default_factory=dict)
    ran: dict[str, Member] = field(default_factory=dict)
    loose: list[Place] = field(default_factory=list)
    cut: bool = False
    _depth: list[Member] = field(default_factory=list)
    _runs: Counter[str] = field(default_factory=Counter)

    def construct(self) -> State:
        """Follow the constructor with every parameter at its default."""
        start = State()
        after: State | None = start
        for name in ("__new__", "__init__", "__post_init__"):
            member = self.model.find(name)
            if member and member.function and after is not None:
                _, after = self.call(member, self.defaults(member), after)
        return after or start

    def enter(self, member: Member, state: State, weak: Iterable[str]) -> None:
        """Follow a method that somebody else calls, with arguments that are not known.

        Args:
            member: The method or property.
            state: Of the object before.
            weak: Attributes of which nothing is known any more.
        """
        if member.function is None:
            return
        before = state.copy()
        before.attributes.update(dict.fromkeys(weak, UNKNOWN))
        before.sure = frozenset()
        _, after = self.call(member, {}, before)
        sure = after.sure if after else frozenset[str]()
        self.always = {name: place for name, place in self.sets.items() if name in sure}

    def defaults(self, member: Member) -> dict[str, Value]:
        """Return what a method's parameters are where the caller gives none."""
        function = member.function
        if function is None:
            return {}
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        late = positional[len(positional) - len(arguments.defaults) :]
        found = {a.arg: made_by(d) for a, d in zip(late, arguments.defaults, strict=True)}
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            found[arg.arg] = made_by(default)
        rest = [a.arg for a in (arguments.vararg, arguments.kwarg) if a]
        return {**found, **dict.fromkeys(rest, REST)}

    def call(
        self, member: Member, names: Mapping[str, Value], state: State
    ) -> tuple[Value, State | None]:
        """Follow a method; return what is known of its value and of the object after it.

        Args:
            member: The method or property.
            names: Its parameters.
            state: At the call.
        """
        function = member.function
        if function is None or member in self._depth:
            return UNKNOWN, state
        key = f"{member.owner.name}.{member.name}"
        self._runs[key] += 1
        if len(self._depth) >= _DEEPEST or self._runs.total() > _MOST:
            self.cut = True
            return UNKNOWN, state
        self.ran[key] = member
        self._depth.append(member)
        try:
            inside = State(
                attributes=dict(state.attributes),
                names=dict(names),
                when=state.when,
                decided=state.decided,
                guarded=state.guarded,
                sure=state.sure,
            )
            value, after = Body(self, member).run(inside)
        finally:
            self._depth.pop()
        if after is not None:
            after.names, after.when = dict(state.names), state.when
            after.decided, after.guarded = state.decided, state.guarded
        return value, after

    def bind(
        self, member: Member, call: ast.Call, given: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Return what is known of a method's parameters at a call.

        Args:
            member: The method.
            call: The call.
            given: The values of its arguments, by position as text and by name; ``*`` says
                that more are given that cannot be told.
        """
        function = member.function
        if function is None or "*" in given:
            return {}
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        names = names[member.bound :]
        bound = dict(self.defaults(member))
        for number in range(len(call.args)):
            if number < len(names) and str(number) in given:
                bound[names[number]] = given[str(number)]
        bound.update({k: v for k, v in given.items() if not k.isdigit()})
        return bound
