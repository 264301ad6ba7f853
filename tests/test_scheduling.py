"""Schedules: who joins and leaves at which moment, and what a case asks when spelled out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.asked import ask, under_own_ids
from mlxcheck.checks.base import until_left
from mlxcheck.records import Case, Moment, Prompt, Schedule, Trace
from mlxcheck.session import Session
from tests.support.driven import PATIENT
from tests.support.made import model, trace
from tests.support.reported import comparison
from tests.support.scored import Scripted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.backends.base import Emission
    from mlxcheck.session import Answers

A, B, C = (Prompt(id=name, tokens=(10 + n, 11)) for n, name in enumerate("abc"))
LONG = (5, 6, 7, 8, 9, 12, 13, 14)


class Logged(Scripted):
    """Gives every live row a token a step, and keeps who was there at each."""

    script = dict.fromkeys((each.tokens for each in (A, B, C)), LONG)


class Talks(Logged):
    """Goes on after it was told to stop."""

    def cancel(self, request_id: str) -> None:
        self.gone = self.emit(request_id)
        super().cancel(request_id)

    def step(self) -> Sequence[Emission]:
        late = [self.gone] if getattr(self, "gone", None) else []
        self.gone = None  # type: ignore[assignment]
        return [*late, *super().step()]


def _driven(schedule: Schedule, *, rows: int = 2, engine: Any = Logged) -> tuple[Answers, Any]:
    made: list[Any] = []

    def maker() -> Any:
        made.append(engine())
        return made[-1]

    case = Case(id="x", prompts=(A, B, C)[:rows], schedule=schedule)
    with Session(maker, model(), PATIENT) as session:
        answers = session.run(case, max_tokens=8)
    return answers, made[0]


def _order(engine: Any) -> list[str]:
    return [entry for entry in engine.log if entry.split()[0] in {"submit", "step", "cancel"}]


def _joins(*joins: Moment | None) -> Schedule:
    return Schedule(joins=joins, leaves=(None,) * len(joins))


@pytest.mark.parametrize(
    ("moment", "steps"),
    [
        (Moment(row=0, tokens=0), 0),
        (Moment(row=0, tokens=0, steps=1), 1),
        (Moment(row=0, tokens=3), 3),
        (Moment(row=0, tokens=3, steps=2), 5),
        (Moment(row=0), 8),
    ],
)
def test_a_row_joins_at_its_moment(moment: Moment, steps: int) -> None:
    """After so many tokens of the other row, so many steps later, or after its end."""
    answers, engine = _driven(_joins(None, moment))

    order = _order(engine)
    assert order[0] == "submit"
    second = [place for place, entry in enumerate(order) if entry == "submit"][1]
    assert order[:second].count("step") == steps
    assert [each.tokens for each in answers.traces] == [LONG, LONG]
    assert answers.missed == ()


def test_a_row_leaves_at_its_moment() -> None:
    """It keeps what it had said, and the others go on."""
    schedule = Schedule(joins=(None, None), leaves=(Moment(row=0, tokens=2), None))

    answers, engine = _driven(schedule)

    first, second = answers.traces
    assert (first.tokens, first.left, first.finish, first.fault) == ((5, 6), True, None, None)
    assert (second.tokens, second.left) == (LONG, False)
    assert sum(entry.startswith("cancel") for entry in _order(engine)) == 1
    assert answers.missed == ()


def test_a_row_joins_right_after_another_left() -> None:
    """Leaves come before joins of the same moment: a slot can be used again at once."""
    moment = Moment(row=1, tokens=2)
    schedule = Schedule(joins=(None, None, moment), leaves=(None, moment, None))

    answers, engine = _driven(schedule, rows=3)

    order = _order(engine)
    cancelled = next(place for place, entry in enumerate(order) if entry.startswith("cancel"))
    assert order[cancelled + 1] == "submit"
    assert [len(each.tokens) for each in answers.traces] == [8, 2, 8]


@pytest.mark.parametrize(
    ("schedule", "missed"),
    [
        (_joins(None, Moment(row=0, tokens=20)), (1,)),
        (Schedule(joins=(None, None), leaves=(Moment(row=0, tokens=20), None)), (0,)),
        (_joins(Moment(row=1, tokens=1), Moment(row=0, tokens=1)), (0,)),
        (_joins(None, Moment(row=0)), ()),
    ],
)
def test_a_moment_that_cannot_come_is_told(schedule: Schedule, missed: tuple[int, ...]) -> None:
    """It comes at once when nothing else could bring it about; nobody waits for ever."""
    answers, _ = _driven(schedule)

    assert [each.tokens for each in answers.traces] == [LONG, LONG]
    assert answers.missed == missed


def test_a_token_after_it_left_is_a_fault() -> None:
    """A request that was cancelled has nothing more to say."""
    schedule = Schedule(joins=(None, None), leaves=(Moment(row=0, tokens=2), None))

    answers, _ = _driven(schedule, engine=Talks)

    fault = answers.traces[0].fault
    assert fault is not None
    assert fault.summary == "it gave token 7 for a after it was cancelled"
    assert answers.traces[1].tokens == LONG


# --- What is asked ---------------------------------------------------------------------------


EXPECTED: dict[str, Trace] = {
    "a": trace(5, 6, 7, 2, prompt_id="a", finish="stop"),
    "b": trace(5, 6, 7, 8, prompt_id="b", finish="length"),
}


def test_a_plain_case_is_asked_as_it_is() -> None:
    """Nothing is spelled out that says nothing."""
    case = Case(id="x", prompts=(A, B, C))

    asked = ask(case, EXPECTED, 4)

    assert (asked.case, asked.expected, asked.budgets) == (case, EXPECTED, (4, 4, 4))


def test_a_prompt_can_end_in_the_beginning_of_its_answer() -> None:
    """The rest of the answer is expected; of company, which has no answer, nothing is given."""
    case = Case(id="x", prompts=(A, B, C, A), given=(2, 0, 1, 0), most=(0, 2, 3, 9))

    asked = ask(case, EXPECTED, 4)

    prompts = [(prompt.id, prompt.tokens) for prompt in asked.case.prompts]
    assert prompts == [
        ("a+2", (10, 11, 5, 6)),
        ("b+0[:2]", (11, 11)),
        ("c", (12, 11)),
        ("a", (10, 11)),
    ]
    assert asked.budgets == (2, 2, 3, 4)
    told = [
        (asked.expected[name].tokens, asked.expected[name].finish) for name, _ in prompts[:2]
    ]
    assert told == [((7, 2), "stop"), ((5, 6), "length")]
    assert asked.expected["a"] is EXPECTED["a"]
    assert "c" not in asked.expected


def test_comparisons_are_of_the_prompts_that_were_asked_for() -> None:
    """Whoever looks for a prompt finds it under its own id."""
    case = Case(id="x", prompts=(A, B), given=(2, 0))
    found = comparison(prompt_id="a+2", row=0, neighbours=("b",))

    (own,) = under_own_ids([found], case)

    assert (own.prompt_id, own.neighbours) == ("a", ("b",))


def test_a_row_that_left_is_held_against_what_it_could_say() -> None:
    """Not against the whole answer, which it had no time for."""
    whole = EXPECTED["a"]
    left = replace(trace(5, 6, prompt_id="a"), finish=None, left=True)

    assert until_left(whole, left).tokens == (5, 6)
    assert until_left(whole, left).finish is None
    assert until_left(whole, trace(5, 6, prompt_id="a")) is whole
