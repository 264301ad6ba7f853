"""Plain functions as engines: one call a case, and every bad answer told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends.base import Backend, Request
from mlxcheck.backends.function import FunctionBackend
from mlxcheck.records import Case, Prompt
from tests.support.driven import ONE, TWO, drive, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcheck.session import Answers

Generate = Any
"""Any function: what a user hands in need not be of the right type."""


def made(generate: Generate) -> Callable[[], Any]:
    """Return a factory of the function's backend."""
    return lambda: FunctionBackend(generate, "mine")


def ask(generate: Generate, case: Case = TWO, max_tokens: int = 4) -> Answers:
    """Run one case on a function."""
    (answers,) = drive(made(generate), case, max_tokens=max_tokens)
    return answers


def test_it_is_a_backend() -> None:
    """The wrapper has all that a backend has, and leaves stopping to the session."""
    backend = FunctionBackend(lambda prompts, most: [[most] for _ in prompts], "mine")

    assert isinstance(backend, Backend)
    assert (backend.name, backend.capabilities.stop, backend.stats()) == ("mine", False, {})
    assert backend.step() == []


def test_one_call_a_case_with_plain_lists() -> None:
    """The function gets all prompts of a case at once, as lists of ids in row order."""
    calls: list[tuple[list[list[int]], int]] = []

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        calls.append((prompts, max_tokens))
        return [[5, 2] for _ in prompts]

    case = Case(id="x", prompts=(Prompt(id="a", tokens=(7, 8)), Prompt(id="b", tokens=(9,))))
    drive(made(generate), case, ONE, max_tokens=6)

    assert calls == [([[7, 8], [9]], 6), ([[10, 11, 12]], 6)]
    assert {type(prompt) for prompt in calls[0][0]} == {list}


@pytest.mark.parametrize(
    ("answer", "tokens", "finish"),
    [
        ([5, 6, 2], (5, 6, 2), "stop"),
        ([5, 3], (5, 3), "stop"),
        ([5, 6], (5, 6), "stop"),
        ((5, 6), (5, 6), "stop"),
        ([5, 2, 7, 7, 7, 7, 7], (5, 2), "stop"),
        ([2], (2,), "stop"),
        ([5, 6, 7, 8], (5, 6, 7, 8), "length"),
        ([5, 6, 7, 2], (5, 6, 7, 2), "stop"),
        ([5, 6, 7, 8, 9, 9], (5, 6, 7, 8), None),
    ],
    ids=[
        "with its stop id",
        "with the other stop id",
        "without its stop id",
        "a tuple",
        "goes on past its stop id",
        "a stop id alone",
        "the whole budget",
        "a stop id at the end of the budget",
        "more than the budget",
    ],
)
def test_answers(answer: Any, tokens: tuple[int, ...], finish: str | None) -> None:
    """An answer may hold its stop id or not; what follows it, or the budget, is ignored."""
    answers = ask(lambda prompts, _most: [answer for _ in prompts])

    for trace in answers.traces:
        assert (trace.tokens, trace.finish, trace.fault) == (tokens, finish, None)


def test_rows_are_the_functions_own() -> None:
    """Each row gets the answer at its place."""
    answers = ask(lambda prompts, _most: [[4 + row, 2] for row in range(len(prompts))])

    assert [trace.tokens for trace in answers.traces] == [(4, 2), (5, 2)]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([[5, 2]], "the function returned 1 rows for 2 prompts"),
        ([[5, 2]] * 3, "the function returned 3 rows for 2 prompts"),
        ([], "the function returned 0 rows for 2 prompts"),
        (None, "the function returned None; expected a list of lists of ids"),
        ("Paris", "the function returned 'Paris'; expected a list of lists of ids"),
        (iter([[5], [5]]), "; expected a list of lists of ids"),
        ([5, 2], "row 0: the function returned 5; expected a list of ids"),
        ([[5, 2], "no"], "row 1: the function returned 'no'; expected a list of ids"),
        ([[5, 2], None], "row 1: the function returned None; expected a list of ids"),
        ([[5, 2], []], "row 1: the function returned no token at all"),
    ],
)
def test_what_is_no_answer(returned: Any, expected: str) -> None:
    """Too few rows, text and nothing are faults that show what came, and where."""
    answers = ask(lambda _prompts, _most: returned)

    assert fault_of(answers).summary.endswith(expected)
    assert fault_of(answers, 1) == fault_of(answers)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (5.0, "it gave 5.0 (float) where an int token id was due"),
        (2.0, "it gave 2.0 (float) where an int token id was due"),
        (True, "it gave True where a token id was due"),
        (100, "it gave token id 100, outside the vocabulary (0 to 99)"),
        ("a", "it gave 'a' (str) where an int token id was due"),
        ([5], "it gave [5] (list) where an int token id was due"),
    ],
)
def test_a_bad_token_is_a_fault_of_its_row(token: Any, expected: str) -> None:
    """A token that is no id ends its own row, even one that equals a stop id."""
    answers = ask(lambda _prompts, _most: [[5, token], [5, 2]])

    assert fault_of(answers).summary == f"step 1: {expected}"
    assert (answers.traces[1].tokens, answers.traces[1].fault) == ((5, 2), None)


def test_a_function_that_raises() -> None:
    """Its exception is kept with its own frame, and it is called again for the next case."""

    def generate(prompts: list[list[int]], _most: int) -> list[list[int]]:
        if len(prompts) > 1:
            msg = "one at a time"
            raise NotImplementedError(msg)
        return [[5, 2]]

    first, second = drive(made(generate), TWO, ONE)

    assert fault_of(first).summary == "step() raised NotImplementedError: one at a time"
    assert "in generate\n    raise NotImplementedError(msg)" in fault_of(first).detail
    assert second.traces[0].tokens == (5, 2)


def test_a_cancelled_request_is_not_generated() -> None:
    """What is cancelled or closed before the next step is forgotten."""
    asked: list[int] = []

    def generate(prompts: list[list[int]], _most: int) -> list[list[int]]:
        asked.append(len(prompts))
        return [[5, 2] for _ in prompts]

    backend = FunctionBackend(generate, "mine")
    for name in ("a", "b"):
        backend.submit(Request(id=name, tokens=(1,), max_tokens=4))
    backend.cancel("a")

    assert [emission.request_id for emission in backend.step()] == ["b", "b"]
    backend.submit(Request(id="c", tokens=(1,), max_tokens=4))
    backend.close()

    assert backend.step() == []
    assert asked == [1]


def test_what_follows_a_stop_id_is_not_emitted() -> None:
    """The answer is cut behind its stop id, and its last token says that it is the last."""
    backend = FunctionBackend(lambda _prompts, _most: [[5, 2, 7, 7]], "mine")
    backend.submit(Request(id="a", tokens=(1,), max_tokens=9, stop_ids=(2, 3)))

    emissions = backend.step()

    assert [(e.request_id, e.token, e.finish) for e in emissions] == [
        ("a", 5, None),
        ("a", 2, "stop"),
    ]
