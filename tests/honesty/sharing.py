"""Honest engines under the checks of what requests share: on a GPU ties may come, no more.

    python tests/honesty/sharing.py [--device cpu|gpu] MODEL KIND ENGINE

MODEL is a trained family or, at the sizes that near ties were measured on, ``large-FAMILY``;
KIND is float32, 8bit, bf16 or float16; ENGINE is mlx-lm, mlx-lm-speculative or paged. Exit
status 1 if anything is WRONG, DRIFT or ERROR.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlxcheck
from fixtures.paged.backend import PagedBackend
from fixtures.random_models import LARGE, RandomModel
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.backends.mlx_lm_speculative import SpeculativeBackend
from mlxcheck.records import FAILING
from tests.honesty.shared import KINDS, MODELS, Folders, choose_device, in_kind, say

ENGINES: dict[str, type[Any]] = {
    "mlx-lm": MlxLmBackend,
    "mlx-lm-speculative": SpeculativeBackend,
    "paged": PagedBackend,
}
CHECKS = ("chunks", "prefix", "tokens", "batch", "logits", "schedule", "long", "speculative")
MAX_TOKENS = 24
_LARGE = "large-"


def model_of(name: str, kind: str, folders: Folders) -> Path:
    """Return the checkpoint: a fixture as it is or cast, or one of random weights."""
    if name.startswith(_LARGE):
        sizes = {key: value for key, value in LARGE.items() if key != "dtype"}
        family = name.removeprefix(_LARGE)
        return folders.make(in_kind(RandomModel(family=family, **sizes), kind))
    dtype, bits = KINDS[kind]
    if bits or dtype == "float32":
        return MODELS / f"{name}-{kind}"
    folder = folders.root / f"{name}-{kind}"
    shutil.copytree(MODELS / f"{name}-float32", folder)
    path = str(folder / "model.safetensors")
    weights: Any = mx.load(path)
    cast = {key: value.astype(getattr(mx, dtype)) for key, value in weights.items()}
    mx.save_safetensors(path, cast, metadata={"format": "mlx"})
    return folder


def main(argv: list[str] | None = None) -> int:
    """Compare once, tell the counts by pass, check and verdict, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("model")
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("engine", choices=[*ENGINES])
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    with Folders.temporary() as folders:
        folder = model_of(options.model, options.kind, folders)
        engine = ENGINES[options.engine]
        report = mlxcheck.check(folder, engine, checks=CHECKS, max_tokens=MAX_TOKENS)
    counts = Counter(
        f"{each.precision} {each.check} {each.verdict}" for each in report.comparisons
    )
    told = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
    say(f"{options.model} {options.kind} {options.engine} ({device}): {report.outcome}; {told}")
    bad = [each for each in report.comparisons if each.verdict in FAILING]
    for each in bad:
        say(f"  {each.case}: {each.message}")
    return int(bool(bad) or not report.comparisons)


if __name__ == "__main__":
    sys.exit(main())
