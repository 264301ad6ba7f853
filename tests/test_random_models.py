"""Checkpoints of random weights: they load, they are sane, and a seed says which."""

from __future__ import annotations

import hashlib
import math
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from fixtures.faults.mlx_lm import nonsense
from fixtures.random_models import (
    FAMILIES,
    LARGE,
    LOGIT_SPREAD,
    RandomModel,
    build,
    configuration,
)
from mlxcheck import checkpoint
from mlxcheck.reference import load_model, read_tokenizer

ROOT = Path(__file__).resolve().parent.parent
PROMPT = nonsense((40,), seed=6)[0].tokens

# The CPU build has no plain bf16 matrix products over chosen experts.
QUANTISED = (
    RandomModel(family="qwen3", dtype="bfloat16", bits=8),
    RandomModel(family="qwen3", dtype="float16", bits=4),
    RandomModel(family="qwen3_moe", dtype="bfloat16", bits=8),
    RandomModel(family="qwen2_moe", dtype="bfloat16", bits=4),
)
PLAIN = (
    *(RandomModel(family=family) for family in FAMILIES),
    *(
        RandomModel(family=family, dtype=dtype)
        for family in FAMILIES
        for dtype in ("bfloat16", "float16")
        if "moe" not in family
    ),
)


def _logits(model: Any, tokens: tuple[int, ...] = PROMPT) -> Any:
    return model(mx.array([tokens]))[0].astype(mx.float32)


def _list(values: Any) -> Any:
    return values.tolist()


@pytest.mark.parametrize("spec", PLAIN + QUANTISED, ids=lambda spec: spec.name)
def test_loads_with_spread_logits(spec: RandomModel, tmp_path: Path) -> None:
    """mlx-lm and mlxcheck read the folder; logits are finite and well apart."""
    folder = build(spec, tmp_path / spec.name)
    found = checkpoint.inspect(folder)
    assert found.model.vocab_size == spec.vocab
    assert read_tokenizer(found).eos_token_ids

    logits = _logits(load_model(str(folder)))
    assert logits.shape == (len(PROMPT), spec.vocab)
    spreads = _list(mx.std(logits, axis=-1))
    assert min(spreads) > 0.6 * LOGIT_SPREAD
    assert max(spreads) < 1.6 * LOGIT_SPREAD
    margins = [best - second for second, best in _list(mx.sort(logits, axis=-1)[:, -2:])]
    assert statistics.median(margins) > 0.2


@pytest.mark.parametrize("spec", PLAIN[: len(FAMILIES)], ids=lambda spec: spec.name)
def test_context_matters(spec: RandomModel, tmp_path: Path) -> None:
    """What was read before moves the logits, and the answer is not the last input again."""
    model = load_model(str(build(spec, tmp_path / "model")))
    other = (PROMPT[0] + 1, *PROMPT[1:])
    moved = _list(mx.abs(_logits(model) - _logits(model, other)).max(axis=-1))
    assert moved[4] > 0.1
    said = _list(mx.argmax(_logits(model), axis=-1))
    repeated = sum(one == two for one, two in zip(said, PROMPT, strict=True))
    assert repeated < 0.2 * len(PROMPT)


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_seed_decides(tmp_path: Path) -> None:
    """One seed, one file; another seed, another."""
    spec = RandomModel(family="qwen3_moe", layers=2)
    one = _digest(build(spec, tmp_path / "one"))
    assert _digest(build(spec, tmp_path / "two")) == one
    assert _digest(build(replace(spec, seed=1), tmp_path / "three")) != one


def test_vocabulary_of_any_size(tmp_path: Path) -> None:
    """The head may be smaller or larger than the tokenizer."""
    for vocab in (475, 672, 2000):
        spec = RandomModel(layers=2, vocab=vocab)
        model = load_model(str(build(spec, tmp_path / str(vocab))))
        assert _logits(model, (1, 2, 3)).shape == (3, vocab)


def test_below_zero_lowers_all_logits_alike(tmp_path: Path) -> None:
    """A lowered model has best logits below zero at some positions only."""
    spec = RandomModel(below_zero=8.5)
    model = load_model(str(build(spec, tmp_path / "model")))
    best: list[float] = []
    for prompt in nonsense((60,) * 8, seed=7):
        best += _logits(model, prompt.tokens).max(axis=-1).tolist()
    assert 0 < sum(value < 0 for value in best) < 0.2 * len(best)


def test_large_is_what_near_ties_were_measured_on() -> None:
    """The shapes of the table: 12 layers of 1,024, 16,384 ids, 64 experts of which 8."""
    config = configuration(RandomModel(family="qwen3_moe", **LARGE))
    said = [config[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size")]
    assert said == [12, 1024, 16384]
    assert (config["num_experts"], config["num_experts_per_tok"]) == (64, 8)
    assert math.isclose(config["rms_norm_eps"], 1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"family": "gpt5"}, "expected one of qwen3"),
        ({"dtype": "int8"}, "expected one of float32"),
        ({"family": "gemma2", "below_zero": 1.0}, "no head of its own"),
    ],
)
def test_refuses_what_cannot_be_built(change: dict[str, Any], said: str) -> None:
    """A spec that makes no model says why."""
    with pytest.raises(ValueError, match=said):
        RandomModel(**change)


def test_command_line(tmp_path: Path) -> None:
    """The script writes the checkpoint that its options describe."""
    out = tmp_path / "model"
    command = [sys.executable, str(ROOT / "fixtures" / "random_models.py"), "qwen3"]
    command += ["--layers", "2", "--hidden", "128", "--vocab", "700", "--seed", "3"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = checkpoint.inspect(out)
    assert (found.model.vocab_size, found.dtypes) == (700, ("BF16",))
