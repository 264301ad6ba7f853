"""Units, bands and differences: the arithmetic that every excuse for rounding rests on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.noise import IN_FLOAT32, Probe, difference, from_plain, ulp
from tests.support.drawing import unhurried
from tests.support.scored import arm, noise, row

LOGPROBS = st.lists(st.floats(-30, 0), min_size=2, max_size=12)
AT_16 = row(-1.0, -3.0, logsumexp=17.0)
"""Scores whose largest logit is 16."""


# --- Units -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "magnitude", "expected"),
    [
        ("bfloat16", 16.0, 0.125),
        ("bfloat16", 15.99, 0.0625),
        ("bfloat16", -16.0, 0.125),
        ("bfloat16", 1.0, 2.0**-7),
        ("bfloat16", 1.5, 2.0**-7),
        ("float16", 16.0, 2.0**-6),
        ("float16", 15.99, 2.0**-7),
        ("float16", 1.0, 2.0**-10),
        ("float32", 16.0, 2.0**-19),
        ("float32", 15.99, 2.0**-20),
        ("float32", 1.0, 2.0**-23),
        ("float32", 0.999, 2.0**-24),
        ("bfloat16", 0.0, 2.0**-21),
        ("float16", 0.0, 2.0**-24),
        ("float32", 0.0, 2.0**-37),
        ("float32", 2.0**-14, 2.0**-37),
        ("float32", 2.0**-13, 2.0**-36),
        ("float32", 2.0**-30, 2.0**-37),
    ],
)
def test_units_in_the_last_place(dtype: str, magnitude: float, expected: float) -> None:
    """A unit doubles at each power of two, and stays what it is below 2**-14."""
    assert ulp(dtype, magnitude) == expected


@unhurried
@given(st.floats(2.0**-13, 60_000.0), st.sampled_from([np.float16, np.float32]))
def test_units_are_those_of_numpy(magnitude: float, kind: type[np.floating]) -> None:
    """The spacing of numpy is the same number."""
    rounded = kind(magnitude)

    assert ulp(kind.__name__, float(rounded)) == float(np.spacing(rounded))


# --- Differences -----------------------------------------------------------------------------


@unhurried
@given(LOGPROBS, st.floats(-5, 5), st.data())
def test_a_constant_says_nothing_of_the_error(
    ours: list[float], constant: float, data: st.DataObject
) -> None:
    """The error stays, whatever is added to all numbers of one; only the span tells it."""
    size = len(ours)
    theirs = data.draw(st.lists(st.floats(-30, 0), min_size=size, max_size=size))

    plain = difference(row(*ours), row(*theirs))
    moved = difference(row(*ours), row(*(each + constant for each in theirs)))

    assert math.isclose(moved.error, plain.error, abs_tol=1e-9)
    first = theirs[0] - ours[0]
    others = max(abs(b - a - first) for a, b in zip(ours, theirs, strict=True))
    assert math.isclose(plain.span, max(abs(first), others), abs_tol=1e-9)
    assert math.isclose(moved.span, max(abs(first + constant), others), abs_tol=1e-9)


def test_difference_by_hand() -> None:
    """Off by 0, 0.1 and -0.1 nat: error, divergence and span are those of the formulas."""
    off = 0.1
    ours = (math.log(0.5), math.log(0.25), math.log(0.25))
    theirs = (ours[0], ours[1] + off, ours[2] - off)

    found = difference(row(*ours), row(*theirs))

    weighed = 0.25 * (math.exp(off) - 1 - off) + 0.25 * (math.exp(-off) - 1 + off)
    assert math.isclose(found.error, math.sqrt(2 * off**2 / 3))
    assert math.isclose(found.divergence, weighed)
    assert math.isclose(found.span, off)


def test_error_is_centred_and_span_is_from_the_references_own_token() -> None:
    """Off by 0.3, 0 and 0: the error is about their mean, the span from the first of them."""
    found = difference(row(-1.0, -2.0, -3.0), row(-0.7, -2.0, -3.0))

    assert math.isclose(found.error, math.sqrt((0.2**2 + 0.1**2 + 0.1**2) / 3))
    assert math.isclose(found.span, 0.3)


def test_what_moves_all_alike_is_a_span() -> None:
    """The best token itself is off, for the sake of one that is not among those kept."""
    found = difference(row(-1.0, -2.0), row(-1.5, -2.5))

    assert (found.error, found.span) == (0.0, 0.5)


def test_only_what_both_show_is_compared_and_in_any_order() -> None:
    """Tokens that one side lacks are left out, and the candidate's own order is no matter."""
    ours = row(-1.0, -2.0, -3.0, first=4)
    theirs = row(-9.0, -2.0, -3.5, first=4)
    theirs = replace(theirs, ids=(99, 5, 4), logprobs=(0.0, -2.5, -1.0))

    found = difference(ours, theirs)

    assert math.isclose(found.error, 0.25)
    assert math.isclose(found.span, 0.5)


@unhurried
@given(LOGPROBS, st.data())
def test_divergence_is_never_negative(ours: list[float], data: st.DataObject) -> None:
    """However much is shown of the vocabulary, and however near the two are."""
    size = len(ours)
    near = st.one_of(st.floats(-30, 30), st.floats(-1e-12, 1e-12), st.just(0.0))
    offs = data.draw(st.lists(near, min_size=size, max_size=size))

    found = difference(row(*ours), row(*map(sum, zip(ours, offs, strict=True))))

    assert found.divergence >= 0.0
    assert found.error >= 0.0


def test_a_divergence_far_off_is_large_and_no_overflow() -> None:
    """A token that went from e**-1000 to 1 is a number, not an exception."""
    found = difference(row(-1.0, -1000.0), row(-1.0, 0.0))

    assert math.isfinite(found.divergence)


@pytest.mark.parametrize("shared", [0, 1])
def test_too_little_in_common_is_not_a_number(shared: int) -> None:
    """One difference, centred, would always be 0: it is NaN, never a pass."""
    found = difference(row(-1.0, -2.0, first=4), row(-1.0, -2.0, first=6 - shared))

    assert math.isnan(found.error)
    assert math.isnan(found.divergence)
    assert math.isnan(found.span)


def test_two_tokens_in_common_are_enough() -> None:
    """Two differences can be centred; what the reference has at minus infinity counts not."""
    assert difference(row(-1.0, -2.0), row(-1.0, -2.5)).span == 0.5
    assert math.isnan(difference(row(-1.0, -math.inf), row(-1.0, -2.0)).error)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_token_that_the_candidate_bans_is_off_without_end(place: int) -> None:
    """Minus infinity where the reference has a number passes no band, whichever token it is."""
    ours = (-1.0, -2.0, -3.0)
    theirs = [*ours]
    theirs[place] = -math.inf

    found = difference(row(*ours), row(*theirs))

    assert found.span == math.inf
    assert not found.error <= 1.0


# --- Bands -----------------------------------------------------------------------------------


def test_bands_are_of_the_largest_swing_and_the_largest_span() -> None:
    """Half as much again for a token, twice for a row; of all arms and prompts, wherever."""
    measured = noise(
        arm(0.1, 0.1, swings=(0.25, 0.5), spans=(0.25, 7.0)),
        arm(0.1, prompt_id="count", swings=(2.0,), spans=(3.0,)),
    )

    assert (measured.largest, measured.widest) == (2.0, 7.0)
    assert measured.band(AT_16) == 3.0
    assert measured.drift_band(AT_16) == 14.0


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bfloat16", 0.25), ("float16", 2.0**-5), ("float32", 2.0**-13)]
)
def test_band_is_never_below_its_floor(dtype: str, expected: float) -> None:
    """Without a swing, or with one that is less, a few units at the largest logit stay."""
    assert noise(dtype=dtype).band(AT_16) == expected
    assert noise(dtype=dtype).floor(AT_16) == expected
    small = arm(0.0, swings=(expected / 2,))
    assert noise(small, dtype=dtype).band(AT_16) == expected
    large = arm(0.0, swings=(expected,))
    assert noise(large, dtype=dtype).band(AT_16) == 1.5 * expected
    assert noise(small, dtype=dtype).drift_band(AT_16) == 2 * expected
    assert noise(dtype=dtype).drift_band(AT_16) == 2 * expected


@pytest.mark.parametrize(
    ("dtype", "silent", "loud"),
    [
        ("bfloat16", 0.125, 0.0125),
        ("float16", 2.0**-6, 0.1 * 2.0**-6),
        ("float32", 2.0**-17, 2.0**-17),
    ],
)
def test_floor_of_errors_is_higher_where_the_arms_say_nothing(
    dtype: str, silent: float, loud: float
) -> None:
    """Where the arms agree bit for bit a whole unit is nothing; else a tenth of one."""
    assert noise(arm(0.0), dtype=dtype).error_floor(AT_16) == silent
    assert noise(dtype=dtype).error_floor(AT_16) == silent
    moved = noise(arm(0.0, 0.0, swings=(0.0, 1e-9)), dtype=dtype)
    assert math.isclose(moved.error_floor(AT_16), loud)


def test_ways_that_moved_nothing_tell_nothing() -> None:
    """A way is silent where it is so in all prompts; one step of one makes all of it tell."""
    silent = [arm(0.0, 0.0, arm="one shot", prompt_id=name) for name in ("a", "b")]
    moved = [
        arm(0.0, 0.0, arm=IN_FLOAT32, prompt_id="a"),
        arm(0.0, 0.1, arm=IN_FLOAT32, prompt_id="b"),
    ]

    found = noise(silent[0], moved[0], silent[1], moved[1])

    assert found.telling == tuple(moved)
    assert noise(*silent).telling == ()
    assert noise(*moved).telling == tuple(moved)


def test_noise_comes_back_from_plain_json() -> None:
    """What was written to disk is read as it was."""
    probe = Probe(what="it", change=0.1, prompt_id="sum", errors=(1.0,), spans=(2.0, 3.0))
    probes = (probe, replace(probe, clean=False))
    measured = noise(arm(0.1, 0.2, flips=(1,)), probes=probes, repeated=3, repeats=False)

    assert from_plain(json.loads(json.dumps(asdict(measured)))) == measured


def test_largest_logit_is_unknown_where_only_logprobs_are() -> None:
    """Then the unit is the smallest there is, and the band no wider for it."""
    assert noise().floor(row(-1.0, -2.0, logsumexp=None)) == 2 * 2.0**-21


def test_quantiles_of_all_swings() -> None:
    """Median, 90 %, 99 % and maximum, each one of the swings, rounded up."""
    first = arm(*[0.0] * 60, swings=tuple(float(n) for n in range(60)))
    second = arm(*[0.0] * 41, swings=tuple(float(n) for n in range(60, 101)), prompt_id="b")

    assert noise(second, first).quantiles() == (50.0, 90.0, 99.0, 100.0)
    assert noise(arm(0.0, 0.0, swings=(1.0, 3.0))).quantiles() == (3.0, 3.0, 3.0, 3.0)
    assert noise(arm(0.0, swings=(2.0,))).quantiles() == (2.0, 2.0, 2.0, 2.0)
    assert noise().quantiles() == (0.0, 0.0, 0.0, 0.0)
