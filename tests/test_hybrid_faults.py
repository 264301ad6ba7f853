"""Faults of recurrent state in batches: seen where they must be, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mlxcheck
from fixtures.faults.hybrid import ASKED, HYBRID
from mlxcheck.records import FAILING, Verdict

if TYPE_CHECKING:
    from fixtures.faults.mlx_lm import Faulty

LFM2 = Path(__file__).parents[1] / "fixtures" / "models" / "lfm2-float32"


@pytest.mark.parametrize("fault", HYBRID, ids=lambda fault: fault.__name__)
def test_fault_is_seen_where_it_must_be_and_only_there(fault: type[Faulty]) -> None:
    """Red in the check that the row names, green alone; and whole again afterwards."""
    checks = ["tokens", "batch", "schedule"]
    report = mlxcheck.check(LFM2, fault, prompts=ASKED, checks=checks, max_tokens=16)

    assert any(each.verdict in FAILING for each in fault.red.select(report.comparisons))
    for green in fault.green:
        chosen = green.select(report.comparisons)
        assert {each.verdict for each in chosen} == {Verdict.EXACT}
    honest = mlxcheck.check(LFM2, "mlx-lm", prompts=ASKED, checks=checks, max_tokens=16)
    assert honest.outcome == "pass"
