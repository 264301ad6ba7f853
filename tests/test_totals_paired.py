"""Which arms and which prompts a candidate is held against, and which say nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mlxcheck.totals import Test as Outcome  # pytest would take a Test for one of its own
from mlxcheck.totals import flip_test, number_tests
from tests.support.scored import ARMS, World, arm, noise, world

if TYPE_CHECKING:
    from mlxcheck.noise import Arm

ALPHA = 0.001 / 12
"""What one test of a run of two passes gets."""


def _tested(run: World) -> tuple[Outcome, ...]:
    return number_tests(run.noise, run.looks, run.expected, ALPHA)


def _silent(each: Arm) -> Arm:
    """Return an arm that came out bit for bit as the reference did."""
    return arm(*(0.0,) * len(each.errors), prompt_id=each.prompt_id, arm=each.arm)


# --- Arms that moved nothing ------------------------------------------------------------------


def test_errors_below_the_floor_are_nothing() -> None:
    """Where the arms agree bit for bit, a third of a unit is no multiple of nothing."""
    run = world(1, prompts=4)
    silent = noise(*map(_silent, run.noise.arms))
    unit = 0.0625  # of bfloat16 at 8.75
    looks = [
        tuple(replace(look, errors=(size,) * 8, divergences=()) for look in run.looks)
        for size in (0.9 * unit, 1.5 * unit)
    ]

    below, above = (number_tests(silent, each, run.expected, ALPHA)[0] for each in looks)

    assert (below.passed, above.passed) == (True, False)
    assert below.text.startswith("1 times the arms'")


@pytest.mark.parametrize("exact", [False, True])
def test_silent_arms_are_no_measure(*, exact: bool) -> None:
    """Where three of four ways give the same bits, all is held against the fourth alone."""
    run = world(2)
    arms = run.noise.arms
    mute = tuple(each if each.arm == ARMS[3] else _silent(each) for each in arms)
    fourth = tuple(each for each in arms if each.arm == ARMS[3])

    mixed = replace(run, noise=noise(*mute, exact=exact))
    plain = replace(run, noise=noise(*fourth, exact=exact))

    assert _tested(mixed) == _tested(plain)
    assert _tested(mixed)[0].passed
    looks, near = {"p0": [1]}, {"p0": 5}
    told = flip_test(mixed.noise, looks, near, 5, ALPHA).text
    assert told == flip_test(plain.noise, looks, near, 5, ALPHA).text
    assert "chance 0.5;" in told  # one of two scorers, not of five


# --- Prompts without arms --------------------------------------------------------------------


def test_few_prompts_with_arms_are_enough_for_honest_noise() -> None:
    """Prompts differ in their errors by half a nat in the logarithm; 3 to 5 of 33 have arms."""
    runs = [world(seed, prompts=33, armed=3 + seed % 3) for seed in range(150)]

    failed = [run for run in runs if not all(test.passed for test in _tested(run))]

    assert failed == []


@pytest.mark.parametrize(
    ("armed", "exact", "prompts"), [(3, False, 3), (10, False, 10), (3, True, 20)]
)
def test_prompts_without_arms_are_left_out(armed: int, prompts: int, *, exact: bool) -> None:
    """In float32 the bar is far: there all are held."""
    run = world(5, prompts=20, armed=armed)
    run = replace(run, noise=replace(run.noise, exact=exact), looks=run.looks * 2)

    errors, roots, largest = (test.text for test in _tested(run))

    assert f"median over {2 * 8 * prompts} positions" in errors
    assert f"median over {2 * 8 * prompts} positions" in roots
    assert f"median over {2 * prompts} positions" in largest


@pytest.mark.parametrize("armed", [1, 2])
def test_of_fewer_than_three_prompts_with_arms_nothing_is_told(armed: int) -> None:
    """Held against the usual errors of one or two prompts, 10 of 300 honest runs failed."""
    runs = [world(seed, prompts=33, armed=armed) for seed in range(100)]

    texts = {test.text for run in runs for test in _tested(run)}

    assert texts == {f"{armed} prompts are too few to tell a spread; 3 are needed"}
    assert all(test.passed for run in runs for test in _tested(run))


def test_prompts_without_arms_are_held_where_the_arms_are_silent() -> None:
    """Against a floor any prompt can be held."""
    run = world(5, prompts=20, armed=10)

    errors = _tested(replace(run, noise=noise(*map(_silent, run.noise.arms))))[0]

    assert "median over 160 positions" in errors.text


def test_prompts_that_no_arm_scored_are_held_against_the_usual_errors() -> None:
    """In float32 a fault there alone is seen."""
    honest = world(5, prompts=30, armed=3)
    honest = replace(honest, noise=replace(honest.noise, exact=True))
    bad = world(5, prompts=30, times=40.0).looks[3:]
    faulty = replace(honest, looks=honest.looks[:3] + bad)

    assert all(test.passed for test in _tested(honest))
    assert not _tested(faulty)[0].passed


def test_arms_of_other_prompts_still_say_how_large_errors_are() -> None:
    """Where no prompt of a set was scored again, in float32 those of another set count."""
    run = world(5, prompts=20)
    other = tuple(replace(each, prompt_id="") for each in run.noise.arms)
    mute = tuple(_silent(each) for each in other if each.arm != ARMS[0])
    fourth = tuple(each for each in other if each.arm == ARMS[0])

    for arms in (other, (*mute, *fourth)):  # silent ones say nothing here either
        found = _tested(replace(run, noise=noise(*arms, exact=True)))
        faulty = replace(world(5, prompts=20, times=40.0), noise=noise(*arms, exact=True))
        assert [test.passed for test in found] == [True] * 3
        assert not _tested(faulty)[0].passed
        native = _tested(replace(faulty, noise=noise(*arms)))
        assert native[0].text == "0 prompts are too few to tell a spread; 3 are needed"


def test_steps_that_no_arm_scored_are_left_out() -> None:
    """Where arms scored an answer's beginning, what came after has nothing to stand against."""
    run = world(5, prompts=6)
    first = tuple(_cut(each, 3) for each in run.noise.arms)
    late = replace(
        run,
        noise=noise(*first),
        looks=tuple(replace(each, errors=each.errors[:3] + (9.0,) * 5) for each in run.looks),
    )
    early = replace(
        late,
        looks=tuple(replace(each, errors=(9.0,) * 3 + each.errors[3:]) for each in run.looks),
    )

    errors, _, largest = _tested(late)

    assert "median over 18 positions" in errors.text
    assert (errors.passed, largest.passed) == (True, True)
    assert [test.passed for test in _tested(early)] == [False, True, False]


def test_flips_of_an_answer_begun_are_held_against_a_rate() -> None:
    """Its arms had no chance to flip later on, so it is none of the prompts scored whole."""
    run = world(2)
    begun = noise(*(replace(each, whole=False) for each in run.noise.arms))
    looks, near = {"p0": [1]}, {"p0": 5}

    assert "on the 1 that were" in flip_test(run.noise, looks, near, 5, ALPHA).text
    assert "on the 0 that were" in flip_test(begun, looks, near, 5, ALPHA).text


def _cut(each: Arm, steps: int) -> Arm:
    """Return what an arm says of the first steps alone."""
    names = ("errors", "divergences", "swings", "spans")
    cut = {name: getattr(each, name)[:steps] for name in names}
    return replace(each, flips=(), whole=False, **cut)
