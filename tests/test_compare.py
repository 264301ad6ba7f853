"""Judgement: which verdict, at which step, with which evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.compare import compare_end, compare_tokens, without_verdict
from mlxcheck.records import Fault, Verdict
from tests.support.drawing import unhurried
from tests.support.made import case_of, place, scores, trace

if TYPE_CHECKING:
    from mlxcheck.records import Finish, Trace

IDS = st.lists(st.integers(4, 9), min_size=1, max_size=12)
FINISHES: st.SearchStrategy[Finish] = st.sampled_from(("stop", "length"))


def test_equal_answers_are_exact() -> None:
    """The same tokens are EXACT: every step agreed, none was left, nothing to explain."""
    found = compare_tokens(place(), trace(5, 6, 2), trace(5, 6, 2))

    assert found.verdict is Verdict.EXACT
    assert (found.steps, found.skipped, found.step) == (3, 0, None)
    assert (found.expected, found.actual, found.message) == (None, None, "")
    assert found.regret == 0.0


@unhurried
@given(IDS, st.lists(st.integers(0, 99), max_size=5), FINISHES)
def test_what_is_said_after_the_reference_has_ended_is_no_evidence(
    tokens: list[int], more: list[int], finish: Finish
) -> None:
    """Tokens past the end of the reference's answer change nothing in a token's verdict."""
    found = compare_tokens(
        place(), trace(*tokens, finish=finish), trace(*tokens, *more, finish=None)
    )

    assert found.verdict is Verdict.EXACT
    assert found.steps == len(tokens)


@unhurried
@given(st.data())
def test_first_difference_is_the_step(data: st.DataObject) -> None:
    """WRONG names the first step that differs, and every step is accounted for once."""
    expected = data.draw(IDS)
    step = data.draw(st.integers(0, len(expected) - 1))
    other = data.draw(st.integers(10, 99))
    after = data.draw(st.lists(st.integers(0, 99), max_size=12))

    found = compare_tokens(
        place(), trace(*expected), trace(*expected[:step], other, *after, finish="length")
    )

    assert found.verdict is Verdict.WRONG
    assert (found.step, found.expected, found.actual) == (step, expected[step], other)
    assert found.steps == step
    assert found.steps + 1 + found.skipped == len(expected)
    assert f"(step {step})" in found.message


@unhurried
@given(st.data())
def test_an_answer_that_ends_early_is_wrong(data: st.DataObject) -> None:
    """A prefix of the answer is WRONG at its end, unless only the stop id is missing."""
    expected = data.draw(IDS)
    kept = data.draw(st.integers(0, len(expected) - 1))
    finish = data.draw(FINISHES)

    found = compare_tokens(
        place(), trace(*expected, finish=finish), trace(*expected[:kept], finish="stop")
    )

    if finish == "stop" and kept == len(expected) - 1:
        assert (found.verdict, found.steps) == (Verdict.EXACT, kept)
        return
    assert found.verdict is Verdict.WRONG
    assert (found.step, found.expected, found.actual) == (kept, expected[kept], None)
    assert found.skipped == len(expected) - kept - 1


def test_nothing_at_all_is_not_a_stop_id_left_out_of_a_longer_answer() -> None:
    """An empty answer is WRONG at step 0 where more than the stop id was due."""
    found = compare_tokens(place(), trace(5, 2), trace())

    assert (found.verdict, found.step, found.steps) == (Verdict.WRONG, 0, 0)


def test_margin_and_regret_are_the_references_own() -> None:
    """Margin is top 1 minus top 2 there; regret is how far below the candidate's token is."""
    scored = [scores(5, 8, 9), scores(6, 8, 9, step=0.125), scores(2, 8)]

    found = compare_tokens(place(), trace(5, 6, 2, scored=scored), trace(5, 9, 2))

    assert (found.step, found.margin, found.regret) == (1, 0.125, 0.25)
    assert found.noise is None


@pytest.mark.parametrize(
    ("actual", "margin", "why"),
    [(trace(5, 99), 0.5, "not in the top k"), (trace(5), 0.5, "no token")],
)
def test_regret_is_unknown_rather_than_guessed(actual: Trace, margin: float, why: str) -> None:
    """Regret is None where the reference has no number for the candidate's token."""
    scored = [scores(token, 8) for token in (5, 6, 7, 2)]
    expected = trace(5, 6, 7, 2, scored=scored)

    found = compare_tokens(place(), expected, actual)

    assert found.verdict is Verdict.WRONG
    assert (found.margin, found.regret) == (margin, None), why


def test_margin_is_unknown_where_the_reference_has_no_scores() -> None:
    """Without scores there is a verdict, and no margin or regret."""
    found = compare_tokens(place(), trace(5, 6, 2), trace(5, 7, 2))

    assert (found.verdict, found.margin, found.regret) == (Verdict.WRONG, None, None)


@unhurried
@given(IDS, st.integers(0, 12))
def test_an_engine_that_failed_is_an_error_whatever_it_said(
    tokens: list[int], kept: int
) -> None:
    """A fault is ERROR even after every right token; what agreed before is counted."""
    given_ = tokens[:kept]
    actual = trace(*given_, finish=None, fault=Fault(summary="it raised"))

    found = compare_tokens(place(), trace(*tokens), actual)

    assert found.verdict is Verdict.ERROR
    assert (found.step, found.steps) == (None, len(given_))
    assert "it raised" in found.message


def test_evidence_names_case_row_and_neighbours() -> None:
    """A comparison says in which case and row it was made, and beside whom."""
    case = case_of("sum", "capital", "sum", case_id="batch-3/1")

    found = compare_tokens(place("batch", case, row=1), trace(5, 2), trace(5, 2))

    assert (found.check, found.prompt_id, found.case) == ("batch", "capital", "batch-3/1")
    assert (found.batch, found.row, found.neighbours) == (3, 1, ("sum", "sum"))


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_ends_agree(finish: Finish) -> None:
    """The same length and the same reason is EXACT, and counts as one step compared."""
    found = compare_end(place("stop"), trace(5, 2, finish=finish), trace(5, 2, finish=finish))

    assert (found.verdict, found.steps, found.step) == (Verdict.EXACT, 1, None)


@pytest.mark.parametrize(
    ("expected", "actual", "evidence", "headline"),
    [
        (trace(5, 6, 2), trace(5, 6, 2, 7), (3, None, 7), "goes on past its stop id: 4 tokens"),
        (trace(5, 6, 2), trace(5, 6), (2, 2, None), "the stop id of step 2 was left out"),
        (trace(5, 6, 2), trace(5), (1, 6, None), "ends too early: 1 of 3 tokens"),
        (
            trace(5, 6, 7, finish="length"),
            trace(5, 6, finish="length"),
            (2, 7, None),
            "ends too early: 2 of 3 tokens",
        ),
        (trace(5, 6, 2), trace(5, 6, 2, finish="length"), (2, None, None), "ends for 'length'"),
        (
            trace(5, 6, 7, finish="length"),
            trace(5, 6, 7, finish=None),
            (2, None, None),
            "cut off at 3 tokens: the engine did not end it",
        ),
    ],
)
def test_ends_differ(
    expected: Trace,
    actual: Trace,
    evidence: tuple[int, int | None, int | None],
    headline: str,
) -> None:
    """Each way to end otherwise is WRONG, with its own headline and what agreed before."""
    found = compare_end(place("stop"), expected, actual)

    assert found.verdict is Verdict.WRONG
    assert (found.step, found.expected, found.actual) == evidence
    assert headline in found.message
    agreed = min(len(actual.tokens), len(expected.tokens)) - 1
    which = f"steps 0-{agreed} agree" if agreed else "step 0 agrees"
    assert f"\n  {which}\n" in found.message


def test_ends_of_answers_that_differ_are_not_compared() -> None:
    """Where tokens before the end differ there is no verdict about the end."""
    found = compare_end(place("stop"), trace(5, 6, 2), trace(5, 7, 7))

    assert (found.verdict, found.steps, found.step) == (Verdict.INCONCLUSIVE, 0, None)
    assert "differ from step 1 on" in found.message


def test_end_of_an_engine_that_failed_is_an_error() -> None:
    """A fault is ERROR here too, and no step counts as compared."""
    actual = trace(5, finish=None, fault=Fault(summary="it raised"))

    found = compare_end(place("stop"), trace(5, 2), actual)

    assert (found.verdict, found.steps) == (Verdict.ERROR, 0)
    assert "it gave 1 token before that; step 0 agrees" in found.message


@unhurried
@given(IDS, IDS, FINISHES, st.sampled_from(["stop", "length", None]))
def test_an_end_is_exact_only_where_the_whole_answers_are_equal(
    left: list[int], right: list[int], finish: Finish, other: Finish | None
) -> None:
    """No pair of answers that differ in a token, length or reason has the same end."""
    found = compare_end(place("stop"), trace(*left, finish=finish), trace(*right, finish=other))

    equal = left == right and finish == other
    assert (found.verdict is Verdict.EXACT) == equal
    assert bool(found.message) != equal


def test_without_verdict_is_inconclusive_with_its_reason() -> None:
    """A comparison that could not be made says why, and counts no step."""
    found = without_verdict(place(), "the feature never ran")

    assert (found.verdict, found.steps, found.step) == (Verdict.INCONCLUSIVE, 0, None)
    assert "no verdict: the feature never ran" in found.message
