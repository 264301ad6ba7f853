"""Joining and leaving: what is planned, how it is judged, and which faults it sees."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.faults.mlx_lm import AnyStopStopsAll, JoinIndexesModulo, OffsetsNotCompacted
from mlxcheck.asked import ask
from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.checks.schedule import Schedules
from mlxcheck.prompts import packaged
from mlxcheck.recording import Recorded, record
from mlxcheck.records import Case, Moment, Schedule, Trace, Verdict
from mlxcheck.run import Drive
from mlxcheck.session import Answers, Session
from mlxcheck.settings import Settings
from tests.support.drawing import unhurried
from tests.support.driven import PATIENT, Engine
from tests.support.made import case_of, grounds, model, place, prompt, trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.checks import Effort
    from mlxcheck.messages import Place
    from mlxcheck.records import Comparison, Prompt

EFFORTS: tuple[Effort, ...] = ("quick", "standard", "thorough")
CHUNKED = Capabilities(max_batch=4, sets_prefill_chunk=True)
PLAIN = Capabilities()
CACHED = replace(CHUNKED, prefix_cache=True)

Asked = tuple[tuple["Prompt", ...], tuple[Trace, ...]]


def asked(*pairs: tuple[int, int], unknown: int = 0) -> Asked:
    """Make prompts of lengths and answers of lengths; the last ones may have no answer."""
    prompts = tuple(prompt(f"p{n}", length) for n, (length, _) in enumerate(pairs))
    traces = tuple(
        trace(*range(40, 40 + said - 1), 2, prompt_id=f"p{n}")
        for n, (_, said) in enumerate(pairs)
    )
    return prompts, traces[: len(traces) - unknown]


MANY = asked(*((n * 7 % 31 + 1, n * 5 % 18 + 1) for n in range(24)), (70, 20), (200, 9))


def sets() -> st.SearchStrategy[Asked]:
    """Draw one to twelve prompts and answers of any lengths, some without an answer."""
    pairs = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 20)), min_size=1, max_size=12)
    return st.builds(
        lambda found, unknown: asked(*found, unknown=min(unknown, len(found))),
        pairs,
        st.integers(0, 3),
    )


def plan(
    found: Asked, effort: Effort = "standard", can: Capabilities = CHUNKED, seed: int = 0
) -> tuple[Case, ...]:
    """Plan the check."""
    return Schedules().plan(grounds(found[0], can, effort, seed, found[1]))


def kinds(cases: Sequence[Case]) -> set[str]:
    """Return the second part of the ids."""
    return {case.id.split("/")[1] for case in cases}


def events(case: Case) -> Schedule:
    """Return the schedule that a case has."""
    assert case.schedule is not None
    return case.schedule


# --- Plans ----------------------------------------------------------------------------------


def test_every_kind_is_planned() -> None:
    """A standard plan joins and leaves in every way that the engine can be asked for."""
    assert kinds(plan(MANY)) == {
        "join-decode",
        "join-end",
        "join-prefill",
        "leave-prefill",
        "staggered",
        "leave-front",
        "leave-middle",
        "leave-last",
        "leave-waiting",
        "reuse",
        "crowd",
    }
    assert kinds(plan(MANY, "quick")) == {"join-decode", "join-end", "leave-middle"}


def test_nobody_is_in_prefill_where_the_engine_reads_at_once() -> None:
    """Where no chunk can be set and none is known to be small, that is not asked."""
    without = kinds(plan(MANY, can=PLAIN))
    small = kinds(plan(MANY, can=Capabilities(prefill_chunk=100)))

    assert not {"join-prefill", "leave-prefill", "crowd"} & without
    assert {"join-prefill", "leave-prefill"} <= small


@pytest.mark.parametrize(
    ("limit", "effort", "rows"),
    [(4, "standard", 8), (16, "standard", 32), (17, "standard", 0), (32, "thorough", 64)],
)
def test_a_crowd_is_twice_what_the_engine_decodes(
    limit: int, effort: Effort, rows: int
) -> None:
    """So that half of it has to wait; a very large one is left to thorough plans."""
    cases = plan(MANY, effort, Capabilities(max_batch=limit))

    found = [case for case in cases if case.id.startswith("schedule/crowd/")]
    assert [len(case.prompts) for case in found] == ([rows] if rows else [])


def test_where_prefixes_are_cached_the_prompt_in_prefill_is_new() -> None:
    """One that was asked before would be read in no time; each case has its own."""
    cases = [case for case in plan(MANY, can=CACHED) if "-prefill/" in case.id]

    known = {each.id for each in MANY[0]}
    new = [each for case in cases for each in case.prompts if each.id not in known]
    assert len(cases) == len(new) == len({each.tokens[:8] for each in new})


@unhurried
@given(found=sets(), effort=st.sampled_from(EFFORTS), data=st.data())
def test_a_plan_is_sound_for_any_prompts(
    found: Asked, effort: Effort, data: st.DataObject
) -> None:
    """Ids are unique, moments are of other rows that are there, and order changes nothing."""
    cases = plan(found, effort)

    assert [name for name, n in Counter(case.id for case in cases).items() if n > 1] == []
    for case in cases:
        rows = len(case.prompts)
        schedule = events(case)
        assert len(schedule.joins) == len(schedule.leaves) == len(case.most) == rows
        assert schedule.events > 0
        for row, moment in enumerate(schedule.joins):
            assert moment is None or moment.row < row
    shuffled = data.draw(st.permutations(found[0]))
    assert plan((tuple(shuffled), found[1]), effort) == cases


def test_without_a_reference_nothing_is_planned() -> None:
    """Nothing would be compared."""
    assert plan((MANY[0], ())) == ()


def test_another_seed_deals_otherwise() -> None:
    """The seed chooses rows, and neither how many nor what they do."""
    one, other = (plan(MANY, "thorough", seed=seed) for seed in (0, 1))

    assert one != other
    assert kinds(one) == kinds(other)


@pytest.mark.parametrize(
    ("can", "words"),
    [
        (Capabilities(batch=False), "the backend takes one request at a time"),
        (Capabilities(), None),
    ],
)
def test_what_an_engine_cannot_do_is_not_asked(can: Capabilities, words: str | None) -> None:
    """A check says why it cannot be asked, or None."""
    assert Schedules().refuse(can) == words


# --- Driven ---------------------------------------------------------------------------------


class Reads(Engine):
    """An honest engine: reads one prompt at a time, a chunk a step, then decodes all rows."""

    capabilities = CHUNKED
    answers: Mapping[tuple[int, ...], tuple[int, ...]]
    size = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.unread: dict[str, int] = {}
        self.calls = self.width = 0

    def set_prefill_chunk(self, size: int | None) -> None:
        self.size = size or 10_000

    def submit(self, request: Request) -> None:
        super().submit(request)
        answer = self.answers.get(request.tokens, (9,) * request.max_tokens)
        self.live[request.id] = list(answer[: request.max_tokens])
        self.unread[request.id] = len(request.tokens)

    def step(self) -> Sequence[Emission]:
        limit = self.capabilities.max_batch or 99
        rows = [name for name in self.live if name not in self.unread][:limit]
        reading = next((name for name in self.live if name in self.unread), None)
        if reading is not None and len(rows) < limit:
            self.calls += 1
            self.unread[reading] -= self.size
            if self.unread[reading] <= 0:
                del self.unread[reading]
        self.width = len(rows)
        return [self.emit(name) for name in rows]

    def emit(self, name: str) -> Emission:
        said = super().emit(name)
        return replace(said, finish=said.finish and ("stop" if said.token == 2 else "length"))

    def cancel(self, request_id: str) -> None:
        super().cancel(request_id)
        self.unread.pop(request_id, None)

    def stats(self) -> Mapping[str, int]:
        return {"batch_width": self.width, "prefill_chunks": self.calls}


def drive(found: Asked, kind: type[Reads], effort: Effort = "standard") -> list[Comparison]:
    """Plan, drive and judge with an engine in pure Python."""
    prompts, traces = found
    expected = {each.prompt_id: each for each in traces}
    script = {each.tokens: expected[each.id].tokens for each in prompts if each.id in expected}
    made: type[Reads] = type("Made", (kind,), {"answers": script})
    out: list[Comparison] = []
    with Session(made, model(), PATIENT) as session:
        for case in plan(found, effort, kind.capabilities):
            one = ask(case, expected, 20)
            answers = session.run(one.case, max_tokens=one.budgets, expected=one.expected)
            assert answers.missed == (), case.id
            out += Schedules().judge(one.case, one.expected, answers, _places(one.case))
    return out


def _places(case: Case) -> Any:
    return lambda row: place("schedule", case, row)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize(
    "found",
    [
        MANY,
        asked((5, 12)),
        asked((1, 1)),
        asked((6, 2), (6, 3)),
        asked((9, 12), (9, 12), (9, 12)),
        asked((4, 1), (5, 1), (80, 1)),
        asked((9, 12), (8, 3), (7, 4), unknown=2),
    ],
    ids=["many", "one", "one token", "two", "equal", "short answers", "company"],
)
def test_an_honest_engine_passes_with_any_prompts(found: Asked, effort: Effort) -> None:
    """Every moment comes, and every row is EXACT."""
    # Prompts of one length have equal ids here: told apart, each has its own answer.
    prompts = tuple(
        replace(each, tokens=(10 + n, *each.tokens[1:])) for n, each in enumerate(found[0])
    )
    verdicts = {each.verdict for each in drive((prompts, found[1]), Reads, effort)}

    assert verdicts == {Verdict.EXACT}


class ReadsAtOnce(Reads):
    """Says that chunks can be set, and reads every prompt in one call."""

    def set_prefill_chunk(self, size: int | None) -> None:
        del size


def test_a_prompt_that_is_read_at_once_is_no_evidence() -> None:
    """The case that joins one in prefill is INCONCLUSIVE, and no other one."""
    prompts = tuple(
        replace(each, tokens=(10 + n, *each.tokens[1:])) for n, each in enumerate(MANY[0])
    )
    found = drive((prompts, MANY[1]), ReadsAtOnce)

    vague = {each.case.split("/")[1] for each in found if each.verdict is not Verdict.EXACT}
    assert vague == {"join-prefill"}


# --- Judging --------------------------------------------------------------------------------


JOINS = Schedule(joins=(None, Moment(row=0, tokens=2)), leaves=(None, None))
TWO = replace(case_of("sum", "count", case_id="schedule/x"), schedule=JOINS)
LONG = tuple(range(10, 22))
BOTH = {name: trace(*LONG, prompt_id=name, finish="length") for name in ("sum", "count")}


def judge(answers: Answers, case: Case = TWO) -> list[tuple[Verdict, str]]:
    """Judge answers to a case."""

    def place_of(row: int) -> Place:
        return place("schedule", case, row)

    found = Schedules().judge(case, BOTH, answers, place_of)
    return [(each.verdict, each.message) for each in found]


def test_a_row_that_came_too_late_is_no_evidence() -> None:
    """The reason names the row; a wrong row is wrong all the same."""
    wrong = trace(99, *LONG[1:], prompt_id="count")

    found = judge(Answers((BOTH["sum"], wrong), 2, missed=(1,)))

    assert [verdict for verdict, _ in found] == [Verdict.INCONCLUSIVE, Verdict.WRONG]
    assert "row 1 (count) was to come or go at a moment" in found[0][1]


def test_rows_that_never_met_are_no_evidence() -> None:
    """As in the batch check: agreement of rows one after the other says nothing."""
    found = judge(Answers((BOTH["sum"], BOTH["count"]), 1))

    assert {verdict for verdict, _ in found} == {Verdict.INCONCLUSIVE}


def test_a_row_that_left_is_held_against_what_it_said() -> None:
    """Its beginning is compared; where it said nothing, it is no comparison."""
    gone = replace(trace(*LONG[:3], finish=None), left=True)

    assert [v for v, _ in judge(Answers((gone, BOTH["count"]), 2))] == [Verdict.EXACT] * 2
    assert len(judge(Answers((replace(gone, tokens=()), BOTH["count"]), 2))) == 1
    wrong = replace(gone, tokens=(LONG[0], 99))
    assert judge(Answers((wrong, BOTH["count"]), 2))[0][0] is Verdict.WRONG


def test_a_row_that_does_not_stop_any_more_is_wrong() -> None:
    """A stop set that was lost when another row left is seen, with all tokens right."""
    case = replace(TWO, prompts=TWO.prompts[:1], schedule=None)
    expected = {"sum": trace(5, 6, 2)}
    answers = Answers((trace(5, 6, 2, 9, finish=None),), 1)

    (found,) = Schedules().judge(case, expected, answers, lambda row: place("x", case, row))

    assert found.verdict is Verdict.WRONG
    assert "goes on past its stop id" in found.message


# --- Real engines ---------------------------------------------------------------------------


MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-float32"
PROMPTS = """sum-2-2 capital-peru count-1-44 repeat-3 recall-near filler-capital-norway
len-1 len-2 len-8 len-33"""


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """The reference's answers to a few packaged prompts."""
    asked_for = [entry for entry in packaged() if entry.id in PROMPTS.split()]
    return record(str(MODEL), asked_for, Settings())


def test_mlx_lm_passes(recorded: Recorded) -> None:
    """Rows of the batched engine come and go, and all of them are EXACT."""
    with Drive(recorded, "mlx-lm", [Schedules()], Settings()) as run:
        run.run()
    report = run.report()

    assert report.outcome == "pass", report.explain()
    assert set(report.counts) == {Verdict.EXACT}
    cases = {found.case.split("/")[1] for found in report.comparisons}
    assert {"join-prefill", "leave-prefill", "leave-front", "reuse", "staggered"} <= cases


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (OffsetsNotCompacted, {"leave-front", "leave-middle"}),
        (JoinIndexesModulo, {"join-decode", "staggered"}),
        (AnyStopStopsAll, {"join-end"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_faults_of_joining_and_leaving_are_seen(
    recorded: Recorded, fault: type, where: set[str]
) -> None:
    """Rows 25, 26 and 39 are WRONG in the cases that are made for them."""
    with Drive(recorded, fault, [Schedules()], Settings()) as run:
        run.run()

    wrong = [f for f in run.report().comparisons if f.verdict is Verdict.WRONG]
    assert where <= {found.case.split("/")[1] for found in wrong}
    assert "again: " in wrong[0].message
