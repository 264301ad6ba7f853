"""One precision pass summed up: controls, noise, tests, rates, and what it could have seen."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck.compare import compare_tokens
from mlxcheck.drift import compare_numbers
from mlxcheck.messages import Place, counted
from mlxcheck.records import (
    ALL_PROMPTS,
    Case,
    Comparison,
    Precision,
    Prompt,
    Scores,
    Trace,
    Verdict,
)
from mlxcheck.totals import Test, flip_test, limits, number_tests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.noise import Noise, Probe

__all__ = [
    "COUNTED",
    "Control",
    "PassSummary",
    "missed",
    "planted_faults",
    "rates",
    "repeats",
    "total",
]

_NEAR_SHARE = 0.25
"""Share of steps within the band above which tokens alone tell nothing: a trained model is
near a tie at a few steps in a hundred, one of random weights at every second."""

_ITSELF = "reference equals itself"

_EDGES = (0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Something that has to hold for the verdicts to mean anything.

    Attributes:
        name: What.
        passed: Whether it held.
        text: How it was seen.
    """

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSummary:
    """What is known about a pass besides its comparisons.

    Attributes:
        precision: Which.
        ran: Whether it did; `why` says why not.
        why: Empty where it ran as it should.
        dtype: Of the reference's raw logits.
        exact: Float32 with TF32 off.
        noise: What was measured; None in strict mode.
        band: The largest band of any step, in nats.
        smallest_band: The smallest band, in nats, with which no token would have been
            WRONG; 0 where none differs, None where no band is wide enough.
        raw_rate: Compared steps whose token is the reference's, as a share.
        adjusted_rate: The same with ties.
        margins: Upper edge in nats and number of the reference's steps below it; the last
            edge is None.
        controls: All that were made.
        tests: Check, name, whether it passed, and its numbers.
        limit: The smallest changes that would have been called, in words.
        text_alone: The candidate showed no token ids; its tokens were read from text.
    """

    precision: Precision
    ran: bool = True
    why: str = ""
    dtype: str = ""
    exact: bool = False
    noise: Noise | None = None
    band: float | None = None
    smallest_band: float | None = None
    raw_rate: float | None = None
    adjusted_rate: float | None = None
    margins: tuple[tuple[float | None, int], ...] = ()
    controls: tuple[Control, ...] = ()
    tests: tuple[tuple[str, str, bool, str], ...] = ()
    limit: tuple[str, ...] = ()
    text_alone: bool = False

    @property
    def trusted(self) -> bool:
        """Whether the reference agrees with itself."""
        return all(c.passed for c in self.controls if c.name == _ITSELF)

    def lines(self) -> tuple[str, ...]:
        """Return it in words, a line each."""
        name = f"{self.precision} pass"
        if not self.ran:
            return (f"{name}: not run: {self.why}",)
        out = [f"{name}: logits in {self.dtype or 'an unknown dtype'}{_because(self.why)}"]
        if self.band is not None and self.noise is not None:
            low, high, higher, most = self.noise.quantiles()
            steps = sum(len(arm.errors) for arm in self.noise.arms)
            out.append(
                f"  noise: {counted(steps, 'step')} scored again; pair swings "
                f"{low:.2g} (median), {high:.2g} (90 %), {higher:.2g} (99 %), {most:.2g} nat "
                f"(largest); band {self.band:.3g} nat"
            )
        if self.raw_rate is not None and self.adjusted_rate is not None:
            least = "none" if self.smallest_band is None else f"{self.smallest_band:.3g} nat"
            raw, adjusted = self.raw_rate, self.adjusted_rate
            out.append(
                f"  tokens equal at {raw:.2%} of steps, {adjusted:.2%} with ties; "
                f"smallest band that would have passed: {least}"
            )
        out += [f"  {check}, {test}: {text}" for check, test, _, text in self.tests]
        for control in self.controls:
            out.append(f"  control {control.name}: {_held(control)}{control.text}")
        out += [f"  limit of detection: {text}" for text in self.limit]
        return tuple(out)


def missed(precision: Precision, why: str) -> PassSummary:
    """Return what is to be said of a pass that did not run."""
    return PassSummary(precision=precision, ran=False, why=why)


def total(
    place: Place,
    comparisons: Sequence[Comparison],
    expected: Mapping[str, Trace],
    *,
    alpha: float,
    tokens_alone: bool,
) -> tuple[Comparison, tuple[Test, ...]]:
    """Judge all comparisons of one check together.

    Args:
        place: Of the check; its case has one prompt, called `ALL_PROMPTS`.
        comparisons: All of the check.
        expected: The reference's traces by prompt id.
        alpha: Of each test.
        tokens_alone: Nothing but this pass's tokens speaks for the engine.

    Returns:
        EXACT, TIE where there were flips and no more than rounding makes, DRIFT where
        there were more or errors are larger, INCONCLUSIVE where the prompts could not have
        told a fault; and the tests.
    """
    noise = place.noise
    found = _all_prompts(place)
    if noise is None:
        return found, ()
    judged = [each for each in comparisons if each.verdict in _JUDGED]
    flips: dict[str, list[int]] = {}
    near: dict[str, int] = {}
    for each in judged:
        count = len(each.flips) if each.errors else each.ties
        flips.setdefault(each.prompt_id, []).append(count)
        near[each.prompt_id] = max(near.get(each.prompt_id, 0), each.near)
    tests = [flip_test(noise, flips, near, near_of_arms(noise, expected), alpha)]
    if any(each.errors for each in judged):
        tests += number_tests(noise, judged, expected, alpha)
    failed = [test for test in tests if not test.passed]
    if failed:
        return _drifted(place, found, failed, len(near)), tuple(tests)
    steps = sum(each.steps + (each.step is not None) for each in judged)
    close = sum(each.near for each in judged)
    if tokens_alone and not noise.exact and steps and close / steps > _NEAR_SHARE:
        return _undecided(place, found, close, steps), tuple(tests)
    flipped = any(map(sum, flips.values()))
    return _level(place, found, tests) if flipped else found, tuple(tests)


COUNTED = ("tokens", "batch", "logits")
"""The checks whose comparisons are of one prompt's steps, and are judged together too."""

_JUDGED = (Verdict.EXACT, Verdict.TIE, Verdict.DRIFT, Verdict.WRONG)


def near_of_arms(noise: Noise, expected: Mapping[str, Trace]) -> int:
    """Return the steps that the arms scored and that are within the band of a tie."""
    scored = {arm.prompt_id: len(arm.errors) for arm in noise.arms}
    return sum(
        scores.margin <= noise.band(scores)
        for prompt in set(scored) & set(expected)
        for scores in expected[prompt].scores[: scored[prompt]]
    )


def repeats(noise: Noise) -> Control:
    """Tell whether the reference said the same twice, bit for bit, in the same shape."""
    text = f"{counted(noise.repeated, 'step')} decoded twice, "
    text += (
        "bit for bit the same" if noise.repeats else "and they differ: nothing can be judged"
    )
    return Control(name=_ITSELF, passed=noise.repeats and noise.repeated > 0, text=text)


def planted_faults(place: Place, expected: Mapping[str, Trace]) -> Control:
    """Plant a wrong token and a shifted number in copies of a trace; both must be caught.

    Args:
        place: Of any check; its case is replaced.
        expected: The reference's traces.
    """
    name = "planted fault"
    best: tuple[float, Trace, int] | None = None
    for trace in expected.values():
        for step, scores in enumerate(trace.scores):
            reach = scores.logprobs[0] - scores.logprobs[_last_finite(scores)]
            if best is None or reach > best[0]:
                best = (reach, trace, step)
    if best is None:
        return Control(name=name, passed=False, text="there was no step to plant it in")
    _, trace, step = best
    case = Case(id=name, prompts=(Prompt(id=trace.prompt_id, tokens=()),))
    place = replace(place, case=case, row=0)
    last = _last_finite(trace.scores[step])
    token = trace.scores[step].ids[last]
    tokens = (*trace.tokens[:step], token, *trace.tokens[step + 1 :])
    wrong = compare_tokens(place, trace, replace(trace, tokens=tokens, scores=()))
    seen = [f"a token at step {step} of {trace.prompt_id}: {wrong.verdict}"]
    passed = wrong.verdict is Verdict.WRONG and wrong.step == step
    if place.noise is not None:
        scores = trace.scores[step]
        shifted = _shifted(scores, 1.5 * place.noise.drift_band(scores))
        rows = (*trace.scores[:step], shifted, *trace.scores[step + 1 :])
        drift = compare_numbers(place, trace, replace(trace, scores=rows))
        seen.append(f"a log-probability there: {drift.verdict}")
        passed &= drift.verdict in {Verdict.DRIFT, Verdict.WRONG} and drift.step == step
    return Control(name=name, passed=passed, text="; ".join(seen))


def rates(
    summary: PassSummary,
    comparisons: Sequence[Comparison],
    expected: Mapping[str, Trace],
    noise: Noise | None,
    errors: Test | None,
) -> PassSummary:
    """Add what follows from the comparisons of a pass: rates, margins, bands, the limit."""
    judged = [each for each in comparisons if each.verdict in _JUDGED and each.batch]
    judged = [each for each in judged if each.check in COUNTED]
    steps = sum(each.steps + (each.step is not None) for each in judged)
    wrong = [each for each in judged if each.verdict is Verdict.WRONG]
    ties = sum(each.ties for each in judged)
    least: float | None = max((each.worst_tie for each in judged), default=0.0)
    if any(each.regret is None or not math.isfinite(each.regret) for each in wrong):
        least = None
    elif least is not None:
        least = max(least, *(each.regret or 0.0 for each in wrong), 0.0)
    margins = Counter(
        next((edge for edge in _EDGES if scores.margin < edge), None)
        for trace in expected.values()
        for scores in trace.scores
    )
    summary = replace(
        summary,
        smallest_band=least,
        raw_rate=(steps - ties - len(wrong)) / steps if steps else None,
        adjusted_rate=(steps - len(wrong)) / steps if steps else None,
        margins=tuple((edge, margins.get(edge, 0)) for edge in (*_EDGES, None)),
    )
    if noise is None:
        return summary
    bands = [noise.band(scores) for trace in expected.values() for scores in trace.scores]
    return replace(
        summary,
        band=max(bands, default=None),
        limit=_limit(noise, expected, errors),
    )


def _limit(noise: Noise, expected: Mapping[str, Trace], errors: Test | None) -> tuple[str, ...]:
    if errors is None:
        return ("a fault that changes no token would not have been seen: no logits were shown",)
    own: list[Probe] = [probe for probe in noise.probes if probe.prompt_id in expected]
    if not own:
        return ("unknown: nothing could be planted in this model",)
    told = limits(replace(noise, probes=tuple(own)), expected, errors)
    return (f"with these {counted(len(expected), 'prompt')}: " + ", or ".join(told),)


def _all_prompts(place: Place) -> Comparison:
    return Comparison(
        check=place.check,
        prompt_id=ALL_PROMPTS,
        verdict=Verdict.EXACT,
        case=ALL_PROMPTS,
        batch=0,
        precision=place.precision,
    )


def _drifted(
    place: Place, found: Comparison, failed: Sequence[Test], prompts: int
) -> Comparison:
    what = f"{counted(prompts, 'prompt')} together differ by more than rounding does"
    found = replace(found, verdict=Verdict.DRIFT)
    return _told(place, found, what, [f"{test.name}: {test.text}" for test in failed])


def _undecided(place: Place, found: Comparison, close: int, steps: int) -> Comparison:
    why = (
        f"at {close:,} of {steps:,} steps the reference's best two tokens are closer than the "
        "band, so a fault's flips would look like rounding's. Use the float32 pass "
        '(Policy(precision=("float32", "native"))), a trained model, or an engine that shows '
        "logits"
    )
    found = replace(found, verdict=Verdict.INCONCLUSIVE)
    return _told(place, found, "no verdict: tokens alone cannot tell here", [why])


def _level(place: Place, found: Comparison, tests: Sequence[Test]) -> Comparison:
    found = replace(found, verdict=Verdict.TIE)
    told = [f"{test.name}: {test.text}" for test in tests]
    return _told(place, found, "no more ties than rounding makes", told)


def _told(place: Place, found: Comparison, what: str, told: Sequence[str]) -> Comparison:
    head = f"{ALL_PROMPTS}, check {place.check}: {what}"
    lines = [head, *(f"  {line}" for line in told), f"  again: {place.again}"]
    return replace(found, message="\n".join(lines))


def _last_finite(scores: Scores) -> int:
    """Return the place of the least likely token that is not masked."""
    return max(
        n for n, logprob in enumerate(scores.logprobs) if n == 0 or math.isfinite(logprob)
    )


def _shifted(scores: Scores, by: float) -> Scores:
    """Lower the last of the log-probabilities: the best token stays the best."""
    last = _last_finite(scores)
    shifted = [value - by if n == last else value for n, value in enumerate(scores.logprobs)]
    return replace(scores, logprobs=tuple(shifted))


def _because(why: str) -> str:
    return f" ({why})" if why else ""


def _held(control: Control) -> str:
    return "" if control.passed else "FAILED: "
