"""Round after round of the same requests: an engine that lets go of them does not grow.

The requests are the same ones in every round, so that a prefix cache is full after the first
few. Pools, tables and caches grow by steps and then stop; what is kept for every token grows
in every round.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_rows
from mlxcheck.compare import blank, compare_tokens, without_verdict
from mlxcheck.memory import human
from mlxcheck.messages import counted
from mlxcheck.records import Case, Comparison, Moment, Schedule, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.growth import Held
    from mlxcheck.messages import Place
    from mlxcheck.records import Prompt
    from mlxcheck.session import Answers

__all__ = ["Soak", "slope"]

_ROUNDS = 24
_WARM_UP = 3
"""The share of rounds, one in so many, that pools and caches are given to fill up."""

_MOST = 12
_LEAVES = 4
_JOINS = 2
_RISING = 0.75
"""The share of rounds that a leak raises. Steps of a pool raise few, and what only wavers
half of them."""


class Soak:
    """Submit, leave and join, many times over; then compare tokens and what is held."""

    name = "soak"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse no engine: each can be asked again."""
        del capabilities
        return None

    def idle(self, grounds: Grounds) -> str:
        """Return why the plan of these grounds is empty; nothing where it is not."""
        if grounds.effort != "thorough":
            return "it takes many rounds: thorough runs alone ask it"
        return "" if self.plan(grounds) else "no prompt that is asked for has an answer"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return one case of many rounds; none but for thorough runs.

        One row stays, one leaves in the middle, one joins; of engines that take a request at
        a time one row alone.
        """
        traces = grounds.expected
        asked = [each for each in grounds.prompts if each.id in traces]
        asked = [each for each in asked if traces[each.id].tokens]
        if grounds.effort != "thorough" or not asked:
            return ()
        asked.sort(key=lambda each: (-min(_MOST, len(traces[each.id].tokens)), each.id))
        if not grounds.capabilities.batch:
            alone = Case(id=f"soak/{asked[0].id}", prompts=(asked[0],), alone=True)
            return (replace(alone, most=(_MOST,), rounds=_ROUNDS),)
        rows: list[Prompt] = list(itertools.islice(itertools.cycle(asked), 3))
        schedule = Schedule(
            joins=(None, None, Moment(row=0, tokens=_JOINS)),
            leaves=(None, Moment(row=1, tokens=_LEAVES), None),
        )
        most = (_MOST,) * len(rows)
        case = Case(id="soak/join-leave", prompts=tuple(rows), schedule=schedule, most=most)
        return (replace(case, rounds=_ROUNDS),)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare the rows of the last round, and what was held after each round."""
        found = judge_rows(compare_tokens, case, expected, answers, place_of)
        if any(trace.fault is not None for trace in answers.traces):
            return found  # the rounds were not driven to their end
        said = sum(len(trace.tokens) for trace in answers.traces)
        return (*found, *_judge_growth(place_of(0), answers, said))


def _judge_growth(place: Place, answers: Answers, said: int) -> tuple[Comparison, ...]:
    """Return a comparison where something grew, or could not be told; else none.

    Args:
        place: Of the first row, which speaks for all.
        answers: With what was held after each round.
        said: Tokens of one round.
    """
    rounds = place.case.rounds
    held = answers.growth[len(answers.growth) // _WARM_UP :]
    if len(answers.growth) < rounds or len(held) < _WARM_UP:
        why = f"what is held was measured after {len(answers.growth)} of {rounds} rounds"
        return (without_verdict(place, why),)
    memory = slope([each.memory for each in held])
    # Something for every request may be a log; something for every token is a leak.
    most = max(slope([each.objects for each in held]), slope([each.items for each in held]))
    grown = [f"{human(round(memory))} of MLX's memory"] if memory > 0 else []
    grown += [counted(round(most), "object")] if most >= said / 2 else []
    if not grown:
        return ()
    what = f"grows by {' and '.join(grown)} a round of the same requests"
    text = _told(place, what, held, said)
    return (replace(blank(place), verdict=Verdict.WRONG, message=text),)


def _told(place: Place, what: str, held: Sequence[Held], said: int) -> str:
    """Explain what grew, from the first round after the warm-up to the last."""
    first, last = held[0], held[-1]
    return "\n".join(
        (
            f"{place.case.prompts[0].id}, check {place.check}: {place.candidate} {what}",
            f"  measured after each of {counted(len(held), 'round')}, none in flight",
            f"  {counted(said, 'token')} are said in a round",
            f"  MLX's active memory: {human(first.memory)} first, {human(last.memory)} last",
            f"  Python's small objects: {first.objects:,} first, {last.objects:,} last",
            f"  items of lists, dicts and sets: {first.items:,} first, {last.items:,} last",
            f"  again: {place.again}",
        )
    )


def slope(values: Sequence[int]) -> float:
    """Return what is added in each round, or 0 where it does not rise nearly every time.

    The median of the slopes of all pairs (Theil and Sen): a single step does not move it far.
    """
    rises = [later > earlier for earlier, later in itertools.pairwise(values)]
    if sum(rises) < _RISING * len(rises):
        return 0.0
    return statistics.median(
        (values[later] - values[earlier]) / (later - earlier)
        for earlier, later in itertools.combinations(range(len(values)), 2)
    )
