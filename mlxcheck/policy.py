"""What counts as equal, and how long to wait: every default beside its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Policy"]


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
            if not value > 0:
                msg = f"Policy({name}={value!r}): expected a number of seconds above 0"
                raise ValueError(msg)
