"""Time for the arms: what is left of it, and what the next prompt would take."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Budget"]

_MARGIN = 1.25  # over what is predicted: attention over longer prompts is dearer than a line


class Budget:
    """Tells which prompts there is time for, by what those before them took.

    A scoring takes a fixed time and one for each token; both are read from the quickest
    scorings of the fewest and of the most tokens, where fewer tokens never take longer. The
    quickest, and not the clock, since a device's first calls compile kernels; what earlier
    prompts took is reckoned anew, with all that is known since.

    Args:
        seconds: To begin with.
        rows: Rows that are scored of each prompt, all ways together.
        fewest: Prompts that are allowed whatever they take.
    """

    def __init__(self, seconds: float, *, rows: int, fewest: int) -> None:
        self._seconds = seconds
        self._rows = rows
        self._fewest = fewest
        self._spent: list[int] = []
        self._quickest: dict[int, float] = {}

    def allows(self, tokens: int) -> bool:
        """Tell whether a prompt and answer of so many tokens can be begun."""
        if len(self._spent) < self._fewest:
            return True
        left = self._seconds - sum(map(self._cost, self._spent))
        return self._cost(tokens) * _MARGIN <= left

    @contextmanager
    def timing(self, tokens: int) -> Iterator[None]:
        """Time one scoring of so many tokens, all rows together."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._quickest[tokens] = min(seconds, self._quickest.get(tokens, seconds))

    def spend(self, tokens: int) -> None:
        """Note that a prompt and answer of so many tokens are done."""
        self._spent.append(tokens)

    def _cost(self, tokens: int) -> float:
        few, most = min(self._quickest), max(self._quickest)
        low, high = min(self._quickest.values()), self._quickest[most]
        slope = (high - low) / (most - few) if most > few else low / few
        once = max(slope * tokens, low + slope * (tokens - few))
        return once * self._rows
