"""Stretches of a run: watched while they last, measured at their end."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlxcheck import memory
from mlxcheck.records import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Observer", "measured", "phase_since"]


class Observer:
    """Watches a run; every method may be overridden, and none changes the run."""

    def begin(self, phase: str, total: int) -> None:
        """A phase starts: ``"load"``, ``"reference"`` or ``"candidate"``."""

    def advance(self) -> None:
        """One prompt, or one case, of the phase is done."""

    def end(self) -> None:
        """The phase is over."""


@contextmanager
def measured(
    name: str, phases: list[Phase], observer: Observer | None, total: int
) -> Iterator[None]:
    """Time a phase and measure memory at its end."""
    memory.reset_peak()
    start = time.perf_counter()
    if observer:
        observer.begin(name, total)
    try:
        yield
    finally:
        if observer:
            observer.end()
    phases.append(phase_since(start, name))


def phase_since(start: float, name: str) -> Phase:
    """Return the phase that began at *start*, a `time.perf_counter`, and ends now."""
    seconds = time.perf_counter() - start
    used = memory.usage()
    return Phase(
        name=name,
        seconds=seconds,
        active=used.active,
        cached=used.cached,
        peak=used.peak,
        rss=used.rss,
    )
