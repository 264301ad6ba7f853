"""mlx-lm's speculative decoding past a sliding window: refused drafts are not taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlxcheck

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "findings" / "speculative-window.json"
WINDOWED = ROOT / "fixtures" / "models" / "gemma3_text-float32"


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="mlx-lm 0.32.2: docs/findings/speculative-window.md",
)
def test_drafts_that_are_refused_leave_the_cache() -> None:
    """Passes once mlx-lm is mended; then this mark and the page go."""
    mlxcheck.assert_replays(KEPT, model=WINDOWED)


def test_without_drafts_the_same_case_is_right() -> None:
    """It is the drafts, and not the window: plain decoding agrees."""
    mlxcheck.assert_replays(KEPT, backend="mlx-lm", model=WINDOWED)
