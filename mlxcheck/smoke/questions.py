"""What a server is asked: any model that is of use knows the answers, as the fixtures do."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["COUNTS", "EIGHT", "FRANCE", "LONG", "OPEN", "TWO", "Question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One user turn.

    Attributes:
        text: What is asked.
        expects: What a right answer holds, in this order; empty where anything goes.
    """

    text: str
    expects: tuple[str, ...] = ()

    def answered_by(self, text: str) -> bool:
        """Tell whether *text* holds all that is expected, in order, as words of its own."""
        at = 0
        for word in self.expects:
            found = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE).search(text, at)
            if found is None:
                return False
            at = found.end()
        return True


def _capital(country: str, city: str) -> Question:
    return Question(text=f"What is the capital of {country}?", expects=(city,))


def _sum(a: int, b: int) -> Question:
    return Question(text=f"What is {a}+{b}?", expects=(str(a + b),))


def _count(first: int, last: int) -> Question:
    numbers = tuple(str(n) for n in range(first, last + 1))
    return Question(text=f"Count from {first} to {last}.", expects=numbers)


TWO = _sum(2, 2)
FRANCE = _capital("France", "Paris")
EIGHT = (
    *(TWO, FRANCE, _sum(3, 4), _capital("Japan", "Tokyo")),
    *(_sum(5, 1), _capital("Italy", "Rome"), _sum(4, 5), _capital("Egypt", "Cairo")),
)
"""Asked at once: no two have the same answer, and neighbours are of two kinds."""

LONG = _count(1, 30)
"""Has an answer that is long enough to be cut."""

COUNTS = (_count(5, 20), _count(8, 23))
"""Neighbours that take long enough for another request to come and go."""

OPEN = Question(text="Write one sentence about a river.")
"""Has many good answers: a server that draws instead of taking the best gives several."""
