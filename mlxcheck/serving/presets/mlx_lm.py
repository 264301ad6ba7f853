"""mlx-lm's own server, as of 0.32.2."""

from __future__ import annotations

from mlxcheck.serving.launch import PORT, Preset

__all__ = ["PRESET"]

PRESET = Preset(
    name="mlx-lm",
    command=(
        *("{python}", "-m", "mlx_lm.server"),
        *("--model", "{model}", "--host", "127.0.0.1", "--port", PORT),
    ),
    served_model="default_model",
    differs=(
        "It loads the model that a request names, from the hub too, and drops its own for it.",
        "/v1/models lists the hub's cache; 'default_model' is the model that was given.",
        "max_tokens has no upper limit.",
        "Errors are {'error': 'text'}, not objects with a message.",
    ),
)
"""How it is started, and what of its API is its own."""
