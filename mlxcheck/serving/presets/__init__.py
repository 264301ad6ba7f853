"""Real servers, one small file each: how they are started, and what is peculiar to them."""

from __future__ import annotations

from mlxcheck.serving.presets import mlx_lm, sglang, vllm_mlx

__all__ = ["PRESETS"]

PRESETS = {each.name: each for each in (mlx_lm.PRESET, sglang.PRESET, vllm_mlx.PRESET)}
"""By the name that ``--preset`` takes."""
