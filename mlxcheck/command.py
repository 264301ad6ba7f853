"""One ``mlxcheck run``: every model, every backend, and what it all comes to.

Whatever ends it early (Ctrl-C, a watchdog that has to end the process, a bug of ours), what
had been found until then is shown, saved, and said to be a part.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck import reference
from mlxcheck import report as reports
from mlxcheck.errors import (
    EngineFault,
    MemoryNotReleased,
    MlxCheckError,
    ReferenceTampered,
    ReportError,
    UsageError,
)
from mlxcheck.precisions import record_passes
from mlxcheck.records import Case, Comparison, Verdict
from mlxcheck.report import Report
from mlxcheck.repro import MOST, failures
from mlxcheck.run import Drive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlxcheck.checks import Check
    from mlxcheck.precisions import Passes
    from mlxcheck.prompts import Question
    from mlxcheck.recording import Recorded
    from mlxcheck.repro import Failed, Shrinking
    from mlxcheck.settings import Settings

__all__ = [
    "FAIL",
    "INCONCLUSIVE",
    "INTERRUPTED",
    "PASS",
    "USAGE",
    "Command",
    "Plan",
    "status_of",
    "tell",
]

PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit statuses, as ``mlxcheck run --help`` explains them."""

_WORST_FIRST = (FAIL, USAGE, INCONCLUSIVE, PASS)
_CTRL_C = "Ctrl-C"
_STATUS = {"pass": PASS, "fail": FAIL, "inconclusive": INCONCLUSIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A command line that makes sense.

    Attributes:
        models: Folders and hub ids, at least one.
        backends: Names, at least one.
        checks: What to ask.
        cases: Case ids to keep; None for all.
        questions: The prompts; None for the packaged set.
        settings: What the runs depend on.
        json: Where the report goes; None for nowhere.
        shrinking: How failures are shrunk; None: they are not.
    """

    models: tuple[str, ...]
    backends: tuple[str, ...]
    checks: tuple[Check, ...]
    cases: tuple[str, ...] | None
    questions: tuple[Question, ...] | None
    settings: Settings
    json: str | None
    shrinking: Shrinking | None = None


def tell(text: str) -> None:
    """Write a paragraph to standard error."""
    sys.stderr.write(f"mlxcheck: {text}\n")
    sys.stderr.flush()


def status_of(error: MlxCheckError) -> int:
    """Return the exit status of a command that this error ends."""
    if isinstance(error, UsageError | ReportError):
        return USAGE
    return FAIL if isinstance(error, EngineFault) else INCONCLUSIVE


class Command:
    """What has been found so far, and what it comes to.

    Args:
        plan: What to do.
    """

    def __init__(self, plan: Plan) -> None:
        from mlxcheck.render.progress import ProgressLines

        self._plan = plan
        self._progress = ProgressLines()
        self._reports: list[Report] = []
        self._statuses: set[int] = set()
        self._drive: Drive | None = None
        self._passes_done: list[Report] = []
        self._cut_by = ""
        self._failed: dict[tuple[str, str, str], Failed] = {}
        self._shrunk: list[str] = []

    def run(self) -> int:
        """Do all of it and return the exit status."""
        try:
            with ExitStack() as copies:
                for passes in self._record_all(copies):
                    for backend in self._plan.backends:
                        self._compare(passes, backend)
                self._shrink()
        except KeyboardInterrupt:
            self._cut_by = _CTRL_C
        except Exception:  # noqa: BLE001 - a bug of ours must not lose what was found
            traceback.print_exc()
            self._cut_by = "an error inside mlxcheck, which is shown above"
        return self._finish()

    def _record_all(self, copies: ExitStack) -> list[Passes]:
        """Make every reference before the first candidate, which may patch mlx-lm.

        Args:
            copies: Removes the float32 copies, which candidates need too.
        """
        plan = self._plan
        done: list[Passes] = []
        for model in plan.models:
            self._progress.label = model.rstrip("/").rsplit("/", 1)[-1]
            try:
                passes = record_passes(
                    model, plan.questions, plan.settings, observer=self._progress
                )
                done.append(copies.enter_context(passes))
            except (MemoryNotReleased, ReferenceTampered) as error:
                # Nothing that this process did from here could be trusted, or would fit.
                self._give_up(model, plan.backends, error)
                self._cut_by = "the error above"
                return []
            except MlxCheckError as error:
                self._give_up(model, plan.backends, error)
        return done

    def _compare(self, passes: Passes, backend: str) -> None:
        """Drive one candidate in every pass, and keep its report however that ends."""
        done = self._passes_done = []
        try:
            for recorded in passes.recorded:
                name = f"{backend} on {recorded.model.name}"
                if len(passes.recorded) > 1:
                    name += f", {recorded.precision}"
                self._progress.label = name
                done.append(self._drive_one(recorded, backend))
        except MlxCheckError as error:
            model = passes.recorded[0].model.source
            if not done:
                self._give_up(model, (backend,), error)
                return
            tell(str(error))
            self._statuses.add(status_of(error))
            done.append(self._nothing(model, backend, str(error), complete=False))
        except BaseException:
            if self._drive is not None:
                done.append(self._drive.report(complete=False))
            if done:
                self._reports.append(reports.merged(done, passes.missed))
            raise
        finally:
            self._drive = None
        self._reports.append(reports.merged(done, passes.missed))

    def _drive_one(self, recorded: Recorded, backend: str) -> Report:
        plan = self._plan
        self._drive = drive = Drive(
            recorded,
            backend,
            plan.checks,
            plan.settings,
            observer=self._progress,
            last_words=self._last_words,
            cases=plan.cases,
        )
        with drive:
            drive.run()
        report = drive.report()
        for failed in failures(recorded, backend, drive.plan, report.failures):
            # A failure of two passes is one.
            key = (recorded.model.source, backend, failed.comparison.check)
            self._failed.setdefault(key, failed)
        return report

    def _shrink(self) -> None:
        """Shrink the first failures, when all has been compared and before copies go."""
        self._drive = None
        if self._plan.shrinking is None:
            return
        for failed in list(self._failed.values())[:MOST]:
            tell(f"shrinking {failed.comparison.check} {failed.case.id}")
            try:
                self._shrunk.append(
                    failed.shrink(self._plan.settings, self._plan.shrinking, self._last_words)
                )
            except MemoryNotReleased as error:
                tell(str(error))
                return
            except MlxCheckError as error:
                tell(str(error))

    def _give_up(self, model: str, backends: Iterable[str], error: MlxCheckError) -> None:
        """Tell why a model is not compared, and keep that among the reports."""
        reason = str(error)
        tell(reason)
        self._statuses.add(status_of(error))
        for backend in backends:
            self._reports.append(self._nothing(model, backend, reason))

    def _nothing(
        self, model: str, backend: str, reason: str, *, complete: bool = True
    ) -> Report:
        """Return the report of a pair that was not compared: inconclusive, with the reason."""
        return Report(
            model=model,
            model_type="",
            reference=reference.version(),
            backend=backend,
            comparisons=(),
            not_asked=tuple((check.name, reason) for check in self._plan.checks),
            complete=complete,
        )

    def _finish(self) -> int:
        """Save and show, and return the exit status."""
        # What was opened and could be asked nothing is shown too: it tells why.
        asked = any(report.comparisons or report.passes for report in self._reports)
        if self._cut_by:
            self._add_unreached()
        statuses = self._statuses | {_STATUS[report.outcome] for report in self._reports}
        try:
            if self._plan.json is not None:
                reports.save(self._reports, self._plan.json)
        except ReportError as error:
            tell(str(error))
            statuses.add(USAGE)
        interrupted = self._cut_by == _CTRL_C
        if asked or interrupted:
            self._show()
        if interrupted:
            return INTERRUPTED
        return next(status for status in _WORST_FIRST if status in statuses)

    def _show(self) -> None:
        from mlxcheck.render import terminal

        console = terminal.console_on(sys.stdout)
        try:
            if self._cut_by:
                terminal.show_partial(self._reports, console, self._cut_by)
            else:
                terminal.show(self._reports, console)
            sys.stdout.writelines(f"\n{text}" for text in self._shrunk)
            sys.stdout.flush()
        except (BrokenPipeError, SystemExit):
            # Whoever read our output has seen enough: rich would exit with status 1, and the
            # interpreter's own flush at exit would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _add_unreached(self) -> None:
        reached = {(report.model, report.backend) for report in self._reports}
        for model in self._plan.models:
            for backend in self._plan.backends:
                if (model, backend) not in reached:
                    why = "the run was cut short before"
                    self._reports.append(self._nothing(model, backend, why, complete=False))

    def _last_words(self, stacks: str) -> None:
        """Save and tell what is known before the watchdog ends the process.

        This runs on the watchdog's thread, while the candidate still hangs on the main one.
        """
        if self._drive is not None:
            report = _hung(self._drive.report(complete=False), self._drive, stacks)
            self._reports.append(reports.merged([*self._passes_done, report]))
        self._add_unreached()
        lines = [f"mlxcheck: {stacks}", "partial results:"]
        lines += [report.summary() for report in self._reports]
        if self._plan.json is not None:
            try:
                reports.save(self._reports, self._plan.json)
                lines.append(f"saved as partial in {self._plan.json}")
            except ReportError as error:
                lines.append(str(error))
        # Not through sys.stderr: the thread that hangs may hold its lock.
        os.write(2, ("\n".join(lines) + "\n").encode(errors="backslashreplace"))


def _hung(report: Report, drive: Drive, stacks: str) -> Report:
    """Add an ERROR for each row of the case that was being driven."""
    judged = {(found.check, found.case) for found in report.comparisons}
    planned = {case.id: case for cases in drive.plan.values() for case in cases}
    for case in planned.values():
        checks = [name for name, cases in drive.plan.items() if case in cases]
        missing = [name for name in checks if (name, case.id) not in judged]
        if missing:
            rows = [
                _hung_row(report, name, case, row, stacks)
                for name in missing
                for row in range(len(case.prompts))
            ]
            return replace(report, comparisons=(*report.comparisons, *rows))
    return report.with_fault("close" if planned else "open", stacks)


def _hung_row(report: Report, check: str, case: Case, row: int, stacks: str) -> Comparison:
    prompt = case.prompts[row]
    message = f"{prompt.id}, check {check}: no answer from {report.backend}: {stacks}"
    neighbours = tuple(other.id for n, other in enumerate(case.prompts) if n != row)
    return Comparison(
        check=check,
        prompt_id=prompt.id,
        verdict=Verdict.ERROR,
        precision=report.passes[0].precision,
        message=message,
        case=case.id,
        batch=len(case.prompts),
        row=row,
        neighbours=neighbours,
    )
