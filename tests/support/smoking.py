"""Starting servers for smoke checks, and seeing that nothing of them is left."""

from __future__ import annotations

import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from mlxcheck import smoke
from mlxcheck.serving.launch import Launch
from mlxcheck.serving.presets import PRESETS
from mlxcheck.smoke.counting import counter_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _pytest.mark import ParameterSet

    from mlxcheck.smoke import SmokeReport, SmokeResult

__all__ = [
    "by_name",
    "checks",
    "failing",
    "left",
    "nothing_left",
    "of_small",
    "require_pass",
    "served",
    "small",
    "smoked",
]

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SMALL = Path(__file__).parents[1] / "smoke" / "small_server.py"


def small(fault: str = "none", tag: str = "") -> Launch:
    """Return what starts the small server with one of its faults."""
    return Launch(
        command=(sys.executable, str(SMALL), "{port}", fault, tag or uuid.uuid4().hex)
    )


def left(tag: str) -> list[psutil.Process]:
    """Return the processes that bear *tag* among their arguments and still run."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if tag in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@contextmanager
def nothing_left(wait_s: float = 5.0) -> Iterator[str]:
    """Yield a tag for a server, and see that no process bears it *wait_s* afterwards."""
    tag = uuid.uuid4().hex
    try:
        yield tag
    finally:
        over = time.monotonic() + wait_s
        while left(tag) and time.monotonic() < over:
            time.sleep(0.05)
        rest = left(tag)
        for process in rest:
            process.kill()
        assert rest == []


def smoked(launch: Launch, *checks: str, **settings: object) -> SmokeReport:
    """Ask a server that is started for it; without names, everything."""
    given = {"timeout_s": 20.0, "wait_s": 60.0, **settings}
    return smoke.run(launch, smoke.Asking(checks=smoke.named(checks), **given))  # type: ignore[arg-type]


def of_small(fault: str, *checks: str, **settings: object) -> SmokeReport:
    """Ask the small server with a fault, and see that nothing of it is left."""
    with nothing_left() as tag:
        return smoked(small(fault, tag), *checks, **settings)


def by_name(report: SmokeReport) -> dict[str, SmokeResult]:
    """Return the results by the names of their checks."""
    return {result.name: result for result in report.results}


def failing(report: SmokeReport) -> set[str]:
    """Return the names of the checks that failed."""
    return {result.name for result in report.failures}


def checks(known: Mapping[str, str]) -> list[ParameterSet]:
    """Return every check as a parameter; those with a *known* fault are expected to fail.

    Args:
        known: The pages that tell of the faults, by check.
    """
    return [
        pytest.param(
            name,
            marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=known[name])
            if name in known
            else (),
        )
        for name in (smoke.STARTS, *smoke.CHECKS)
    ]


def served(preset: str, model: str) -> SmokeReport:
    """Ask a real server that serves a fixture; there is no hub, nor a cache of it."""
    chosen = PRESETS[preset]
    launch = chosen.launch(str(MODELS / model))
    hub = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(MODELS / "no-such-folder")}
    launch = replace(launch, env={**launch.env, **hub})
    asking = smoke.Asking(
        served_model=chosen.served_model,
        counter=counter_for(str(MODELS / model)),
        timeout_s=60.0,
        wait_s=120.0,
    )
    return smoke.run(launch, asking)


def require_pass(report: SmokeReport, name: str) -> None:
    """Fail with the evidence of a check that did not pass."""
    result = by_name(report)[name]
    assert result.outcome == "pass", result.message
