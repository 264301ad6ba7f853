"""What counts as equal, and how long to wait: every default beside its reason."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcheck.errors import UsageError

__all__ = ["LONGEST_S", "Policy"]

LONGEST_S = 86_400
"""The longest that a watchdog waits: a day. The system's timers do not take any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of judgement of one run.

    Attributes:
        watchdog_s: Seconds without a token or a finished prefill after which the
            candidate counts as hung. 120 s: the longest honest silence is the prefill of
            one long prompt on a large model, tens of seconds on a small Mac.
        grace_s: Seconds past the watchdog that a hung candidate gets to let itself be
            interrupted before the process is ended. 10 s: one kernel that is already
            running may finish.
    """

    watchdog_s: float = 120.0
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what could not be meant."""
        for name in ("watchdog_s", "grace_s"):
            value = getattr(self, name)
            if not 0 < value <= LONGEST_S:
                msg = f"Policy({name}={value!r}): expected 0 < seconds <= {LONGEST_S}."
                raise UsageError(msg)
