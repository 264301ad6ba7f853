"""Skip this folder, and no other, where SGLang is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import sglang_linux

if TYPE_CHECKING:
    import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why nothing of it is run."""
    sglang_linux.skip_where_missing(items, Path(__file__).parent, "sglang-server")
