"""What a contract check finds, as plain records, and how it is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mlxcheck.messages import counted

__all__ = [
    "KINDS",
    "ContractBroken",
    "ContractReport",
    "Finding",
    "Ignored",
    "Kind",
    "Unresolved",
]

Kind = Literal[
    "missing-attribute", "must-override", "call-does-not-bind", "narrower-override", "assertion"
]
"""What can be wrong with a stub or a double."""

KINDS: dict[Kind, str] = {
    "missing-attribute": "is read, and is not there",
    "must-override": "is inherited, and cannot work as inherited",
    "call-does-not-bind": "is called with arguments that it does not take",
    "narrower-override": "takes less than the method that it overrides",
    "assertion": "runs into a check of the base that cannot hold",
}
"""Each kind, as the end of a sentence that begins with a name."""


_SHOWN = 3
"""Further places that are told."""


class ContractBroken(AssertionError):  # noqa: N818 - reads as the assertion that failed
    """A stub, double or method is not what its users take it for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way in which a stub or double breaks.

    Attributes:
        kind: One of `KINDS`.
        name: The attribute or method.
        message: What does not fit and what to do, on several lines.
        file: Of the code that would break: the caller's where one is concerned.
        line: In `file`, from 1.
        at: The same in short: the path from the top package on, and the line.
        when: The conditions around that code, outermost first, that could not be decided from
            sources.
        others: Further places of the same, in short.
    """

    kind: Kind
    name: str
    message: str
    file: str
    line: int
    at: str = ""
    when: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """Something that could not be judged.

    Attributes:
        name: The attribute or method.
        reason: Why not.
        file: Where it stands.
        line: In `file`, from 1.
    """

    name: str
    reason: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A name that was not to be judged.

    Attributes:
        name: As it was given.
        reason: As it was given.
        findings: How many findings it has kept back.
    """

    name: str
    reason: str
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractReport:
    """What `check_stub` or `check_double` has seen.

    Attributes:
        stub: The stub's or double's name.
        base: The name of the class that it stands for.
        findings: What is wrong, by file and line.
        unresolved: What could not be judged, with its reason.
        ignored: What was not to be judged, with its reason.
        files: Sources of callers that were read.
        reads: Attributes that callers read or write, each place once.
        calls: Calls by callers that were bound.
        inherited: Methods of the base that run on the stub as they are.
        guarded: Reads behind `hasattr`, a default or an ``except AttributeError``.
        replaced: Methods of callers that were left out, since the class that makes the stub
            has its own in their place.
    """

    stub: str
    base: str
    findings: tuple[Finding, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    files: int = 0
    reads: int = 0
    calls: int = 0
    inherited: int = 0
    guarded: int = 0
    replaced: int = 0

    @property
    def outcome(self) -> Literal["pass", "fail", "inconclusive"]:
        """``inconclusive`` where nothing was read or called, since nothing was compared."""
        if self.findings:
            return "fail"
        return "pass" if self.reads + self.calls else "inconclusive"

    def explain(self) -> str:
        """Return the findings and what the check has seen, a paragraph each."""
        return "\n\n".join([*(_whole(found) for found in self.findings), self.summary()])

    def summary(self) -> str:
        """Return what was looked at, what was not, and what it comes to."""
        used = f"{counted(self.reads, 'read')} and {counted(self.calls, 'call')}"
        ran = counted(self.inherited, "inherited method")
        head = f"{self.stub} for {self.base}: {used} in {counted(self.files, 'file')}"
        lines = [f"{head}; {ran} followed"]
        if self.guarded or self.replaced:
            lines.append(
                f"  left out: {counted(self.guarded, 'guarded read')}, "
                f"{counted(self.replaced, 'method')} that the holder of the stub replaces"
            )
        told = Counter(item.reason for item in self.unresolved)
        lines += [
            f"  not resolved, {counted(times, 'time')}: {why}"
            for why, times in told.most_common()
        ]
        lines += [
            f"  ignored, {counted(item.findings, 'finding')}: {item.name}: {item.reason}"
            for item in self.ignored
        ]
        ends = {
            "pass": "pass: every read and every call fits",
            "fail": f"fail: {counted(len(self.findings), 'finding')}",
            "inconclusive": "inconclusive: nothing was found that reads or calls it",
        }
        return "\n".join([*lines, ends[self.outcome]])

    def require(self) -> ContractReport:
        """Return this report, if it is a pass.

        Raises:
            ContractBroken: It is not. The text is that of `explain`.
        """
        __tracebackhide__ = True
        if self.outcome != "pass":
            raise ContractBroken(self.explain())
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {"outcome": self.outcome, **asdict(self)}


def _whole(found: Finding) -> str:
    more = len(found.others)
    if not more:
        return found.message
    return f"{found.message}\n  and at {more} more: {', '.join(found.others[:_SHOWN])}"
