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
    ("armed", "exact", "prompts"),
    [(3, False, 3), (10, False, 10), (2, False, 20), (1, False, 20), (3, True, 20)],
)
def test_prompts_without_arms_are_left_out_where_three_have_some(
    armed: int, prompts: int, *, exact: bool
) -> None:
    """Of fewer there is no spread, and in float32 the bar is far: then all are held."""
    run = world(5, prompts=20, armed=armed)
    run = replace(run, noise=replace(run.noise, exact=exact), looks=run.looks * 2)

    errors, roots, largest = (test.text for test in _tested(run))

    assert f"median over {2 * 8 * prompts} positions" in errors
    assert f"median over {2 * 8 * prompts} positions" in roots
    assert f"median over {2 * prompts} positions" in largest


def test_prompts_without_arms_are_held_where_the_arms_are_silent() -> None:
    """Against a floor any prompt can be held."""
    run = world(5, prompts=20, armed=10)

    errors = _tested(replace(run, noise=noise(*map(_silent, run.noise.arms))))[0]

    assert "median over 160 positions" in errors.text


@pytest.mark.parametrize(("armed", "exact"), [(2, False), (3, True)])
def test_prompts_that_no_arm_scored_are_held_against_the_usual_errors(
    armed: int, *, exact: bool
) -> None:
    """Where they are not left out, a fault there alone is seen."""
    honest = world(5, prompts=30, armed=armed)
    honest = replace(honest, noise=replace(honest.noise, exact=exact))
    bad = world(5, prompts=30, times=40.0).looks[armed:]
    faulty = replace(honest, looks=honest.looks[:armed] + bad)

    assert all(test.passed for test in _tested(honest))
    assert not _tested(faulty)[0].passed


def test_arms_of_other_prompts_still_say_how_large_errors_are() -> None:
    """Where no prompt of a set was scored again, those of another set of the load count."""
    run = world(5, prompts=20)
    other = tuple(replace(each, prompt_id="") for each in run.noise.arms)
    mute = tuple(_silent(each) for each in other if each.arm != ARMS[0])
    fourth = tuple(each for each in other if each.arm == ARMS[0])

    for arms in (other, (*mute, *fourth)):  # silent ones say nothing here either
        found = _tested(replace(run, noise=noise(*arms)))
        faulty = replace(world(5, prompts=20, times=4.0), noise=noise(*arms))
        assert [test.passed for test in found] == [True] * 3
        assert not _tested(faulty)[0].passed
