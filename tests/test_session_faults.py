"""The session: whatever an engine does wrong becomes a fault of its case, and of no other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.errors import BackendError, EngineCrashed
from mlxcheck.policy import Policy
from mlxcheck.session import Session
from tests.support.driven import ONE, PATIENT, TWO, Engine, Maker, broken, drive, fault_of
from tests.support.made import model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.records import ModelRef

HASTY = Policy(watchdog_s=0.3, grace_s=20)


# --- Bad tokens and ids ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (6.0, "step 1: it gave 6.0 (float) where an int token id was due"),
        (True, "step 1: it gave True where a token id was due"),
        (None, "step 1: it gave None (NoneType) where an int token id was due"),
        ("6", "step 1: it gave '6' (str) where an int token id was due"),
        (
            np.float32(6),
            "step 1: it gave np.float32(6.0) (float32) where an int token id was due",
        ),
        (100, "step 1: it gave token id 100, outside the vocabulary (0 to 99)"),
        (-1, "step 1: it gave token id -1, outside the vocabulary (0 to 99)"),
    ],
)
def test_what_is_no_token_id_is_a_fault_of_its_row(token: object, expected: str) -> None:
    """The row ends with a fault, the engine drops it, and its neighbour goes on."""

    class Odd(Engine):
        def submit(self, request: Request) -> None:
            super().submit(request)
            if len(self.requests) == 1:
                self.live[request.id][1] = token

    maker = Maker(Odd)

    (answers,) = drive(maker, TWO)

    assert fault_of(answers).summary == expected
    assert answers.traces[0].tokens == (5,)
    assert (answers.traces[1].tokens, answers.traces[1].fault) == ((5, 6, 2), None)
    assert f"cancel {maker.made[0].requests[0].id}" in maker.log


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64])
def test_integers_of_other_libraries_are_token_ids(kind: type[np.integer[Any]]) -> None:
    """What Python takes as an index is an id, and is kept as a plain int."""

    class Numpy(Engine):
        answer = (kind(5), kind(2))

    (answers,) = drive(Numpy, ONE)

    assert answers.traces[0].tokens == (5, 2)
    assert {type(token) for token in answers.traces[0].tokens} == {int}


def test_a_token_for_a_request_that_was_never_made() -> None:
    """An unknown id is a fault of every row that had not ended, with what was in flight."""

    class Stranger(Engine):
        def emit(self, name: str) -> Emission:
            emission = super().emit(name)
            stray = len(self.live[name]) == 1
            return Emission(request_id="nobody", token=4) if stray else emission

    (answers,) = drive(Stranger, TWO)

    assert [t.tokens for t in answers.traces] == [(5,), (5,)]
    assert fault_of(answers).summary == (
        "it gave a token for request 'nobody', which is not in flight; in flight are r0, r1"
    )
    assert fault_of(answers, 1) == fault_of(answers)


def test_a_token_after_the_finish_is_a_fault_of_that_row() -> None:
    """A row that goes on after its own finish fails; the other one does not."""

    class Undead(Engine):
        def step(self) -> Sequence[Emission]:
            first = self.requests[0].id
            extra = [] if first in self.live else [Emission(request_id=first, token=9)]
            return [*super().step(), *extra]

        def submit(self, request: Request) -> None:
            super().submit(request)
            if len(self.requests) == 2:
                self.live[request.id] = [5, 5, 6, 2]

    (answers,) = drive(Undead, TWO)

    assert fault_of(answers).summary == "it gave token 9 for sum after its finish"
    assert (answers.traces[1].tokens, answers.traces[1].fault) == ((5, 5, 6, 2), None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "step() raised TypeError: 'NoneType' object is not iterable"),
        ([("r0", 5)], "step() gave ('r0', 5) (tuple), not an Emission"),
        ([5], "step() gave 5 (int), not an Emission"),
    ],
)
def test_a_step_that_gives_no_emissions(given: Any, expected: str) -> None:
    """What step() must return is checked, and is never an error of the harness."""

    class Wrong(Engine):
        def step(self) -> Sequence[Emission]:
            found: Sequence[Emission] = given
            return found

    (answers,) = drive(Wrong, ONE)

    assert fault_of(answers).summary == expected


def test_a_step_that_is_a_generator_is_run_under_guard() -> None:
    """A generator's own exceptions are the engine's, with its frame in the traceback."""

    class Yields(Engine):
        def step(self) -> Any:
            yield from super().step()
            msg = "half way"
            raise LookupError(msg)

    (answers,) = drive(Yields, ONE)

    assert fault_of(answers).summary == "step() raised LookupError: half way"
    assert "raise LookupError(msg)" in fault_of(answers).detail


# --- Exceptions ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["submit", "step", "stats", "cancel"])
def test_an_exception_ends_its_case_and_no_other(method: str) -> None:
    """It is kept with its traceback; the next case runs on an engine that is opened anew."""
    kind = broken(method, times=1)
    kind.answer = (5, 6, 7, 2)  # type: ignore[attr-defined]
    maker = Maker(kind)

    first, second = drive(maker, TWO, TWO, max_tokens=3 if method == "cancel" else 8)

    for row in (0, 1):
        fault = fault_of(first, row)
        assert fault.summary == f"{method}() raised ZeroDivisionError: in {method}"
        assert "Traceback (most recent call last)" in fault.detail
        assert "in trouble\n    raise error or ZeroDivisionError" in fault.detail
    assert [t.fault for t in second.traces] == [None, None]
    assert [engine.log.count("close") for engine in maker.made] == [1, 1]


def test_rows_that_had_ended_before_a_crash_keep_their_answers() -> None:
    """A crash is the fault of those that were still waiting."""

    class LateCrash(Engine):
        def submit(self, request: Request) -> None:
            super().submit(request)
            if len(self.requests) == 2:
                self.live[request.id] = [5, 6, 7, 8]

        def step(self) -> Sequence[Emission]:
            if self.log.count("step") == 3:
                raise MemoryError
            return super().step()

    (answers,) = drive(LateCrash, TWO)

    assert (answers.traces[0].tokens, answers.traces[0].fault) == ((5, 6, 2), None)
    assert answers.traces[1].tokens == (5, 6, 7)
    assert fault_of(answers, 1).summary == "step() raised MemoryError: "


def test_an_engine_that_breaks_three_times_is_given_up() -> None:
    """It is opened three times in all; later cases are not asked, and say so."""
    maker = Maker(broken("step"))

    found = drive(maker, ONE, ONE, ONE, ONE, ONE)

    assert len(maker.made) == 3
    assert [fault_of(answers).summary for answers in found] == [
        *["step() raised ZeroDivisionError: in step"] * 3,
        *["not asked: the engine broke 3 times and was given up"] * 2,
    ]


def test_sys_exit_in_an_engine_does_not_end_the_run() -> None:
    """An engine's own sys.exit(0) is a fault: it must not become the exit status of a pass."""
    (answers,) = drive(broken("step", SystemExit(0)), ONE)

    assert fault_of(answers).summary == "step() raised SystemExit: 0"


@pytest.mark.parametrize("where", ["open", "factory"])
def test_an_engine_that_does_not_open_is_the_fault_of_every_case(where: str) -> None:
    """The exception is kept for each case, and opening is not tried again."""
    maker = Maker(broken("open") if where == "open" else broken_factory)

    found = drive(maker, ONE, TWO)

    name = "in open" if where == "open" else "no such device"
    assert {fault_of(answers).summary for answers in found} == {
        f"open() raised ZeroDivisionError: {name}"
    }
    assert "ZeroDivisionError" in fault_of(found[1], 1).detail
    assert [engine.log for engine in maker.made] == [["open", "close"]][: len(maker.made)]


def broken_factory() -> Engine:
    """Fail to make an engine."""
    msg = "no such device"
    raise ZeroDivisionError(msg)


def test_an_adapter_that_misses_its_engine_ends_the_session() -> None:
    """BackendError from the first opening is the user's to mend; what was opened is closed."""
    maker = Maker(broken("open", BackendError("install fast-engine")))

    with pytest.raises(BackendError, match="install fast-engine"):
        drive(maker, ONE)

    assert maker.log == ["open", "close"]


def test_an_adapter_that_misses_its_engine_later_is_a_fault() -> None:
    """On a reopening BackendError must not throw away what was found before."""
    opened: list[Engine] = []

    class Fickle(Engine):
        def open(self, model: ModelRef) -> None:
            super().open(model)
            opened.append(self)
            if len(opened) == 2:
                msg = "install fast-engine"
                raise BackendError(msg)

        def step(self) -> Sequence[Emission]:
            raise ArithmeticError

    first, second = drive(Fickle, ONE, ONE)

    assert fault_of(first).summary == "step() raised ArithmeticError: "
    assert fault_of(second).summary == "open() raised BackendError: install fast-engine"


def test_close_that_raises_is_told_at_the_end() -> None:
    """The exception of the last close leaves the block, with its traceback."""
    with pytest.raises(EngineCrashed, match=r"(?s)close\(\) raised Zero.*Traceback"):
        drive(broken("close"), ONE)


def test_close_that_raises_after_a_crash_adds_nothing() -> None:
    """Where the engine had broken, its trouble in closing hides neither case."""

    class Both(Engine):
        def trouble(self, method: str) -> None:
            if method in {"step", "close"}:
                raise ArithmeticError(method)

    found = drive(Both, ONE, ONE)

    assert {fault_of(answers).summary for answers in found} == {
        "step() raised ArithmeticError: step"
    }


def test_close_that_raises_does_not_hide_what_ended_the_block() -> None:
    """Ctrl-C stays Ctrl-C: a run that was cut short must not look finished."""
    session = Session(broken("close"), model(), PATIENT)

    with pytest.raises(KeyboardInterrupt), session:
        raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["open", "submit", "step", "stats"])
def test_control_c_closes_the_engine(method: str) -> None:
    """Ctrl-C in any call leaves nothing running and is passed on."""
    maker = Maker(broken(method, KeyboardInterrupt(), times=1))

    with pytest.raises(KeyboardInterrupt):
        drive(maker, TWO)

    assert maker.log[-1] == "close"
    assert ("cancel r1" in maker.log) == (method != "open")


# --- Silence ---------------------------------------------------------------------------------


def test_an_engine_that_steps_and_says_nothing_has_hung() -> None:
    """Steps without a token are silence, and the prompts that wait are named."""

    class Silent(Engine):
        def step(self) -> Sequence[Emission]:
            return []

    maker = Maker(Silent)
    began = time.monotonic()

    (answers,) = drive(maker, TWO, policy=HASTY)

    assert fault_of(answers).summary == (
        "no token within 0.3 s for sum, count: step() returns, and gives nothing"
    )
    assert 0.3 <= time.monotonic() - began < 10
    assert maker.log[-1] == "close"


def test_statistics_that_move_are_no_progress() -> None:
    """A counter of steps goes up for ever in an engine that has hung."""

    class Counts(Engine):
        def step(self) -> Sequence[Emission]:
            self.trouble("step")
            return []

        def stats(self) -> Mapping[str, int]:
            return {"steps": self.log.count("step"), "batch_width": self.log.count("step") % 2}

    (answers,) = drive(Counts, ONE, policy=HASTY)

    assert "no token within 0.3 s" in fault_of(answers).summary


@pytest.mark.parametrize("stop", [True, False])
def test_tokens_for_rows_that_have_ended_are_no_progress(stop: bool) -> None:  # noqa: FBT001 - a parameter
    """A row that starves beside one that babbles on is found."""

    class Babbles(Engine):
        capabilities = Capabilities(stop=stop)

        def step(self) -> Sequence[Emission]:
            first = self.requests[0].id
            return [Emission(request_id=first, token=2, finish="stop")]

        def cancel(self, request_id: str) -> None:
            del request_id

    (answers,) = drive(Babbles, TWO, policy=HASTY)

    assert "no token within 0.3 s for count" in fault_of(answers, 1).summary


def test_a_prefill_that_goes_on_is_progress() -> None:
    """Prefill chunks that finish one after the other keep a long prompt alive."""

    class Prefills(Engine):
        def step(self) -> Sequence[Emission]:
            self.trouble("step")
            time.sleep(0.1)
            return super().step() if self.log.count("step") > 7 else []

        def stats(self) -> Mapping[str, int]:
            return {"prefill_chunks": self.log.count("step")}

    began = time.monotonic()

    (answers,) = drive(Prefills, ONE, policy=Policy(watchdog_s=0.5, grace_s=20))

    assert answers.traces[0].fault is None
    assert time.monotonic() - began > 0.5
