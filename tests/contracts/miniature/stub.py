"""The stub that is kept beside the runner."""

from __future__ import annotations

from typing import Any

from tests.contracts.miniature.runner import Pool, Runner


class StubRunner(Runner):
    """A runner without weights, whose pools are there from the start."""

    experts = None
    watch = None

    def __init__(self, *args: Any, slots: int = 8, **kwargs: Any) -> None:
        self._slots = slots
        super().__init__(*args, **kwargs)

    def load(self) -> None:
        """Read nothing."""
        self.weights = None

    def initialize(self) -> None:
        """Make the pools at once."""
        self.layers = 1
        self.pool = Pool(self._slots)
        self.capacity = self._slots
        self.attention = None

    def allocate(self, plan: int | None = None, *, layout: str | None = None) -> None:
        """Do nothing: the pools are there."""

    def attach(self) -> None:
        """Do nothing: there is no attention."""
