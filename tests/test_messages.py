"""The exact text of every kind of message, as a stranger reads it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from mlxcheck import messages
from mlxcheck.compare import compare_end, compare_tokens, without_verdict
from mlxcheck.records import Fault
from tests.support.made import case_of, place, scores, trace

if TYPE_CHECKING:
    from mlxcheck.records import Comparison

EXPECTED = trace(4, 5, 6, 7, 2, scored=[scores(token, 30, 31) for token in (4, 5, 6, 7, 2)])


def block(text: str) -> str:
    """Return a triple-quoted text without its indentation and last line end."""
    return textwrap.dedent(text).strip("\n")


def check_text(found: Comparison, expected: str) -> None:
    """Compare a whole message with what was written down."""
    assert found.message == block(expected)


def test_wrong_token_alone() -> None:
    """A difference of a lone prompt, by a token that the reference ranks."""
    found = compare_tokens(place(), EXPECTED, trace(4, 5, 31, 8))

    check_text(
        found,
        """
        sum, check tokens: token 3 of 5 differs (step 2)
          expected       6 'g'   reference  mlx-lm 0.0
          actual        31 'f'   candidate  mine
          the reference's own margin there is 0.5 nat (top 1 minus top 2); the candidate's token is its number 3, 1 nat below
          best of the reference: 'g' -0.250, 'e' -0.750, 'f' -1.250
          alone: a single request
          steps 0-1 agree; steps 3-4 were not compared, since what came before them differs
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own line
    )


def test_wrong_token_in_a_batch_and_not_in_the_top() -> None:
    """Batch company is told by row and neighbours; an unranked token as such."""
    case = case_of("sum", "capital", "count", case_id="batch-3/0")

    found = compare_tokens(place("batch", case, row=1), EXPECTED, trace(4, 99, 6))

    check_text(
        found,
        """
        capital, check batch: token 2 of 5 differs (step 1)
          expected       5 'f'   reference  mlx-lm 0.0
          actual        99 'v'   candidate  mine
          the reference's own margin there is 0.5 nat (top 1 minus top 2); the candidate's token is not among its top 3
          best of the reference: 'f' -0.250, 'e' -0.750, 'f' -1.250
          batch of 3, row 1; neighbours: sum, count
          step 0 agrees; steps 2-4 were not compared, since what came before them differs
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own line
    )


def test_wrong_first_and_last_token_without_scores() -> None:
    """Without scores the margin's line is left out; nothing agreed, or nothing was left."""
    first = compare_tokens(place(), trace(4, 5), trace(9, 9))
    last = compare_tokens(place(), trace(4, 5), trace(4, 9))

    check_text(
        first,
        """
        sum, check tokens: token 1 of 2 differs (step 0)
          expected       4 'e'   reference  mlx-lm 0.0
          actual         9 'j'   candidate  mine
          alone: a single request
          no step agrees; step 1 was not compared, since what came before them differs
          again: mlxcheck run M --backend mine
        """,
    )
    check_text(
        last,
        """
        sum, check tokens: token 2 of 2 differs (step 1)
          expected       5 'f'   reference  mlx-lm 0.0
          actual         9 'j'   candidate  mine
          alone: a single request
          step 0 agrees
          again: mlxcheck run M --backend mine
        """,
    )


def test_an_answer_that_ends_too_early() -> None:
    """An early end shows what was due, and the margin there, and no token of the engine."""
    found = compare_tokens(place(), EXPECTED, trace(4, 5, 6))

    check_text(
        found,
        """
        sum, check tokens: the answer ends too early: 3 of 5 tokens (step 3 is missing)
          expected       7 'h'                      reference  mlx-lm 0.0
          actual         - (the answer had ended)   candidate  mine
          the reference's own margin there is 0.5 nat (top 1 minus top 2)
          best of the reference: 'h' -0.250, 'e' -0.750, 'f' -1.250
          alone: a single request
          steps 0-2 agree; step 4 was not compared, since what came before them differs
          again: mlxcheck run M --backend mine
        """,
    )


def test_an_answer_that_goes_on_past_its_stop_id() -> None:
    """An overrun shows the first token too many, with every step before it in agreement."""
    found = compare_end(place("stop"), EXPECTED, trace(4, 5, 6, 7, 2, 8, 9))

    check_text(
        found,
        """
        sum, check stop: the answer goes on past its stop id: 7 tokens where the reference stopped at step 4
          expected       - (the answer had ended)   reference  mlx-lm 0.0
          actual         8 'i'                      candidate  mine
          alone: a single request
          steps 0-4 agree
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own line
    )


def test_error_with_a_short_traceback() -> None:
    """An ERROR names what happened first and shows the engine's own traceback last."""
    detail = "Traceback:\n  here\nIndexError\n"
    fault = Fault(summary="step() raised IndexError: 2", detail=detail)
    case = case_of("sum", case_id="batch-1/sum")

    found = compare_tokens(
        place("batch", case), EXPECTED, trace(4, 5, finish=None, fault=fault)
    )

    check_text(
        found,
        """
        sum, check batch: no answer from mine: step() raised IndexError: 2
          batch of 1, row 0: the batch path without neighbours
          it gave 2 tokens before that; steps 0-1 agree
          again: mlxcheck run M --backend mine
            Traceback:
              here
            IndexError
        """,
    )


def test_error_without_a_traceback() -> None:
    """A fault without detail ends with the command."""
    actual = trace(finish=None, fault=Fault(summary="it gave 3.0"))

    found = compare_tokens(place(), EXPECTED, actual)

    check_text(
        found,
        """
        sum, check tokens: no answer from mine: it gave 3.0
          alone: a single request
          it gave 0 tokens before that; no step agrees
          again: mlxcheck run M --backend mine
        """,
    )


@pytest.mark.parametrize(("lines", "cut"), [(40, ""), (41, "    ... 1 line before")])
def test_a_long_traceback_is_cut_at_its_top(lines: int, cut: str) -> None:
    """Forty lines are shown, the last ones, and how many came before."""
    detail = "\n".join(f"frame {n}" for n in range(lines))
    actual = trace(finish=None, fault=Fault(summary="it raised", detail=detail))

    found = compare_tokens(place(), EXPECTED, actual)

    shown = [f"    frame {n}" for n in range(lines - 40, lines)]
    expected = [cut, *shown] if cut else shown
    assert found.message.splitlines()[4:] == expected


def test_inconclusive() -> None:
    """No verdict: why, in what company, and the command."""
    case = case_of("sum", "capital", case_id="batch-2/0")

    found = without_verdict(place("batch", case), "no decode step had two rows")

    check_text(
        found,
        """
        sum, check batch: no verdict: no decode step had two rows
          batch of 2, row 0; neighbours: capital
          again: mlxcheck run M --backend mine
        """,
    )


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (6, "neighbours: n0, n1, n2, n3, n4, n5"),
        (7, "neighbours: n0, n1, n2, n3, n4, n5 and 1 more"),
        (32, "neighbours: n0, n1, n2, n3, n4, n5 and 26 more"),
    ],
)
def test_a_crowd_is_shortened(others: int, expected: str) -> None:
    """Six neighbours are named, the rest counted."""
    case = case_of(*(f"n{n}" for n in range(others)), "sum")

    found = without_verdict(place("batch", case, row=others), "why")

    assert found.message.splitlines()[1] == f"  batch of {others + 1}, row {others}; {expected}"


def test_text_of_a_token_cannot_break_the_message() -> None:
    """Line ends and control characters in a token's text are escaped."""
    at = place()
    sly = messages.Place(
        check=at.check,
        case=at.case,
        row=0,
        reference=at.reference,
        candidate=at.candidate,
        again=at.again,
        text_of=lambda token: {5: "\n  again: rm", 6: "\x1b[2J"}[token],
    )

    found = compare_tokens(sly, trace(5), trace(6))

    assert r"'\n  again: rm'" in found.message
    assert r"'\x1b[2J'" in found.message
    assert len(found.message.splitlines()) == 6


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (2310, "2,310 steps")],
)
def test_counted(number: int, expected: str) -> None:
    """Counts are written with their noun, in the right number."""
    assert messages.counted(number, "step") == expected
