"""``mlxcheck replay FILE``: whether what once failed still does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mlxcheck.backends import registry
from mlxcheck.replay import replay, shown

if TYPE_CHECKING:
    import argparse

__all__ = ["add_replay_options", "run_replay"]

_STATUS = {"pass": 0, "fail": 1, "inconclusive": 3}
"""Those of ``mlxcheck run``."""


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("file", metavar="FILE", help="replay file of `mlxcheck run --shrink`")
    parser.add_argument("--backend", metavar="B", help="instead of the one that the file names")
    parser.add_argument("--model", metavar="M", help="instead of the one that the file names")


def run_replay(options: argparse.Namespace) -> int:
    """Replay the file, show what it came to, and return the exit status.

    Raises:
        MlxCheckError: As for `replay`.
    """
    from mlxcheck.render.progress import ProgressLines

    progress = ProgressLines()
    progress.label = options.file
    with registry.working_folder_on_path():
        found = replay(
            options.file,
            backend=options.backend,
            model=options.model,
            observer=progress,
        )
    sys.stdout.write(f"{shown(found.message)}\n{found.outcome}: {found.report.backend}\n")
    sys.stdout.flush()
    return _STATUS[found.outcome]
