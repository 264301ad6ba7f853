"""Do planted faults shrink to a few short requests, and do their replay files tell them?

Each fault is run, its first failing comparison of one check shrunk, and the replay file driven
on the faulty engine and on the honest one:

    python tests/search/shrunk.py [--only WORD] [--budget SECONDS]

Exit status 1 if a fault does not fail, is left with more than three rows, took longer, is not
stable, does not replay red as recorded, or if it replays red on the honest engine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fixtures.faults import mlx_lm, small
from fixtures.faults.small import SMALL
from fixtures.random_models import build
from mlxcheck import checks
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.precisions import record_passes
from mlxcheck.prompts import as_questions, packaged
from mlxcheck.replay import replay
from mlxcheck.replay_file import replay_of, save
from mlxcheck.repro import failures
from mlxcheck.run import Drive
from mlxcheck.settings import Settings
from mlxcheck.shrink import Shrunk, shrink
from mlxcheck.smaller import prompt_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.checks import Check
    from mlxcheck.recording import Recorded
    from mlxcheck.repro import Failed

__all__ = ["MODEL", "Found", "Trial", "first_failure", "main", "shrunk", "trials"]

MODEL = Path(__file__).resolve().parents[2] / "fixtures" / "models" / "qwen3_moe-float32"

PROMPTS = (
    "sum-2-2",
    "sum-9-9",
    "capital-france",
    "repeat-3",
    "filler-sum-3-4",
    "filler-capital-norway",
    "len-1",
    "len-2",
    "len-8",
    "len-33",
)


_ROWS = 3
_NO_REUSE = ("prefix", "inconclusive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A fault, where it is looked for, and who is honest there.

    Attributes:
        fault: The backend's class.
        honest: What the replay file has to be green on.
        check: The check whose failure is shrunk.
        model: A checkpoint.
    """

    fault: type[Any]
    check: str
    model: Path = MODEL
    honest: type[Any] = MlxLmBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a trial came to.

    Attributes:
        whole: The failure, before it was shrunk.
        shrunk: What was left.
        red: How the replay on the faulty engine compares with the file.
        green: The outcome of the replay on the honest engine.
    """

    whole: Failed
    shrunk: Shrunk
    red: str
    green: str


def trials(folder: Path, only: str = "") -> Iterator[Trial]:
    """Give every trial.

    Args:
        folder: Where models that are not among the fixtures are built.
        only: A word in the name of the fault or of its module.
    """
    for trial in _trials(folder, only):
        if only in _name(trial.fault):
            yield trial


def _name(fault: type[Any]) -> str:
    return f"{fault.__module__}:{fault.__name__}"


def _trials(folder: Path, only: str) -> Iterator[Trial]:
    for fault in mlx_lm.FAULTS:
        yield Trial(fault=fault, check=fault.red.check)
    built: dict[str, Path] = {}
    for each in SMALL:
        if each.fault.honest or each.fault is small.OtherOrderVisiblePad:
            continue
        if only not in _name(each.fault):
            continue  # before a model is built for it
        name = f"{each.model.name}-{each.model.kv_heads}"
        if name not in built:
            built[name] = build(each.model, folder / name)
        yield Trial(fault=each.fault, check="logits", model=built[name])
    yield from _paged()


_NOT_ALONE = (24, 47, 53)
"""Rows that one check alone does not see fail: its requests do not fill the pool, memory is
looked at in thorough runs, and what leaves every answer right is no failure."""


def _paged() -> Iterator[Trial]:
    from fixtures.faults import paged
    from fixtures.paged.backend import PagedBackend

    for fault in paged.FAULTS:
        if fault.family == "qwen3_moe" and fault.row not in _NOT_ALONE:
            yield Trial(fault=fault, check=fault.red.check, honest=PagedBackend)


def first_failure(
    recorded: Recorded, fault: type[Any], check: Check, settings: Settings
) -> Failed | None:
    """Run a check and return its first failure, if there is one."""
    with Drive(recorded, fault, [check], settings) as drive:
        drive.run()
    failed = failures(recorded, "", drive.plan, drive.report().failures)
    return next((each for each in failed if each.comparison.check == check.name), None)


def shrunk(trial: Trial, path: Path, budget_s: float = 60.0) -> Found | None:
    """Run a fault, shrink what fails first, and replay it twice; None where nothing fails.

    Args:
        trial: What to look for.
        path: Where the replay file goes.
        budget_s: Seconds.
    """
    settings = Settings(max_tokens=16)
    asked: Sequence[object] = getattr(trial.fault, "prompts", None) or [
        entry for entry in packaged() if entry.id in PROMPTS
    ]
    (check,) = checks.named([trial.check])
    with record_passes(str(trial.model), as_questions(asked), settings) as passes:
        (recorded,) = passes.recorded
        whole = first_failure(recorded, trial.fault, check, settings)
        if whole is None:
            return None
        found = shrink(
            recorded,
            trial.fault,
            check,
            whole.case,
            whole.comparison,
            settings,
            before=whole.before,
            budget_s=budget_s,
        )
        save(replay_of(found, recorded, trial.fault, settings), path)
    red = replay(path, backend=trial.fault)
    green = replay(path, backend=trial.honest)
    return Found(
        whole=whole,
        shrunk=found,
        red=red.likeness if red.outcome == "fail" else red.outcome,
        green=green.outcome,
    )


_HEAD = (
    "| fault | check | rows | events | prompt tokens | step | probes | seconds | replay red "
    "| replay green |"
)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _line(trial: Trial, found: Found) -> str:
    case, step = found.shrunk.case, found.shrunk.comparison.step
    was = found.whole.case
    cells = (
        f"{trial.fault.__name__} ({trial.fault.__module__.rpartition('.')[2]})",
        trial.check,
        f"{len(was.prompts)} to {len(case.prompts)}",
        case.schedule.events if case.schedule else 0,
        f"{prompt_tokens(was)} to {prompt_tokens(case)}",
        "-" if step is None else f"{found.whole.comparison.step} to {step}",
        found.shrunk.probes,
        f"{found.shrunk.seconds:.1f}",
        found.red if found.shrunk.stable else f"{found.red}, unstable",
        found.green,
    )
    return f"| {' | '.join(map(str, cells))} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Try every fault and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS")
    options = parser.parse_args(argv)
    bad: list[str] = []
    _say(f"{_HEAD}\n{'|---' * 10}|")
    with tempfile.TemporaryDirectory() as root:
        for trial in trials(Path(root), options.only):
            name = _name(trial.fault)
            found = shrunk(trial, Path(root, "replay.json"), options.budget)
            if found is None:
                _say(f"| {name} | {trial.check} | nothing fails |")
                bad.append(name)
                continue
            _say(_line(trial, found))
            rows, took = len(found.shrunk.case.prompts), found.shrunk.seconds
            small_enough = rows <= _ROWS and took <= options.budget + 5
            # An honest engine may have nothing to reuse in what is left: no verdict then.
            green = found.green == "pass" or (trial.check, found.green) == _NO_REUSE
            told = found.shrunk.stable and found.red == "as recorded" and green
            if not (small_enough and told):
                bad.append(name)
    _say(f"not as they should be: {', '.join(bad)}" if bad else "all as they should be")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
