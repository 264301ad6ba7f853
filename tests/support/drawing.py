"""How hypothesis draws in these tests."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["unhurried"]

unhurried = settings(deadline=None)
"""For every test that draws: machines have other work, and time is no property here."""
