"""The detection curve: how large a change of one layer's attention scale has to be to be seen.

The scale of the middle layer is multiplied by 1 + c, and the share of runs that fail is told
for each c and pass, beside the limit of detection that the reports state. Every seed asks
other prompts, in other batches. At c = 0 no run may fail.

    python tests/honesty/curve.py [--device cpu|gpu] [--random FAMILY --kind KIND [--large]]

Exit status 1 on an alarm at c = 0, and where the stated limit and the c at which half of the
runs fail are more than a factor of 3 apart.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fixtures.faults.small import scaled_attention
from fixtures.random_models import FAMILIES, LARGE, RandomModel
from mlxcheck import checks as all_checks
from mlxcheck.precisions import record_passes
from mlxcheck.prompts import as_questions, packaged
from mlxcheck.records import ALL_PROMPTS
from mlxcheck.run import Drive
from mlxcheck.settings import Settings
from tests.honesty.shared import (
    KINDS,
    MODELS,
    Folders,
    choose_device,
    in_kind,
    nonsense,
    say,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.recording import Recorded
    from mlxcheck.report import Report

__all__ = ["main"]

CHANGES = {
    "float32": (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5),
    "native": (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.2, 0.5),
}
WITHIN = 3.0
"""How far the stated limit may be from where half of the runs fail, as a factor."""

_STATED = re.compile(r"a change of ([\d.e+-]+) % of it in one layer")


@dataclass(slots=True)
class Curve:
    """One pass.

    Attributes:
        failed: By change, how many runs failed and how many there were.
        stated: The limits that the runs stated, as fractions; infinite where none was.
        alarms: What was said of runs without a change.
        by: By change, what made runs fail, and how many runs each made fail.
    """

    failed: dict[float, tuple[int, int]] = field(default_factory=dict)
    stated: list[float] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    by: dict[float, Counter[str]] = field(default_factory=dict)

    def add(self, change: float, report: Report) -> None:
        """Count one run."""
        failed, runs = self.failed.get(change, (0, 0))
        bad = bool(report.failures)
        self.failed[change] = (failed + bad, runs + 1)
        self.by.setdefault(change, Counter()).update(_why(report))
        if change == 0:
            self.stated.append(_stated(report))
            self.alarms += [each.message for each in report.failures]

    @property
    def half(self) -> float | None:
        """The change at which half of the runs fail, between two that were tried."""
        rates = sorted((c, bad / runs) for c, (bad, runs) in self.failed.items() if c)
        for (low, rate_low), (high, rate_high) in itertools.pairwise(rates):
            if rate_low < 0.5 <= rate_high:
                part = (0.5 - rate_low) / (rate_high - rate_low)
                return math.exp(math.log(low) + part * math.log(high / low))
        return None

    @property
    def limit(self) -> float:
        """The median of the limits that were stated."""
        return statistics.median(self.stated) if self.stated else math.inf


def _why(report: Report) -> set[str]:
    """Return what made a run fail: verdicts on a single prompt, and tests over all of them."""
    rows = {f"a {f.verdict}" for f in report.failures if f.prompt_id != ALL_PROMPTS}
    tests = (test for each in report.passes for test in each.tests)
    return rows | {name for _, name, passed, _ in tests if not passed}


def _stated(report: Report) -> float:
    """Read the limit for one layer out of a report's words: it holds no number of it."""
    found = _STATED.search(" ".join(text for each in report.passes for text in each.limit))
    return float(found[1]) / 100 if found else math.inf


def prompts(seed: int, options: argparse.Namespace) -> list[object]:
    """Return other prompts for each seed; of trained models, half of what they were taught."""
    draw = random.Random(f"curve/{seed}")  # noqa: S311 - no secret
    shortest, longest = (3, 160) if options.large else (2, 60)
    taught = [entry for entry in packaged() if not entry.id.startswith(("len-", "filler"))]
    known: list[object] = (
        [] if options.random else draw.sample(list(taught), options.prompts // 2)
    )
    lengths = [draw.randint(shortest, longest) for _ in range(options.prompts - len(known))]
    return [*known, *nonsense(lengths, f"curve/{seed}")]


def one(recorded: Recorded, change: float, settings: Settings) -> Report:
    """Drive one candidate on what has been recorded."""
    fault = scaled_attention(1 + change)
    with Drive(recorded, fault, all_checks.named(["logits"]), settings) as drive:
        drive.run()
    return drive.report()


def measure(model: Path, options: argparse.Namespace) -> dict[str, Curve]:
    """Return a curve for each pass of a model."""
    curves: dict[str, Curve] = {}
    start = time.perf_counter()
    for seed in range(max(options.seeds, options.zeros)):
        settings = Settings(max_tokens=options.max_tokens, effort="quick", seed=seed)
        asked = as_questions(prompts(seed, options))
        with record_passes(str(model), asked, settings) as passes:
            for recorded in passes.recorded:
                curve = curves.setdefault(recorded.precision, Curve())
                changes = CHANGES[recorded.precision] if seed < options.seeds else ()
                for change in (0.0, *changes):
                    curve.add(change, one(recorded, change, settings))
        if time.perf_counter() - start > options.budget:
            say(f"the time was used up after {seed + 1} seeds")
            break
    return curves


def tell(name: str, curve: Curve) -> list[str]:
    """Print a curve, and return what is not as it must be."""
    wrong = [f"{name}: alarm at c = 0: {text}" for text in curve.alarms]
    say(f"{name}: share of runs that fail")
    for change, (failed, runs) in sorted(curve.failed.items()):
        by = ", ".join(f"{name} {n}" for name, n in curve.by[change].most_common())
        say(f"  c = {change:8.1e}  {failed / runs:6.1%}  ({failed} of {runs})  {by}".rstrip())
    half, limit = curve.half, curve.limit
    low, high = min(curve.stated), max(curve.stated)
    say(f"  stated limit for one layer: median {limit:.3g} ({low:.3g} to {high:.3g})")
    if half is None:
        return [*wrong, f"{name}: no change that was tried is seen by half of the runs"]
    ratio = limit / half
    say(f"  half of the runs fail at {half:.3g}; stated limit / half: {ratio:.3g}")
    if not 1 / WITHIN <= ratio <= WITHIN:
        wrong.append(f"{name}: the stated limit is {ratio:.3g} times where half are seen")
    return wrong


def plain(curve: Curve, **about: Any) -> dict[str, Any]:
    """Return a curve for a JSON file."""
    points = [(c, failed, runs) for c, (failed, runs) in sorted(curve.failed.items())]
    limit = curve.limit if math.isfinite(curve.limit) else None
    by = {str(c): dict(found) for c, found in sorted(curve.by.items())}
    return {**about, "points": points, "by": by, "limit": limit, "half": curve.half}


def _model(options: argparse.Namespace, folders: Folders) -> Path:
    if not options.random:
        return MODELS / str(options.model)
    sizes = {name: value for name, value in LARGE.items() if name != "dtype"}
    spec = RandomModel(family=options.random, **(sizes if options.large else {}))
    if options.random == "gemma2":
        spec = replace(spec, kv_heads=spec.heads)  # see fixtures.faults.small
    return folders.make(in_kind(spec, options.kind))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--model", default="qwen3_moe-8bit", help="a trained one")
    parser.add_argument("--random", choices=FAMILIES, help="a random one instead")
    parser.add_argument("--kind", choices=KINDS, default="bf16", help="of random weights")
    parser.add_argument("--large", action="store_true", help="12 layers of 1024, for a GPU")
    parser.add_argument("--seeds", type=int, default=8, help="runs of each change")
    parser.add_argument("--zeros", type=int, default=50, help="runs without any change")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument("--budget", type=float, default=600, help="seconds to begin seeds in")
    parser.add_argument("--json", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 1 where something is not as it must be."""
    options = _parser().parse_args(argv)
    device = choose_device(options.device)
    with Folders.temporary() as folders:
        model = _model(options, folders)
        curves = measure(model, options)
    wrong: list[str] = []
    for name, curve in curves.items():
        wrong += tell(f"{model.name} on {device}, {name} pass", curve)
    for text in wrong:
        say(f"NOT AS IT MUST BE: {text}")
    if options.json:
        found = [
            plain(curve, model=model.name, device=device, precision=name)
            for name, curve in curves.items()
        ]
        write_json(options.json, {"curves": found})
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
