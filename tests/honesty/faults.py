"""Are planted faults seen, and honest oddities left alone? In each kind of weights.

Every trial of `fixtures.faults.small`, and the batch faults that a model of any kind shows:

    python tests/honesty/faults.py [--device cpu|gpu] [--kinds float32 8bit] [--only WORD]

Exit status 1 if a fault is not seen in the float32 pass, or an honest engine is objected to.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlxcheck
from fixtures.faults.mlx_lm import FAULTS
from fixtures.faults.small import SMALL, PaddedVocabulary
from mlxcheck.prompts import packaged
from mlxcheck.records import ALL_PROMPTS, Verdict
from tests.honesty.shared import (
    KINDS,
    MODELS,
    Folders,
    choose_device,
    counts,
    in_kind,
    say,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fixtures.random_models import RandomModel
    from mlxcheck.records import Comparison
    from mlxcheck.report import Report

__all__ = ["main"]

ROWS = (1, 2, 3, 4, 5, 30)
"""Faults of the batch path that show whatever the weights are; the others are about stops."""

PACKAGED = (
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
"""What the batch faults are asked that have no prompts of their own."""

DEFAULT_KINDS = {"cpu": ("float32", "8bit"), "gpu": ("float32", "bf16")}
TRAINED = {"float32": "qwen3_moe-float32", "8bit": "qwen3_moe-8bit"}
SEEN = {Verdict.WRONG, Verdict.DRIFT}
QUIET = {Verdict.EXACT, Verdict.TIE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One fault on one model.

    Attributes:
        fault: The backend's class.
        kind: Of the weights, a key of `KINDS`.
        model: What to build, or the name of a trained model.
        honest: Nothing may be objected to.
    """

    fault: type[Any]
    kind: str
    model: RandomModel | str
    honest: bool

    @property
    def name(self) -> str:
        """Return row, fault and model."""
        model = self.model if isinstance(self.model, str) else self.model.name
        name = getattr(self.fault, "name", "")
        shown = self.fault.__name__ if name in {"", "mlx-lm"} else name
        return f"{self.fault.row:2d} {shown} on {model}"


def jobs(kinds: Sequence[str]) -> Iterator[Job]:
    """Yield what can be planted in each kind of weights."""
    for kind in kinds:
        for trial in SMALL:
            if trial.fault is PaddedVocabulary and KINDS[kind][1]:
                continue  # the head is padded row by row, which packed weights have none of
            spec = in_kind(trial.model, kind)
            yield Job(fault=trial.fault, kind=kind, model=spec, honest=trial.fault.honest)
        for fault in FAULTS:
            if fault.row in ROWS and kind in TRAINED:
                yield Job(fault=fault, kind=kind, model=TRAINED[kind], honest=False)


def run(job: Job, folders: Folders, max_tokens: int) -> Report:
    """Run every check of one job.

    Raises:
        RuntimeError: This build of MLX cannot run the model.
    """
    known = isinstance(job.model, str)
    model = MODELS / str(job.model) if known else folders.make(job.model)  # type: ignore[arg-type]
    asked = job.fault.prompts or [entry for entry in packaged() if entry.id in PACKAGED]
    return mlxcheck.check(model, job.fault, prompts=asked, max_tokens=max_tokens)


def complaints(job: Job, report: Report) -> list[str]:
    """Return what is not as it must be."""
    found = report.comparisons
    if job.honest:
        return [each.message for each in found if each.verdict not in QUIET]
    # Ids out of the vocabulary may also count as no answer.
    enough = SEEN | {Verdict.ERROR} if job.fault.row == PaddedVocabulary.row else SEEN
    if any(each.precision == "float32" and each.verdict in enough for each in found):
        return []
    return ["not seen in the float32 pass"]


def by_pass(found: Sequence[Comparison], name: str) -> str:
    """Return the verdicts of a pass: of single prompts, and of all together by check."""
    mine = [each for each in found if each.precision == name]
    text = " ".join(f"{n} {verdict}" for verdict, n in sorted(counts(mine).items()))
    together = [each for each in mine if each.prompt_id == ALL_PROMPTS]
    text += "".join(
        f", all {each.check} {each.verdict}" for each in together if each.verdict in SEEN
    )
    return text


def tell(job: Job, report: Report, seconds: float) -> dict[str, Any]:
    """Print one job, and return it for the JSON file."""
    wrong = complaints(job, report)
    verdict = "NOT AS IT MUST BE" if wrong else "as it must be"
    say(f"{verdict:18s} {job.name} ({seconds:.0f} s)")
    passes = [each.precision for each in report.passes if each.ran]
    unseen = []
    for name in passes:
        say(f"    {name:8s} {by_pass(report.comparisons, name)}")
        failed = any(f.precision == name and f.verdict in SEEN for f in report.comparisons)
        if not failed and not job.honest:
            unseen.append(name)
            limit = next(each.limit for each in report.passes if each.precision == name)
            say(f"             not seen here; limit: {'; '.join(limit)}")
    for message in wrong[:3]:
        say("    " + message.replace("\n", "\n    "))
    tally = Counter(f"{each.precision} {each.verdict}" for each in report.comparisons)
    return {"job": job.name, "kind": job.kind, "complaints": len(wrong), "unseen": unseen,
            "verdicts": dict(tally)}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run them all; 1 where one is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--kinds", nargs="+", choices=KINDS)
    parser.add_argument("--only", default="", help="jobs whose name contains this")
    parser.add_argument("--max-tokens", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    device = choose_device(options.device)
    out: list[dict[str, Any]] = []
    skipped: list[str] = []
    with Folders.temporary() as folders:
        for job in jobs(options.kinds or DEFAULT_KINDS[options.device]):
            if options.only not in job.name:
                continue
            start = time.perf_counter()
            try:
                report = run(job, folders, options.max_tokens)
            except RuntimeError as error:
                skipped.append(f"{job.name}: {error}")
                continue
            out.append(tell(job, report, time.perf_counter() - start))
    for text in skipped:
        say(f"not on this build: {text}")
    bad = [entry["job"] for entry in out if entry["complaints"]]
    blind = [f"{e['job']} ({', '.join(e['unseen'])})" for e in out if e["unseen"]]
    say(f"{len(out)} trials on {device}; not as they must be: {', '.join(bad) or 'none'}")
    say(f"faults that a pass did not see: {', '.join(blind) or 'none'}")
    if options.json:
        write_json(options.json, {"device": device, "trials": out, "skipped": skipped})
    return int(bool(bad) or not out)


if __name__ == "__main__":
    sys.exit(main())
