"""Comparisons and reports made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlxcheck.records import Comparison, Verdict
from mlxcheck.report import Report

__all__ = ["comparison", "report"]


def comparison(verdict: Verdict = Verdict.EXACT, steps: int = 4, **more: Any) -> Comparison:
    """Make a comparison, its message its verdict unless said otherwise."""
    text = "" if verdict is Verdict.EXACT else f"{verdict} here"
    found = Comparison(
        check="tokens", prompt_id="sum", verdict=verdict, steps=steps, message=text
    )
    return replace(found, **more)


def report(*comparisons: Comparison, **more: Any) -> Report:
    """Make a report of these comparisons."""
    made = Report(
        model="a/tiny",
        model_type="qwen3",
        reference="mlx-lm 0.0",
        backend="mine",
        comparisons=comparisons,
    )
    return replace(made, **more)
