"""Reports: what a run comes to, and how it is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.records import Verdict
from mlxcheck.report import Report, worst
from tests.support.drawing import unhurried
from tests.support.reported import comparison, report

EXACT, WRONG = Verdict.EXACT, Verdict.WRONG
ERROR, INCONCLUSIVE = Verdict.ERROR, Verdict.INCONCLUSIVE


# --- Outcomes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([EXACT], "pass"),
        ([EXACT, EXACT], "pass"),
        ([EXACT, WRONG], "fail"),
        ([EXACT, ERROR], "fail"),
        ([INCONCLUSIVE, ERROR], "fail"),
        ([INCONCLUSIVE, WRONG], "fail"),
        ([EXACT, INCONCLUSIVE], "inconclusive"),
        ([INCONCLUSIVE], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_outcome(verdicts: list[Verdict], expected: str) -> None:
    """One WRONG or ERROR fails; one INCONCLUSIVE, or nothing, is never a pass."""
    assert report(*map(comparison, verdicts)).outcome == expected


@unhurried
@given(st.lists(st.sampled_from(Verdict)), st.lists(st.integers(0, 9)), st.booleans())
def test_nothing_compared_is_never_a_pass(
    verdicts: list[Verdict],
    steps: list[int],
    complete: bool,  # noqa: FBT001 - drawn
) -> None:
    """Whatever a run holds, a pass means agreement, steps compared, and a whole run."""
    made = report(
        *(comparison(v, n) for v, n in zip(verdicts, steps, strict=False)), complete=complete
    )

    if made.outcome == "pass":
        assert {found.verdict for found in made.comparisons} == {EXACT}
        assert made.steps > 0
        assert complete


def test_agreement_on_no_step_is_not_a_pass() -> None:
    """Comparisons that compared nothing leave a run without a verdict."""
    assert report(comparison(steps=0), comparison(steps=0)).outcome == "inconclusive"


def test_a_run_that_was_cut_short_does_not_pass() -> None:
    """A part of a run may fail, and does not pass."""
    assert report(comparison(), complete=False).outcome == "inconclusive"
    assert report(comparison(WRONG), complete=False).outcome == "fail"


def test_what_was_not_asked_does_not_fail() -> None:
    """A check that the backend cannot be asked is told, and is no failure of what was."""
    made = report(comparison(), not_asked=(("batch", "one request at a time"),))

    assert made.outcome == "pass"
    assert "batch not asked: one request at a time" in made.summary()


def test_a_report_has_no_truth_of_its_own() -> None:
    """`if report:` must not look like a verdict: it is an ordinary object."""
    assert "__bool__" not in vars(Report)
    assert "__len__" not in vars(Report)
    assert bool(report(comparison(WRONG)))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], "inconclusive"),
        ([EXACT, EXACT], "pass"),
        ([EXACT, INCONCLUSIVE], "inconclusive"),
        ([EXACT, INCONCLUSIVE, WRONG], "fail"),
    ],
)
def test_worst(verdicts: list[Verdict], expected: str) -> None:
    """Several runs are as good as the worst of them; none at all is no verdict."""
    assert worst(report(comparison(verdict)) for verdict in verdicts) == expected


# --- Words ----------------------------------------------------------------------------------


def test_counts_and_steps() -> None:
    """A step that differs was compared too."""
    made = report(comparison(steps=5), comparison(WRONG, 2, step=2), comparison(ERROR, 1))

    assert made.counts == {EXACT: 1, WRONG: 1, ERROR: 1}
    assert made.steps == 5 + 2 + 1 + 1
    assert made.failures == made.comparisons[1:]


def test_summary() -> None:
    """One line says outcome, who, on what, how much, and what is missing."""
    made = report(comparison(steps=2309), comparison(WRONG, 1, step=1), complete=False)

    assert made.summary() == (
        "fail: mine against mlx-lm 0.0 on a/tiny: 2 comparisons, 2,311 steps compared "
        "(1 EXACT, 1 WRONG); partial: the run was cut short"
    )
    assert report().summary() == (
        "inconclusive: mine against mlx-lm 0.0 on a/tiny: 0 comparisons, 0 steps compared"
    )


def test_explain_tells_failures_first_and_exact_not_at_all() -> None:
    """After the summary come WRONG and ERROR, then what has no verdict."""
    made = report(comparison(INCONCLUSIVE), comparison(message="no"), comparison(WRONG))

    assert made.explain().split("\n\n") == [made.summary(), "WRONG here", "INCONCLUSIVE here"]


@pytest.mark.parametrize(
    ("number", "last"),
    [(10, "WRONG here"), (11, "and 1 comparison more like these"), (12, "and 2 comparisons")],
)
def test_explain_tells_ten_and_counts_the_rest(number: int, last: str) -> None:
    """A run with many failures does not flood whoever reads it."""
    parts = report(*[comparison(WRONG)] * number).explain().split("\n\n")

    assert parts[1:11] == ["WRONG here"] * 10
    assert parts[-1].startswith(last)
    assert len(parts) == 11 + (number > 10)
