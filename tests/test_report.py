"""Reports: what a run comes to, and how it is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.passes import Control, PassSummary, missed
from mlxcheck.records import Verdict
from mlxcheck.report import Report, merged, worst
from tests.support.drawing import unhurried
from tests.support.reported import comparison, report

EXACT, WRONG = Verdict.EXACT, Verdict.WRONG
TIE, DRIFT = Verdict.TIE, Verdict.DRIFT
ERROR, INCONCLUSIVE = Verdict.ERROR, Verdict.INCONCLUSIVE


# --- Outcomes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([EXACT], "pass"),
        ([EXACT, EXACT], "pass"),
        ([EXACT, TIE], "pass"),
        ([TIE], "pass"),
        ([EXACT, WRONG], "fail"),
        ([EXACT, ERROR], "fail"),
        ([EXACT, DRIFT], "fail"),
        ([INCONCLUSIVE, DRIFT], "fail"),
        ([TIE, INCONCLUSIVE], "inconclusive"),
        ([INCONCLUSIVE, ERROR], "fail"),
        ([INCONCLUSIVE, WRONG], "fail"),
        ([EXACT, INCONCLUSIVE], "inconclusive"),
        ([INCONCLUSIVE], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_outcome(verdicts: list[Verdict], expected: str) -> None:
    """One WRONG, DRIFT or ERROR fails; one INCONCLUSIVE, or nothing, is never a pass."""
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
        assert {found.verdict for found in made.comparisons} <= {EXACT, TIE}
        assert made.steps > 0
        assert complete


def test_agreement_on_no_step_is_not_a_pass() -> None:
    """Comparisons that compared nothing leave a run without a verdict."""
    assert report(comparison(steps=0), comparison(steps=0)).outcome == "inconclusive"


def test_ids_that_agree_are_no_pass_where_nothing_came_of_the_tokens() -> None:
    """What an engine is asked says nothing of its answers, where these were to be compared."""
    asked = comparison(check="prompts", steps=1)
    refused = ("tokens", "strict mode wants equal prefill chunks")

    assert report(asked).outcome == "pass", "nothing else was to be compared"
    assert report(asked, not_asked=(refused,)).outcome == "inconclusive"
    assert report(asked, comparison(steps=0)).outcome == "inconclusive"
    assert report(asked, comparison(), not_asked=(refused,)).outcome == "pass"
    assert report(comparison(), not_asked=(("prompts", "ids only"),)).outcome == "pass"
    wrong = comparison(WRONG, check="prompts", step=0, steps=0)
    assert report(wrong, not_asked=(refused,)).outcome == "fail"


@pytest.mark.parametrize(
    ("name", "outcome", "where_it_fails"),
    [
        ("reference equals itself", "inconclusive", "inconclusive"),
        ("planted fault", "inconclusive", "fail"),
    ],
)
def test_a_control_that_did_not_hold_is_no_pass(
    name: str, outcome: str, where_it_fails: str
) -> None:
    """Nothing can be held against a reference that does not agree with itself."""
    control = Control(name=name, passed=False, text="they differ")
    one = PassSummary(precision="native", controls=(control,))

    assert report(comparison(), passes=(one,)).outcome == outcome
    assert report(comparison(WRONG), passes=(one,)).outcome == where_it_fails
    assert f"; control failed: {name}: they differ" in report(passes=(one,)).summary()


def test_passes_are_merged_into_one_report() -> None:
    """Comparisons of all passes stand in it; what was not asked of each is told once."""
    reason = ("stop", "the backend leaves stopping to its caller")
    one = report(comparison(precision="float32"), not_asked=(reason,))
    two = report(comparison(WRONG), not_asked=(reason,), complete=False)

    both = merged([one, two], [missed("native", "no room")])

    assert [found.precision for found in both.comparisons] == ["float32", "native"]
    assert both.not_asked == (reason,)
    assert not both.complete
    assert both.summary().endswith("; native pass not run: no room")


def test_a_fault_in_closing_is_one_of_its_pass() -> None:
    """An ERROR outside of all cases is told beside those of the pass that it came in."""
    made = report(comparison(), passes=(PassSummary(precision="float32"),))

    (fault,) = made.with_fault("close", "it raised").failures
    assert (fault.check, fault.precision) == ("close", "float32")


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
    """After the summary comes what fails, then what has no verdict, then ties."""
    verdicts = (TIE, INCONCLUSIVE, ERROR, DRIFT, WRONG)
    made = report(comparison(message="no"), *map(comparison, verdicts))

    told = [f"{verdict} here" for verdict in (WRONG, DRIFT, ERROR, INCONCLUSIVE, TIE)]
    assert made.explain().split("\n\n") == [made.summary(), *told]


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
