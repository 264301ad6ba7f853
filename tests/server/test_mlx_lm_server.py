"""mlx-lm's own server, for real: it says what plain mlx-lm says, and a changed one does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mlxcheck
from mlxcheck.backends.server import ServerBackend
from mlxcheck.contracts import check_backend
from mlxcheck.policy import Policy
from mlxcheck.records import Verdict
from mlxcheck.serving.launch import Launch
from mlxcheck.serving.presets import PRESETS
from mlxcheck.serving.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.report import Report

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
MODEL = str(MODELS / "qwen3_moe-float32")
NATIVE = Policy(precision=("native",))
LENT = ("MLXCHECK_SERVER_URL", "MLXCHECK_SERVER_MODEL", "MLXCHECK_API_KEY")

BIASED = """
import mlx_lm.server as server
server._make_logits_processors = lambda args: [lambda _, logits: logits.at[:, 17].add(9.0)]
server.main()
"""
"""mlx-lm's server with a token that it likes more than the model does: that of "2"."""


@pytest.fixture(autouse=True)
def _no_server_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the servers of these tests alone."""
    for name in LENT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve a fixture model."""
    with ServerProcess(PRESETS["mlx-lm"].launch(MODEL), wait_s=120) as server:
        yield server.url


def compared(url: str, *checks: str, model: str = MODEL) -> Report:
    """Compare what a server says with plain mlx-lm."""
    return mlxcheck.check(
        model,
        lambda: ServerBackend(url),
        policy=NATIVE,
        checks=list(checks) or None,
        effort="quick",
    )


def test_it_is_plain_mlx_lm_alone_and_eight_at_once(url: str) -> None:
    """Every check that can be asked passes, log-probabilities among them."""
    report = compared(url)

    assert report.outcome == "pass", report.explain()
    widest = max(found.batch for found in report.comparisons)
    eight = [found for found in report.comparisons if found.batch == 8]
    assert widest >= 8
    assert {(found.check, found.verdict) for found in eight} == {
        ("batch", Verdict.EXACT),
        ("logits", Verdict.EXACT),
    }
    left_out = dict(report.not_asked)
    assert {"prompts", "prefix", "schedule"} <= set(left_out)
    assert not {"tokens", "stop", "batch", "logits", "chunks"} & set(left_out)


def test_a_server_of_another_checkpoint(url: str) -> None:
    """Both have learnt the same sentences, so that numbers alone tell them apart."""
    report = compared(url, "tokens", "logits", model=str(MODELS / "qwen2_moe-float32"))

    assert report.outcome == "fail"
    assert {found.check for found in report.failures} == {"logits"}
    assert {found.verdict for found in report.failures} == {Verdict.DRIFT}


def test_a_server_that_prefers_a_token() -> None:
    """Wrong tokens are found where they are said, and numbers that belong to none."""
    command = (sys.executable, "-c", BIASED, "--model", MODEL, "--port", "{port}")
    with ServerProcess(Launch(command=command), wait_s=120) as server:
        report = compared(server.url, "tokens", "batch")

    assert report.outcome == "fail"
    assert {found.check for found in report.failures} == {"tokens", "batch"}
    assert {found.actual for found in report.failures} == {17}


def test_the_backend_keeps_the_protocol(url: str) -> None:
    """Ids that do not end an answer on the server cannot be asked for, and that is said."""
    report = check_backend(lambda: ServerBackend(url), MODEL)

    left_out = {each.rule: each.reason for each in report.not_asked}
    assert "takes no other ids" in left_out["stops-at-a-later-token"]
    assert len(report.kept) > len(left_out)


def test_pytest_asks_it_too(
    url: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pytest --mlx-reference --mlx-backend=server`` makes the same comparisons."""
    monkeypatch.setenv("MLXCHECK_SERVER_URL", url)
    options = ["--mlx-reference", f"--mlx-model={MODEL}", "--mlx-backend=server"]

    result = pytester.runpytest_subprocess(*options, "-k", "tokens and sum", "-q")

    outcomes = result.parseoutcomes()
    assert outcomes.pop("passed") >= 5
    assert set(outcomes) == {"deselected"}
    result.stdout.fnmatch_lines(["mlxcheck: * comparisons, * steps compared*"])
