"""SGLang's server on its MLX backend, as of 0.5.23."""

from __future__ import annotations

from mlxcheck.serving.launch import PORT, Preset

__all__ = ["PRESET"]

PRESET = Preset(
    name="sglang",
    command=(
        *("{python}", "-m", "sglang.launch_server"),
        *("--model-path", "{model}", "--host", "127.0.0.1", "--port", PORT),
        *("--disable-radix-cache", "--disable-cuda-graph"),
    ),
    env={"SGLANG_USE_MLX": "1"},
    differs=(
        "It answers requests that name another model than the one that it serves.",
        "Its radix cache is turned off, so that equal requests take equal steps.",
    ),
)
"""How it is started, and what of its API is its own."""
