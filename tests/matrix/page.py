"""The page on what mlxcheck catches, made of the results of the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck import checks
from tests.matrix.practice import Practice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.matrix.runs import Result

__all__ = ["page"]

HEAD = """\
# What it catches

A harness that cannot be shown to catch a fault proves nothing.
So faults are planted in real engines, one at a time, each as a small patch that is undone when
the engine closes, and every check is run on each.
`nox -s faults` does that, fails where a fault is not red in the check that it is meant for or
not green where it has to be, and writes this page.

Faults are planted in mlx-lm's own batching and its caches, in mlx-lm's speculative decoding, in
SGLang's MLX runner, and, for mechanisms that none of these has, in a small paged runner that
the fixtures ship.
Rows are numbered: equal numbers are one fault in several engines.
"""

LEGEND = """\
`·` is green, `?` no verdict, and an empty place was not asked.
*No pass* is a check that did not let a fault pass which leaves every answer right.
"""

PRACTICES = {
    "paris": "the answer to 'What is the capital of France?' contains 'Paris'",
    "alone": "tokens of each prompt alone",
    "three": "the same, and one batch of three prompts that start together",
    "top5": "the same, and a differing token has to be outside the reference's best five",
}

MARKS = {"red": "red", "no pass": "no pass", "green": "·", "no verdict": "?", "not asked": ""}


def page(results: Sequence[Result]) -> str:
    """Return the page, in Markdown."""
    guilty = [result for result in results if not result.entry.honest]
    honest = [result for result in results if result.entry.honest]
    lines = [HEAD, *_counts(guilty), "", "## The matrix", ""]
    lines += [LEGEND]
    lines += _table(guilty)
    lines += ["", "## Engines as they are, and rounding that is honest", "", *_table(honest)]
    lines += ["", "## What each check sees alone", "", *_alone(guilty)]
    lines += ["", "## What simpler practice would have caught", "", *_practice(guilty)]
    return "\n".join(lines) + "\n"


def _counts(guilty: Sequence[Result]) -> list[str]:
    engines = sorted({result.entry.engine for result in guilty})
    families = sorted({result.entry.family for result in guilty})
    text = f"{len(guilty)} faults, in {len(engines)} engines ({', '.join(engines)}) and "
    return [f"{text}{len(families)} model families ({', '.join(families)})."]


def _table(results: Sequence[Result]) -> Iterator[str]:
    names = [check.name for check in checks.ALL]
    yield "| row | fault | engine | model | " + " | ".join(names) + " |"
    yield "|" + "---|" * (len(names) + 4)
    for result in sorted(results, key=lambda each: (each.entry.row, each.entry.engine)):
        entry = result.entry
        marks = " | ".join(MARKS[result.colours.get(name, "not asked")] for name in names)
        row = entry.row or ""
        yield f"| {row} | {entry.name} | {entry.engine} | {entry.model_name} | {marks} |"


def _alone(guilty: Sequence[Result]) -> Iterator[str]:
    yield "| check | faults that it sees | of these no other check sees |"
    yield "|---|---|---|"
    for check in checks.ALL:
        seen = sum(check.name in result.red for result in guilty)
        only = [r.entry for r in guilty if r.red == (check.name,)]
        told = "; ".join(dict.fromkeys(f"{e.row} {e.name} ({e.engine})" for e in only))
        yield f"| {check.name} | {seen} | {told or 'none'} |"


def _practice(guilty: Sequence[Result]) -> Iterator[str]:
    yield f"| practice | of {len(guilty)} faults it catches |"
    yield "|---|---|"
    for name in Practice.names():
        yield f"| {PRACTICES[name]} | {sum(getattr(r.practice, name) for r in guilty)} |"
    seen = sum(bool(result.red) for result in guilty)
    yield f"| all checks | {seen} |"
