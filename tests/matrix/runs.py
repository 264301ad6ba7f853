"""Runs the entries of the matrix; a model's reference is recorded once for all its faults."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from mlxcheck import checks
from mlxcheck.precisions import record_passes
from mlxcheck.prompts import as_questions, packaged
from mlxcheck.records import FAILING, Verdict
from mlxcheck.run import Drive
from mlxcheck.settings import Settings
from tests.honesty.shared import MODELS, Folders
from tests.matrix.practice import PARIS, Practice, practice

if TYPE_CHECKING:
    from types import TracebackType

    from mlxcheck.recording import Recorded
    from mlxcheck.records import Comparison
    from tests.matrix.entries import Entry

__all__ = ["Colour", "Result", "Runs"]

Colour = Literal["red", "no pass", "green", "no verdict", "not asked"]
"""No pass: of a fault that leaves every answer right, in a check that did not let it pass."""

ASKED = (
    "sum-2-2",
    "sum-9-9",
    PARIS,
    "repeat-3",
    "filler-sum-3-4",
    "filler-capital-norway",
    "len-1",
    "len-2",
    "len-8",
    "len-33",
)
"""Prompts of faults that have none of their own."""

WINDOWED = "gemma3_text"
MAX_TOKENS = 12

(SOAK,) = checks.named(["soak"])
ONCE = tuple(check for check in checks.ALL if check.name != SOAK.name)
UNNOTICED = (53, 61)
"""Rows of faults that leave every answer right: seen where a check cannot pass."""

SOAKED = (47,)
"""Rows of faults that only time shows."""

NAMED: dict[int, tuple[str, ...]] = {
    **dict.fromkeys((1, 2, 3, 4, 8, 24), ("batch",)),
    **dict.fromkeys((5, 33, 46), ("logits",)),
    **dict.fromkeys((9, 10, 12), ("long",)),
    14: ("chunks", "long"),
    **dict.fromkeys((15, 17, 19, 20, 21, 53), ("prefix",)),
    22: ("prefix", "schedule"),
    **dict.fromkeys((25, 26, 39), ("schedule",)),
    28: ("chunks",),
    30: ("chunks", "tokens"),
    **dict.fromkeys((31, 35), ("tokens",)),
    36: ("tokens", "batch", "logits"),
    **dict.fromkeys((37, 38), ("stop", "prompts")),
    **dict.fromkeys((40, 41, 42), ("prompts",)),
    47: ("soak",),
    **dict.fromkeys((55, 56, 61), ("speculative",)),
    57: ("tokens",),
    58: ("batch",),
    59: ("schedule",),
    60: ("long",),
}
"""The checks that each row of the table of faults names: one of them has to see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one entry.

    Attributes:
        entry: What was run.
        colours: By check.
        complaints: What is not as it must be.
        practice: What simpler practice would have seen.
        seconds: Of the candidate.
    """

    entry: Entry
    colours: dict[str, Colour]
    complaints: tuple[str, ...]
    practice: Practice
    seconds: float

    @property
    def red(self) -> tuple[str, ...]:
        """The checks that saw it."""
        seen = {"red", "no pass"}
        return tuple(name for name, colour in self.colours.items() if colour in seen)


@dataclass(slots=True)
class Runs:
    """Holds what was recorded, by model and prompts; use as a context manager."""

    stack: ExitStack = field(default_factory=ExitStack)
    recorded: dict[object, Recorded] = field(default_factory=dict)
    folders: Folders | None = None

    def __enter__(self) -> Self:
        self.folders = self.stack.enter_context(Folders.temporary())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.stack.__exit__(kind, error, where)

    def run(self, entry: Entry) -> Result:
        """Ask one engine every check, soak included."""
        most = MAX_TOKENS * (2 if entry.family == WINDOWED else 1)  # answers go round rings
        settings = Settings(max_tokens=most)
        recorded = self._record(entry, settings)
        with Drive(recorded, entry.backend, ONCE, settings) as drive:
            drive.run()
        report = drive.report()
        found = report.comparisons
        colours = {check.name: _colour(check.name, found, drive) for check in ONCE}
        if entry.row in UNNOTICED and any(
            each.verdict is Verdict.INCONCLUSIVE and each.check in NAMED[entry.row]
            for each in found
        ):
            colours |= dict.fromkeys(NAMED[entry.row], "no pass")
        if entry.honest or entry.row in SOAKED:
            settings = replace(settings, effort="thorough")  # no other run has time for it
            with Drive(recorded, entry.backend, (SOAK,), settings) as soak:
                soak.run()
            found += soak.report().comparisons
            colours[SOAK.name] = _colour(SOAK.name, found, soak)
        complaints = _honest(found, colours) if entry.honest else _guilty(entry, found)
        seconds = next(phase.seconds for phase in report.phases if phase.name == "candidate")
        return Result(
            entry=entry,
            colours=colours,
            complaints=tuple(complaints),
            practice=practice(found, recorded, drive),
            seconds=seconds,
        )

    def _record(self, entry: Entry, settings: Settings) -> Recorded:
        asked: Any = None if entry.usual else getattr(entry.backend, "prompts", None)
        if not asked:  # a window's thresholds want prompts of every length
            every = entry.family == WINDOWED
            asked = [each for each in packaged() if every or each.id in ASKED]
        key = entry.model, tuple(map(repr, asked))
        if key not in self.recorded:
            assert self.folders is not None
            known = isinstance(entry.model, str)
            folder = MODELS / str(entry.model) if known else self.folders.make(entry.model)  # type: ignore[arg-type]
            passes = self.stack.enter_context(
                record_passes(str(folder), as_questions(asked), settings)
            )
            self.recorded[key] = passes.recorded[0]
        return self.recorded[key]


def _colour(name: str, found: tuple[Comparison, ...], drive: Drive) -> Colour:
    mine = [each for each in found if each.check == name]
    if name in drive.not_asked or not mine:
        return "not asked"
    if any(each.verdict in FAILING for each in mine):
        return "red"
    judged = [each for each in mine if each.verdict is not Verdict.INCONCLUSIVE]
    return "green" if judged else "no verdict"


def _honest(found: tuple[Comparison, ...], colours: dict[str, Colour]) -> list[str]:
    return [
        *(each.message for each in found if each.verdict in FAILING),
        *(f"{name}: {each}" for name, each in colours.items() if each == "no verdict"),
    ]


def _guilty(entry: Entry, found: tuple[Comparison, ...]) -> list[str]:
    out = []
    fault = entry.backend
    wanted = {Verdict.INCONCLUSIVE} if fault.row in UNNOTICED else FAILING
    named = NAMED[fault.row]
    red = getattr(fault, "red", None)
    chosen = red.select(found) if red else []
    # Where its own cases do not come up with these prompts, any of the check's will do.
    if chosen and not any(each.verdict in wanted for each in chosen):
        out.append(f"not red in {fault.red.check} {fault.red.case}")
    if not any(each.check in named and each.verdict in wanted for each in found):
        out.append(f"not red in {' or '.join(named)}, which its row names")
    greens = [(green, green.select(found)) for green in getattr(fault, "green", ())]
    if greens and not any(chosen for _, chosen in greens):
        out.append("nothing was compared that must be green")
    for green, chosen in greens:
        out += [
            f"not green in {green.check} {green.case}: {each.verdict} {each.case}"
            for each in chosen
            if each.verdict not in {Verdict.EXACT, Verdict.TIE}
        ][:2]
    return out
