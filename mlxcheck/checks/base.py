"""What a check is: a plan of cases, and a judgement of what each brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from mlxcheck.messages import Place
from mlxcheck.records import Case, Comparison, Prompt, Trace

if TYPE_CHECKING:
    from mlxcheck.backends.base import Backend, Capabilities
    from mlxcheck.records import ModelRef
    from mlxcheck.session import Answers

__all__ = [
    "Check",
    "Effort",
    "EncodeReference",
    "Expected",
    "Inspects",
    "PlaceFor",
    "PlaceOf",
    "judge_one",
    "not_formed",
    "single",
    "solo",
]

_MIN_OVERLAP = 8
"""Tokens that a second answer must have before rows that never met are held against the
engine: a short answer may honestly be over before its neighbour has been prefilled."""

Effort = Literal["quick", "standard", "thorough"]
"""Seconds on a small model; all that a pull request wants; all that a night allows."""

Expected = Mapping[str, Trace]
"""The reference's traces by prompt id. A row whose prompt is not here is company only."""

PlaceOf = Callable[[int], Place]
"""The `Place` of a row of the case at hand."""

PlaceFor = Callable[[Case], Place]
"""The `Place` of row 0 of a case that is not driven."""

EncodeReference = Callable[[Sequence[Mapping[str, str]]], tuple[int, ...]]
"""The ids that mlx-lm makes of chat turns by default; raises `PromptError`."""


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


@runtime_checkable
class Inspects(Protocol):
    """What a check is too that asks the backend itself, and not by driving cases."""

    def inspect(
        self,
        prompts: Sequence[Prompt],
        model: ModelRef,
        backend: Backend,
        encode_reference: EncodeReference,
        place_for: PlaceFor,
    ) -> tuple[Comparison, ...]:
        """Ask, once, after the backend was opened and before a case is driven.

        Args:
            prompts: All of the run.
            model: With the reference's stop set.
            backend: Open. What it raises becomes an ERROR, and is not passed on.
            encode_reference: What to hold its ids against.
            place_for: Places of cases that are named here and never driven.
        """


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


def not_formed(case: Case, expected: Expected, answers: Answers) -> str:
    """Say so where rows never met in a decode step that could be expected to; else nothing."""
    if len(case.prompts) == 1 or answers.width is None or answers.width > 1:
        return ""
    lengths = sorted(len(expected[p.id].tokens) for p in case.prompts if p.id in expected)
    # While one is read, a chunk a step, another may have been answered.
    least = _MIN_OVERLAP + (answers.chunks or 0)
    if len(lengths) < len(case.prompts) or lengths[-2] < least:
        return ""
    return f"{len(case.prompts)} requests were submitted, but no decode step had two rows"


def solo(prompt: Prompt) -> Case:
    """Return the case of a prompt by itself; checks that share it share its one run."""
    return Case(id=f"alone/{prompt.id}", prompts=(prompt,), alone=True)


def single(prompt: Prompt) -> Case:
    """Return the case of a prompt on the batch path, without neighbours; shared likewise."""
    return Case(id=f"batch-1/{prompt.id}", prompts=(prompt,))
