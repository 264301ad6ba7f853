"""What a session compared, what it did not, and where that is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from mlxcheck import reference
from mlxcheck import report as reports
from mlxcheck.messages import counted
from mlxcheck.records import Comparison, Verdict
from mlxcheck.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mlxcheck.run import Drive

__all__ = ["Asking", "Tally"]

_NO_VERDICT = "no verdict: "
_CUT_SHORT = "the run was cut short"


class Asking(NamedTuple):
    """What is being asked right now, for the last words of a process."""

    source: str
    backend: str
    check: str
    prompt_id: str


@dataclass(slots=True)
class Tally:
    """Counts over a session.

    Attributes:
        missed: Items and tests that made no comparison, by reason.
        traced: Expected answers that were handed to users' own tests.
        notes: What went wrong beside the comparisons.
    """

    missed: Counter[str] = field(default_factory=Counter)
    traced: int = 0
    notes: list[str] = field(default_factory=list)
    _drives: list[tuple[Drive, Callable[[], bool]]] = field(default_factory=list)
    _refused: list[Report] = field(default_factory=list)
    _hung: tuple[str, str, Comparison] | None = None

    def add(self, drive: Drive, complete: Callable[[], bool]) -> None:
        """Keep a candidate's findings; ask *complete* at the end whether they are all."""
        self._drives.append((drive, complete))

    def refuse(self, source: str, backend: str, checks: Iterable[str], reason: str) -> None:
        """Keep, for the report, that a backend was not compared on a model at all."""
        not_asked = tuple((check, reason) for check in checks)
        self._refused.append(replace(_blank(source, backend), not_asked=not_asked))

    def hang(self, asking: Asking, text: str) -> None:
        """Count what was asked when a candidate hung for good as an ERROR."""
        message = f"{asking.prompt_id}, check {asking.check}: no answer: {text}"
        found = Comparison(
            check=asking.check,
            prompt_id=asking.prompt_id,
            verdict=Verdict.ERROR,
            message=message,
        )
        self._hung = (asking.source, asking.backend, found)

    def reports(self) -> tuple[Report, ...]:
        """Return a report for each model and backend that was to be compared."""
        found = [drive.report(complete=complete()) for drive, complete in self._drives]
        if self._hung is not None:
            source, backend, error = self._hung
            last = found[-1] if found else None
            if last is None or last.complete or (last.model, last.backend) != (source, backend):
                last = _blank(source, backend, complete=False)  # it hung in open()
                found.append(last)
            found[-1] = replace(last, comparisons=(*last.comparisons, error))
        return (*found, *self._refused)

    def compared(self) -> int:
        """Return how many comparisons have a verdict."""
        return sum(_compared(report) for report in self.reports())

    def save(self, path: Path) -> None:
        """Write every report to one file.

        Raises:
            ReportError: The path cannot be written any more.
        """
        reports.save(self.reports(), path)

    def lines(self, *, owed: int = 0, verbose: bool = False) -> list[str]:
        """Return the summary: one line, the reasons, the notes.

        Args:
            owed: Items that were to run and did not.
            verbose: Give each report's own line as well.
        """
        found = self.reports()
        missed = self.missed + Counter(
            _reason(comparison)
            for report in found
            for comparison in report.comparisons
            if comparison.verdict is Verdict.INCONCLUSIVE
        )
        missed[_CUT_SHORT] += owed
        missed = +missed
        lines = [self._head(found, partial=bool(owed)) + _why(missed)]
        if len(missed) > 1:
            lines += [f"  {count:,} x {reason}" for reason, count in missed.most_common()]
        lines += [f"  {report.summary()}" for report in found if verbose and report.comparisons]
        return lines + [f"mlxcheck: {note}" for note in self.notes]

    def _head(self, found: tuple[Report, ...], *, partial: bool) -> str:
        partial = partial or not all(report.complete for report in found)
        compared = counted(sum(map(_compared, found)), "comparison")
        steps = counted(sum(report.steps for report in found), "step")
        failed = sum(len(report.failures) for report in found)
        text = f"mlxcheck: {f'partial, {_CUT_SHORT}: ' if partial else ''}"
        text += f"{compared}, {steps} compared"
        text += f", {failed:,} failed" if failed else ""
        if self.traced:
            text += f", {counted(self.traced, 'expected answer')} handed to tests"
        return text


def _blank(source: str, backend: str, *, complete: bool = True) -> Report:
    return Report(
        model=source,
        model_type="",
        reference=reference.version(),
        backend=backend,
        comparisons=(),
        complete=complete,
    )


def _compared(report: Report) -> int:
    return len(report.comparisons) - report.counts.get(Verdict.INCONCLUSIVE, 0)


def _why(missed: Counter[str]) -> str:
    total = missed.total()
    if not total:
        return ""
    head = f"; {total:,} did not happen:"
    return f"{head} {next(iter(missed))}" if len(missed) == 1 else head


def _reason(found: Comparison) -> str:
    head = found.message.partition("\n")[0]
    return head.partition(_NO_VERDICT)[2] or head
