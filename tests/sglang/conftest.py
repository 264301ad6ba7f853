"""What every test of SGLang's engine needs: the engine, models, and plain mlx-lm's answers.

Nothing here imports SGLang at its top: the folder is collected, and skipped with a reason,
where it is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sglang.driving import MODELS, Expected, model_ref
from tests.support import sglang_linux

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.records import ModelRef

if sglang_linux.missing() is None:
    sglang_linux.prepare()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder, and no other, where there is no SGLang."""
    sglang_linux.skip_where_missing(items, Path(__file__).parent, "sglang")


@pytest.fixture(scope="session")
def model() -> ModelRef:
    """Return the model that the adapter's own tests run on."""
    return model_ref(MODELS / "qwen3_moe-float32")


@pytest.fixture(scope="session")
def expected(model: ModelRef) -> Iterator[Expected]:
    """Yield plain mlx-lm's answers on that model, each computed once."""
    with Expected(model) as found:
        yield found
