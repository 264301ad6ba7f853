"""What a check is: a plan of cases, and a judgement of what each brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from mlxcheck.messages import Place
from mlxcheck.records import Case, Comparison, Prompt, Trace

if TYPE_CHECKING:
    from mlxcheck.backends.base import Capabilities
    from mlxcheck.session import Answers

__all__ = ["Check", "Effort", "Expected", "PlaceOf", "judge_one", "single", "solo"]

Effort = Literal["quick", "standard", "thorough"]
"""Seconds on a small model; all that a pull request wants; all that a night allows."""

Expected = Mapping[str, Trace]
"""The reference's traces by prompt id. A row whose prompt is not here is company only."""

PlaceOf = Callable[[int], Place]
"""The `Place` of a row of the case at hand."""


class Check(Protocol):
    """One question. Stateless; the module that defines it is its only room."""

    name: str

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Return why a backend cannot be asked this, or None."""

    def plan(
        self, prompts: Sequence[Prompt], capabilities: Capabilities, effort: Effort, seed: int
    ) -> tuple[Case, ...]:
        """Return the cases to drive: the same ones for the same arguments, always."""

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare what a case brought with the reference."""


def judge_one(
    compare: Callable[[Place, Trace, Trace], Comparison],
    case: Case,
    expected: Expected,
    answers: Answers,
    place_of: PlaceOf,
) -> tuple[Comparison, ...]:
    """Judge a case of one row, where its prompt is asked for."""
    trace = expected.get(case.prompts[0].id)
    if trace is None:
        return ()
    return (compare(place_of(0), trace, answers.traces[0]),)


def solo(prompt: Prompt) -> Case:
    """Return the case of a prompt by itself; checks that share it share its one run."""
    return Case(id=f"alone/{prompt.id}", prompts=(prompt,), alone=True)


def single(prompt: Prompt) -> Case:
    """Return the case of a prompt on the batch path, without neighbours; shared likewise."""
    return Case(id=f"batch-1/{prompt.id}", prompts=(prompt,))
