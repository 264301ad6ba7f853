"""The chunks check: what it plans, how it judges, and what it finds in mlx-lm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.faults.windows import CHUNKED
from fixtures.paged.backend import PagedBackend
from mlxcheck.asked import ask
from mlxcheck.backends.base import Capabilities
from mlxcheck.checks.chunks import Chunks, affordable
from mlxcheck.checks.tokens import Tokens
from mlxcheck.recording import record
from mlxcheck.records import Case, Fault, Verdict
from mlxcheck.run import Drive
from mlxcheck.session import Answers
from mlxcheck.settings import Settings
from tests.support.drawing import unhurried
from tests.support.made import case_of, grounds, measured, place, prompt, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fixtures.faults.mlx_lm import Faulty
    from mlxcheck.checks import Effort
    from mlxcheck.checks.base import Grounds
    from mlxcheck.messages import Place
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Comparison
    from mlxcheck.report import Report

EFFORTS: tuple[Effort, ...] = ("quick", "standard", "thorough")
MLX_LM = Capabilities(
    prefill_chunk=2048, sets_prefill_chunk=True, teacher_forcing=True, logits=True
)
FIXED = replace(MLX_LM, prefill_chunk=16, sets_prefill_chunk=False)
UNKNOWN = replace(FIXED, prefill_chunk=None)
LENGTHS = (1, 2, 12, 33, 9, 40, 400, 700, 32)


def known(
    lengths: Sequence[int],
    can: Capabilities = MLX_LM,
    effort: Effort = "standard",
    said: int = 20,
    company: int = 0,
) -> Grounds:
    """Make grounds of prompts of these lengths; the last *company* have no answer."""
    prompts = [prompt(f"p{n}", length) for n, length in enumerate(lengths)]
    # They begin differently: a prefix cache would otherwise know all but the first.
    prompts = [replace(p, tokens=(n, *p.tokens[1:])) for n, p in enumerate(prompts)]
    answers = [
        trace(*range(30, 30 + said), prompt_id=p.id, finish="length")
        for p in prompts[: len(prompts) - company]
    ]
    return grounds(prompts, can, effort, expected=answers)


def lengths_of(case: Case, on: Grounds) -> list[int]:
    """Return the lengths of a case's prompts as they are asked."""
    return [len(p.tokens) for p in ask(case, on.expected, 64).case.prompts]


# --- Plans ------------------------------------------------------------------------------------


def test_chunks_are_fitted_to_the_prompt() -> None:
    """A prompt ends on both sides of 0, 1 and 2 calls, its last token apart or not."""
    on = known([12], effort="thorough")

    sizes = {case.chunk for case in Chunks().plan(on) if not case.forced}

    assert sizes == {5, 6, 8, 10, 7, 11, 9, 1, 12, 13}


def test_small_chunks_stand_beside_long_prompts_at_night_only() -> None:
    """A standard plan reads no prompt in more than sixteen small calls."""
    standard, thorough = (
        {case.chunk for case in Chunks().plan(known([400] * 8, effort=effort, said=60))}
        for effort in ("standard", "thorough")
    )

    assert min(size for size in standard if size) >= 400 // 16
    assert {7, 8, 9, 31, 32, 33, 64} <= thorough
    assert 1 not in thorough


def test_a_window_has_chunks_of_its_own_length() -> None:
    """A chunk as long as the window meets it whole, and one token beside."""
    on = known([100], effort="thorough")
    on = replace(on, model=replace(on.model, window=20))

    assert {19, 20, 21} <= {case.chunk for case in Chunks().plan(on)}


def test_a_standard_plan_has_three_prompts_batches_and_numbers() -> None:
    """A short, a middle and a long prompt; unequal rows; a forced case for each prompt."""
    cases = Chunks().plan(known(LENGTHS, said=60))

    alone = [case for case in cases if len(case.prompts) == 1]
    assert {len(case.prompts[0].tokens) for case in alone} == {12, 32, 400}
    assert {len(c.prompts[0].tokens) for c in alone if c.forced} == {12, 32, 400}
    rows = [[len(p.tokens) for p in c.prompts] for c in cases if len(c.prompts) > 1]
    assert rows == [[12, 32], [12, 32, 12]]
    assert not any(case.alone for case in cases)


def test_an_engine_that_takes_one_at_a_time_or_shows_nothing_is_asked_less() -> None:
    """Without batches every case is a lone one; without numbers none is forced."""
    bare = Capabilities(batch=False, sets_prefill_chunk=True)

    cases = Chunks().plan(known(LENGTHS, bare))

    assert cases
    assert all(case.alone and len(case.prompts) == 1 and not case.forced for case in cases)


def test_a_fixed_chunk_is_reached_by_lengths() -> None:
    """Prompts and the beginnings of their answers end where one and two chunks do."""
    on = known([14, 20, 2, 3], FIXED, "thorough")

    cases = [case for case in Chunks().plan(on) if not case.forced]

    assert {case.chunk for case in cases} == {16}
    lengths = sorted(length for case in cases for length in lengths_of(case, on))
    assert lengths == [15, 16, 17, 18, 31, 32, 33, 34]


def test_a_chunk_that_is_not_stated_is_met_by_a_grid() -> None:
    """Around multiples of 32 and of 8."""
    on = known([5, 30, 60, 90, 120], UNKNOWN, "thorough")

    cases = Chunks().plan(on)

    lengths = {length for case in cases for length in lengths_of(case, on)}
    assert {7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129} == lengths
    assert {case.chunk for case in cases} == {None}


@pytest.mark.parametrize("can", [MLX_LM, FIXED])
def test_a_prefix_cache_gets_every_prompt_once(can: Capabilities) -> None:
    """Nothing is read again: each prompt has one case, in two calls."""
    on = known(LENGTHS, replace(can, prefix_cache=True), "thorough")

    cases = Chunks().plan(on)

    names = [case.prompts[0].id for case in cases]
    assert len(names) == len(set(names)) >= 5
    for case in cases:
        assert case.chunk
        assert lengths_of(case, on)[0] > case.chunk + 1


def test_a_prefix_cache_gets_no_prompt_that_begins_like_another() -> None:
    """The shorter of two that begin alike would come out of the cache."""
    on = known([40], replace(MLX_LM, prefix_cache=True))
    shorter = replace(on.prompts[0], id="shorter", tokens=on.prompts[0].tokens[:30])
    on = replace(
        on,
        prompts=(*on.prompts, shorter),
        expected={**on.expected, "shorter": trace(5, 6, 2, prompt_id="shorter")},
    )

    assert [case.prompts[0].id for case in Chunks().plan(on)] == ["p0"]


@unhurried
@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=12),
    company=st.integers(0, 2),
    can=st.sampled_from([MLX_LM, FIXED, UNKNOWN, replace(MLX_LM, prefix_cache=True)]),
    effort=st.sampled_from(EFFORTS),
    said=st.integers(1, 20),
)
def test_plans_are_the_same_each_time_and_ask_what_is_known(
    lengths: list[int], company: int, can: Capabilities, effort: Effort, said: int
) -> None:
    """Ids are unique, sizes are sizes, and rows without an answer are not asked for one."""
    on = known(lengths, can, effort, said, min(company, len(lengths)))

    cases = Chunks().plan(on)

    assert cases == Chunks().plan(on)
    assert len({case.id for case in cases}) == len(cases)
    assert bool(cases) != bool(Chunks().idle(on))
    for case in cases:
        assert case.chunk is None or case.chunk > 0
        assert all(p.id in on.expected for p in case.prompts)
        ask(case, on.expected, 64)


@pytest.mark.parametrize(
    ("lengths", "can", "words"),
    [
        ([1, 2], MLX_LM, "no prompt that is asked for has 3 tokens"),
        (
            [3, 4],
            replace(FIXED, prefill_chunk=2048),
            "has 23 tokens, and the engine reads 2,048",
        ),
        ([1000], UNKNOWN, "has 1,019 tokens: no length at which a chunk may end"),
    ],
)
def test_nothing_to_ask_is_told(lengths: list[int], can: Capabilities, words: str) -> None:
    """An engine whose chunks no prompt fills is not passed in silence."""
    on = known(lengths, can)

    assert Chunks().plan(on) == ()
    assert words in Chunks().idle(on)


def test_what_is_afforded_comes_first() -> None:
    """A plan ends where it would cost half of the run; three cases are always kept."""
    on = known([10] * 2, said=20)
    cases = [Case(id=f"c{n}", prompts=(on.prompts[0],), most=(6,), chunk=5) for n in range(20)]

    # A case reads in 2 calls and says 6; the run's share is 0.4 of twice 21.
    assert [case.id for case in affordable(cases, on)] == ["c0", "c1", "c2"]
    assert len(affordable(cases, known([10] * 10))) == 10
    assert len(affordable(cases, replace(on, effort="thorough"))) == 20


# --- Judging ----------------------------------------------------------------------------------


def judge(
    actual: Sequence[Any],
    *,
    chunks: int | None = None,
    cached: int | None = None,
    lengths: Sequence[int] = (12,),
    chunk: int | None = 5,
) -> tuple[Comparison, ...]:
    """Judge rows of prompts of these lengths that are read by so many tokens a call."""
    prompts = tuple(prompt(f"p{n}", length) for n, length in enumerate(lengths))
    case = Case(id="chunks/x", prompts=prompts, chunk=chunk)
    expected = {p.id: trace(5, 6, 2, prompt_id=p.id) for p in prompts}

    def place_of(row: int) -> Place:
        return place("chunks", case, row)

    answers = Answers(tuple(actual), None, chunks=chunks, cached=cached)
    return Chunks().judge(case, expected, answers, place_of)


@pytest.mark.parametrize(
    ("chunks", "cached", "lengths", "chunk", "verdict"),
    [
        (3, None, (12,), 5, Verdict.EXACT),
        (2, None, (12,), 5, Verdict.INCONCLUSIVE),
        (2, None, (11,), 5, Verdict.EXACT),  # its last token kept apart
        (None, None, (12,), 5, Verdict.INCONCLUSIVE),
        (None, None, (12,), None, Verdict.EXACT),  # no chunk is stated
        (4, None, (3, 12), 3, Verdict.EXACT),
        (3, None, (3, 12), 3, Verdict.INCONCLUSIVE),
        (2, 5, (12,), 5, Verdict.EXACT),
        (1, 9, (12,), 5, Verdict.INCONCLUSIVE),
        (1, 11, (12,), 20, Verdict.EXACT),
        (0, None, (1,), 5, Verdict.EXACT),
    ],
)
def test_agreement_counts_where_the_prompt_was_read_in_parts(
    chunks: int | None,
    cached: int | None,
    lengths: tuple[int, ...],
    chunk: int | None,
    verdict: Verdict,
) -> None:
    """By the engine's own count of its calls, less what came out of its prefix cache."""
    answers = [trace(5, 6, 2) for _ in lengths]

    found = judge(answers, chunks=chunks, cached=cached, lengths=lengths, chunk=chunk)

    assert {each.verdict for each in found} == {verdict}
    assert len(found) == len(lengths)


def test_what_did_not_come_about_is_said_in_numbers() -> None:
    """What was asked, and what the engine reports."""
    (found,) = judge([trace(5, 6, 2)], chunks=1, cached=9)

    assert (
        "a prompt of 12 tokens was to be read by 5 a call, in 3 or more, and the engine "
        "reports 1; 9 came from its prefix cache"
    ) in found.message


def test_a_difference_counts_however_it_was_read() -> None:
    """Nothing excuses a wrong token or a crash."""
    broken = trace(finish=None, fault=Fault(summary="it raised"))

    assert judge([trace(5, 9, 2)], chunks=1)[0].verdict is Verdict.WRONG
    assert judge([broken], chunks=1)[0].verdict is Verdict.ERROR


def test_forced_answers_are_judged_by_their_numbers_alone() -> None:
    """Their tokens are the reference's: without noise to hold numbers against, no verdict."""
    case = replace(case_of("sum"), forced=True)
    answers = Answers((trace(5, 6, 2),), None)

    def judged_with(swing: float | None) -> tuple[Comparison, ...]:
        at = replace(place("chunks", case), noise=None if swing is None else measured(swing))
        return Chunks().judge(case, {"sum": trace(5, 6, 2)}, answers, lambda _: at)

    assert judged_with(None) == ()
    assert [each.verdict for each in judged_with(0.1)] == [Verdict.INCONCLUSIVE]


# --- Real engines -----------------------------------------------------------------------------

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-float32"
SETTINGS = Settings(max_tokens=24)


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """What mlx-lm says."""
    return record(str(MODEL), None, SETTINGS)


def driven(recorded: Recorded, backend: object, *checks: Any) -> Report:
    """Ask a backend."""
    with Drive(recorded, backend, checks or [Chunks()], SETTINGS) as drive:
        drive.run()
    return drive.report()


def test_mlx_lm_reads_in_parts_what_it_reads_whole(recorded: Recorded) -> None:
    """Every case is engaged and exact, and the numbers agree."""
    report = driven(recorded, "mlx-lm")

    assert report.outcome == "pass", report.explain()
    assert set(report.counts) == {Verdict.EXACT}
    assert len(report.comparisons) > 8
    assert any(found.errors for found in report.comparisons)


def _cold() -> PagedBackend:
    return PagedBackend(prefix_cache=False)


@pytest.mark.parametrize("backend", [PagedBackend, _cold], ids=["prefix", "cold"])
def test_an_engine_with_pages_is_engaged_with_and_without_its_prefix_cache(
    recorded: Recorded, backend: object
) -> None:
    """What begins alike is read once, and the plan knows."""
    report = driven(recorded, backend)

    assert report.outcome == "pass", report.explain()
    assert set(report.counts) == {Verdict.EXACT}


@pytest.mark.parametrize("fault", CHUNKED, ids=lambda fault: f"S{fault.row}-{fault.__name__}")
def test_a_fault_of_chunks_is_red(recorded: Recorded, fault: type[Faulty]) -> None:
    """And what is green without chunks stays green."""
    report = driven(recorded, fault, Tokens(), Chunks())

    verdicts = {f.verdict for f in report.comparisons if f.check == "chunks"}
    assert verdicts & {Verdict.WRONG, Verdict.DRIFT}
    assert Verdict.INCONCLUSIVE not in verdicts
    if fault.red.check == "chunks":
        assert {Verdict.DRIFT} <= {f.verdict for f in fault.red.select(report.comparisons)}
    for green in fault.green:
        chosen = green.select(report.comparisons)
        assert {found.verdict for found in chosen} == {Verdict.EXACT}
