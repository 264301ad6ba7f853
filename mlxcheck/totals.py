"""What all comparisons of a check say together: many plausible ties are a fault.

Every test holds the candidate against the arms, the reference's own benign ways of scoring
the same answers, and every one has to hold. Positions are paired: errors of a mixture of
experts are heavy-tailed, and only medians of paired ratios are steady.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mlxcheck.noise import Arm, Noise
    from mlxcheck.records import Comparison, Trace

__all__ = ["Test", "flip_test", "limits", "number_tests", "smallest_change"]

EXACT_SLACK = math.log(10)
"""How much larger than the arms' the errors may be in float32 with TF32 off. Honest engines
were at most 1.6 times the arms there, and the smallest fault of the table 1,600 times."""

SLACK = math.log(1.1)
"""The same in a native dtype, where honest batches of 1 to 24 rows were at most 1.03 times the
arms, and the faults that can be seen at all 1.12 times and more."""

MAXIMUM_SLACK = math.log(2)
"""The same for the largest error of a sequence: up to 1.4 times is honest with experts."""

_FEWEST = 3  # prompts; of fewer, no spread can be told
_RESAMPLES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One test over a run.

    Attributes:
        name: What was tested.
        passed: Whether the candidate is within what the arms do.
        text: The numbers, in words.
        bar: Of a ratio: the logarithm that the median of paired log-ratios may not pass.
        doubt: Of a ratio: by how much that median may be too high by chance.
    """

    name: str
    passed: bool
    text: str
    bar: float = 0.0
    doubt: float = 0.0


def flip_test(
    noise: Noise,
    looks: Mapping[str, Sequence[int]],
    near: Mapping[str, int],
    near_arms: int,
    alpha: float,
) -> Test:
    """Hold the number of flips against the arms' own.

    For prompts that the arms scored whole: if rounding is all there is, the candidate is one
    more arm, and which of the equally likely scorers of a prompt is called the candidate does
    not matter: the distribution of its total is exact, prompt by prompt. For the others: the
    arms' rate over the steps that are near a tie, with its upper limit of confidence.

    Args:
        noise: With the arms' flips.
        looks: By prompt id, the flips of each comparison of it.
        near: By prompt id, its steps whose margin is within the band.
        near_arms: Near steps that the arms scored, each counted once for all arms.
        alpha: Of this test.
    """
    scored = {prompt: each for prompt, each in _by_prompt(noise).items() if prompt}
    arms = {prompt: each for prompt, each in scored.items() if each[0].whole}
    # Looks at one prompt are no more independent than its steps are: one counts.
    own = {prompt: int(sum(flips) / len(flips)) for prompt, flips in looks.items() if flips}
    paired = {p: (n, [len(arm.flips) for arm in arms[p]]) for p, n in own.items() if p in arms}
    rest = {p: n for p, n in own.items() if p not in arms}
    chance = _as_one_of_the_arms(paired)
    # The arms of a prompt stand at the same steps: together they are one look at each.
    total_arms = math.ceil(sum(_mean_flips(each) for each in scored.values()))
    sites, flips = sum(near.get(p, 0) for p in rest), sum(rest.values())
    chance_rest = 1.0
    if flips and sites:
        rate = _upper_rate(total_arms, near_arms)
        chance_rest = _binomial_tail(min(flips, sites), sites, rate)
    mean_arms = sum(_mean_flips(arms[prompt]) for prompt in paired)
    text = (
        f"{sum(own.values())} flips in {len(own)} prompts; on the {len(paired)} that were "
        f"scored again, {sum(n for n, _ in paired.values())} against {mean_arms:.3g} of an arm "
        f"(chance {chance:.2g}; on the others {chance_rest:.2g})"
    )
    passed = min(chance, chance_rest) >= alpha / 2
    return Test(name="flips", passed=passed, text=text)


def number_tests(
    noise: Noise,
    comparisons: Iterable[Comparison],
    expected: Mapping[str, Trace],
    alpha: float,
) -> tuple[Test, ...]:
    """Hold errors, divergences and largest errors against the arms', paired by position.

    Args:
        noise: Of this pass.
        comparisons: Those that hold `Comparison.errors`.
        expected: The reference's traces by prompt id.
        alpha: Of each test.
    """
    kept = [found for found in comparisons if found.errors and found.prompt_id in expected]
    kept = _paired_where_it_counts(noise, kept)
    floors = {
        prompt: tuple(noise.error_floor(scores) for scores in trace.scores)
        for prompt, trace in expected.items()
    }
    slack = EXACT_SLACK if noise.exact else SLACK
    widest = max(slack, MAXIMUM_SLACK)
    z = statistics.NormalDist().inv_cdf(1 - alpha)
    errors = _Paired(noise, floors, lambda arm: arm.errors)
    roots = _Paired(noise, floors, lambda arm: tuple(map(_root, arm.divergences)))
    ratio = errors.candidate((f.prompt_id, f.errors) for f in kept)
    spread = roots.candidate((f.prompt_id, tuple(map(_root, f.divergences))) for f in kept)
    largest = errors.maxima((f.prompt_id, f.errors) for f in kept)
    return (
        _ratio_test("errors", ratio, errors.spread(), slack, z),
        _ratio_test("divergences (their roots)", spread, roots.spread(), slack, z),
        _ratio_test("largest errors of a prompt", largest, errors.spread_maxima(), widest, z),
    )


def _paired_where_it_counts(noise: Noise, kept: list[Comparison]) -> list[Comparison]:
    """Leave prompts out that no arm scored.

    What is usual among a few prompts is a poor measure for others: honest engines then fail.
    In float32 the bar is far enough away, and where the arms are silent it is the floor.
    """
    if noise.exact or not noise.telling:
        return kept
    armed = {arm.prompt_id for arm in noise.telling}
    return [found for found in kept if found.prompt_id in armed]


def limits(noise: Noise, expected: Mapping[str, Trace], test: Test) -> tuple[str, ...]:
    """Return the smallest planted changes that this run would have called, in words.

    From what a larger change did to the reference: an error grows as the change does, and
    adds to the noise as independent ones do, in squares.

    Args:
        noise: With its probes.
        expected: The reference's traces by prompt id.
        test: The test of the errors' ratio, with its bar.
    """
    out: list[str] = []
    for what in dict.fromkeys(probe.what for probe in noise.probes):
        change = smallest_change(noise, expected, what, test)
        told = f"{100 * change:.2g} %" if change < 1 else "100 % or more"
        out.append(f"a change of {told} {what}")
    return tuple(out)


def smallest_change(
    noise: Noise, expected: Mapping[str, Trace], what: str, test: Test
) -> float:
    """Return one of the `limits` as a fraction."""
    arms, bar = _by_prompt(noise), test.bar + test.doubt
    steps: list[tuple[float, float, float]] = []  # noise, floor, error of a change of 1
    by_band = math.inf
    for probe in (probe for probe in noise.probes if probe.what == what):
        scored = expected[probe.prompt_id].scores[: len(probe.errors)]
        for step, scores in enumerate(scored):
            level = statistics.fmean(arm.errors[step] for arm in arms[probe.prompt_id])
            rolled = 0.0 if probe.clean else level  # what rounding anew adds to it
            raised = math.sqrt(max(0.0, probe.errors[step] ** 2 - rolled**2)) / probe.change
            steps.append((level, noise.error_floor(scores), raised))
            if probe.spans[step]:
                reach = noise.drift_band(scores) / probe.spans[step]
                by_band = min(by_band, probe.change * reach)
    low, high = 1e-9, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        if _predicted(steps, middle) > bar:
            high = middle
        else:
            low = middle
    return min(high, by_band)


def _predicted(steps: Sequence[tuple[float, float, float]], change: float) -> float:
    return statistics.median(
        math.log(max(math.hypot(level, change * raised), floor) / max(level, floor))
        for level, floor, raised in steps
    )


class _Paired:
    """Log-ratios of a quantity to the arms' mean of it at the same positions."""

    def __init__(
        self,
        noise: Noise,
        floors: Mapping[str, tuple[float, ...]],
        read: Callable[..., tuple[float, ...]],
    ) -> None:
        self._floors = floors
        self._arms = {
            prompt: [read(arm) for arm in arms]
            for prompt, arms in _by_prompt(noise).items()
            if prompt in floors
        }
        # Arms of another set's prompts have no place here, and still say what is usual.
        told = noise.telling or noise.arms
        others = [read(arm) for arm in told if arm.prompt_id not in floors]
        means = [m for columns in self._arms.values() for m in _means(columns)]
        means = means or [value for row in others for value in row]
        # Positions that the arms did not reach are held against the usual ones.
        self._usual = statistics.median(means) if means else 0.0
        tops = [max(map(max, columns)) for columns in self._arms.values() if columns[0]]
        tops = tops or [max(row) for row in others if row]
        self._usual_top = statistics.median(tops) if tops else 0.0

    def candidate(
        self, looks: Iterable[tuple[str, tuple[float, ...]]]
    ) -> dict[str, list[float]]:
        """Return the log-ratios of every position, by prompt."""
        out: dict[str, list[float]] = defaultdict(list)
        for prompt, values in looks:
            base = _means(self._arms[prompt]) if prompt in self._arms else ()
            for step, value in enumerate(values[: len(base)] if base else values):
                level = base[step] if base else self._usual
                out[prompt].append(_log_ratio(value, level, self._floors[prompt][step]))
        return out

    def maxima(self, looks: Iterable[tuple[str, tuple[float, ...]]]) -> dict[str, list[float]]:
        """Return the log-ratios of each answer's largest value, by prompt."""
        out: dict[str, list[float]] = defaultdict(list)
        for prompt, values in looks:
            columns = self._arms.get(prompt)
            level = max(map(max, columns)) if columns else self._usual_top
            same = values[: len(columns[0])] if columns else values
            out[prompt].append(_log_ratio(_max(same), level, max(self._floors[prompt])))
        return out

    def spread(self) -> float:
        """Return the largest median log-ratio of one arm to the others; at least 0."""
        return max([0.0, *(statistics.median(row) for row in self._of_arms() if row)])

    def spread_maxima(self) -> float:
        """Return the same for each answer's largest value."""
        rows: dict[int, list[float]] = defaultdict(list)
        for prompt, columns in self._arms.items():
            for place, column in enumerate(columns):
                others = [max(c) for n, c in enumerate(columns) if n != place]
                floor = max(self._floors[prompt])
                if others:
                    rows[place].append(_log_ratio(max(column), max(others), floor))
        return max([0.0, *(statistics.median(row) for row in rows.values())])

    def _of_arms(self) -> list[list[float]]:
        rows: dict[int, list[float]] = defaultdict(list)
        for prompt, columns in self._arms.items():
            for place, column in enumerate(columns):
                others = [c for n, c in enumerate(columns) if n != place]
                if others:
                    for step, level in enumerate(_means(others)):
                        floor = self._floors[prompt][step]
                        rows[place].append(_log_ratio(column[step], level, floor))
        return list(rows.values())


def _ratio_test(
    name: str, ratios: Mapping[str, Sequence[float]], spread: float, slack: float, z: float
) -> Test:
    values = [value for row in ratios.values() for value in row]
    bar = spread + slack
    if len(ratios) < _FEWEST or not values:
        text = f"{len(ratios)} prompts are too few to tell a spread; {_FEWEST} are needed"
        return Test(name=name, passed=True, text=text, bar=math.inf)  # it sees nothing
    median = statistics.median(values)
    doubt = z * _standard_error(ratios)
    text = (
        f"{math.exp(median):,.3g} times the arms' (median over {len(values):,} positions; up "
        f"to {math.exp(bar + doubt):,.3g} times is no evidence: the arms differ among "
        f"themselves by {math.exp(spread):.3g})"
    )
    return Test(name=name, passed=median <= bar + doubt, text=text, bar=bar, doubt=doubt)


def _standard_error(ratios: Mapping[str, Sequence[float]]) -> float:
    """Return that of the median of all values, by a bootstrap over prompts."""
    draw = random.Random(0)  # noqa: S311 - no secret, and the same at every run
    rows = list(ratios.values())
    ranked = sorted((value, n) for n, row in enumerate(rows) for value in row)
    medians: list[float] = []
    for _ in range(_RESAMPLES):
        weights = [0] * len(rows)
        for _ in rows:
            weights[draw.randrange(len(rows))] += 1
        half = sum(weight * len(row) for weight, row in zip(weights, rows, strict=True)) / 2
        seen = 0
        for value, n in ranked:
            seen += weights[n]
            if seen >= half:
                medians.append(value)
                break
    return statistics.pstdev(medians)


def _mean_flips(arms: Sequence[Arm]) -> float:
    return sum(len(arm.flips) for arm in arms) / len(arms)


def _as_one_of_the_arms(paired: Mapping[str, tuple[int, Sequence[int]]]) -> float:
    """Return the chance of so many flips if the candidate is one more arm of each prompt."""
    distribution = {0: 1.0}
    for own, arms in paired.values():
        values = [own, *arms]
        following: dict[int, float] = defaultdict(float)
        for total, chance in distribution.items():
            for value in values:
                following[total + value] += chance / len(values)
        distribution = following
    seen = sum(own for own, _ in paired.values())
    return min(1.0, sum(chance for total, chance in distribution.items() if total >= seen))


def _upper_rate(flips: int, sites: int) -> float:
    """Return the upper 99 % limit of a rate (Clopper and Pearson, 1934), by bisection."""
    if not sites or flips >= sites:
        return 1.0
    low, high = flips / sites, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if 1 - _binomial_tail(flips + 1, sites, middle) > 0.01:  # noqa: PLR2004 - see above
            low = middle
        else:
            high = middle
    return high


def _binomial_tail(least: int, trials: int, rate: float) -> float:
    """Return the chance of at least so many successes."""
    if rate >= 1 or least <= 0:
        return 1.0
    logs = (math.log(rate), math.log1p(-rate)) if rate > 0 else (-math.inf, 0.0)
    return min(
        1.0,
        sum(
            math.exp(
                math.lgamma(trials + 1)
                - math.lgamma(hits + 1)
                - math.lgamma(trials - hits + 1)
                + hits * logs[0]
                + (trials - hits) * logs[1]
            )
            for hits in range(least, trials + 1)
        ),
    )


def _by_prompt(noise: Noise) -> dict[str, list[Arm]]:
    out: dict[str, list[Arm]] = defaultdict(list)
    for arm in noise.telling or noise.arms:
        out[arm.prompt_id].append(arm)
    return dict(out)


def _means(columns: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(step) for step in zip(*columns, strict=True))


def _log_ratio(value: float, level: float, floor: float) -> float:
    if not math.isfinite(value):
        return math.log(1e6)
    return math.log(max(value, floor) / max(level, floor))


def _max(values: Sequence[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=0.0)


def _root(value: float) -> float:
    return 0.0 if value <= 0 else math.sqrt(value)  # NaN stays
