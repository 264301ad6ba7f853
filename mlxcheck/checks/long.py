"""Across thresholds: the model's window, and the lengths at which kernels change.

A window shows in no answer that is shorter. It is reached twice: by prompts of the lengths
around it, and by answers that grow across it. Lengths between those of the prompts are made
of a prompt and the beginning of its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck.checks.base import Expected, Grounds, PlaceOf, judge_rows, not_formed
from mlxcheck.checks.chunks import MOST, affordable, forced, judged, longest, reaching, row_of
from mlxcheck.compare import compare_tokens
from mlxcheck.drift import compare_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.records import Case, Comparison, Prompt
    from mlxcheck.session import Answers

__all__ = ["Long"]

KERNEL = 1024
"""Keys from which MLX's attention takes another kernel for one query."""

_BEFORE = 4  # tokens of a prompt short of the threshold that its answer grows across
_QUICK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Threshold:
    """Lengths that a prompt is to have, and the one that an answer grows across."""

    lengths: tuple[int, ...]
    crossed: int


class Long:
    """Compare answers in contexts around each threshold, alone and beside a short row."""

    name = "long"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse no engine: what matters is the model, and how long the prompts are."""
        del capabilities
        return None

    def idle(self, grounds: Grounds) -> str:
        """Return why the plan of these grounds is empty; nothing where it is not."""
        if self.plan(grounds):
            return ""
        window = grounds.model.window
        kernels = f"the {KERNEL - 1:,} at which kernels change"
        missed = f"not {kernels}"
        if window:
            missed = f"neither the window of {window:,} tokens nor {kernels}"
        return (
            f"the longest prompt with its answer has {longest(grounds):,} tokens, and reaches "
            f"{missed}: give longer prompts"
        )

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return prompts around each threshold, answers across it, batches and forced cases."""
        cases = list(_across(grounds))
        if grounds.effort == "quick":
            cases = cases[:_QUICK]
        return affordable(cases, grounds)

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Compare each row: its numbers where it was forced."""
        compare = compare_numbers if case.forced else compare_tokens
        if case.forced and place_of(0).noise is None:
            return ()  # its tokens are the reference's own, and nothing judges the numbers
        why = not_formed(case, expected, answers)
        return judge_rows(compare, case, expected, answers, place_of, not_engaged=why)


def _thresholds(grounds: Grounds) -> Iterator[_Threshold]:
    """Yield the model's own first; the most telling length of each comes first.

    Engines may keep the last token apart, and then read one token less in prefill. One that
    keeps a window in a ring needs room for a chunk beside it, and goes round after both.
    """
    window, chunk = grounds.model.window, grounds.capabilities.prefill_chunk
    if window:
        yield _Threshold(lengths=(window + 2, window + 1, window, window - 1), crossed=window)
        yield _Threshold(lengths=(2 * window + 2, 2 * window + 1), crossed=2 * window + 1)
    if window and chunk:
        ring = window + chunk
        yield _Threshold(lengths=(ring + 2, ring + 1), crossed=ring)
    yield _Threshold(lengths=(KERNEL + 1, KERNEL, KERNEL - 1), crossed=KERNEL)


def _across(grounds: Grounds) -> Iterator[Case]:
    """Yield the cases of all thresholds, the most telling of each first."""
    firsts: list[Case] = []
    rest: list[Case] = []
    for mark in _thresholds(grounds):
        read = [case for length in mark.lengths for case in _read(length, grounds)]
        first = [*_unknown(read[:1], grounds), *_said(mark.crossed, grounds)]
        yield from first
        yield from forced(first, grounds)
        firsts += first
        rest += read[1:]
    together = [case for each in firsts for case in _beside_short(each, grounds)]
    yield from together
    yield from forced(together, grounds)
    yield from rest
    yield from forced(rest, grounds)


def _unknown(cases: list[Case], grounds: Grounds) -> Iterator[Case]:
    """Yield the cases for an engine that knows no prompt yet: a prefix hit reads nothing."""
    for case in cases:
        yield replace(case, fresh=grounds.capabilities.prefix_cache)


def _read(length: int, grounds: Grounds) -> Iterator[Case]:
    """Yield a prompt of exactly this length: prefill reaches it."""
    found = reaching(length, grounds) if length > 0 else None
    if found is not None:
        prompt, given = found
        yield row_of(f"long/prefill-{length}", prompt, grounds, given=given)


def _said(length: int, grounds: Grounds) -> Iterator[Case]:
    """Yield a prompt that is shorter, and whose answer goes on to more: decode crosses it."""
    found: list[tuple[int, str, Prompt]] = []
    for prompt in judged(grounds):
        before = length - len(prompt.tokens)
        beyond = len(grounds.expected[prompt.id].tokens) - 1 - before
        if before > 0 and beyond > 0:
            found.append((-min(beyond, MOST), prompt.id, prompt))
    if found:
        _, _, prompt = min(found, key=lambda each: each[:2])
        before = length - len(prompt.tokens)
        given = max(0, before - _BEFORE)
        most = before - given + MOST
        yield row_of(f"long/decode-{length}", prompt, grounds, given=given, most=most)


def _beside_short(case: Case, grounds: Grounds) -> Iterator[Case]:
    """Yield the case with a short row after it: the padding is as uneven as it can be."""
    (prompt,) = case.prompts
    others = [each for each in judged(grounds) if each.id != prompt.id]
    if not grounds.capabilities.batch or not others:
        return
    other = min(others, key=lambda each: (len(each.tokens), each.id))
    given = case.given[0] if case.given else 0
    if len(other.tokens) >= len(prompt.tokens) + given:
        return
    yield replace(
        case,
        id=case.id.replace("long/", "long/batch-2/", 1),
        prompts=(prompt, other),
        given=(given, 0),
        most=(case.most[0] + MOST,) * 2,  # long enough for the two to meet
    )
