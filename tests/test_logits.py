"""The logits check: what it plans, and what it finds of engines that show their numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxcheck
from fixtures.faults.small import scaled_attention
from mlxcheck.backends.base import Capabilities
from mlxcheck.checks.batch import Batch
from mlxcheck.checks.logits import Logits
from mlxcheck.records import Comparison, Verdict
from tests import engines
from tests.support.drawing import unhurried
from tests.support.made import grounds, prompt

if TYPE_CHECKING:
    from mlxcheck.checks import Effort
    from mlxcheck.records import Case
    from mlxcheck.report import Report

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
PROMPTS = ["What is 2+2?", "Count to five.", [9, 8, 7, 6], "What is the capital of Peru?"]

LENGTHS = (3, 40, 9, 9, 21, 33, 5, 12, 60, 17, 2, 8, 25, 31, 14, 44)
MANY = tuple(prompt(f"p{n}", length) for n, length in enumerate(LENGTHS))
FORCED = Capabilities(max_batch=32, teacher_forcing=True, logits=True)
SHOWN = Capabilities(max_batch=32, logits=True)


def plan(
    capabilities: Capabilities = FORCED, effort: Effort = "standard", seed: int = 0
) -> list[Case]:
    """Plan the check for these prompts."""
    return list(Logits().plan(grounds(MANY, capabilities, effort, seed)))


# --- What can be asked ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (Capabilities(logits=True), None),
        (Capabilities(logprobs=True), None),
        (
            Capabilities(teacher_forcing=True),
            "the backend shows neither logits nor log-probabilities",
        ),
    ],
)
def test_who_can_be_asked(capabilities: Capabilities, expected: str | None) -> None:
    """Whoever shows numbers, forced or not; to be forced alone shows nothing."""
    assert Logits().refuse(capabilities) == expected


# --- Plans ------------------------------------------------------------------------------------


def test_a_forced_plan_has_cases_of_its_own() -> None:
    """Their ids say so, and no other check drives them."""
    cases = plan()

    assert all(case.forced and case.id.startswith("forced-") for case in cases)
    others = {case.id for case in Batch().plan(grounds(MANY, FORCED, "standard", 0))}
    assert not others & {case.id for case in cases}


@pytest.mark.parametrize("effort", ["quick", "standard", "thorough"])
def test_an_engine_that_cannot_be_forced_is_driven_once_for_all_checks(effort: Effort) -> None:
    """Its cases are those of other checks of the same effort, the same prompts in them."""
    others = {case.id: case for case in Batch().plan(grounds(MANY, SHOWN, effort, 0))}
    cases = plan(SHOWN, effort)

    assert not any(case.forced for case in cases)
    for case in cases:
        assert case.alone or case == others.get(case.id, case)
    assert any(case.id in others for case in cases if len(case.prompts) > 1)


@pytest.mark.parametrize("effort", ["quick", "standard", "thorough"])
def test_every_plan_has_lone_requests_and_every_size(effort: Effort) -> None:
    """Both paths, one row, and groups of 2, 3, 5 and 8."""
    cases = plan(effort=effort)

    assert {len(case.prompts) for case in cases} == {1, 2, 3, 5, 8}
    assert any(case.alone for case in cases)
    assert any(len(case.prompts) == 1 and not case.alone for case in cases)


def test_more_effort_asks_more() -> None:
    """Standard has every prompt in a group; thorough has each in every size, and alone."""
    efforts: tuple[Effort, ...] = ("quick", "standard", "thorough")
    rows = {effort: plan(effort=effort) for effort in efforts}
    sizes = [sum(len(case.prompts) for case in cases) for cases in rows.values()]

    assert sizes == sorted(set(sizes))
    names = {p.id for p in MANY}
    for effort in efforts[1:]:
        groups = [case for case in rows[effort] if len(case.prompts) > 1]
        assert {p.id for case in groups for p in case.prompts} == names
    assert {case.prompts[0].id for case in rows["thorough"] if case.alone} == names


def test_an_engine_without_batches_has_every_prompt_alone() -> None:
    """There is nothing else that it could be asked."""
    cases = plan(Capabilities(batch=False, logits=True), "quick")

    assert sorted(case.id for case in cases) == sorted(f"alone/{p.id}" for p in MANY)


@unhurried
@given(st.integers(1, 20), st.integers(0, 5), st.booleans())
def test_a_plan_is_the_same_always_and_names_each_case_once(
    size: int,
    seed: int,
    forced: bool,  # noqa: FBT001 - drawn
) -> None:
    """However few prompts there are."""
    capabilities = FORCED if forced else SHOWN
    cases = Logits().plan(grounds(MANY[:size], capabilities, "standard", seed))

    assert cases == Logits().plan(grounds(MANY[:size], capabilities, "standard", seed))
    ids = [case.id for case in cases]
    assert len(set(ids)) == len(ids)


# --- Engines ----------------------------------------------------------------------------------


def run(backend: object, *, checks: tuple[str, ...] = ("logits",), **more: Any) -> Report:
    """Check an engine on the trained dense model."""
    options: dict[str, Any] = {"prompts": PROMPTS, "max_tokens": 12, "effort": "quick", **more}
    return mlxcheck.check(MODELS / "qwen3-float32", backend, checks=checks, **options)


def of_logits(report: Report) -> list[Comparison]:
    """Return the comparisons of prompts under this check."""
    found = [each for each in report.comparisons if each.check == "logits" and each.batch]
    assert found
    return found


def test_the_honest_engine_is_exact_at_every_step() -> None:
    """Each row has an error at every step of the reference's answer, far below a fault's."""
    report = run("mlx-lm", checks=("tokens", "logits"))

    assert report.outcome == "pass", report.explain()
    lengths = {
        each.prompt_id: each.steps for each in report.comparisons if each.check == "tokens"
    }
    found = of_logits(report)
    assert {each.verdict for each in found} == {Verdict.EXACT}
    assert {each.prompt_id for each in found} == set(lengths)
    for each in found:
        assert each.case.startswith("forced-")
        assert (each.steps, each.skipped) == (lengths[each.prompt_id], 0)
        assert len(each.errors) == len(each.divergences) == each.steps
        assert all(error < 1e-4 for error in each.errors)
    (one,) = report.passes
    assert {test[0] for test in one.tests} == {"tokens", "logits"}
    assert one.limit[0].startswith("with these 4 prompts: ")


@pytest.mark.parametrize("engine", [engines.ShowsLogits, engines.ShowsLogprobs])
def test_engines_that_show_less_are_exact_too(engine: type) -> None:
    """One that cannot be forced, and one that shows log-probabilities only."""
    report = run(engine)

    assert report.outcome == "pass", report.explain()
    found = of_logits(report)
    assert {each.verdict for each in found} == {Verdict.EXACT}
    assert all(math.isfinite(error) for each in found for error in each.errors)
    assert all(each.steps == len(each.errors) > 0 for each in found)
    forced = {each.case.startswith("forced-") for each in found}
    assert forced == {engine is engines.ShowsLogprobs}


def test_cases_of_an_engine_that_cannot_be_forced_are_shared() -> None:
    """Those of the batch check are judged for both, and driven once."""
    report = run(engines.ShowsLogits, checks=("batch", "logits"))

    batches = {each.case for each in report.comparisons if each.check == "batch"}
    shared = {each.case for each in of_logits(report) if each.batch > 1}
    assert report.outcome == "pass", report.explain()
    assert shared <= batches


def test_an_engine_that_reports_one_number_a_step_has_shown_nothing() -> None:
    """Nothing compared is never a pass."""
    report = run(engines.ReportsOneNumber)

    assert report.outcome == "inconclusive"
    assert set(report.counts) == {Verdict.INCONCLUSIVE}
    assert report.steps == 0


def test_an_engine_that_goes_on_from_its_own_tokens_is_an_error() -> None:
    """What it shows after that is shown in another context."""
    report = run(engines.AlwaysWrong)

    found = of_logits(report)
    assert {each.verdict for each in found} == {Verdict.ERROR}
    assert "it was to go on from token" in found[0].message


def test_an_engine_that_ignores_forcing_and_shows_nothing_has_no_verdict() -> None:
    """Its own tokens are the right ones, so only the numbers are missing."""
    report = run(engines.IgnoresForcing)

    assert report.outcome == "inconclusive"
    assert {each.verdict for each in of_logits(report)} == {Verdict.INCONCLUSIVE}
    assert "it showed no log-probabilities" in report.comparisons[0].message


def test_reported_log_probabilities_that_are_not_those_of_the_logits() -> None:
    """A tenth of a nat, which changes no token, in every row."""
    report = run(engines.Misreports, checks=("tokens", "logits"))

    assert report.outcome == "fail"
    verdicts = {
        check: {each.verdict for each in report.comparisons if each.check == check}
        for check in ("tokens", "logits")
    }
    assert verdicts == {"tokens": {Verdict.EXACT}, "logits": {Verdict.DRIFT}}
    assert "the log-probabilities that it reports at step 0" in report.failures[0].message


def test_a_fault_that_changes_no_token_is_a_drift() -> None:
    """One percent of the attention scale of one layer: every token is right all the same."""
    report = run(scaled_attention(1.01), checks=("tokens", "batch", "logits"))

    assert report.outcome == "fail"
    tokens = {each.verdict for each in report.comparisons if each.check != "logits"}
    assert tokens == {Verdict.EXACT}
    assert {each.verdict for each in of_logits(report)} == {Verdict.DRIFT}
    first = of_logits(report)[0]
    assert first.expected == first.actual
    assert "are off by more than rounding" in first.message
    assert "mlxcheck.check(" in first.message


def test_a_batch_that_never_formed_has_no_verdict() -> None:
    """Rows that never met, and could have, say nothing of batches; others are compared."""
    report = run(engines.OneAtATime, prompts=[[17, 18, 19], [23, 24, 25]], max_tokens=40)

    assert min(len(each.errors) for each in of_logits(report) if each.batch == 1) > 20
    assert report.outcome == "inconclusive"
    single = {each.verdict for each in of_logits(report) if each.batch == 1}
    assert single == {Verdict.EXACT}
    unformed = [each for each in of_logits(report) if each.batch == 2]
    assert {each.verdict for each in unformed} == {Verdict.INCONCLUSIVE}
    assert "requests were submitted, but no decode step had two rows" in unformed[0].message
