"""Strategies, the state machine and the search: what is drawn is valid, shrinks, and finds."""

from __future__ import annotations

import unittest
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from fixtures.faults import mlx_lm as faults
from mlxcheck.asked import ask
from mlxcheck.backends.base import Capabilities, Emission
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.errors import UsageError
from mlxcheck.machine import machine
from mlxcheck.recording import Recorded, record
from mlxcheck.records import Case, Moment, Schedule, Verdict
from mlxcheck.run import Drive
from mlxcheck.search import Finding, Search, search, told
from mlxcheck.settings import Settings
from mlxcheck.strategies import batches, cases, moments, prompts, schedules, simplest
from tests.support.drawing import unhurried
from tests.support.made import grounds, prompt, trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import DataObject

    from mlxcheck.backends.base import Request
    from mlxcheck.records import Finish, ModelRef

MODEL = str(Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-float32")
SETTINGS = Settings(max_tokens=16)
SHORT, LONG, OTHER = prompt("short", 2), prompt("long", 9), prompt("other", 5)
ANSWERS = (
    trace(5, 6, 7, 8, 9, 2, prompt_id="short"),
    trace(5, 2, prompt_id="long"),
)
GROUNDS = grounds((LONG, SHORT, OTHER), Capabilities(sets_prefill_chunk=True), expected=ANSWERS)
small = settings(unhurried, max_examples=40, database=None, derandomize=True)
"""For finding the smallest: the same draws in every run."""


# --- Strategies -----------------------------------------------------------------------------


@given(prompts(50, min_length=2, max_length=6))
@unhurried
def test_prompts_are_of_the_vocabulary(drawn: Any) -> None:
    """Ids and lengths are within bounds."""
    assert 2 <= len(drawn.tokens) <= 6
    assert all(0 <= token < 50 for token in drawn.tokens)


def test_prompts_with_other_ids_have_other_names() -> None:
    """The id tells the content, and the smallest prompt is one id."""
    one = find(prompts(50), lambda _: True, settings=small)
    two = find(prompts(50), lambda drawn: len(drawn.tokens) > 1, settings=small)

    assert (one.tokens, two.tokens) == ((0,), (0, 0))
    assert one.id != two.id


def test_batches_shrink_to_the_shortest_prompts() -> None:
    """Fewest rows first, then the shortest prompt in each."""
    assert find(batches([LONG, SHORT], 4), lambda _: True, settings=small) == (SHORT,)
    found = find(batches([LONG, SHORT], 4), lambda rows: len(rows) > 1, settings=small)
    assert found == (SHORT, SHORT)


@given(st.data())
@unhurried
def test_schedules_are_valid(data: DataObject) -> None:
    """Joins wait for earlier rows, so every row is submitted; leaves may wait for any."""
    rows = data.draw(st.integers(1, 5))

    drawn = data.draw(schedules(rows))

    assert len(drawn.joins) == len(drawn.leaves) == rows
    assert all(moment is None or moment.row < row for row, moment in enumerate(drawn.joins))
    assert all(moment is None or moment.row < rows for moment in drawn.leaves)


@pytest.mark.parametrize("what", ["joins", "leaves"])
def test_schedules_leave_out_what_is_not_wanted(what: str) -> None:
    """Without joins all start together, without leaves all stay."""
    options = {"joins": True, "leaves": True, what: False}

    @given(schedules(4, **options))
    @unhurried
    def never(drawn: Schedule) -> None:
        assert not any(getattr(drawn, what))

    never()


def test_schedules_and_moments_shrink_to_nothing() -> None:
    """Nobody who joins or leaves; else one, when another row has ended."""
    assert find(schedules(3), lambda _: True, settings=small).events == 0
    one = find(schedules(3), lambda drawn: drawn.events > 0, settings=small)
    assert one.events == 1
    assert find(moments([4, 2]), lambda _: True, settings=small) == Moment(row=4)


@given(cases(GROUNDS))
@unhurried
def test_cases_can_come_about(case: Case) -> None:
    """Each holds a judged row, and spells out to answers with a token at least."""
    asked = ask(case, GROUNDS.expected, 8)

    assert case.prompts[0].id in GROUNDS.expected
    assert all(asked.budgets)
    says = []
    for row, drawn in enumerate(asked.case.prompts):
        if case.prompts[row].id in GROUNDS.expected:
            says.append(len(asked.expected[drawn.id].tokens))
            assert says[-1] > 0
        else:
            says.append(1)
            assert len(drawn.tokens) <= len(LONG.tokens)
    for row, moment in enumerate(case.schedule.joins if case.schedule else ()):
        assert moment is None or moment.row < row
    for moment in (*case.schedule.joins, *case.schedule.leaves) if case.schedule else ():
        assert moment is None or moment.tokens is None or moment.tokens < says[moment.row]


def test_cases_tell_their_content_in_their_ids() -> None:
    """A case is driven once by its id: no other may have it, and the same has the same."""
    seen: dict[str, Case] = {}

    @given(cases(GROUNDS))
    @settings(unhurried, max_examples=300, database=None)
    def drawn(case: Case) -> None:
        assert seen.setdefault(case.id, case) == case

    drawn()
    contents = {repr(replace(case, id="")) for case in seen.values()}
    assert len(contents) == len(seen) > 50


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (lambda case: len(case.prompts) > 2, "row 0 short; row 1 short; row 2 short"),
        (
            lambda case: case.schedule and any(case.schedule.joins),
            "row 0 short; row 1 short, joins after row 0 has ended",
        ),
        (
            lambda case: case.schedule and any(case.schedule.leaves),
            "row 0 short, leaves after 1 token of row 0",
        ),
        (lambda case: any(case.given), "row 0 short+1"),
    ],
)
def test_cases_shrink_to_what_matters(wanted: Any, expected: str) -> None:
    """Fewest rows, no events, nothing given, the shortest prompts: but for what is asked."""
    found = find(cases(GROUNDS), wanted, settings=settings(small, max_examples=150))

    assert told(found) == expected


def test_company_shares_a_beginning_and_is_not_judged() -> None:
    """Prompts that begin as one and end as another are drawn, under ids of their own."""

    def crossed(case: Case) -> bool:
        return any(each.id.startswith("long[:") for each in case.prompts)

    found = find(cases(GROUNDS), crossed, settings=settings(small, max_examples=150))

    company = next(each for each in found.prompts if each.id.startswith("long[:"))
    assert company.tokens[0] == LONG.tokens[0]
    assert company.tokens[-1] in {LONG.tokens[-1], SHORT.tokens[-1]}
    assert company.id not in GROUNDS.expected


def test_engines_of_one_row_get_one_at_a_time() -> None:
    """Each row waits for the end of the one before; none is told a chunk it cannot set."""
    single = replace(GROUNDS, capabilities=Capabilities(batch=False))

    @given(cases(single))
    @unhurried
    def drawn(case: Case) -> None:
        rows = len(case.prompts)
        joins = case.schedule.joins if case.schedule else (None,)
        assert joins == (None, *(Moment(row=row) for row in range(rows - 1)))
        assert case.chunk is None

    drawn()


def test_the_simplest_case_is_what_is_drawn_first() -> None:
    """One row of the shortest prompt; where nothing was answered there is none."""
    assert simplest(GROUNDS) == find(cases(GROUNDS), lambda _: True, settings=small)
    assert simplest(grounds((OTHER,), Capabilities())) is None


# --- The search -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Return what the reference says of the packaged prompts."""
    return record(MODEL, None, SETTINGS)


@pytest.fixture(scope="module")
def few(recorded: Recorded) -> Recorded:
    """Return what it says of a few short prompts: answers here are walked to their ends."""
    chosen = ("len-1", "len-2", "sum-2-2", "repeat-3")
    kept = tuple(each for each in recorded.prompts if each.id in chosen)
    return replace(recorded, prompts=kept, traces={n: recorded.traces[n] for n in chosen})


def searched(recorded: Recorded, backend: object, examples: int, seed: int = 0) -> Finding:
    """Search an engine with no hint."""
    look = Search(examples, seed)
    with Drive(recorded, backend, [look], SETTINGS) as drive:
        return search(drive, look)


@pytest.mark.parametrize(
    ("fault", "rows", "events"),
    [
        (faults.OnlyRowZeroRotated, 2, 0),
        (faults.QueryOffsetAfterUpdate, 1, 0),
        (faults.SharedOffset, 2, 1),
        (faults.JoinIndexesModulo, 2, 1),
        (faults.AnyStopStopsAll, 2, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_faults_are_found_with_no_hint(
    recorded: Recorded, fault: type, rows: int, events: int
) -> None:
    """Within 200 examples, and shrunk to no more rows and events than the fault needs."""
    found = searched(recorded, fault, 200)

    assert found.case is not None
    assert found.examples <= 200
    assert found.stable
    assert len(found.case.prompts) <= rows
    assert (found.case.schedule.events if found.case.schedule else 0) <= events
    wrong = [each for each in found.comparisons if each.verdict is Verdict.WRONG]
    assert f"found that differs: {told(found.case)}" in wrong[0].message
    assert wrong[0].message.endswith("again: search(drive, Search(examples=200, seed=0))")


def test_an_honest_engine_is_left_alone(recorded: Recorded) -> None:
    """Nothing is found, all that came about as drawn is compared, and the report passes."""
    look = Search(40)
    with Drive(recorded, "mlx-lm", [look], SETTINGS) as drive:
        found = search(drive, look)

    report = drive.report()
    assert (found.case, found.examples) == (None, 40)
    assert {each.verdict for each in found.comparisons} == {Verdict.EXACT}
    assert report.outcome == "pass", report.explain()
    assert {each.check for each in report.comparisons} == {"search"}
    assert any(each.batch > 1 for each in report.comparisons)


def test_the_report_has_the_smallest_case_alone(recorded: Recorded) -> None:
    """What led to it is no finding: a report of every probe would say the same many times."""
    look = Search(60)
    with Drive(recorded, faults.OnlyRowZeroRotated, [look], SETTINGS) as drive:
        found = search(drive, look)

    assert found.case is not None
    assert found.driven > 2
    assert {each.case for each in drive.report().comparisons} == {found.case.id}


class Noting(MlxLmBackend):
    """Writes down what it is asked."""

    asked: ClassVar[list[tuple[Any, ...]]]

    def submit(self, request: Request) -> None:
        self.asked.append((request.tokens, request.max_tokens))
        super().submit(request)


def test_the_same_seed_draws_the_same_cases(few: Recorded) -> None:
    """A search can be repeated; another seed asks something else."""

    def asked(seed: int) -> Sequence[Any]:
        class Own(Noting):
            asked: ClassVar[list[tuple[Any, ...]]] = []

        searched(few, Own, 15, seed)
        return Own.asked

    first = asked(1)
    assert asked(1) == first
    assert asked(2) != first


class Once(MlxLmBackend):
    """Says something else in the first batch of two, and never again."""

    spoiled = False

    def step(self) -> Sequence[Emission]:
        out = super().step()
        if len(out) > 1 and not Once.spoiled:
            Once.spoiled = True
            return [replace(each, token=5) for each in out]
        return out


def test_what_does_not_come_again_is_unstable(few: Recorded) -> None:
    """It was WRONG all the same, and its message says that it did not come again."""
    found = searched(few, Once, 60)

    assert found.case is not None
    assert not found.stable
    wrong = [each for each in found.comparisons if each.verdict is Verdict.WRONG]
    assert "unstable: driven once more, it agreed" in wrong[0].message


class Breaks(MlxLmBackend):
    """Raises where two rows are decoded together."""

    opened = 0

    def open(self, model: Any) -> None:
        Breaks.opened += 1
        super().open(model)

    def step(self) -> Sequence[Emission]:
        out = super().step()
        if len(out) > 1:
            message = "two rows"
            raise ZeroDivisionError(message)
        return out


def test_an_engine_that_breaks_is_not_searched_for_ever(recorded: Recorded) -> None:
    """Each break costs an engine: once it is given up, the last case that broke it is told."""
    found = searched(recorded, Breaks, 60)

    assert found.case is not None
    assert len(found.case.prompts) > 1
    assert Breaks.opened == 3
    (error, *_) = [each for each in found.comparisons if each.verdict is Verdict.ERROR]
    assert "two rows" in error.message
    assert "not asked" not in error.message


def test_a_search_wants_to_be_among_the_checks(recorded: Recorded) -> None:
    """Else it knows nothing to draw from; and a search of nothing is a mistake."""
    with (
        Drive(recorded, "mlx-lm", [], SETTINGS) as drive,
        pytest.raises(UsageError, match="not among the checks"),
    ):
        search(drive, Search(5))
    with pytest.raises(UsageError, match="examples=0: expected a whole number above 0"):
        Search(0)


# --- The state machine ----------------------------------------------------------------------


def played(kind: Any, examples: int = 15) -> str:
    """Run a machine to its end; return what it failed with, or nothing."""
    rules = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(kind, settings=rules)
    except AssertionError as error:
        return str(error)
    finally:
        kind.close()
    return ""


class Says:
    """Says what the reference says, from a list: an engine that costs nothing."""

    name = "says"
    capabilities = Capabilities()
    known: Recorded
    log: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.live: dict[str, list[int]] = {}
        self.ends: dict[str, Finish | None] = {}

    def open(self, model: ModelRef) -> None:
        del model
        self.log.append("open")

    def close(self) -> None:
        self.log.append("close")

    def submit(self, request: Request) -> None:
        (prompt_id,) = (p.id for p in self.known.prompts if p.tokens == request.tokens)
        trace = self.known.traces[prompt_id]
        cut = request.max_tokens < len(trace.tokens)
        self.live[request.id] = list(trace.tokens[: request.max_tokens])
        self.ends[request.id] = "length" if cut else trace.finish

    def step(self) -> Sequence[Emission]:
        return [self.emit(name) for name in list(self.live)]

    def emit(self, name: str) -> Emission:
        """Give a request's next token."""
        token = self.live[name].pop(0)
        finish = None if self.live[name] else self.ends[name]
        if finish:
            del self.live[name]
        return Emission(request_id=name, token=token, finish=finish)

    def cancel(self, request_id: str) -> None:
        self.live.pop(request_id, None)

    def stats(self) -> Mapping[str, int]:
        return {}


def saying(kind: type[Says], recorded: Recorded) -> type[Says]:
    """Make a class of such an engine that knows what to say."""
    return type(kind.__name__, (kind,), {"known": recorded, "log": []})


def test_the_machine_opens_an_engine_once(few: Recorded) -> None:
    """An honest engine passes on one opening, and what it knows is asked for once."""
    kind = saying(Says, few)
    times: list[int] = []

    def once() -> Recorded:
        times.append(1)
        return few

    assert played(machine(kind, once), examples=50) == ""
    assert kind.log == ["open", "close"]
    assert times == [1]


def test_the_machine_knows_mlx_lm(few: Recorded) -> None:
    """A real engine passes, and fails where a joining row reads another row's state."""
    assert played(machine("mlx-lm", few)) == ""
    assert "differs: expected" in played(machine(faults.JoinIndexesModulo, few), examples=40)


class Late(Says):
    """Goes on for a step after a request was cancelled."""

    late: tuple[Emission, ...] = ()

    def cancel(self, request_id: str) -> None:
        self.late = (Emission(request_id=request_id, token=5),)
        super().cancel(request_id)

    def step(self) -> Sequence[Emission]:
        late, self.late = self.late, ()
        return [*late, *super().step()]


class Stranger(Says):
    """Speaks for a request that nobody made."""

    def step(self) -> Sequence[Emission]:
        return [Emission(request_id="nobody", token=5)]


class Short(Says):
    """Ends a request with its second token."""

    def emit(self, name: str) -> Emission:
        said = super().emit(name)
        early = len(self.live.get(name, ())) == 2
        return replace(said, finish="stop") if early else said


class Mislabels(Says):
    """Calls every end a stop."""

    def emit(self, name: str) -> Emission:
        said = super().emit(name)
        return replace(said, finish="stop") if said.finish else said


class Endless(Says):
    """Forgets to end."""

    def emit(self, name: str) -> Emission:
        return replace(super().emit(name), finish=None)


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        (Late, "it gave token 5 for request 'm"),
        (Stranger, "which is not in flight"),
        (Short, "it ends for 'stop' after"),
        (Mislabels, "it ends for 'stop' after"),
        (Endless, "it does not end after"),
    ],
)
def test_the_machine_sees_what_engines_do_wrong(
    few: Recorded, engine: type[Says], text: str
) -> None:
    """Nothing may come after a cancel or for strangers, and answers end as the reference's."""
    assert text in played(machine(saying(engine, few), few), examples=200)


class Second(Says):
    """Says another token at the second step of an answer."""

    def emit(self, name: str) -> Emission:
        said = super().emit(name)
        before = len(self.known.traces["len-1"].tokens) - len(self.live.get(name, ()))
        return replace(said, token=said.token ^ 1) if before == 2 else said


def test_a_near_tie_is_left_out_unless_it_is_strict(few: Recorded) -> None:
    """Within the band another token is a tie: that request is asked no more."""
    blurred = replace(few, noise=_Blurred())  # type: ignore[arg-type]
    kind = saying(Second, few)

    assert played(machine(kind, blurred)) == ""
    assert "differs: expected" in played(machine(kind, blurred, mode="strict"), examples=200)
    assert "differs: expected" in played(machine(kind, few), examples=200)


class _Blurred:
    """A noise with a band that any token is within."""

    def band(self, scores: Any) -> float:
        """Return more nats than two tokens are ever apart."""
        del scores
        return 1000.0


def test_a_test_case_closes_its_engine(few: Recorded) -> None:
    """What pytest runs by ``.TestCase`` leaves no engine behind."""
    kind = saying(Says, few)
    case = machine(kind, few).TestCase
    case.settings = settings(case.settings, max_examples=5, stateful_step_count=10)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)

    assert (result.testsRun, result.failures, result.errors) == (1, [], [])
    assert kind.log == ["open", "close"]
