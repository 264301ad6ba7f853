"""One file an engine, behind `base.Backend`; `registry` finds them."""

from __future__ import annotations

__all__: list[str] = []
