"""Skip this folder, and no other, where SGLang is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import sglang_server

_HERE = Path(__file__).parent
_MISSING = sglang_server.missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why nothing of it is run."""
    if _MISSING is None:
        return
    for item in items:
        if _HERE in item.path.parents:
            reason = f"{_MISSING}; the nox session `sglang-server` installs it"
            item.add_marker(pytest.mark.skip(reason=reason))
