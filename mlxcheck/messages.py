"""The one place that makes the text of a comparison. It decides nothing."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcheck.records import Case, Comparison, Scores, Trace

__all__ = ["Place", "counted", "difference", "failure", "inconclusive"]

_SHOWN_NEIGHBOURS = 6
_DETAIL_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a comparison stands: everything its message needs beside the two traces.

    Attributes:
        check: The question's name.
        case: What was submitted together.
        row: Which row of the case is meant.
        reference: Name and version of the reference engine.
        candidate: Name of the candidate.
        again: The command that repeats exactly this case.
        text_of: The text of a token id.
    """

    check: str
    case: Case
    row: int
    reference: str
    candidate: str
    again: str
    text_of: Callable[[int], str]

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The prompt ids of the other rows."""
        return tuple(p.id for n, p in enumerate(self.case.prompts) if n != self.row)


def counted(number: int, noun: str) -> str:
    """Return ``1 step`` or ``2,310 steps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def difference(place: Place, found: Comparison, what: str, expected: Trace) -> str:
    """Explain a WRONG comparison, top to bottom as a stranger reads it.

    Args:
        place: Where it was found.
        found: The comparison, without its message.
        what: The headline, after prompt and check.
        expected: The reference's trace.
    """
    step = found.step or 0
    head = f"{found.prompt_id}, check {place.check}: {what}"
    lines = [head]
    left = _token(found.expected, place, ended="the answer had ended")
    right = _token(found.actual, place, ended="the answer had ended")
    wide = max(len(left), len(right))
    lines.append(f"  expected {left:<{wide}}   reference  {place.reference}")
    lines.append(f"  actual   {right:<{wide}}   candidate  {place.candidate}")
    if step < len(expected.scores):
        lines.append(f"  {_margin(found, expected.scores[step])}")
    lines.append(f"  {_company(place)}")
    lines.append(f"  {_agreed(found)}")
    lines.append(f"  again: {place.again}")
    return "\n".join(lines)


def failure(place: Place, found: Comparison, actual: Trace) -> str:
    """Explain an ERROR: what the engine did instead of answering."""
    fault = actual.fault
    summary = fault.summary if fault else "it said nothing"
    lines = [
        f"{found.prompt_id}, check {place.check}: no answer from {place.candidate}: {summary}",
        f"  {_company(place)}",
        f"  it gave {counted(len(actual.tokens), 'token')} before that; {_agreed(found)}",
        f"  again: {place.again}",
    ]
    if fault and fault.detail:
        kept = fault.detail.rstrip().splitlines()
        cut = kept[-_DETAIL_LINES:]
        if len(cut) < len(kept):
            cut.insert(0, f"... {counted(len(kept) - len(cut), 'line')} before")
        lines.append(textwrap.indent("\n".join(cut), "    "))
    return "\n".join(lines)


def inconclusive(place: Place, found: Comparison, why: str) -> str:
    """Explain why there is no verdict."""
    return "\n".join(
        [
            f"{found.prompt_id}, check {place.check}: no verdict: {why}",
            f"  {_company(place)}",
            f"  again: {place.again}",
        ]
    )


def _token(token: int | None, place: Place, *, ended: str) -> str:
    if token is None:
        return f"{'-':>7} ({ended})"
    return f"{token:>7} {place.text_of(token)!r}"


def _margin(found: Comparison, scores: Scores) -> str:
    own = f"the reference's own margin there is {scores.margin:.4g} nat (top 1 minus top 2)"
    if found.actual is None:
        return own
    if found.regret is None:
        return f"{own}; the candidate's token is not among its top {len(scores.ids)}"
    rank = scores.ids.index(found.actual) + 1
    return f"{own}; the candidate's token is its number {rank}, {found.regret:.4g} nat below"


def _company(place: Place) -> str:
    case = place.case
    if case.alone:
        return "alone: a single request"
    rows = len(case.prompts)
    if rows == 1:
        return "batch of 1, row 0: the batch path without neighbours"
    names = list(place.neighbours)
    shown = _shorten(names)
    return f"batch of {rows}, row {place.row}; neighbours: {shown}"


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NEIGHBOURS])
    rest = len(names) - _SHOWN_NEIGHBOURS
    return shown if rest <= 0 else f"{shown} and {rest} more"


def _agreed(found: Comparison) -> str:
    agreed = "no step agrees"
    if found.steps == 1:
        agreed = "step 0 agrees"
    elif found.steps:
        agreed = f"steps 0-{found.steps - 1} agree"
    if not found.skipped:
        return agreed
    first = found.steps + (1 if found.step is not None else 0)
    last = first + found.skipped - 1
    which = f"step {first} was" if found.skipped == 1 else f"steps {first}-{last} were"
    return f"{agreed}; {which} not compared, since what came before them differs"
