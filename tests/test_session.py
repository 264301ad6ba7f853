"""The session: ids in are ids out, under one budget, between `with` and its end."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mlxcheck.backends.base import Capabilities, Emission
from mlxcheck.errors import UsageError
from mlxcheck.session import Answers, Session
from tests.support.driven import ONE, PATIENT, TWO, Engine, Maker, drive
from tests.support.made import case_of, model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.records import ModelRef


# --- Ids in, ids out -------------------------------------------------------------------------


def test_rows_come_back_in_their_own_order() -> None:
    """Answers belong to rows by request id, however the engine orders its emissions."""

    class Backwards(Engine):
        def step(self) -> Sequence[Emission]:
            return [
                Emission(request_id=request.id, token=4 + row, finish="length")
                for row, request in reversed(list(enumerate(self.requests)))
            ]

    (answers,) = drive(Backwards, case_of("sum", "count", "sum"))

    assert [(t.prompt_id, t.tokens, t.finish) for t in answers.traces] == [
        ("sum", (4,), "length"),
        ("count", (5,), "length"),
        ("sum", (6,), "length"),
    ]


def test_requests_hold_what_the_case_holds() -> None:
    """Ids, budget and stop set reach the engine as they are, and names are never used twice."""
    maker = Maker(Engine)
    alone = case_of("sum", alone=True)

    drive(maker, TWO, alone, max_tokens=7)

    requests = maker.made[0].requests
    assert [request.tokens for request in requests] == [
        prompt.tokens for prompt in (*TWO.prompts, *alone.prompts)
    ]
    assert {(request.max_tokens, request.stop_ids) for request in requests} == {(7, (2, 3))}
    assert [request.alone for request in requests] == [False, False, True]
    assert len({request.id for request in requests}) == 3


def test_one_opening_and_one_closing_whatever_the_number_of_cases() -> None:
    """An engine that does as it should is opened once and closed once."""
    maker = Maker(Engine)

    drive(maker, ONE, TWO, ONE)

    assert (maker.log[0], maker.log[-1]) == ("open", "close")
    assert (maker.log.count("open"), maker.log.count("close")) == (1, 1)


def test_several_tokens_of_one_step_are_taken_in_order() -> None:
    """An engine may give a whole answer in one step."""

    class AtOnce(Engine):
        def step(self) -> Sequence[Emission]:
            return [self.emit(name) for name in list(self.live) for _ in self.answer]

    (answers,) = drive(AtOnce, TWO)

    assert [t.tokens for t in answers.traces] == [(5, 6, 2), (5, 6, 2)]


def test_width_is_the_widest_that_was_reported() -> None:
    """The width of a case is the greatest of its steps, and None where none is told."""

    class Wide(Engine):
        def stats(self) -> Mapping[str, int]:
            return {"batch_width": [1, 3, 2][self.log.count("step") - 1]}

    assert [answers.width for answers in drive(Wide, ONE)] == [3]
    assert [answers.width for answers in drive(Engine, ONE)] == [None]


def test_capabilities_may_be_settled_in_open() -> None:
    """What is asked of an engine is what it says once it is open."""

    class Settles(Engine):
        def open(self, model: ModelRef) -> None:
            self.capabilities = Capabilities(max_batch=model.vocab_size)

    with Session(Settles, model(vocab_size=7), PATIENT) as session:
        assert session.capabilities.max_batch == 7


# --- Misuse ----------------------------------------------------------------------------------


def test_no_use_outside_with() -> None:
    """A session answers between `with` and its end, neither before nor after."""
    session = Session(Engine, model(), PATIENT)
    with pytest.raises(UsageError, match="this session is closed"):
        session.run(ONE, max_tokens=8)
    with session:
        session.run(ONE, max_tokens=8)
    with pytest.raises(UsageError, match="this session is closed"):
        session.run(ONE, max_tokens=8)


def test_no_use_from_another_thread() -> None:
    """An engine stays on the thread that opened it."""
    caught: list[UsageError] = []

    def elsewhere() -> None:
        try:
            session.run(ONE, max_tokens=8)
        except UsageError as error:
            caught.append(error)

    with Session(Engine, model(), PATIENT) as session:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    assert "opened on another thread" in str(caught[0])


def test_a_session_may_live_on_another_thread() -> None:
    """Made on one thread, opened and driven on another: only the opening one counts."""
    session = Session(Engine, model(), PATIENT)
    found: list[Answers] = []

    def elsewhere() -> None:
        with session:
            found.append(session.run(ONE, max_tokens=8))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert [t.tokens for answers in found for t in answers.traces] == [(5, 6, 2)]


# --- Ends and budgets ------------------------------------------------------------------------


def test_an_engine_that_never_finishes_is_cut_off_at_the_budget() -> None:
    """At max_tokens the request is cancelled; that the engine did not end it stays visible."""

    class Endless(Engine):
        answer = tuple(range(4, 90))

    maker = Maker(Endless)

    (answers,) = drive(maker, ONE, max_tokens=5)

    assert (answers.traces[0].tokens, answers.traces[0].finish) == ((4, 5, 6, 7, 8), None)
    assert answers.traces[0].fault is None
    assert maker.log.count("step") == 5
    assert "cancel r0" in maker.log


def test_an_engine_that_stops_by_itself_is_not_stopped() -> None:
    """Where stopping is the engine's job, its overrun is shown, not tidied away."""

    class Overruns(Engine):
        answer = (5, 2, 7, 8)
        end = "length"

    (answers,) = drive(Overruns, ONE)

    assert (answers.traces[0].tokens, answers.traces[0].finish) == ((5, 2, 7, 8), "length")


def test_an_engine_that_does_not_stop_is_cancelled_at_a_stop_id() -> None:
    """Where stopping is the caller's job, the session ends the answer and drops the rest."""

    class Runner(Engine):
        capabilities = Capabilities(stop=False)
        answer = (5, 3, 7, 8, 9)

        def step(self) -> Sequence[Emission]:
            self.trouble("step")
            return [self.emit(name) for name in list(self.live) for _ in range(2)] * 2

    maker = Maker(Runner)

    (answers,) = drive(maker, ONE)

    assert (answers.traces[0].tokens, answers.traces[0].finish) == ((5, 3), "stop")
    assert answers.traces[0].fault is None
    assert maker.log.count("cancel r0") == 1


# --- Cases that want an engine that knows nothing ---------------------------------------------


def test_a_fresh_case_has_a_fresh_engine() -> None:
    """It is closed and opened again, and not for a case that is the first of all."""
    maker = Maker(Engine)
    fresh = replace(ONE, fresh=True)

    with Session(maker, model(), PATIENT) as session:
        for case in (fresh, ONE, fresh, fresh):
            assert session.run(case, max_tokens=4).traces[0].tokens == (5, 6, 2)

    assert len(maker.made) == 3
    assert [engine.log.count("close") for engine in maker.made] == [1, 1, 1]


def test_opening_anew_is_no_breaking() -> None:
    """However often that is done, an engine that breaks is opened again as often as ever."""
    maker = Maker(Engine)
    fresh = replace(ONE, fresh=True)

    with Session(maker, model(), PATIENT) as session:
        for _ in range(6):
            last = session.run(fresh, max_tokens=4)

    assert last.traces[0].fault is None
    assert len(maker.made) == 6
