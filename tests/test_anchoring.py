"""Past a tie: the row is put back on the reference's tokens, and goes on in its company."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck import anchoring
from mlxcheck.backends.base import Capabilities, Request
from mlxcheck.errors import CannotAsk
from mlxcheck.records import Case, Prompt, Trace
from mlxcheck.session import Answers, Session
from tests.support.driven import PATIENT, fault_of
from tests.support.made import model, scores, trace
from tests.support.scored import ALT, Scripted, noise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BAND = noise()
"""Two units: 0.125 nat at the logits here."""

ANSWER = (5, 6, 7, 8, 2)
A, B, C = (Prompt(id=name, tokens=(10 + n, 20)) for n, name in enumerate("abc"))


def said(*tokens: int, near: Sequence[int] = (), prompt: Prompt = A) -> Trace:
    """Make the reference's answer, with a second token in reach at *near* steps."""
    scored = [
        scores(token, token + ALT, 99, step=0.1 if step in near else 0.5)
        for step, token in enumerate(tokens)
    ]
    return trace(*tokens, scored=scored, prompt_id=prompt.id)


@dataclass(slots=True)
class Driven:
    """What came out of a drive, and what the session was asked on the way."""

    answers: Answers
    cases: list[Case] = field(default_factory=list)
    budgets: list[Any] = field(default_factory=list)
    expected: list[Mapping[str, Trace]] = field(default_factory=list)

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        """What each row said."""
        return [each.tokens for each in self.answers.traces]

    @property
    def trace(self) -> Trace:
        """The only row's."""
        (found,) = self.answers.traces
        return found


def drive(
    script: Mapping[tuple[int, ...], tuple[int, ...]],
    *expected: Trace,
    prompts: Sequence[Prompt] = (A,),
    max_tokens: int = 8,
    band: bool = True,
    engine: type[Scripted] = Scripted,
    **changed: Any,
) -> Driven:
    """Run a case of these prompts against a script, and note every run of the session."""
    kind = type("Engine", (engine,), {"script": script})
    case = replace(Case(id="batch-x", prompts=tuple(prompts)), **changed)
    driven = Driven(Answers((), None))
    with Session(kind, model(), PATIENT) as session:
        run = session.run

        def watched(case: Case, **options: Any) -> Answers:
            driven.cases.append(case)
            driven.budgets.append(options["max_tokens"])
            driven.expected.append(options["expected"])
            return run(case, **options)

        session.run = watched  # type: ignore[method-assign]
        driven.answers = anchoring.drive(
            session,
            case,
            budgets=[max_tokens] * len(prompts),
            expected={each.prompt_id: each for each in expected},
            noise=BAND if band else None,
        )
    return driven


def after(prompt: Prompt, *tokens: int) -> tuple[int, ...]:
    """Return the ids of a prompt that is put back."""
    return (*prompt.tokens, *tokens)


# --- One row ---------------------------------------------------------------------------------


def test_a_tie_is_passed_put_back_and_joined() -> None:
    """The answer is the candidate's up to the tie, and goes on after the reference's token."""
    script = {A.tokens: (5, 36, 40, 41, 42), after(A, 5, 6): (7, 8, 2)}

    found = drive(script, said(*ANSWER, near=[1]))

    assert found.trace.tokens == (5, 36, 7, 8, 2)
    assert (found.trace.anchors, found.trace.finish) == ((1,), "stop")
    assert (found.trace.prompt_id, found.trace.fault) == ("a", None)
    assert [case.id for case in found.cases] == ["batch-x", "batch-x+1"]
    assert [case.prompts[0].id for case in found.cases] == ["a", "a+0"]
    assert found.budgets == [[8], [6]]


def test_what_is_said_after_a_tie_is_expected_there() -> None:
    """A row that was put back is watched at the reference's own next steps."""
    script = {A.tokens: (5, 36, 40), after(A, 5, 6): (7, 8, 2)}
    reference = said(*ANSWER, near=[1])

    rest = drive(script, reference).expected[1]

    assert list(rest) == ["a+0"]
    assert rest["a+0"].tokens == (7, 8, 2)
    assert rest["a+0"].scores == reference.scores[2:]


def test_a_row_that_cannot_be_put_back_ends_at_its_tie() -> None:
    """The engine is asked once, and what it had said before stands."""

    class Refusing(Scripted):
        def submit(self, request: Request) -> None:
            if len(request.tokens) > len(A.tokens):
                raise CannotAsk(request.id, "no text can ask for it")
            super().submit(request)

    script = {A.tokens: (5, 36, 40, 41, 42), B.tokens: (5, 6, 7, 8, 2)}

    found = drive(
        script,
        said(*ANSWER, near=[1]),
        said(*ANSWER, prompt=B),
        prompts=(A, B),
        engine=Refusing,
    )

    assert found.tokens == [(5, 36, 40, 41, 42), ANSWER]
    assert [each.anchors for each in found.answers.traces] == [(), ()]
    assert [each.fault for each in found.answers.traces] == [None, None]
    assert len(found.cases) == 2


def test_two_ties_in_one_row() -> None:
    """Each is passed by a run of its own, from the reference's whole answer up to there."""
    script = {
        A.tokens: (5, 36, 40, 41),
        after(A, 5, 6): (7, 38, 43),
        after(A, 5, 6, 7, 8): (2,),
    }

    found = drive(script, said(*ANSWER, near=[1, 3]))

    assert found.trace.tokens == (5, 36, 7, 38, 2)
    assert found.trace.anchors == (1, 3)
    assert [case.id for case in found.cases] == ["batch-x", "batch-x+1", "batch-x+2"]
    assert found.budgets == [[8], [6], [4]]


def test_a_tie_at_the_first_step() -> None:
    """The first token of all can be a tie."""
    script = {A.tokens: (35, 40), after(A, 5): (6, 7, 8, 2)}

    found = drive(script, said(*ANSWER, near=[0]))

    assert (found.trace.tokens, found.trace.anchors) == ((35, 6, 7, 8, 2), (0,))


@pytest.mark.parametrize(
    ("answer", "near", "why"),
    [
        (ANSWER, (1,), "it agrees"),
        ((5, 36, 40, 41), (), "it differs beyond the band"),
        ((5, 6, 7, 8, 32), (4,), "the tie is the last step"),
        ((5, 6, 7, 40, 41), (1,), "it differs where nothing is near"),
        ((5, 6, 7), (1,), "it ends too early"),
    ],
)
def test_nothing_is_asked_again_without_a_tie(
    answer: tuple[int, ...], near: tuple[int, ...], why: str
) -> None:
    """Only a tie with steps after it is a reason."""
    found = drive({A.tokens: answer}, said(*ANSWER, near=near))

    assert len(found.cases) == 1, why
    assert (found.trace.tokens, found.trace.anchors) == (answer, ())


def test_a_difference_after_a_tie_ends_it() -> None:
    """What is beyond the band in the second run is joined, and left to the judge."""
    script = {A.tokens: (5, 36, 40), after(A, 5, 6): (7, 50, 51)}

    found = drive(script, said(*ANSWER, near=[1]))

    assert (found.trace.tokens, len(found.cases)) == ((5, 36, 7, 50, 51), 2)
    assert found.trace.finish == "length"


def test_without_noise_there_are_no_ties() -> None:
    """Strict mode asks once."""
    found = drive({A.tokens: (5, 36, 40, 41)}, said(*ANSWER, near=[1]), band=False)

    assert len(found.cases) == 1


def test_a_prompt_without_a_reference_is_only_company() -> None:
    """What was never decoded cannot be put back."""
    assert len(drive({A.tokens: (5, 36)}).cases) == 1


def test_a_tie_at_the_end_of_the_budget() -> None:
    """The rest of the budget is what is left after the reference's tokens: here one."""
    script = {A.tokens: (5, 6, 7, 38, 40), after(A, 5, 6, 7, 8): (9,)}
    reference = replace(said(5, 6, 7, 8, 9, near=[3]), finish="length")

    found = drive(script, reference, max_tokens=5)

    assert found.budgets == [[5], [1]]
    assert (found.trace.tokens, found.trace.finish) == ((5, 6, 7, 38, 9), "length")


# --- Rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [7, 9, 12])
def test_rounds_have_a_limit(steps: int) -> None:
    """An engine that flips at every step is asked eight times more, and then left."""
    answer = tuple(range(4, 4 + steps))
    script = {after(A, *answer[:done]): (answer[done] + ALT, 90, 91) for done in range(steps)}
    reference = said(*answer, near=range(steps))

    found = drive(script, reference, max_tokens=20)

    again = min(anchoring.ROUNDS, steps - 1)
    assert anchoring.ROUNDS == 8
    assert len(found.cases) == 1 + again
    assert found.trace.anchors == tuple(range(again))
    kept = tuple(token + ALT for token in answer[: again + 1])
    assert found.trace.tokens == (*kept, 90, 91)


# --- Company ---------------------------------------------------------------------------------


def test_company_keeps_its_prompts_and_its_first_answers() -> None:
    """The rows beside one that is put back are asked again as they were; nothing is new."""
    answers = iter([(5, 6, 7, 8, 2), (60, 61, 62, 2)])

    class Fickle(Scripted):
        def submit(self, request: Request) -> None:
            super().submit(request)
            if request.tokens == B.tokens:
                self.live[request.id] = list(next(answers))

    script = {
        A.tokens: (5, 36, 40),
        after(A, 5, 6): (7, 8, 2),
        B.tokens: ANSWER,
        C.tokens: (9, 2),
    }
    expected = (said(*ANSWER, near=[1]), said(*ANSWER, prompt=B))

    found = drive(script, *expected, prompts=(B, A, C), engine=Fickle)

    rows = [(prompt.id, prompt.tokens) for prompt in found.cases[1].prompts]
    assert rows == [("b", B.tokens), ("a+1", after(A, 5, 6)), ("c", C.tokens)]
    assert found.budgets == [[8, 8, 8], [8, 6, 8]]
    assert found.tokens == [
        ANSWER,
        (5, 36, 7, 8, 2),
        (9, 2),
    ]
    assert [each.anchors for each in found.answers.traces] == [(), (1,), ()]
    assert list(found.expected[1]) == ["a+1"]


def test_two_rows_are_put_back_together() -> None:
    """Both in one run, each at its own step; one prompt in two rows is told apart."""
    script = {
        A.tokens: (5, 36, 40),
        after(A, 5, 6): (7, 8, 2),
        B.tokens: (5, 6, 37, 41),
        after(B, 5, 6, 7): (8, 2),
    }
    expected = (said(*ANSWER, near=[1]), said(*ANSWER, near=[2], prompt=B))

    found = drive(script, *expected, prompts=(A, B, A))

    assert len(found.cases) == 2
    assert [prompt.id for prompt in found.cases[1].prompts] == ["a+0", "b+1", "a+2"]
    assert found.budgets[1] == [6, 5, 6]
    assert found.tokens == [
        (5, 36, 7, 8, 2),
        (5, 6, 37, 8, 2),
        (5, 36, 7, 8, 2),
    ]
    assert [each.prompt_id for each in found.answers.traces] == ["a", "b", "a"]


def test_a_row_that_is_done_is_company_of_the_next_round() -> None:
    """After its tie one row agrees; the other goes on alone, beside the first one's prompt."""
    script = {
        A.tokens: (5, 36, 40),
        after(A, 5, 6): (7, 8, 2),
        B.tokens: (35, 41),
        after(B, 5): (36, 42),
        after(B, 5, 6): (7, 8, 2),
    }
    expected = (said(*ANSWER, near=[1]), said(*ANSWER, near=[0, 1], prompt=B))

    found = drive(script, *expected, prompts=(A, B))

    assert [prompt.tokens for prompt in found.cases[2].prompts] == [A.tokens, after(B, 5, 6)]
    assert [each.anchors for each in found.answers.traces] == [(1,), (0, 1)]
    assert found.tokens == [(5, 36, 7, 8, 2), (35, 36, 7, 8, 2)]


def test_the_case_stays_what_it_was() -> None:
    """A lone request goes on alone, and width and chunks are those of the case itself."""
    Scripted.width = 7
    script = {A.tokens: (5, 36, 40), after(A, 5, 6): (7, 8, 2)}

    found = drive(script, said(*ANSWER, near=[1]), alone=True)

    assert [case.alone for case in found.cases] == [True, True]
    assert found.answers.width == 6


# --- Faults and forced cases -----------------------------------------------------------------


def test_a_fault_in_the_second_run_is_the_rows_fault() -> None:
    """What came before stays, with the fault; rows that were only company have none."""

    class Breaks(Scripted):
        breaks_at = 4

    script = {A.tokens: (5, 36, 40), after(A, 5, 6): (7, 8, 2), B.tokens: (9, 2)}

    found = drive(script, said(*ANSWER, near=[1]), prompts=(A, B), engine=Breaks, max_tokens=8)

    first, second = found.answers.traces
    assert "boom" in fault_of(found.answers).summary
    assert (first.tokens, first.anchors, first.finish) == ((5, 36), (1,), None)
    assert (second.tokens, second.fault) == ((9, 2), None)
    assert len(found.cases) == 2


def test_a_fault_in_the_first_run_is_not_asked_again() -> None:
    """A row that failed past a tie has failed."""

    class Breaks(Scripted):
        breaks_at = 3

    found = drive({A.tokens: (5, 36, 40, 41)}, said(*ANSWER, near=[1]), engine=Breaks)

    assert (len(found.cases), found.trace.tokens) == (1, (5, 36))


def test_a_forced_case_needs_no_putting_back() -> None:
    """It stands in the reference's context at every step already."""

    class Forced(Scripted):
        capabilities = Capabilities(teacher_forcing=True)

    reference = said(*ANSWER, near=range(5))

    found = drive({A.tokens: ANSWER}, reference, engine=Forced, forced=True)

    assert (len(found.cases), found.trace.tokens) == (1, ANSWER)
    assert found.trace.anchors == (0, 1, 2, 3, 4)


# --- Numbers ---------------------------------------------------------------------------------


def _logits(best: int) -> list[float]:
    return [0.0] * best + [9.0] + [0.0] * (99 - best)


def _shown(request: Request, step: int) -> dict[str, Any]:
    row = _logits(10 * (len(request.tokens) - 1) + step)
    return {"logits": row, "logprobs": {0: -1.0}}


@pytest.mark.parametrize("silent", [None, 2, 4])
def test_numbers_are_joined_where_both_runs_show_them(silent: int | None) -> None:
    """Scores have one entry a token of the whole answer, or none at all."""

    class Shows(Scripted):
        @staticmethod
        def shows(request: Request, step: int) -> Mapping[str, Any]:
            return {} if len(request.tokens) == silent else _shown(request, step)

    script = {A.tokens: (5, 36, 40), after(A, 5, 6): (7, 8, 2)}

    found = drive(script, said(*ANSWER, near=[1]), engine=Shows)

    best = [each.ids[0] for each in found.trace.scores]
    assert found.trace.tokens == (5, 36, 7, 8, 2)
    assert best == ([10, 11, 30, 31, 32] if silent is None else [])
    assert len(found.trace.reported) == len(best)


def test_an_engine_whose_own_numbers_deny_the_tie_is_not_put_back() -> None:
    """It shows its token far above the reference's: that is no rounding, on its side."""

    class Sure(Scripted):
        @staticmethod
        def shows(request: Request, step: int) -> Mapping[str, Any]:
            del request
            return {"logits": _logits((5, 36, 40)[step])}

    found = drive({A.tokens: (5, 36, 40)}, said(*ANSWER, near=[1]), engine=Sure)

    assert len(found.cases) == 1
