"""pytest's hooks, and the session's state that they share."""

from __future__ import annotations

import contextlib
import difflib
import os
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from mlxcheck import watchdog
from mlxcheck.errors import MlxCheckError, ReportError
from mlxcheck.messages import counted
from mlxcheck.plugin import MARKER
from mlxcheck.pytest_doorway.candidates import open_candidate, require_known
from mlxcheck.pytest_doorway.nodes import Backend, Comparison, Root
from mlxcheck.pytest_doorway.outcomes import Failed, Refusal, failure_text
from mlxcheck.pytest_doorway.references import References
from mlxcheck.pytest_doorway.tally import Asking, Tally
from mlxcheck.pytest_doorway.user import MlxReference, declared_want
from mlxcheck.recording import Want
from mlxcheck.records import Verdict
from mlxcheck.run import Drive

if TYPE_CHECKING:
    from collections.abc import Generator

    from mlxcheck.pytest_doorway.options import Wishes
    from mlxcheck.records import Comparison as Found
    from mlxcheck.report import Report

__all__ = ["Doorway"]

_SAVED_EVERY_S = 2.0
_FAILING = (Verdict.WRONG, Verdict.ERROR)


class Doorway:
    """One pytest session with ``--mlx-reference``.

    Args:
        config: pytest's configuration.
        wishes: What the options say.

    Attributes:
        wishes: As given.
        root: The root folder of the tests.
        references: What the references said.
        tally: What was compared.
        asking: What is being asked right now.
    """

    def __init__(self, config: pytest.Config, wishes: Wishes) -> None:
        self.wishes = wishes
        self.root = config.rootpath
        self.references = References(wishes.settings)
        self.tally = Tally()
        self.asking = Asking("", "", "", "")
        self._config = config
        self._backends: list[Backend] = []
        self._wanted: dict[str, set[str]] = {}
        self._unsure: dict[str, list[str]] = {}
        self._known: list[str] = []
        self._missing = set(wishes.chosen)
        self._saved = 0.0
        self._over = False
        # Output capture is not at work yet: this is where a dying process can be heard.
        try:
            self._stderr = os.dup(2)
        except OSError:  # a daemon's standard error may be closed
            self._stderr = os.open(os.devnull, os.O_WRONLY)
        watchdog.stderr = self._stderr

    # -- what nodes and fixtures ask ------------------------------------------------------

    def reference_for(self, item: pytest.Item) -> MlxReference:
        """Return the fixture's value for a test."""
        return MlxReference(self, item)

    def chose(self, nodeid: str) -> bool:
        """Tell whether the command line's node ids, where it has any, cover an item."""
        self._known.append(nodeid)
        covering = {
            each
            for each in self.wishes.chosen
            if nodeid == each or nodeid.startswith((f"{each}::", f"{each}["))
        }
        self._missing -= covering
        return bool(covering) or not self.wishes.chosen

    def unsure(self, item: pytest.Item, report: Report) -> None:
        """Remember that a user's test got a report without a verdict."""
        self._unsure.setdefault(item.nodeid, []).append(report.summary())

    def closing_failed(self, text: str) -> None:
        """Fail the teardown of a backend's last item, or note it where none runs any more."""
        if not self._over:
            pytest.fail(text, pytrace=False)
        self.tally.notes.append(text.partition("\n")[0])

    def compare(self, item: Comparison) -> None:
        """Run one generated item to its verdict."""
        __tracebackhide__ = True
        self._save_so_far()
        backend = item.parent
        self.asking = Asking(backend.source, backend.name, item.check.name, item.prompt_id)
        drive = self._candidate(item.parent)
        if isinstance(drive, Refusal):
            item.parent.owed.discard(item.nodeid)
            self._miss(drive)
        found = drive.about(item.check, item.prompt_id)
        item.parent.owed.discard(item.nodeid)
        failures = [each for each in found if each.verdict in _FAILING]
        if failures:
            raise Failed(failure_text(failures))
        if not found and item.check.name in drive.not_asked:
            why = f"{item.check.name} not asked: {drive.not_asked[item.check.name]}"
            self._miss(Refusal(why, why, skips=True))
        if not found:
            self._leave_out(item)
        self._require_verdicts(found)

    def last_words(self, text: str) -> None:
        """Say and save what is known before the watchdog ends the process.

        This runs on the watchdog's thread, while the candidate still hangs on the main one.
        """
        self._shout(f"\nmlxcheck: {text}")
        self.tally.hang(self.asking, text)
        with contextlib.suppress(MlxCheckError):
            if self.wishes.report is not None:
                self.tally.save(self.wishes.report)
        self._shout("\n".join(self.tally.lines(owed=self._owed(), verbose=True)))

    # -- hooks, in the order in which pytest calls them ---------------------------------------

    def pytest_report_header(self) -> str:
        """Say what will be compared."""
        wishes = self.wishes
        if not wishes.models:
            return "mlxcheck: no model is given (--mlx-model, MLXCHECK_MODEL, ini: mlx_model)"
        checks = ", ".join(check.name for check in wishes.checks)
        return (
            f"mlxcheck: {', '.join(wishes.models)}; backends {', '.join(wishes.backends)}; "
            f"checks {checks}; {counted(len(wishes.questions), 'prompt')}"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Put the generated items before everything else that a session collects.

        First, since the tests that follow may patch mlx-lm, or hold a model in a fixture.
        """
        report = yield
        if (
            isinstance(collector, pytest.Session)
            and self.wishes.generate
            and self.wishes.models
        ):
            report.result.insert(0, Root.of(collector, self))
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Put each candidate's items together again, whatever has shuffled them."""
        for each in self._missing:
            close = difflib.get_close_matches(each, self._known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            msg = f"{each}: no model, backend, check and prompt of this run has this id.{hint}"
            raise pytest.UsageError(msg)
        result = yield
        groups: dict[pytest.Collector, list[pytest.Item]] = {}
        others: list[pytest.Item] = []
        for item in items:
            if isinstance(item, Comparison):
                groups.setdefault(item.parent, []).append(item)
            else:
                others.append(item)
        items[:] = [item for group in groups.values() for item in group] + others
        return result

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the references that the selected items and tests need."""
        for item in session.items:
            if isinstance(item, Comparison):
                self._expect(item)
        for backend in self._backends:
            self.references.plan(backend.source, self._want(backend.source))
        for item in session.items:
            if not isinstance(item, Comparison):
                with contextlib.suppress(MlxCheckError):  # the test itself will say it
                    declared = declared_want(self, item)
                    if declared is not None:
                        self.references.plan(*declared)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Know when no test runs any more."""
        try:
            return (yield)
        finally:
            self._over = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn a marked test's skip, or its report without a verdict, into a failure."""
        report = yield
        if isinstance(item, Comparison):
            if isinstance(report.longrepr, tuple):
                # Which line of this package skipped it would tell nobody anything.
                where = ("mlxcheck", None, report.longrepr[2])
                report.longrepr = where  # type: ignore[assignment] # pytest takes no line
            return report
        if not self.wishes.require or item.get_closest_marker(MARKER) is None:
            return report
        why = ""
        if report.skipped and not hasattr(report, "wasxfail"):
            why = _reason(report)
        elif report.when == "call" and report.passed:
            why = "\n".join(self._unsure.get(item.nodeid, ()))
        if why:
            report.outcome = "failed"
            report.longrepr = f"{why}\n--mlx-require takes this for a failure."
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the report, and fail a session that had to compare and did not."""
        if self._config.option.collectonly:
            return
        if self.wishes.report is not None:
            try:
                self.tally.save(self.wishes.report)
            except ReportError as error:
                self._fail(session, str(error))
        if self.wishes.require and not self.tally.compared() and not self.tally.traced:
            self._fail(session, "nothing was compared, and --mlx-require was given.")

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        """Say how much was compared, and what was not."""
        if self._config.option.collectonly or exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        verbose = self._config.get_verbosity() > 0
        for line in self.tally.lines(owed=self._owed(), verbose=verbose):
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Let go of the standard error."""
        watchdog.stderr = 2
        os.close(self._stderr)

    # -- the rest -----------------------------------------------------------------------------

    def _expect(self, item: Comparison) -> None:
        backend = item.parent
        if not backend.owed:
            self._backends.append(backend)
        backend.owed.add(item.nodeid)
        if item.check not in backend.checks:
            backend.checks.append(item.check)
        self._wanted.setdefault(backend.source, set()).add(item.prompt_id)

    def _want(self, source: str) -> Want:
        return Want(
            questions=self.wishes.asked,
            max_tokens=self.wishes.settings.max_tokens,
            wanted=self._wanted[source].__contains__,
        )

    def _candidate(self, backend: Backend) -> Drive | Refusal:
        """Return a backend's candidate, opened by the first item that asks."""
        if backend.drive is None:
            backend.drive = self._open(backend)
            if isinstance(backend.drive, Drive):
                self.tally.add(backend.drive, lambda: not backend.owed)
            else:
                names = (check.name for check in backend.checks)
                reason = backend.drive.reason
                self.tally.refuse(backend.source, backend.name, names, reason)
        return backend.drive

    def _open(self, backend: Backend) -> Drive | Refusal:
        try:
            require_known(backend.name)
        except MlxCheckError as error:
            return Refusal.of(error)
        recorded = self.references.recorded(backend.source, self._want(backend.source))
        if isinstance(recorded, Refusal):
            return recorded
        backend.prompt_ids = frozenset(prompt.id for prompt in recorded.prompts)
        settings = self.wishes.settings
        return open_candidate(recorded, backend.name, backend.checks, settings, self.last_words)

    def _save_so_far(self) -> None:
        """Have a partial report on disk: a process may end with no time for last words."""
        now = time.monotonic()
        if self.wishes.report is not None and now > self._saved + _SAVED_EVERY_S:
            self._saved = now
            with contextlib.suppress(MlxCheckError):  # the end of the session will say so
                self.tally.save(self.wishes.report)

    def _miss(self, refusal: Refusal) -> NoReturn:
        __tracebackhide__ = True
        self.tally.missed[refusal.reason] += 1
        refusal.end_item(require=self.wishes.require)

    def _leave_out(self, item: Comparison) -> NoReturn:
        """Skip what was never meant to be compared, also under ``--mlx-require``."""
        __tracebackhide__ = True
        why = "the prompt is longer than this model's positions allow"
        if item.prompt_id in item.parent.prompt_ids:
            effort = self.wishes.settings.effort
            why = f"effort {effort} asks the {item.check.name} check of other prompts only"
        self.tally.missed[why] += 1
        pytest.skip(why)

    def _require_verdicts(self, found: tuple[Found, ...]) -> None:
        """Skip, or fail where a verdict is required, for want of one."""
        __tracebackhide__ = True
        unsure = [each for each in found if each.verdict is Verdict.INCONCLUSIVE]
        if unsure and self.wishes.require:
            raise Failed(failure_text(unsure))
        if len(unsure) == len(found):
            pytest.skip(unsure[0].message.partition("\n")[0])

    def _owed(self) -> int:
        return sum(len(backend.owed) for backend in self._backends)

    def _fail(self, session: pytest.Session, why: str) -> None:
        self.tally.notes.append(why)
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _shout(self, text: str) -> None:
        os.write(self._stderr, f"{text}\n".encode(errors="backslashreplace"))


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    return where[2] if isinstance(where, tuple) else str(where)
