"""Shrinking: smaller cases by hand, and real failures to the smallest that still fail."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from fixtures.faults.mlx_lm import (
    JoinIndexesModulo,
    OffsetsNotCompacted,
    PaddingVisible,
    RowsPastEightWrong,
)
from fixtures.faults.paged_caches import ExactHitReplays
from fixtures.paged.backend import PagedBackend
from mlxcheck import checks, shrink
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.errors import ReferenceTampered
from mlxcheck.prompts import as_questions, packaged
from mlxcheck.recording import record
from mlxcheck.records import FAILING, Case, Moment, Prompt, Schedule, Verdict
from mlxcheck.run import Drive
from mlxcheck.settings import Settings
from mlxcheck.smaller import CUTS, after, parts, prompt_tokens, size, without_rows
from tests.search.shrunk import MODEL, Trial, shrunk
from tests.support.made import prompt
from tests.support.reported import comparison

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlxcheck.backends.base import Emission, Request
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Comparison, ModelRef

A, B, C = (prompt(name, length) for name, length in (("a", 2), ("b", 5), ("c", 9)))
SETTINGS = Settings(max_tokens=8)
BATCH = checks.named(["batch"])[0]
ASKED = ("sum-2-2", "filler-sum-3-4", "filler-capital-norway", "len-1", "len-8", "len-33")


# --- Smaller cases ----------------------------------------------------------------------------


def test_rows_go_with_what_waited_for_them() -> None:
    """Moments speak of the rows that are left by their new numbers, or of who was before."""
    schedule = Schedule(
        joins=(None, Moment(row=0, tokens=1), Moment(row=1, tokens=2)),
        leaves=(None, None, Moment(row=2, tokens=3)),
    )
    case = Case(id="x", prompts=(A, B, C), schedule=schedule, given=(0, 1, 2), most=(0, 0, 4))

    without_first, without_second = without_rows(case, [0]), without_rows(case, [1])

    assert without_first.prompts == (B, C)
    assert without_first.schedule == Schedule(
        joins=(None, Moment(row=0, tokens=2)), leaves=(None, Moment(row=1, tokens=3))
    )
    assert (without_first.given, without_first.most) == ((1, 2), (0, 4))
    assert without_second.schedule == Schedule(
        joins=(None, Moment(row=0, tokens=1)), leaves=(None, Moment(row=1, tokens=3))
    )
    assert without_rows(case, [1, 2]) == Case(id="x", prompts=(A,))


def test_every_cut_has_something_to_offer_and_fewer_rows_come_first() -> None:
    """A case that has one of everything is cut by each."""
    case = Case(
        id="x",
        prompts=(C, B, B),
        schedule=Schedule(joins=(None, Moment(row=0, tokens=4), None), leaves=(None,) * 3),
        given=(2, 0, 0),
        chunk=2,
        rounds=4,
    )
    found = comparison(Verdict.WRONG, row=0, step=3)

    smaller = [
        [each for each in cut(case, found, [A, B, C]) if size(each, 8) < size(case, 8)]
        for cut in CUTS
    ]

    assert all(smaller)
    assert smaller[0][0].prompts == (C,)
    assert [len(each.prompts) for each in smaller[0]] == [1, 2, 2]
    assert smaller[1][0].schedule is None
    assert {(each.rounds, each.chunk) for each in smaller[2]} >= {(1, 2), (4, None), (4, 8)}
    assert prompt_tokens(smaller[3][0]) == 9 + 2 + 1 + 1
    assert smaller[4][0].prompts[0] == A
    assert smaller[5][0].most == (4, 0, 0)


def test_cut_off_company_is_nobody_whose_answer_is_known() -> None:
    """Else it would be held against an answer to another prompt."""
    case = Case(id="x", prompts=(A, C))

    cut = next(CUTS[3](case, comparison(Verdict.WRONG, row=0), [A, B, C]))

    assert cut.prompts == (A, Prompt(id="c.part-1", tokens=(10,)))


def test_what_was_driven_before_stands_in_line() -> None:
    """Each case waits for the one before; the case keeps its numbers and comes last."""
    own = Schedule(joins=(None, Moment(row=0, tokens=2)), leaves=(None, None))
    before = [Case(id="1", prompts=(C,)), Case(id="2", prompts=(A, B), schedule=own)]

    first, both = after(Case(id="x", prompts=(A, C), most=(3, 0)), before)

    assert first.prompts == (A, C, A, B)
    assert both.prompts == (A, C, C, A, B)
    assert both.most == (3, 0, 0, 0, 0)
    assert both.schedule == Schedule(
        joins=(
            Moment(row=4),
            Moment(row=4),
            None,
            Moment(row=2),
            Moment(row=3, tokens=2),
        ),
        leaves=(None,) * 5,
    )
    assert list(after(first, [])) == []


def test_what_was_driven_before_the_engine_was_opened_anew_does_not_matter() -> None:
    """It begins with the case that it was opened for, before which there is nothing."""
    before = [Case(id="1", prompts=(C,)), Case(id="2", prompts=(B,), fresh=True)]

    (only,) = after(Case(id="x", prompts=(A,)), before)

    assert only.prompts == (A, B)
    assert list(after(Case(id="x", prompts=(A,), fresh=True), before)) == []


def test_parts_are_both_ends_down_to_one_token() -> None:
    """Half, a quarter, and so on."""
    tokens = {len(each.tokens): [] for each in parts(C)}  # type: dict[int, list[tuple[int, ...]]]
    for each in parts(C):
        tokens[len(each.tokens)].append(each.tokens)

    assert tokens == {
        4: [C.tokens[:4], C.tokens[-4:]],
        2: [(10, 11), (17, 18)],
        1: [(10,), (18,)],
    }
    assert parts(Prompt(id="one", tokens=(5,))) == ()


# --- Real failures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "rows", "tokens"),
    [
        (OffsetsNotCompacted, 2, 20),
        (PaddingVisible, 2, 20),
        (RowsPastEightWrong, 1, 14),
        (ExactHitReplays, 2, 20),
    ],
)
def test_a_fault_shrinks_and_replays(
    fault: type[Any], rows: int, tokens: int, tmp_path: Path
) -> None:
    """Few requests, short prompts; red as recorded on the fault, green on the honest engine.

    The last one's prompts are shorter than any that its check would plan with.
    """
    honest = PagedBackend if issubclass(fault, PagedBackend) else MlxLmBackend
    trial = Trial(fault=fault, check=fault.red.check, honest=honest)
    found = shrunk(trial, tmp_path / "r.json")

    assert found is not None
    case = found.shrunk.case
    assert (len(case.prompts), found.shrunk.stable, found.shrunk.note) == (rows, True, "")
    assert prompt_tokens(case) <= tokens
    assert found.shrunk.seconds < shrink.BUDGET_S
    assert found.shrunk.comparison.verdict is found.whole.comparison.verdict
    assert found.shrunk.comparison.case == case.id
    assert (found.red, found.green) == ("as recorded", "pass")


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Return a few recorded prompts."""
    questions = as_questions([entry for entry in packaged() if entry.id in ASKED])
    return record(str(MODEL), questions, SETTINGS)


def _case(recorded: Recorded, *names: str, **more: Any) -> Case:
    by_id = {prompt.id: prompt for prompt in recorded.prompts}
    return Case(id="whole", prompts=tuple(by_id[name] for name in names), **more)


def _shrink(
    recorded: Recorded, engine: Any, case: Case, *, row: int | None = None, **more: Any
) -> tuple[shrink.Shrunk, Comparison]:
    """See a case fail, and shrink it."""
    with Drive(recorded, engine, [BATCH], SETTINGS, cases=()) as drive:
        failing = [f for f in drive.compare(BATCH, case) if f.verdict in FAILING]
    first = next(each for each in failing if row in {None, each.row})
    return shrink.shrink(recorded, engine, BATCH, case, first, SETTINGS, **more), first


def test_a_schedule_shrinks_to_the_join_that_matters(recorded: Recorded) -> None:
    """Four rows and three events become two rows and one join."""
    schedule = Schedule(
        joins=(None, Moment(row=0, tokens=1), Moment(row=0, tokens=2, steps=1), None),
        leaves=(None, None, None, Moment(row=3, tokens=5)),
    )
    case = _case(
        recorded, "len-8", "sum-2-2", "filler-sum-3-4", "len-33", schedule=schedule, chunk=16
    )

    found, _ = _shrink(recorded, JoinIndexesModulo, case)

    assert found.stable
    assert len(found.case.prompts) == 2
    assert (found.case.schedule.events if found.case.schedule else 0) <= 1
    assert found.case.chunk is None


class Wrong(MlxLmBackend):
    """Says a wrong first token where `lies` says so; counts what it has been asked."""

    opened: ClassVar[int] = 0

    def open(self, model: ModelRef) -> None:
        type(self).opened += 1
        self.asked: list[Request] = []
        super().open(model)

    def submit(self, request: Request) -> None:
        self.asked.append(request)
        super().submit(request)

    def lies(self, request: Request) -> bool:
        del request
        return True

    def step(self) -> Sequence[Emission]:
        """Tell another token than the model chose."""
        asked = {each.id: each for each in self.asked}
        return [
            replace(each, token=(each.token + 1) % 600)
            if self.lies(asked[each.request_id])
            else each
            for each in super().step()
        ]


def test_an_engine_that_fails_only_sometimes_is_unstable(recorded: Recorded) -> None:
    """It failed twice, and never again: that is told, with what was seen to fail."""

    class Sometimes(Wrong):
        opened = 0

        def lies(self, request: Request) -> bool:
            del request
            return self.opened <= 2

    found, _ = _shrink(recorded, Sometimes, _case(recorded, "len-8", "sum-2-2"))

    assert not found.stable
    assert len(found.case.prompts) == 1
    assert "unstable: it did not fail the same way in two fresh engines" in found.summary()


def test_what_fails_no_more_at_all_stays_as_it_was(recorded: Recorded) -> None:
    """The case of the run is given back; two fresh engines were tried."""

    class Once(Wrong):
        opened = 0

        def lies(self, request: Request) -> bool:
            del request
            return self.opened == 1

    case = _case(recorded, "len-8", "sum-2-2")

    found, first = _shrink(recorded, Once, case)

    assert (found.stable, found.probes) == (False, 2)
    assert found.case.prompts == case.prompts
    assert found.comparison.message == first.message


def test_what_an_earlier_request_left_behind_is_not_lost(recorded: Recorded) -> None:
    """In one engine the rest would go on to fail without its cause: each probe gets its own."""

    class Poisoned(Wrong):
        def lies(self, request: Request) -> bool:
            first = next(n for n, each in enumerate(self.asked) if len(each.tokens) >= 5)
            return request in self.asked[first + 1 :] if first else False

        def step(self) -> Sequence[Emission]:
            long = any(len(each.tokens) >= 5 for each in self.asked)
            return super().step() if long else MlxLmBackend.step(self)

    case = _case(recorded, "len-1", "len-33", "len-1", "filler-sum-3-4")

    found, _ = _shrink(recorded, Poisoned, case)

    assert found.stable
    lengths = [len(prompt.tokens) for prompt in found.case.prompts]
    assert len(lengths) == 3
    assert lengths[1] in range(5, 9)


def test_what_the_run_drove_before_comes_first_where_it_is_needed(recorded: Recorded) -> None:
    """By itself the case does not fail: one long request before it is left of the run."""

    class Remembers(Wrong):
        def lies(self, request: Request) -> bool:
            lengths = [len(each.tokens) for each in self.asked]
            return len(request.tokens) < 5 and any(length >= 5 for length in lengths[:-1])

    before = [_case(recorded, name) for name in ("len-33", "len-8", "len-1", "len-1", "len-1")]
    case = _case(recorded, "len-1")
    with Drive(recorded, Remembers, [BATCH], SETTINGS, cases=()) as drive:
        for number, each in enumerate([*before, case]):
            (first,) = drive.compare(BATCH, replace(each, id=str(number)))

    none = shrink.shrink(recorded, Remembers, BATCH, case, first, SETTINGS)
    found = shrink.shrink(recorded, Remembers, BATCH, case, first, SETTINGS, before=before)

    assert (none.stable, none.case.prompts) == (False, case.prompts)
    assert found.stable
    assert [len(prompt.tokens) for prompt in found.case.prompts] == [1, 8]
    assert found.case.schedule is not None
    assert found.case.schedule.joins[0] is not None
    assert found.comparison.row == 0


def test_an_engine_that_breaks_is_opened_again_for_every_probe(recorded: Recorded) -> None:
    """A session gives it up at the third time, which would be an ERROR of another kind."""

    class Breaks(Wrong):
        def step(self) -> Sequence[Emission]:
            if len(self.asked) > 1 and len(self.asked[-1].tokens) > 3:
                msg = "no room"
                raise RuntimeError(msg)
            return MlxLmBackend.step(self)

    found, first = _shrink(
        recorded, Breaks, _case(recorded, "len-8", "len-1", "sum-2-2", "len-33"), row=3
    )

    assert (first.verdict, found.comparison.verdict) == (Verdict.ERROR, Verdict.ERROR)
    assert found.stable
    assert "no room" in found.comparison.message
    assert len(found.case.prompts) == 2


def test_the_time_is_kept(recorded: Recorded) -> None:
    """No probe is begun after it, and the best of what was seen is given back."""
    slow = type("Slow", (Wrong,), {"submit": _slowly})
    case = _case(recorded, "len-8", "sum-2-2", "len-1")

    before = time.monotonic()
    found, _ = _shrink(recorded, slow, case, budget_s=1.5)
    took = time.monotonic() - before

    assert took < 4
    assert not found.stable
    none, _ = _shrink(recorded, Wrong, case, budget_s=0.0)
    assert (none.probes, none.case.prompts) == (0, case.prompts)


def _slowly(self: Wrong, request: Request) -> None:
    time.sleep(0.2)
    Wrong.submit(self, request)


def test_shorter_prompts_are_left_out_where_nobody_can_record_them(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate may have patched mlx-lm meanwhile: the rest is shrunk, and that is told."""

    def tampered(*_: object, **__: object) -> None:
        msg = "mlx-lm is patched"
        raise ReferenceTampered(msg)

    monkeypatch.setattr(shrink, "record_one", tampered)

    class Long(Wrong):
        def lies(self, request: Request) -> bool:
            return len(request.tokens) > 3

    found, _ = _shrink(recorded, Long, _case(recorded, "len-1", "sum-2-2"))

    assert found.stable
    assert [prompt.id for prompt in found.case.prompts] == ["len-8"]
    assert found.note == "shorter prompts could not be recorded: mlx-lm is patched"
    assert found.note in found.summary()


def test_only_failures_are_shrunk(recorded: Recorded) -> None:
    """What agrees has nothing to be found."""
    case = _case(recorded, "len-8")

    with pytest.raises(ValueError, match="EXACT is no failure"):
        shrink.shrink(recorded, "mlx-lm", BATCH, case, comparison(), SETTINGS)
