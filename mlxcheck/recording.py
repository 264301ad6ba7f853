"""The first half of a run: gate, reference, release. It leaves nothing loaded.

Apart from the second half (`mlxcheck.run`), so that several models' references can all be
made, and freed, before the first candidate, which may patch mlx-lm, is opened.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlxcheck import checkpoint as checkpoints
from mlxcheck import memory, precision, reference
from mlxcheck.decoding import TraceKey, decode
from mlxcheck.errors import NotEnoughMemory, PromptError
from mlxcheck.noise import Noise
from mlxcheck.phases import Observer
from mlxcheck.prompts import Question, default_ids, encode, packaged, require_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlxcheck.noise import Arm, Probe
    from mlxcheck.records import ModelRef, Phase, Precision, Prompt, Trace
    from mlxcheck.settings import Settings

__all__ = [
    "Memo",
    "Recorded",
    "Want",
    "read",
    "record",
    "record_each",
    "record_one",
]

GATE_ROWS = 33
"""Rows that the memory gate reckons with: one more than mlx-lm's own limit, the widest case
of a standard run."""

Turns = tuple[tuple[str, str], ...]
"""Chat turns as `Prompt.messages` holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What is left of the reference after its release.

    Attributes:
        model: The checkpoint, with its stop set.
        prompts: All prompts of the run, in order.
        traces: The reference's answers by prompt id.
        noise: How far rounding moves them, and whether the reference agrees with itself.
        precision: The pass.
        cast: The checkpoint at `ModelRef.path` is a copy in float32.
        encoded: The ids that mlx-lm makes of chat turns by default, or why it cannot.
        pure: How many functions of mlx-lm were proved to be those of its files.
        text_of: The text of a token id.
        phases: Time and memory of its phases.
        gate: The memory gate's terms.
        backed: A float32 pass is made of the same model too.
    """

    model: ModelRef
    prompts: tuple[Prompt, ...]
    traces: Mapping[str, Trace]
    noise: Noise
    precision: Precision
    cast: bool
    encoded: Mapping[Turns, tuple[int, ...] | PromptError]
    pure: int
    text_of: Callable[[int], str]
    phases: tuple[Phase, ...]
    gate: tuple[str, ...]
    backed: bool = False

    def encode_reference(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the ids that mlx-lm makes of chat turns of one of the prompts by default.

        Raises:
            PromptError: Its template refuses them.
        """
        ids = self.encoded[tuple((turn["role"], turn["content"]) for turn in messages)]
        if isinstance(ids, PromptError):
            raise ids
        return ids


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
    """What `record_each` keeps of one pass over a model from call to call; never weights.

    Attributes:
        files: The checkpoint and its tokenizer, from `read`.
        precision: The pass.
        original: What the checkpoint is a float32 copy of; None where it is no copy.
        traces: The reference's answers by token ids and ``max_tokens``.
        noises: What each load measured, with the keys of the prompts by their ids there.
        phases: Of the loads that made them.
        pure: See `Recorded.pure`.
    """

    files: tuple[checkpoints.Checkpoint, Any]
    precision: Precision = "native"
    original: checkpoints.Checkpoint | None = None
    traces: dict[TraceKey, Trace] = field(default_factory=dict)
    noises: list[tuple[Noise, dict[str, TraceKey]]] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    pure: int = 0


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
    memo = Memo(files=read(source, settings))
    return record_one(questions, settings, memo, wanted=wanted, observer=observer)


def record_one(
    questions: Sequence[Question] | None,
    settings: Settings,
    memo: Memo,
    *,
    wanted: Callable[[str], bool] = lambda _: True,
    observer: Observer | None = None,
) -> Recorded:
    """Do as `record` does for a checkpoint that has been read.

    Args and errors are those of `record`; the memo holds the files.
    """
    want = Want(questions=questions, max_tokens=settings.max_tokens, wanted=wanted)
    (found,) = record_each([want], settings, memo, observer=observer)
    if isinstance(found, PromptError):
        raise found
    return found


def record_each(
    wants: Sequence[Want],
    settings: Settings,
    memo: Memo,
    *,
    observer: Observer | None = None,
) -> tuple[Recorded | PromptError, ...]:
    """Decode several sets of prompts in one load of the reference, and free it.

    Args:
        wants: The sets. `Settings.max_tokens` is not looked at: each set has its own.
        settings: What the run depends on.
        memo: With its files. What it holds is not decoded again, and nothing is loaded
            where it holds everything.
        observer: Watches.

    Returns:
        One a set; the error where this model cannot take a prompt of that set.

    Raises:
        Exception: All others of `record`.
    """
    found, tokenizer = memo.files
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
        one = decode(
            found,
            memo.original or found,
            missing,
            settings,
            memo.phases,
            observer or Observer(),
        )
        memo.traces.update(one.traces)
        memo.noises.append((one.noise, {str(n): key for n, key in enumerate(missing)}))
        memo.pure = one.pure
    return tuple(
        prompts if isinstance(prompts, PromptError) else _answers(want, prompts, memo, gate)
        for want, prompts in zip(wants, sets, strict=True)
    )


def _answers(
    want: Want, prompts: tuple[Prompt, ...], memo: Memo, gate: memory.Gate
) -> Recorded:
    """Pick out of a memo what belongs to one set."""
    found, tokenizer = memo.files
    kept = {
        prompt.id: replace(memo.traces[prompt.tokens, want.max_tokens], prompt_id=prompt.id)
        for prompt in prompts
        if want.wanted(prompt.id)
    }
    turns = {prompt.messages for prompt in prompts if prompt.messages is not None}
    return Recorded(
        model=found.model,
        prompts=prompts,
        traces=kept,
        noise=_noise(memo, prompts, want.max_tokens),
        precision=memo.precision,
        cast=memo.original is not None,
        encoded={each: _default_ids(each, tokenizer) for each in turns},
        pure=memo.pure,
        text_of=lambda token: str(tokenizer.decode([token])),
        phases=tuple(memo.phases),
        gate=gate.terms,
    )


def _noise(memo: Memo, prompts: Sequence[Prompt], max_tokens: int) -> Noise:
    """Put together what all loads measured, under the ids that the prompts have here.

    What was measured on other prompts still says how far this model's logits move.
    """
    ids = {(prompt.tokens, max_tokens): prompt.id for prompt in prompts}
    arms: list[Arm] = []
    probes: list[Probe] = []
    for noise, keys in memo.noises:
        arms += [replace(arm, prompt_id=ids.get(keys[arm.prompt_id], "")) for arm in noise.arms]
        for probe in noise.probes:
            name = ids.get(keys[probe.prompt_id])
            probes += [replace(probe, prompt_id=name)] if name else []
    if not memo.noises:  # nothing was wanted, so nothing will be held against it
        return Noise(dtype="float32", exact=False)
    first = memo.noises[0][0]
    return replace(
        first,
        arms=tuple(arms),
        probes=tuple(probes),
        unrest=tuple(
            (name, steps)
            for noise, keys in memo.noises
            for number, steps in noise.unrest
            if (name := ids.get(keys[number]))
        ),
        steps=sum(noise.steps for noise, _ in memo.noises),
        repeated=sum(noise.repeated for noise, _ in memo.noises),
        repeats=all(noise.repeats for noise, _ in memo.noises),
    )


def _default_ids(turns: Turns, tokenizer: Any) -> tuple[int, ...] | PromptError:
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        return default_ids(messages, tokenizer)
    except PromptError as error:
        return error


def read(source: str, settings: Settings) -> tuple[checkpoints.Checkpoint, Any]:
    """Read a checkpoint without its weights, and its tokenizer.

    Raises:
        ModelError: It is broken.
        ModelUnavailable: A hub model that is neither cached nor within reach.
    """
    if "float32" in settings.policy.precision:
        precision.turn_tf32_off()  # before anything is computed: MLX reads it once
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
