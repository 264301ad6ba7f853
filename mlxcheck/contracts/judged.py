"""What does not fit between a stub, its base and its callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.contracts.classes import Member, Place, places_of, taken
from mlxcheck.contracts.found import Finding, Kind, Unresolved
from mlxcheck.contracts.signatures import bind_error, narrower, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.contracts.followed import Read, SelfCall, Stop
    from mlxcheck.contracts.lifecycle import Lifecycle
    from mlxcheck.contracts.pair import Pair
    from mlxcheck.contracts.uses import Use

__all__ = ["Judge"]

_SHOWN, _WIDE = 3, 100
"""Conditions that are told, and how many characters of each; a finding's `when` has all."""
_CONSTRUCTORS = {"__init__", "__new__", "__init_subclass__"}


class Judge:
    """Goes through a stub and its base, and keeps what does not fit.

    Args:
        pair: The two, followed.

    Attributes:
        findings: What is wrong, each place once.
        unresolved: What could not be judged.
        calls: How many calls by callers were bound.
    """

    def __init__(self, pair: Pair) -> None:
        self.findings: dict[tuple[str, str, Place], Finding] = {}
        self.unresolved: list[Unresolved] = []
        self.calls = 0
        self._pair = pair
        self._stub = pair.stub.node.name

    def run(self) -> None:
        """Judge everything."""
        self._overrides()
        for use in self._pair.uses.found.values():
            if use.how != "write" and not use.guarded:
                self._use(use)
        self._construction()
        for name in self._pair.entries:
            self._entry(name)
        for loose in self._pair.uses.loose.values():
            self._skip(loose.name, loose.reason, loose.place)

    # --- What the two classes say of each other ---------------------------------------------

    def _overrides(self) -> None:
        for name, own in self._own_members():
            base = self._pair.base.find(name)
            if base is None or base.signature is None or name in _CONSTRUCTORS:
                continue
            if own.signature is None:
                continue
            if unclear := own.decorators or base.decorators:
                self._skip(name, f"decorated with {unclear[0]}", own.place)
                continue
            bad = narrower(taken(own), taken(base))
            if bad:
                told = f"the override {', '.join(bad)}"
                todo = f"take in {own.owner.name}.{name} whatever the base takes"
                self._add("narrower-override", name, own.place, told, [*_both(own, base), todo])

    def _own_members(self) -> Iterator[tuple[str, Member]]:
        seen: set[str] = set()
        for model in self._pair.own:
            for name, member in model.members.items():
                if name not in seen:
                    seen.add(name)
                    yield name, member

    # --- What callers do --------------------------------------------------------------------

    def _use(self, use: Use) -> None:
        if use.how == "make":
            member = self._pair.stub.find("__init__")
            if use.name == self._stub and member is not None:
                self._call(use, member)
            return
        member = self._pair.stub.find(use.name)
        if not self._pair.available(use.name):
            does = "calls" if use.how == "call" else "reads"
            self._missing(use.name, use.place, use.when, f"{use.place} {does} it")
        elif use.how == "call" and member is not None:
            self._call(use, member)

    def _call(self, use: Use, member: Member) -> None:
        base = self._pair.base.find(member.name)
        if member.signature is None:
            if self._pair.is_own(member) and base is not None and base.signature is not None:
                told = (
                    f"{use.place} calls it, and {member.owner.name} has a {member.kind} there"
                )
                todo = f"make it a method, as {base.owner.name} has it"
                lines = [*_both(member, base), f"stub  at {member.place}", todo]
                self._add("call-does-not-bind", use.name, use.place, told, lines, use.when)
            return
        if member.decorators:
            self._skip(use.name, f"decorated with {member.decorators[0]}", use.place)
            return
        self.calls += 1
        given = use.positional + member.bound
        error = bind_error(member.signature, given, use.keywords, whole=use.whole)
        if error:
            told = f"{use.place} calls it with {_given(use.positional, use.keywords)}: {error}"
            todo = f"take these in {member.owner.name}.{member.name}, or change the call"
            lines = [*_both(member, base), todo]
            self._add("call-does-not-bind", use.name, use.place, told, lines, use.when)
        elif not use.whole:
            why = "called with * or **, so that only what is written out was bound"
            self._skip(use.name, why, use.place)

    def _missing(self, name: str, place: Place, when: tuple[str, ...], told: str) -> None:
        if why := self._pair.doubt(name):
            self._skip(name, why, place)
            return
        todo = f"set {name} in {self._stub}, or give it as a class attribute"
        self._add("missing-attribute", name, place, told, [*self._set_by(name), todo], when)

    def _set_by(self, name: str) -> list[str]:
        """Say where the base sets what the stub lacks."""
        base = self._pair.base
        member = base.find(name)
        if member is not None:
            return [f"{member.owner.name} defines it at {member.place}"]
        for model in base.mro:
            for each in model.members.values():
                for place in places_of(each, name):
                    where = f"{model.name}.{each.name}"
                    return [f"{where} sets it at {place}, which {self._stub} does not run"]
        return []

    # --- What the stub runs -----------------------------------------------------------------

    def _construction(self) -> None:
        pair = self._pair
        self._life(pair.made, "when it is made", "")
        for place, stop in pair.made.stops.items():
            if place not in pair.base_made.stops and not pair.is_own(stop.member):
                self._stop(stop.member.name, stop, "making one", place)

    def _life(self, life: Lifecycle, told: str, entry: str) -> None:
        for call in life.calls.values():
            self._self_call(call)
        for read in life.reads.values():
            if not self._pair.available(read.name):
                self._self_read(read, told, entry)

    def _self_read(self, read: Read, told: str, entry: str) -> None:
        pair = self._pair
        where = f"{read.member.owner.name}.{read.member.name}"
        why = pair.doubt(read.name)
        if not why and read.when:
            why = f"{where} reads it under a condition that is not known: {read.when[-1]}"
        if why:
            self._skip(read.name, why, read.place)
        elif not entry or pair.is_own(read.member):
            told = f"{where} reads it at {read.place} {told}"
            self._missing(read.name, read.place, read.when, told)
        else:
            reads = f"{where} reads {read.name} at {read.place}, and {self._stub} has none"
            self._must(entry, reads, self._set_by(read.name))

    def _self_call(self, call: SelfCall) -> None:
        member = call.member
        if not self._pair.is_own(member) or member.signature is None or member.decorators:
            return
        error = bind_error(member.signature, call.positional, call.keywords, whole=call.whole)
        if error:
            given = _given(call.positional - member.bound, call.keywords)
            told = f"{call.place} calls it with {given}: {error}"
            todo = f"take these in {member.owner.name}.{member.name}"
            lines = [*_both(member, self._pair.base.find(member.name)), todo]
            self._add("call-does-not-bind", member.name, call.place, told, lines)

    def _entry(self, name: str) -> None:
        pair, life = self._pair, self._pair.entries[name]
        member = pair.stub.find(name)
        if member is None or member.function is None:
            return
        inherited = not pair.is_own(member)
        self._life(life, f"when {name} is called", name if inherited else "")
        if not inherited:
            return
        if member.abstract:
            self._must(name, f"it is abstract in {member.owner.name} ({member.place})", [])
        of_base = pair.base_entry(name)
        for place, stop in life.stops.items():
            if stop.member is member and "NotImplementedError" in stop.text:
                self._must(name, f"it raises NotImplementedError at {place}", [])
            elif place not in of_base.stops:
                self._stop(name, stop, f"calling {name}", place)
        self._undone(name, life)

    def _undone(self, name: str, life: Lifecycle) -> None:
        """Report an inherited method that does again what the stub has done in its own way.

        So it is where the stub's own code sets, while it is made, what the base sets in no
        other way than by this method.
        """
        pair = self._pair
        own = {place.file for place in (model.place(model.node) for model in pair.own)}
        twice = {
            attribute: place
            for attribute, place in pair.made.sets.items()
            if place.file in own and attribute in life.always
            if attribute not in pair.base_made.sets
        }
        always = [use for use in pair.calls_of(name) if not use.when]
        if twice and always:
            attribute = min(twice, key=lambda each: twice[each].line)
            told = (
                f"it sets {attribute} again at {life.always[attribute]}, which {self._stub} "
                f"has set in its own way at {twice[attribute]}"
            )
            self._must(name, told, [])

    def _stop(self, name: str, stop: Stop, doing: str, place: Place) -> None:
        uses = self._pair.calls_of(name)
        where = f"{stop.member.owner.name}.{stop.member.name}"
        told = (
            f"{doing} on one that is made with defaults runs into `{stop.text}` in {where} "
            f"({place})"
        )
        lines = [f"called at {uses[0].place}"] if uses else []
        lines += [f"since there `{text}` is {value}" for text, value in stop.decided]
        lines.append(f"override {name} in {self._stub}, or make that hold")
        when = uses[0].when if uses else ()
        self._add("assertion", name, uses[0].place if uses else place, told, lines, when)

    def _must(self, name: str, told: str, lines: list[str]) -> None:
        uses = self._pair.calls_of(name)
        if uses:
            does = "calls" if uses[0].how == "call" else "reads"
            told = f"{uses[0].place} {does} it, and {told}"
            lines = [*lines, f"override {name} in {self._stub}"]
            self._add("must-override", name, uses[0].place, told, lines, uses[0].when)

    # --- Keeping ----------------------------------------------------------------------------

    def _add(  # noqa: PLR0913, PLR0917 - the parts of a finding
        self,
        kind: Kind,
        name: str,
        place: Place,
        told: str,
        lines: Sequence[str],
        when: tuple[str, ...] = (),
    ) -> None:
        where = [f"where {_short(when)}"] if when else []
        head = f"{kind}  {self._stub}.{name}: {told}"
        found = Finding(
            kind=kind,
            name=name,
            message="\n  ".join([head, *where, *lines]),
            file=place.file,
            line=place.line,
            at=str(place),
            when=when,
        )
        self.findings.setdefault((kind, name, place), found)

    def _skip(self, name: str, reason: str, place: Place) -> None:
        item = Unresolved(name=name, reason=reason, file=place.file, line=place.line)
        if item not in self.unresolved:
            self.unresolved.append(item)


def _short(when: tuple[str, ...]) -> str:
    """Show the innermost conditions, each cut to a part of a line."""
    cut = [text if len(text) <= _WIDE else f"{text[:_WIDE]}..." for text in when[-_SHOWN:]]
    more = [f"{len(when) - _SHOWN} more"] if len(when) > _SHOWN else []
    return " and ".join([*cut, *more])


def _both(own: Member, base: Member | None) -> list[str]:
    """Show the two signatures, one above the other."""
    lines: list[str] = []
    for label, member in (("stub", own), ("base", base)):
        if member is None or member.signature is None or (label == "base" and member is own):
            continue
        name = f"{member.owner.node.name}.{member.name}"
        lines.append(f"{label}  {shown(name, member.signature)}  at {member.place}")
    return lines


def _given(positional: int, keywords: tuple[str, ...]) -> str:
    parts = [f"{positional} by position"] if positional else []
    parts += [f"{name}=" for name in keywords]
    return ", ".join(parts) or "no argument"
