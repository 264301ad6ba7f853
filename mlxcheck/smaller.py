"""Smaller cases than a given one: fewer rows, shorter prompts, fewer events, earlier steps.

Pure: what of it still fails is found out elsewhere. Each cut gives its boldest case first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from mlxcheck.records import Case, Moment, Prompt, Schedule

if TYPE_CHECKING:
    from mlxcheck.records import Comparison

__all__ = ["CUTS", "Cut", "after", "parts", "prompt_tokens", "size", "without_rows"]

Cut = Callable[[Case, "Comparison", Sequence[Prompt]], Iterator[Case]]
"""Gives smaller cases of a case: it gets what failed there, and the prompts with an answer of
the reference's, shortest first."""

T = TypeVar("T")

_MORE = 4
"""How many times as many earlier cases are taken in where fewer did not do."""

_PART = ".part-"
"""Stands in the ids of company that is a prompt's beginning: nobody has such an answer."""


def size(case: Case, max_tokens: int) -> tuple[int, ...]:
    """Return what makes a case large, the weightiest first; smaller ones compare as less."""
    moments = [moment for _, _, moment in _events(case)]
    budgets = [_most(case, row) or max_tokens for row in range(len(case.prompts))]
    return (
        len(case.prompts),
        prompt_tokens(case),
        len(moments),
        case.rounds,
        # A larger chunk is a case of fewer calls, and none at all the plainest.
        0 if case.chunk is None else sys.maxsize - case.chunk,
        sum(moment.steps + (moment.tokens or 0) for moment in moments),
        sum(budgets),
    )


def prompt_tokens(case: Case) -> int:
    """Return the tokens of all prompts, with what is given of their answers."""
    return sum(len(prompt.tokens) for prompt in case.prompts) + sum(case.given)


def without_rows(case: Case, gone: Sequence[int]) -> Case:
    """Return a case without some rows: who waited for one joins when that one would have."""
    kept = [row for row in range(len(case.prompts)) if row not in set(gone)]
    places = {row: place for place, row in enumerate(kept)}
    joins = case.schedule.joins if case.schedule else ()

    def moved(moment: Moment | None) -> Moment | None:
        for _ in gone:
            if moment is not None and moment.row not in places:
                moment = joins[moment.row]
        if moment is None or moment.row not in places:
            return None
        return replace(moment, row=places[moment.row])

    schedule = case.schedule and Schedule(
        joins=tuple(moved(joins[row]) for row in kept),
        leaves=tuple(
            moved(moment) if moment and moment.row in places else None
            for moment in (case.schedule.leaves[row] for row in kept)
        ),
    )
    return replace(
        case,
        prompts=tuple(case.prompts[row] for row in kept),
        schedule=schedule if schedule and schedule.events else None,
        given=_plain(_given(case, row) for row in kept),
        most=_plain(_most(case, row) for row in kept),
    )


def after(case: Case, before: Sequence[Case]) -> Iterator[Case]:
    """Give a case that waits for what was driven before it: the last one, four, and so on.

    What an engine still holds of earlier requests may be why it fails. All become one case,
    in which each waits for the one before; the case's own rows keep their numbers. What came
    before an engine was opened anew is of no matter.

    Args:
        case: What failed.
        before: What was driven before it, in order.
    """
    before = _since_opened((*before, case))
    number = 1
    while before:
        yield _in_line(case, before[-number:])
        if number >= len(before):
            return
        number *= _MORE


def _since_opened(cases: Sequence[Case]) -> Sequence[Case]:
    """Return all but the last of the cases that the same engine was asked as the last."""
    start = max((n for n, each in enumerate(cases) if each.fresh), default=0)
    return cases[start:-1]


def _in_line(case: Case, before: Sequence[Case]) -> Case:
    pieces = [case, *before]
    starts = [sum(len(each.prompts) for each in pieces[:n]) for n in range(len(pieces))]
    joins: list[Moment | None] = []
    leaves: list[Moment | None] = []
    for number, (piece, start) in enumerate(zip(pieces, starts, strict=True)):
        # The case comes first by number and last by time; of the others each follows the last.
        end = start if number else starts[-1] + len(pieces[-1].prompts)
        wait = None if number == 1 else Moment(row=end - 1)
        rows = range(len(piece.prompts))
        own = piece.schedule or Schedule(joins=(None,) * len(rows), leaves=(None,) * len(rows))
        joins += [_moved(moment, start) or wait for moment in own.joins]
        leaves += [_moved(moment, start) for moment in own.leaves]
    return replace(
        case,
        prompts=tuple(prompt for piece in pieces for prompt in piece.prompts),
        schedule=Schedule(joins=tuple(joins), leaves=tuple(leaves)),
        given=_plain([each for piece in pieces for each in _all(piece, piece.given)]),
        most=_plain([each for piece in pieces for each in _all(piece, piece.most)]),
    )


def _moved(moment: Moment | None, by: int) -> Moment | None:
    return moment and replace(moment, row=moment.row + by)


def parts(prompt: Prompt) -> tuple[Prompt, ...]:
    """Return beginnings and ends of a prompt: of half its length, a quarter, down to one."""
    out: list[Prompt] = []
    length = len(prompt.tokens) // 2
    while length:
        first, last = prompt.tokens[:length], prompt.tokens[-length:]
        out.append(Prompt(id=f"{prompt.id}.first-{length}", tokens=first))
        out.append(Prompt(id=f"{prompt.id}.last-{length}", tokens=last))
        length //= 2
    return tuple(out)


def _fewer_rows(case: Case, found: Comparison, pool: Sequence[Prompt]) -> Iterator[Case]:
    del pool
    others = [row for row in range(len(case.prompts)) if row != found.row]
    width = len(others)
    while width:
        for start in range(0, len(others), width):
            yield without_rows(case, others[start : start + width])
        width //= 2


def _fewer_events(case: Case, found: Comparison, pool: Sequence[Prompt]) -> Iterator[Case]:
    del found, pool
    if case.schedule is None:
        return
    yield replace(case, schedule=None)
    for what, row, _ in _events(case):
        yield _with_moment(case, what, row, None)
    for what, row, moment in _events(case):
        yield _with_moment(case, what, row, replace(moment, steps=0))
        for tokens in sorted({0, 1, (moment.tokens or 0) // 2}):
            if moment.tokens:
                yield _with_moment(case, what, row, replace(moment, tokens=tokens))


def _plainer(case: Case, found: Comparison, pool: Sequence[Prompt]) -> Iterator[Case]:
    """One round, the engine's own chunks or larger ones, no part of an answer given."""
    del found, pool
    for rounds in sorted({1, case.rounds // 2} - {0}):
        yield replace(case, rounds=rounds)
    if case.chunk is not None:
        yield replace(case, chunk=None)
        longest = max(len(prompt.tokens) for prompt in case.prompts) + max(
            case.given, default=0
        )
        larger = 1 << longest.bit_length()
        while larger > case.chunk:
            yield replace(case, chunk=larger)
            larger //= 2
    if any(case.given):
        yield replace(case, given=())
        for row, given in enumerate(case.given):
            if given:
                yield replace(case, given=_set(case.given, row, 0))
                yield replace(case, given=_set(case.given, row, given // 2))


def _shorter_company(case: Case, found: Comparison, pool: Sequence[Prompt]) -> Iterator[Case]:
    del pool
    others = [row for row in range(len(case.prompts)) if row != found.row]
    for rows in [others, *([row] for row in others)]:
        longest = max((len(case.prompts[row].tokens) for row in rows), default=0)
        length = 1
        while length < longest:
            yield _cut_off(case, rows, length)
            length *= 2


def _shorter_prompt(case: Case, found: Comparison, pool: Sequence[Prompt]) -> Iterator[Case]:
    row = found.row
    for prompt in pool:
        if len(prompt.tokens) >= len(case.prompts[row].tokens) + _given(case, row):
            return
        yield replace(
            case,
            prompts=_set(case.prompts, row, prompt),
            given=_plain(_set(_all(case, case.given), row, 0)),
            # Where it fails in another prompt's answer is not known yet.
            most=_plain(_set(_all(case, case.most), row, 0)),
        )


def _fewer_tokens(case: Case, found: Comparison, pool: Sequence[Prompt]) -> Iterator[Case]:
    """Let company say little, and the failing row nothing after the step that fails."""
    del pool
    others = [row for row in range(len(case.prompts)) if row != found.row]
    most = _all(case, case.most)
    if found.step is not None:
        yield replace(case, most=_set(most, found.row, found.step + 1))
    for rows in [others, *([row] for row in others), [found.row]]:
        for fewer in (1, 2, 4, 8, 16, 32) if rows else ():
            cut = [fewer if row in rows else own for row, own in enumerate(most)]
            yield replace(case, most=tuple(cut))


CUTS: tuple[Cut, ...] = (
    _fewer_rows,
    _fewer_events,
    _plainer,
    _shorter_company,
    _shorter_prompt,
    _fewer_tokens,
)
"""All cuts, in the order in which they are tried: what makes later probes cheap comes first."""


def _events(case: Case) -> list[tuple[str, int, Moment]]:
    schedule = case.schedule
    if schedule is None:
        return []
    pairs = (("joins", schedule.joins), ("leaves", schedule.leaves))
    return [(what, row, at) for what, moments in pairs for row, at in enumerate(moments) if at]


def _with_moment(case: Case, what: str, row: int, moment: Moment | None) -> Case:
    schedule = case.schedule
    assert schedule is not None  # noqa: S101 - events are those of a schedule
    joins, leaves = schedule.joins, schedule.leaves
    if what == "joins":
        schedule = replace(schedule, joins=_set(joins, row, moment))
    else:
        schedule = replace(schedule, leaves=_set(leaves, row, moment))
    return replace(case, schedule=schedule if schedule.events else None)


def _cut_off(case: Case, rows: Sequence[int], length: int) -> Case:
    prompts = list(case.prompts)
    given = list(_all(case, case.given))
    for row in rows:
        whole = prompts[row]
        if len(whole.tokens) > length:
            name = f"{whole.id.partition(_PART)[0]}{_PART}{length}"
            prompts[row] = Prompt(id=name, tokens=whole.tokens[:length])
            given[row] = 0  # it has no answer of which a part could be given
    return replace(case, prompts=tuple(prompts), given=_plain(given))


def _given(case: Case, row: int) -> int:
    return case.given[row] if case.given else 0


def _most(case: Case, row: int) -> int:
    return case.most[row] if case.most else 0


def _all(case: Case, numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers or (0,) * len(case.prompts)


def _plain(numbers: Iterator[int] | Sequence[int]) -> tuple[int, ...]:
    """Return numbers of which one at least says something, or none."""
    kept = tuple(numbers)
    return kept if any(kept) else ()


def _set(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])
