"""Gemma 2 in a batch, on mlx-lm as it is: the mask's rows meet the scores' key heads."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlxcheck
from fixtures.random_models import RandomModel, build

KEPT = Path(__file__).parents[2] / "docs" / "findings" / "gemma2-batch.json"


@pytest.fixture(scope="module")
def gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of random weights, with fewer key heads than heads."""
    spec = RandomModel(family="gemma2", dtype="float32", layers=2, kv_heads=2)
    return build(spec, tmp_path_factory.mktemp("gemma2") / "random-gemma2-float32")


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="mlx-lm 0.32.2: docs/findings/gemma2-batch.md"
)
def test_gemma2_says_in_a_batch_what_it_says_alone(gemma2: Path) -> None:
    """Passes once mlx-lm is mended; then this mark and the page go."""
    mlxcheck.assert_replays(KEPT, model=gemma2)


def test_with_as_many_key_heads_as_heads_it_does(tmp_path: Path) -> None:
    """The same case is green where the mask has nothing to be mistaken for."""
    spec = RandomModel(family="gemma2", dtype="float32", layers=2, kv_heads=4)
    whole = build(spec, tmp_path / "random-gemma2-float32")

    mlxcheck.assert_replays(KEPT, model=whole)
