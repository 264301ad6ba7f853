"""The main job: SGLang's real runner says what plain mlx-lm says, on every fixture model.

The float32 models get the whole standard run, the 8-bit ones a quick one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mlxcheck
from mlxcheck.records import Verdict
from tests.sglang.driving import MODELS

if TYPE_CHECKING:
    from mlxcheck.report import Report

FAMILIES = ("qwen2_moe", "qwen3_moe", "qwen3")
BACKENDS = ("sglang", "sglang-radix", "sglang-lazy", "sglang-radix-lazy")


def _require_all_equal(report: Report, least: int) -> None:
    assert report.outcome == "pass", report.explain()
    assert {found.verdict for found in report.comparisons} == {Verdict.EXACT}
    asked = {found.check for found in report.comparisons}
    assert asked >= {"tokens", "batch", "logits", "schedule", "chunks"}
    assert report.steps >= least
    print(report.summary())  # noqa: T201 - with `pytest -rP`, what was compared


def _refused(report: Report) -> str | None:
    """Return the engine's own words where it did not open at all."""
    messages = {found.message for found in report.comparisons}
    verdicts = {found.verdict for found in report.comparisons}
    if verdicts == {Verdict.ERROR} and all("open() raised" in message for message in messages):
        return min(messages).partition("open() raised ")[2].partition("\n")[0]
    return None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_float32(family: str, backend: str) -> None:
    """In float32 every token of every prompt is the same, alone and in batches."""
    report = mlxcheck.check(MODELS / f"{family}-float32", backend)
    _require_all_equal(report, least=1000)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_8bit(family: str, backend: str) -> None:
    """So they are with 8-bit weights in bfloat16, where the runner loads them."""
    report = mlxcheck.check(MODELS / f"{family}-8bit", backend, effort="quick")
    if (words := _refused(report)) is not None:
        pytest.skip(f"SGLang's runner refuses {family} with 8-bit weights: {words}")
    _require_all_equal(report, least=500)
