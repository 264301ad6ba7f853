"""Are the numbers behind the tokens the reference's, at every step?

Real faults exist that never change a token: a constant dropped from the attention, one more
key in the window. An engine that can be forced goes on from the reference's own tokens, so
that every step stands in the reference's context; of another that shows its numbers, those
of the answers to the other checks are compared, past ties where it was put back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck.checks.base import Effort, Expected, PlaceOf, not_formed, single, solo
from mlxcheck.checks.batch import extremes, groups
from mlxcheck.compare import without_verdict
from mlxcheck.drift import compare_numbers
from mlxcheck.records import Case, Comparison, Prompt, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.backends.base import Capabilities
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

    def plan(
        self, prompts: Sequence[Prompt], capabilities: Capabilities, effort: Effort, seed: int
    ) -> tuple[Case, ...]:
        """Return cases of the `batch` check's kind, forced where the engine can be.

        A quick plan has a few prompts alone and a group of each size; a standard one deals
        each prompt into one group; a thorough one has each prompt alone too, in both ways.
        """
        cases = list(_cases(prompts, capabilities, effort, seed))
        if not capabilities.teacher_forcing:
            return tuple(cases)  # the same cases as of other checks, driven once for all
        return tuple(replace(case, id=f"forced-{case.id}", forced=True) for case in cases)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare the numbers of each row."""
        out: list[Comparison] = []
        for row, (prompt, actual) in enumerate(zip(case.prompts, answers.traces, strict=True)):
            trace = expected.get(prompt.id)
            if trace is None:
                continue
            found = compare_numbers(place_of(row), trace, actual)
            why = not_formed(case, expected, answers)
            if why and found.verdict in {Verdict.EXACT, Verdict.TIE}:
                found = without_verdict(place_of(row), why)
            out.append(found)
        return tuple(out)


def _cases(
    prompts: Sequence[Prompt], capabilities: Capabilities, effort: Effort, seed: int
) -> Iterator[Case]:
    by_length = sorted(prompts, key=lambda prompt: (-len(prompt.tokens), prompt.id))
    every = 1 if effort == "thorough" or not capabilities.batch else max(1, len(prompts) // 4)
    yield from (solo(prompt) for prompt in by_length[::every])
    if capabilities.batch:
        yield from (single(prompt) for prompt in by_length[::every])
        yield from groups(by_length, effort, seed)
        yield from extremes(by_length)
