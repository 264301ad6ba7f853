"""Memory, after the reference: prove that a released model is gone, or say what holds it.

The peak of a run is one copy of the weights, so the candidate is opened only after the
reference is dead and MLX's active and cached memory are back where they were. Dropped
weights stay in MLX's pool until it is cleared: active memory alone proves nothing.
"""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from mlxcheck.errors import MemoryNotReleased
from mlxcheck.holders import holders
from mlxcheck.memory import human

if TYPE_CHECKING:
    import mlx.core as mx

__all__ = ["Baseline", "prove_released", "take_baseline"]

TOLERANCE = 64 * 1024
"""Bytes over the baseline that count as nothing.

The first decode leaves scalars behind (the random key, constants of compiled functions):
16 bytes measured on the CPU build. On Metal each may take a page of 16 KiB, hence four.
"""

WAITS = (0.0, 0.0, 0.05, 0.5)
"""Seconds to wait before each look. The second look catches what a finaliser freed in the
first; the later ones a GPU that is still finishing its last command buffer."""

LISTED = 3
"""Arrays that a message describes, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What MLX held before a load.

    Attributes:
        active: Active memory, bytes.
        cached: Memory in MLX's pool, bytes.
        arrays: A weak reference to each array that was alive, so that it is not blamed
            later; an ``id`` would not do, since the next array may get it.
    """

    active: int
    cached: int
    arrays: tuple[weakref.ref[mx.array], ...] = field(default=(), repr=False)


def take_baseline() -> Baseline:
    """Measure what MLX holds before a load, garbage and pool cleared first."""
    _settle(0.0)
    active, cached = _measure()
    arrays = tuple(weakref.ref(array) for array in _live_arrays())
    return Baseline(active=active, cached=cached, arrays=arrays)


def prove_released(
    baseline: Baseline,
    *,
    what: str,
    ref: weakref.ref[object],
    tolerance: int = TOLERANCE,
) -> None:
    """Prove that a model is gone: the object is dead and its memory is back.

    Args:
        baseline: From `take_baseline`, before the load.
        what: What was released, as the message names it: ``the reference model qwen3``.
        ref: A weak reference to the model.
        tolerance: Bytes over the baseline that count as nothing.

    Raises:
        MemoryNotReleased: If the model is alive, or active or cached memory is more than
            *tolerance* over the baseline. The text names what holds it.
    """
    for wait in WAITS:
        _settle(wait)
        active, cached = _measure()
        over = max(active - baseline.active, cached - baseline.cached)
        if ref() is None and over <= tolerance:
            return
    # No local of this frame may hold the model: the traceback would keep it alive.
    raise MemoryNotReleased(_explain(baseline, what, ref))


def _settle(wait: float) -> None:
    """Free what can be freed: finished work, garbage, MLX's pool."""
    import mlx.core as mx

    if wait:
        time.sleep(wait)
    mx.synchronize()
    gc.collect()
    mx.clear_cache()


def _measure() -> tuple[int, int]:
    """Read MLX's active and cached memory, in bytes."""
    import mlx.core as mx

    return int(mx.get_active_memory()), int(mx.get_cache_memory())


def _live_arrays() -> list[mx.array]:
    """List every MLX array that the garbage collector knows; they are all tracked."""
    import mlx.core as mx

    kind = mx.array
    return [found for found in gc.get_objects() if type(found) is kind]


def _random_state() -> list[object]:
    """List the arrays that hold the state of mlx's random numbers."""
    import mlx.core as mx

    return list(cast("list[object]", mx.random.state))


def _explain(baseline: Baseline, what: str, ref: weakref.ref[object]) -> str:
    """Write the paragraph: what is left, and what holds it."""
    active, cached = _measure()
    numbers = (
        f"MLX holds {human(active)} active and {human(cached)} cached, against "
        f"{human(baseline.active)} and {human(baseline.cached)} before the load"
    )
    model = ref()
    if model is not None:
        cause = f"{what} is still alive after its release, held by {_join(holders(model))}"
    else:
        cause = f"{what} is gone, but not its memory: {_blame(baseline, active)}"
    return (
        f"{cause}. {numbers}. A run has room for one copy of the weights at a time, so it "
        "stops here; drop that reference (or the patch that keeps it) and run again."
    )


def _blame(baseline: Baseline, active: int) -> str:
    """Say which arrays hold memory that no live model explains."""
    # Neither an array from before the load nor the random key is part of the model.
    known = {id(ref()) for ref in baseline.arrays} | set(map(id, _random_state()))
    arrays = [array for array in _live_arrays() if id(array) not in known]
    arrays.sort(key=lambda array: array.nbytes, reverse=True)
    told = sum(array.nbytes for array in arrays)
    parts = [f"{len(arrays)} arrays made since the baseline are alive ({human(told)})"]
    for index in range(min(LISTED, len(arrays))):
        array = arrays[index]
        shape = tuple(array.shape)
        dtype = str(array.dtype).removeprefix("mlx.core.")
        held = _join(holders(array, ignore=(arrays,)))
        parts.append(f"{dtype} {shape} of {human(array.nbytes)} is held by {held}")
    if told < active - baseline.active:
        parts.append(
            "the rest is in no array that Python sees: an array that was never evaluated "
            "keeps its inputs, and a compiled function its constants"
        )
    return "; ".join(parts)


def _join(chains: list[str]) -> str:
    """Put holders into one phrase."""
    if not chains:
        return "nothing that Python can see (an extension, or native code that is running)"
    return ", and by ".join(chains)
