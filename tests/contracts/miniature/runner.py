"""The class that a stub stands for."""

from __future__ import annotations

from typing import Any


class Pool:
    """Slots for tokens."""

    def __init__(self, slots: int) -> None:
        self.slots = slots


class Runner:
    """Runs a model: made first, then given pools, then attention."""

    name = "runner"

    def __init__(
        self, config: dict[str, int], *, draft: bool = False, pool: Pool | None = None
    ) -> None:
        self.config = config
        self.draft = draft
        self.pool: Any = pool
        self.passes = 0
        self.lora: Any = None
        self.load()
        self.initialize()

    def load(self) -> None:
        """Read the weights."""
        self.weights: Any = [0.0] * self.config["size"]

    def initialize(self) -> None:
        """Prepare what does not need pools."""
        self.layers = len(self.weights)
        self.experts: Any = None

    def allocate(self, plan: int | None = None, *, layout: str | None = None) -> None:
        """Make the pools."""
        self._make_pools(plan or self.config["slots"])
        self.layout = layout
        self.watch: Any = None

    def attach(self) -> None:
        """Make the attention."""
        self.attention: Any = [self.layers]

    @property
    def limit(self) -> int:
        """The most tokens."""
        return self.capacity - 1

    def step(self, batch: list[int], sample: bool = True) -> list[int]:  # noqa: FBT001, FBT002
        """Run one pass."""
        self.passes += 1
        return [row + self.layers for row in batch] if sample else batch

    def describe(self) -> str:
        """Say what it is."""
        return f"{self.name} of {self.capacity}"

    def _make_pools(self, slots: int) -> None:
        if self.pool is None:
            self.pool = Pool(slots)
        else:
            assert self.draft
        self.capacity = slots
