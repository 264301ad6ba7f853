"""Starting SGLang's real server on its MLX backend, on a Mac and on Linux."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcheck.serving.launch import Launch
from mlxcheck.serving.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MODELS", "launch"]

_ROOT = Path(__file__).parents[2]
MODELS = _ROOT / "fixtures" / "models"

_LINUX = (
    *("--device", "cpu", "--disable-overlap-schedule"),
    # It waits for a first answer of a GPU otherwise, and takes the whole memory for its cache.
    *("--skip-server-warmup", "--max-total-tokens", "8192", "--context-length", "2048"),
)
"""What is needed where there is no Metal, and does no harm elsewhere."""

_RADIX_OFF = ("--disable-radix-cache", "--disable-cuda-graph")


def launch(model: str, *more: str, radix: bool = False) -> Launch:
    """Return what starts the server on a fixture model.

    Args:
        model: Its folder's name.
        more: Arguments behind its own.
        radix: The radix cache is left on.
    """
    made = PRESETS["sglang"].launch(str(MODELS / model))
    words = [word for word in made.command if not (radix and word in _RADIX_OFF)]
    return Launch(
        command=(*words, *_LINUX, *more),
        env={**made.env, **_environment()},
        ready=made.ready,
    )


def _environment() -> Mapping[str, str]:
    """Let the server's processes find the stand-ins of `sglang_linux`."""
    if sys.platform == "darwin":
        return {"HF_HUB_OFFLINE": "1"}
    site = Path(__file__).with_name("sglang_site")
    paths = [str(site), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
