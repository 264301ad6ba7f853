"""Pure judgement of an engine's numbers: its log-probabilities against the reference's.

Real faults exist that never change a token, so the numbers are compared at every step where
both engines stand in the same context.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck import messages
from mlxcheck.compare import at_scores, blank, matched_steps, top, weigh, without_verdict
from mlxcheck.noise import difference, ulp
from mlxcheck.records import Comparison, Scores, Trace, Verdict

if TYPE_CHECKING:
    from mlxcheck.messages import Place
    from mlxcheck.noise import Difference, Noise

__all__ = ["compare_numbers"]

_REPORTED_ULPS = {"float32": 64.0, "bfloat16": 2.0, "float16": 2.0}
"""How far reported log-probabilities may be from the raw logits, in units in the last place.
mlx-lm rounds the log-sum-exp and then the difference, each by half a unit, in the logits'
dtype; in float32 the order in which the sum is made counts for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the steps at matched contexts showed."""

    differences: tuple[Difference, ...]
    flips: tuple[int, ...]
    ties: tuple[int, ...]
    near: int
    wrong: int | None
    unknown: int | None
    drift: int | None


def compare_numbers(place: Place, expected: Trace, actual: Trace) -> Comparison:
    """Compare log-probabilities at every step of a matched context.

    Args:
        place: Where the two were made; without `Place.noise` nothing can be judged.
        expected: The reference's trace, with its scores.
        actual: The candidate's; its scores hold the reference's top tokens at each step,
            as far as it shows them.

    Returns:
        WRONG where a number is not finite, or the token that it would say next is worse
        than the reference's by more than the band; DRIFT where the log-probabilities are
        off by more than the band, or what it reports is not what its logits say; TIE where
        it would say another token within the band; ERROR, INCONCLUSIVE or EXACT.
    """
    noise = place.noise
    if actual.fault is not None and not actual.fault.asked:
        return without_verdict(place, actual.fault.summary)
    if actual.fault is not None:
        found = replace(blank(place), verdict=Verdict.ERROR)
        return replace(found, message=messages.failure(place, found, actual))
    if noise is None:
        return without_verdict(
            place, "no noise was measured that numbers could be held against"
        )
    steps = min(matched_steps(noise, expected, actual), len(actual.scores))
    if not steps:
        return without_verdict(place, "it showed no log-probabilities")
    seen = _look(noise, expected, actual, steps)
    found = _filled(place, seen, steps, len(expected.tokens))
    judges = (_not_finite, _wrong, _drift, _misreported, _incomparable, _unknown, _tied)
    for judge in judges:
        judged = judge(place, found, seen, expected, actual)
        if judged is not None:
            return judged
    return replace(found, regret=0.0)


def _look(noise: Noise, expected: Trace, actual: Trace, steps: int) -> _Seen:
    """Walk over the steps once; only finite ones are weighed."""
    differences: list[Difference] = []
    flips: list[int] = []
    weighed: dict[str, list[int]] = {"tie": [], "beyond": [], "unknown": []}
    drift: int | None = None
    near = 0
    for step in range(steps):
        ours, theirs = expected.scores[step], actual.scores[step]
        off = difference(ours, theirs)
        differences.append(off)
        near += ours.margin <= noise.band(ours)
        if theirs.finite and theirs.ids[0] != ours.ids[0]:
            flips.append(step)
            weighed[weigh(noise, ours, theirs.ids[0], ours.ids[0])].append(step)
        if drift is None and off.span > noise.drift_band(ours):
            drift = step
    return _Seen(
        differences=tuple(differences),
        flips=tuple(flips),
        ties=tuple(weighed["tie"]),
        near=near,
        wrong=weighed["beyond"][0] if weighed["beyond"] else None,
        unknown=weighed["unknown"][0] if weighed["unknown"] else None,
        drift=drift,
    )


def _filled(place: Place, seen: _Seen, steps: int, total: int) -> Comparison:
    return replace(
        blank(place),
        steps=steps,
        skipped=total - steps,
        errors=tuple(off.error for off in seen.differences),
        divergences=tuple(off.divergence for off in seen.differences),
        flips=seen.flips,
        ties=len(seen.ties),
        near=seen.near,
    )


def _not_finite(
    place: Place, found: Comparison, seen: _Seen, expected: Trace, actual: Trace
) -> Comparison | None:
    del seen
    for step in range(found.steps):
        if not actual.scores[step].finite:
            found = replace(found, verdict=Verdict.WRONG, step=step, steps=step)
            found = replace(found, expected=expected.scores[step].ids[0], actual=None)
            what = f"the logits of step {step} are not finite (NaN or infinite)"
            return replace(found, message=messages.difference(place, found, what, expected))
    return None


def _wrong(
    place: Place, found: Comparison, seen: _Seen, expected: Trace, actual: Trace
) -> Comparison | None:
    if seen.wrong is None:
        return None
    found = _at(place, found, seen.wrong, expected, actual)
    found = replace(found, verdict=Verdict.WRONG)
    what = (
        f"at step {seen.wrong}, with the reference's own tokens before it, its best token is "
        "another one"
    )
    return replace(found, message=messages.difference(place, found, what, expected))


def _drift(
    place: Place, found: Comparison, seen: _Seen, expected: Trace, actual: Trace
) -> Comparison | None:
    noise = place.noise
    if seen.drift is None or noise is None:
        return None
    scores, span = expected.scores[seen.drift], seen.differences[seen.drift].span
    limit, units = noise.drift_band(scores), span / ulp(noise.dtype, scores.top_logit)
    found = _at(place, found, seen.drift, expected, actual)
    found = replace(found, verdict=Verdict.DRIFT)
    return replace(found, message=messages.drift(place, found, span, limit, units))


def _misreported(
    place: Place, found: Comparison, seen: _Seen, expected: Trace, actual: Trace
) -> Comparison | None:
    del seen
    noise = place.noise
    for step, off in enumerate(actual.reported[: found.steps]):
        limit = _REPORTED_ULPS[noise.dtype] if noise else math.inf
        if not off <= limit:
            found = _at(place, found, step, expected, actual)
            found = replace(found, verdict=Verdict.DRIFT)
            what = (
                f"the log-probabilities that it reports at step {step} are {off:.3g} units in "
                f"the last place from its own raw logits ({limit:g} at most are rounding's)"
            )
            return replace(found, message=messages.numbers(place, found, what))
    return None


def _incomparable(
    place: Place, found: Comparison, seen: _Seen, expected: Trace, actual: Trace
) -> Comparison | None:
    """Refuse to call numbers equal of which not one could be held against another."""
    del found, expected, actual
    if not all(math.isnan(off.error) for off in seen.differences):
        return None
    why = (
        "at no step did it show the log-probabilities of two of the reference's top tokens: "
        "there is nothing to compare"
    )
    return without_verdict(place, why)


def _unknown(
    place: Place, found: Comparison, seen: _Seen, expected: Trace, actual: Trace
) -> Comparison | None:
    del actual
    if seen.unknown is None:
        return None
    why = messages.unweighable(seen.unknown, len(expected.scores[seen.unknown].ids))
    found = replace(found, verdict=Verdict.INCONCLUSIVE)
    return replace(found, message=messages.inconclusive(place, found, why))


def _tied(
    place: Place, found: Comparison, seen: _Seen, expected: Trace, actual: Trace
) -> Comparison | None:
    if not seen.ties:
        return None
    worst = max(_regret(expected.scores[step], actual.scores[step]) for step in seen.ties)
    found = _at(place, found, seen.ties[0], expected, actual)
    found = replace(found, verdict=Verdict.TIE, worst_tie=worst)
    text = messages.tie(place, found, seen.ties, len(expected.tokens))
    return replace(found, message=text)


def _at(
    place: Place, found: Comparison, step: int, expected: Trace, actual: Trace
) -> Comparison:
    """Fill in one step, which is counted apart from the others."""
    ours, theirs = expected.scores[step], actual.scores[step]
    found = replace(
        found,
        step=step,
        steps=found.steps - 1,
        expected=ours.ids[0],
        actual=theirs.ids[0],
        top_actual=top(theirs),
    )
    return at_scores(found, place.noise, ours, ours.ids[0], theirs.ids[0])


def _regret(ours: Scores, theirs: Scores) -> float:
    other = ours.logprob(theirs.ids[0])
    return 0.0 if other is None else ours.logprobs[0] - other
