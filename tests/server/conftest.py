"""What tests of running servers share: a tokenizer, and the model that goes with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck import checkpoint, reference

if TYPE_CHECKING:
    from mlxcheck.records import ModelRef

MODEL = Path(__file__).parents[2] / "fixtures" / "models" / "qwen3-float32"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """Return the tokenizer of a fixture model."""
    return reference.read_tokenizer(checkpoint.inspect(str(MODEL)))


@pytest.fixture(scope="session")
def model(tokenizer: Any) -> ModelRef:
    """Return that model, with its stop set."""
    found = checkpoint.inspect(str(MODEL)).model
    return dataclasses.replace(found, stop_ids=reference.stop_set(tokenizer))
