"""mlx-lm's own server on a trained qwen3_moe model, black box."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.mlx_lm.known import KNOWN
from tests.support.smoking import checks, require_pass, served

if TYPE_CHECKING:
    from mlxcheck.smoke import SmokeReport


@pytest.fixture(scope="module")
def report() -> SmokeReport:
    """Ask the server everything, once."""
    return served("mlx-lm", "qwen3_moe-float32")


@pytest.mark.parametrize("name", checks(KNOWN))
def test_smoke(report: SmokeReport, name: str) -> None:
    """Each check passes, but for the faults that are known."""
    require_pass(report, name)
