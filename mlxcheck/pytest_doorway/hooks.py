"""pytest's hooks, and the session's state that they share."""

from __future__ import annotations

import contextlib
import difflib
import os
import time
from typing import TYPE_CHECKING

import pytest

from mlxcheck import watchdog
from mlxcheck.errors import MlxCheckError, ReportError
from mlxcheck.messages import counted
from mlxcheck.plugin import MARKER
from mlxcheck.pytest_doorway.generated import Generated
from mlxcheck.pytest_doorway.nodes import Comparison, Root
from mlxcheck.pytest_doorway.outcomes import Failed, Refusal, failure_text
from mlxcheck.pytest_doorway.references import References
from mlxcheck.pytest_doorway.tally import Asking, Tally
from mlxcheck.pytest_doorway.user import MlxReference, declared_want
from mlxcheck.records import FAILING, Verdict

if TYPE_CHECKING:
    from collections.abc import Generator

    from mlxcheck.pytest_doorway.options import Wishes
    from mlxcheck.records import Comparison as Found
    from mlxcheck.report import Report

__all__ = ["Doorway"]

_SAVED_EVERY_S = 2.0


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
        self.asking = Asking("", "", "native", "", "")
        self._generated = Generated(wishes, self.references, self.tally, self.last_words)
        self._config = config
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
        names = backend.source, backend.engine, backend.precision
        self.asking = Asking(*names, item.check.name, item.prompt_id)
        drive = self._generated.candidate(backend)
        found = drive if isinstance(drive, Refusal) else self._generated.found(drive, item)
        backend.owed.discard(item.nodeid)
        if isinstance(found, Refusal):
            self.tally.missed[found.reason] += 1
            found.end_item(require=self.wishes.require)
        failures = [each for each in found if each.verdict in FAILING]
        if failures:
            raise Failed(failure_text(failures))
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
        self._shout("\n".join(self.tally.lines(owed=self._generated.owed, verbose=True)))
        self.references.close()  # nobody else will remove the float32 copies

    # -- hooks, in the order in which pytest calls them ---------------------------------------

    def pytest_report_header(self) -> str:
        """Say what will be compared."""
        wishes = self.wishes
        if not wishes.models:
            return "mlxcheck: no model is given (--mlx-model, MLXCHECK_MODEL, ini: mlx_model)"
        checks = ", ".join(check.name for check in wishes.checks)
        policy = wishes.settings.policy
        return (
            f"mlxcheck: {', '.join(wishes.models)}; backends {', '.join(wishes.backends)}; "
            f"checks {checks}; {counted(len(wishes.questions), 'prompt')}; precision "
            f"{', '.join(policy.precision)}; mode {policy.mode}"
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
                self._generated.expect(item)
        self._generated.plan()
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
        self.references.close()
        if self._config.option.collectonly:
            return
        if self.wishes.report is not None:
            try:
                self.tally.save(self.wishes.report)
            except ReportError as error:
                self._fail(session, str(error))
        if self.wishes.require and not self.tally.compared() and not self.tally.traced:
            self._fail(session, "nothing was compared, and --mlx-require was given.")
        elif self.wishes.require and self.tally.doubts():
            self._fail(session, "a control did not hold, and --mlx-require was given.")

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        """Say how much was compared, and what was not."""
        if self._config.option.collectonly or exitstatus == pytest.ExitCode.USAGE_ERROR:
            return
        verbose = self._config.get_verbosity() > 0
        for line in self.tally.lines(owed=self._generated.owed, verbose=verbose):
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """Let go of the float32 copies, where no session came to its end, and of stderr."""
        self.references.close()
        watchdog.stderr = 2
        os.close(self._stderr)

    # -- the rest -----------------------------------------------------------------------------

    def _save_so_far(self) -> None:
        """Have a partial report on disk: a process may end with no time for last words."""
        now = time.monotonic()
        if self.wishes.report is not None and now > self._saved + _SAVED_EVERY_S:
            with contextlib.suppress(MlxCheckError):  # the end of the session will say so
                self.tally.save(self.wishes.report)
            # Large reports take long to write: no more than a tenth of the time is spent on it.
            self._saved = time.monotonic() + 10 * (time.monotonic() - now)

    def _require_verdicts(self, found: tuple[Found, ...]) -> None:
        """Skip, or fail where a verdict is required, for want of one."""
        __tracebackhide__ = True
        unsure = [each for each in found if each.verdict is Verdict.INCONCLUSIVE]
        if unsure and self.wishes.require:
            raise Failed(failure_text(unsure))
        if len(unsure) == len(found):
            pytest.skip(unsure[0].message.partition("\n")[0])

    def _fail(self, session: pytest.Session, why: str) -> None:
        self.tally.notes.append(why)
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _shout(self, text: str) -> None:
        os.write(self._stderr, f"{text}\n".encode(errors="backslashreplace"))


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    return where[2] if isinstance(where, tuple) else str(where)
