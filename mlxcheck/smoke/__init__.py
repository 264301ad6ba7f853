"""Black-box checks on any OpenAI-compatible server."""

from __future__ import annotations

from mlxcheck.smoke.records import SmokeReport, SmokeResult
from mlxcheck.smoke.runner import CHECKS, MODELS, REFERENCE, STARTS, Asking, named, run

__all__ = [
    "CHECKS",
    "MODELS",
    "REFERENCE",
    "STARTS",
    "Asking",
    "SmokeReport",
    "SmokeResult",
    "named",
    "run",
]
