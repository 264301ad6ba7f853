"""A pass summed up: controls that can fail, rates, margins, and what was not seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.noise import Probe
from mlxcheck.passes import (
    Control,
    PassSummary,
    missed,
    planted_faults,
    rates,
    repeats,
)
from mlxcheck.records import ALL_PROMPTS, Comparison, Trace, Verdict
from mlxcheck.totals import number_tests
from tests.support.made import case_of, place, trace
from tests.support.reported import comparison
from tests.support.scored import CLEAR, NEAR, arm, noise, row, said, world

if TYPE_CHECKING:
    from mlxcheck.messages import Place
    from mlxcheck.noise import Noise
    from mlxcheck.totals import Test as Outcome

BAND = noise()
"""Without a swing: 2 units, 0.125 nat at logits of 8 to 16."""

ALL = case_of(ALL_PROMPTS, case_id=ALL_PROMPTS)


def where(measured: Noise | None = BAND) -> Place:
    """Make the place of a check's total."""
    return replace(place("batch", ALL), noise=measured)


def summed(
    looks: list[Comparison], *expected: Trace, measured: Noise | None = BAND
) -> PassSummary:
    """Return the rates of a pass."""
    by_id = {each.prompt_id: each for each in expected}
    return rates(PassSummary(precision="native"), looks, by_id, measured, None)


# --- Controls --------------------------------------------------------------------------------


def test_planted_faults_are_caught() -> None:
    """A wrong token and a shifted number, both at the step where most is to be seen."""
    wide = row(-0.25, -3.0, -9.0)

    found = planted_faults(where(), {"sum": said(CLEAR, NEAR, wide, CLEAR)})

    assert found == Control(
        name="planted fault",
        passed=True,
        text="a token at step 2 of sum: WRONG; a log-probability there: DRIFT",
    )


def test_faults_are_planted_in_the_widest_step_of_all_answers() -> None:
    """The answer need not be the first, nor the step."""
    wide = said(NEAR, row(-0.25, -3.0, -9.0), prompt_id="count")

    found = planted_faults(where(), {"sum": said(CLEAR), "count": wide})

    assert found.passed
    assert "a token at step 1 of count" in found.text


@pytest.mark.parametrize(
    ("swing", "verdict", "passed"), [(3.8, "WRONG", True), (3.9, "TIE", False)]
)
def test_a_fault_that_cannot_be_told_fails_the_control(
    swing: float, verdict: str, *, passed: bool
) -> None:
    """Where all that was kept is within the band, a wrong token passes: so it is said."""
    measured = noise(arm(1.0, swings=(swing,)))  # a band of 5.7 or 5.85 nat; the reach is 5.75

    found = planted_faults(where(measured), {"sum": said(CLEAR)})

    assert found.passed is passed
    assert f"a token at step 0 of sum: {verdict}" in found.text


@pytest.mark.parametrize("masked", [1, 62])
def test_faults_are_planted_in_what_a_mask_leaves(masked: int) -> None:
    """Of a vocabulary of which most is at minus infinity, in the last token that is not."""
    narrow = row(-0.25, -3.0, -6.0, *[-math.inf] * masked)
    wide = row(-0.25, -9.0, *[-math.inf] * masked)

    found = planted_faults(where(), {"sum": said(narrow, wide, narrow)})

    assert found.passed
    assert found.text == "a token at step 1 of sum: WRONG; a log-probability there: DRIFT"


def test_a_masked_token_does_not_stand_in_for_one_that_cannot_be_told() -> None:
    """What no engine says is always caught: the control has to be of what one might."""
    measured = noise(arm(1.0, swings=(3.9,)))

    found = planted_faults(where(measured), {"sum": said(row(-0.25, -3.0, -6.0, -math.inf))})

    assert not found.passed
    assert "a token at step 0 of sum: TIE" in found.text


def test_a_mask_that_leaves_one_token_has_no_wrong_one() -> None:
    """What was planted there is the right token."""
    assert not planted_faults(where(), {"sum": said(row(0.0, -math.inf))}).passed


def test_a_shift_that_cannot_be_told_fails_the_control() -> None:
    """Where nothing is off by more than the arms are, only the token is caught."""
    measured = noise(arm(1.0, swings=(0.0,), spans=(math.inf,)))

    found = planted_faults(where(measured), {"sum": said(CLEAR)})

    assert not found.passed
    told = "a token at step 0 of sum: WRONG; a log-probability there: INCONCLUSIVE"
    assert found.text == told


def test_strict_mode_plants_a_token_alone() -> None:
    """No number is held against anything there."""
    found = planted_faults(where(None), {"sum": said(CLEAR)})

    assert (found.passed, found.text) == (True, "a token at step 0 of sum: WRONG")


@pytest.mark.parametrize("expected", [{}, {"sum": trace(5, 6)}])
def test_nowhere_to_plant_is_no_control(expected: dict[str, Trace]) -> None:
    """A control that was not made did not hold."""
    found = planted_faults(where(), expected)

    assert (found.passed, found.text) == (False, "there was no step to plant it in")


def test_a_vocabulary_of_one_token_has_no_wrong_one() -> None:
    """What was planted there is the right token."""
    assert not planted_faults(where(), {"sum": said(row(0.0))}).passed


@pytest.mark.parametrize(
    ("same", "text"),
    [
        (True, "7 steps decoded twice, bit for bit the same"),
        (False, "7 steps decoded twice, and they differ: nothing can be judged"),
    ],
)
def test_a_pass_is_trusted_where_the_reference_repeats(text: str, *, same: bool) -> None:
    """Only this control takes the trust away."""
    control = repeats(noise(repeated=7, repeats=same))
    other = Control(name="planted fault", passed=False, text="")

    assert (control.passed, control.text) == (same, text)
    assert control.name == "reference equals itself"
    assert PassSummary(precision="native", controls=(other, control)).trusted is same
    assert PassSummary(precision="native", controls=(control, other)).trusted is same


def test_a_reference_that_repeated_nothing_is_not_trusted() -> None:
    """Of no step nothing is told, neither that it came out the same."""
    control = repeats(noise(repeated=0, repeats=True))

    assert not control.passed
    assert "0 steps decoded twice" in control.text
    assert repeats(noise(repeated=1, repeats=True)).passed


# --- Rates -----------------------------------------------------------------------------------


def _wrong(regret: float | None, steps: int = 3) -> Comparison:
    return comparison(Verdict.WRONG, steps, step=steps, regret=regret)


def test_rates_raw_and_with_ties() -> None:
    """Ten steps, of which two are ties and one is wrong: 70 % and 90 %."""
    looks = [
        comparison(steps=3),
        comparison(Verdict.TIE, 2, step=1, ties=2, worst_tie=0.07),
        _wrong(0.5),
    ]

    found = summed(looks, said(CLEAR))

    assert (found.raw_rate, found.adjusted_rate) == (0.7, 0.9)
    assert found.smallest_band == 0.5


def test_what_was_not_compared_has_no_rate() -> None:
    """An engine that failed, was not asked, or a total over other comparisons: no step."""
    looks = [
        comparison(Verdict.ERROR, 3),
        comparison(Verdict.INCONCLUSIVE, 3),
        comparison(steps=3, batch=0),
    ]

    found = summed(looks, said(CLEAR))

    assert (found.raw_rate, found.adjusted_rate) == (None, None)


@pytest.mark.parametrize(
    ("looks", "least"),
    [
        ([comparison()], 0.0),
        ([comparison(Verdict.TIE, step=1, ties=1, worst_tie=0.07)], 0.07),
        ([comparison(Verdict.TIE, step=1, ties=1, worst_tie=0.7), _wrong(0.5)], 0.7),
        ([_wrong(0.5), _wrong(0.75), _wrong(0.25)], 0.75),
        ([_wrong(0.5), _wrong(None)], None),
        ([_wrong(math.inf), _wrong(0.5)], None),
        ([_wrong(math.nan)], None),
        ([comparison(Verdict.DRIFT, step=1, regret=9.0)], 0.0),
        ([comparison(Verdict.ERROR, regret=None)], 0.0),
    ],
)
def test_smallest_band_that_would_have_passed(
    looks: list[Comparison], least: float | None
) -> None:
    """The largest regret of all; none where a token is missing or out of all reckoning."""
    assert summed(looks, said(CLEAR)).smallest_band == least


def test_margins_are_counted_by_their_size() -> None:
    """Each step once, at the first edge above it; an edge itself belongs above."""
    margins = (0.0, 0.009, 0.01, 0.05, 0.1, 0.5, 1.0, 9.9, 10.0, 50.0)
    steps = [row(0.0, -margin) for margin in margins]

    found = summed([], said(*steps[:4]), said(*steps[4:], row(0.0), prompt_id="count"))

    assert found.margins == ((0.01, 2), (0.1, 2), (1.0, 2), (10.0, 2), (None, 3))


def test_the_band_is_the_largest_of_all_steps() -> None:
    """Larger logits have larger units; strict mode has no band."""
    large = replace(CLEAR, logsumexp=40.25)

    assert summed([], said(CLEAR, large, CLEAR)).band == 0.5
    strict = summed([], said(CLEAR), measured=None)
    assert (strict.band, strict.limit) == (None, ())
    assert summed([]).band is None


def _limit(measured: Noise, errors: Outcome | None, expected: dict[str, Trace]) -> Any:
    found = rates(PassSummary(precision="native"), [], expected, measured, errors)
    return found.limit


def test_the_limit_is_told_with_its_prompts() -> None:
    """From this run's probes; without logits or probes it says that instead."""
    run = world(1, prompts=3)
    errors = number_tests(run.noise, run.looks, run.expected, 0.001)[0]
    probe = Probe(
        what="of a knob", change=0.1, prompt_id="p0", errors=(4.0,) * 8, spans=(0.0,) * 8
    )
    foreign = replace(probe, prompt_id="elsewhere")
    with_probes = replace(run.noise, probes=(foreign, probe))

    (told,) = _limit(with_probes, errors, run.expected)

    assert told.startswith("with these 3 prompts: a change of ")
    assert told.endswith(" % of a knob")
    unknown = ("unknown: nothing could be planted in this model",)
    assert _limit(run.noise, errors, run.expected) == unknown
    assert _limit(replace(run.noise, probes=(foreign,)), errors, run.expected) == unknown
    assert _limit(with_probes, None, run.expected) == (
        "a fault that changes no token would not have been seen: no logits were shown",
    )


# --- In words --------------------------------------------------------------------------------


def test_a_pass_that_did_not_run_says_why() -> None:
    """One line, and no numbers."""
    found = missed("float32", "no room on disk")

    assert not found.ran
    assert found.lines() == ("float32 pass: not run: no room on disk",)


def test_a_pass_in_words() -> None:
    """Every line that there is something to say for, and those only."""
    measured = noise(arm(0.1, 0.2, swings=(0.5, 1.0)))
    found = PassSummary(
        precision="native",
        dtype="bfloat16",
        why="a word",
        noise=measured,
        band=1.5,
        smallest_band=0.25,
        raw_rate=0.875,
        adjusted_rate=1.0,
        controls=(
            Control(name="one", passed=True, text="it held"),
            Control(name="two", passed=False, text="it did not"),
        ),
        tests=(("batch", "flips", True, "none"),),
        limit=("a change",),
    )

    assert found.lines() == (
        "native pass: logits in bfloat16 (a word)",
        (
            "  noise: 2 steps scored again; pair swings 1 (median), 1 (90 %), 1 (99 %), 1 nat "
            "(largest); band 1.5 nat"
        ),
        (
            "  tokens equal at 87.50% of steps, 100.00% with ties; smallest band that would "
            "have passed: 0.25 nat"
        ),
        "  batch, flips: none",
        "  control one: it held",
        "  control two: FAILED: it did not",
        "  limit of detection: a change",
    )
    none = replace(found, smallest_band=None)
    assert none.lines()[2].endswith("would have passed: none")
    assert PassSummary(precision="native").lines() == (
        "native pass: logits in an unknown dtype",
    )
