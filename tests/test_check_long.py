"""The long check: which lengths it reaches, and what it finds beyond a window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.faults.planted import Expect
from fixtures.faults.windows import WINDOWED, NeverEvicted
from fixtures.random_models import RandomModel, build
from mlxcheck.asked import ask
from mlxcheck.backends.base import Capabilities
from mlxcheck.checks.chunks import Chunks
from mlxcheck.checks.long import Long
from mlxcheck.checks.tokens import Tokens
from mlxcheck.prompts import as_questions
from mlxcheck.recording import record
from mlxcheck.records import Fault, Verdict
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
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Case, Comparison, Trace
    from mlxcheck.report import Report

EFFORTS: tuple[Effort, ...] = ("quick", "standard", "thorough")
FORCED = Capabilities(teacher_forcing=True, logits=True)
BARE = Capabilities(batch=False)


def known(
    lengths: Sequence[int],
    can: Capabilities = FORCED,
    effort: Effort = "thorough",
    *,
    window: int | None = 16,
    said: int = 12,
) -> Grounds:
    """Make grounds of prompts of these lengths, and a model with a window."""
    prompts = [prompt(f"p{n}", length) for n, length in enumerate(lengths)]
    answers = [trace(*range(30, 30 + said), prompt_id=p.id, finish="length") for p in prompts]
    made = grounds(prompts, can, effort, expected=answers)
    return replace(made, model=replace(made.model, window=window))


def span(case: Case, on: Grounds, row: int = 0) -> tuple[int, int]:
    """Return the tokens of a row's prompt, and those before the last one of its answer."""
    asked = ask(case, on.expected, 64)
    asked_for = asked.case.prompts[row]
    read, said = len(asked_for.tokens), len(asked.expected[asked_for.id].tokens)
    return read, read + said - 1


# --- Plans ------------------------------------------------------------------------------------


def test_prompts_end_around_the_window_and_past_twice_its_length() -> None:
    """With a token more, for engines that keep the last one apart."""
    on = known([3, 10, 30])

    read = {span(case, on)[0] for case in Long().plan(on) if case.id.startswith("long/prefill")}

    assert read == {15, 16, 17, 18, 33, 34}


def test_answers_grow_across_the_window() -> None:
    """From below it to beyond, at once and at twice its length."""
    on = known([3, 10, 30])

    across = [span(case, on) for case in Long().plan(on) if "long/decode" in case.id]

    assert any(read < 16 < end for read, end in across)
    assert any(read < 33 < end for read, end in across)
    assert all(read < 16 < end or read < 33 < end for read, end in across)


def test_kernels_change_at_1024_keys() -> None:
    """One less, as many, one more, and an answer that grows across."""
    on = known([5, 1020], window=None)

    cases = Long().plan(on)

    read = {span(case, on)[0] for case in cases if case.id.startswith("long/prefill")}
    assert read == {1023, 1024, 1025}
    assert [span(case, on)[0] < 1024 for case in cases if "long/decode" in case.id] == [
        True
    ] * 2


def test_each_kind_is_forced_and_beside_a_short_row() -> None:
    """Numbers tell one key too many, and padding moves the window."""
    names = [case.id for case in Long().plan(known([3, 10, 30]))]

    for forced in ("", "forced-"):
        for rows in ("", "batch-2/"):
            for kind in ("prefill-18", "decode-16", "prefill-34"):
                assert any(name.startswith(f"{forced}long/{rows}{kind}") for name in names)


def test_a_short_row_is_shorter() -> None:
    """And has answered long enough for the two to have met."""
    on = known([3, 10, 30])

    for case in Long().plan(on):
        if len(case.prompts) > 1:
            assert span(case, on, 1)[0] < span(case, on, 0)[0]
            assert case.most == (case.most[0],) * 2


def test_an_engine_that_takes_one_at_a_time_or_shows_nothing_is_asked_less() -> None:
    """Single rows, their tokens."""
    cases = Long().plan(known([3, 10, 30], BARE))

    assert cases
    assert all(case.alone and len(case.prompts) == 1 and not case.forced for case in cases)


@unhurried
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    effort=st.sampled_from(EFFORTS),
    window=st.sampled_from([None, 1, 8, 16, 512]),
    said=st.integers(1, 20),
)
def test_plans_are_the_same_each_time_and_never_empty_in_silence(
    lengths: list[int], effort: Effort, window: int | None, said: int
) -> None:
    """Ids are unique, what is given is of a known answer, and an empty plan has a reason."""
    on = known(lengths, effort=effort, window=window, said=said)

    cases = Long().plan(on)

    assert cases == Long().plan(on)
    assert len({case.id for case in cases}) == len(cases)
    assert bool(cases) != bool(Long().idle(on))
    for case in cases:
        asked = ask(case, on.expected, 64)
        assert all(asked.expected[p.id].tokens for p in asked.case.prompts)


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (None, "has 51 tokens, and reaches not the 1,023 at which kernels change"),
        (512, "neither the window of 512 tokens nor the 1,023 at which kernels change"),
    ],
)
def test_short_prompts_are_told_to_reach_nothing(window: int | None, words: str) -> None:
    """So that a run that never left the window does not pass for one that did."""
    on = known([3, 40], window=window)

    assert Long().plan(on) == ()
    assert words in Long().idle(on)


# --- Judging ----------------------------------------------------------------------------------


def judge(case: Case, *actual: Trace, width: int | None = None) -> list[Verdict]:
    """Judge rows whose prompts have one answer."""
    said = tuple(range(10, 30))
    expected = {p.id: trace(*said, prompt_id=p.id) for p in case.prompts}
    at = replace(place("long", case), noise=measured(0.1))
    found = Long().judge(
        case, expected, Answers(actual, width), lambda row: replace(at, row=row)
    )
    return [each.verdict for each in found]


SAID = trace(*range(10, 30))


def test_rows_that_never_met_agree_on_nothing() -> None:
    """A difference counts all the same."""
    case, wrong = case_of("sum", "count"), trace(99, *range(11, 30))

    assert judge(case, SAID, SAID, width=2) == [Verdict.EXACT] * 2
    assert judge(case, SAID, SAID, width=1) == [Verdict.INCONCLUSIVE] * 2
    assert judge(case, wrong, SAID, width=1) == [Verdict.WRONG, Verdict.INCONCLUSIVE]


def test_what_failed_is_an_error() -> None:
    """Beyond the window an engine may raise."""
    broken = trace(finish=None, fault=Fault(summary="it raised"))

    assert judge(case_of("sum"), broken) == [Verdict.ERROR]


def test_forced_answers_are_judged_by_their_numbers_alone() -> None:
    """Their tokens are the reference's: without numbers there is no verdict."""
    case = replace(case_of("sum"), forced=True)
    bare = Long().judge(
        case, {"sum": SAID}, Answers((SAID,), None), lambda _: place("long", case)
    )

    assert bare == ()
    assert judge(case, SAID) == [Verdict.INCONCLUSIVE]


# --- Real engines -----------------------------------------------------------------------------

SETTINGS = Settings(max_tokens=12)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """What mlx-lm says with a model whose window is 16 tokens."""
    folder = build(RandomModel(family="gemma3_text"), tmp_path_factory.mktemp("window") / "m")
    questions = as_questions(NeverEvicted.prompts)
    found = record(str(folder), questions, SETTINGS)
    assert found.model.window == 16
    return found


def driven(recorded: Recorded, backend: object, *checks: Any) -> Report:
    """Ask a backend everything."""
    settings = replace(SETTINGS, effort="thorough")
    with Drive(recorded, backend, checks, settings) as drive:
        drive.run()
    return drive.report()


def test_mlx_lm_says_beyond_the_window_what_mlx_lm_says(recorded: Recorded) -> None:
    """Alone, beside a short row, and in numbers; whatever the chunk."""
    report = driven(recorded, "mlx-lm", Long(), Chunks())

    assert report.outcome == "pass", report.explain()
    long = [found for found in report.comparisons if found.check == "long"]
    assert len(long) > 20
    assert {found.batch for found in long} == {1, 2}
    assert any(found.errors for found in long)


def _within(found: Comparison) -> bool:
    """Tell the prompts whose twelve tokens end within a window of sixteen."""
    return found.prompt_id in {"nonsense-0", "nonsense-1"}


# One key too many is a fault of the logits check's, and has no expectations of its own.
ONE_KEY = Expect(check="long", case="forced-long/(batch-2/)?(prefill|decode)-1[678]")
RED = {fault: getattr(fault, "red", ONE_KEY) for fault in WINDOWED}
GREEN = {
    fault: getattr(fault, "green", (Expect(check="tokens", only=_within),))
    for fault in WINDOWED
}


@pytest.mark.parametrize("fault", WINDOWED, ids=lambda fault: f"S{fault.row}-{fault.__name__}")
def test_a_fault_of_the_window_is_red(recorded: Recorded, fault: type[Faulty]) -> None:
    """In the check that its row names; what stays within the window stays green."""
    report = driven(recorded, fault, Tokens(), Chunks(), Long())

    red = {found.verdict for found in RED[fault].select(report.comparisons)}
    assert red & {Verdict.WRONG, Verdict.DRIFT}
    assert not set(report.counts) & {Verdict.ERROR, Verdict.INCONCLUSIVE}
    for green in GREEN[fault]:
        chosen = green.select(report.comparisons)
        assert chosen, green
        assert {found.verdict for found in chosen} == {Verdict.EXACT}, green
