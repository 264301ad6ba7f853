"""The numbers that one emission shows, read at once: the engine may use its array again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxcheck.noise import FLOOR_ULPS, ulp

__all__ = ["Shown", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What came with one token.

    Attributes:
        logits: What the emission has there, in short; empty where it has none.
        values: The logits as float32 of shape ``[vocabulary]``; None where they are no array.
        shape: Theirs, as they came.
        dtype: Theirs, as they came.
        finite: None of them is NaN or infinite.
        logprobs: What the emission has there.
    """

    logits: str = ""
    values: Any = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    finite: bool = False
    logprobs: object = None

    @property
    def top(self) -> int:
        """The id of the largest logit."""
        return int(self.values.argmax().item())

    @property
    def normaliser(self) -> float:
        """The log-sum-exp of the logits."""
        import mlx.core as mx

        value: Any = mx.logsumexp(self.values).item()
        return float(value)

    def at(self, token: int) -> float:
        """Return the logit of a token."""
        return float(self.values[token].item())

    def rounding(self, size: float) -> float:
        """Return how far a number of this size may be off by rounding in the logits' dtype.

        So many units in the last place as `mlxcheck.noise.FLOOR_ULPS` says; numpy's float64
        is held to what float32 may do.
        """
        known = self.dtype if self.dtype in FLOOR_ULPS else "float32"
        return FLOOR_ULPS[known] * ulp(known, size if math.isfinite(size) else 1.0)


def read(emission: object) -> Shown:
    """Read what an emission shows; whether it is right is a later question."""
    told = getattr(emission, "logprobs", None)
    logprobs = dict(told) if isinstance(told, Mapping) else told
    logits = getattr(emission, "logits", None)
    if logits is None:
        return Shown(logprobs=logprobs)
    import mlx.core as mx

    try:
        row = logits if isinstance(logits, mx.array) else mx.array(logits)
    except (TypeError, ValueError, RuntimeError):
        return Shown(logits=f"{logits!r:.60} ({type(logits).__name__})", logprobs=logprobs)
    name = str(row.dtype).rpartition(".")[2]
    shape = tuple(int(side) for side in row.shape)
    values = row.reshape(-1).astype(mx.float32)
    mx.eval(values)
    return Shown(
        logits=f"{name} of shape {list(shape)}",
        values=values,
        shape=shape,
        dtype=name,
        finite=bool(mx.isfinite(values).all().item()),
        logprobs=logprobs,
    )
