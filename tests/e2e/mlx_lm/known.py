"""What mlx-lm's server is known to do wrong; each reports itself once it is mended."""

from __future__ import annotations

__all__ = ["KNOWN"]

_PAGE = "mlx-lm 0.32.2: docs/findings/mlx-lm-server.md"

KNOWN = dict.fromkeys(("models", "stop", "huge-max-tokens"), _PAGE)
