"""Fixtures of the plugin's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.support import ALONE, FAULTS, MODELS, Folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def model() -> str:
    """Return the path of a trained model."""
    return str(MODELS / "qwen3-float32")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a folder with a user's engines and prompts."""
    return Folder(tmp_path)


@pytest.fixture
def faulty(folder: Folder) -> Folder:
    """Return a folder with engines that have small faults."""
    folder.write("faults.py", FAULTS)
    return folder


@pytest.fixture
def listed(pytester: pytest.Pytester) -> Callable[..., list[str]]:
    """Return a function that collects under ``--mlx-reference`` and returns the node ids."""

    def collect(*options: str) -> list[str]:
        result = pytester.runpytest_inprocess("--mlx-reference", "--co", "-q", *options)
        return [line for line in result.outlines if "::" in line and " " not in line]

    return collect
