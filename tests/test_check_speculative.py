"""The speculative check: one case of all prompts, drafts taken and refused, and two faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mlxcheck
from fixtures.faults.speculative import FAULTS, SpeculativeFault
from mlxcheck import checkpoint, reference
from mlxcheck.backends.base import Capabilities
from mlxcheck.backends.mlx_lm_speculative import SpeculativeBackend
from mlxcheck.checks.speculative import Speculative
from mlxcheck.errors import BackendError
from mlxcheck.records import Moment, Verdict
from mlxcheck.session import Answers
from tests.support.made import grounds, place, prompt, trace

if TYPE_CHECKING:
    from mlxcheck.messages import Place
    from mlxcheck.records import Case
    from mlxcheck.report import Report

QWEN3 = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-float32"
DRAFTS = Capabilities(batch=False, drafts=True)
SUM, DAY = trace(5, 6, 2, prompt_id="sum"), trace(7, 8, 2, prompt_id="day")


def _case() -> Case:
    (case,) = Speculative().plan(grounds([prompt("sum"), prompt("day")], DRAFTS))
    return case


def _judged(*tokens: tuple[int, ...], **counts: Any) -> list[tuple[Verdict, str]]:
    case = _case()

    def place_of(row: int) -> Place:
        return place("speculative", case, row)

    actual = tuple(trace(*each, prompt_id="x") for each in tokens)
    expected = {"sum": SUM, "day": DAY}
    found = Speculative().judge(case, expected, Answers(actual, None, **counts), place_of)
    return [(each.verdict, each.message) for each in found]


def test_all_prompts_follow_one_another_in_one_case() -> None:
    """One after the other, so that drafts are counted over all of them."""
    case = _case()

    assert (case.id, [each.id for each in case.prompts]) == ("speculative/2", ["sum", "day"])
    assert case.schedule is not None
    assert case.schedule.joins == (None, Moment(row=0))
    assert case.schedule.leaves == (None, None)


def test_engines_without_drafts_are_not_asked() -> None:
    """There is nothing to compare."""
    assert Speculative().refuse(DRAFTS) is None
    assert Speculative().refuse(Capabilities()) == "the backend drafts no tokens"


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ({}, "does not report how many tokens were drafted and accepted"),
        ({"drafted": 0, "accepted": 0}, "no token was drafted"),
        ({"drafted": 8, "accepted": 8}, "all 8 drafted tokens were accepted"),
    ],
)
def test_without_a_refused_draft_there_is_no_verdict(counts: dict[str, int], why: str) -> None:
    """Agreement says nothing then; a difference does."""
    same, other = _judged(SUM.tokens, (7, 9, 2), **counts)

    assert same[0] is Verdict.INCONCLUSIVE
    assert why in same[1]
    assert other[0] is Verdict.WRONG


def test_with_a_refused_draft_agreement_is_one() -> None:
    """One refused is enough."""
    found = _judged(SUM.tokens, DAY.tokens, drafted=8, accepted=7)

    assert [verdict for verdict, _ in found] == [Verdict.EXACT, Verdict.EXACT]


# --- For real --------------------------------------------------------------------------------

ASKED = ["What is 2 + 2?", "What is the capital of France?", [5, 6, 7, 8, 9]]


def _checked(backend: Any) -> Report:
    return mlxcheck.check(QWEN3, backend, prompts=ASKED, checks=["speculative"], max_tokens=16)


def test_mlx_lm_says_the_same_with_drafts() -> None:
    """Its own first layers draft; some are taken and some refused."""
    report = _checked("mlx-lm-speculative")

    assert report.outcome == "pass"
    assert {each.verdict for each in report.comparisons} == {Verdict.EXACT}
    assert len(report.comparisons) == 3


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_seen(fault: type[SpeculativeFault]) -> None:
    """Each is WRONG; what is patched is whole again afterwards."""
    report = _checked(fault)

    assert report.outcome == "fail"
    assert Verdict.WRONG in {each.verdict for each in report.comparisons}
    assert _checked("mlx-lm-speculative").outcome == "pass"


def test_a_draft_that_is_never_refused_proves_nothing() -> None:
    """The model itself as its draft: nothing differs, and nothing was tried."""

    class Itself(SpeculativeBackend):
        def __init__(self) -> None:
            super().__init__(draft=QWEN3)

    report = _checked(Itself)

    assert report.outcome == "inconclusive"
    assert "drafted tokens were accepted" in report.comparisons[0].message


def test_a_model_of_one_layer_needs_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to give."""
    load = reference.load_model

    def shallow(*args: Any, **options: Any) -> Any:
        model = load(*args, **options)
        model.model.layers = model.model.layers[:1]
        return model

    monkeypatch.setattr(reference, "load_model", shallow)
    backend = SpeculativeBackend()

    with pytest.raises(BackendError, match=r"SpeculativeBackend\(draft=FOLDER\)"):
        backend.open(checkpoint.inspect(QWEN3).model)
    backend.close()
