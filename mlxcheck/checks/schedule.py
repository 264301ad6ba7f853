"""Joining and leaving: a row says what it says alone, whoever comes and goes meanwhile.

Moments are told by what rows have said, so that a schedule is the same for every engine. It
takes rows that live long enough for something to happen: prompts are chosen by the lengths
of their answers, as the reference gave them, and of different lengths, since a row that
takes over another one's place shows only where the two are unlike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from mlxcheck.checks.base import (
    Expected,
    Grounds,
    PlaceOf,
    compare_in_company,
    judge_rows,
    longest_first,
    not_formed,
)
from mlxcheck.checks.prefix import departing, words
from mlxcheck.records import Case, Comparison, Moment, Prompt, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.session import Answers

__all__ = ["Schedules"]

_ROWS = 5
_ALIVE = 10  # tokens of an answer in which enough can come and go, and as many as are asked
_SLOW = 48  # tokens of a prompt that is read in several calls
_CALLS = 4  # of prefill, for a prompt that others are to come or go beside
_MOST_ROWS = {"standard": 32, "thorough": 64}  # of a crowd, which would outweigh the run
_CROWD = (6, 8, 7)  # tokens of its answers, in turn: it fills up, and rows end one by one

_PLACES = ("front", "middle", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """One row of a case: see `Case.prompts`, `Case.most` and `Schedule`."""

    prompt: Prompt
    most: int = _ALIVE
    join: Moment | None = None
    leave: Moment | None = None


class Schedules:
    """Let requests join and leave at chosen moments, and compare all rows."""

    name = "schedule"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse engines that take one request at a time, or all in one call."""
        if not capabilities.batch:
            return "the backend takes one request at a time"
        if not capabilities.joins:
            return "the backend takes requests whole: none can join or leave beside others"
        return None

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return cases of each kind of joining and leaving.

        A quick plan has the commonest of them with few rows; a standard one every kind
        once, with answers that are cut short; a thorough one has every prompt join
        another one, and every prompt come and go in groups, to the ends of their answers.
        """
        cast = _Cast(grounds)
        if not cast.known:
            return ()  # nothing would be compared
        if grounds.effort == "quick":
            few = [replace(seat, most=8) for seat in cast.seats(3)]
            joins = (*_join_decode(cast, cast.known[0]), *_join_end(cast))
            return (*joins, *_leave("middle", few, cast, 0))
        cases = [case for prompt in cast.joiners() for case in _join_decode(cast, prompt)]
        cases += _join_end(cast)
        for prompt in cast.slow():
            cases += _join_prefill(cast, prompt)
            cases += _leave_prefill(cast, prompt)
        for number, seats in enumerate(cast.groups()):
            cases += _staggered(seats, cast, number)
            for place in _PLACES:
                cases += _leave(place, seats, cast, number)
            cases += _reuse(seats, cast, number)
        cases += _leave_waiting(cast)
        cases += _crowd(cast)
        return tuple(cases)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare each row, where all came and went as they were to."""
        why = _missed(case, answers) or _not_split(case, answers)
        why = why or not_formed(case, expected, answers)
        return judge_rows(
            compare_in_company, case, expected, answers, place_of, not_engaged=why
        )


class _Cast:
    """The prompts of a run, by what they are good for.

    Attributes:
        grounds: Of the plan.
        known: The prompts that have a reference, shortest first.
        every: Whether there is time for all of them.
    """

    def __init__(self, grounds: Grounds) -> None:
        self.grounds = grounds
        by_length = longest_first(grounds.prompts)[::-1]
        self.known = [prompt for prompt in by_length if prompt.id in grounds.expected]
        self.every = grounds.effort == "thorough"
        self._dear = 2 * len(by_length[len(by_length) // 2].tokens)
        # Company has no answer that is known, so it comes last and fills what is left open.
        self._ranked = sorted(
            by_length, key=lambda each: (-min(self.said(each), _ALIVE), self._drawn(each))
        )

    def said(self, prompt: Prompt) -> int:
        """Return the length of the reference's answer; one token where there is none."""
        trace = self.grounds.expected.get(prompt.id)
        return len(trace.tokens) if trace else 1

    def tick(self, seat: _Seat, most: int) -> int:
        """Return after how many tokens of a row something may happen while it goes on.

        At half of its answer at the latest: an engine may say two tokens a step.
        """
        said = self.said(seat.prompt)
        return min(most, min(said, seat.most or said) // 2)

    def talkers(self, count: int) -> list[Prompt]:
        """Return prompts with long answers, unlike in length, shorter ones first."""
        able = [prompt for prompt in self._ranked if self.said(prompt) >= _ALIVE]
        cheap = [prompt for prompt in able if len(prompt.tokens) <= self._dear]
        able = next((each for each in (cheap, able) if len(each) >= count), self._ranked)
        lengths = {len(prompt.tokens): prompt for prompt in reversed(able)}
        apart = [lengths[length] for length in sorted(lengths)]
        if len(apart) > count > 1:
            apart = [apart[n * (len(apart) - 1) // (count - 1)] for n in range(count)]
        rest = [prompt for prompt in able if prompt not in apart]
        return list(islice(cycle([*apart, *rest]), count))

    def seats(self, count: int) -> list[_Seat]:
        """Return rows for prompts with long answers."""
        return [_Seat(prompt=prompt) for prompt in self.talkers(count)]

    def groups(self) -> list[list[_Seat]]:
        """Return the rows that come and go: with much time all prompts, and whole answers."""
        if not self.every:
            return [self.seats(_ROWS)]
        dealt = sorted(self.known, key=self._drawn)
        return [
            [_Seat(prompt=each, most=0) for each in islice(cycle(dealt), at, at + _ROWS)]
            for at in range(0, len(dealt), _ROWS)
        ]

    def joiners(self) -> list[Prompt]:
        """Return who joins a row that decodes: one short, one middling, one long."""
        if self.every:
            return self.known
        long = [prompt for prompt in self.known if len(prompt.tokens) >= _SLOW]
        chosen = [self.known[0], self.known[len(self.known) // 2], (long or self.known)[0]]
        return list({prompt.id: prompt for prompt in chosen}.values())

    def beside(self, prompt: Prompt) -> Prompt:
        """Return a prompt with a long answer that is unlike another in length, if any is."""
        able = self.talkers(_ROWS)
        unlike = [each for each in able if len(each.tokens) != len(prompt.tokens)]
        return (unlike or [each for each in able if each != prompt] or able)[0]

    def slow(self) -> list[Prompt]:
        """Return who can be read in several calls: a cheap one, with much time two.

        None where the engine cannot be told to, and reads even the longest in one.
        """
        can = self.grounds.capabilities
        least = _CALLS + 1 if can.sets_prefill_chunk else (can.prefill_chunk or 0) + 2
        if not can.sets_prefill_chunk and can.prefill_chunk is None:
            return []
        fit = [prompt for prompt in self.known if len(prompt.tokens) >= least]
        fit = [prompt for prompt in fit if len(prompt.tokens) >= _SLOW] or fit[-1:]
        return [*fit[:1], *(fit[-1:] if self.every and len(fit) > 1 else [])]

    def unread(self, prompt: Prompt, key: str) -> Prompt:
        """Return a prompt that has to be read: where prefixes are cached, a new one."""
        if self.grounds.capabilities.prefix_cache and len(words(self.grounds)) > 1:
            return departing(prompt, 0, self.grounds, key)
        return prompt

    def chunk(self, prompt: Prompt) -> int | None:
        """Return the chunks for a prompt to be read in; None: the engine's own."""
        told = self.grounds.capabilities.sets_prefill_chunk
        return max(1, len(prompt.tokens) // _CALLS) if told else None

    def _drawn(self, prompt: Prompt) -> float:
        key = f"{self.grounds.seed}/{prompt.id}"
        return random.Random(key).random()  # noqa: S311 - no secret


def _case(name: str, seats: Sequence[_Seat], chunk: int | None = None) -> Case:
    return Case(
        id=f"schedule/{name}",
        prompts=tuple(seat.prompt for seat in seats),
        schedule=Schedule(
            joins=tuple(seat.join for seat in seats), leaves=tuple(seat.leave for seat in seats)
        ),
        most=tuple(seat.most for seat in seats),
        chunk=chunk,
    )


# --- Joining --------------------------------------------------------------------------------


def _join_decode(cast: _Cast, prompt: Prompt) -> Iterator[Case]:
    """One row decodes, and another one comes."""
    first = _Seat(prompt=cast.beside(prompt))
    if at := cast.tick(first, 2):
        second = _Seat(prompt=prompt, join=Moment(row=0, tokens=at))
        yield _case(f"join-decode/{prompt.id}", [first, second])


def _join_end(cast: _Cast) -> Iterator[Case]:
    """One row stops by itself, another goes on, and a third one comes right then."""
    stops = [each for each in cast.known if cast.grounds.expected[each.id].finish == "stop"]
    brief = min(stops or cast.known, key=lambda each: (cast.said(each), each.id))
    goes_on = cast.beside(brief)
    most = min(cast.said(brief), _ALIVE)
    comes = next((each for each in cast.talkers(_ROWS) if each not in {brief, goes_on}), brief)
    seats = [
        _Seat(prompt=brief, most=most if most < cast.said(brief) else 0),
        _Seat(prompt=goes_on, most=most + 6),
        _Seat(prompt=comes, most=8, join=Moment(row=0)),
    ]
    yield _case(f"join-end/{comes.id}", seats)


def _join_prefill(cast: _Cast, prompt: Prompt) -> Iterator[Case]:
    """One row is still being read, and another one comes."""
    slow = _Seat(prompt=cast.unread(prompt, "joined-"))
    comes = _Seat(prompt=cast.beside(prompt), join=Moment(row=0, tokens=0, steps=1))
    yield _case(f"join-prefill/{prompt.id}", [slow, comes], cast.chunk(prompt))


def _staggered(seats: Sequence[_Seat], cast: _Cast, number: int) -> Iterator[Case]:
    """Each row comes when the one before it has said a token; they end one by one."""
    mosts = (6, 4, 7, 3, 8)
    rows = [
        replace(seat, most=seat.most and most, join=Moment(row=row - 1, tokens=1))
        for row, (seat, most) in enumerate(zip(seats, mosts, strict=True))
    ]
    if all(cast.tick(seat, 1) for seat in rows[:-1]):
        yield _case(f"staggered/{number}", [replace(rows[0], join=None), *rows[1:]])


# --- Leaving --------------------------------------------------------------------------------


def _leave(place: str, seats: Sequence[_Seat], cast: _Cast, number: int) -> Iterator[Case]:
    """One row is cancelled when it has said a few tokens; the others go on."""
    row = _PLACES.index(place) * (len(seats) - 1) // 2
    if at := cast.tick(seats[row], 3):
        rows = list(seats)
        rows[row] = replace(seats[row], leave=Moment(row=row, tokens=at))
        yield _case(f"leave-{place}/{number}", rows)


def _leave_prefill(cast: _Cast, prompt: Prompt) -> Iterator[Case]:
    """A row is cancelled while it is being read and others decode; then another comes."""
    first, second, last = cast.seats(3)
    if at := cast.tick(first, 2):
        slow = _Seat(
            prompt=cast.unread(prompt, "leaving-"),
            join=Moment(row=0, tokens=at),
            leave=Moment(row=2, tokens=0),
        )
        last = replace(last, most=6, join=Moment(row=0, tokens=cast.tick(first, 6)))
        rows = [first, second, slow, last]
        yield _case(f"leave-prefill/{prompt.id}", rows, cast.chunk(prompt))


def _leave_waiting(cast: _Cast) -> Iterator[Case]:
    """A row is cancelled before the engine has had a step in which to look at it."""
    rows = cast.seats(3)
    rows[1] = replace(rows[1], leave=Moment(row=1, tokens=0))
    yield _case("leave-waiting", rows)


def _reuse(seats: Sequence[_Seat], cast: _Cast, number: int) -> Iterator[Case]:
    """A row comes in the very moment in which another one leaves."""
    if at := min(cast.tick(seat, 3) for seat in seats[:2]):
        moment = Moment(row=0, tokens=at)
        leaves, comes = replace(seats[1], leave=moment), replace(seats[-1], join=moment)
        yield _case(f"reuse/{number}", [seats[0], leaves, seats[2], comes])


def _crowd(cast: _Cast) -> Iterator[Case]:
    """Twice as many rows as the engine decodes at once; one of each half leaves.

    Of the shorter half, as in the `batch` check: what is asked is who waits and who comes.
    """
    limit = cast.grounds.capabilities.max_batch
    if limit is None or 2 * limit > _MOST_ROWS[cast.grounds.effort]:
        return
    shorter = cast.known[: (len(cast.known) + 1) // 2]
    rows = [
        _Seat(prompt=prompt, most=most)
        for prompt, most, _ in zip(
            cycle(shorter), cycle(_CROWD), range(2 * limit), strict=False
        )
    ]
    rows[-1] = replace(rows[-1], leave=Moment(row=len(rows) - 1, tokens=0, steps=1))
    talker = _Seat(prompt=cast.talkers(1)[0], most=4)
    if at := cast.tick(talker, 2):
        rows[0] = replace(talker, leave=Moment(row=0, tokens=at))
    yield _case(f"crowd/{len(rows)}", rows)


# --- Judging --------------------------------------------------------------------------------


def _missed(case: Case, answers: Answers) -> str:
    """Say so where a row did not come or go at its moment."""
    if not answers.missed:
        return ""
    row = answers.missed[0]
    name = f"row {row} ({case.prompts[row].id})"
    return f"{name} was to come or go at a moment of another's answer that had ended before"


def _not_split(case: Case, answers: Answers) -> str:
    """Say so where a prompt was read at once beside which others were to come or go."""
    if case.chunk is None or case.schedule is None:
        return ""
    for row, moment in enumerate(case.schedule.leaves):
        if moment is not None and moment.tokens == 0 and answers.traces[row].tokens:
            return f"row {row} was to leave while it was in prefill, and had said a token"
    for moment in case.schedule.joins:
        if moment is None or moment.tokens != 0 or answers.chunks is None:
            continue
        length = len(case.prompts[moment.row].tokens)
        if answers.chunks < (least := (length - 1) // case.chunk):
            return (
                f"{length} tokens were to be read by {case.chunk} in a call, in {least} calls "
                f"at least, and the engine reports {answers.chunks} of all rows together"
            )
    return ""
