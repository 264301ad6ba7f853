"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(target: Path, text: str) -> None:
    """Write a text and a newline, in the place of what was there.

    Lone surrogates, of names of files that are not UTF-8, are escaped; in JSON they stay what
    they are.

    Args:
        target: In a folder that exists.
        text: Of the whole file.

    Raises:
        OSError: It cannot be written; what was there is left as it was.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".mlxcheck-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text + "\n")
        Path(name).chmod(0o644)  # mkstemp's own is private; these are to be shared
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
