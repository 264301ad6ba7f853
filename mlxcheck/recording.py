"""The first half of a run: gate, reference, release. It leaves nothing loaded.

Apart from the second half (`mlxcheck.run`), so that several models' references can all be
made, and freed, before the first candidate, which may patch mlx-lm, is opened.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlxcheck import checkpoint as checkpoints
from mlxcheck import memory, purity, reference, release
from mlxcheck.errors import NotEnoughMemory, PromptError, UsageError
from mlxcheck.policy import Policy
from mlxcheck.prompts import Question, encode, packaged, require_fit
from mlxcheck.records import ModelRef, Phase, Prompt, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mlxcheck.checks import Effort

__all__ = [
    "Memo",
    "Observer",
    "Recorded",
    "Settings",
    "Want",
    "measured",
    "phase_since",
    "record",
    "record_each",
]

GATE_ROWS = 33
"""Rows that the memory gate reckons with: one more than mlx-lm's own limit, the widest case
of a standard run."""

TraceKey = tuple[tuple[int, ...], int]
"""What a reference trace of one model depends on: the prompt's ids and ``max_tokens``."""


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
            the packaged set, empty where no file holds them.
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
        if self.max_tokens < 1:
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
        phases: Of the loads that made them.
    """

    files: tuple[checkpoints.Checkpoint, Any] | None = None
    traces: dict[TraceKey, Trace] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)


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
    if missing:
        memo.traces.update(_decode(found, missing, memo.phases, observer or Observer()))
    return tuple(
        prompts if isinstance(prompts, PromptError) else _answers(want, prompts, memo, gate)
        for want, prompts in zip(wants, sets, strict=True)
    )


def _answers(
    want: Want, prompts: tuple[Prompt, ...], memo: Memo, gate: memory.Gate
) -> Recorded:
    """Pick out of a memo what belongs to one set."""
    assert memo.files is not None  # noqa: S101 - they were read before anything was decoded
    found, tokenizer = memo.files
    kept = {
        prompt.id: replace(memo.traces[prompt.tokens, want.max_tokens], prompt_id=prompt.id)
        for prompt in prompts
        if want.wanted(prompt.id)
    }
    return Recorded(
        model=found.model,
        prompts=prompts,
        traces=kept,
        text_of=lambda token: str(tokenizer.decode([token])),
        phases=tuple(memo.phases),
        gate=gate.terms,
    )


def _read(source: str, settings: Settings) -> tuple[checkpoints.Checkpoint, Any]:
    reference.require_mlx()
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
        if not prompts:
            return PromptError(
                f"max_tokens={want.max_tokens} leaves no packaged prompt room in the "
                f"{model.max_positions} positions of {model.name}. Lower max_tokens."
            )
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
    prompts: Mapping[TraceKey, Prompt],
    phases: list[Phase],
    observer: Observer,
) -> dict[TraceKey, Trace]:
    baseline = release.take_baseline()
    with measured("load", phases, observer, 1):
        loaded = reference.Reference(found)
        observer.advance()
    traces: dict[TraceKey, Trace] = {}
    try:
        purity.prove_pure()
        imported = len(sys.modules)
        with measured("reference", phases, observer, len(prompts)):
            for key, prompt in prompts.items():
                traces[key] = loaded.decode(prompt, max_tokens=key[1])
                observer.advance()
        if len(sys.modules) != imported:
            purity.prove_pure()  # again: what decoding imported was not there to be proved
    except BaseException:
        loaded.release()  # a traceback that lives on must not hold the weights
        raise
    with measured("release", phases, None, 0):
        ref = loaded.release()
        release.prove_released(baseline, what="the reference model", ref=ref)
    return traces


@contextmanager
def measured(
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
    phases.append(phase_since(start, name))


def phase_since(start: float, name: str) -> Phase:
    """Return the phase that began at *start*, a `time.perf_counter`, and ends now."""
    seconds = time.perf_counter() - start
    used = memory.usage()
    return Phase(
        name=name,
        seconds=seconds,
        active=used.active,
        cached=used.cached,
        peak=used.peak,
        rss=used.rss,
    )
