"""The soak check: rounds of the same requests, what is held after each, and who leaks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.backends.base import Capabilities
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.checks.soak import Soak, slope
from mlxcheck.growth import Held, measure
from mlxcheck.recording import record
from mlxcheck.records import Case, Fault, Verdict
from mlxcheck.run import Drive
from mlxcheck.session import Answers, Session
from mlxcheck.settings import Settings
from tests.support.driven import PATIENT, Engine, Maker, broken
from tests.support.made import case_of, grounds, model, place, prompt, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcheck.backends.base import Emission
    from mlxcheck.checks.base import Grounds
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Comparison
    from mlxcheck.report import Report

ROUNDS = 24


def known(*said: int, can: Capabilities | None = None) -> Grounds:
    """Make grounds of prompts with answers of these lengths, for a thorough run."""
    prompts = [prompt(f"p{n}", 4 + n) for n in range(len(said) + 1)]
    answers = [trace(*range(30, 30 + m), prompt_id=f"p{n}") for n, m in enumerate(said)]
    return grounds(prompts, can or Capabilities(), "thorough", expected=answers)


# --- Plans ------------------------------------------------------------------------------------


def test_one_row_leaves_and_one_joins_round_after_round() -> None:
    """The prompts with the longest answers, three of them, and company never."""
    (case,) = Soak().plan(known(3, 9, 12, 1, 7))

    assert [each.id for each in case.prompts] == ["p2", "p1", "p4"]
    assert case.rounds >= 20
    assert case.schedule is not None
    assert case.schedule.events == 2


def test_few_prompts_come_again() -> None:
    """One prompt is enough for three rows."""
    (case,) = Soak().plan(known(5))

    assert [each.id for each in case.prompts] == ["p0"] * 3


def test_an_engine_that_takes_one_at_a_time_gets_one() -> None:
    """As a lone request."""
    (case,) = Soak().plan(known(5, 6, can=Capabilities(batch=False)))

    assert (case.alone, len(case.prompts), case.schedule) == (True, 1, None)
    assert case.rounds >= 20


@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_only_a_thorough_run_has_the_time(effort: Any) -> None:
    """And the others say so."""
    on = replace(known(5), effort=effort)

    assert Soak().plan(on) == ()
    assert "thorough runs alone" in Soak().idle(on)


def test_nothing_to_ask_is_told() -> None:
    """Company alone is no question."""
    assert Soak().plan(known()) == ()
    assert Soak().idle(known()) == "no prompt that is asked for has an answer"
    assert Soak().idle(known(4)) == ""


# --- Judging ----------------------------------------------------------------------------------

FLAT = [0] * ROUNDS
NOISE = [n * 5 for n in range(ROUNDS)]
"""What the session's own record of the rounds adds, and small logs."""


def held(memory: Sequence[int], objects: Sequence[int], items: Sequence[int]) -> Any:
    """Make what was held after each round, over some that is always there."""
    return tuple(
        Held(memory=10**6 + m, objects=400_000 + o, items=160_000 + i)
        for m, o, i in zip(memory, objects, items, strict=True)
    )


def judge(growth: tuple[Held, ...], *, said: int = 20) -> tuple[Comparison, ...]:
    """Judge a case of one row that says so many tokens a round."""
    case = replace(case_of("sum"), rounds=ROUNDS)
    tokens = trace(*range(30, 30 + said), finish="length")
    answers = Answers((tokens,), 1, growth=growth)
    return Soak().judge(case, {"sum": tokens}, answers, lambda row: place("soak", case, row))


def _steps(*at: int, by: int = 10**6) -> list[int]:
    return [sum(by for step in at if step <= n) for n in range(ROUNDS)]


@pytest.mark.parametrize(
    "memory",
    [
        FLAT,
        _steps(15),
        _steps(10, 16, 20),
        [min(n, 8) * 4096 for n in range(ROUNDS)],
        [n % 2 * 4096 for n in range(ROUNDS)],
        [-n * 100 for n in range(ROUNDS)],
    ],
    ids=["flat", "a step", "three steps", "fills up", "to and fro", "shrinks"],
)
def test_what_stops_growing_is_no_leak(memory: list[int]) -> None:
    """Pools and tables grow by steps, caches until they are full."""
    assert [each.verdict for each in judge(held(memory, memory, memory))] == [Verdict.EXACT]


def test_a_little_for_every_request_is_no_leak() -> None:
    """Nor is the session's own record of rounds."""
    assert [each.verdict for each in judge(held(FLAT, NOISE, NOISE))] == [Verdict.EXACT]


LEAK = [n * 20 for n in range(ROUNDS)]


@pytest.mark.parametrize(
    ("growth", "words"),
    [
        (held([n * 320 for n in range(ROUNDS)], FLAT, FLAT), "320 B of MLX's memory a round"),
        (held(FLAT, LEAK, FLAT), "grows by 20 objects a round"),
        (held(FLAT, FLAT, LEAK), "grows by 20 objects a round"),
        (held(LEAK, LEAK, LEAK), "grows by 20 B of MLX's memory and 20 objects a round"),
    ],
    ids=["arrays", "objects", "small numbers", "all"],
)
def test_what_grows_in_every_round_is_a_leak(growth: tuple[Held, ...], words: str) -> None:
    """Told with what a round adds; the tokens are judged apart."""
    tokens, leak = judge(growth)

    assert (tokens.verdict, leak.verdict) == (Verdict.EXACT, Verdict.WRONG)
    assert leak.prompt_id == "sum"
    assert words in leak.message
    assert leak.message.splitlines()[-1].startswith("  again: ")


def test_rounds_that_were_not_measured_prove_nothing() -> None:
    """Half of them are not enough."""
    found = judge(held(FLAT, FLAT, FLAT)[:12])

    assert [each.verdict for each in found] == [Verdict.EXACT, Verdict.INCONCLUSIVE]
    assert "after 12 of 24 rounds" in found[1].message


def test_a_fault_is_told_and_not_its_growth() -> None:
    """The rounds ended there."""
    case = replace(case_of("sum"), rounds=ROUNDS)
    answers = Answers((trace(finish=None, fault=Fault(summary="it raised")),), None)

    found = Soak().judge(case, {"sum": trace(5, 2)}, answers, lambda _: place("soak", case))

    assert [each.verdict for each in found] == [Verdict.ERROR]


@given(
    start=st.integers(0, 10**9),
    a_round=st.integers(1, 10**6),
    jump=st.integers(0, 15),
    by=st.integers(-(10**9), 10**9),
)
def test_one_jump_does_not_hide_or_make_a_slope(
    start: int, a_round: int, jump: int, by: int
) -> None:
    """Of what grows steadily the slope is that; of what jumps once there is none."""
    jumps = [by if n >= jump else 0 for n in range(16)]

    assert slope([start + n * a_round for n in range(16)]) == a_round
    assert slope([start + up for up in jumps]) == 0
    assert slope([start + n * a_round + up for n, up in enumerate(jumps)]) != 0


# --- Rounds -----------------------------------------------------------------------------------


def _run(factory: Callable[[], Engine], case: Case) -> Answers:
    with Session(factory, model(), PATIENT) as session:
        return session.run(case, max_tokens=8)


def test_a_case_is_driven_as_often_as_it_says() -> None:
    """With new requests each time, and a measure after each."""
    maker = Maker(Engine)

    answers = _run(maker, replace(case_of("sum", "count"), rounds=3))

    names = [request.id for request in maker.made[0].requests]
    assert len(names) == len(set(names)) == 6
    assert len(answers.growth) == 3
    assert [each.tokens for each in answers.traces] == [(5, 6, 2), (5, 6, 2)]


def test_a_case_of_one_round_is_not_measured() -> None:
    """A measure takes a pass over all that Python holds."""
    assert _run(Engine, case_of("sum")).growth == ()


def test_the_rounds_end_with_the_first_fault() -> None:
    """What broke is not asked again and again."""
    maker = Maker(broken("step", times=1))

    answers = _run(maker, replace(case_of("sum"), rounds=5))

    assert answers.traces[0].fault is not None
    assert len(answers.growth) == 1
    assert sum(len(engine.requests) for engine in maker.made) == 1


def test_arrays_objects_and_small_numbers_are_counted() -> None:
    """Each by what is kept of it."""
    before = measure()
    kept: list[Any] = [mx.array([1.5] * 64) for _ in range(2000)]
    mx.eval(kept)
    arrays = measure()
    kept += [1] * 2000
    numbers = measure()

    # What other tests left behind may go meanwhile, hence the half.
    assert arrays.memory - before.memory >= 2000 * 64 * 4
    assert arrays.objects - before.objects >= 1000
    assert numbers.memory == arrays.memory
    assert numbers.items - arrays.items >= 1000
    assert len(kept) == 4000


# --- Real engines -----------------------------------------------------------------------------

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-float32"
SETTINGS = Settings(max_tokens=12, effort="thorough")


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """What mlx-lm says."""
    return record(str(MODEL), None, SETTINGS)


def driven(recorded: Recorded, backend: object) -> Report:
    """Ask a backend."""
    with Drive(recorded, backend, [Soak()], SETTINGS) as drive:
        drive.run()
    return drive.report()


def test_mlx_lm_does_not_grow(recorded: Recorded) -> None:
    """Its memory is the same to the byte, and its tokens are right in the last round."""
    report = driven(recorded, "mlx-lm")

    assert report.outcome == "pass", report.explain()
    assert [found.verdict for found in report.comparisons] == [Verdict.EXACT] * 3


class Keeps(MlxLmBackend):
    """Row 47: keeps one live object for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def step(self) -> Sequence[Emission]:
        said = super().step()
        self.kept += [self.of(emission) for emission in said]
        return said

    def of(self, emission: Emission) -> Any:
        """Return what is kept of a token."""
        raise NotImplementedError


class KeepsArrays(Keeps):
    """An array."""

    def of(self, emission: Emission) -> Any:
        kept = mx.array([emission.token])
        mx.eval(kept)
        return kept


class KeepsNumbers(Keeps):
    """A number that Python holds once."""

    def of(self, emission: Emission) -> Any:
        return emission.token % 2


class KeepsByNumber(Keeps):
    """An entry of a dict that the garbage collector does not look into."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1000)
        self.said: dict[int, int] = {}

    def step(self) -> Sequence[Emission]:
        said = MlxLmBackend.step(self)
        self.said.update((next(self.numbers), emission.token) for emission in said)
        return said


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (KeepsArrays, " B of MLX's memory and "),
        (KeepsNumbers, " objects a round"),
        (KeepsByNumber, " objects a round"),
    ],
)
def test_one_object_kept_for_every_token_is_a_leak(
    recorded: Recorded, engine: type[Keeps], words: str
) -> None:
    """Every token is right, and the growth is WRONG, with what a round adds."""
    report = driven(recorded, engine)

    assert report.outcome == "fail"
    (leak,) = report.failures
    assert (leak.verdict, leak.check) == (Verdict.WRONG, "soak")
    assert words in leak.message
    tokens = [found for found in report.comparisons if found is not leak]
    assert [found.verdict for found in tokens] == [Verdict.EXACT] * 3
