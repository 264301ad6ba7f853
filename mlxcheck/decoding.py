"""One load of the reference: every prompt decoded, the noise measured, everything freed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck import memory, noise_cache, precision, purity, reference, release
from mlxcheck.need import MIN_MARGIN, Need
from mlxcheck.phases import Observer, measured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.checkpoint import Checkpoint
    from mlxcheck.noise import Noise
    from mlxcheck.records import Phase, Prompt, Trace
    from mlxcheck.settings import Settings

__all__ = ["Decoded", "TraceKey", "decode"]

TraceKey = tuple[tuple[int, ...], int]
"""What a reference trace of one model depends on: the prompt's ids and ``max_tokens``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What one load brought.

    Attributes:
        traces: The answers.
        noise: Its prompts are called by their numbers, from ``"0"``, in the order of the
            answers.
        pure: How many functions of mlx and mlx-lm were proved to be those of their files.
    """

    traces: Mapping[TraceKey, Trace]
    noise: Noise
    pure: int


def decode(  # noqa: PLR0913, PLR0917 - one load, and all that it depends on
    found: Checkpoint,
    original: Checkpoint,
    prompts: Mapping[TraceKey, Prompt],
    settings: Settings,
    phases: list[Phase],
    observer: Observer,
) -> Decoded:
    """Load, decode, measure the noise, free.

    Args:
        found: What to load.
        original: The checkpoint that this is a float32 copy of, or itself.
        prompts: At least one.
        settings: What the run depends on.
        phases: Gets what was measured on the way.
        observer: Watches.

    Raises:
        ReferenceTampered: mlx-lm has been patched in this process.
        ReferenceBroken: The reference's logits are not finite.
        MemoryNotReleased: The reference did not go away.
    """
    baseline = release.take_baseline()
    with measured("load", phases, observer, 1):
        loaded = reference.Reference(found, prefill_chunk=settings.policy.prefill_chunk)
        observer.advance()
    traces: dict[TraceKey, Trace] = {}
    try:
        pure = purity.prove_pure().functions
        imported = len(sys.modules)
        with measured("reference", phases, observer, len(prompts)):
            for key, prompt in prompts.items():
                traces[key] = loaded.decode(prompt, max_tokens=key[1])
                observer.advance()
        seconds = phases[-1].seconds
        with measured("noise", phases, None, 0):
            noise = _measure(loaded, original, _pairs(prompts, traces), seconds, settings)
        if len(sys.modules) != imported:
            purity.prove_pure()  # again: what decoding imported was not there to be proved
    except BaseException:
        loaded.release()  # a traceback that lives on must not hold the weights
        raise
    with measured("release", phases, None, 0):
        ref = loaded.release()
        release.prove_released(baseline, what="the reference model", ref=ref)
    restless = dict(noise.unrest)
    told = {
        key: _with_unrest(traces[key], restless.get(str(number), ()))
        for number, key in enumerate(prompts)
    }
    return Decoded(traces=told, noise=noise, pure=pure)


def _with_unrest(trace: Trace, steps: Sequence[float]) -> Trace:
    scores = (
        replace(each, unrest=unrest) for each, unrest in zip(trace.scores, steps, strict=True)
    )
    return replace(trace, scores=tuple(scores)) if steps else trace


def _pairs(
    prompts: Mapping[TraceKey, Prompt], traces: Mapping[TraceKey, Trace]
) -> list[tuple[Prompt, Trace]]:
    """Call the prompts by their numbers: two sets of a load may use one name for two."""
    return [
        (replace(prompt, id=str(number)), replace(traces[key], prompt_id=str(number)))
        for number, (key, prompt) in enumerate(prompts.items())
    ]


def _measure(
    loaded: reference.Reference,
    original: Checkpoint,
    pairs: Sequence[tuple[Prompt, Trace]],
    seconds: float,
    settings: Settings,
) -> Noise:
    """Measure, or take what the same measurement gave before; the repeat is always made."""
    exact = loaded.dtype == "float32" and precision.tf32_is_off()
    if settings.policy.mode == "strict":
        return loaded.noise(pairs, seconds=seconds, exact=exact, arms=False)
    where = noise_cache.folder(os.environ)
    cast = loaded.dtype != "float32" and _has_room(original)
    facts = {
        "device": reference.device(),
        "dtype": loaded.dtype,
        "exact": exact,
        "cast": cast,
        "chunk": settings.policy.prefill_chunk,
        "path": "copy" if loaded.path != original.model.path else "original",
    }
    name = noise_cache.key(original, pairs, facts) if where is not None else ""
    kept = noise_cache.load(where, name)
    if kept is None:
        routed = any("expert" in name for name in original.config)
        noise = loaded.noise(pairs, seconds=seconds, exact=exact, cast=cast, routed=routed)
        noise_cache.save(where, name, noise)
        return noise
    fresh = loaded.noise(pairs, seconds=seconds, exact=exact, arms=False)
    return replace(kept, repeated=fresh.repeated, repeats=fresh.repeats)


def _has_room(found: Checkpoint) -> bool:
    """Tell whether the loaded model can be cast to float32 where it stands."""
    more = precision.cast_bytes(found) - found.weight_bytes
    need = Need(weights=more, kv_cache=None, activations=None, margin=MIN_MARGIN)
    return memory.gate(need, memory.probe()).open
