"""The second half of a run: one candidate is opened, asked everything, judged and closed."""

from __future__ import annotations

import difflib
import platform
import shlex
import time
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Self

from mlxcheck import memory, reference
from mlxcheck.backends import registry
from mlxcheck.errors import EngineFault, UsageError
from mlxcheck.messages import Place
from mlxcheck.recording import Observer, Recorded, Settings, measured, phase_since
from mlxcheck.report import Report
from mlxcheck.session import Answers, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from mlxcheck.checks import Check
    from mlxcheck.records import Case, Comparison

__all__ = ["Drive", "versions"]


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
        self._phases = list(recorded.phases)
        self._answers: dict[str, Answers] = {}
        self._done: dict[tuple[str, str], tuple[Comparison, ...]] = {}
        self._started = 0.0
        self._broke_in_closing = ""
        self._all_cases: set[str] = set()
        self.name = registry.describe(backend)
        self.plan: dict[str, tuple[Case, ...]] = {}
        self.not_asked: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Open the candidate and settle what it can be asked."""
        with measured("open", self._phases, None, 0):
            self._session.__enter__()
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
        try:
            self._session.__exit__(kind, error, where)
        except EngineFault as fault:
            # All cases have been driven: what they found is kept, and this is added.
            self._broke_in_closing = str(fault)

    def _make_plan(self) -> None:
        can = self._session.capabilities
        settings = self._settings
        for check in self._checks:
            reason = check.refuse(can)
            if reason is not None:
                self.not_asked[check.name] = reason
                continue
            cases = check.plan(self._recorded.prompts, can, settings.effort, settings.seed)
            self._all_cases |= {case.id for case in cases}
            if self._only is not None:
                cases = tuple(case for case in cases if case.id in self._only)
            self.plan[check.name] = cases
        self._require_cases({case.id for cases in self.plan.values() for case in cases})

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
            answers = self._answers.get(case.id)
            if answers is None:
                answers = self._session.run(case, max_tokens=self._settings.max_tokens)
                self._answers[case.id] = answers
            self._done[key] = check.judge(
                case,
                self._recorded.traces,
                answers,
                lambda row: self._place(check, case, row),
            )
        return self._done[key]

    def about(self, check: Check, prompt_id: str) -> tuple[Comparison, ...]:
        """Drive and judge every case of a check that holds a prompt; keep what is about it."""
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
        report = Report(
            model=recorded.model.source,
            model_type=recorded.model.model_type,
            reference=reference.version(),
            backend=self.name,
            comparisons=tuple(found for group in self._done.values() for found in group),
            not_asked=tuple(self.not_asked.items()),
            phases=tuple(self._phases),
            gate=recorded.gate,
            versions=versions(),
            settings={
                "max_tokens": settings.max_tokens,
                "effort": settings.effort,
                "seed": settings.seed,
                "policy": asdict(settings.policy),
            },
            complete=complete,
        )
        return report.with_fault("close", self._broke_in_closing)

    def _place(self, check: Check, case: Case, row: int) -> Place:
        return Place(
            check=check.name,
            case=case,
            row=row,
            reference=reference.version(),
            candidate=self.name,
            again=self._again(check, case),
            text_of=self._recorded.text_of,
        )

    def _again(self, check: Check, case: Case) -> str:
        """Return the command, or where there is none for it the call, that repeats a case."""
        settings, model = self._settings, self._recorded.model
        backend = registry.command_name(self._backend)
        if backend is None or settings.prompts_from == "":
            prompts = "" if settings.prompts_from is None else " prompts=...,"
            return (
                f"mlxcheck.check({model.source!r}, {self.name},{prompts} "
                f"max_tokens={settings.max_tokens}, checks=[{check.name!r}], "
                f"effort={settings.effort!r}, seed={settings.seed}, cases=[{case.id!r}])"
            )
        words = ["mlxcheck", "run", model.source, "--backend", backend]
        words += ["--check", check.name, "--case", case.id]
        defaults = Settings()
        for name in ("max_tokens", "effort", "seed", "revision", "prompts_from"):
            value = getattr(settings, name)
            if value != getattr(defaults, name):
                option = "prompts" if name == "prompts_from" else name.replace("_", "-")
                words += [f"--{option}", str(value)]
        if settings.trust_remote_code:
            words.append("--trust-remote-code")
        return shlex.join(words)


def versions() -> dict[str, str]:
    """Return what a result depends on besides its inputs."""
    import mlx.core as mx

    info = mx.device_info()
    return {
        "mlxcheck": metadata.version("mlxcheck"),
        "mlx": metadata.version("mlx"),
        "mlx-lm": metadata.version("mlx-lm"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{mx.default_device()} {info.get('device_name', '')}".strip(),
    }
