"""Each prompt alone: does the engine say what mlx-lm says?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_one, solo
from mlxcheck.compare import compare_tokens

if TYPE_CHECKING:
    from mlxcheck.backends.base import Capabilities
    from mlxcheck.records import Case, Comparison
    from mlxcheck.session import Answers

__all__ = ["Tokens"]


class Tokens:
    """Compare every token up to the reference's first stop id."""

    name = "tokens"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Return None: every engine can be asked for tokens."""
        del capabilities
        return None

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return one case a prompt."""
        return tuple(solo(prompt) for prompt in grounds.prompts)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare the one row."""
        return judge_one(compare_tokens, case, expected, answers, place_of)
