"""Faults planted in mlx-lm's batch path: the named cases go red, the others stay green."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mlxcheck
from fixtures.faults.mlx_lm import FAULTS, Faulty, WorkerDies
from mlxcheck.prompts import packaged
from mlxcheck.records import Verdict

PROMPTS = (
    "sum-2-2",
    "sum-9-9",
    "capital-france",
    "capital-peru",
    "complete-capital-spain",
    "repeat-3",
    "filler-sum-3-4",
    "filler-capital-norway",
    "len-1",
    "len-2",
    "len-8",
    "len-33",
)
MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3_moe-float32"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"S{fault.row}-{fault.__name__}")
def test_fault_is_seen_where_it_must_be_and_only_there(fault: type[Faulty]) -> None:
    """The check that the fault's row names goes red with step and row; the green one stays."""
    asked = fault.prompts or [entry for entry in packaged() if entry.id in PROMPTS]
    report = mlxcheck.check(MODEL, fault, prompts=asked)

    assert report.outcome == "fail"
    red = [f for f in fault.red.select(report.comparisons) if f.verdict is Verdict.WRONG]
    assert red, f"nothing red in {fault.red}: {report.summary()}"
    for found in red:
        assert re.search(r"step \d+", found.message), found.message
        assert found.batch == 1 or f"row {found.row};" in found.message, found.message
    for green in fault.green:
        chosen = green.select(report.comparisons)
        assert chosen, f"nothing was compared in {green}"
        wrong = [found.message for found in chosen if found.verdict is not Verdict.EXACT]
        assert not wrong, f"{green} should be green:\n" + "\n".join(wrong[:3])


def test_mlx_lm_is_whole_again_after_a_faulty_candidate() -> None:
    """The honest backend passes after a faulty one, in the same process."""
    broken = mlxcheck.check(MODEL, FAULTS[0], checks=["batch"], effort="quick", max_tokens=8)
    honest = mlxcheck.check(MODEL, "mlx-lm", checks=["batch"], effort="quick", max_tokens=8)

    assert (broken.outcome, honest.outcome) == ("fail", "pass")


def test_a_worker_that_dies_at_its_second_request_is_an_error() -> None:
    """Row 51: the first answer stays good, the second is an ERROR and not a hang."""
    asked = [entry for entry in packaged() if entry.id.startswith("sum")][:2]
    policy = mlxcheck.Policy(watchdog_s=1, grace_s=1)

    report = mlxcheck.check(MODEL, WorkerDies, prompts=asked, checks=["tokens"], policy=policy)

    first, second = report.comparisons
    assert (first.verdict, second.verdict) == (Verdict.EXACT, Verdict.ERROR)
    assert "no token within 1 s for sum-7-5" in second.message
