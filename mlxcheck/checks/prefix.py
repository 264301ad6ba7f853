"""Prefix reuse: a prompt says what it says however much of it was computed before.

Each case is a sequence: a request comes when the one before it has ended. Exact repeats,
longer and shorter ones are judged by the reference. A prompt that only begins like another
one has no answer of its own; it is company, made here, and what is judged is what it leaves
behind: the prompt that is asked after it, in whose cached beginning it wrote, or did not.

A prompt is new to an engine once. Those that are to be met by others that begin like them
come first in a plan, before anything else has asked for them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_rows, longest_first
from mlxcheck.compare import compare_tokens
from mlxcheck.records import Case, Comparison, Moment, Prompt, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.session import Answers

__all__ = ["Prefix", "common", "departing", "words"]

_BLOCK = 64
"""The largest block that engines are known to cache by: what is shorter may not be found."""

_STEPS = (1, 8, 16, 32, 64)
"""Where others depart: after the first token, and at the block sizes of engines."""

_INSIDE = (3, 11, 21, 45, 91)
"""Where they depart in the middle of a block, a part of which is then to be copied."""

_TAIL = 32  # tokens of theirs, where the beginning alone is to be spoiled

_FROM_THE_END = (1, 2, 6)
"""And so many tokens before the end: in the last block, whatever its size."""

_SHORT = {"quick": 1, "standard": 8, "thorough": None}
"""How many shorter prompts are repeated after a long one, by the effort."""

_OWN_STEPS = 1  # of the beginnings that the run's own prompts share, the commonest

_MOST = 5  # tokens of an answer: a wrong key shows early, and each of them is a step
_MOST_AGAIN = 3  # of one that was asked before in the same case

_PRESSURE = "prefix/pressure/"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One request of a sequence; it comes when the one before it has ended.

    Attributes:
        prompt: What.
        given: See `Case.given`.
        most: See `Case.most`.
        join: When, where that is another moment.
    """

    prompt: Prompt
    given: int = 0
    most: int = _MOST
    join: Moment | None = None


class Prefix:
    """Ask for prompts again, for longer and shorter ones, and for what begins like them."""

    name = "prefix"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse engines that compute every prompt from its first token."""
        if capabilities.prefix_cache:
            return None
        return "the backend reuses no KV cache of earlier requests"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return sequences on prompts that are long enough to be found again.

        A quick plan has one prompt, again and after one that departs from it; a standard
        one every kind of sequence on one prompt, or on a second one for what another may
        have written in its cache; a thorough one has everything on every prompt that is long
        enough. Where none is, there is one sequence, of the longest with its answer.
        """
        cases = _cases(grounds)
        # A prompt is new only once: the first case begins with an engine that knows none.
        return tuple(replace(case, fresh=number == 0) for number, case in enumerate(cases))

    def idle(self, grounds: Grounds) -> str:
        """Return why the plan of these grounds is empty."""
        longest = max((_reach(each, grounds) for each in _known(grounds)), default=0)
        return (
            f"the longest prompt has {longest} tokens with its answer, and engines that cache "
            f"by blocks need not find what is not longer than {_BLOCK}"
        )

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare each row that has a reference, where the engine says that it reused any."""
        why = "" if case.id.startswith(_PRESSURE) else _not_reused(case, answers)
        return judge_rows(compare_tokens, case, expected, answers, place_of, not_engaged=why)


def _cases(grounds: Grounds) -> tuple[Case, ...]:
    chosen = _targets(grounds)
    if not chosen:
        return ()
    if len(chosen[0].tokens) <= _BLOCK:
        return tuple(_short(chosen[0], grounds))
    if grounds.effort == "quick":
        return (*_repeat(chosen[0], grounds), *_return(chosen[0], grounds, ()))
    every = grounds.effort == "thorough"
    cases: list[Case] = []
    for number, prompt in enumerate(chosen if every else chosen[:1]):
        cases += _depart(prompt, grounds, up=number % 2 == 0)
    for prompt in chosen if every else chosen[1:] or chosen:
        cases += _return(prompt, grounds, (*_INSIDE, *_STEPS) if every else _INSIDE)
    for prompt in chosen if every else chosen[:1]:
        cases += _repeat(prompt, grounds)
        cases += _longer(prompt, grounds)
        cases += _together(prompt, grounds)
        cases += _pressure(prompt, grounds)
    return tuple(cases)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def words(grounds: Grounds) -> tuple[int, ...]:
    """Return the ids that prompts and answers of a run are made of: all are in the model."""
    found = {token for prompt in grounds.prompts for token in prompt.tokens}
    found |= {token for trace in grounds.expected.values() for token in trace.tokens}
    return tuple(sorted(found - set(grounds.model.stop_ids)))


def departing(prompt: Prompt, at: int, grounds: Grounds, key: str = "") -> Prompt:
    """Return company: a prompt like another one before position *at*, and unlike it there.

    Args:
        prompt: The other one.
        at: Up to its length: then it is one token longer.
        grounds: With two `words` at least.
        key: Of several that depart at one position, which.
    """
    pool = words(grounds)
    draw = _drawn(f"{grounds.seed}/{prompt.id}/{at}/{key}")
    # To the prompt's own end: what is found by a wrong key is then all that it has to say.
    tail = [draw.choice(pool) for _ in range(max(1, len(prompt.tokens) - at))]
    if at < len(prompt.tokens):
        not_this = prompt.tokens[at]
    else:  # the prompt goes on with its answer
        trace = grounds.expected.get(prompt.id)
        not_this = trace.tokens[0] if trace else -1
    if tail[0] == not_this:
        tail[0] = pool[(pool.index(tail[0]) + 1) % len(pool)]
    name, taken = f"{prompt.id}~{key}{at}", {each.id for each in grounds.prompts}
    while name in taken:
        name += "~"
    return Prompt(id=name, tokens=prompt.tokens[:at] + tuple(tail))


def _drawn(key: str) -> random.Random:
    """Return chance that depends on *key* alone."""
    return random.Random(key)  # noqa: S311 - no secret


def _known(grounds: Grounds) -> list[Prompt]:
    return [each for each in grounds.prompts if each.id in grounds.expected]


def _targets(grounds: Grounds) -> list[Prompt]:
    """Choose prompts with a reference: sure to be found again, and cheap, first."""
    # The last token is always computed, so that what can be found is one shorter.
    long = [each for each in longest_first(_known(grounds)) if len(each.tokens) > _BLOCK]
    safe = [each for each in long if len(each.tokens) > 2 * _BLOCK][::-1]
    chosen = [*safe, *(each for each in long if each not in safe)]
    if not chosen:
        able = [each for each in _known(grounds) if _reach(each, grounds) > _BLOCK]
        return sorted(able, key=lambda each: (-_reach(each, grounds), each.id))[:1]
    if grounds.effort == "thorough":
        return chosen
    picked = chosen[: 1 if grounds.effort == "quick" else 2]
    window = grounds.model.window
    beyond = [each for each in chosen if window and len(each.tokens) > window][:1]
    return picked + [each for each in beyond if each not in picked]


def _reach(prompt: Prompt, grounds: Grounds) -> int:
    """Return how long a prompt gets with what of its answer can be given."""
    return len(prompt.tokens) + len(grounds.expected[prompt.id].tokens) - 1


def _case(name: str, asks: Sequence[_Ask], chunk: int | None = None) -> Case:
    joins = [ask.join or (Moment(row=row - 1) if row else None) for row, ask in enumerate(asks)]
    return Case(
        id=f"prefix/{name}",
        prompts=tuple(ask.prompt for ask in asks),
        schedule=Schedule(joins=tuple(joins), leaves=(None,) * len(asks)),
        given=tuple(ask.given for ask in asks),
        most=tuple(ask.most for ask in asks),
        chunk=chunk,
    )


def _repeat(prompt: Prompt, grounds: Grounds) -> Iterator[Case]:
    """The same three times: the first hit may spoil what the second one finds."""
    again = _Ask(prompt=prompt, most=_MOST_AGAIN)
    asks = [_Ask(prompt=prompt), again, again]
    # That an engine finds shorter ones, too, is not asked; and that it goes right, if so.
    short = [each for each in longest_first(_known(grounds)) if len(each.tokens) <= _BLOCK]
    short.sort(key=lambda each: _drawn(f"{grounds.seed}/{each.id}").random())
    for each in short[: _SHORT[grounds.effort]]:
        asks += [_Ask(prompt=each, most=1), _Ask(prompt=each, most=_MOST_AGAIN)]
    yield _case(f"repeat/{prompt.id}", asks)


def _short(prompt: Prompt, grounds: Grounds) -> Iterator[Case]:
    """All in one sequence, where only an answer makes anything long enough to be found."""
    most = len(grounds.expected[prompt.id].tokens) - 1
    again = _Ask(prompt=prompt, most=_MOST_AGAIN)
    whole = _Ask(prompt=prompt, given=most, most=_MOST_AGAIN)
    asks = [_Ask(prompt=prompt, most=0), again, again, whole, whole, again]
    yield _case(f"short/{prompt.id}", asks)


def _longer(prompt: Prompt, grounds: Grounds) -> Iterator[Case]:
    """One token longer, many, and then the shorter one again."""
    total = len(grounds.expected[prompt.id].tokens)
    again = _Ask(prompt=prompt, most=_MOST_AGAIN)
    many = max(total // 2, 1)
    if total > 1:
        one = replace(again, given=1)
        asks = [_Ask(prompt=prompt), one, replace(again, given=many), again]
        yield _case(f"longer/{prompt.id}", asks)
        yield _case(f"shorter/{prompt.id}", [replace(again, given=total - 1), again, one])


def _positions(prompt: Prompt, grounds: Grounds, steps: Sequence[int]) -> list[int]:
    """Return where others depart from a prompt, in order."""
    length = len(prompt.tokens)
    shared = Counter(
        common(prompt.tokens, other.tokens) for other in grounds.prompts if other != prompt
    )
    own = [at for at, _ in sorted(shared.items(), key=lambda pair: (-pair[1], -pair[0]))]
    found = {*steps, length // 2, *own[:_OWN_STEPS], *(length - n for n in _FROM_THE_END)}
    return sorted(at for at in found if 0 < at < length)


def _depart(prompt: Prompt, grounds: Grounds, *, up: bool) -> Iterator[Case]:
    """Others that begin like a prompt, each for longer than the last or less, then itself."""
    if len(words(grounds)) > 1:
        positions = _positions(prompt, grounds, _STEPS)
        others = [departing(prompt, at, grounds) for at in positions]
        asks = [_Ask(prompt=other, most=1) for other in (others if up else others[::-1])]
        name = f"depart-{'up' if up else 'down'}/{prompt.id}"
        yield _case(name, [*asks, _Ask(prompt=prompt)])


def _return(prompt: Prompt, grounds: Grounds, steps: Sequence[int]) -> Iterator[Case]:
    """A prompt before and after others that use its beginning: they must not write in it.

    The others come from the end on, each finding more of the prompt than of one another.
    """
    if len(words(grounds)) > 1:
        places = (*_positions(prompt, grounds, steps)[::-1], len(prompt.tokens))
        others = [departing(prompt, at, grounds, "after-") for at in places]
        asks = [_Ask(prompt=prompt, most=_MOST_AGAIN)]
        # What they share of a last block is all that they could write to.
        asks += [
            _Ask(prompt=replace(other, tokens=other.tokens[: at + _TAIL]), most=1)
            for at, other in zip(places, others, strict=True)
        ]
        yield _case(f"return/{prompt.id}", [*asks, _Ask(prompt=prompt)])


def _together(prompt: Prompt, grounds: Grounds) -> Iterator[Case]:
    """Again while it is decoded, while it is in prefill, and three times at once."""
    can = grounds.capabilities
    if not can.batch:
        return
    first, again = _Ask(prompt=prompt), _Ask(prompt=prompt, most=_MOST_AGAIN)
    if len(grounds.expected[prompt.id].tokens) >= _MOST:  # else it is over too soon
        while_decoding = replace(again, join=Moment(row=1, tokens=1))
        yield _case(f"while-decoding/{prompt.id}", [again, first, while_decoding])
        chunk = max(1, len(prompt.tokens) // 4) if can.sets_prefill_chunk else None
        in_prefill = replace(again, join=Moment(row=0, tokens=0, steps=1))
        yield _case(f"in-prefill/{prompt.id}", [first, in_prefill, again], chunk)
    at_once = replace(again, join=Moment(row=0))
    yield _case(f"three-at-once/{prompt.id}", [again, at_once, at_once, at_once])


def _pressure(prompt: Prompt, grounds: Grounds) -> Iterator[Case]:
    """Again after long ones that have nothing of it: it may have been evicted, or in part."""
    if len(words(grounds)) < 2:  # noqa: PLR2004 - one cannot be unlike itself
        return
    every = grounds.effort == "thorough"
    longest = max(grounds.prompts, key=lambda each: (len(each.tokens), each.id))
    long = longest if every else prompt
    others = [departing(long, 0, grounds, f"else-{n}-") for n in range(8 if every else 2)]
    asks = [_Ask(prompt=other, most=1) for other in others]
    again = _Ask(prompt=prompt, most=_MOST_AGAIN)
    yield _case(f"pressure/{prompt.id}", [again, *asks, again])


def _not_reused(case: Case, answers: Answers) -> str:
    """Say so where nothing was reused, or a request came too late to meet another."""
    joins = case.schedule.joins if case.schedule else ()
    if answers.missed:
        row = answers.missed[0]
        return f"row {row} was to join while another decodes, and that had ended before"
    if answers.cached:
        return ""
    shared = max(
        (
            common(case.prompts[row].tokens, before.tokens)
            for row, join in enumerate(joins)
            if join is not None and join.tokens is None
            for before in case.prompts[: join.row + 1]
        ),
        default=0,
    )
    said = "reports no cached token" if answers.cached == 0 else "does not say what it reused"
    return f"the engine {said} over {len(case.prompts)} requests that share {shared} tokens"
