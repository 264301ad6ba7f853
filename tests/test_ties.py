"""Ties: what rounding excuses, what it does not, and what is counted past one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.compare import compare_end, compare_tokens, first_tie, matched_steps
from mlxcheck.records import Fault, Scores, Trace, Verdict
from tests.support.drawing import unhurried
from tests.support.made import measured, place, trace

if TYPE_CHECKING:
    from mlxcheck.records import Comparison, Finish

BAND = 0.375
MEASURED = measured(0.25)
"""One and a half times the largest swing, which is well above 2 units of logits near 4."""

OTHER, FAR, UNKNOWN = 50, 51, 99
"""Tokens: within the band of the reference's own, beyond it, and not among what was kept."""


def wide(token: int, *, below: float = 0.25, last: float = -9.0) -> Scores:
    """Make scores of a step: the reference's token, `OTHER` some nats below, `FAR` far away."""
    return Scores(ids=(token, OTHER, FAR), logprobs=(-0.5, -0.5 - below, last), logsumexp=4.5)


EXPECTED = trace(5, 6, 7, 8, 2, scored=[wide(token) for token in (5, 6, 7, 8, 2)])


def said(*tokens: int, anchors: tuple[int, ...] = (), **more: Any) -> Trace:
    """Make a candidate's answer that was put back after some of its steps."""
    return replace(trace(*tokens), anchors=anchors, **more)


def compared(actual: Trace, expected: Trace = EXPECTED, *, strict: bool = False) -> Comparison:
    """Compare with the noise that was measured, or without one."""
    noise = None if strict else MEASURED
    return compare_tokens(replace(place(), noise=noise), expected, actual)


def ended(actual: Trace, expected: Trace = EXPECTED) -> Comparison:
    """Compare the ends."""
    return compare_end(replace(place("stop"), noise=MEASURED), expected, actual)


# --- The band ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("below", "verdict"),
    [
        (0.0, Verdict.TIE),
        (0.25, Verdict.TIE),
        (BAND, Verdict.TIE),
        (math.nextafter(BAND, 1), Verdict.WRONG),
        (3.0, Verdict.WRONG),
    ],
)
def test_a_difference_is_a_tie_up_to_the_band_and_no_further(
    below: float, verdict: Verdict
) -> None:
    """At the band itself it is one; the next number above is not."""
    # A step at 0, so that the difference is the number itself and not rounded.
    scores = Scores(ids=(5, OTHER, FAR), logprobs=(0.0, -below, -9.0), logsumexp=4.0)

    found = compared(said(OTHER), trace(5, finish="length", scored=[scores]))

    assert (found.verdict, found.step, found.regret) == (verdict, 0, below)
    assert found.noise == BAND
    assert found.ulps == pytest.approx(below / 2**-5)


def test_the_band_has_a_floor_where_the_arms_moved_nothing() -> None:
    """Two units of the logits there: an honest engine rounds each of two logits."""
    silent = replace(place(), noise=measured(0.0))
    near, off = (trace(5, scored=[wide(5, below=below)]) for below in (0.0625, 0.07))

    assert compare_tokens(silent, near, said(OTHER)).verdict is Verdict.TIE
    assert compare_tokens(silent, off, said(OTHER)).verdict is Verdict.WRONG


def test_strict_mode_knows_no_ties() -> None:
    """Without a noise every other token is WRONG, and no step counts as near."""
    found = compared(said(5, OTHER, 7, 8, 2, anchors=(1,)), strict=True)

    assert (found.verdict, found.step, found.steps, found.skipped) == (Verdict.WRONG, 1, 1, 3)
    assert (found.noise, found.ulps, found.ties, found.near) == (None, None, 0, 0)
    assert "rounding" not in found.message


def test_nothing_is_excused_where_the_reference_has_no_scores() -> None:
    """A tie needs the reference's own numbers."""
    found = compared(said(5, OTHER), trace(5, 6))

    assert (found.verdict, found.regret) == (Verdict.WRONG, None)


def test_regret_is_never_below_zero() -> None:
    """mlx-lm may choose, by log-probabilities rounded once more, what is not its best."""
    upside_down = Scores(ids=(OTHER, 5, FAR), logprobs=(-0.5, -0.51, -9.0), logsumexp=4.5)

    found = compared(said(OTHER), trace(5, scored=[upside_down]))

    assert (found.verdict, found.regret, found.worst_tie) == (Verdict.TIE, 0.0, 0.0)


# --- Past a tie -------------------------------------------------------------------------------


def test_past_a_tie_it_goes_on_from_the_references_tokens() -> None:
    """Put back and equal from there: TIE, with every step compared."""
    found = compared(said(5, OTHER, 7, 8, 2, anchors=(1,)))

    assert (found.verdict, found.step) == (Verdict.TIE, 1)
    assert (found.expected, found.actual) == (6, OTHER)
    assert (found.steps, found.skipped, found.ties) == (4, 0, 1)
    assert found.worst_tie == pytest.approx(0.25)
    assert "after each tie it was put back on the reference's tokens: 5 steps" in found.message


def test_a_fault_past_a_tie_is_wrong() -> None:
    """One flip does not hide the rest."""
    found = compared(said(5, OTHER, 7, FAR, 2, anchors=(1,)))

    assert (found.verdict, found.step, found.actual) == (Verdict.WRONG, 3, FAR)
    assert (found.steps, found.skipped, found.ties) == (3, 1, 1)
    assert found.regret == pytest.approx(8.5)
    assert "no rounding: 22.7 times the band of 0.375 nat" in found.message


def test_an_answer_that_ends_past_a_tie_ends_too_early() -> None:
    """It was put back, and gave nothing more."""
    found = compared(said(5, OTHER, anchors=(1,)))

    assert (found.verdict, found.step, found.actual) == (Verdict.WRONG, 2, None)
    assert "ends too early: 2 of 5 tokens" in found.message


def test_several_ties() -> None:
    """Each was put back; the first is shown, the worst is told."""
    scored = [wide(5), wide(6, below=0.125), wide(7), wide(8, below=0.375), wide(2, below=3.0)]
    expected = replace(EXPECTED, scores=tuple(scored))

    found = compared(said(5, OTHER, 7, OTHER, 2, anchors=(1, 3)), expected)

    assert (found.verdict, found.step, found.ties) == (Verdict.TIE, 1, 2)
    assert (found.steps, found.skipped) == (4, 0)
    assert found.regret == pytest.approx(0.125)
    assert found.worst_tie == pytest.approx(0.375)
    assert found.near == 4, "all but the last step have a margin within the band"
    assert "a tie at step 1 of 5, and 1 tie after it" in found.message


def test_what_comes_after_a_tie_that_was_not_put_back_is_not_compared() -> None:
    """Another context says nothing: the steps are counted as left out, and told."""
    found = compared(said(5, OTHER, FAR, FAR, FAR))

    assert (found.verdict, found.step) == (Verdict.TIE, 1)
    assert (found.steps, found.skipped, found.ties) == (1, 3, 1)
    assert (
        "2 steps compared; past the tie of step 1 it was not put back on the reference's "
        "tokens, so that 3 steps could not be" in found.message
    )
    assert "after each tie" not in found.message


def test_an_anchor_that_is_no_tie_changes_nothing() -> None:
    """Nor does one elsewhere stand in for the one that is missing."""
    found = compared(said(5, OTHER, 7, 8, 2, anchors=(0, 2, 3)))

    assert (found.verdict, found.steps, found.skipped) == (Verdict.TIE, 1, 3)


def test_a_tie_in_the_last_step_leaves_nothing_to_compare() -> None:
    """All steps have been; there was nothing to be put back for."""
    found = compared(said(5, 6, 7, 8, OTHER))

    assert (found.verdict, found.step, found.steps, found.skipped) == (Verdict.TIE, 4, 4, 0)
    assert "\n  5 steps compared\n" in found.message


def test_a_stop_id_left_out_past_a_tie_is_agreed_on() -> None:
    """As it is without one: nothing was left out of the comparison."""
    found = compared(said(5, OTHER, 7, 8, anchors=(1,)))

    assert (found.verdict, found.steps, found.skipped) == (Verdict.TIE, 3, 0)


def test_an_engine_that_fails_past_a_tie_is_an_error() -> None:
    """The steps before are counted."""
    found = compared(said(5, OTHER, 7, anchors=(1,), fault=Fault(summary="it raised")))

    assert (found.verdict, found.step, found.steps) == (Verdict.ERROR, None, 3)


# --- The candidate's own numbers --------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "verdict"),
    [(0.0, Verdict.TIE), (0.25, Verdict.TIE), (0.5, Verdict.WRONG), (5.0, Verdict.WRONG)],
)
def test_a_candidate_that_is_sure_of_another_token_has_no_tie(
    own: float, verdict: Verdict
) -> None:
    """By its own numbers too the two have to be close."""
    mine = Scores(ids=(OTHER, 5), logprobs=(-0.5, -0.5 - own), logsumexp=4.5)

    found = compared(said(OTHER, scores=(mine,)), trace(5, scored=[wide(5)]))

    assert found.verdict is verdict
    contradicted = "by the candidate's own numbers it is no tie" in found.message
    assert contradicted == (verdict is Verdict.WRONG)
    assert found.top_actual == ((OTHER, -0.5), (5, -0.5 - own))


def test_numbers_that_lack_one_of_the_two_contradict_nothing() -> None:
    """An engine that shows its own token alone."""
    mine = Scores(ids=(OTHER,), logprobs=(-0.1,))

    found = compared(said(OTHER, scores=(mine,)), trace(5, scored=[wide(5)]))

    assert found.verdict is Verdict.TIE


# --- Tokens that were not kept ----------------------------------------------------------------


def test_a_token_that_was_not_kept_is_wrong_where_the_last_one_kept_is_beyond() -> None:
    """It is at least as bad as that one; by how much is not known."""
    found = compared(said(5, UNKNOWN))

    assert (found.verdict, found.step, found.regret) == (Verdict.WRONG, 1, None)
    assert "not among its top 3" in found.message
    assert "no rounding: 22.7 times the band" in found.message


def test_a_token_that_was_not_kept_cannot_be_weighed_where_all_kept_are_close() -> None:
    """No verdict, and the advice; the step that could not be weighed is left out too."""
    flat = [wide(token, last=-0.8) for token in (5, 6, 7, 8, 2)]

    found = compared(said(5, UNKNOWN, 7, 8, 2), replace(EXPECTED, scores=tuple(flat)))

    assert (found.verdict, found.step) == (Verdict.INCONCLUSIVE, None)
    assert (found.steps, found.skipped) == (1, 4)
    assert "a token that is not among the reference's top 3" in found.message
    assert "use the float32 pass, or a trained model" in found.message


# --- The end ----------------------------------------------------------------------------------


def test_a_tie_in_the_last_step_is_a_tie_of_the_end() -> None:
    """Stopping or not was the close call: whatever followed is no evidence."""
    for finish in ("stop", "length", None):
        found = ended(replace(said(5, 6, 7, 8, OTHER, FAR), finish=finish))

        assert (found.verdict, found.step, found.ties) == (Verdict.TIE, 4, 1)
        assert found.steps == 0, "the end is one step, and the one at which they differ"
        assert "check stop: a tie at step 4 of 5" in found.message


@pytest.mark.parametrize(
    ("actual", "verdict"),
    [
        (said(5, OTHER, 7, 8, 2, anchors=(1,)), Verdict.EXACT),
        (replace(said(5, OTHER, 7, 8, 2, anchors=(1,)), finish="length"), Verdict.WRONG),
        (said(5, OTHER, 7, 8, 2, 9, anchors=(1,)), Verdict.WRONG),
        (said(5, OTHER, 7, anchors=(1,)), Verdict.WRONG),
        (said(5, OTHER, 7, 8, 2), Verdict.INCONCLUSIVE),
        (said(5, OTHER, FAR, 8, 2, anchors=(1,)), Verdict.INCONCLUSIVE),
    ],
)
def test_ends_past_a_tie(actual: Trace, verdict: Verdict) -> None:
    """Where it was put back the ends can be compared, and otherwise they cannot."""
    assert ended(actual).verdict is verdict


# --- Steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "step"),
    [
        (said(5, 6, 7, 8, 2), None),
        (said(5, FAR, 7, 8, 2), None),
        (said(OTHER, 9, 9), 0),
        (said(5, OTHER, 7, OTHER, 2, anchors=(1,)), 3),
        (said(5, 6, 7, 8, OTHER), None),
        (said(5, OTHER, fault=Fault(summary="it raised")), None),
    ],
)
def test_where_an_answer_can_be_put_back(actual: Trace, step: int | None) -> None:
    """At the first tie that it was not put back after, unless nothing follows."""
    assert first_tie(MEASURED, EXPECTED, actual) == step


@pytest.mark.parametrize(
    ("actual", "steps"),
    [
        (said(5, 6, 7, 8, 2), 5),
        (said(5, FAR, 7, 8, 2), 2),
        (said(5, OTHER, 7, 8, 2), 2),
        (said(5, OTHER, 7, 8, 2, anchors=(1,)), 5),
        (said(5, 6), 2),
        (said(), 0),
    ],
)
def test_how_many_steps_have_the_same_context(actual: Trace, steps: int) -> None:
    """That of a difference still has it: what was said before is the same."""
    assert matched_steps(MEASURED, EXPECTED, actual) == steps


@unhurried
@given(st.data())
def test_every_step_is_accounted_for_once(data: st.DataObject) -> None:
    """Agreed, differing or left out, whatever the ties, the anchors and the end."""
    expected = data.draw(st.lists(st.integers(4, 9), min_size=1, max_size=10))
    close = data.draw(st.sampled_from([-9.0, -0.8]))
    finish: Finish = data.draw(st.sampled_from(["stop", "length"]))
    scored = [wide(token, last=close) for token in expected]
    tokens = [
        data.draw(st.sampled_from([token, token, OTHER, FAR, UNKNOWN])) for token in expected
    ]
    kept = data.draw(st.integers(0, len(tokens)))
    anchors = data.draw(st.lists(st.integers(0, 9)).map(tuple))

    found = compared(
        said(*tokens[:kept], anchors=anchors), trace(*expected, finish=finish, scored=scored)
    )

    counted = found.steps + found.skipped + (found.step is not None)
    left_out = counted == len(expected) - 1 and finish == "stop" and kept == counted
    assert counted == len(expected) or left_out
    is_tie = found.verdict is Verdict.TIE
    assert found.near == found.steps + is_tie, "every step here has a margin within the band"
    assert found.ties <= found.near
    assert bool(found.worst_tie) == bool(found.ties)
    assert found.worst_tie <= BAND
    assert found.regret is None or found.regret >= 0
    assert found.verdict is not Verdict.EXACT or not found.ties
