"""A prompt that is read in several prefill calls gets the answer of one that is read in one.

Where the engine can be told its chunk, the chunk is fitted to the prompt, so that the prompt
ends on both sides of a whole number of calls; engines that keep the last token apart end
there one token later. Where it cannot be told, prompts of the lengths at which chunks end are
made of a prompt and the beginning of its answer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_rows
from mlxcheck.compare import compare_tokens
from mlxcheck.drift import compare_numbers
from mlxcheck.records import Case, Comparison, Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.session import Answers

__all__ = ["MOST", "Chunks", "affordable", "forced", "judged", "longest", "reaching", "row_of"]

MOST = 6
"""Tokens of each answer: a chunk that was read wrongly shows in the first ones."""

_SHARE = 0.4
"""Of what decoding all prompts once costs by `_work`: what a standard plan may. Cases cost
something beside their steps, which is why it is not half."""

_LEAST_CASES = 3
_CALL_TOKENS = 32
"""Prompt tokens that are read in about the time of one decode step, on small models."""

_SMALL = (8, 7, 9, 32, 31, 33, 64, 1)
_MANY_CALLS = 16  # a small chunk beside a long prompt costs more than it can show
_SINGLE_TOKENS = 16  # prompts this short are read token by token too
_SHORTEST = 3  # a shorter one has no chunk to be cut into, with its last token kept apart
_SHORT, _MIDDLE, _LONG = 12, 32, 600
_SIZES_EACH = {"quick": 2, "standard": 6}
_GRID = (33, 65, 32, 64, 31, 63, 9, 17, 8, 16, 7, 15, 97, 96, 95, 129, 128, 127)


class Chunks:
    """Read prompts in calls of several sizes, alone and in batches."""

    name = "chunks"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse no engine: each reads prompts, and lengths can always be chosen."""
        del capabilities
        return None

    def idle(self, grounds: Grounds) -> str:
        """Return why the plan of these grounds is empty; nothing where it is not."""
        if self.plan(grounds):
            return ""
        can = grounds.capabilities
        if can.sets_prefill_chunk:
            return f"no prompt that is asked for has {_SHORTEST} tokens to be read in parts"
        has = f"the longest prompt with its answer has {longest(grounds):,} tokens"
        if can.prefill_chunk is None:
            return f"{has}: no length at which a chunk may end is reached"
        return f"{has}, and the engine reads {can.prefill_chunk:,} in one call"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return prompts with chunks that fit them, batches, and forced cases.

        An engine with a prefix cache reads a prompt whole only once, so each prompt comes in
        one case there.
        """
        can = grounds.capabilities
        known = can.sets_prefill_chunk or can.prefill_chunk is not None
        if can.prefix_cache and known:
            return affordable(_cold(grounds), grounds)
        by = _by_size if can.sets_prefill_chunk else _by_length
        return affordable(by(grounds), grounds)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare each row, once the prompts were read in as many calls as was asked."""
        compare = compare_numbers if case.forced else compare_tokens
        if case.forced and place_of(0).noise is None:
            return ()  # its tokens are the reference's own, and nothing judges the numbers
        why = _not_engaged(case, answers)
        return judge_rows(compare, case, expected, answers, place_of, not_engaged=why)


# --- Shared with the other checks of lengths --------------------------------------------------


def judged(grounds: Grounds) -> list[Prompt]:
    """Return the prompts whose answers are known, and are not empty."""
    traces = grounds.expected
    return [each for each in grounds.prompts if each.id in traces and traces[each.id].tokens]


def longest(grounds: Grounds) -> int:
    """Return the most tokens that stand before the last one of an answer; 0 without any."""
    return max(
        (len(p.tokens) + len(grounds.expected[p.id].tokens) - 1 for p in judged(grounds)),
        default=0,
    )


def reaching(length: int, grounds: Grounds) -> tuple[Prompt, int] | None:
    """Return a prompt of exactly this length, and how much of its answer is given for that.

    One that is so long by itself comes first, then the one with the most left to say.
    """
    found: list[tuple[int, int, str, Prompt]] = []
    for prompt in judged(grounds):
        given = length - len(prompt.tokens)
        left = len(grounds.expected[prompt.id].tokens) - given
        if given >= 0 and left > 0:
            found.append((min(given, 1), -left, prompt.id, prompt))
    if not found:
        return None
    prompt = min(found, key=lambda each: each[:3])[-1]
    return prompt, length - len(prompt.tokens)


def row_of(
    name: str, prompt: Prompt, grounds: Grounds, *, given: int = 0, most: int = MOST
) -> Case:
    """Return a case of one row, on the path that the engine batches on if it does."""
    return Case(
        id=f"{name}/{prompt.id}",
        prompts=(prompt,),
        alone=not grounds.capabilities.batch,
        given=(given,) if given else (),
        most=(most,),
    )


def forced(cases: Iterable[Case], grounds: Grounds) -> list[Case]:
    """Return the cases again for their numbers; none where the engine cannot be asked."""
    can = grounds.capabilities
    if not (can.teacher_forcing and (can.logits or can.logprobs)):
        return []
    return [replace(case, id=f"forced-{case.id}", forced=True) for case in cases]


def affordable(cases: Iterable[Case], grounds: Grounds) -> tuple[Case, ...]:
    """Return as many cases as the effort allows, the first ones first.

    Args:
        cases: The most telling first; those that come twice are kept once.
        grounds: Thorough: all are kept. Otherwise half of what all prompts cost, at most.
    """
    unique = list({case.id: case for case in cases}.values())
    if grounds.effort == "thorough":
        return tuple(unique)
    left = _SHARE * sum(
        _work(len(prompt.tokens), len(grounds.expected[prompt.id].tokens), None)
        for prompt in judged(grounds)
    )
    kept: list[Case] = []
    for case in unique:
        left -= _cost(case)
        if left < 0 and len(kept) >= _LEAST_CASES:
            break
        kept.append(case)
    return tuple(kept)


def _cost(case: Case) -> float:
    given = case.given or (0,) * len(case.prompts)
    return sum(
        _work(len(prompt.tokens) + more, most, case.chunk)
        for prompt, more, most in zip(case.prompts, given, case.most, strict=True)
    )


def _work(read: int, said: int, chunk: int | None) -> float:
    """Return the cost of one row in decode steps."""
    return read / _CALL_TOKENS + (-(-read // chunk) if chunk else 1) + said


# --- Plans ------------------------------------------------------------------------------------


def _by_size(grounds: Grounds) -> Iterator[Case]:
    """Yield prompts with chunks of their own, the most telling first."""
    picked = _picked(grounds)
    each = [list(_chunked(prompt, grounds)) for prompt in picked]
    firsts = [cases[0] for cases in each if cases]
    yield from firsts
    yield from forced(firsts, grounds)
    yield from _batches(picked, grounds)
    # In turns, so that what is not afforded is a size of each and not a whole prompt.
    rest = chain.from_iterable(zip_longest(*(cases[1:] for cases in each)))
    yield from (case for case in rest if case is not None)


def _chunked(prompt: Prompt, grounds: Grounds) -> Iterator[Case]:
    length = len(prompt.tokens)
    sizes = list(_sizes(length, grounds.model.window, all_of=grounds.effort == "thorough"))
    for size in sizes[: _SIZES_EACH.get(grounds.effort)]:
        yield replace(row_of(f"chunks/{size}", prompt, grounds), chunk=size)


def _sizes(length: int, window: int | None, *, all_of: bool) -> Iterator[int]:
    """Yield chunks for a prompt of this length: 0, 1 and 2 calls, and one token beside.

    Args:
        length: Of the prompt; with its last token kept apart, one less is read.
        window: Of the model; chunks about as long as that are sizes of their own.
        all_of: Small ones beside a long prompt too.
    """
    small = [size for size in _SMALL if size < length]
    if window:
        small += [size for size in (window, window + 1, window - 1) if 1 < size < length]
    if length > _SINGLE_TOKENS:
        small = [size for size in small if size > 1]
    if not all_of:
        small = [size for size in small if size * _MANY_CALLS >= length]
    sizes = [(length - 1) // 2, *small[:1], length // 2, length - 2, *small[1:2]]
    sizes += [length - 1, (length + 1) // 2, *small[2:], length, length + 1]
    yield from dict.fromkeys(size for size in sizes if size > 0)


def _picked(grounds: Grounds) -> list[Prompt]:
    """Return a short, a middle and a long prompt; thorough: one of every length."""
    asked = [each for each in judged(grounds) if len(each.tokens) >= _SHORTEST]
    if not asked:
        return []
    if grounds.effort == "thorough":
        by_length = {len(prompt.tokens): prompt for prompt in reversed(asked)}
        return [by_length[length] for length in sorted(by_length)]
    picked = [_nearest(asked, _SHORT, grounds), _nearest(asked, _MIDDLE, grounds)]
    if grounds.effort == "standard":
        fit = [each for each in asked if len(each.tokens) <= _LONG]
        picked += sorted(fit, key=lambda each: (-len(each.tokens), each.id))[:1]
    return list({prompt.id: prompt for prompt in picked}.values())


def _nearest(prompts: Sequence[Prompt], length: int, grounds: Grounds) -> Prompt:
    """Return the prompt nearest to a length, of several the one with the longest answer."""

    def far(prompt: Prompt) -> tuple[int, int, str]:
        said = len(grounds.expected[prompt.id].tokens)
        return abs(len(prompt.tokens) - length), -said, prompt.id

    return min(prompts, key=far)


def _batches(picked: Sequence[Prompt], grounds: Grounds) -> Iterator[Case]:
    """Yield rows of unequal lengths that are read with one chunk size."""
    if not grounds.capabilities.batch or len(picked) < 2:  # noqa: PLR2004 - a pair
        return
    short, middle, *_ = sorted(picked, key=lambda each: (len(each.tokens), each.id))
    groups = [
        ((short, middle), len(short.tokens)),
        ((short, middle, short), len(middle.tokens)),
    ]
    if grounds.effort == "thorough":
        groups += [((one, picked[-1], two), len(two.tokens)) for one, two in pairwise(picked)]
    for rows, length in groups:
        size = max(1, (length - 1) // 2)
        name = f"chunks/{size}/batch-{len(rows)}"
        if len(rows) > 2 and grounds.effort == "thorough":  # noqa: PLR2004 - more than the pair
            name += f"/{rows[0].id}"
        yield Case(id=name, prompts=rows, most=(MOST,) * len(rows), chunk=size)


def _cold(grounds: Grounds) -> Iterator[Case]:
    """Yield one case for each of a few prompts that begin differently, in two calls or more.

    What a prompt shares with one before it is not read again, and does not count.
    """
    can = grounds.capabilities
    fixed = None if can.sets_prefill_chunk else can.prefill_chunk
    seen: list[tuple[int, ...]] = []
    for prompt in _spread(_picked(replace(grounds, effort="thorough"))):
        known = max((_common(prompt.tokens, each) for each in seen), default=0)
        fresh = len(prompt.tokens) - known
        if fresh < (fixed + 2 if fixed else 2 * _SHORTEST):
            continue
        sizes = ((fresh - 1) // 2, fresh // 2, fresh - 2, (fresh - 1) // 3)
        size = fixed or max(1, sizes[len(seen) % len(sizes)])
        case = replace(row_of(f"chunks/{size}", prompt, grounds), chunk=size)
        yield from (forced([case], grounds) if len(seen) % 2 else []) or [case]
        seen.append(prompt.tokens)
        if grounds.effort != "thorough" and len(seen) == _SIZES_EACH[grounds.effort]:
            return


def _spread(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    """Yield the longest, the shortest, the next longest and so on."""
    left = list(prompts)
    while left:
        yield left.pop()
        if left:
            yield left.pop(0)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _by_length(grounds: Grounds) -> Iterator[Case]:
    """Yield prompts of lengths at which chunks that cannot be set may end."""
    chunk = grounds.capabilities.prefill_chunk
    lengths: tuple[int, ...] = _GRID
    if chunk:
        # One more than a chunk is one more call, or one token more where the last is apart.
        ends = [(k * chunk + 1, k * chunk + 2, k * chunk, k * chunk - 1) for k in (1, 2)]
        lengths = tuple(length for group in ends for length in group if length > 0)
    cases: list[Case] = []
    for length in dict.fromkeys(lengths):
        found = reaching(length, grounds)
        if found is not None:
            prompt, given = found
            case = row_of(f"chunks/length-{length}", prompt, grounds, given=given)
            cases.append(replace(case, chunk=chunk))
    if grounds.effort == "quick":
        cases = cases[:3]
    yield from cases[:2]
    yield from forced(cases[:2], grounds)
    yield from cases[2:]


# --- Judging ----------------------------------------------------------------------------------


def _not_engaged(case: Case, answers: Answers) -> str:
    """Say so where the prompts were not read in as many calls as their longest one needs."""
    if case.chunk is None:
        return ""
    tokens = max(len(prompt.tokens) for prompt in case.prompts)
    cached = answers.cached or 0
    # Engines may keep the last token apart and read it in the first decode step.
    wanted = -(-(tokens - 1) // case.chunk)
    least = max(min(2, wanted), -(-(tokens - 1 - cached) // case.chunk))
    asked = f"a prompt of {tokens:,} tokens was to be read by {case.chunk:,} a call"
    if answers.chunks is None:
        return f"{asked}, and the engine does not report its prefill calls"
    if answers.chunks >= least:
        return ""
    why = f"; {cached:,} came from its prefix cache" if cached else ""
    return f"{asked}, in {wanted:,} or more, and the engine reports {answers.chunks:,}{why}"
