"""Faults that one check alone sees: no check is there for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mlxcheck
from fixtures.faults.single import SINGLE, DraftIgnored
from mlxcheck.prompts import packaged
from mlxcheck.records import FAILING, Verdict

if TYPE_CHECKING:
    from fixtures.faults.mlx_lm import Faulty
    from mlxcheck.checks.base import Effort

QWEN3 = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-float32"
ASKED = ("sum-2-2", "capital-france", "repeat-3", "filler-capital-norway", "len-8")
NEAR_LONG = ["tokens", "batch", "logits", "long"]


@pytest.mark.parametrize("fault", SINGLE, ids=lambda fault: fault.__name__)
def test_one_check_alone_sees_it(fault: type[Faulty]) -> None:
    """The one check that it was planted for goes red, and no other does."""
    asked = fault.prompts or [prompt for prompt in packaged() if prompt.id in ASKED]
    # Long prompts are dear: there the whole matrix asks the others.
    asking = NEAR_LONG if fault.prompts else None
    effort: Effort = "quick" if fault.prompts else "standard"
    options: dict[str, Any] = {"prompts": asked, "checks": asking, "effort": effort}
    report = mlxcheck.check(QWEN3, fault, max_tokens=12, **options)

    red = {each.check for each in report.comparisons if each.verdict in FAILING}
    assert red == {fault.red.check}
    assert any(each.verdict in FAILING for each in fault.red.select(report.comparisons))


def test_drafts_that_are_never_asked_for_are_no_pass() -> None:
    """The answers are right, so nothing is red; the check does not say that it passed."""
    asked = [prompt for prompt in packaged() if prompt.id in ASKED]
    report = mlxcheck.check(QWEN3, DraftIgnored, prompts=asked, max_tokens=12)

    assert not [each for each in report.comparisons if each.verdict in FAILING]
    mine = [each for each in report.comparisons if each.check == "speculative"]
    assert mine
    assert all(each.verdict is Verdict.INCONCLUSIVE for each in mine)
    assert report.outcome == "inconclusive"
