"""What came of many runs of honest engines: verdicts, ties, and how close each test was."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxcheck.records import ALL_PROMPTS, FAILING, Verdict
from tests.honesty.shared import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.passes import PassSummary
    from mlxcheck.records import Comparison
    from mlxcheck.report import Report

__all__ = ["Key", "Row", "Tally"]

Key = tuple[str, str, str]
"""Model, kind of weights, candidate."""

_EDGES = (0.0, 1e-5, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, math.inf)
_RATIO = re.compile(r"^([\d.,e+-]+) times the arms'.* up to ([\d.,e+-]+) times", re.DOTALL)
_CHANCE = re.compile(r"chance ([\d.e+-]+); on the others ([\d.e+-]+)")
_SHOWN = 20


@dataclass(slots=True)
class Row:
    """One line of the table.

    Attributes:
        cases: Prompts compared under one check in one pass.
        steps: Steps of these that were compared.
        verdicts: Of these.
        together: Verdicts on all prompts of a check together.
    """

    cases: int = 0
    steps: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    together: Counter[Verdict] = field(default_factory=Counter)


@dataclass(slots=True)
class Tally:
    """All runs together.

    Attributes:
        rows: By model, kind and candidate.
        ties: One a comparison that has any.
        objections: Verdicts that no honest engine may get, and controls that did not hold.
        tests: By pass and test, how close each came: the ratio and its bar, or the chance.
        bands: By pass, the largest band of each run, in nats.
        widths: How often a batch of so many rows was compared.
    """

    rows: dict[Key, Row] = field(default_factory=lambda: defaultdict(Row))
    ties: list[dict[str, Any]] = field(default_factory=list)
    objections: list[str] = field(default_factory=list)
    tests: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    bands: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    widths: Counter[int] = field(default_factory=Counter)

    @property
    def cases(self) -> int:
        """All cases."""
        return sum(row.cases for row in self.rows.values())

    def add(self, key: Key, report: Report, *, undecided: bool) -> None:
        """Count one run.

        Args:
            key: What it was of.
            report: What it found.
            undecided: INCONCLUSIVE is right here: tokens alone, near ties everywhere.
        """
        row = self.rows[key]
        for found in report.comparisons:
            if found.prompt_id == ALL_PROMPTS:
                row.together[found.verdict] += 1
            else:
                row.cases += 1
                row.steps += found.steps + (found.step is not None)
                row.verdicts[found.verdict] += 1
                self.widths[found.batch] += 1
            open_ = found.verdict is Verdict.INCONCLUSIVE and not undecided
            if found.verdict in FAILING or open_:
                told = f"{' '.join(key)}, {found.precision} pass, {found.verdict}:"
                self.objections.append(f"{told} {found.message}")
            if found.ties:
                self.ties.append(_tie(key, found))
        for each in report.passes:
            self._add_pass(key, each)

    def _add_pass(self, key: Key, each: PassSummary) -> None:
        if not each.ran:
            self.objections.append(f"{' '.join(key)}: no {each.precision} pass: {each.why}")
            return
        name = f"{each.precision} pass, logits in {each.dtype}"
        if each.band is not None:
            self.bands[name].append(each.band)
        for control in each.controls:
            if not control.passed:
                text = f"{' '.join(key)}, {name}: control {control.name}: {control.text}"
                self.objections.append(text)
        for _, test, _, text in each.tests:
            if ratio := _RATIO.match(text):
                pair = (_number(ratio[1]), _number(ratio[2]))
                self.tests[f"{name}: {test}"].append(pair)
            elif chance := _CHANCE.search(text):
                least = min(_number(chance[1]), _number(chance[2]))
                self.tests[f"{name}: {test}"].append((least, 0.0))

    def tell(self) -> None:
        """Print everything."""
        for line in (*self._table(), *self._about_ties(), *self._closest()):
            say(line)
        sizes = ", ".join(f"{size}: {n:,}" for size, n in sorted(self.widths.items()))
        say(f"rows of a batch, and cases in such: {sizes}")
        for text in self.objections[:_SHOWN]:
            say(f"OBJECTION {text}")
        if len(self.objections) > _SHOWN:
            say(f"and {len(self.objections) - _SHOWN} objections more")

    def _table(self) -> Iterator[str]:
        head = f"{'model':30s} {'kind':8s} {'candidate':18s} {'cases':>6s} {'steps':>7s}"
        yield head + "".join(f" {verdict:>6.6s}" for verdict in Verdict) + "  all together"
        total = Row()
        for key, row in self.rows.items():
            yield _line(key, row)
            total.cases += row.cases
            total.steps += row.steps
            total.verdicts += row.verdicts
            total.together += row.together
        yield _line(("all", "", ""), total)

    def _about_ties(self) -> Iterator[str]:
        steps = sum(tie["ties"] for tie in self.ties)
        yield f"ties: {steps:,} steps in {len(self.ties):,} cases"
        if not self.ties:
            return
        yield f"  {'nat, up to':>12s} {'regret':>8s} {'margin':>8s} {'band':>8s}"
        for low, high in zip((-1.0, *_EDGES), _EDGES, strict=False):
            numbers = [
                sum(low < (tie[name] or 0.0) <= high for tie in self.ties)
                for name in ("regret", "margin", "band")
            ]
            if any(numbers):
                yield f"  {high:12g} " + " ".join(f"{number:8d}" for number in numbers)
        worst = max(self.ties, key=lambda tie: tie["worst"] / tie["band"])
        yield (
            f"  the widest: {worst['worst']:.4g} nat of a band of {worst['band']:.4g} "
            f"({worst['worst'] / worst['band']:.0%}), {worst['of']}"
        )

    def _closest(self) -> Iterator[str]:
        for name, bands in sorted(self.bands.items()):
            middle = statistics.median(bands)
            yield (
                f"{name}: largest band of a run {min(bands):.3g} to {max(bands):.3g} nat, "
                f"median {middle:.3g} ({len(bands)} runs)"
            )
        for name, pairs in sorted(self.tests.items()):
            if name.endswith("flips"):
                yield f"  {name}: least chance {min(pairs)[0]:.2g} in {len(pairs)} tests"
                continue
            ratio, bar = max(pairs, key=lambda pair: math.log(max(pair[0], 1e-9) / pair[1]))
            top = max(pair[0] for pair in pairs)
            yield (
                f"  {name}: closest {ratio:.3g} times the arms' where the bar is {bar:.3g}; "
                f"largest {top:.3g}, in {len(pairs)} tests"
            )

    def plain(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return {
            "rows": [
                {
                    "model": model,
                    "kind": kind,
                    "candidate": candidate,
                    "cases": row.cases,
                    "steps": row.steps,
                    "verdicts": dict(row.verdicts),
                    "together": dict(row.together),
                }
                for (model, kind, candidate), row in self.rows.items()
            ],
            "cases": self.cases,
            "ties": self.ties,
            "tests": self.tests,
            "bands": self.bands,
            "widths": self.widths,
            "objections": self.objections,
        }


def _line(key: Key, row: Row) -> str:
    text = f"{key[0]:30s} {key[1]:8s} {key[2]:18s} {row.cases:6,d} {row.steps:7,d}"
    text += "".join(f" {row.verdicts[verdict]:6,d}" for verdict in Verdict)
    together = sorted(row.together.items())
    return f"{text}  {' '.join(f'{n} {verdict}' for verdict, n in together)}"


def _tie(key: Sequence[str], found: Comparison) -> dict[str, Any]:
    place = f"{found.precision} pass, check {found.check}, {found.prompt_id}"
    return {
        "of": f"{' '.join(key)}, {place}",
        "ties": found.ties,
        "regret": found.regret,
        "margin": found.margin,
        "band": found.noise,
        "ulps": found.ulps,
        "worst": found.worst_tie,
    }


def _number(text: str) -> float:
    return float(text.replace(",", ""))
