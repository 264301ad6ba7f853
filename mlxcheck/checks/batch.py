"""Batch isolation: a prompt in company says what it says alone.

Sizes 1 (the batch path with one row: a batch cache can be wrong without a neighbour), 2, 3,
5 and 8 (coprime, and both sides of the row counts where kernels change), and one more row
than the engine decodes at once, so that requests have to wait and join.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from mlxcheck.checks.base import (
    Effort,
    Expected,
    Grounds,
    PlaceOf,
    compare_in_company,
    longest_first,
    not_formed,
    single,
)
from mlxcheck.compare import without_verdict
from mlxcheck.records import Case, Comparison, Prompt, Trace, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.session import Answers

__all__ = ["Batch", "extremes", "groups"]

_SIZES = (8, 5, 3, 2)

_MOST_ROWS = 64  # a limit above this is not exceeded: one case would outweigh the run


class Batch:
    """Submit prompts together and compare each row with the reference's lone answer."""

    name = "batch"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse engines that take one request at a time."""
        return None if capabilities.batch else "the backend takes one request at a time"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return groups of every size, with equal, shorter and longer neighbours.

        A standard plan deals each prompt into one group and costs about three times the
        decoding of the prompts alone, on an engine that gains nothing from batching; a
        thorough one deals every prompt into every size, in both orders.
        """
        effort = grounds.effort
        by_length = longest_first(grounds.prompts)
        cases = [*_single(by_length, effort)]
        cases += groups(by_length, effort, grounds.seed)
        cases += extremes(by_length)
        cases += _equal_lengths(by_length)
        cases += _same(by_length)
        if effort != "quick":
            cases += _over(by_length, grounds.capabilities.max_batch)
        return tuple(cases)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare each row, and each row of equal prompts with the first of them."""
        out: list[Comparison] = []
        apart = not_formed(case, expected, answers)
        first: dict[str, int] = {}
        for row, (prompt, actual) in enumerate(zip(case.prompts, answers.traces, strict=True)):
            twin = first.setdefault(prompt.id, row)
            trace = expected.get(prompt.id)
            if trace is None:
                continue
            place = place_of(row)
            found = compare_in_company(place, trace, actual)
            if apart and found.verdict in {Verdict.EXACT, Verdict.TIE}:
                found = without_verdict(place, apart)
            if twin != row:
                found = _with_twin(found, twin, answers.traces[twin], actual)
            out.append(found)
        return tuple(out)


def _with_twin(found: Comparison, twin: int, one: Trace, other: Trace) -> Comparison:
    """Say so where rows that hold the same prompt differ: this needs no reference."""
    if found.verdict is not Verdict.WRONG or one.tokens == other.tokens:
        return found
    line = f"  row {twin} of the same batch holds the same prompt and says something else"
    head, _, rest = found.message.partition("\n")
    return replace(found, message=f"{head}\n{line}\n{rest}")


def _single(by_length: Sequence[Prompt], effort: Effort) -> Iterator[Case]:
    every = max(1, len(by_length) // 2) if effort == "quick" else 1
    yield from (single(prompt) for prompt in by_length[::every])


def groups(by_length: Sequence[Prompt], effort: Effort, seed: int) -> Iterator[Case]:
    """Return groups of every size.

    Args:
        by_length: The prompts, longest first.
        effort: Quick: one group of each size. Standard: each prompt in one group. Thorough:
            each prompt in a group of every size.
        seed: Deals them.
    """
    if effort == "thorough":
        for size in _SIZES:
            yield from _groups(by_length, (size,), seed, both=True)
        return
    dealt = _groups(by_length, _SIZES, seed, both=effort != "quick")
    yield from islice(dealt, len(_SIZES)) if effort == "quick" else dealt


def _groups(
    by_length: Sequence[Prompt], sizes: Sequence[int], seed: int, *, both: bool
) -> Iterator[Case]:
    """Deal every prompt once, into groups of these sizes in turn.

    Each group takes the longest prompts that are left and one of the shortest: the padding
    is as uneven as it can be, and long prompts, whose length every row of a padded batch
    pays for, share few groups. The last group of each size, the cheapest, is run in both
    orders.
    """
    groups = list(_deal(by_length, sizes, seed))
    last = {len(group): number for number, group in enumerate(groups)}
    for number, group in enumerate(groups):
        name = f"batch-{len(group)}/{number}"
        yield Case(id=name, prompts=group)
        if both and last[len(group)] == number:
            yield Case(id=f"{name}-reversed", prompts=group[::-1])


def _deal(
    by_length: Sequence[Prompt], sizes: Sequence[int], seed: int
) -> Iterator[tuple[Prompt, ...]]:
    # Prompts of about one length change places from seed to seed, and so get new neighbours.
    left = sorted(
        by_length,
        key=lambda prompt: (-len(prompt.tokens).bit_length(), _drawn(f"{seed}/{prompt.id}")),
    )
    for number, size in enumerate(cycle(sizes)):
        if not left and number >= len(sizes):
            return
        group = [left.pop() if left else by_length[-1]]
        while len(group) < size:
            # What few prompts leave open is filled up from the shortest of all.
            group.append(left.pop(0) if left else by_length[-len(group) % len(by_length)])
        group.sort(key=lambda prompt: _drawn(f"{seed}/{number}/{prompt.id}"))
        yield tuple(group)


def _drawn(key: str) -> float:
    """Return a number below 1 that depends on *key* alone."""
    return random.Random(key).random()  # noqa: S311 - no secret


def extremes(by_length: Sequence[Prompt]) -> Iterator[Case]:
    """The shortest beside the longest: the most padding that these prompts can make."""
    long, short = by_length[0], by_length[-1]
    if len(short.tokens) < len(long.tokens):
        yield Case(id="batch-2/short-long", prompts=(short, long))
        yield Case(id="batch-2/long-short", prompts=(long, short))


def _equal_lengths(by_length: Sequence[Prompt]) -> Iterator[Case]:
    """Different prompts of one length: no padding, so a fault here is none of the mask's."""
    groups: dict[int, list[Prompt]] = {}
    for prompt in by_length:
        groups.setdefault(len(prompt.tokens), []).append(prompt)
    largest = max(groups.values(), key=len)
    if len(largest) > 1:
        yield Case(id=f"batch-{min(5, len(largest))}/equal-length", prompts=tuple(largest[:5]))


def _same(by_length: Sequence[Prompt]) -> Iterator[Case]:
    """One prompt in every row: all rows must be equal, whatever the reference says."""
    middle, longest = by_length[len(by_length) // 2], by_length[0]
    yield Case(id=f"batch-5/same-{middle.id}", prompts=(middle,) * 5)
    if longest.id != middle.id:
        yield Case(id=f"batch-2/same-{longest.id}", prompts=(longest,) * 2)


def _over(by_length: Sequence[Prompt], limit: int | None) -> Iterator[Case]:
    """One row more than the engine decodes at once; all prompts where no limit is known.

    Of the shorter half, over and over: what is asked is who waits and who joins, and a long
    prompt would only make every row dearer.
    """
    rows = len(by_length) if limit is None else limit + 1
    if 1 < rows <= _MOST_ROWS:
        shorter = by_length[len(by_length) // 2 :]
        yield Case(id=f"batch-{rows}/over", prompts=tuple(islice(cycle(shorter), rows)))
