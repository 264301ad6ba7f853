"""The matrix of seeded faults against checks, and the page that is made of it.

    python tests/matrix/matrix.py [--only WORD] [--page FILE.md]

Every fault has to be red in the check that its row names and green where it must be; every
engine as it is has to be green everywhere. Exit status 1 where one is not.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mlxcheck import checks
from tests.honesty.shared import choose_device, say
from tests.matrix.entries import all_entries, honest_engines
from tests.matrix.page import page
from tests.matrix.practice import Practice
from tests.matrix.runs import Result, Runs
from tests.support import sglang_linux

__all__ = ["main"]

LETTERS = {"red": "R", "no pass": "N", "green": ".", "no verdict": "?", "not asked": " "}


def line(result: Result) -> str:
    """Return one result as a row of letters."""
    letters = " ".join(
        LETTERS[result.colours.get(check.name, "not asked")] for check in checks.ALL
    )
    entry = result.entry
    mark = "NOT AS IT MUST BE " if result.complaints else ""
    where = f"{entry.engine} on {entry.model_name}"
    return (
        f"{entry.row or '':>3} {letters}  {mark}{entry.name} ({where}, {result.seconds:.1f} s)"
    )


def needless(guilty: list[Result]) -> list[str]:
    """Return the checks that see nothing which others do not see too, telling of each."""
    found = []
    for check in checks.ALL:
        only = [result for result in guilty if result.red == (check.name,)]
        seen = sum(check.name in result.red for result in guilty)
        say(f"{check.name}: sees {seen}, {len(only)} of them alone")
        found += [] if only else [check.name]
    return found


def tell(guilty: list[Result]) -> None:
    """Print what simpler practice would have seen, and how much was run."""
    for name in Practice.names():
        caught = sum(getattr(result.practice, name) for result in guilty)
        say(f"practice {name}: {caught} of {len(guilty)}")
    families = {result.entry.family for result in guilty}
    engines = {result.entry.engine for result in guilty}
    say(f"{len(guilty)} faults, {len(families)} families, {len(engines)} engines")


def main(argv: list[str] | None = None) -> int:
    """Run them all; 1 where one is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="entries whose row, name or engine has this")
    parser.add_argument("--page", type=Path, help="where to write the page")
    options = parser.parse_args(argv)
    if sglang_linux.missing() is None:
        sglang_linux.prepare()
    choose_device("cpu")
    start = time.perf_counter()
    results: list[Result] = []
    say(" " * 4 + " ".join(check.name[:1] for check in checks.ALL) + "  " + _legend())
    with Runs() as runs:
        for entry in (*honest_engines(), *all_entries()):
            if options.only not in f"{entry.row} {entry.name} {entry.engine}":
                continue
            result = runs.run(entry)
            results.append(result)
            say(line(result))
            for complaint in result.complaints[:4]:
                say("        " + complaint.replace("\n", "\n        "))
    guilty = [result for result in results if not result.entry.honest]
    idle = needless(guilty)
    tell(guilty)
    bad = [result for result in results if result.complaints]
    seconds = time.perf_counter() - start
    say(f"{len(results)} runs in {seconds:.0f} s, {len(bad)} not as they must be")
    if options.page:
        options.page.write_text(page(results), encoding="utf-8")
    if idle and not options.only:
        say(f"no fault is seen by one of these checks alone: {', '.join(idle)}")
    return int(bool(bad) or not results or bool(idle and not options.only))


def _legend() -> str:
    names = ", ".join(check.name for check in checks.ALL)
    return f"{names}; R red, N no pass, . green, ? no verdict"


if __name__ == "__main__":
    sys.exit(main())
