"""Smoke checks on the terminal: a line as each is done, and a table at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from mlxcheck.messages import counted
from mlxcheck.render.terminal import console_on
from mlxcheck.replay import shown

if TYPE_CHECKING:
    from mlxcheck.report import Outcome
    from mlxcheck.smoke import SmokeReport, SmokeResult

__all__ = ["SmokeLines", "show_smoke"]

_STYLES: dict[Outcome, str] = {
    "pass": "green",
    "fail": "bold red",
    "inconclusive": "yellow",
}
_WORDS: dict[Outcome, str] = {
    "pass": "pass: the server does what was asked of it",
    "fail": "fail: the server does not do what was asked of it",
    "inconclusive": "inconclusive: not all could be asked, or told",
}
_NOTE = 90


class SmokeLines:
    """Writes a line for each thing that happens.

    Args:
        stream: Where to; standard error by default, so that standard output is the report's.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def tell(self, line: str) -> None:
        """Write one line as it is."""
        self._stream.write(f"{shown(line)}\n")
        self._stream.flush()

    def found(self, result: SmokeResult) -> None:
        """Write what a check came to."""
        self.tell(f"{result.name}: {result.outcome} in {result.seconds:.1f} s")


def show_smoke(report: SmokeReport, stream: TextIO) -> None:
    """Paint a report: what failed with its evidence, a table, and the outcome."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = console_on(stream)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("check", "outcome", "seconds", "evidence"):
        right = name == "seconds"
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "evidence")
    for result in report.results:
        table.add_row(
            result.name,
            Text(result.outcome, style=_STYLES[result.outcome]),
            f"{result.seconds:.1f}",
            Text(_note(result)),
        )
    console.print(table)
    for result in report.results:
        if result.outcome != "pass" and not result.message.startswith("not asked: "):
            text = f"{result.outcome.upper()}  {result.name}"
            console.print(Text(text, style=_STYLES[result.outcome]), soft_wrap=True)
            console.print(Text(f"{shown(result.message)}\n"), soft_wrap=True)
    outcomes = [result.outcome for result in report.results]
    told = ", ".join(f"{n} {kind}" for kind in _STYLES if (n := outcomes.count(kind)))
    line = f"{counted(len(outcomes), 'smoke check')} of {report.server}: {told}"
    text = shown(f"{line}\n{_WORDS[report.outcome]}")
    console.print(Text(text, style=_STYLES[report.outcome]), soft_wrap=True)


def _note(result: SmokeResult) -> str:
    """Return the evidence in one short line; a failure's is told in full below."""
    if result.outcome != "pass" and not result.message.startswith("not asked: "):
        return "see below"
    line = shown(" ".join(result.message.split()))
    return line if len(line) <= _NOTE else f"{line[: _NOTE - 3]}..."
