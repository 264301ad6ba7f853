"""Pure judgement of what is given to an engine: prompt ids and stop sets, with their text.

Apart from `mlxcheck.compare`, which judges what engines say: before the first token is
compared, both must have been asked the same. A difference here has few usual causes, and
most of them can be seen by looking at the two lists of ids.
"""

from __future__ import annotations

import operator
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck.compare import blank
from mlxcheck.messages import counted
from mlxcheck.records import Verdict

if TYPE_CHECKING:
    from mlxcheck.messages import Place
    from mlxcheck.records import Comparison, Fault

__all__ = ["compare_ids", "compare_stops", "no_answer", "no_verdict"]

_ASSISTANT = re.compile(r"\s*(<[^<>]*>)?\W*(assistant|model)")
"""How a generation prompt begins in the templates of Qwen, Llama, Gemma and their kin."""

_THINKING = ("think", "thought")
_SHOWN_STOPS = 8
_SHOWN_BEFORE, _SHOWN_AFTER = 2, 6
_DETAIL_LINES = 40


def compare_ids(place: Place, expected: tuple[int, ...], actual: object) -> Comparison:
    """Compare the ids that two engines make of the same chat turns.

    Args:
        place: Where they were made; its row's prompt is the one that is meant.
        expected: The reference's ids.
        actual: What the candidate gave: a list of ids, or anything else.

    Returns:
        EXACT; or WRONG at the first position that differs, with the likely cause where the
        two lists show one. All ids count as one step: none of them was decoded.
    """
    ids, problem = _ids(actual)
    if problem:
        return _not_ids(place, expected, len(ids), problem)
    if ids == expected:
        return replace(blank(place), steps=1)
    step = _common_prefix(expected, ids)
    found = replace(
        blank(place),
        verdict=Verdict.WRONG,
        step=step,
        expected=expected[step] if step < len(expected) else None,
        actual=ids[step] if step < len(ids) else None,
    )
    return replace(found, message=_ids_message(place, found, expected, ids))


def compare_stops(place: Place, expected: Sequence[int], actual: object) -> Comparison:
    """Compare the sets of ids that end an answer.

    Args:
        place: Where they were asked for; the prompt of its row names the comparison.
        expected: The reference's stop set, in any order.
        actual: What the candidate gave: ids in any order, or anything else.

    Returns:
        EXACT; or WRONG where an id is missing or too many, the first of either as
        ``expected`` and ``actual``.
    """
    ids, problem = _ids(actual)
    if problem:
        return _not_ids(place, (), len(ids), problem)
    missing, extra = sorted({*expected} - {*ids}), sorted({*ids} - {*expected})
    if not missing and not extra:
        return replace(blank(place), steps=1)
    what: list[str] = []
    why: list[str] = []
    if missing:
        what.append(f"lacks {_listed(place, missing)}")
        why.append("an answer goes on past a missing stop id")
    if extra:
        what.append(f"has {_listed(place, extra)} too many")
        why.append("an answer is cut short at an id too many")
    lines = [
        f"the stop set {' and '.join(what)}",
        *_sides(place, _listed(place, sorted({*expected})), _listed(place, sorted({*ids}))),
        "; ".join(why),
    ]
    found = replace(
        blank(place),
        verdict=Verdict.WRONG,
        step=0,
        expected=missing[0] if missing else None,
        actual=extra[0] if extra else None,
    )
    return replace(found, message=_message(place, lines))


def no_answer(place: Place, fault: Fault) -> Comparison:
    """Return an ERROR: the backend did not say what its engine would be given."""
    kept = fault.detail.rstrip().splitlines()
    cut = kept[-_DETAIL_LINES:]
    if len(cut) < len(kept):
        cut.insert(0, f"... {counted(len(kept) - len(cut), 'line')} before")
    text = _message(place, [f"no answer from {place.candidate}: {fault.summary}"])
    if cut:
        text = "\n".join([text, textwrap.indent("\n".join(cut), "    ")])
    return replace(blank(place), verdict=Verdict.ERROR, message=text)


def no_verdict(place: Place, why: str) -> Comparison:
    """Return an INCONCLUSIVE comparison: there is nothing to hold the answer against."""
    text = _message(place, [f"no verdict: {why}"])
    return replace(blank(place), verdict=Verdict.INCONCLUSIVE, message=text)


def _ids(actual: object) -> tuple[tuple[int, ...], str]:
    """Return the ids as ints; or those before the first that is none, and what it is."""
    if isinstance(actual, str | bytes) or not isinstance(actual, Iterable):
        return (), f"it gave {actual!r:.80} ({type(actual).__name__}), not a list of token ids"
    ids: list[int] = []
    for item in actual:
        if isinstance(item, str):
            text = f"it gave {item!r:.80} where a token id was due"
            if item in {"input_ids", "attention_mask", "token_type_ids"}:
                text += ": the keys of the tokenizer's dict, not the ids in it"
            return tuple(ids), text
        try:
            value = None if isinstance(item, bool) else operator.index(item)
        except TypeError:
            value = None
        if value is None:
            kind = type(item).__name__
            return tuple(ids), f"it gave {item!r:.80} ({kind}) where a token id was due"
        ids.append(value)
    return tuple(ids), ""


def _not_ids(place: Place, expected: tuple[int, ...], step: int, problem: str) -> Comparison:
    found = replace(
        blank(place),
        verdict=Verdict.WRONG,
        step=step,
        expected=expected[step] if step < len(expected) else None,
    )
    return replace(found, message=_message(place, [f"{problem} (position {step})"]))


def _ids_message(
    place: Place, found: Comparison, expected: tuple[int, ...], ids: tuple[int, ...]
) -> str:
    step = found.step or 0
    agreed = "none agrees"
    if step:
        agreed = "position 0 agrees" if step == 1 else f"positions 0-{step - 1} agree"
    cause = _at_the_front(expected, ids) or _further_on(place, expected, ids, step)
    here, there = _around(place, expected, step), _around(place, ids, step)
    lines = [
        f"{cause} (position {step})",
        *_sides(place, _token(place, found.expected), _token(place, found.actual)),
        f"around it the reference's ids read {here}, the candidate's {there}",
        f"{counted(len(expected), 'id')} expected, {len(ids):,} given; {agreed}",
    ]
    return _message(place, lines)


def _at_the_front(expected: tuple[int, ...], ids: tuple[int, ...]) -> str:
    """Say what most likely made the difference, where the first ids show it."""
    first, fewer = expected[:1], len(expected) - len(ids)
    if not ids:
        return "no id at all was given"
    if ids[:2] == first * 2 and expected[:2] != first * 2:
        return "the reference's first id comes twice: BOS is added to ids that have it"
    if ids[1:] == expected:
        return "one id too many at the front: a BOS that the template does not have"
    if expected[1:] == ids:
        return "the reference's first id is missing: no BOS, it seems"
    if fewer > 0 and expected[fewer:] == ids:
        return f"cut on the left: only the last {len(ids)} of {len(expected)} ids are given"
    return ""


def _further_on(
    place: Place, expected: tuple[int, ...], ids: tuple[int, ...], step: int
) -> str:
    """Say what most likely made the difference, or that there is one."""
    left, right = _differing(expected, ids, step)
    if step == len(ids) and _ASSISTANT.match(_text(place, left).casefold()):
        return "the generation prompt is missing at the end"
    if thinking := _thinking(_text(place, left), _text(place, right)):
        return f"the thinking default differs: {thinking}"
    if step == len(ids):
        return f"cut on the right: only the first {len(ids)} of {len(expected)} ids are given"
    if step == len(expected):
        return f"{counted(len(ids) - len(expected), 'id')} too many at the end"
    return "the ids differ"


def _differing(
    expected: tuple[int, ...], ids: tuple[int, ...], step: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what is left of both without their common beginning and end."""
    left, right = expected[step:], ids[step:]
    same = _common_prefix(left[::-1], right[::-1])
    return left[: len(left) - same], right[: len(right) - same]


def _thinking(expected: str, actual: str) -> str:
    here, there = (
        any(word in text.casefold() for word in _THINKING) for text in (expected, actual)
    )
    if here and there:
        return "the think blocks are not the same"
    if here:
        return "the reference's think block is missing"
    return "a think block is added" if there else ""


def _message(place: Place, lines: Sequence[str]) -> str:
    name = place.case.prompts[place.row].id
    head, *rest = lines
    told = [f"{name}, check {place.check}: {head}", *rest, f"again: {place.again}"]
    return "\n  ".join(told)


def _sides(place: Place, expected: str, actual: str) -> tuple[str, str]:
    wide = max(len(expected), len(actual))
    return (
        f"expected {expected:<{wide}}   reference  {place.reference}",
        f"actual   {actual:<{wide}}   candidate  {place.candidate}",
    )


def _token(place: Place, token: int | None) -> str:
    if token is None:
        return f"{'-':>7} (the ids had ended)"
    return f"{token:>7} {_text(place, (token,))!r}"


def _listed(place: Place, ids: Sequence[int]) -> str:
    told = [f"{token} {_text(place, (token,))!r}" for token in ids[:_SHOWN_STOPS]]
    rest = len(ids) - _SHOWN_STOPS
    return (", ".join(told) or "nothing") + (f" and {rest:,} more" if rest > 0 else "")


def _around(place: Place, ids: tuple[int, ...], step: int) -> str:
    shown = ids[max(0, step - _SHOWN_BEFORE) : step + _SHOWN_AFTER]
    return repr(_text(place, shown))


def _text(place: Place, ids: Iterable[int]) -> str:
    return "".join(_piece(place, token) for token in ids)


def _piece(place: Place, token: int) -> str:
    try:
        return place.text_of(token)
    except Exception:  # noqa: BLE001 - the id is the candidate's: it may be any number
        return "\N{REPLACEMENT CHARACTER}"


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for step, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return step
    return min(len(left), len(right))
