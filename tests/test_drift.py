"""The judgement of an engine's numbers, and the whole text of each kind of message."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.compare import compare_tokens
from mlxcheck.drift import compare_numbers
from mlxcheck.records import Fault, Scores, Trace, Verdict
from tests.support.drawing import unhurried
from tests.support.made import case_of, measured, place, trace

if TYPE_CHECKING:
    from mlxcheck.records import Comparison

BAND, DRIFT_BAND = 0.375, 1.0
MEASURED = measured(0.25, span=0.5)
"""Bands of one and a half times a swing, and twice a span, well above the floors here."""

INF, NAN = math.inf, math.nan


def step(*logprobs: float, first: int = 5, logsumexp: float | None = 4.5) -> Scores:
    """Make the scores of tokens from *first* on, put in order."""
    pairs = sorted(
        zip(range(first, first + len(logprobs)), logprobs, strict=True),
        key=lambda pair: (-pair[1], pair[0]),
    )
    ids, numbers = zip(*pairs, strict=True)
    return Scores(ids=ids, logprobs=numbers, logsumexp=logsumexp)


OURS = step(-0.5, -0.75, -4.0)
EXPECTED = trace(5, 5, 5, 5, finish="length", scored=[OURS] * 4)


def forced(*scored: Scores, **more: object) -> Trace:
    """Make what an engine shows that is forced to the reference's tokens."""
    made = replace(EXPECTED, scores=scored, anchors=tuple(range(4)))
    return replace(made, **more)  # type: ignore[arg-type]


def judged(actual: Trace, *, expected: Trace = EXPECTED) -> Comparison:
    """Compare numbers with the noise that was measured."""
    return compare_numbers(replace(place("logits"), noise=MEASURED), expected, actual)


def at(number: int, other: Scores) -> Trace:
    """Make what is the reference's but for one step."""
    scored = [OURS] * 4
    scored[number] = other
    return forced(*scored)


# --- Agreement --------------------------------------------------------------------------------


def test_equal_numbers_are_exact() -> None:
    """Every step is compared, and each has an error of nothing."""
    found = judged(forced(*[OURS] * 4))

    assert (found.verdict, found.step, found.regret) == (Verdict.EXACT, None, 0.0)
    assert (found.steps, found.skipped, found.near) == (4, 0, 4)
    assert (found.errors, found.divergences, found.flips) == ((0.0,) * 4, (0.0,) * 4, ())
    assert found.message == ""


@unhurried
@given(st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=3), st.floats(-0.05, 0.05))
def test_small_differences_are_exact_and_counted(offs: list[float], constant: float) -> None:
    """Within the band nothing is said of one step; its error is kept for all together.

    A constant that is added to all numbers is none of that error.
    """
    moved = [ours + off + constant for ours, off in zip(OURS.logprobs, offs, strict=True)]

    found = judged(at(2, step(*moved)))

    assert found.verdict is Verdict.EXACT
    mean = sum(offs) / 3
    rms = math.sqrt(sum((off - mean) ** 2 for off in offs) / 3)
    assert found.errors == pytest.approx((0.0, 0.0, rms, 0.0), abs=1e-6)
    assert all(each >= 0 for each in found.divergences)


def test_a_constant_beyond_the_band_is_no_honest_log_probability() -> None:
    """Log-probabilities are normalised: an engine that reports them all too high is off."""
    found = judged(at(2, step(*(ours + 3 for ours in OURS.logprobs))))

    assert (found.verdict, found.step) == (Verdict.DRIFT, 2)


# --- Other tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(0.25, Verdict.TIE), (BAND, Verdict.TIE), (0.376, Verdict.WRONG), (3.0, Verdict.WRONG)],
)
def test_another_best_token_is_weighed_by_the_references_margin(
    margin: float, verdict: Verdict
) -> None:
    """TIE up to the band, WRONG beyond it, at the first step that is."""
    ours = step(0.0, -margin, -9.0)
    expected = replace(EXPECTED, scores=(OURS, ours, ours, OURS))
    theirs = step(-margin, 0.0, -9.0)

    found = judged(forced(OURS, theirs, theirs, OURS), expected=expected)

    assert (found.verdict, found.step, found.flips) == (verdict, 1, (1, 2))
    assert (found.expected, found.actual) == (5, 6)
    assert (found.steps, found.skipped) == (3, 0)
    assert found.regret == margin
    assert found.top_actual == ((6, 0.0), (5, -margin), (7, -9.0))
    if verdict is Verdict.TIE:
        assert (found.ties, found.worst_tie) == (2, margin)


def test_of_several_ties_the_first_is_shown_and_the_worst_is_told() -> None:
    """As of the tokens of an answer."""
    other = step(-0.5, -0.625, -4.0)
    expected = replace(EXPECTED, scores=(other, OURS, OURS, other))
    flips = step(-0.625, -0.5, -4.0), step(-0.75, -0.5, -4.0)

    found = judged(forced(flips[0], OURS, flips[1], other), expected=expected)

    assert (found.verdict, found.step, found.flips) == (Verdict.TIE, 0, (0, 2))
    assert (found.regret, found.worst_tie) == (0.125, 0.25)
    assert "a tie at step 0 of 4, and 1 tie after it" in found.message


def test_a_wrong_token_counts_before_a_drift_and_a_drift_before_a_tie() -> None:
    """The worst is told, wherever it is."""
    tie, drift = step(-0.75, -0.5, -4.0), step(-0.5, -0.75, -6.0)
    wrong = step(-9.0, -0.75, -0.5)

    assert judged(forced(tie, drift, wrong, OURS)).step == 2
    assert judged(forced(tie, drift, wrong, OURS)).verdict is Verdict.WRONG
    assert judged(forced(tie, drift, OURS, OURS)).step == 1
    assert judged(forced(tie, drift, OURS, OURS)).verdict is Verdict.DRIFT
    assert judged(forced(tie, OURS, OURS, OURS)).verdict is Verdict.TIE


def test_a_token_that_was_not_kept_cannot_always_be_weighed() -> None:
    """Where all that was kept is close together there is no verdict."""
    flat = step(-0.5, -0.6, -0.7)
    expected = replace(EXPECTED, scores=(flat,) * 4)
    theirs = step(-0.4, -0.5, -0.6, -0.7, first=4)

    found = judged(forced(flat, theirs, flat, flat), expected=expected)

    assert (found.verdict, found.step) == (Verdict.INCONCLUSIVE, None)
    assert "use the float32 pass, or a trained model" in found.message


# --- Numbers that cannot be -------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        Scores(ids=(5, 6, 7), logprobs=(NAN, NAN, NAN), logsumexp=NAN),
        Scores(ids=(5, 6, 7), logprobs=(-0.5, -0.75, -4.0), logsumexp=INF),
        Scores(ids=(5, 6, 7), logprobs=(INF, -0.75, -4.0)),
        Scores(ids=(5, 6, 7), logprobs=(-INF, -INF, -INF)),
        Scores(ids=(5, 6, 7), logprobs=(-0.5, NAN, -4.0)),
        Scores(ids=(5, 6, 7), logprobs=(-0.5, -0.75, NAN)),
    ],
)
def test_what_is_not_finite_is_wrong_at_its_step(bad: Scores) -> None:
    """NaN and infinities, among logits and among reported log-probabilities."""
    found = judged(at(2, bad))

    assert (found.verdict, found.step, found.steps) == (Verdict.WRONG, 2, 2)
    assert (found.expected, found.actual) == (5, None)
    assert "the logits of step 2 are not finite (NaN or infinite)" in found.message


def test_a_masked_token_is_beyond_any_band() -> None:
    """Minus infinity for one token is a number that engines give, and the reference did not."""
    found = judged(at(1, step(-0.5, -0.75, -INF)))

    assert (found.verdict, found.step) == (Verdict.DRIFT, 1)
    assert "that is inf nat" in found.message


# --- Drift ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "verdict"),
    [(0.99, Verdict.EXACT), (1.0, Verdict.EXACT), (1.01, Verdict.DRIFT), (8.0, Verdict.DRIFT)],
)
def test_numbers_beyond_the_band_of_a_step_are_a_drift(off: float, verdict: Verdict) -> None:
    """Twice the arms' span is still rounding's."""
    ours = step(0.0, -0.5, -4.0)
    expected = replace(EXPECTED, scores=(ours,) * 4)

    found = judged(forced(ours, step(0.0, -0.5, -4.0 - off), ours, ours), expected=expected)

    assert found.verdict is verdict
    if verdict is Verdict.DRIFT:
        assert (found.step, found.steps, found.skipped) == (1, 3, 0)
        assert (found.expected, found.actual) == (5, 5), "the token is the same"
        assert f"{off:.3g} times as much" in found.message


@pytest.mark.parametrize(
    ("units", "verdict"),
    [(0.0, Verdict.EXACT), (2.0, Verdict.EXACT), (2.1, Verdict.DRIFT), (NAN, Verdict.DRIFT)],
)
def test_reported_numbers_have_to_be_those_of_the_logits(
    units: float, verdict: Verdict
) -> None:
    """An engine that reports other log-probabilities than it decodes by drifts there."""
    found = judged(forced(*[OURS] * 4, reported=(0.0, units, 0.0, 0.0)))

    assert found.verdict is verdict
    if verdict is Verdict.DRIFT:
        assert found.step == 1
        assert "that it reports at step 1 are" in found.message
        assert "(2 at most are rounding's)" in found.message


# --- What cannot be compared ------------------------------------------------------------------


def test_no_numbers_are_no_verdict() -> None:
    """Nothing compared is never a pass."""
    found = judged(forced())

    assert (found.verdict, found.steps) == (Verdict.INCONCLUSIVE, 0)
    assert "no verdict: it showed no log-probabilities" in found.message


def test_one_number_a_step_is_no_verdict() -> None:
    """Of one number there is no difference but a constant: most engines report just one."""
    alone = Scores(ids=(5,), logprobs=(-0.9,))

    found = judged(forced(*[alone] * 4))

    assert (found.verdict, found.steps) == (Verdict.INCONCLUSIVE, 0)
    assert "two of the reference's top tokens: there is nothing to compare" in found.message
    assert judged(forced(alone, OURS, alone, alone)).verdict is Verdict.EXACT


def test_without_a_noise_there_is_no_verdict() -> None:
    """Nothing that numbers could be held against."""
    found = compare_numbers(place("logits"), EXPECTED, forced(*[OURS] * 4))

    assert found.verdict is Verdict.INCONCLUSIVE
    assert "no noise was measured" in found.message


def test_an_engine_that_failed_is_an_error() -> None:
    """Whatever it had shown until then."""
    found = judged(forced(*[OURS] * 4, fault=Fault(summary="it raised")))

    assert (found.verdict, found.steps) == (Verdict.ERROR, 0)
    assert "no answer from mine: it raised" in found.message


@pytest.mark.parametrize(
    ("tokens", "anchors", "steps"),
    [
        ((5, 5, 5, 5), (), 4),
        ((5, 9, 5, 5), (), 2),
        ((5, 6, 5, 5), (), 2),
        ((5, 6, 5, 5), (1,), 4),
        ((5, 6, 9, 5), (1,), 3),
    ],
)
def test_an_engine_that_is_not_forced_is_compared_while_the_context_is_the_same(
    tokens: tuple[int, ...], anchors: tuple[int, ...], steps: int
) -> None:
    """Up to a difference, that step included, and past a tie where it was put back.

    What is off after that is no evidence.
    """
    off = step(-9.0, -9.5, -0.1)
    scored = tuple(OURS if number < steps else off for number in range(4))
    actual = replace(EXPECTED, tokens=tokens, anchors=anchors, scores=scored)

    found = judged(actual)

    assert (found.verdict, found.steps, found.skipped) == (Verdict.EXACT, steps, 4 - steps)
    assert len(found.errors) == steps


# --- Messages ---------------------------------------------------------------------------------


def check_text(found: Comparison, expected: str) -> None:
    """Compare a whole message with what was written down."""
    assert found.message == textwrap.dedent(expected).strip("\n")


def test_the_text_of_a_tie() -> None:
    """Both sides, how far apart, what rounding may do and how that is known, what was next."""
    mine = Scores(ids=(6, 5, 7), logprobs=(-0.55, -0.7, -4.0), logsumexp=4.5)
    actual = replace(trace(5, 6, 5, 5), anchors=(1,), scores=(OURS, mine, OURS, OURS))
    case = case_of("sum", "capital", case_id="batch-2/0")

    found = compare_tokens(replace(place("batch", case), noise=MEASURED), EXPECTED, actual)

    assert found.verdict is Verdict.TIE
    check_text(
        found,
        """
        sum, check batch: a tie at step 1 of 4
          expected       5 'f'   reference  mlx-lm 0.0
          actual         6 'g'   candidate  mine
          the reference puts the candidate's token 0.25 nat below its own (8 units in the last place of bfloat16 there): within the band of 0.375 nat
          the reference's own margin there is 0.25 nat (top 1 minus top 2)
          the band: the reference scored 1 step again in other shapes (one shot); 1.5 times the largest change that made, 0.25 nat
          best of the reference: 'f' -0.500, 'g' -0.750, 'h' -4.000
          best of the candidate: 'g' -0.550, 'f' -0.700, 'h' -4.000
          batch of 2, row 0; neighbours: capital
          after each tie it was put back on the reference's tokens: 4 steps compared
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own line
    )


def test_the_text_of_a_drift() -> None:
    """How far off, how many times what rounding does, and both engines' best tokens."""
    found = judged(at(2, step(-0.5, -0.75, -6.0)))

    assert found.verdict is Verdict.DRIFT
    check_text(
        found,
        """
        sum, check logits: the log-probabilities of step 2 are off by more than rounding
          expected       5 'f'   reference  mlx-lm 0.0
          actual         5 'f'   candidate  mine
          that is 2 nat (64 units in the last place of bfloat16 there) where at most 1 nat are rounding's: 2 times as much
          the reference's own margin there is 0.25 nat (top 1 minus top 2)
          the band: the reference scored 1 step again in other shapes (one shot); 2 times the largest change that made, 0.5 nat
          best of the reference: 'f' -0.500, 'g' -0.750, 'h' -4.000
          best of the candidate: 'f' -0.500, 'g' -0.750, 'h' -6.000
          alone: a single request
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own line
    )


def test_the_text_of_a_wrong_token() -> None:
    """Margin, regret and rank; how many bands and units that is; where the band comes from."""
    noise = measured(1e-7, dtype="float32")
    actual = replace(trace(5, 7, 5, 5), scores=(OURS, step(-4.0, -0.75, -0.5)))

    found = compare_tokens(replace(place(), noise=noise), EXPECTED, actual)

    assert found.verdict is Verdict.WRONG
    check_text(
        found,
        """
        sum, check tokens: token 2 of 4 differs (step 1)
          expected       5 'f'   reference  mlx-lm 0.0
          actual         7 'h'   candidate  mine
          the reference's own margin there is 0.25 nat (top 1 minus top 2); the candidate's token is its number 3, 3.5 nat below
          no rounding: 1.15e+05 times the band of 3.052e-05 nat (7.34e+06 units in the last place of float32 there)
          the band: the reference scored 1 step again in other shapes (one shot); 64 units in the last place of float32, since that moved nothing by more than 1e-07 nat
          best of the reference: 'f' -0.500, 'g' -0.750, 'h' -4.000
          best of the candidate: 'h' -0.500, 'g' -0.750, 'f' -4.000
          alone: a single request
          step 0 agrees; steps 2-3 were not compared, since what came before them differs
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own line
    )


def test_the_text_of_a_drift_within_the_floor() -> None:
    """Where the arms moved nothing, the floor is doubled for a whole step, and told so."""
    silent = replace(place("logits"), noise=measured(0.0, dtype="float32"))

    found = compare_numbers(silent, EXPECTED, at(2, step(-0.5, -0.75, -4.1)))

    assert found.verdict is Verdict.DRIFT
    assert "128 units in the last place of float32, since that moved nothing" in found.message
