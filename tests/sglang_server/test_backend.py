"""SGLang's real server says what plain mlx-lm says, with its radix cache on and off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mlxcheck
from mlxcheck.backends.server import ServerBackend
from mlxcheck.policy import Policy
from mlxcheck.records import FAILING, Verdict
from mlxcheck.serving.process import ServerProcess
from tests.support.sglang_server import MODELS, launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.report import Report

NATIVE = Policy(precision=("native",))
FAMILIES = ("qwen2_moe", "qwen3_moe")
CHECKS = ("prompts", "tokens", "stop", "batch", "schedule", "chunks")
APART = ("no decode step had two rows", "another's answer that had ended before")
"""An answer of these small models may be over before the next request has come."""


@pytest.fixture(
    scope="module", params=[(f, r) for f in FAMILIES for r in (False, True)], ids=str
)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool, str]]:
    """Serve a family, with its radix cache on or off."""
    family, radix = request.param
    with ServerProcess(launch(f"{family}-float32", radix=radix), wait_s=300) as server:
        yield family, radix, server.url


def compared(url: str, family: str, *checks: str) -> Report:
    """Compare what a server says with plain mlx-lm, in a quick run."""
    return mlxcheck.check(
        MODELS / f"{family}-float32",
        lambda: ServerBackend(url),
        policy=NATIVE,
        checks=list(checks),
        effort="quick",
    )


def require_equal(report: Report) -> None:
    """Require that all that could be compared is equal; say what it was."""
    assert report.failures == (), report.explain()
    told = {found.verdict: found for found in report.comparisons}
    assert set(told) <= {Verdict.EXACT, Verdict.INCONCLUSIVE}, report.explain()
    apart = [each for each in report.comparisons if each.verdict is Verdict.INCONCLUSIVE]
    told_why = [any(why in each.message for why in APART) for each in apart]
    assert all(told_why), report.explain()
    print(report.summary())  # noqa: T201 - with `pytest -rP`, what was compared


def test_all_that_its_server_can_be_asked(served: tuple[str, bool, str]) -> None:
    """Ids in and ids out; template, BOS and thinking default by its own account."""
    family, radix, url = served

    report = compared(url, family, *CHECKS, "prefix", "logits")

    require_equal(report)
    exact = {each.check for each in report.comparisons if each.verdict is Verdict.EXACT}
    assert {*CHECKS} <= exact
    assert ("prefix" in exact) == radix
    left_out = dict(report.not_asked)
    assert "logits" in left_out
    assert ("prefix" in left_out) == (not radix)


def test_eight_at_once(served: tuple[str, bool, str]) -> None:
    """Each row of eight says what it says alone, and they do meet."""
    family, _, url = served

    report = compared(url, family, "batch")

    require_equal(report)
    eight = [each for each in report.comparisons if each.batch == 8]
    assert len(eight) >= 8
    assert {each.verdict for each in eight} == {Verdict.EXACT}


def test_log_probabilities_and_another_checkpoint() -> None:
    """Started with sampling, it gives its numbers, and those of another model are not right."""
    with ServerProcess(
        launch("qwen3_moe-float32", "--mlx-enable-sampling"), wait_s=300
    ) as server:
        right = compared(server.url, "qwen3_moe", "tokens", "logits")
        wrong = compared(server.url, "qwen2_moe", "tokens", "logits")

    require_equal(right)
    assert {each.check for each in right.comparisons} == {"tokens", "logits"}
    assert {each.check for each in wrong.failures} == {"logits"}
    assert {each.verdict for each in wrong.failures} <= FAILING
