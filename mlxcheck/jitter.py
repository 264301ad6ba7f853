"""Finds the steps at which a router of a mixture of experts stands at a tie.

There the least rounding sends a token to other experts, also in float32, and moves a whole row
by tenths of a nat: about once in a thousand steps of a model with a dozen layers. No arm need
happen to turn the same router as an honest engine does, so each answer is scored a few times
with the model's norms jittered by a few units in the last place, and what that moves is known.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TIMES", "jittered"]

TIMES = 4
"""Jitters of an answer: a router at a tie is turned by every second of them."""

_UNITS = 8
"""Units in the last place that norms are jittered by: a few times what honest shapes do."""


@contextmanager
def jittered(model: Any, seed: int) -> Iterator[bool]:
    """Multiply every norm's weight by ``1 + u`` with *u* small and random, for a block.

    Args:
        model: As mlx-lm loads it.
        seed: Of the jitter.

    Yields:
        Whether there was a norm to jitter.
    """
    import mlx.core as mx
    from mlx import nn

    norms = [
        module
        for _, module in model.named_modules()
        if isinstance(module, nn.RMSNorm | nn.LayerNorm) and "weight" in module
    ]
    kept = [module.weight for module in norms]
    most = _UNITS * 2.0**-23  # of float32, where the unit in the last place of 1 is 2**-23
    key = mx.random.key(seed)
    try:
        for module, weight in zip(norms, kept, strict=True):
            key, own = mx.random.split(key)
            moved = mx.random.uniform(-most, most, weight.shape, key=own)
            module.weight = weight * (1 + moved.astype(weight.dtype))
        yield bool(norms)
    finally:
        for module, weight in zip(norms, kept, strict=True):
            module.weight = weight
