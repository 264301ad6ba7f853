"""Steps at which a router stands at a tie: found by jitter, and given the band they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxcheck import arms, checkpoint, jitter, reference
from mlxcheck.noise import BAND_FACTOR, DRIFT_FACTOR, Noise
from mlxcheck.records import Prompt, Scores, Trace

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3_moe-float32"
PROMPT = Prompt(id="words", tokens=tuple(range(300, 320)))


@pytest.fixture
def loaded() -> Any:
    """Load the model anew for each test."""
    return reference.load_model(str(MODEL))


def answer() -> Trace:
    """Return what the reference says."""
    found = checkpoint.inspect(MODEL)
    return reference.Reference(found).decode(PROMPT, max_tokens=6)


def test_norms_are_jittered_and_put_back(loaded: Any) -> None:
    """Inside the block the logits move by about rounding; after it they are what they were."""
    ids = mx.array([list(PROMPT.tokens)])
    before = loaded(ids)
    weights = dict(tree_flatten(loaded.parameters()))
    mx.eval(before, weights)

    with jitter.jittered(loaded, seed=1) as any_norm:
        inside = loaded(ids)
        mx.eval(inside)

    assert any_norm
    moved = float(str(mx.abs(inside - before).max().item()))
    assert 0 < moved < 1e-3
    assert mx.array_equal(loaded(ids), before)
    assert all(value is weights[name] for name, value in tree_flatten(loaded.parameters()))


def test_norms_are_put_back_after_an_error(loaded: Any) -> None:
    """The reference must not stay jittered whatever happens."""
    weight = loaded.model.norm.weight

    with pytest.raises(ZeroDivisionError), jitter.jittered(loaded, seed=1):
        raise ZeroDivisionError

    assert loaded.model.norm.weight is weight


def unrest_of(model: Any) -> list[float]:
    """Return the unrest of each step of the answer."""
    pairs = [(PROMPT, answer())]
    ((name, steps),) = arms._unrest(model, pairs, end=float("inf"))
    assert name == PROMPT.id
    return list(steps)


def test_a_router_at_a_tie_is_found(loaded: Any) -> None:
    """Equal rows but for rounding: which experts are chosen is anybody's guess."""
    calm = unrest_of(loaded)
    gate = loaded.model.layers[1].mlp.gate
    noise = mx.random.normal(gate.weight.shape, key=mx.random.key(0))
    gate.weight = mx.broadcast_to(gate.weight[:1], gate.weight.shape) * (1 + 1e-7 * noise)

    tied = unrest_of(loaded)

    assert len(calm) == len(tied) == 6
    assert max(calm) < 1e-3
    assert max(tied) > 100 * max(calm)


def test_time_that_is_up_ends_it(loaded: Any) -> None:
    """What was not measured has no unrest."""
    assert list(arms._unrest(loaded, [(PROMPT, answer())], end=0.0)) == []


def test_the_band_is_no_less_than_what_jitter_moved() -> None:
    """A step's unrest widens its own band, and no other's."""
    noise = Noise(dtype="float32", exact=True)
    calm = Scores(ids=(1, 2), logprobs=(-0.5, -1.0), logsumexp=8.0)
    restless = replace(calm, unrest=0.3)

    assert noise.band(calm) == noise.floor(calm) < 0.001
    assert noise.band(restless) == pytest.approx(BAND_FACTOR * 0.3)
    assert noise.drift_band(restless) == pytest.approx(DRIFT_FACTOR * 0.3)
