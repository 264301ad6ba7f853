"""vllm-mlx with continuous batching, as of 0.6.0."""

from __future__ import annotations

from mlxcheck.serving.launch import PORT, Preset

__all__ = ["PRESET"]

PRESET = Preset(
    name="vllm-mlx",
    command=(
        *("vllm-mlx", "serve", "{model}", "--host", "127.0.0.1", "--port", PORT),
        "--continuous-batching",
    ),
    differs=(
        "Without --continuous-batching it answers one request at a time.",
        "Errors are {'detail': ...}, and a body that does not validate gets status 422.",
    ),
)
"""How it is started, and what of its API is its own."""
