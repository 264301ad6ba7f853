"""Does the engine end an answer where mlx-lm does, and for the same reason?

Apart from `tokens`, since the two fail apart: an engine that knows one of two stop ids says
every right token and then does not stop.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlxcheck.backends.base import Capabilities
from mlxcheck.checks.base import Effort, Expected, PlaceOf, solo
from mlxcheck.compare import compare_end
from mlxcheck.records import Case, Comparison, Prompt
from mlxcheck.session import Answers

__all__ = ["Stop"]


class Stop:
    """Compare the ends of the answers that the `tokens` check decodes anyway."""

    name = "stop"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse engines that leave stopping to their caller."""
        if capabilities.stop:
            return None
        return "the backend leaves stopping to its caller"

    def plan(
        self, prompts: Sequence[Prompt], capabilities: Capabilities, effort: Effort, seed: int
    ) -> tuple[Case, ...]:
        """Return the cases of the `tokens` check: they are driven once for both."""
        del capabilities, effort, seed
        return tuple(solo(prompt) for prompt in prompts)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare the one row's end."""
        trace = expected.get(case.prompts[0].id)
        if trace is None:
            return ()
        return (compare_end(place_of(0), trace, answers.traces[0]),)
