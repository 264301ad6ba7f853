"""``python -m mlxcheck``: the command."""

from __future__ import annotations

import sys

from mlxcheck.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
