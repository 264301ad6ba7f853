"""What a pass really did: by the engine's own account, and by the dtype that it computed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.passes import Control

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlxcheck.recording import Recorded
    from mlxcheck.session import Answers

__all__ = ["caveat", "engagement"]


def engagement(answers: Iterable[Answers]) -> Control:
    """Say what the engine reports to have done; checks hold it against what was asked."""
    answers = tuple(answers)
    widths = [each.width for each in answers if each.width is not None]
    chunks = [each.chunks for each in answers if each.chunks is not None]
    cached = [each.cached for each in answers if each.cached is not None]
    traces = [trace for each in answers for trace in each.traces]
    read = sum(trace.text is not None for trace in traces)
    text: tuple[str, ...] = (
        f"widest decode step {max(widths)} rows" if widths else "no width is reported",
        f"{sum(chunks):,} prefill calls" if chunks else "no prefill call is reported",
        f"{sum(cached):,} cached tokens" if cached else "no cached token is reported",
    )
    if read:
        text += (f"text alone is shown: {read:,} of {len(traces):,} answers were read from it",)
    return Control(name="engagement", passed=True, text=", ".join(text))


def caveat(recorded: Recorded) -> str:
    """Say where a float32 pass is not the microscope that it should be."""
    if recorded.precision == "float32" and recorded.noise.dtype != "float32":
        return f"this model computes in {recorded.noise.dtype}, whatever its weights are"
    if recorded.precision == "float32" and not recorded.noise.exact:
        return "TF32 is on: MLX computed before this run; set MLX_ENABLE_TF32=0"
    return ""
