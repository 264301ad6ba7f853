"""What paints: it reads reports and decides nothing. The only room that knows rich."""

from __future__ import annotations

__all__: list[str] = []
