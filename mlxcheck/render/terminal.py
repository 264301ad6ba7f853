"""Reports as a table and paragraphs, for a terminal or a pipe.

Every number is the report's. Texts that came from a model or an engine are shown as they
are: no markup in them is obeyed, and no control character reaches the terminal.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlxcheck.memory import human
from mlxcheck.messages import counted
from mlxcheck.records import Comparison, Verdict
from mlxcheck.report import Outcome, Report, worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["console_on", "show", "show_partial"]

_EXPLAINED = 5  # groups of findings told in full, for each report
_NAMED = 6  # prompts named of those that share a finding
_PIPE_WIDTH = 160
_NARROW = 120  # columns below which long headers take two lines, and empty verdicts none
_BROKEN = {
    "comparisons": "compari-\nsons",
    "steps compared": "steps\ncompared",
    Verdict.INCONCLUSIVE: "INCON-\nCLUSIVE",
}
_NUMBER = re.compile(r"\d+")

_STYLES = {
    Verdict.EXACT: "green",
    Verdict.TIE: "green",
    Verdict.DRIFT: "bold red",
    Verdict.WRONG: "bold red",
    Verdict.ERROR: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
}
_WORDS: Mapping[Outcome, tuple[str, str]] = {
    "pass": ("bold green", "pass: every token that was compared is mlx-lm's, or a tie"),
    "fail": ("bold red", "fail: the candidate does not say what mlx-lm says"),
    "inconclusive": ("bold yellow", "inconclusive: nothing failed, but not all was decided"),
}
_ORDER = (Verdict.WRONG, Verdict.DRIFT, Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.TIE)
_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}

_HALVES = {"reference": ("load", "reference", "noise"), "candidate": ("open", "candidate")}

_Group = tuple[Comparison, ...]


def console_on(stream: TextIO) -> Console:
    """Return a console on *stream*: plain where ``NO_COLOR`` is set, wide in a pipe."""
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
    return Console(
        file=stream,
        force_terminal=False if os.environ.get("NO_COLOR") else None,
        width=width,
    )


def show(reports: Sequence[Report], console: Console) -> None:
    """Paint reports: table, what was not asked, findings, memory, total.

    Args:
        reports: One for each model and candidate.
        console: Where to.
    """
    reports = _with_short_names(reports)
    console.print(_table(reports, narrow=console.width < _NARROW))
    for line in _not_asked(reports):
        _say(console, line, "yellow")
    for report in reports:
        _show_findings(report, console)
    console.print()
    for report in reports:
        for each in report.passes:
            lines = "\n".join(each.lines())
            _say(console, f"{_title(report)}: {lines}", "dim")
    for report in reports:
        if report.phases:
            _say(console, f"memory {_title(report)}: {_memory(report)}", "dim")
    outcome = worst(reports)
    style, words = _WORDS[outcome]
    _say(console, f"{_total(reports)}\n{words}", style)


def show_partial(reports: Sequence[Report], console: Console, why: str) -> None:
    """Paint what was found before a run was cut short, and say so before and after.

    Args:
        reports: As for `show`.
        console: Where to.
        why: What cut it short.
    """
    _say(console, f"partial results: the run was cut short by {why}", "bold yellow")
    show(reports, console)


def _say(console: Console, text: str, style: str = "") -> None:
    """Print a text as it stands: lines are neither broken nor searched for markup."""
    console.print(Text(_clean(text), style=style), soft_wrap=True)


def _clean(text: str) -> str:
    return text.translate(_CONTROL)


def _title(report: Report) -> str:
    return f"{report.backend} on {report.model}"


def _with_short_names(reports: Iterable[Report]) -> list[Report]:
    """Call each model by the last part of its path, where that names one of them only."""
    reports = list(reports)
    short = {report.model: report.model.rstrip("/").rsplit("/", 1)[-1] for report in reports}
    if len(set(short.values())) < len(short):
        return reports
    return [replace(report, model=short[report.model]) for report in reports]


def _table(reports: Iterable[Report], *, narrow: bool) -> Table:
    gap = 0 if narrow else 1  # beside the one blank that the box has between columns
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
    reports = list(reports)
    seen = [verdict for verdict in Verdict if any(r.counts.get(verdict) for r in reports)]
    verdicts = seen if narrow else list(Verdict)
    for name in ("model", "backend", "pass", "check"):
        table.add_column(name, overflow="fold", no_wrap=name in {"pass", "check"})
    for name in ("comparisons", "steps compared", *verdicts):
        header = _BROKEN.get(name, name) if narrow else name
        table.add_column(str(header), justify="right", no_wrap=True)
    for report in reports:
        for (precision, check), part in _by_check(report).items():
            counts = part.counts
            table.add_row(
                Text(_clean(report.model)),
                Text(_clean(report.backend.rpartition(":")[2])),
                precision,
                Text(_clean(check)),
                f"{len(part.comparisons):,}",
                f"{part.steps:,}",
                *(_count(verdict, counts.get(verdict, 0)) for verdict in verdicts),
            )
    return table


def _count(verdict: Verdict, number: int) -> Text:
    return Text(f"{number:,}", style=_STYLES.get(verdict, "") if number else "dim")


def _by_check(report: Report) -> dict[tuple[str, str], Report]:
    """Split a report by pass and check; where nothing was asked, by what was not."""
    names: dict[tuple[str, str], None] = dict.fromkeys(
        (found.precision, found.check) for found in report.comparisons
    )
    names = names or {("-", check): None for check, _ in report.not_asked}
    return {
        (precision, check): replace(
            report,
            comparisons=tuple(
                found
                for found in report.comparisons
                if (found.precision, found.check) == (precision, check)
            ),
        )
        for precision, check in names or [("-", "-")]
    }


def _not_asked(reports: Iterable[Report]) -> list[str]:
    models: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        for check, reason in report.not_asked:
            models.setdefault((check, report.backend, reason), []).append(report.model)
    told: dict[tuple[str, str], list[str]] = {}
    for (check, backend, reason), names in models.items():
        told.setdefault((f"{backend} on {', '.join(names)}", reason), []).append(check)
    return [
        f"{', '.join(checks)} not asked of {who}: {reason}"
        for (who, reason), checks in told.items()
    ]


def _show_findings(report: Report, console: Console) -> None:
    groups = _grouped(report)
    for group in groups[:_EXPLAINED]:
        first = group[0]
        console.print()
        _say(console, f"{first.verdict}  {_title(report)}", _STYLES.get(first.verdict, ""))
        _say(console, first.message)
        if len(group) > 1:
            _say(console, f"  the same {_others(group[1:])}")
    rest = groups[_EXPLAINED:]
    if rest:
        number = counted(sum(len(group) for group in rest), "comparison")
        _say(console, f"\n{number} more did not agree in {_title(report)}; --json keeps all")


def _grouped(report: Report) -> list[_Group]:
    """Put comparisons that say the same of other prompts together, failures first."""
    groups: dict[tuple[str, ...], list[Comparison]] = {}
    for found in report.comparisons:
        if found.message:
            groups.setdefault(_kind(found), []).append(found)
    ordered = sorted(groups.values(), key=lambda group: _ORDER.index(group[0].verdict))
    return [tuple(group) for group in ordered]


def _kind(found: Comparison) -> tuple[str, ...]:
    """Return what makes two findings one: the headline, whatever numbers are in it."""
    head = found.message.partition("\n")[0].removeprefix(found.prompt_id)
    # One exception, seen by each check that looks at the case, is still one exception.
    check = "" if found.verdict is Verdict.ERROR else found.check
    head = head.removeprefix(f", check {found.check}: ")
    return found.precision, check, found.verdict, _NUMBER.sub("#", head)


def _others(group: Sequence[Comparison]) -> str:
    named = ", ".join(_where(found) for found in group[:_NAMED])
    rest = len(group) - _NAMED
    more = f" and {rest:,} more" if rest > 0 else ""
    return f"{counted(len(group), 'time')} more: {named}{more}"


def _where(found: Comparison) -> str:
    row = f" row {found.row}" if found.batch > 1 else ""
    step = "" if found.step is None else f" step {found.step}"
    return f"{found.check} {found.case}{row}{step}"


def _memory(report: Report) -> str:
    """Say what one copy is, and how high each half of the run got."""
    weights = next((term for term in report.gate if term.startswith("weights ")), "")
    parts = [f"one copy of the {weights}"] if weights else []
    for half, names in _HALVES.items():
        peaks = [phase.peak for phase in report.phases if phase.name in names]
        if peaks:
            parts.append(f"{half} peak {human(max(peaks))}")
    resident = max(phase.rss for phase in report.phases)
    return ", ".join([*parts, f"process {human(resident)}"])


def _total(reports: Sequence[Report]) -> str:
    steps = sum(report.steps for report in reports)
    number = sum(len(report.comparisons) for report in reports)
    counts = {
        verdict: sum(report.counts.get(verdict, 0) for report in reports) for verdict in Verdict
    }
    told = ", ".join(f"{n:,} {verdict}" for verdict, n in counts.items() if n) or "none"
    models = len({report.model for report in reports})
    backends = len({report.backend for report in reports})
    text = (
        f"{counted(steps, 'step')} compared in {counted(number, 'comparison')} "
        f"({counted(models, 'model')}, {counted(backends, 'backend')}): {told}"
    )
    cut = not all(report.complete for report in reports)
    return f"{text}; partial: the run was cut short" if cut else text
