"""What `check_backend` finds, as plain records, and how it is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from mlxcheck.contracts.found import ContractBroken
from mlxcheck.messages import counted

__all__ = ["BrokenRule", "ConformanceReport", "UnaskedRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """A rule that an adapter broke, as it was first seen.

    Attributes:
        rule: Its name.
        sentence: What it says.
        call: What was called, and on what.
        expected: What the rule has there.
        actual: What came.
        advice: What to do.
        times: How often it was seen to be broken.
    """

    rule: str
    sentence: str
    call: str
    expected: str
    actual: str
    advice: str
    times: int = 1

    @property
    def message(self) -> str:
        """The whole, on five lines; on six where it was broken more than once."""
        lines = [
            f"{self.rule}  {self.sentence}",
            f"  call      {self.call}",
            f"  expected  {self.expected}",
            f"  actual    {self.actual}",
            f"  {self.advice}",
        ]
        if self.times > 1:
            lines.append(f"  the same {self.times - 1:,} times more")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnaskedRule:
    """A rule that an adapter was not held to.

    Attributes:
        rule: Its name.
        reason: Why not.
    """

    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """What `check_backend` has seen: each rule is in one of three places.

    Attributes:
        backend: The adapter's name.
        model: The model's.
        kept: Names of the rules that it kept.
        broken: The rules that it broke.
        not_asked: The rules that it was not held to.
    """

    backend: str
    model: str
    kept: tuple[str, ...] = ()
    broken: tuple[BrokenRule, ...] = ()
    not_asked: tuple[UnaskedRule, ...] = ()

    @property
    def outcome(self) -> Literal["pass", "fail", "inconclusive"]:
        """``inconclusive`` where it gave no answer and broke nothing: it was not driven."""
        if self.broken:
            return "fail"
        return "pass" if "answers" in self.kept else "inconclusive"

    def explain(self) -> str:
        """Return the broken rules and the summary, a paragraph each."""
        return "\n\n".join([*(each.message for each in self.broken), self.summary()])

    def summary(self) -> str:
        """Return how many rules were kept, which were not asked, and what it comes to."""
        head = (
            f"{self.backend} on {self.model}: {counted(len(self.kept), 'rule')} kept, "
            f"{len(self.broken):,} broken, {len(self.not_asked):,} not asked"
        )
        lines = [head]
        lines += [f"  not asked: {each.rule}: {each.reason}" for each in self.not_asked]
        ends = {
            "pass": "pass: the adapter keeps every rule that it was held to",
            "fail": f"fail: {', '.join(each.rule for each in self.broken)}",
            "inconclusive": "inconclusive: the adapter gave no answer that could be looked at",
        }
        return "\n".join([*lines, ends[self.outcome]])

    def require(self) -> ConformanceReport:
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
