"""Are the numbers behind the tokens the reference's, at every step?

Real faults exist that never change a token: a constant dropped from the attention, one more
key in the window. An engine that can be forced goes on from the reference's own tokens, so
that every step stands in the reference's context; of another that shows its numbers, those
of the answers to the other checks are compared, past ties where it was put back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck.checks.base import (
    Expected,
    Grounds,
    PlaceOf,
    judge_rows,
    longest_first,
    not_formed,
    single,
    solo,
)
from mlxcheck.checks.batch import extremes, groups
from mlxcheck.drift import compare_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.records import Case, Comparison
    from mlxcheck.session import Answers

__all__ = ["Logits"]


class Logits:
    """Compare log-probabilities alone, on the batch path, and in batches."""

    name = "logits"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse engines that show neither logits nor log-probabilities."""
        if capabilities.logits or capabilities.logprobs:
            return None
        return "the backend shows neither logits nor log-probabilities"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return cases of the `batch` check's kind, forced where the engine can be.

        A quick plan has a few prompts alone and a group of each size; a standard one deals
        each prompt into one group; a thorough one has each prompt alone too, in both ways.
        """
        cases = list(_cases(grounds))
        if not grounds.capabilities.teacher_forcing:
            return tuple(cases)  # the same cases as of other checks, driven once for all
        return tuple(replace(case, id=f"forced-{case.id}", forced=True) for case in cases)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare the numbers of each row."""
        why = not_formed(case, expected, answers)
        return judge_rows(compare_numbers, case, expected, answers, place_of, not_engaged=why)


def _cases(grounds: Grounds) -> Iterator[Case]:
    by_length, effort = longest_first(grounds.prompts), grounds.effort
    all_alone = effort == "thorough" or not grounds.capabilities.batch
    every = 1 if all_alone else max(1, len(by_length) // 4)
    yield from (solo(prompt) for prompt in by_length[::every])
    if grounds.capabilities.batch:
        yield from (single(prompt) for prompt in by_length[::every])
        yield from groups(by_length, effort, grounds.seed)
        yield from extremes(by_length)
