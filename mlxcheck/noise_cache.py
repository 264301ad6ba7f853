"""Noise that was measured before, kept on disk under everything that may change it.

A file that is not there, cannot be read or is not what it should be costs a measurement and
nothing else; one that cannot be written is not missed. `MLXCHECK_CACHE` names another folder,
or, where it is empty, none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcheck.noise import Noise, from_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.checkpoint import Checkpoint
    from mlxcheck.records import Prompt, Trace

__all__ = ["folder", "key", "load", "save"]

KEPT = 64
"""Files that stay when a new one is written, the newest of all models."""

_PACKAGES = ("mlxcheck", "mlx", "mlx-lm", "transformers")


def folder(environment: Mapping[str, str]) -> Path | None:
    """Return where the files are, whether or not it is there; None for nowhere."""
    named = environment.get("MLXCHECK_CACHE")
    if named is not None:
        return Path(named).expanduser() if named else None
    with contextlib.suppress(RuntimeError):  # no home
        if sys.platform == "darwin":
            return Path("~/Library/Caches/mlxcheck").expanduser()
        base = environment.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(base).expanduser() / "mlxcheck"
    return None


def key(
    found: Checkpoint,
    pairs: Sequence[tuple[Prompt, Trace]],
    facts: Mapping[str, object],
) -> str:
    """Return a digest of everything that may change the noise.

    Args:
        found: The checkpoint that was measured: its configuration, and name, size and time
            of change of each file. A float32 copy is made anew each time: give the original.
        pairs: Prompts and answers, by their ids and tokens.
        facts: Whatever else counts: the device, the pass, TF32, the chunk size.
    """
    path = Path(found.model.path)
    files = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(path.glob("*"))
        if file.is_file()
    ]
    content = {
        "path": str(path),
        "files": files,
        "packages": {name: _version(name) for name in _PACKAGES},
        "pairs": [(prompt.id, prompt.tokens, trace.tokens) for prompt, trace in pairs],
        "facts": {name: str(value) for name, value in facts.items()},
    }
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load(where: Path | None, name: str) -> Noise | None:
    """Return what was kept under a key, or None."""
    if where is None:
        return None
    try:
        raw = json.loads((where / f"noise-{name}.json").read_text(encoding="utf-8"))
        return from_plain(raw)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(where: Path | None, name: str, noise: Noise) -> None:
    """Keep a noise under a key, whole or not at all, and drop the oldest files."""
    if where is None:
        return
    with contextlib.suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(noise))
        handle, part = tempfile.mkstemp(dir=where, prefix=".noise-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            Path(part).replace(where / f"noise-{name}.json")
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        kept = sorted(where.glob("noise-*.json"), key=lambda file: file.stat().st_mtime_ns)
        for file in kept[:-KEPT]:
            file.unlink(missing_ok=True)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
