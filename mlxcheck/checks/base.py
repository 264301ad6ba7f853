"""What a check is: a plan of cases, and a judgement of what each brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from mlxcheck.compare import compare_end, compare_tokens, without_verdict
from mlxcheck.messages import Place
from mlxcheck.records import Case, Comparison, Prompt, Trace, Verdict

if TYPE_CHECKING:
    from mlxcheck.backends.base import Backend, Capabilities
    from mlxcheck.records import ModelRef
    from mlxcheck.session import Answers

__all__ = [
    "Check",
    "Effort",
    "EncodeReference",
    "Expected",
    "Grounds",
    "Inspects",
    "PlaceFor",
    "PlaceOf",
    "compare_in_company",
    "judge_one",
    "judge_rows",
    "longest_first",
    "not_formed",
    "not_put",
    "nothing_to_ask",
    "single",
    "solo",
    "until_left",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What a plan is made from.

    Attributes:
        prompts: All of the run, in order.
        capabilities: Of the open engine.
        effort: How much of the time there is.
        seed: Deals prompts.
        expected: The reference's traces by prompt id; a prompt that is not here is company
            only.
        model: The checkpoint.
    """

    prompts: Sequence[Prompt]
    capabilities: Capabilities
    effort: Effort = "standard"
    seed: int = 0
    expected: Expected
    model: ModelRef


class Check(Protocol):
    """One question. Stateless; the module that defines it is its only room."""

    name: str

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Return why a backend cannot be asked this, or None."""

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return the cases to drive: the same ones for the same grounds, always."""

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


def judge_rows(  # noqa: PLR0913 - those of `Check.judge`, what to do and a reason
    compare: Callable[[Place, Trace, Trace], Comparison],
    case: Case,
    expected: Expected,
    answers: Answers,
    place_of: PlaceOf,
    *,
    not_engaged: str = "",
) -> tuple[Comparison, ...]:
    """Judge each row whose prompt is asked for; of one that left, what it had said.

    Args:
        compare: Two traces to a comparison.
        case: Spelled out, as it was driven.
        expected: The reference's traces by the ids of its prompts.
        answers: What it brought.
        place_of: Places of its rows.
        not_engaged: Why what is asked did not come about: then agreement is no verdict, and
            a difference is one all the same.
    """
    out: list[Comparison] = []
    not_engaged = not_engaged or not_put(case, answers)
    for row, (prompt, actual) in enumerate(zip(case.prompts, answers.traces, strict=True)):
        trace = expected.get(prompt.id)
        if trace is None or (actual.left and not actual.tokens):
            continue
        found = compare(place_of(row), until_left(trace, actual), actual)
        if not_engaged and found.verdict in {Verdict.EXACT, Verdict.TIE}:
            found = without_verdict(place_of(row), not_engaged)
        out.append(found)
    return tuple(out)


def longest_first(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Order prompts by their lengths, longest first, and by their ids."""
    return sorted(prompts, key=lambda prompt: (-len(prompt.tokens), prompt.id))


def nothing_to_ask(check: Check, grounds: Grounds) -> str:
    """Say why a plan is empty, in the check's own words where it has a method ``idle``."""
    idle: Callable[[Grounds], str] | None = getattr(check, "idle", None)
    return idle(grounds) if idle else "these prompts give it nothing to ask"


def compare_in_company(place: Place, expected: Trace, actual: Trace) -> Comparison:
    """Compare tokens; where they agree, see to it that the row did end.

    In company an engine may also forget a row's stop set, or stop it with a neighbour.
    """
    found = compare_tokens(place, expected, actual)
    agrees = found.verdict in {Verdict.EXACT, Verdict.TIE}
    if agrees and len(actual.tokens) > len(expected.tokens):
        ended = compare_end(place, expected, actual)
        return replace(ended, steps=found.steps) if ended.verdict is Verdict.WRONG else found
    return found


def until_left(expected: Trace, actual: Trace) -> Trace:
    """Return the part of the reference's answer that a row which left can be held against."""
    said = len(actual.tokens)
    if not actual.left or said >= len(expected.tokens):
        return expected
    return replace(
        expected, tokens=expected.tokens[:said], scores=expected.scores[:said], finish=None
    )


def not_put(case: Case, answers: Answers) -> str:
    """Say so where a request of a case could not be put to the engine; else nothing."""
    for row, trace in enumerate(answers.traces):
        if trace.fault is not None and not trace.fault.asked:
            return f"row {row} of {len(case.prompts)} was not asked: {trace.fault.summary}"
    return ""


def not_formed(case: Case, expected: Expected, answers: Answers) -> str:
    """Say so where rows never met in a decode step that could be expected to; else nothing."""
    if without := not_put(case, answers):
        return without
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
