"""How far rounding alone moves a model's log-probabilities: records, bands, differences.

The noise is measured on the reference (`mlxcheck.arms`), never from candidate minus
reference: a fault would widen its own tolerance. Quantiles and the maximum are taken, not a
deviation from the median: in a 16-bit dtype most swings are exactly 0 and the rest are whole
units in the last place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.records import Scores

__all__ = ["Arm", "Difference", "Noise", "Probe", "difference", "from_plain", "ulp"]

BAND_FACTOR = 1.5
"""Band over the arms' largest pair swing. The largest honest regret that was measured is 1.0
times the largest swing, over 1,152 positions; half as much again covers more positions."""

DRIFT_FACTOR = 2.0
"""The same for the whole of a step's log-probabilities, over the arms' largest span. Of one
honest engine and the arms, which score a part of the prompts only, either may hold the largest
of all; routing flips make these tails heavy."""

IN_FLOAT32 = "in float32"
"""The arm of a 16-bit model that is cast: how far its rounding is from no rounding."""

MOST_GROWTH = 1.5
"""The most that a band is widened by where the arms scored a part of the steps. The largest
of k times as many is taken for the fourth root of k times as large: the tail index of 4 is not
that of rounding, which is lighter, but of routers that flip and move a whole row by nats."""

RIVALS = 8
"""Tokens that are rivals for a step: a pair swing is between the best and one of these."""

FLOOR_ULPS = {"float32": 64, "bfloat16": 2, "float16": 2}
"""The least band, in units in the last place of the logits. 2 in the 16-bit dtypes: two
logits, each rounded by half a unit in each of two engines. In float32 rounding piles up over
the layers before the last one shows it; 64 units of 16-nat logits are 0.0001 nat, a thousandth
of what a small fault does."""

ERROR_ULPS = {"float32": 4.0, "bfloat16": 0.1, "float16": 0.1}
"""The least error that a ratio is taken of, in the same units."""

SILENT_ULPS = {"float32": 4.0, "bfloat16": 1.0, "float16": 1.0}
"""The same where the arms agree bit for bit, as on the CPU build, and nothing can be a
multiple of nothing: an honest sum in another order moves 16-bit logits by a third of a unit,
where these arms moved nothing."""

_MANTISSA = {"float32": 23, "bfloat16": 7, "float16": 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One prompt scored again in one benign way: step by step against the reference's decode.

    Attributes:
        arm: The way: ``"one shot"``, ``"2 chunks"``, ``"3 chunks"``, ``"2 equal rows"``, and
            `IN_FLOAT32`, whose numbers are those of two engines that round apart.
        prompt_id: The prompt.
        errors: Per step, the RMS difference over the reference's top 64 log-probabilities,
            centred, in nats.
        divergences: Per step, the divergence over the same, in nats.
        swings: Per step, the largest change between the best token and another of the top
            8 (`RIVALS`), in nats: how far a regret may be moved.
        spans: Per step, the same over all of the top 64; or the change of the best token's
            own log-probability, where that is larger.
        flips: The steps at which the best token is another one.
        whole: All steps of the answer were scored, and not its beginning alone.
    """

    arm: str
    prompt_id: str
    errors: tuple[float, ...]
    divergences: tuple[float, ...]
    swings: tuple[float, ...]
    spans: tuple[float, ...]
    flips: tuple[int, ...]
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One prompt scored with a change planted in the reference: what a fault would do here.

    Attributes:
        what: The change, in words that take a size before them.
        change: Its size, as a fraction.
        prompt_id: The prompt.
        errors: As of `Arm`.
        spans: As of `Arm`.
        clean: Computed in float32: this is the change's doing alone.
    """

    what: str
    change: float
    prompt_id: str
    errors: tuple[float, ...]
    spans: tuple[float, ...]
    clean: bool = True


@dataclass(frozen=True, kw_only=True)  # no slots: what is asked of it at every step is kept
class Noise:
    """What was measured on one model in one precision pass.

    Attributes:
        dtype: Of the raw logits.
        exact: Float32 with TF32 off, where honest engines agree to rounding.
        arms: Every prompt that was scored again, in every way.
        probes: The planted changes.
        repeated: Steps that were decoded twice in the same shape.
        repeats: Whether they came out bit for bit the same.
        steps: Of all answers, of which the arms scored a part.
        unrest: Prompt ids with the `Scores.unrest` of their steps, where it was measured.
    """

    dtype: str
    exact: bool
    arms: tuple[Arm, ...] = ()
    probes: tuple[Probe, ...] = ()
    repeated: int = 0
    repeats: bool = True
    steps: int = 0
    unrest: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @cached_property
    def largest(self) -> float:
        """The largest pair swing of all arms, in nats."""
        return max((swing for arm in self.arms for swing in arm.swings), default=0.0)

    @cached_property
    def telling(self) -> tuple[Arm, ...]:
        """The arms that moved anything: those of a shape that cannot say nothing of rounding.

        On the CPU build every shape gives the same bits.
        """
        moved = {arm.arm for arm in self.arms if any(arm.errors)}
        return tuple(arm for arm in self.arms if arm.arm in moved)

    @cached_property
    def growth(self) -> float:
        """By how much the largest of all steps may be larger than that of those scored."""
        scored = len({(arm.prompt_id, n) for arm in self.arms for n in range(len(arm.errors))})
        share = max(1.0, self.steps / scored) if scored else 1.0
        return min(MOST_GROWTH, math.sqrt(math.sqrt(share)))

    @cached_property
    def widest(self) -> float:
        """The largest span of all arms, in nats."""
        return max((span for arm in self.arms for span in arm.spans), default=0.0)

    def quantiles(self) -> tuple[float, float, float, float]:
        """The median, 90th and 99th percentile and maximum of the pair swings, in nats."""
        swings = sorted(swing for arm in self.arms for swing in arm.swings)
        if not swings:
            return 0.0, 0.0, 0.0, 0.0
        last = len(swings) - 1
        low, high, higher = (swings[math.ceil(part * last)] for part in (0.5, 0.9, 0.99))
        return low, high, higher, swings[-1]

    def floor(self, scores: Scores) -> float:
        """The least band at a step, in nats."""
        return FLOOR_ULPS[self.dtype] * ulp(self.dtype, scores.top_logit)

    def band(self, scores: Scores) -> float:
        """How much lower than the reference's own token another may stand by rounding."""
        usual = max(BAND_FACTOR * self.growth * self.largest, self.floor(scores))
        return max(usual, BAND_FACTOR * scores.unrest)

    def drift_band(self, scores: Scores) -> float:
        """How far the log-probabilities of a row may be off by rounding, in nats."""
        usual = max(self.growth * self.widest, self.floor(scores))
        return DRIFT_FACTOR * max(usual, scores.unrest)

    def error_floor(self, scores: Scores) -> float:
        """The least error that a ratio is taken of, in nats."""
        least = ERROR_ULPS if self.widest else SILENT_ULPS
        return least[self.dtype] * ulp(self.dtype, scores.top_logit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How two engines' scores of one step differ; `Arm` has the words.

    Attributes:
        error: In nats; NaN where they share fewer than two tokens.
        divergence: In nats.
        span: In nats.
    """

    error: float
    divergence: float
    span: float


def from_plain(raw: Mapping[str, Any]) -> Noise:
    """Read a `Noise` that was written as plain JSON.

    Raises:
        KeyError, TypeError: It is something else.
    """
    arms = tuple(Arm(**_tuples(entry)) for entry in raw["arms"])
    probes = tuple(Probe(**_tuples(entry)) for entry in raw["probes"])
    unrest = tuple((name, tuple(steps)) for name, steps in raw["unrest"])
    return Noise(**{**raw, "arms": arms, "probes": probes, "unrest": unrest})


def _tuples(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()
    }


def ulp(dtype: str, magnitude: float) -> float:
    """Return one unit in the last place of a dtype at a magnitude (IEEE 754, bfloat16).

    Args:
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        magnitude: Any number; below 2**-14 it is taken as that.
    """
    _, exponent = math.frexp(max(abs(magnitude), 2.0**-14))
    return math.ldexp(1.0, exponent - 1 - _MANTISSA[dtype])


def difference(expected: Scores, actual: Scores) -> Difference:
    """Compare two engines' scores at a matched context, over the reference's top tokens.

    The error is centred, since a constant added to all logits says nothing. The divergence
    is the sum of ``p * (exp(d) - 1 - d)`` with ``d`` the candidate's log-probability minus
    the reference's: the unbiased estimator of Kullback-Leibler divergence of J. Schulman
    ("Approximating KL divergence", k3), weighted instead of sampled; it is never negative,
    also where both sides show a part of the vocabulary only.
    """
    theirs: Mapping[int, float] = dict(zip(actual.ids, actual.logprobs, strict=True))
    pairs = [
        (ours, theirs[token] - ours)
        for token, ours in zip(expected.ids, expected.logprobs, strict=True)
        if token in theirs and math.isfinite(ours)
    ]
    if len(pairs) < 2:  # noqa: PLR2004 - one difference, centred, is always 0
        return Difference(error=math.nan, divergence=math.nan, span=math.nan)
    offs = [off for _, off in pairs]
    mean = sum(offs) / len(offs)
    error = math.sqrt(sum((off - mean) ** 2 for off in offs) / len(offs))
    divergence = sum(math.exp(ours) * (math.expm1(min(off, 50)) - off) for ours, off in pairs)
    span = max(abs(offs[0]), *(abs(off - offs[0]) for off in offs))
    span = math.inf if any(map(math.isinf, offs)) else span  # from itself it would be NaN
    return Difference(error=error, divergence=divergence, span=span)
