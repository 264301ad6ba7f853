"""Hypothesis strategies: prompts, batches, schedules and whole cases, for tests of your own.

They shrink to the fewest rows, nobody who joins or leaves, and the shortest prompts. What is
drawn for a row stands together and points to earlier rows by distance, so that a row can be
taken out without changing what the others mean.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from mlxcheck.records import Case, Moment, Prompt, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.checks.base import Grounds

__all__ = ["batches", "cases", "moments", "named", "prompts", "schedules", "simplest"]

_ROWS = 5
_TOKENS = 12
"""The latest moment of a row, in tokens: answers of the packaged prompts are about as long."""

_STEPS = 3
_GIVEN = 8
_COMPANY = 4
_CHUNKS = (64, 16, 7, 3)


def prompts(
    vocab_size: int, *, min_length: int = 1, max_length: int = 64
) -> st.SearchStrategy[Prompt]:
    """Draw prompts of any ids; the shortest of the lowest ids is the simplest.

    Args:
        vocab_size: Ids are below it.
        min_length: The fewest ids.
        max_length: The most ids.

    Example::

        @given(prompts(vocab_size=1000, max_length=8))
        def test_my_cache_key(prompt):
            assert my_key(prompt.tokens) == my_key(list(prompt.tokens))
    """
    ids = st.integers(min_value=0, max_value=vocab_size - 1)
    drawn = st.lists(ids, min_size=min_length, max_size=max_length)
    return drawn.map(lambda tokens: Prompt(id=f"drawn-{_digest(tokens)}", tokens=tuple(tokens)))


def batches(prompts: Sequence[Prompt], max_rows: int) -> st.SearchStrategy[tuple[Prompt, ...]]:
    """Draw prompts to be submitted together, the same one perhaps twice.

    Args:
        prompts: What to draw from, at least one; the shortest is the simplest.
        max_rows: The most rows; there is always one.

    Example::

        @given(batches(my_prompts, max_rows=4))
        def test_my_engine(batch):
            assert len(my_generate([list(prompt.tokens) for prompt in batch], 8)) == len(batch)
    """
    rows = st.lists(st.sampled_from(_shortest_first(prompts)), min_size=1, max_size=max_rows)
    return rows.map(tuple)


def moments(
    rows: Sequence[int], *, max_tokens: int = _TOKENS, max_steps: int = _STEPS
) -> st.SearchStrategy[Moment]:
    """Draw moments that one of these rows brings about; the end of the first is the simplest.

    Args:
        rows: Whose doings tell the moment, at least one.
        max_tokens: The most tokens that it has said by then.
        max_steps: The most steps of the engine since.

    Example::

        @given(moments([0], max_tokens=4))
        def test_my_scheduler(moment):
            assert moment.row == 0 and (moment.tokens is None or moment.tokens <= 4)
    """
    said = st.builds(
        Moment,
        row=st.sampled_from(list(rows)),
        tokens=st.integers(0, max_tokens),
        steps=st.integers(0, max_steps),
    )
    # Once a row has ended there is nothing to count steps by that all engines share.
    ended = st.builds(Moment, row=st.sampled_from(list(rows)))
    return said | ended


@st.composite
def schedules(
    draw: st.DrawFn, rows: int, *, joins: bool = True, leaves: bool = True
) -> Schedule:
    """Draw who joins and who leaves when; nobody is the simplest.

    Row 0 is there from the start, and a row that joins waits for an earlier one, so every
    row gets its turn. A row leaves at a moment of any row, its own too.

    Args:
        draw: Hypothesis gives it.
        rows: Of the case.
        joins: Whether rows may join late.
        leaves: Whether rows may leave early.

    Example::

        @given(schedules(3, leaves=False))
        def test_my_scheduler(schedule):
            assert schedule.joins[0] is None and not any(schedule.leaves)
    """
    coming = [
        draw(st.none() | moments(range(row))) if joins and row else None for row in range(rows)
    ]
    going = [draw(st.none() | moments(range(rows))) if leaves else None for _ in range(rows)]
    return Schedule(joins=tuple(coming), leaves=tuple(going))


def cases(grounds: Grounds) -> st.SearchStrategy[Case]:
    """Draw whole cases: rows, company, lengths, chunks and a schedule that can come about.

    Rows are prompts that the reference has answered, some of them with the beginning of that
    answer at their end (`Case.given`) or a shorter answer (`Case.most`). Company begins as
    one of them and ends as another, so that caches of prefixes are met in all ways. One row
    with nothing else is the simplest. The id tells a case by its content.

    Args:
        grounds: What a plan is made from, with at least one prompt in `Grounds.expected`.

    Example::

        @given(cases(grounds))
        def test_my_planner(case):
            assert len(my_plan(case.prompts)) == len(case.prompts)
    """
    can = grounds.capabilities
    sizes = st.none() | st.sampled_from(_CHUNKS) if can.sets_prefill_chunk else st.none()
    return st.builds(
        lambda drawn, chunk: _case(drawn, chunk, grounds, alone=not can.batch),
        _drawn(st.sampled_from(_answered(grounds))),
        sizes,
    )


def simplest(grounds: Grounds) -> Case | None:
    """Return what `cases` draws first and shrinks to; None where there is nothing to draw from.

    Args:
        grounds: As for `cases`.
    """
    known = _answered(grounds)
    if not known:
        return None
    return _case([_Row(known[0], None, 0, 0, None, None)], None, grounds, alone=False)


def named(case: Case) -> Case:
    """Return a case under the id that tells its content."""
    return replace(case, id=f"search/{_digest(replace(case, id=''))}")


@dataclass(frozen=True, slots=True)
class _Timed:
    """A moment as it is drawn: of the row so many places before.

    Attributes:
        back: Counted from the nearest row that can be meant, and round again.
        tokens: As in `Moment`, cut down to what that row says.
        steps: As in `Moment`.
    """

    back: int
    tokens: int | None
    steps: int


@dataclass(frozen=True, slots=True)
class _Row:
    """What is drawn for one row.

    Attributes:
        prompt: One that the reference has answered.
        crossed: What it ends as instead, and how much of its beginning stays: then it is
            company, without an answer to be given or judged. The first row never is.
        given: As in `Case`, cut down to its answer.
        most: As in `Case`.
        join: When it is submitted, unless it is the first.
        leave: When it is cancelled.
    """

    prompt: Prompt
    crossed: tuple[Prompt, int] | None
    given: int
    most: int
    join: _Timed | None
    leave: _Timed | None


def _drawn(answered: st.SearchStrategy[Prompt]) -> st.SearchStrategy[list[_Row]]:
    """Draw the rows of a case, all from one list: any can be taken out."""
    back = st.integers(0, _ROWS - 1)
    said = st.builds(_Timed, back, st.integers(0, _TOKENS), st.integers(0, _STEPS))
    ended = st.builds(_Timed, back, st.none(), st.just(0))
    own = st.builds(_Timed, st.just(0), st.integers(1, _TOKENS), st.just(0))
    part = st.just(0) | st.just(0) | st.integers(1, _GIVEN)
    row = st.builds(
        _Row,
        prompt=answered,
        crossed=st.none() | st.none() | st.tuples(answered, st.integers(1, 64)),
        given=part,
        most=part,
        join=st.none() | said | ended,
        # To leave is dearer than to join: what a row has not said cannot be compared.
        leave=st.none() | st.none() | own | said,
    )
    # Two draws of three have three rows or more: most of what can differ wants company.
    few, many = (st.lists(row, min_size=least, max_size=_ROWS) for least in (1, 3))
    return few | many | many


def _crossed(head: Prompt, tail: Prompt, keep: int) -> Prompt:
    """Return a prompt that begins as one and ends as another, no longer than the first."""
    keep = min(keep, len(head.tokens) - 1)
    rest = tail.tokens[-(len(head.tokens) - keep) :]
    return Prompt(id=f"{head.id}[:{keep}]{tail.id}", tokens=head.tokens[:keep] + rest)


def _case(drawn: Sequence[_Row], chunk: int | None, grounds: Grounds, *, alone: bool) -> Case:
    """Put rows together; moments that could not come are moved to where they can."""
    prompts, given, most, says = [], [], [], []
    for number, row in enumerate(drawn):
        company = row.crossed if number else None
        prompts.append(_crossed(row.prompt, *company) if company else row.prompt)
        trace = grounds.expected.get(prompts[-1].id)
        given.append(min(row.given, len(trace.tokens) - 1) if trace else 0)
        most.append(row.most if trace else row.most or _COMPANY)
        # Of company no more is known than that it says something.
        left = len(trace.tokens) - given[-1] if trace else 1
        says.append(min(left, most[-1] or left))
    leaves = [_leave(row.leave, number, says) for number, row in enumerate(drawn)]
    for number, moment in enumerate(leaves):
        if moment is not None and moment.row == number:
            says[number] = max(1, moment.tokens or 0)
    joins = [_moment(row.join, number - 1, number, says) for number, row in enumerate(drawn)]
    if alone:  # one at a time: each waits for the one before
        joins = [None, *(Moment(row=number) for number in range(len(drawn) - 1))]
    schedule = Schedule(joins=tuple(joins), leaves=tuple(leaves))
    case = Case(
        id="search",
        prompts=tuple(prompts),
        schedule=schedule if schedule.events else None,
        given=tuple(given) if any(given) else (),
        most=tuple(most) if any(most) else (),
        chunk=chunk,
    )
    return named(case)


def _leave(timed: _Timed | None, row: int, says: Sequence[int]) -> Moment | None:
    moment = _moment(timed, row, len(says), says)
    if moment is not None and moment.row == row and not moment.tokens:
        return None  # it has no token to say before its last
    return moment


def _moment(
    timed: _Timed | None, nearest: int, among: int, says: Sequence[int]
) -> Moment | None:
    """Return the moment that is meant among the first so many rows; None where none is."""
    if timed is None or not among:
        return None
    row = (nearest - timed.back) % among
    if timed.tokens is None:
        return Moment(row=row)
    tokens = min(timed.tokens, says[row] - 1)
    return Moment(row=row, tokens=tokens, steps=min(timed.steps, says[row] - 1 - tokens))


def _answered(grounds: Grounds) -> list[Prompt]:
    answered = [prompt for prompt in grounds.prompts if prompt.id in grounds.expected]
    return _shortest_first(answered)


def _shortest_first(prompts: Sequence[Prompt]) -> list[Prompt]:
    return sorted(prompts, key=lambda prompt: (len(prompt.tokens), prompt.id))


def _digest(content: object) -> str:
    return hashlib.blake2s(repr(content).encode(), digest_size=6).hexdigest()
