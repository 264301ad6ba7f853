"""Runs that end early: the candidate is closed, and what is known is said to be a part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.support import Folder, Result


def run(folder: Folder, model: str, engine: str, *options: str) -> Result:
    """Run the tokens check on one engine."""
    options = (f"--mlx-backend=engines:{engine}", "--mlx-check=tokens", *options)
    return folder.run(f"--mlx-model={model}", *options)


def test_first_failure(folder: Folder, model: str) -> None:
    """``-x`` closes the engine, and the report is not complete."""
    result = run(folder, model, "Swap", "-x")

    assert result.log[-1] == "close Swap"
    assert result.summary().startswith("mlxcheck: partial, the run was cut short: 1 comparison")
    assert "; 3 did not happen: the run was cut short" in result.summary()
    assert result.reports is not None
    assert [(found.complete, found.outcome) for found in result.reports] == [(False, "fail")]


def test_control_c(folder: Folder, model: str) -> None:
    """Two prompts were compared and stand; the third was interrupted."""
    result = run(folder, model, "Interrupted")

    assert result.status == pytest.ExitCode.INTERRUPTED
    assert result.log[-1] == "close Interrupted"
    assert len(result.outcome("PASSED")) == 2
    assert result.summary().startswith(
        "mlxcheck: partial, the run was cut short: 2 comparisons"
    )
    assert result.reports is not None
    assert [(r.complete, r.outcome, len(r.comparisons)) for r in result.reports] == [
        (False, "inconclusive", 2)
    ]


def test_an_engine_that_cannot_be_interrupted(folder: Folder, model: str) -> None:
    """The process ends; stacks and summary pass the output capture, the hang is an ERROR."""
    result = run(folder, model, "Deaf", "--mlx-watchdog=1")

    assert result.status == 1
    assert "mlxcheck: the candidate made no progress within 1 s in submit()" in result.err
    assert "hashlib.pbkdf2_hmac" in result.err
    assert "mlxcheck: partial, the run was cut short: 2 comparisons" in result.err
    assert result.reports is not None
    (found,) = result.reports
    assert [each.verdict for each in found.comparisons] == ["EXACT", "ERROR"]
    assert found.comparisons[1].prompt_id == "capital"
    assert not found.complete


def test_an_engine_that_holds_the_interpreter(folder: Folder, model: str) -> None:
    """No Python can run any more: faulthandler shows the stack, past the capture."""
    result = run(folder, model, "Frozen", "--mlx-watchdog=1")

    assert result.status == 1
    assert "Timeout" in result.err
    assert 'engines.py", line' in result.err
    assert result.reports is not None
    assert not any(found.complete for found in result.reports)
