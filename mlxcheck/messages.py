"""The one place that makes the text of a comparison. It decides nothing."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck.noise import BAND_FACTOR, DRIFT_FACTOR, FLOOR_ULPS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcheck.noise import Noise
    from mlxcheck.records import Case, Comparison, Precision, Scores, Trace

__all__ = [
    "Place",
    "counted",
    "difference",
    "drift",
    "failure",
    "inconclusive",
    "numbers",
    "tie",
    "unweighable",
]

_SHOWN_NEIGHBOURS = 6
_DETAIL_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a comparison stands: everything its message needs beside the two traces.

    Attributes:
        check: The question's name.
        case: What was submitted together.
        row: Which row of the case is meant.
        reference: Name and version of the reference engine.
        candidate: Name of the candidate.
        again: The command that repeats exactly this case.
        text_of: The text of a token id.
        noise: What rounding does to this model, as measured; None where nothing is to be
            excused by it.
        precision: The pass.
        text_alone: The candidate shows text; its tokens were read from that.
    """

    check: str
    case: Case
    row: int
    reference: str
    candidate: str
    again: str
    text_of: Callable[[int], str]
    noise: Noise | None = None
    precision: Precision = "native"
    text_alone: bool = False

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The prompt ids of the other rows."""
        return tuple(p.id for n, p in enumerate(self.case.prompts) if n != self.row)


def counted(number: int, noun: str) -> str:
    """Return ``1 step`` or ``2,310 steps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def difference(place: Place, found: Comparison, what: str, expected: Trace) -> str:
    """Explain a WRONG comparison, top to bottom as a stranger reads it.

    Args:
        place: Where it was found.
        found: The comparison, without its message.
        what: The headline, after prompt and check.
        expected: The reference's trace.
    """
    step = found.step or 0
    head = f"{found.prompt_id}, check {place.check}: {what}"
    lines = [head]
    lines += _sides(place, found)
    if step < len(expected.scores):
        lines.append(f"  {_margin(found, expected.scores[step])}")
        lines += _no_rounding(place, found, expected.scores[step])
        lines += _best(place, found)
    lines.append(f"  {_company(place)}")
    lines.append(f"  {_agreed(found)}")
    lines.append(f"  again: {place.again}")
    return "\n".join(lines)


def tie(place: Place, found: Comparison, ties: Sequence[int], total: int) -> str:
    """Explain a TIE: why rounding is enough to make it.

    Args:
        place: Where it was found.
        found: The comparison, without its message; `Comparison.step` is the first tie.
        ties: All steps that are ties.
        total: Steps of the reference's answer.
    """
    step = found.step or 0
    head = f"{found.prompt_id}, check {place.check}: a tie at step {step} of {total}"
    if len(ties) > 1:
        head += f", and {counted(len(ties) - 1, 'tie')} after it"
    lines = [head, *_sides(place, found)]
    lines.append(
        f"  the reference puts the candidate's token {found.regret or 0:.4g} nat below its own"
        f"{_units(place, found)}: within the band of {found.noise or 0:.4g} nat"
    )
    lines += [f"  {_own_margin(found.margin)}", f"  {_band(place, found)}"]
    lines += [*_best(place, found), f"  {_company(place)}"]
    compared = f"{counted(found.steps + 1, 'step')} compared"
    if found.skipped:
        compared += (
            f"; past the tie of step {ties[-1]} it was not put back on the reference's tokens, "
            f"so that {counted(found.skipped, 'step')} could not be"
        )
    elif ties[0] < total - 1:
        compared = f"after each tie it was put back on the reference's tokens: {compared}"
    lines.append(f"  {compared}")
    return "\n".join([*lines, f"  again: {place.again}"])


def drift(place: Place, found: Comparison, largest: float, limit: float, units: float) -> str:
    """Explain a DRIFT: the numbers are off by more than rounding does.

    Args:
        place: Where it was found.
        found: The comparison, without its message.
        largest: What was found there, in nats.
        limit: What rounding may do there, in nats.
        units: What was found, in units in the last place of the logits.
    """
    what = f"the log-probabilities of step {found.step} are off by more than rounding"
    told = replace(found, ulps=units)
    lines = [f"{found.prompt_id}, check {place.check}: {what}", *_sides(place, found)]
    lines.append(
        f"  that is {largest:.4g} nat{_units(place, told)} where at most {limit:.4g} nat are "
        f"rounding's: {largest / limit:,.3g} times as much"
    )
    lines.append(f"  {_own_margin(found.margin)}")
    lines += [f"  {_drift_band(place, limit)}", *_best(place, found), f"  {_company(place)}"]
    return "\n".join([*lines, f"  again: {place.again}"])


def numbers(place: Place, found: Comparison, what: str) -> str:
    """Explain a DRIFT that has nothing to do with the reference's numbers."""
    lines = [f"{found.prompt_id}, check {place.check}: {what}", *_sides(place, found)]
    return "\n".join([*lines, f"  {_company(place)}", f"  again: {place.again}"])


def unweighable(step: int, kept: int) -> str:
    """Say why a differing token cannot be held against the band."""
    return (
        f"at step {step} it says a token that is not among the reference's top {kept}, and "
        "these lie so close together that rounding could have chosen it. Tokens alone cannot "
        "tell here: use the float32 pass, or a trained model"
    )


def failure(place: Place, found: Comparison, actual: Trace) -> str:
    """Explain an ERROR: what the engine did instead of answering."""
    fault = actual.fault
    summary = fault.summary if fault else "it said nothing"
    lines = [
        f"{found.prompt_id}, check {place.check}: no answer from {place.candidate}: {summary}",
        f"  {_company(place)}",
        f"  it gave {counted(len(actual.tokens), 'token')} before that; {_agreed(found)}",
        f"  again: {place.again}",
    ]
    if fault and fault.detail:
        kept = fault.detail.rstrip().splitlines()
        cut = kept[-_DETAIL_LINES:]
        if len(cut) < len(kept):
            cut.insert(0, f"... {counted(len(kept) - len(cut), 'line')} before")
        lines.append(textwrap.indent("\n".join(cut), "    "))
    return "\n".join(lines)


def inconclusive(place: Place, found: Comparison, why: str) -> str:
    """Explain why there is no verdict."""
    return "\n".join(
        [
            f"{found.prompt_id}, check {place.check}: no verdict: {why}",
            f"  {_company(place)}",
            f"  again: {place.again}",
        ]
    )


def _sides(place: Place, found: Comparison) -> list[str]:
    left = _token(found.expected, place, ended="the answer had ended")
    right = _token(found.actual, place, ended="the answer had ended")
    wide = max(len(left), len(right))
    lines = [
        f"  expected {left:<{wide}}   reference  {place.reference}",
        f"  actual   {right:<{wide}}   candidate  {place.candidate}",
    ]
    if place.text_alone:
        lines.append("  the candidate shows text alone: its tokens are read from that")
    return lines


def _units(place: Place, found: Comparison) -> str:
    if found.ulps is None or place.noise is None:
        return ""
    return f" ({found.ulps:.3g} units in the last place of {place.noise.dtype} there)"


def _band(place: Place, found: Comparison) -> str:
    """Say where the band of a token comes from."""
    most = place.noise.largest if place.noise else 0.0
    factor = BAND_FACTOR * (place.noise.growth if place.noise else 1.0)
    return _source(place, found.noise or 0.0, factor, most, 1.0)


def _drift_band(place: Place, limit: float) -> str:
    """Say where the band of all log-probabilities of a step comes from."""
    most = place.noise.widest if place.noise else 0.0
    factor = DRIFT_FACTOR * (place.noise.growth if place.noise else 1.0)
    return _source(place, limit, factor, most, DRIFT_FACTOR)


def _source(place: Place, band: float, factor: float, most: float, floors: float) -> str:
    noise = place.noise
    if noise is None:
        return "strict mode: no difference is excused"
    arms = ", ".join(dict.fromkeys(arm.arm for arm in noise.arms))
    steps = sum(len(arm.errors) for arm in noise.arms)
    source = (
        f"{floors * FLOOR_ULPS[noise.dtype]:g} units in the last place of {noise.dtype}, since "
        f"that moved nothing by more than {most:.3g} nat"
        if band > factor * most * (1 + 1e-9)
        else f"{factor:.3g} times the largest change that made, {most:.4g} nat"
    )
    return (
        f"the band: the reference scored {counted(steps, 'step')} again in other shapes "
        f"({arms}); {source}"
    )


def _no_rounding(place: Place, found: Comparison, scores: Scores) -> list[str]:
    """Say why a difference cannot be rounding's."""
    noise = place.noise
    if noise is None or found.noise is None or found.actual is None:
        return []
    least = found.regret
    if least is None:
        least = scores.logprobs[0] - scores.logprobs[-1]
    if least <= found.noise:
        return [f"  by the candidate's own numbers it is no tie{_units(place, found)}"]
    times = least / found.noise
    units = _units(place, found)
    return [
        f"  no rounding: {times:,.3g} times the band of {found.noise:.4g} nat{units}",
        f"  {_band(place, found)}",
    ]


def _best(place: Place, found: Comparison) -> list[str]:
    """Both engines' best tokens, where they are known."""
    named = (("reference", found.top_expected), ("candidate", found.top_actual))
    return [
        f"  best of the {who}: "
        + ", ".join(f"{place.text_of(token)!r} {logprob:.3f}" for token, logprob in best)
        for who, best in named
        if best
    ]


def _token(token: int | None, place: Place, *, ended: str) -> str:
    if token is None:
        return f"{'-':>7} ({ended})"
    return f"{token:>7} {place.text_of(token)!r}"


def _own_margin(margin: float | None) -> str:
    return f"the reference's own margin there is {margin or 0:.4g} nat (top 1 minus top 2)"


def _margin(found: Comparison, scores: Scores) -> str:
    own = _own_margin(scores.margin)
    if found.actual is None:
        return own
    if found.regret is None:
        return f"{own}; the candidate's token is not among its top {len(scores.ids)}"
    rank = scores.ids.index(found.actual) + 1
    return f"{own}; the candidate's token is its number {rank}, {found.regret:.4g} nat below"


def _company(place: Place) -> str:
    case = place.case
    if case.alone:
        return "alone: a single request"
    rows = len(case.prompts)
    if rows == 1:
        return "batch of 1, row 0: the batch path without neighbours"
    names = list(place.neighbours)
    shown = _shorten(names)
    return f"batch of {rows}, row {place.row}; neighbours: {shown}"


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NEIGHBOURS])
    rest = len(names) - _SHOWN_NEIGHBOURS
    return shown if rest <= 0 else f"{shown} and {rest} more"


def _agreed(found: Comparison) -> str:
    if found.errors:  # every step stands in the reference's context, whatever came before
        return f"{counted(found.steps, 'other step')} compared in the reference's own context"
    agreed = "no step agrees"
    if found.steps == 1:
        agreed = "step 0 agrees"
    elif found.steps:
        agreed = f"steps 0-{found.steps - 1} agree"
    if not found.skipped:
        return agreed
    first = found.steps + (1 if found.step is not None else 0)
    last = first + found.skipped - 1
    which = f"step {first} was" if found.skipped == 1 else f"steps {first}-{last} were"
    return f"{agreed}; {which} not compared, since what came before them differs"
