"""The summary's numbers, from reports that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from mlxcheck.passes import Control, PassSummary
from mlxcheck.pytest_doorway.tally import Asking, Pair, Tally
from mlxcheck.records import Comparison, Verdict
from mlxcheck.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.records import Precision
    from mlxcheck.run import Drive


class Driven:
    """Stands in for a candidate that has been driven in one pass."""

    def __init__(
        self, precision: Precision, verdicts: Sequence[Verdict], **fields: Any
    ) -> None:
        self._found = [
            Comparison(
                check="tokens", prompt_id="p", verdict=verdict, steps=4, precision=precision
            )
            for verdict in verdicts
        ]
        self._pass = PassSummary(precision=precision, **fields)

    def report(self, *, complete: bool = True) -> Report:
        return Report(
            model="m",
            model_type="",
            reference="mlx-lm",
            backend="b",
            comparisons=tuple(self._found),
            passes=(self._pass,),
            complete=complete,
        )


def pair_of(tally: Tally, *drives: Driven, complete: bool = True) -> Pair:
    """Add a pair to a tally."""
    pair = tally.pair("m", "b", lambda: complete)
    pair.drives += cast("list[Drive]", drives)
    return pair


@pytest.mark.parametrize(
    ("verdicts", "says"),
    [
        ([Verdict.EXACT], "1 comparison, 4 steps compared"),
        ([Verdict.TIE, Verdict.TIE], "2 comparisons, 8 steps compared, 2 TIE"),
        ([Verdict.TIE, Verdict.DRIFT], "2 comparisons, 8 steps compared, 1 TIE, 1 failed"),
    ],
)
def test_ties_are_counted_apart_from_failures(verdicts: list[Verdict], says: str) -> None:
    """A TIE passes and a DRIFT does not."""
    tally = Tally()
    pair_of(tally, Driven("native", verdicts))

    assert tally.lines() == [f"mlxcheck: {says}"]


def test_limits_are_for_verbose_runs() -> None:
    """One line a pass, and none for a pass that has no limit."""
    tally = Tally()
    drives = [
        Driven("float32", [Verdict.EXACT], limit=("1 % of this", "2 % of that")),
        Driven("native", [Verdict.EXACT]),
    ]
    pair_of(tally, *drives)

    assert len(tally.lines()) == 1
    assert [line for line in tally.lines(verbose=True) if "limit" in line] == [
        "    float32 pass, limit of detection: 1 % of this; 2 % of that"
    ]


def test_a_control_that_did_not_hold_is_told() -> None:
    """Whatever the verbosity: what was compared there means little."""
    tally = Tally()
    broken = Control(name="planted fault", passed=False, text="it was not seen")
    pair_of(tally, Driven("native", [Verdict.EXACT], controls=(broken,)))

    assert tally.lines()[1:] == [
        "mlxcheck: b on m, native pass: control failed: planted fault: it was not seen"
    ]


def test_a_hang_belongs_to_the_pair_that_was_asked_last() -> None:
    """Its report is a part, and has the ERROR; the first pair's is left as it is."""
    tally = Tally()
    pair_of(tally, Driven("native", [Verdict.EXACT]))
    pair_of(tally, Driven("float32", [Verdict.EXACT]))

    tally.hang(Asking("m", "b", "native", "tokens", "p"), "it hangs")
    first, second = tally.reports()

    assert (first.complete, len(first.comparisons)) == (True, 1)
    assert not second.complete
    assert second.comparisons[-1].verdict is Verdict.ERROR
    assert second.comparisons[-1].precision == "native"


def test_a_pass_that_was_refused_stands_beside_the_other() -> None:
    """Where no pass was driven at all, the checks have the reason too."""
    tally = Tally()
    pair_of(tally, Driven("native", [Verdict.EXACT])).refuse("float32", ["tokens"], "no room")
    pair_of(tally).refuse("native", ["tokens"], "not here")

    both, none = tally.reports()

    assert [(each.precision, each.ran) for each in both.passes] == [
        ("native", True),
        ("float32", False),
    ]
    assert both.outcome == "pass"
    assert none.not_asked == (("tokens", "not here"),)
    assert none.outcome == "inconclusive"
