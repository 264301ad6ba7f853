"""The story in order: gate, reference, release, candidate, compare.

`record` is the first half and leaves nothing loaded; `Drive` is the second. They are apart
so that several models' references can all be made, and freed, before the first candidate,
which may patch mlx-lm, is opened.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from types import TracebackType
from typing import Any, Self

from mlxcheck import checkpoint as checkpoints
from mlxcheck import memory, purity, reference, release
from mlxcheck.backends import registry
from mlxcheck.checks import Check, Effort
from mlxcheck.errors import NotEnoughMemory, PromptError, UsageError
from mlxcheck.messages import Place
from mlxcheck.policy import Policy
from mlxcheck.prompts import Question, encode, packaged, require_fit
from mlxcheck.records import Case, Comparison, ModelRef, Phase, Prompt, Trace
from mlxcheck.report import Report
from mlxcheck.session import Answers, Session

__all__ = ["Drive", "Memo", "Observer", "Recorded", "Settings", "Want", "record", "record_each"]

GATE_ROWS = 33
"""Rows that the memory gate reckons with: one more than mlx-lm's own limit, the widest case
of a standard run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run depends on besides model, backend and prompts.

    Attributes:
        max_tokens: The most tokens of each answer.
        effort: How much is asked.
        seed: Deals the prompts into batches.
        policy: What counts as equal, and how long to wait.
        revision: The hub revision of the models.
        trust_remote_code: Whether code in a checkpoint may be run.
        prompts_from: The prompt file, for the command that repeats a case; None for
            the packaged set.
    """

    max_tokens: int = 64
    effort: Effort = "standard"
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    revision: str | None = None
    trust_remote_code: bool = False
    prompts_from: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be meant."""
        if not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            msg = f"max_tokens={self.max_tokens!r}: expected a whole number above 0."
            raise UsageError(msg)
        if self.effort not in ("quick", "standard", "thorough"):
            msg = f"effort={self.effort!r}: expected 'quick', 'standard' or 'thorough'."
            raise UsageError(msg)


class Observer:
    """Watches a run; every method may be overridden, and none changes the run."""

    def begin(self, phase: str, total: int) -> None:
        """A phase starts: ``"load"``, ``"reference"`` or ``"candidate"``."""

    def advance(self) -> None:
        """One prompt, or one case, of the phase is done."""

    def end(self) -> None:
        """The phase is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What is left of the reference after its release.

    Attributes:
        model: The checkpoint, with its stop set.
        prompts: All prompts of the run, in order.
        traces: The reference's answers by prompt id.
        text_of: The text of a token id.
        phases: Time and memory of its phases.
        gate: The memory gate's terms.
    """

    model: ModelRef
    prompts: tuple[Prompt, ...]
    traces: Mapping[str, Trace]
    text_of: Callable[[int], str]
    phases: tuple[Phase, ...]
    gate: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One set of prompts; several sets can share a load.

    Attributes:
        questions: What to ask; None for those of the packaged set that fit the model.
        max_tokens: The most tokens of each answer.
        wanted: Which prompt ids to decode; the others are only company in batches.
    """

    questions: Sequence[Question] | None
    max_tokens: int
    wanted: Callable[[str], bool] = lambda _: True


@dataclass(slots=True, kw_only=True)
class Memo:
    """What `record_each` keeps of one model from call to call; never its weights.

    Attributes:
        files: The checkpoint and its tokenizer, once they have been read.
        traces: The reference's answers by token ids and ``max_tokens``.
    """

    files: tuple[checkpoints.Checkpoint, Any] | None = None
    traces: dict[tuple[tuple[int, ...], int], Trace] = field(default_factory=dict)


def record(
    source: str,
    questions: Sequence[Question] | None,
    settings: Settings,
    *,
    wanted: Callable[[str], bool] = lambda _: True,
    observer: Observer | None = None,
) -> Recorded:
    """Decode prompts with the reference, and free it.

    Args:
        source: A folder or a hub id.
        questions: What to ask; None for those of the packaged set that fit the model.
        settings: What the run depends on.
        wanted: Which prompt ids to decode; the others are only company in batches.
        observer: Watches.

    Raises:
        ModelError: The checkpoint is broken; found before anything is loaded if it can be.
        ModelUnavailable: A hub model that is neither cached nor within reach.
        PromptError: A prompt that this model cannot take.
        NotEnoughMemory: The gate is closed; its text holds every number.
        ReferenceTampered: mlx-lm has been patched in this process.
        MemoryNotReleased: The reference did not go away.
    """
    want = Want(questions=questions, max_tokens=settings.max_tokens, wanted=wanted)
    (found,) = record_each(source, [want], settings, observer=observer)
    if isinstance(found, PromptError):
        raise found
    return found


def record_each(
    source: str,
    wants: Sequence[Want],
    settings: Settings,
    *,
    memo: Memo | None = None,
    observer: Observer | None = None,
) -> tuple[Recorded | PromptError, ...]:
    """Decode several sets of prompts in one load of the reference, and free it.

    Args:
        source: A folder or a hub id.
        wants: The sets. `Settings.max_tokens` is not looked at: each set has its own.
        settings: What the run depends on.
        memo: Of this same source; what it holds is not decoded again, and nothing is
            loaded where it holds everything.
        observer: Watches.

    Returns:
        One a set; the error where this model cannot take a prompt of that set.

    Raises:
        Exception: All others of `record`.
    """
    memo = memo or Memo()
    found, tokenizer = memo.files = memo.files or _read(source, settings)
    sets = [_prompts(want, tokenizer, found.model) for want in wants]
    asked = [
        (want, prompts)
        for want, prompts in zip(wants, sets, strict=True)
        if not isinstance(prompts, PromptError)
    ]
    if not asked:
        return tuple(prompts for prompts in sets if isinstance(prompts, PromptError))
    gate = _pass_gate(found, asked)
    missing = {
        (prompt.tokens, want.max_tokens): prompt
        for want, prompts in asked
        for prompt in prompts
        if want.wanted(prompt.id) and (prompt.tokens, want.max_tokens) not in memo.traces
    }
    phases: list[Phase] = []
    if missing:
        memo.traces.update(_decode(found, missing, phases, observer or Observer()))

    def recorded(want: Want, prompts: tuple[Prompt, ...]) -> Recorded:
        return Recorded(
            model=found.model,
            prompts=prompts,
            traces={
                prompt.id: replace(
                    memo.traces[prompt.tokens, want.max_tokens], prompt_id=prompt.id
                )
                for prompt in prompts
                if want.wanted(prompt.id)
            },
            text_of=lambda token: str(tokenizer.decode([token])),
            phases=tuple(phases),
            gate=gate.terms,
        )

    return tuple(
        prompts if isinstance(prompts, PromptError) else recorded(want, prompts)
        for want, prompts in zip(wants, sets, strict=True)
    )


def _read(source: str, settings: Settings) -> tuple[checkpoints.Checkpoint, Any]:
    found = checkpoints.inspect(
        source, revision=settings.revision, trust_remote_code=settings.trust_remote_code
    )
    tokenizer = reference.read_tokenizer(found)
    model = replace(found.model, stop_ids=reference.stop_set(tokenizer))
    return replace(found, model=model), tokenizer


def _prompts(want: Want, tokenizer: Any, model: ModelRef) -> tuple[Prompt, ...] | PromptError:
    try:
        if want.questions is not None:
            prompts = encode(want.questions, tokenizer)
        else:
            # Packaged prompts that a short-context model cannot take are ours to leave out.
            most = (model.max_positions or sys.maxsize) - want.max_tokens
            prompts = encode(packaged(), tokenizer)
            prompts = tuple(prompt for prompt in prompts if len(prompt.tokens) <= most)
        require_fit(prompts, model, want.max_tokens)
    except PromptError as error:
        return error
    return prompts


def _pass_gate(
    found: checkpoints.Checkpoint, asked: Sequence[tuple[Want, Sequence[Prompt]]]
) -> memory.Gate:
    longest = max(len(prompt.tokens) for _, prompts in asked for prompt in prompts)
    need = memory.estimate(
        weight_bytes=found.weight_bytes,
        config=found.config,
        longest=longest,
        max_tokens=max(want.max_tokens for want, _ in asked),
        batch=max(GATE_ROWS, *(len(prompts) for _, prompts in asked)),
        chunk=min(longest, 2048),
    )
    gate = memory.gate(
        need,
        memory.probe(),
        floor=memory.floor_bytes(os.environ),
        largest_tensor=found.largest_tensor,
    )
    if not gate.open:
        msg = f"{found.model.source}: {gate.reason}"
        raise NotEnoughMemory(msg)
    return gate


def _decode(
    found: checkpoints.Checkpoint,
    prompts: Mapping[tuple[tuple[int, ...], int], Prompt],
    phases: list[Phase],
    observer: Observer,
) -> dict[tuple[tuple[int, ...], int], Trace]:
    baseline = release.take_baseline()
    with _phase("load", phases, observer, 1):
        loaded = reference.Reference(found)
        purity.prove_pure()
        observer.advance()
    traces: dict[tuple[tuple[int, ...], int], Trace] = {}
    with _phase("reference", phases, observer, len(prompts)):
        for key, prompt in prompts.items():
            traces[key] = loaded.decode(prompt, max_tokens=key[1])
            observer.advance()
    with _phase("release", phases, None, 0):
        ref = loaded.release()
        release.prove_released(baseline, what="the reference model", ref=ref)
    return traces


@contextmanager
def _phase(
    name: str, phases: list[Phase], observer: Observer | None, total: int
) -> Iterator[None]:
    """Time a phase and measure memory at its end."""
    memory.reset_peak()
    start = time.perf_counter()
    if observer:
        observer.begin(name, total)
    try:
        yield
    finally:
        if observer:
            observer.end()
    seconds = time.perf_counter() - start
    used = memory.usage()
    phases.append(
        Phase(
            name=name,
            seconds=seconds,
            active=used.active,
            cached=used.cached,
            peak=used.peak,
            rss=used.rss,
        )
    )


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

    def __init__(
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
        self.name = registry.describe(backend)
        self.plan: dict[str, tuple[Case, ...]] = {}
        self.not_asked: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Open the candidate and settle what it can be asked."""
        with _phase("open", self._phases, None, 0):
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
        used = memory.usage()
        self._phases.append(
            Phase(
                name="candidate",
                seconds=time.perf_counter() - self._started,
                active=used.active,
                cached=used.cached,
                peak=used.peak,
                rss=used.rss,
            )
        )
        self._session.__exit__(kind, error, where)

    def _make_plan(self) -> None:
        can = self._session.capabilities
        settings = self._settings
        for check in self._checks:
            reason = check.refuse(can)
            if reason is not None:
                self.not_asked[check.name] = reason
                continue
            cases = check.plan(self._recorded.prompts, can, settings.effort, settings.seed)
            if self._only is not None:
                cases = tuple(case for case in cases if case.id in self._only)
            self.plan[check.name] = cases
        if self._only is not None and not any(self.plan.values()):
            msg = f"no case {', '.join(self._only)} among these checks and prompts."
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
        return Report(
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
        if not isinstance(self._backend, str) or settings.prompts_from == "":
            return (
                f"mlxcheck.check({model.source!r}, {self.name}, prompts=..., "
                f"max_tokens={settings.max_tokens}, checks=[{check.name!r}], "
                f"effort={settings.effort!r}, seed={settings.seed}, cases=[{case.id!r}])"
            )
        words = ["mlxcheck", "run", model.source, "--backend", self._backend]
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
