"""A checkpoint of three small tensors on disk, and how to break it."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck import checkpoint
from mlxcheck.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    Tensors = dict[str, tuple[str, int]]

__all__ = ["CONFIG", "TENSORS", "configure", "safetensors", "said", "written"]

CONFIG: dict[str, object] = {
    "model_type": "qwen3",
    "vocab_size": 320,
    "max_position_embeddings": 1024,
}
TENSORS = {"embed": ("F32", 400), "head": ("BF16", 200), "norm": ("F32", 40)}


def safetensors(tensors: Tensors, **changed: Any) -> bytes:
    """Make a safetensors file of zeros; *changed* replaces entries of its header."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    place = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [place, place + size]}
        place += size
    raw = json.dumps({**header, **changed}).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(place)


def written(folder: Path) -> Path:
    """Write a checkpoint that nothing is wrong with."""
    configure(folder)
    (folder / "model.safetensors").write_bytes(safetensors(TENSORS))
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder


def configure(folder: Path, *dropped: str, **changed: object) -> None:
    """Write another config.json."""
    config = {name: value for name, value in CONFIG.items() if name not in dropped}
    text = json.dumps({**config, **changed})
    (folder / "config.json").write_text(text, encoding="utf-8")


def said(folder: str | Path, **options: Any) -> str:
    """Return what is said of a checkpoint that is broken."""
    with pytest.raises(ModelError) as caught:
        checkpoint.inspect(folder, **options)
    assert "\n" not in str(caught.value), "an error is one paragraph"
    return str(caught.value)
