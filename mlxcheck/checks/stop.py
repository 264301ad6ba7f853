"""Does the engine end an answer where mlx-lm does, and for the same reason?

Apart from `tokens`, since the two fail apart: an engine that knows one of two stop ids says
every right token and then does not stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_one, single, solo
from mlxcheck.compare import compare_end

if TYPE_CHECKING:
    from mlxcheck.backends.base import Capabilities
    from mlxcheck.records import Case, Comparison
    from mlxcheck.session import Answers

__all__ = ["Stop"]


class Stop:
    """Compare the ends of answers on the batch path, where engines keep their stop sets.

    Its cases are those of one row of the `batch` check, which are driven once for both.
    """

    name = "stop"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse engines that leave stopping to their caller."""
        if capabilities.stop:
            return None
        return "the backend leaves stopping to its caller"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return one case a prompt: a batch of one, or the prompt alone."""
        case_of = single if grounds.capabilities.batch else solo
        return tuple(case_of(prompt) for prompt in grounds.prompts)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare the one row's end."""
        return judge_one(compare_end, case, expected, answers, place_of)
