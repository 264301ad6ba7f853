"""Prefix reuse: what is planned, how it is judged, and which faults it sees."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.faults.paged_caches import (
    ExactHitIsEmpty,
    ExactHitReplays,
    FreedNotCleared,
    HitIsLive,
    KeyOfFirstBlock,
    PrefixIgnored,
)
from fixtures.paged import PagedBackend
from mlxcheck.asked import ask
from mlxcheck.backends.base import Capabilities, Request
from mlxcheck.checks.prefix import Prefix, common, departing, words
from mlxcheck.checks.schedule import Schedules
from mlxcheck.recording import Recorded, record
from mlxcheck.records import Case, Moment, Prompt, Schedule, Trace, Verdict
from mlxcheck.run import Drive
from mlxcheck.session import Answers, Session
from mlxcheck.settings import Settings
from tests.support.drawing import unhurried
from tests.support.driven import PATIENT, Engine
from tests.support.made import case_of, grounds, model, place, prompt, trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.checks import Effort
    from mlxcheck.records import Comparison

EFFORTS: tuple[Effort, ...] = ("quick", "standard", "thorough")
CACHED = Capabilities(prefix_cache=True, sets_prefill_chunk=True)
ALONE = Capabilities(prefix_cache=True, batch=False)

Asked = tuple[tuple[Prompt, ...], tuple[Trace, ...]]


def asked(*pairs: tuple[int, int], unknown: int = 0) -> Asked:
    """Make prompts of lengths, unlike in one token, and answers of lengths."""
    prompts = tuple(
        Prompt(id=f"p{n}", tokens=(*prompt(length=length).tokens[:-1], 10 + n))
        for n, (length, _) in enumerate(pairs)
    )
    traces = tuple(
        trace(*range(40, 40 + said - 1), 2, prompt_id=f"p{n}")
        for n, (_, said) in enumerate(pairs)
    )
    return prompts, traces[: len(traces) - unknown]


MANY = asked((9, 4), (300, 12), (140, 15), (14, 20), (70, 9), (160, 7), (33, 1))


def sets() -> st.SearchStrategy[Asked]:
    """Draw one to eight prompts and answers of any lengths, some without an answer."""
    pairs = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 20)), min_size=1, max_size=8)
    return st.builds(
        lambda found, unknown: asked(*found, unknown=min(unknown, len(found))),
        pairs,
        st.integers(0, 3),
    )


def plan(
    found: Asked, effort: Effort = "standard", can: Capabilities = CACHED, seed: int = 0
) -> tuple[Case, ...]:
    """Plan the check."""
    return Prefix().plan(grounds(found[0], can, effort, seed, found[1]))


def joins(case: Case) -> tuple[Moment | None, ...]:
    """Return when the rows of a case come."""
    assert case.schedule is not None
    return case.schedule.joins


# --- Plans ----------------------------------------------------------------------------------


def test_every_kind_is_planned() -> None:
    """A standard plan has every kind of reuse, of prompts that are sure to be found again."""
    names = [case.id.removeprefix("prefix/") for case in plan(MANY)]

    assert names == [
        "depart-up/p2",
        "return/p5",
        "repeat/p2",
        "longer/p2",
        "shorter/p2",
        "while-decoding/p2",
        "in-prefill/p2",
        "three-at-once/p2",
        "pressure/p2",
    ]
    assert [case.id for case in plan(MANY, "quick")] == ["prefix/repeat/p2", "prefix/return/p2"]


def test_thorough_asks_for_every_long_prompt() -> None:
    """All that are longer than a block; the cheapest that fill two come first."""
    asked_for = [case.id.rsplit("/", 1)[1] for case in plan(MANY, "thorough")]

    assert list(dict.fromkeys(asked_for)) == ["p2", "p5", "p1", "p4"]


def test_an_engine_of_one_request_is_asked_one_after_the_other() -> None:
    """No case of it has two rows that meet."""
    cases = plan(MANY, "thorough", ALONE)

    for case in cases:
        expected = [None, *(Moment(row=row) for row in range(len(case.prompts) - 1))]
        assert list(joins(case)) == expected


def test_others_depart_at_every_size_of_a_block() -> None:
    """After one token, at half, before the end, where other prompts do, and at the blocks."""
    (found, *_) = plan(MANY)
    target = MANY[0][2]

    places = [common(each.tokens, target.tokens) for each in found.prompts[:-1]]
    assert places == [1, 8, 16, 32, 64, 70, 134, 138, 139]
    assert found.prompts[-1] == target
    assert {each.id for each in found.prompts[:-1]}.isdisjoint(each.id for each in MANY[0])


def test_prompts_that_share_a_beginning_are_departed_from_there() -> None:
    """A chat template's length is a place like that of a block."""
    system = tuple(range(20, 61))
    prompts = tuple(
        Prompt(id=name, tokens=system + tuple(range(at, at + 100)))
        for name, at in (("a", 100), ("b", 300), ("c", 500))
    )
    traces = tuple(trace(5, 6, 2, prompt_id=each.id) for each in prompts)

    (found, *_) = plan((prompts, traces))

    assert 41 in {common(each.tokens, prompts[0].tokens) for each in found.prompts[:-1]}


def test_beyond_a_window_is_asked_too() -> None:
    """Where layers have a window, one of the prompts is longer than it."""
    made = grounds(MANY[0], CACHED, "standard", 0, MANY[1])

    cases = Prefix().plan(replace(made, model=replace(made.model, window=200)))

    assert "prefix/return/p1" in {case.id for case in cases}


def test_short_prompts_are_made_long_by_their_answers() -> None:
    """Where no prompt is long enough, the one is chosen that is with its answer."""
    (found,) = plan(asked((14, 20), (50, 4), (50, 18), (60, 2)))

    assert found.id == "prefix/short/p2"
    assert max(found.given) == 17


def test_too_short_prompts_are_not_asked_and_it_is_said_why() -> None:
    """An honest engine that caches by blocks need not find them."""
    found = asked((14, 20), (50, 4))

    assert plan(found) == ()
    words_ = Prefix().idle(grounds(found[0], CACHED, "standard", 0, found[1]))
    assert "the longest prompt has 53 tokens with its answer" in words_


@unhurried
@given(found=sets(), effort=st.sampled_from(EFFORTS), data=st.data())
def test_a_plan_is_sound_for_any_prompts(
    found: Asked, effort: Effort, data: st.DataObject
) -> None:
    """Ids are unique, what is given is less than an answer, and order changes nothing."""
    cases = plan(found, effort)

    assert [name for name, n in Counter(case.id for case in cases).items() if n > 1] == []
    said = {each.prompt_id: len(each.tokens) for each in found[1]}
    known = set(words(grounds(found[0], CACHED, expected=found[1]))) | {2, 3}
    known |= {token for each in found[0] for token in each.tokens}
    for case in cases:
        rows = len(case.prompts)
        assert len(joins(case)) == len(case.given) == len(case.most) == rows
        for row, moment in enumerate(joins(case)):
            assert (moment is None) == (row == 0)
            assert moment is None or moment.row < row
        for each, given_ in zip(case.prompts, case.given, strict=True):
            assert given_ < said.get(each.id, 1)
            assert set(each.tokens) <= known
    shuffled = data.draw(st.permutations(found[0]))
    assert plan((tuple(shuffled), found[1]), effort) == cases


@unhurried
@given(found=sets(), at=st.integers(0, 300), seed=st.integers())
def test_who_departs_is_alike_up_to_there_and_no_further(
    found: Asked, at: int, seed: int
) -> None:
    """At the end of a prompt it departs from the prompt's answer."""
    made = grounds(found[0], CACHED, "standard", seed, found[1])
    one = found[0][0]
    at = min(at, len(one.tokens))
    if len(words(made)) < 2:
        return

    other = departing(one, at, made)

    assert other.id not in {each.id for each in found[0]}
    answer = found[1][0].tokens if found[1] else ()
    assert common(other.tokens, (*one.tokens, *answer)) == at
    assert len(other.tokens) == max(len(one.tokens), at + 1)


@pytest.mark.parametrize(
    ("can", "expected"),
    [(Capabilities(), "the backend reuses no KV cache of earlier requests"), (ALONE, None)],
)
def test_what_an_engine_cannot_do_is_not_asked(can: Capabilities, expected: str | None) -> None:
    """A check says why it cannot be asked, or None."""
    assert Prefix().refuse(can) == expected


# --- Driven ---------------------------------------------------------------------------------


class Remembers(Engine):
    """An honest engine that reuses whole blocks of prompts and answers that have ended."""

    capabilities = CACHED
    block = 64
    answers: Mapping[tuple[int, ...], tuple[int, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []
        self.cached = 0

    def set_prefill_chunk(self, size: int | None) -> None:
        del size

    def submit(self, request: Request) -> None:
        super().submit(request)
        answer = next(
            (
                (*prompt, *said)[len(request.tokens) :]
                for prompt, said in self.answers.items()
                if (*prompt, *said)[: len(request.tokens)] == request.tokens
                and len(request.tokens) >= len(prompt)
            ),
            (9,) * request.max_tokens,
        )
        self.live[request.id] = list(answer[: request.max_tokens])
        before = max((common(each, request.tokens[:-1]) for each in self.seen), default=0)
        self.cached += before // self.block * self.block
        self.seen.append((*request.tokens, *answer))

    def stats(self) -> Mapping[str, int]:
        return {"cached_tokens": self.cached}


class Forgets(Remembers):
    """Has the option, and no cache."""

    block = 10_000


class Silent(Remembers):
    """Does not say what it reuses."""

    def stats(self) -> Mapping[str, int]:
        return {}


def drive(found: Asked, kind: type[Remembers], effort: Effort = "standard") -> list[Comparison]:
    """Plan, drive and judge with an engine in pure Python."""
    prompts, traces = found
    expected = {each.prompt_id: each for each in traces}
    script = {each.tokens: expected[each.id].tokens for each in prompts if each.id in expected}
    made: type[Remembers] = type("Made", (kind,), {"answers": script})
    out: list[Comparison] = []
    with Session(made, model(), PATIENT) as session:
        for case in plan(found, effort, kind.capabilities):
            one = ask(case, expected, 20)
            answers = session.run(one.case, max_tokens=one.budgets, expected=one.expected)
            assert answers.missed == (), case.id
            out += Prefix().judge(one.case, one.expected, answers, _places(one.case))
    return out


def _places(case: Case) -> Any:
    return lambda row: place("prefix", case, row)


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize(
    "found",
    [
        MANY,
        asked((65, 1)),
        asked((130, 2), (3, 1)),
        asked((48, 18)),
        asked((70, 3), (200, 1), (130, 5), unknown=1),
    ],
    ids=["many", "one token", "two", "short", "company"],
)
def test_an_honest_engine_passes_with_any_prompts(found: Asked, effort: Effort) -> None:
    """Every row is EXACT where the largest block that is known is what is cached by."""
    verdicts = {each.verdict for each in drive(found, Remembers, effort)}

    assert verdicts == {Verdict.EXACT}


@pytest.mark.parametrize(
    ("kind", "words_"), [(Forgets, "reports no cached token"), (Silent, "does not say what")]
)
def test_nothing_reused_is_no_evidence(kind: type[Remembers], words_: str) -> None:
    """All is INCONCLUSIVE but what is asked for the sake of eviction."""
    found = drive(MANY, kind)

    vague = [each for each in found if not each.case.startswith("prefix/pressure/")]
    assert {each.verdict for each in vague} == {Verdict.INCONCLUSIVE}
    assert f"the engine {words_}" in vague[0].message


# --- Judging --------------------------------------------------------------------------------


CHAIN = replace(
    case_of("sum", "sum", "count", case_id="prefix/x"),
    schedule=Schedule(joins=(None, Moment(row=0), Moment(row=1)), leaves=(None,) * 3),
)


def judge(answers: Answers, case: Case = CHAIN) -> tuple[Comparison, ...]:
    """Judge answers to a case whose company is called count."""
    return Prefix().judge(case, {"sum": trace(5, 6, 2)}, answers, _places(case))


@pytest.mark.parametrize("cached", [0, None])
def test_a_wrong_row_is_wrong_without_a_hit(cached: int | None) -> None:
    """A difference stands; agreement does not, and company is never judged."""
    answers = Answers((trace(5, 6, 2), trace(5, 9, 2), trace(1, 1)), 1, cached=cached)

    found = judge(answers)

    assert [each.verdict for each in found] == [Verdict.INCONCLUSIVE, Verdict.WRONG]
    assert "over 3 requests that share 3 tokens" in found[0].message


def test_a_hit_makes_agreement_a_verdict() -> None:
    """One cached token over the case is enough."""
    answers = Answers((trace(5, 6, 2),) * 3, 1, cached=1)

    assert [each.verdict for each in judge(answers)] == [Verdict.EXACT] * 2


def test_a_row_that_came_too_late_is_no_evidence() -> None:
    """It was to meet another one that is still being answered."""
    found = judge(Answers((trace(5, 6, 2),) * 3, 1, cached=9, missed=(2,)))

    assert {each.verdict for each in found} == {Verdict.INCONCLUSIVE}
    assert "row 2 was to join" in found[0].message


# --- Real engines ---------------------------------------------------------------------------


MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3_moe-float32"


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """The reference's answers to the packaged prompts."""
    return record(str(MODEL), None, Settings(max_tokens=20))


def test_an_engine_with_a_prefix_cache_passes(recorded: Recorded) -> None:
    """The paged runner reuses in every case, and all is EXACT."""
    settings = Settings(max_tokens=20)
    with Drive(recorded, PagedBackend, [Prefix(), Schedules()], settings) as run:
        run.run()
    report = run.report()

    assert report.outcome == "pass", report.explain()
    assert set(report.counts) == {Verdict.EXACT}
    asked_for = {found.case for found in report.comparisons if found.check == "prefix"}
    assert asked_for == {case.id for case in run.plan["prefix"]}


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (HitIsLive, "return"),
        (ExactHitReplays, "repeat"),
        (ExactHitIsEmpty, "repeat"),
        (KeyOfFirstBlock, "depart-up"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_faults_of_reuse_are_seen(recorded: Recorded, fault: type, where: str) -> None:
    """Rows 17, 19, 20 and 21 are WRONG in the case that is made for them."""
    with Drive(recorded, fault, [Prefix()], Settings(max_tokens=20)) as run:
        run.run()

    wrong = [f for f in run.report().comparisons if f.verdict is Verdict.WRONG]
    assert where in {found.case.split("/")[1] for found in wrong}


def test_a_prefix_cache_that_is_ignored_is_no_pass(recorded: Recorded) -> None:
    """Row 53: every token is right, and nothing was reused."""
    with Drive(recorded, PrefixIgnored, [Prefix()], Settings(max_tokens=20)) as run:
        run.run()
    report = run.report()

    assert report.outcome == "inconclusive"
    assert "reports no cached token" in report.explain()


def test_a_slot_that_was_not_cleared_is_seen_by_those_who_come_and_go(
    recorded: Recorded,
) -> None:
    """Row 22, in the runner without its prefix cache, where slots go round at once."""
    with Drive(recorded, FreedNotCleared, [Schedules()], Settings(max_tokens=20)) as run:
        run.run()

    assert run.report().outcome == "fail"
