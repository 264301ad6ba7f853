"""The second half of a run: one candidate is opened, asked everything, judged and closed."""

from __future__ import annotations

import difflib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Self

from mlxcheck import anchoring, memory, reference, strict
from mlxcheck.asked import ask, under_own_ids
from mlxcheck.backends import registry
from mlxcheck.checks.base import Grounds, Inspects, nothing_to_ask
from mlxcheck.checks.logits import Logits
from mlxcheck.checks.tokens import Tokens
from mlxcheck.engagement import caveat, engagement
from mlxcheck.errors import BackendError, EngineFault, UsageError
from mlxcheck.messages import Place
from mlxcheck.parity import no_answer
from mlxcheck.passes import (
    COUNTED,
    Control,
    PassSummary,
    missed,
    planted_faults,
    rates,
    repeats,
    total,
)
from mlxcheck.phases import Observer, measured, phase_since
from mlxcheck.provenance import again, versions
from mlxcheck.records import ALL_PROMPTS, FAILING, Case, Fault, Prompt, Verdict
from mlxcheck.report import Report
from mlxcheck.session import Answers, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.checks import Check
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Comparison
    from mlxcheck.settings import Settings
    from mlxcheck.totals import Test

__all__ = ["Drive"]

_TELLING = FAILING | {Verdict.INCONCLUSIVE}

_ALL = Prompt(id=ALL_PROMPTS, tokens=())


class Drive:
    """One candidate on one recorded model: opened once, asked everything, closed.

    Args:
        recorded: From `record`; nothing of the reference is loaded any more.
        backend: Anything that `registry.resolve` takes.
        checks: What to ask.
        settings: What the run depends on; as it was for `record`.
        observer: Watches.
        last_words: See `Watchdog`.
        cases: Case ids to keep; None for all.

    Raises:
        BackendError: The backend is unknown, or says that its engine is not installed.
    """

    def __init__(  # noqa: PLR0913 - keyword-only but for what names the run
        self,
        recorded: Recorded,
        backend: object,
        checks: Sequence[Check],
        settings: Settings,
        *,
        observer: Observer | None = None,
        last_words: Callable[[str], None] | None = None,
        cases: Sequence[str] | None = None,
    ) -> None:
        self._recorded = recorded
        self._backend = backend
        self._checks = checks
        self._settings = settings
        self._observer = observer or Observer()
        self._only = cases
        self._session = Session(
            registry.resolve(backend), recorded.model, settings.policy, last_words=last_words
        )
        # In strict mode nothing is excused by noise, however well it is known.
        calibrated = settings.policy.mode == "calibrated"
        self._noise = recorded.noise if calibrated else None
        self._phases = list(recorded.phases)
        self._answers: dict[str, Answers] = {}
        self._done: dict[tuple[str, str], tuple[Comparison, ...]] = {}
        self._started = 0.0
        self._broke_in_closing = ""
        self._entered = self._text_alone = False
        self._all_cases: set[str] = set()
        self._inspected: dict[str, tuple[Comparison, ...]] = {}
        self.name = registry.describe(backend)
        self.plan: dict[str, tuple[Case, ...]] = {}
        self.not_run = ""
        self.not_asked: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Open the candidate and settle what it can be asked.

        An engine need not know float32: where it does not open a copy, that pass is not made.
        """
        try:
            with measured("open", self._phases, None, 0):
                self._session.__enter__()
            self._entered = True
        except BackendError as error:
            if not self._recorded.cast:
                raise
            self.not_run = str(error)
        fault = self._session.unopened
        if self._recorded.cast and fault is not None:
            self.not_run = f"the candidate did not open the float32 copy: {fault.summary}"
        self._started = time.perf_counter()
        try:
            self._make_plan()
        except BaseException:
            self._session.__exit__(None, None, None)
            raise
        memory.reset_peak()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Measure what the candidate used, and close it."""
        self._phases.append(phase_since(self._started, "candidate"))
        if not self._entered:
            return
        try:
            self._session.__exit__(kind, error, where)
        except EngineFault as fault:
            # All cases have been driven: what they found is kept, and this is added.
            self._broke_in_closing = str(fault)

    def _make_plan(self) -> None:
        can = self._session.capabilities
        self._text_alone = not can.ids
        grounds = Grounds(
            prompts=self._recorded.prompts,
            capabilities=can,
            effort=self._settings.effort,
            seed=self._settings.seed,
            expected=self._recorded.traces,
            model=self._recorded.model,
        )
        for check in self._checks:
            reason = self._refuse(check, can) or check.refuse(can)
            if reason:
                self.not_asked[check.name] = reason
                continue
            cases = check.plan(grounds)
            # A replay wants no case of the plan, and is not stopped by an empty one.
            if not cases and self._only != () and not isinstance(check, Inspects):
                self.not_asked[check.name] = nothing_to_ask(check, grounds)
                continue
            self._all_cases |= {case.id for case in cases}
            if self._only is not None:
                cases = tuple(case for case in cases if case.id in self._only)
            self.plan[check.name] = cases
        if not self.not_run:  # else the cases are another pass's
            self._require_cases({case.id for cases in self.plan.values() for case in cases})

    def _refuse(self, check: Check, can: Capabilities) -> str:
        """Return what stands against a check in this mode or pass, if anything."""
        policy, recorded = self._settings.policy, self._recorded
        if recorded.cast and not can.casts:
            self.not_run = "the backend holds its own engine, which no float32 copy is given to"
        if self.not_run:
            return self.not_run
        if self._session.unopened is not None and isinstance(check, Inspects):
            return f"the engine did not open: {self._session.unopened.summary}"
        if self._noise is not None or isinstance(check, Inspects):
            return ""
        return strict.refused(check.name, can, recorded.prompts, policy)

    def _require_cases(self, planned: set[str]) -> None:
        for case in self._only or ():
            if case not in planned:
                close = difflib.get_close_matches(case, self._all_cases, n=2)
                hint = f" Did you mean {' or '.join(close)}?" if close else ""
                msg = (
                    f"no case {case} among these checks, prompts, effort and seed.{hint} The "
                    "ids of cases stand in the JSON report and in the messages of failures."
                )
                raise UsageError(msg)

    def run(self) -> None:
        """Drive every case once and judge it for each check that planned it."""
        for check in self._checks:
            self.inspect(check)
        wanted: dict[str, list[tuple[Check, Case]]] = {}
        for check in self._checks:
            for case in self.plan.get(check.name, ()):
                wanted.setdefault(case.id, []).append((check, case))
        self._observer.begin("candidate", len(wanted))
        try:
            for pairs in wanted.values():
                for check, case in pairs:
                    self.compare(check, case)
                self._observer.advance()
        finally:
            self._observer.end()

    def compare(self, check: Check, case: Case) -> tuple[Comparison, ...]:
        """Judge one case under one check; a case is driven once, whoever asks."""
        key = (check.name, case.id)
        if key not in self._done:
            asked = ask(case, self._recorded.traces, self._settings.max_tokens)
            answers = self._answers.get(case.id)
            if answers is None:
                answers = self._answers[case.id] = anchoring.drive(
                    self._session,
                    asked.case,
                    budgets=asked.budgets,
                    expected=asked.expected,
                    noise=self._noise,
                )
            found = check.judge(
                asked.case,
                asked.expected,
                answers,
                lambda row: self._place(check, asked.case, row),
            )
            self._done[key] = under_own_ids(found, case)
        return self._done[key]

    def inspect(self, check: Check) -> tuple[Comparison, ...]:
        """Have a check ask the backend what it asks without driving a case, once."""
        apart = self._only is not None  # a case is repeated by itself
        if apart or not isinstance(check, Inspects) or check.name in self.not_asked:
            return ()
        if check.name not in self._inspected:
            recorded = self._recorded
            try:
                found = self._session.inspect(
                    lambda backend: check.inspect(
                        recorded.prompts,
                        recorded.model,
                        backend,
                        recorded.encode_reference,
                        lambda case: self._place(check, case, 0),
                    )
                )
            except EngineFault as error:
                found = (no_answer(self._overall(check), Fault(summary=str(error))),)
            # None: it did not open, which every driven case says.
            self._inspected[check.name] = found or ()
        return self._inspected[check.name]

    def together(self, check: Check) -> tuple[tuple[Comparison, ...], tuple[Test, ...]]:
        """Judge everything that a check has found so far together."""
        noise = self._noise
        if noise is None or check.name not in COUNTED or check.name not in self.plan:
            return (), ()
        found = [
            each
            for (name, _), group in self._done.items()
            for each in group
            if name == check.name
        ]
        if not any(each.steps or each.step is not None for each in found):
            return (), ()  # nothing compared is never a pass
        place = self._overall(check)
        shows_numbers = Logits.name in self.plan
        one, tests = total(
            place,
            found,
            self._recorded.traces,
            alpha=self._settings.policy.alpha / self._settings.policy.tests,
            tokens_alone=not shows_numbers and not self._recorded.backed,
        )
        return (one,), tests

    def about(self, check: Check, prompt_id: str) -> tuple[Comparison, ...]:
        """Drive and judge every case of a check that holds a prompt; keep what is about it."""
        if prompt_id == ALL_PROMPTS:
            return self.together(check)[0]
        if isinstance(check, Inspects):
            found = self.inspect(check)
            return tuple(each for each in found if each.prompt_id == prompt_id)
        return tuple(
            found
            for case in self.plan.get(check.name, ())
            if any(prompt.id == prompt_id for prompt in case.prompts)
            for found in self.compare(check, case)
            if found.prompt_id == prompt_id
        )

    def report(self, *, complete: bool = True) -> Report:
        """Return what has been found so far.

        Args:
            complete: False where the run was cut short.
        """
        recorded, settings = self._recorded, self._settings
        totals = {check.name: self.together(check) for check in self._checks}
        comparisons = [each for group in self._inspected.values() for each in group]
        comparisons += [each for group in self._done.values() for each in group]
        # A comparison is of one prompt: one of all is added where it has something to say.
        comparisons += [
            each for found, _ in totals.values() for each in found if each.verdict in _TELLING
        ]
        tests = {name: tests for name, (_, tests) in totals.items() if tests}
        report = Report(
            model=recorded.model.source,
            model_type=recorded.model.model_type,
            reference=reference.version(),
            backend=self.name,
            comparisons=tuple(comparisons),
            not_asked=() if self.not_run else tuple(self.not_asked.items()),
            phases=tuple(self._phases),
            gate=recorded.gate,
            passes=(self._summary(comparisons, tests),),
            versions=versions(),
            settings={
                "max_tokens": settings.max_tokens,
                "effort": settings.effort,
                "seed": settings.seed,
                "policy": asdict(settings.policy),
            },
            complete=complete,
        )
        fault = self._session.unopened
        if fault is not None and not comparisons and not self.not_run:
            report = report.with_fault("open", fault.summary)  # no case was there to say it
        return report.with_fault("close", self._broke_in_closing)

    def _summary(
        self, comparisons: Sequence[Comparison], tests: Mapping[str, Sequence[Test]]
    ) -> PassSummary:
        recorded = self._recorded
        if self.not_run:
            return missed(recorded.precision, self.not_run)
        place = self._overall(Tokens())
        noise = recorded.noise
        summary = PassSummary(
            precision=recorded.precision,
            why=caveat(recorded),
            dtype=noise.dtype,
            exact=noise.exact,
            text_alone=self._text_alone,
            noise=self._noise,
            controls=(
                repeats(noise),
                planted_faults(place, recorded.traces),
                Control(
                    name="purity",
                    passed=True,
                    text=f"{recorded.pure:,} functions of mlx and mlx-lm are their files' own",
                ),
                engagement(self._answers.values()),
            ),
            tests=tuple(
                (name, test.name, test.passed, test.text)
                for name, group in tests.items()
                for test in group
            ),
        )
        numbers = [test for test in tests.get(Logits.name, ()) if test.name == "errors"]
        errors = numbers[0] if numbers else None
        return rates(summary, comparisons, recorded.traces, self._noise, errors)

    def _overall(self, check: Check) -> Place:
        return self._place(check, Case(id=ALL_PROMPTS, prompts=(_ALL,)), 0)

    def _place(self, check: Check, case: Case, row: int) -> Place:
        return Place(
            check=check.name,
            case=case,
            row=row,
            reference=reference.version(),
            candidate=self.name,
            again=again(self._recorded, self._backend, self._settings, check.name, case),
            text_of=self._recorded.text_of,
            noise=self._noise,
            precision=self._recorded.precision,
            text_alone=self._text_alone,
        )
