"""mlx-lm's server as it is: with alternatives, its entries name tokens that were not said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcheck.serving.client import Client
from mlxcheck.serving.presets import PRESETS
from mlxcheck.serving.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = str(Path(__file__).parents[2] / "fixtures" / "models" / "qwen3_moe-float32")
PROMPT = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Serve a fixture model."""
    with ServerProcess(PRESETS["mlx-lm"].launch(MODEL), wait_s=120) as server:
        yield Client(server.url, timeout_s=60)


def named(client: Client, alternatives: int) -> tuple[str, list[int]]:
    """Return the answer, and the ids that its log-probabilities name."""
    body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "logprobs": True}
    more = {"top_logprobs": alternatives} if alternatives else {}
    choice = client.post("/v1/completions", body | more).json["choices"][0]
    return choice["text"], [entry["id"] for entry in choice["logprobs"]["content"]]


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="mlx-lm 0.32.2: docs/findings/mlx-lm-server-alternatives.md",
)
def test_the_token_that_was_said_is_named(client: Client) -> None:
    """Passes once mlx-lm is mended; then this mark and the page go."""
    assert named(client, 3) == named(client, 0)


def test_the_text_is_right_in_any_case(client: Client) -> None:
    """It is the names alone that are wrong."""
    assert named(client, 3)[0] == named(client, 0)[0] == "2+2 equals 4."
