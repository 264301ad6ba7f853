"""What a session compared, what it did not, and where that is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from mlxcheck import reference
from mlxcheck import report as reports
from mlxcheck.messages import counted
from mlxcheck.passes import missed as pass_missed
from mlxcheck.records import Comparison, Precision, Verdict
from mlxcheck.report import Report, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from mlxcheck.passes import PassSummary
    from mlxcheck.run import Drive

__all__ = ["Asking", "Pair", "Tally"]

_NO_VERDICT = "no verdict: "
_CUT_SHORT = "the run was cut short"


class Asking(NamedTuple):
    """What is being asked right now, for the last words of a process."""

    source: str
    backend: str
    precision: Precision
    check: str
    prompt_id: str


@dataclass(slots=True)
class Pair:
    """What is compared of one model and backend, in every pass.

    Attributes:
        source: The model.
        backend: The backend's name.
        complete: Tells at the end whether its findings are all.
        drives: One a pass that could be driven.
        missed: The passes that could not, with the reason.
        refused: Check and reason, for what was not asked in some pass.
    """

    source: str
    backend: str
    complete: Callable[[], bool]
    drives: list[Drive] = field(default_factory=list)
    missed: list[PassSummary] = field(default_factory=list)
    refused: dict[tuple[str, str], None] = field(default_factory=dict)

    def refuse(self, precision: Precision, checks: Iterable[str], reason: str) -> None:
        """Keep that a pass was not compared at all."""
        self.missed.append(pass_missed(precision, reason))
        self.refused |= {(check, reason): None for check in checks}

    def report(self) -> Report | None:
        """Return what was found, in one report; None where there is nothing to tell yet."""
        if self.drives:
            complete = self.complete()
            found = [drive.report(complete=complete) for drive in self.drives]
            return merged(found, self.missed)
        if not self.missed:
            return None
        # Nothing was asked in any pass: the reasons stand with the checks that wanted it.
        return replace(_blank(self.source, self.backend), not_asked=tuple(self.refused))


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
    _pairs: list[Pair] = field(default_factory=list)
    _hung: tuple[Pair | None, Asking, Comparison] | None = None

    def pair(self, source: str, backend: str, complete: Callable[[], bool]) -> Pair:
        """Begin what is compared of a model and backend."""
        self._pairs.append(Pair(source, backend, complete))
        return self._pairs[-1]

    def hang(self, asking: Asking, text: str) -> None:
        """Count what was asked when a candidate hung for good as an ERROR."""
        message = f"{asking.prompt_id}, check {asking.check}: no answer: {text}"
        found = Comparison(
            check=asking.check,
            prompt_id=asking.prompt_id,
            verdict=Verdict.ERROR,
            precision=asking.precision,
            message=message,
        )
        same = (asking.source, asking.backend)
        mine = [pair for pair in self._pairs if (pair.source, pair.backend) == same]
        self._hung = (mine[-1] if mine else None, asking, found)

    def reports(self) -> tuple[Report, ...]:
        """Return a report for each model and backend that was to be compared."""
        found = []
        hung, asking, error = self._hung or (None, None, None)
        for pair in self._pairs:
            report = pair.report()
            if pair is hung and error is not None:
                report = _with_error(report or _blank(pair.source, pair.backend), error)
            found += [report] if report is not None else []
        if asking is not None and error is not None and hung is None:
            found.append(_with_error(_blank(asking.source, asking.backend), error))
        return tuple(found)

    def compared(self) -> int:
        """Return how many comparisons have a verdict."""
        return sum(_compared(report) for report in self.reports())

    def doubts(self) -> list[str]:
        """Return a sentence for each control that did not hold: verdicts there mean little."""
        return [
            f"{report.backend} on {report.model}, {each.precision} pass: control failed: "
            f"{control.name}: {control.text}"
            for report in self.reports()
            for each in (report.passes if report.steps else ())
            for control in each.controls
            if not control.passed
        ]

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
            verbose: Give each report's own line as well, and what each pass could have seen.
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
        for report in found if verbose else ():
            if report.comparisons:
                lines += [f"  {report.summary()}", *_limits(report.passes)]
        lines += [
            f"mlxcheck: {report.backend} on {report.model}: text alone was compared"
            for report in found
            if any(each.text_alone for each in report.passes)
        ]
        lines += [f"mlxcheck: {doubt}" for doubt in self.doubts()]
        return lines + [f"mlxcheck: {note}" for note in self.notes]

    def _head(self, found: tuple[Report, ...], *, partial: bool) -> str:
        partial = partial or not all(report.complete for report in found)
        compared = counted(sum(map(_compared, found)), "comparison")
        steps = counted(sum(report.steps for report in found), "step")
        ties = sum(report.counts.get(Verdict.TIE, 0) for report in found)
        failed = sum(len(report.failures) for report in found)
        text = f"mlxcheck: {f'partial, {_CUT_SHORT}: ' if partial else ''}"
        text += f"{compared}, {steps} compared"
        text += f", {ties:,} TIE" if ties else ""
        text += f", {failed:,} failed" if failed else ""
        if self.traced:
            text += f", {counted(self.traced, 'expected answer')} handed to tests"
        return text


def _blank(source: str, backend: str) -> Report:
    return Report(
        model=source,
        model_type="",
        reference=reference.version(),
        backend=backend,
        comparisons=(),
    )


def _with_error(report: Report, error: Comparison) -> Report:
    return replace(report, comparisons=(*report.comparisons, error), complete=False)


def _limits(passes: Sequence[PassSummary]) -> list[str]:
    return [
        f"    {each.precision} pass, limit of detection: {'; '.join(each.limit)}"
        for each in passes
        if each.limit
    ]


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
