"""What ``mlxcheck run --shrink`` does after a failing run: shrink, keep, and tell."""

from __future__ import annotations

import json
import shlex
import textwrap
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcheck import checks
from mlxcheck.replay import shown, with_command
from mlxcheck.replay_file import replay_of, save
from mlxcheck.shrink import BUDGET_S, shrink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mlxcheck.recording import Recorded
    from mlxcheck.records import Case, Comparison
    from mlxcheck.settings import Settings

__all__ = ["MOST", "Failed", "Shrinking", "failures"]

MOST = 3
"""Failures of one command that are shrunk: more would seldom be another fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrinking:
    """How failures are shrunk.

    Attributes:
        budget_s: Seconds for each.
        folder: Where replay files go.
    """

    budget_s: float = BUDGET_S
    folder: str = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A failure of a run, with what it takes to drive it again.

    Attributes:
        recorded: What it was held against.
        backend: What names the candidate.
        case: What was driven.
        comparison: The failing row.
        before: What was driven before.
    """

    recorded: Recorded
    backend: str
    case: Case
    comparison: Comparison
    before: tuple[Case, ...]

    def shrink(
        self, settings: Settings, how: Shrinking, last_words: Callable[[str], None]
    ) -> str:
        """Shrink it, write its replay file, and return what is to be told.

        Raises:
            BackendError: The engine can be opened no more.
            MemoryNotReleased: The reference did not go away.
            ReportError: The file cannot be written.
        """
        (check,) = checks.named([self.comparison.check])
        shrunk = shrink(
            self.recorded,
            self.backend,
            check,
            self.case,
            self.comparison,
            settings,
            before=self.before,
            budget_s=how.budget_s,
            last_words=last_words,
        )
        path, number = _free(Path(how.folder))
        command = shlex.join(["mlxcheck", "replay", str(path)])
        found = with_command(shrunk.comparison, command)
        shrunk = replace(shrunk, comparison=found)
        save(replay_of(shrunk, self.recorded, self.backend, settings), path)
        head = f"shrunk {found.check} {self.case.id}: {shrunk.summary()}"
        kept = f"kept in {path}; a test that fails until it is mended:"
        test = textwrap.indent(_test(path, number, self.backend), "    ")
        told = f"{found.verdict}  {shown(found.message)}"
        return f"{head}\n{told}\n{kept}\n\n{test}"


def failures(
    recorded: Recorded,
    backend: str,
    plan: Mapping[str, Sequence[Case]],
    found: Sequence[Comparison],
) -> Iterator[Failed]:
    """Give the first failing comparison of each check that drives cases.

    Args:
        recorded: What they were held against.
        backend: What names the candidate.
        plan: The cases by check.
        found: Those that failed.
    """
    told: set[str] = set()
    # As `Drive.run` goes through them: a case that two checks share is driven once.
    driven = {case.id: case for cases in plan.values() for case in cases}
    order = list(driven)
    for each in found:
        if each.check not in told and each.case in driven and each.check in plan:
            told.add(each.check)
            yield Failed(
                recorded=recorded,
                backend=backend,
                case=driven[each.case],
                comparison=each,
                before=tuple(driven[name] for name in order[: order.index(each.case)]),
            )


def _free(folder: Path) -> tuple[Path, int]:
    """Return the first replay file that is not there: a test may name those that are."""
    for number in count(1):
        path = folder / f"mlxcheck-replay-{number}.json"
        if not path.exists():
            return path, number
    raise AssertionError  # numbers do not end


def _test(path: Path, number: int, backend: str) -> str:
    """Return a pytest test that replays a file."""
    file, name = json.dumps(str(path)), json.dumps(backend)  # as formatters quote
    return (
        "import mlxcheck\n\n\n"
        f"def test_replay_{number}() -> None:\n"
        f"    mlxcheck.assert_replays({file}, backend={name})\n"
    )
