"""A model that cannot be had here, or does not fit, skips; a reference in doubt fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.plugin.support import MODELS

if TYPE_CHECKING:
    from tests.plugin.support import Folder, Result

OFFLINE = {"HF_HUB_OFFLINE": "1"}


def run(folder: Folder, model: str, *options: str, env: dict[str, str] | None = None) -> Result:
    """Run one item."""
    return folder.run(f"--mlx-model={model}", "-k", "sum and tokens", "-rs", *options, env=env)


@pytest.mark.parametrize("require", [False, True])
def test_a_hub_model_that_is_not_here(folder: Folder, *, require: bool) -> None:
    """Offline and not cached: no fault of the engine's, unless a verdict is required."""
    options = ["--mlx-require"] if require else []

    result = run(folder, "mlxcheck/not-cached", *options, env=OFFLINE)

    word = "FAILED" if require else "SKIPPED"
    assert result.outcome(word) == [
        f"not-cached::mlx-lm-{name}::tokens[sum]" for name in ("float32", "native")
    ]
    assert result.status == (pytest.ExitCode.TESTS_FAILED if require else pytest.ExitCode.OK)
    assert "mlxcheck/not-cached: there is no such folder here" in result.summary()
    assert "Traceback" not in result.out


def test_too_little_memory(folder: Folder, model: str) -> None:
    """The gate's numbers are in the reason, and nothing is loaded."""
    result = run(folder, model, env={"MLXCHECK_MIN_FREE_GB": "1000000"})

    assert result.outcome("SKIPPED") == ["qwen3-float32::mlx-lm::tokens[sum]"]
    assert re.search(r"SKIPPED \[1\] mlxcheck: .*too little memory: .* GB", result.out)
    assert not result.log
    assert result.reports is not None
    assert result.reports[0].outcome == "inconclusive"


def test_a_reference_that_stays_alive_fails_and_stops_no_other(folder: Folder) -> None:
    """The message says what holds it; the next model is compared all the same."""
    other = f"--mlx-model={MODELS / 'qwen3-8bit'}"

    result = run(folder, str(MODELS / "qwen3-float32"), other, env={"LEAK": "qwen3-float32"})

    assert result.outcome("FAILED") == ["qwen3-float32::mlx-lm::tokens[sum]"]
    assert result.outcome("PASSED") == [
        f"qwen3-8bit::mlx-lm-{name}::tokens[sum]" for name in ("float32", "native")
    ]
    assert "is still alive after its release, held by" in result.out
    assert "KEPT" in result.out
    assert "Traceback" not in result.out


def test_a_patched_reference_fails(folder: Folder, model: str) -> None:
    """What a test module patches at import is found before anything is compared."""
    folder.write(
        "test_patch.py",
        """
import importlib

module = importlib.import_module("mlx_lm.generate")
real = module.generate_step


def generate_step(*args, **kwargs):
    return real(*args, **kwargs)


module.generate_step = generate_step
""",
    )

    result = run(folder, model)

    assert result.outcome("FAILED") == ["qwen3-float32::mlx-lm::tokens[sum]"]
    assert "mlx_lm.generate.generate_step" in result.out
    assert "test_patch" in result.out
    assert "Traceback" not in result.out
