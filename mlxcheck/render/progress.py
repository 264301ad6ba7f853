"""How far a run is: a bar on a terminal, one line a phase anywhere else."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

from mlxcheck.messages import counted
from mlxcheck.phases import Observer

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ProgressLines", "can_redraw"]

_EVERY_S = 0.5
"""Seconds between two paintings. One costs about 1 ms, so the bar costs 0.2 % of a run, and
needs no thread, which would take the interpreter from a candidate in the middle of a step."""

_NOUNS = {"load": "model", "reference": "prompt", "candidate": "case"}


class ProgressLines(Observer):
    """Show each phase of a run while it lasts.

    Args:
        stream: Where to; standard error by default, so that standard output is the report's.

    Attributes:
        label: What the phases are about, as the next ones are to say it.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.label = ""
        self._stream = stream or sys.stderr
        self._redraw = can_redraw(self._stream)
        self._bar: Progress | None = None
        self._phase = ""
        self._done = self._total = 0
        self._began = self._painted = 0.0

    def begin(self, phase: str, total: int) -> None:
        """Start a bar, or remember when the phase began."""
        self._phase, self._done, self._total = phase, 0, total
        self._began = self._painted = time.monotonic()
        if self._redraw:
            self._bar = _bar(self._stream, f"{phase} {self.label}", total)

    def advance(self) -> None:
        """Count, and paint if the last painting is old."""
        self._done += 1
        if self._bar is not None:
            now = time.monotonic()
            if now - self._painted >= _EVERY_S:
                self._painted = now
                self._paint(self._bar, now, refresh=True)

    def end(self) -> None:
        """Leave one line that says what was done and how fast."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._paint(bar, time.monotonic(), refresh=False)
            bar.stop()  # paints once more
            return
        seconds = time.monotonic() - self._began
        self._stream.write(f"{self._phase} {self.label}: {self._summary(seconds)}\n")
        self._stream.flush()

    def _paint(self, bar: Progress, now: float, *, refresh: bool) -> None:
        rate = f"{self._done / max(now - self._began, 1e-9):.1f}/s" if self._total > 1 else ""
        bar.update(bar.task_ids[0], completed=self._done, rate=rate, refresh=refresh)

    def _summary(self, seconds: float) -> str:
        done = counted(self._total, _NOUNS.get(self._phase, "item"))
        if self._done != self._total:
            done = f"{self._done:,} of {done}"
        rate = f", {self._done / seconds:.1f}/s" if self._total > 1 and seconds else ""
        return f"{done} in {seconds:.1f} s{rate}"


def can_redraw(stream: TextIO) -> bool:
    """Tell whether lines may be painted over: a terminal that was not asked to be plain."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return stream.isatty() and not plain


def _bar(stream: TextIO, what: str, total: int) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(file=stream, force_terminal=True, highlight=False)
    bar = Progress(
        # A label holds names that users chose: brackets in it are no markup.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        # What an engine prints is its own, and goes where it sent it.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task(what, total=total, rate="")
    bar.start()
    # A watchdog that ends the process could not bring a hidden cursor back.
    console.show_cursor(show=True)
    return bar
