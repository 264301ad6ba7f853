"""Does speculative decoding say what plain greedy decoding says, drafts taken and refused?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_rows
from mlxcheck.compare import compare_tokens
from mlxcheck.records import Case, Moment, Schedule

if TYPE_CHECKING:
    from mlxcheck.backends.base import Capabilities
    from mlxcheck.records import Comparison
    from mlxcheck.session import Answers

__all__ = ["Speculative"]


class Speculative:
    """Compare tokens where an engine drafts them, with at least one draft refused."""

    name = "speculative"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse engines that decode every token with the model itself."""
        return None if capabilities.drafts else "the backend drafts no tokens"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return one case: every prompt, one after the other.

        One case, so that drafts are counted over all prompts: a short answer may honestly
        be over before its first draft was refused.
        """
        prompts = tuple(grounds.prompts)
        joins = (None, *(Moment(row=row) for row in range(len(prompts) - 1)))
        schedule = Schedule(joins=joins, leaves=(None,) * len(prompts))
        return (Case(id=f"speculative/{len(prompts)}", prompts=prompts, schedule=schedule),)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare each answer; nothing is said where no draft was taken or none refused."""
        why = _not_engaged(answers)
        return judge_rows(compare_tokens, case, expected, answers, place_of, not_engaged=why)


def _not_engaged(answers: Answers) -> str:
    drafted, accepted = answers.drafted, answers.accepted
    if drafted is None or accepted is None:
        return "the engine does not report how many tokens were drafted and accepted"
    if not drafted:
        return "no token was drafted"
    if accepted >= drafted:
        return f"all {drafted:,} drafted tokens were accepted: no refusal was seen"
    return ""
