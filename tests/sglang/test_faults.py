"""Faults planted in SGLang's runner: the named cases go red, the others stay green."""

from __future__ import annotations

import re
from typing import Any

import pytest

import mlxcheck
from mlxcheck.backends.sglang import SglangBackend
from mlxcheck.records import Verdict
from tests.sglang.driving import MODELS
from tests.sglang.faults import FAULTS, Faulty

MODEL = MODELS / "qwen3_moe-float32"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"S{fault.row}-{fault.__name__}")
def test_fault_is_seen_where_it_must_be_and_only_there(fault: type[Faulty]) -> None:
    """The check that the fault's row names goes red with step and row; the green one stays."""
    report = mlxcheck.check(MODEL, fault, prompts=fault.prompts)

    assert report.outcome == "fail"
    red = [found for found in fault.red.select(report.comparisons) if found.step is not None]
    assert red, f"nothing red in {fault.red}: {report.summary()}"
    for found in red:
        assert found.verdict is Verdict.WRONG
        assert re.search(rf"step {found.step}\b", found.message), found.message
        assert found.batch == 1 or f"row {found.row}" in found.message, found.message
    for green in fault.green:
        chosen = green.select(report.comparisons)
        assert chosen, f"nothing was compared in {green}"
        wrong = [found.message for found in chosen if found.verdict is not Verdict.EXACT]
        assert not wrong, f"{green} should be green:\n" + "\n".join(wrong[:3])


def test_sglang_is_whole_again_after_a_faulty_candidate() -> None:
    """The honest backend passes after a faulty one, in the same process."""
    options: dict[str, Any] = {"checks": ["batch"], "effort": "quick", "max_tokens": 8}
    broken = mlxcheck.check(MODEL, FAULTS[0], **options)
    honest = mlxcheck.check(MODEL, SglangBackend, **options)

    assert (broken.outcome, honest.outcome) == ("fail", "pass")
