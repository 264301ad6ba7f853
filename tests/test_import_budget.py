"""The plugin is in every pytest run of everyone who has mlxcheck: idle, it costs nothing."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = (
    "huggingface_hub",
    "hypothesis",
    "mlx",
    "mlx_lm",
    "mlxcheck.pytest_doorway",
    "mlxcheck.run",
    "numpy",
    "psutil",
    "requests",
    "rich",
    "tokenizers",
    "torch",
    "transformers",
    "urllib3",
)
PAIRS = 20
BUDGET_S = 0.020

TELL = """
import sys


def pytest_unconfigure(config):
    loaded = config.pluginmanager.has_plugin("mlxcheck")
    print("PLUGIN", loaded, *sorted(set(sys.modules) & set(HEAVY)), "END")
"""

SKIPPED_TEST = """
def test_mine(mlx_reference):
    assert False
"""


def environment() -> dict[str, str]:
    """Return the environment without what the outer pytest has put there."""
    return {key: value for key, value in os.environ.items() if "PYTEST" not in key}


def without_others() -> list[str]:
    """Return the options that leave out every installed plugin but mlxcheck."""
    names = {entry.name for entry in metadata.entry_points(group="pytest11")} - {"mlxcheck"}
    return [f"-pno:{name}" for name in sorted(names | {"cacheprovider"})]


def children_cpu() -> float:
    """Return the CPU seconds of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder: Path, *options: str) -> tuple[str, float, float]:
    """Collect in a folder; return what was printed, CPU seconds and wall seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", *without_others(), *options]
    before, start = children_cpu(), time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - start
    return done.stdout, children_cpu() - before, wall


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder that is a root of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("source", ["", SKIPPED_TEST])
def test_nothing_heavy_is_imported(folder: Path, source: str) -> None:
    """Not in an empty folder, and not where a test is skipped for want of the flag."""
    (folder / "conftest.py").write_text(f"HEAVY = {HEAVY!r}\n{TELL}", encoding="utf-8")
    (folder / "test_mine.py").write_text(source, encoding="utf-8")

    printed, _, _ = run(folder)

    assert "PLUGIN True END" in printed
    assert ("1 skipped" in printed) is bool(source)


def test_the_list_of_heavy_modules_is_looked_for(folder: Path) -> None:
    """The test above can fail: with the flag, the working half is found by the same means."""
    (folder / "conftest.py").write_text(f"HEAVY = {HEAVY!r}\n{TELL}", encoding="utf-8")

    printed, _, _ = run(folder, "--mlx-reference")

    assert "PLUGIN True mlxcheck.pytest_doorway mlxcheck.run END" in printed


def test_collecting_costs_less_than_20_ms(folder: Path) -> None:
    """The median over alternating runs, in CPU time, which other processes do not change."""
    spent: dict[str, list[tuple[float, float]]] = {"-q": [], "-pno:mlxcheck": []}
    for _ in range(PAIRS):
        for option, times in spent.items():
            _, cpu, wall = run(folder, "--collect-only", option)
            times.append((cpu, wall))

    medians = {
        option: [statistics.median(column) for column in zip(*times, strict=True)]
        for option, times in spent.items()
    }
    (cpu_with, wall_with), (cpu_without, wall_without) = medians.values()
    more = f"{1000 * (wall_with - wall_without):.1f} ms of wall time more"
    assert cpu_with - cpu_without < BUDGET_S, more
