"""SGLang's server on its MLX backend, from outside, on a qwen3_moe model."""

from __future__ import annotations

from tests.support.sglang_server import launch
from tests.support.smoking import by_name, smoked

ASKED = ("answers", "again", "sum", "capital", "stream", "eight", "repeatable")


def test_it_answers() -> None:
    """It says something, that 2+2 is 4, and that the capital of France is Paris."""
    report = smoked(launch("qwen3_moe-float32"), *ASKED, wait_s=300.0)

    results = by_name(report)
    assert {name: results[name].outcome for name in ASKED} == dict.fromkeys(ASKED, "pass"), (
        report.results
    )
