"""A search for a case that differs, with no plan: hypothesis draws it and makes it small.

What hypothesis asks is remembered by the content of the case, so its replays never contradict
each other, however the engine does; whether the smallest case differs a second time is asked
apart, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_rows, not_formed
from mlxcheck.compare import compare_end, compare_tokens
from mlxcheck.errors import UsageError
from mlxcheck.messages import counted
from mlxcheck.records import FAILING, Case, Comparison, Moment, Trace, Verdict
from mlxcheck.smaller import without_rows
from mlxcheck.strategies import cases, named, simplest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.messages import Place
    from mlxcheck.run import Drive
    from mlxcheck.session import Answers

__all__ = ["Finding", "Search", "search", "told"]

_GIVEN_UP = "not asked:"
"""How the fault begins that a session answers with once its engine broke too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a search came to.

    Attributes:
        case: The smallest case that differs; None where none does.
        comparisons: Its rows; where none differs, those of all cases that came about as they
            were drawn, or, where none did, of all.
        examples: Cases drawn until the first that differs, or in all.
        driven: Cases that were driven, those for making it small included.
        stable: Whether the smallest one differed again when it was driven again. If not, chance
            or what was driven before has a part in it.
    """

    case: Case | None
    comparisons: tuple[Comparison, ...]
    examples: int
    driven: int
    stable: bool = True


class Search:
    """The check that plans next to nothing: its cases are drawn while they are driven.

    It has to be among the checks of the `Drive` that it is run on, which tells it what there
    is to draw from.

    Args:
        examples: The most cases to draw.
        seed: Draws them: the same seed draws the same cases, until one differs.
        again: What repeats the search, for messages.

    Example::

        look = Search(examples=200)
        with Drive(recorded, MyBackend, [look], settings) as drive:
            finding = search(drive, look)
        if finding.case:
            print(told(finding.case), finding.comparisons[0].message)
    """

    name = "search"

    def __init__(self, examples: int, seed: int = 0, again: str = "") -> None:
        if examples < 1:
            msg = f"examples={examples!r}: expected a whole number above 0."
            raise UsageError(msg)
        self.examples = examples
        self.seed = seed
        self.again = again or f"search(drive, Search(examples={examples}, seed={seed}))"
        self.unstable: frozenset[str] = frozenset()
        self._grounds: Grounds | None = None

    @property
    def grounds(self) -> Grounds:
        """What cases are drawn from.

        Raises:
            UsageError: No drive has told it.
        """
        if self._grounds is None:
            msg = "this search was not among the checks of a drive: Drive(..., [look], ...)."
            raise UsageError(msg)
        return self._grounds

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse nothing: engines of one request at a time get rows one after the other."""
        del capabilities
        return None

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Take what there is to draw from, and plan the simplest case of it."""
        self._grounds = grounds
        case = simplest(grounds)
        return () if case is None else (case,)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare each row with the reference; a difference is told with the whole case."""
        found = judge_rows(
            _compare,
            case,
            expected,
            answers,
            lambda row: replace(place_of(row), again=self.again),
            not_engaged=_not_engaged(case, expected, answers),
        )
        return tuple(
            replace(each, message=self._with_case(each.message, case))
            if each.verdict in FAILING
            else each
            for each in found
        )

    def run(self, drive: Drive) -> tuple[Comparison, ...]:
        """Search, and return the comparisons of what was found."""
        return search(drive, self).comparisons

    def _with_case(self, message: str, case: Case) -> str:
        lines = [f"  the smallest case found that differs: {told(case)}"]
        if case.id in self.unstable:
            lines.append(
                "  unstable: driven once more, it agreed; chance or what was driven before "
                "has a part in it"
            )
        head, _, rest = message.partition("\n")
        return "\n".join([head, *lines, *([rest] if rest else [])])


def search(drive: Drive, check: Search) -> Finding:
    """Draw and drive cases until one differs, and make that one small.

    The drive's report gets the smallest case alone, or all cases that agree.

    Args:
        drive: Open, with the check among its checks.
        check: How many cases, and which.

    Raises:
        UsageError: The check is not among the drive's, or there is nothing to draw from.
    """
    if not check.grounds.expected:
        msg = "nothing to search with: the reference has answered no prompt of this run."
        raise UsageError(msg)
    hunt = _Hunt(drive, check)
    hunt.go()
    if hunt.smallest is None:
        cases_kept = hunt.engaged or hunt.agreed
        comparisons = [each for case in cases_kept for each in drive.compare(check, case)]
        return Finding(
            case=None,
            comparisons=tuple(comparisons),
            examples=hunt.examples,
            driven=len(hunt.verdicts),
        )
    case = hunt.smallest
    stable = hunt.again(case)
    check.unstable = frozenset() if stable else frozenset({case.id})
    return Finding(
        case=case,
        comparisons=drive.compare(check, case),
        examples=hunt.examples,
        driven=len(hunt.verdicts) + 1,
        stable=stable,
    )


def told(case: Case) -> str:
    """Return a case in one line: its rows, what they ask, and who joins and leaves when."""
    rows = []
    joins = case.schedule.joins if case.schedule else (None,) * len(case.prompts)
    leaves = case.schedule.leaves if case.schedule else (None,) * len(case.prompts)
    for row, prompt in enumerate(case.prompts):
        text = f"row {row} {prompt.id}"
        text += f"+{case.given[row]}" if case.given and case.given[row] else ""
        text += f"[:{case.most[row]}]" if case.most and case.most[row] else ""
        join, leave = joins[row], leaves[row]
        text += f", joins {_when(join)}" if join else ""
        text += f", leaves {_when(leave)}" if leave else ""
        rows.append(text)
    chunk = f"; prefill in chunks of {case.chunk}" if case.chunk else ""
    return "; ".join(rows) + chunk


def _when(moment: Moment) -> str:
    if moment.tokens is None:
        return f"after row {moment.row} has ended"
    steps = f" and {counted(moment.steps, 'step')} more" if moment.steps else ""
    return f"after {counted(moment.tokens, 'token')} of row {moment.row}{steps}"


class _Differs(AssertionError):  # noqa: N818 - no error of ours
    """A case differs: what hypothesis makes small."""


class _Hunt:
    """One search under way.

    Attributes:
        smallest: The last case that differed: hypothesis goes down only.
        examples: Cases drawn before the first of these, and it.
        verdicts: Whether a case differed, by its id.
        agreed: Cases that agreed.
        engaged: Those of them that came about as they were drawn.
    """

    def __init__(self, drive: Drive, check: Search) -> None:
        self._drive = drive
        self._check = check
        self.smallest: Case | None = None
        self.examples = 0
        self.verdicts: dict[str, bool] = {}
        self.agreed: list[Case] = []
        self.engaged: list[Case] = []

    def go(self) -> None:
        """Have hypothesis draw, and make small what differs."""
        run = _loop(self._attempt, self._check)
        try:
            run()
        except _Differs:
            self._cut()

    def _cut(self) -> None:
        """Take out what hypothesis left in for want of patience: rows, events, parts."""
        while self.smallest is not None:
            for case in map(named, _cuts(self.smallest)):
                if self._judged(case):
                    self.smallest = case
                    break
            else:
                return

    def again(self, case: Case) -> bool:
        """Drive a case once more; tell whether it differs again."""
        return self._differs(_Look(self._check), replace(case, id=f"{case.id}/again"))

    def _attempt(self, case: Case) -> None:
        if self.smallest is None:
            self.examples += 1
        if self._judged(case):
            self.smallest = case
            raise _Differs

    def _judged(self, case: Case) -> bool:
        """Drive a case unless it was driven; tell whether it differs."""
        if case.id not in self.verdicts:
            look = _Look(self._check)
            self.verdicts[case.id] = self._differs(look, case)
            if not self.verdicts[case.id]:
                self.agreed.append(case)
                if look.engaged:
                    self.engaged.append(case)
        return self.verdicts[case.id]

    def _differs(self, look: _Look, case: Case) -> bool:
        self._drive.compare(look, case)
        # An engine that was given up says nothing about the case at hand.
        return look.differs and not (look.given_up and self.smallest)


def _cuts(case: Case) -> Iterator[Case]:
    """Give a case with one thing less."""
    rows = range(len(case.prompts))
    yield from (without_rows(case, [row]) for row in rows if len(rows) > 1)
    yield from (
        replace(case, **{name: plain})  # type: ignore[arg-type] # each has its field's type
        for name, plain in (("schedule", None), ("given", ()), ("most", ()), ("chunk", None))
        if getattr(case, name)
    )


class _Look:
    """A glance at a case, which leaves no comparison in the report.

    The drive keeps the answers: who compares the case afterwards drives nothing.
    """

    name = "search-look"

    def __init__(self, check: Search) -> None:
        self._check = check
        self.differs = self.engaged = self.given_up = False

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse nothing."""
        del capabilities
        return None

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Plan nothing."""
        del grounds
        return ()

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Note what the check says, and keep it back."""
        found = self._check.judge(case, expected, answers, place_of)
        self.differs = any(each.verdict in FAILING for each in found)
        self.engaged = any(
            each.verdict in {Verdict.EXACT, Verdict.TIE} for each in found
        ) and not any(each.verdict is Verdict.INCONCLUSIVE for each in found)
        faults = [trace.fault for trace in answers.traces if trace.fault]
        self.given_up = any(fault.summary.startswith(_GIVEN_UP) for fault in faults)
        return ()


def _loop(attempt: Callable[[Case], None], check: Search) -> Callable[[], None]:
    """Return hypothesis' own loop over drawn cases: no files, no clock, one failure."""

    def drawn(case: Case) -> None:
        attempt(case)

    seeded = hypothesis.seed(check.seed)(hypothesis.given(case=cases(check.grounds))(drawn))
    return hypothesis.settings(
        max_examples=check.examples,
        database=None,
        derandomize=False,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
    )(seeded)


def _compare(place: Place, expected: Trace, actual: Trace) -> Comparison:
    found = compare_tokens(place, expected, actual)
    agrees = found.verdict in {Verdict.EXACT, Verdict.TIE}
    if agrees and len(actual.tokens) > len(expected.tokens):
        ended = compare_end(place, expected, actual)
        return replace(ended, steps=found.steps) if ended.verdict is Verdict.WRONG else found
    return found


def _not_engaged(case: Case, expected: Expected, answers: Answers) -> str:
    if answers.missed:
        rows = ", ".join(map(str, answers.missed))
        return f"rows {rows} did not join or leave at their moments, which never came"
    return "" if case.schedule else not_formed(case, expected, answers)
