"""What the scripts of this folder share: the device, models, prompts, and one way to count."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from fixtures.random_models import RandomModel, build
from mlxcheck import precision
from mlxcheck.records import ALL_PROMPTS, Prompt, Verdict
from mlxcheck.reference import load_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mlxcheck.records import Comparison

__all__ = [
    "KINDS",
    "MODELS",
    "ROOT",
    "Folders",
    "choose_device",
    "counts",
    "in_kind",
    "nonsense",
    "say",
    "write_json",
]

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "fixtures" / "models"

KINDS: dict[str, tuple[str, int | None]] = {
    "float32": ("float32", None),
    "8bit": ("bfloat16", 8),
    "bf16": ("bfloat16", None),
    "4bit": ("bfloat16", 4),
    "float16": ("float16", None),
}
"""What a model's weights can be: the dtype of those that are not quantised, and the bits; those
that matter most first, since time may run out."""


def say(line: str = "") -> None:
    """Print a line now: these scripts run for minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def choose_device(name: str) -> str:
    """Compute on ``"cpu"`` or ``"gpu"``, with TF32 off, and return the device's name."""
    precision.turn_tf32_off()  # before building a model computes anything
    os.environ["MLXCHECK_CACHE"] = ""  # noise is measured anew in every run
    mx.set_default_device(mx.gpu if name == "gpu" else mx.cpu)
    if name == "cpu":
        return "cpu"
    return str(mx.device_info().get("device_name", "gpu"))


def in_kind(spec: RandomModel, kind: str) -> RandomModel:
    """Return *spec* with weights of a key of `KINDS`."""
    dtype, bits = KINDS[kind]
    return replace(spec, dtype=dtype, bits=bits)


@dataclass(slots=True)
class Folders:
    """Models of random weights on disk, each built once and tried once.

    Attributes:
        root: Where they are.
        cannot: By spec, why this build of MLX cannot run it; empty where it can.
    """

    root: Path
    cannot: dict[RandomModel, str]

    @classmethod
    @contextmanager
    def temporary(cls) -> Iterator[Folders]:
        """Keep them as long as the block lasts."""
        with tempfile.TemporaryDirectory(prefix="honesty-") as folder:
            yield cls(root=Path(folder), cannot={})

    def make(self, spec: RandomModel) -> Path:
        """Return the folder of *spec*.

        Raises:
            RuntimeError: This build of MLX has no kernel for it.
        """
        folder = self.root / f"{spec.name}-{spec.kv_heads}"
        if spec not in self.cannot:
            build(spec, folder)
            self.cannot[spec] = _cannot_run(folder)
        if self.cannot[spec]:
            raise RuntimeError(self.cannot[spec])
        return folder


def _cannot_run(folder: Path) -> str:
    """Try two tokens; experts in 16 bits are what MLX's CPU build refuses."""
    try:
        model: Any = load_model(str(folder))
        mx.eval(model(mx.array([[300, 301]])))
    except RuntimeError as error:
        return str(error)
    return ""


def nonsense(lengths: Iterable[int], seed: str) -> tuple[Prompt, ...]:
    """Return prompts of random ids, all of them ordinary words of the fixtures."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    rows = [tuple(draw.randrange(260, 670) for _ in range(length)) for length in lengths]
    return tuple(Prompt(id=f"nonsense-{n}", tokens=row) for n, row in enumerate(rows))


def counts(comparisons: Iterable[Comparison]) -> Counter[Verdict]:
    """Count the verdicts of single prompts: what is said of all together is no case."""
    return Counter(each.verdict for each in comparisons if each.prompt_id != ALL_PROMPTS)


def write_json(path: Path, content: object) -> None:
    """Write what a script found."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
