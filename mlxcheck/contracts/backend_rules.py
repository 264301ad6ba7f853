"""What a rule of the backend protocol is, and what can come of asking for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Breach", "NotAsked", "Rule", "rule"]


class Breach(Exception):  # noqa: N818 - a finding
    """A rule is broken. It holds text alone, and nothing of the engine alive.

    Attributes:
        call: What was called, and on what.
        expected: What the rule has there.
        actual: What came.
        advice: What to do.
        hung: What was expected did not come in time.
    """

    def __init__(
        self, *, call: str, expected: str, actual: str, advice: str, hung: bool = False
    ) -> None:
        super().__init__(call)
        self.call = call
        self.expected = expected
        self.actual = actual
        self.advice = advice
        self.hung = hung


class NotAsked(Exception):  # noqa: N818 - no mistake
    """A rule is not asked for; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: a function with one sentence.

    Attributes:
        name: The function's, with hyphens.
        sentence: Its docstring's first line.
        ask: The function. Of what can be driven it gets the bench, and raises; of what comes
            by itself it gets that, and returns a `Breach` or None.
    """

    name: str
    sentence: str
    ask: Callable[[Any], Breach | None]


def rule(ask: Callable[[Any], Breach | None]) -> Rule:
    """Make a rule of a function; used as a decorator."""
    sentence = (ask.__doc__ or "").partition("\n")[0].rstrip(".")
    name = getattr(ask, "__name__", "").replace("_", "-")
    return Rule(name=name, sentence=sentence, ask=ask)
