"""Servers from outside: the HTTP client, starting and stopping, and what to start them with."""

from __future__ import annotations

__all__: list[str] = []
