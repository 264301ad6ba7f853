"""Tests over a run: exact chances, honest noise that passes, and faults that do not."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck import totals
from mlxcheck.totals import Test as Outcome  # pytest would take a Test for one of its own
from mlxcheck.totals import flip_test, limits, number_tests, smallest_change
from tests.support.drawing import unhurried
from tests.support.scored import ARMS, WHAT, World, arm, noise, probed, world

if TYPE_CHECKING:
    from mlxcheck.noise import Noise

ALPHA = 0.001 / 12
"""What one test of a run of two passes gets."""

COUNTS = st.tuples(st.integers(0, 4), st.lists(st.integers(0, 4), min_size=1, max_size=3))


# --- Chances ---------------------------------------------------------------------------------


@unhurried
@given(st.lists(COUNTS, max_size=4))
def test_the_chance_as_one_of_the_arms_is_exact(prompts: list[tuple[int, list[int]]]) -> None:
    """All choices of who is called the candidate, counted one by one."""
    paired = {f"p{n}": counts for n, counts in enumerate(prompts)}
    seen = sum(own for own, _ in prompts)
    choices = list(itertools.product(*([own, *arms] for own, arms in prompts)))
    expected = Fraction(sum(sum(each) >= seen for each in choices), len(choices))

    assert math.isclose(totals._as_one_of_the_arms(paired), expected)


@unhurried
@given(st.integers(-1, 41), st.integers(0, 40), st.floats(0, 1))
def test_binomial_tail_against_sums(least: int, trials: int, rate: float) -> None:
    """The tail is the sum of its terms, at both ends of everything too."""
    expected = 1.0 - sum(_term(n, trials, rate) for n in range(max(0, min(least, trials + 1))))
    if rate >= 1 or least <= 0:
        expected = 1.0

    found = totals._binomial_tail(least, trials, rate)

    assert math.isclose(found, expected, abs_tol=1e-9)
    assert 0.0 <= found <= 1.0


def _term(hits: int, trials: int, rate: float) -> float:
    return math.comb(trials, hits) * rate**hits * (1 - rate) ** (trials - hits)


@pytest.mark.parametrize(
    ("flips", "sites", "expected"),
    [
        (0, 10, 0.369043),  # 1 - 0.01 ** (1 / 10)
        (0, 59, 0.075085),
        (1, 10, 0.504353),
        (2, 10, 0.611743),
        (9, 10, 0.998995),  # 0.99 ** (1 / 10)
        (10, 10, 1.0),
        (11, 10, 1.0),
        (0, 0, 1.0),
    ],
)
def test_upper_limit_of_a_rate(flips: int, sites: int, expected: float) -> None:
    """One-sided 99 % limits of Clopper and Pearson, from tables of the beta distribution."""
    assert math.isclose(totals._upper_rate(flips, sites), expected, abs_tol=2e-6)


# --- Flips -----------------------------------------------------------------------------------


def _flipping(*counts: int, prompt_id: str = "sum") -> Noise:
    """Make arms of one prompt that flip so often."""
    return noise(
        *(
            arm(0.1, prompt_id=prompt_id, arm=way, flips=tuple(range(count)))
            for way, count in zip(ARMS, counts, strict=True)
        )
    )


@pytest.mark.parametrize(
    ("own", "alpha", "passed"),
    [
        (2, 0.39, True),  # 1 of 5 scorers has as many: 0.2 >= 0.39 / 2
        (2, 0.41, False),
        (1, 0.79, True),  # 2 of 5
        (1, 0.81, False),
        (0, 0.999, True),
    ],
)
def test_flips_of_a_prompt_that_was_scored_again(
    own: int, alpha: float, *, passed: bool
) -> None:
    """The chance is that of being the candidate among equally likely scorers."""
    measured = _flipping(1, 0, 0, 0)

    found = flip_test(measured, {"sum": [own]}, {"sum": 5}, 20, alpha)

    assert found.passed is passed
    assert found.name == "flips"
    assert f"{own} flips in 1 prompts; on the 1 that were scored again" in found.text
    assert f"{own} against 0.25 of an arm" in found.text


def test_many_prompts_that_flip_more_than_their_arms_fail() -> None:
    """Six prompts, one flip each, where no arm ever flips: one chance in 5 ** 6."""
    names = [f"p{n}" for n in range(6)]
    arms = [each for name in names for each in _flipping(0, 0, 0, 0, prompt_id=name).arms]
    looks, near = {name: [1] for name in names}, dict.fromkeys(names, 5)

    found = flip_test(noise(*arms), looks, near, 120, ALPHA)

    assert not flip_test(noise(*arms), looks, near, 120, 2.01 * 5**-6).passed
    assert flip_test(noise(*arms), looks, near, 120, 1.99 * 5**-6).passed
    assert found.passed
    assert "chance 6.4e-05" in found.text


@pytest.mark.parametrize(
    ("looks", "counted"), [([2, 2, 2], 2), ([1, 2, 2], 1), ([0, 0, 2], 0), ([3], 3)]
)
def test_looks_at_one_prompt_count_once(looks: list[int], counted: int) -> None:
    """Three batches that hold one prompt are no three pieces of evidence."""
    found = flip_test(_flipping(0, 0, 0, 0), {"sum": looks}, {"sum": 5}, 20, ALPHA)

    assert found.text.startswith(f"{counted} flips in 1 prompts")


def test_prompts_that_no_arm_scored_are_held_against_the_arms_rate() -> None:
    """Two near steps that both flip, where the arms flipped at none of 59, fail."""
    measured = _flipping(0, 0, 0, 0)
    chance = 0.075085**2

    found = flip_test(measured, {"other": [2]}, {"other": 2}, 59, 2.02 * chance)
    fewer = flip_test(measured, {"other": [2]}, {"other": 2}, 59, 1.98 * chance)

    assert (found.passed, fewer.passed) == (False, True)
    assert f"chance 1; on the others {chance:.2g}" in found.text
    assert flip_test(measured, {"other": [0]}, {"other": 2}, 59, 0.999).passed


@pytest.mark.parametrize(
    ("counts", "expected"), [((2, 2, 2, 2), 2), ((1, 0, 0, 0), 1), ((0, 0, 0, 0), 0)]
)
def test_arms_are_one_look_at_each_step(counts: tuple[int, ...], expected: int) -> None:
    """Four arms that flip at the same two steps are no eight flips of 236 steps."""
    chance = totals._upper_rate(expected, 59)

    found = flip_test(_flipping(*counts), {"other": [1]}, {"other": 1}, 59, ALPHA)

    assert f"on the others {chance:.2g}" in found.text


def test_flips_of_other_prompts_are_left_out() -> None:
    """Near steps are counted in this set's prompts, and so are flips: elsewhere is no rate."""
    own = _flipping(1, 1, 1, 1).arms
    foreign = _flipping(5, 5, 5, 5, prompt_id="").arms

    looks, near = {"other": [2]}, {"other": 2}

    assert flip_test(noise(*own, *foreign), looks, near, 59, ALPHA) == flip_test(
        noise(*own), looks, near, 59, ALPHA
    )


def test_more_flips_than_near_steps_are_all_of_them() -> None:
    """Flips at steps that were not near count as if they had been, and nothing breaks."""
    found = flip_test(_flipping(0, 0, 0, 0), {"other": [9]}, {"other": 2}, 59, ALPHA)

    assert "on the others 0.0056" in found.text
    assert flip_test(noise(), {}, {}, 0, ALPHA).passed


# --- Ratios ----------------------------------------------------------------------------------


def _tested(run: World, alpha: float = ALPHA) -> tuple[Outcome, ...]:
    return number_tests(run.noise, run.looks, run.expected, alpha)


@pytest.mark.parametrize("heavy", [0.0, 0.02])
def test_honest_noise_passes(heavy: float) -> None:
    """Of 150 honest runs none is called anything else, whatever the tails."""
    runs = [world(seed, heavy=heavy) for seed in range(150)]

    failed = [run for run in runs if not all(test.passed for test in _tested(run))]

    assert failed == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("times", "largest"), [(1.5, True), (6.0, False)])
def test_larger_errors_fail(seed: int, times: float, *, largest: bool) -> None:
    """Half as much again is DRIFT by medians; the largest errors have a bar of their own."""
    found = _tested(world(seed, prompts=24, steps=16, times=times))

    assert [(test.name, test.passed) for test in found] == [
        ("errors", False),
        ("divergences (their roots)", False),
        ("largest errors of a prompt", largest),
    ]


@pytest.mark.parametrize(("times", "passed"), [(8.0, True), (30.0, False)])
def test_exact_passes_allow_ten_times(times: float, *, passed: bool) -> None:
    """In float32 the bar is ten times: honest engines reach 1.6, and a fault 1,600."""
    run = world(3, prompts=24, times=times)

    errors, roots, largest = _tested(replace(run, noise=replace(run.noise, exact=True)))

    assert [errors.passed, roots.passed, largest.passed] == [passed] * 3
    assert errors.bar >= math.log(10)


@pytest.mark.parametrize(("prompts", "passed"), [(2, True), (3, False)])
def test_too_few_prompts_say_so(prompts: int, *, passed: bool) -> None:
    """Of two prompts no spread can be told: no verdict against the engine, in plain words."""
    found = _tested(world(1, prompts=prompts, times=1000.0))

    assert [test.passed for test in found] == [passed] * 3
    told = ["prompts are too few to tell a spread; 3 are needed" in test.text for test in found]
    assert told == [passed] * 3


def test_too_few_prompts_are_no_limit_of_detection() -> None:
    """A test that cannot fail does not say what it would have seen."""
    run = probed(world(1, prompts=2))

    errors = _tested(run)[0]

    assert limits(run.noise, run.expected, errors) == ("a change of 100 % or more of a knob",)


def test_nothing_compared_has_nothing_to_say() -> None:
    """Comparisons without numbers, and of prompts that the reference lacks, are left out."""
    run = world(1)
    blind = tuple(replace(look, errors=(), divergences=()) for look in run.looks)
    strange = tuple(replace(look, prompt_id="x" + look.prompt_id) for look in run.looks)

    for looks in (blind, strange, ()):
        found = _tested(replace(run, looks=looks))
        assert [test.text.partition(" are")[0] for test in found] == ["0 prompts"] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_errors_that_are_no_numbers_fail(bad: float) -> None:
    """NaN is never small."""
    run = world(1)
    looks = tuple(
        replace(look, errors=(bad,) * 8, divergences=(bad,) * 8) for look in run.looks
    )

    errors, roots, _ = _tested(replace(run, looks=looks))

    assert (errors.passed, roots.passed) == (False, False)


@pytest.mark.parametrize(("exact", "slack"), [(False, 1.1), (True, 10.0)])
def test_a_bar_holds_how_much_the_arms_differ(slack: float, *, exact: bool) -> None:
    """An arm that is twice the others widens the bar by that, beside the slack."""
    run = world(1)
    even, odd = (0.05,) * 8, (0.1,) * 8
    arms = tuple(
        replace(
            each,
            errors=odd if each.arm == ARMS[1] else even,
            divergences=(0.04,) * 8 if each.arm == ARMS[1] else (0.01,) * 8,
        )
        for each in run.noise.arms
    )

    found = _tested(replace(run, noise=noise(*arms, exact=exact)))

    bars = [math.exp(test.bar) for test in found]
    assert bars == pytest.approx([2 * slack, 2 * slack, 2 * max(slack, 2.0)])


def test_doubt_grows_as_alpha_falls() -> None:
    """Alpha is that of one side of a normal distribution."""
    run = world(1)

    wide, narrow = _tested(run, 0.00135)[0], _tested(run, 0.15866)[0]

    assert math.isclose(wide.doubt / narrow.doubt, 3.0, rel_tol=1e-3)
    assert wide.bar == narrow.bar


def test_chance_is_the_same_at_every_run() -> None:
    """Numbers of a report can be made again."""
    assert _tested(world(7)) == _tested(world(7))


# --- The limit of detection ------------------------------------------------------------------


@functools.cache
def _caught(seed: int, change: float) -> bool:
    run = world(seed, prompts=20, steps=12, raised=40.0 * change)
    return not _tested(run)[0].passed


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_limit_is_where_the_test_really_turns(seed: int, *, clean: bool) -> None:
    """On a model whose errors grow as the change does, within a factor of 1.5."""
    run = probed(world(seed, prompts=20, steps=12), clean=clean)
    errors = _tested(run)[0]

    predicted = smallest_change(run.noise, run.expected, WHAT, errors)

    assert errors.passed
    assert not _caught(seed, predicted / 1.5)
    assert _caught(seed, predicted * 1.5)
    assert limits(run.noise, run.expected, errors) == (
        f"a change of {100 * predicted:.2g} % {WHAT}",
    )


def test_the_limit_is_the_band_where_that_sees_more() -> None:
    """A change whose spans pass the drift band at one step is called by that alone."""
    run = world(1)
    plain = probed(run)
    band = run.noise.drift_band(run.expected["p0"].scores[0])
    errors = _tested(run)[0]
    far = probed(run, span=1000 * band)

    assert math.isclose(smallest_change(far.noise, run.expected, WHAT, errors), 0.02 / 1000)
    near = probed(run, span=1e-6)
    assert smallest_change(near.noise, run.expected, WHAT, errors) == smallest_change(
        plain.noise, run.expected, WHAT, errors
    )


@pytest.mark.parametrize("change", [0.0001, 0.001, 0.02])
def test_a_clean_probe_may_be_smaller_than_the_noise(change: float) -> None:
    """What it does in float32 is its own, however little: the limit is the same."""
    run = probed(world(1), change)
    errors = _tested(run)[0]
    large = probed(world(1), 0.1)

    found = smallest_change(run.noise, run.expected, WHAT, errors)

    wanted = smallest_change(large.noise, large.expected, WHAT, errors)
    assert math.isclose(found, wanted, rel_tol=1e-6)


@pytest.mark.parametrize("clean", [True, False])
def test_a_change_that_does_nothing_is_never_seen(*, clean: bool) -> None:
    """The limit of what leaves no mark is no number of percent, whatever is rolled anew."""
    run = probed(world(1), size=0.0, clean=clean)

    assert limits(run.noise, run.expected, _tested(run)[0]) == (
        f"a change of 100 % or more {WHAT}",
    )


def test_each_planted_change_is_told_once() -> None:
    """Two kinds in several prompts are two sentences, in their order."""
    run = probed(world(1))
    other = tuple(replace(probe, what="of another") for probe in run.noise.probes)
    both = replace(run.noise, probes=(*run.noise.probes, *other))

    told = limits(both, run.expected, _tested(run)[0])

    assert [text.partition(" % ")[2] for text in told] == [WHAT, "of another"]


def test_looks_of_one_prompt_are_one_group() -> None:
    """Five comparisons of one prompt are no five prompts."""
    run = world(1, prompts=1)

    assert "1 prompts are too few" in _tested(replace(run, looks=run.looks * 5))[0].text
