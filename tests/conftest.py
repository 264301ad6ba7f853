"""What all tests share."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["pytester"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs so, and every child inherits it: Ctrl-C could not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is measured out of the user's cache; processes that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLXCHECK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
