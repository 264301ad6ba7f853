"""What a run depends on besides model, backend and prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcheck.errors import UsageError
from mlxcheck.policy import Policy

if TYPE_CHECKING:
    from mlxcheck.checks import Effort

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run depends on besides model, backend and prompts.

    Attributes:
        max_tokens: The most tokens of each answer.
        effort: How much is asked.
        seed: Deals the prompts into batches.
        policy: What counts as equal, and how long to wait.
        revision: The hub revision of the models.
        trust_remote_code: Whether code in a checkpoint may be run.
        prompts_from: The prompt file, for the command that repeats a case; None for
            the packaged set, empty where no file holds them.
    """

    max_tokens: int = 64
    effort: Effort = "standard"
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    revision: str | None = None
    trust_remote_code: bool = False
    prompts_from: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could not be meant."""
        if self.max_tokens < 1:
            msg = f"max_tokens={self.max_tokens!r}: expected a whole number above 0."
            raise UsageError(msg)
        if self.effort not in ("quick", "standard", "thorough"):
            msg = f"effort={self.effort!r}: expected 'quick', 'standard' or 'thorough'."
            raise UsageError(msg)
