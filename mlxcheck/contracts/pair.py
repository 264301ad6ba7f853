"""A stub and its base, followed from their constructors through what callers call."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from mlxcheck.contracts.classes import places_of
from mlxcheck.contracts.lifecycle import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlxcheck.contracts.classes import ClassModel, Member
    from mlxcheck.contracts.uses import Use, Uses

__all__ = ["Pair"]


class Pair:
    """A stub and its base, followed.

    Args:
        stub: The stub's class.
        base: The base's class.
        uses: What callers do.

    Attributes:
        made: The stub's construction.
        base_made: The base's construction.
        entries: What follows from each method that callers call.
    """

    def __init__(self, stub: ClassModel, base: ClassModel, uses: Uses) -> None:
        self.stub = stub
        self.base = base
        self.uses = uses
        self.made, self.base_made = Lifecycle(stub), Lifecycle(base)
        self._state = self.made.construct()
        self._base_state = self.base_made.construct()
        self.entries = self._entries()

    @cached_property
    def own(self) -> list[ClassModel]:
        """The classes of the stub that are not the base's."""
        theirs = {id(model.node) for model in self.base.mro}
        return [model for model in self.stub.mro if id(model.node) not in theirs]

    def is_own(self, member: Member) -> bool:
        """Return whether a member is defined by the stub and not by the base."""
        return any(member.owner.node is model.node for model in self.own)

    def available(self, name: str) -> bool:
        """Return whether an object of the stub has an attribute at some time."""
        lives = (self.made, *self.entries.values())
        return self.stub.find(name) is not None or any(name in life.sets for life in lives)

    def doubt(self, name: str) -> str:
        """Say why an attribute that was not found may be there all the same; empty for no."""
        outside = [u for u in self.uses.found.values() if u.how == "write" and u.name == name]
        if outside:
            return "set from outside, and when is not known"
        for special in ("__getattr__", "__getattribute__"):
            if self.stub.find(special):
                return f"{self.stub.node.name} has {special}"
        if self.stub.unknown:
            return f"the base {self.stub.unknown[0]} has no source here"
        lives = (self.made, *self.entries.values())
        loose = [place for life in lives for place in life.loose]
        if loose:
            return f"attributes are set under computed names at {loose[0]}"
        if any(life.cut for life in lives):
            return "the methods call each other too often to be followed"
        return "" if self._base_has(name) else f"{self.base.node.name} has no such attribute"

    def calls_of(self, name: str) -> list[Use]:
        """Return where callers use a method or property, unconditional uses first."""
        uses = [u for u in self.uses.found.values() if u.name == name and u.how != "write"]
        return sorted(uses, key=lambda use: bool(use.when))

    def base_entry(self, name: str) -> Lifecycle:
        """Return what follows where a method is called on a base that has been made."""
        life, member = Lifecycle(self.base), self.base.find(name)
        if member is not None:
            life.enter(member, self._base_state, ())
        return life

    @cached_property
    def inherited(self) -> set[str]:
        """The methods of the base that run on the stub as they are."""
        lives = (self.made, *self.entries.values())
        return {
            name
            for life in lives
            for name, member in life.ran.items()
            if not self.is_own(member)
        }

    def _base_has(self, name: str) -> bool:
        if self.base.find(name) is not None:
            return True
        members = (each for model in self.base.mro for each in model.members.values())
        return any(places_of(member, name) for member in members)

    def _entries(self) -> dict[str, Lifecycle]:
        names = {use.name for use in self.uses.found.values() if use.how in {"read", "call"}}
        members = [member for name in sorted(names) if (member := self.stub.find(name))]
        first = {member.name: self._entered(member, ()) for member in members}
        found: dict[str, Lifecycle] = {}
        for member in members:
            # Which of them has been called before is not known, so what the others set is not.
            weak = {n for name, life in first.items() if name != member.name for n in life.sets}
            found[member.name] = self._entered(member, weak)
        return found

    def _entered(self, member: Member, weak: Iterable[str]) -> Lifecycle:
        life = Lifecycle(self.stub)
        life.enter(member, self._state, weak)
        return life
