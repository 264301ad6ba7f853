"""Pure judgement: two traces in, a `Comparison` out. Nothing is printed, nothing is run.

The comparison ends at the reference's first stop id, included. What an engine says after
that is no evidence about its tokens; whether it stopped is a question of its own
(`compare_end`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck import messages
from mlxcheck.records import Comparison, Trace, Verdict

if TYPE_CHECKING:
    from mlxcheck.messages import Place

__all__ = ["compare_end", "compare_tokens", "without_verdict"]


def compare_tokens(place: Place, expected: Trace, actual: Trace) -> Comparison:
    """Compare token by token, to the end of the reference's answer.

    An engine that leaves the stop id itself out, as many do, has agreed.

    Args:
        place: Where the two were made.
        expected: The reference's trace.
        actual: The candidate's trace.

    Returns:
        EXACT, WRONG at the first differing step, or ERROR where the engine failed.
    """
    found = _blank(place)
    agreed = _common_prefix(expected.tokens, actual.tokens)
    total = len(expected.tokens)
    if actual.fault is not None:
        found = replace(found, verdict=Verdict.ERROR, steps=agreed)
        return replace(found, message=messages.failure(place, found, actual))
    left_out = expected.finish == "stop" and agreed == total - 1 == len(actual.tokens)
    if agreed == total or left_out:
        return replace(found, regret=0.0, steps=agreed)
    return _differs(place, expected, actual, agreed)


def compare_end(place: Place, expected: Trace, actual: Trace) -> Comparison:
    """Compare how the two answers end: at the same step, for the same reason.

    Args:
        place: Where the two were made.
        expected: The reference's trace.
        actual: The candidate's, of an engine that stops by itself.

    Returns:
        EXACT; WRONG where it went on past the stop id, stopped early, left the stop id
        out, or gave another reason; INCONCLUSIVE where the tokens before had differed.
    """
    found = _blank(place)
    total, given = len(expected.tokens), len(actual.tokens)
    agreed = _common_prefix(expected.tokens, actual.tokens)
    if actual.fault is not None:
        found = replace(found, verdict=Verdict.ERROR)
        # The steps are told, not counted: the answer's end is all that is compared here.
        told = replace(found, steps=agreed)
        return replace(found, message=messages.failure(place, told, actual))
    if agreed < min(total, given):
        why = f"the tokens differ from step {agreed} on, so their ends cannot be compared"
        found = replace(found, verdict=Verdict.INCONCLUSIVE)
        return replace(found, message=messages.inconclusive(place, found, why))
    if given == total and actual.finish == expected.finish:
        return replace(found, steps=1)
    found = replace(
        found,
        verdict=Verdict.WRONG,
        step=min(total, given) if given != total else total - 1,
        expected=expected.tokens[agreed] if agreed < total else None,
        actual=actual.tokens[agreed] if agreed < given else None,
    )
    what, told = _end_headline(expected, actual), replace(found, steps=agreed)
    return replace(found, message=messages.difference(place, told, what, expected))


def without_verdict(place: Place, why: str) -> Comparison:
    """Return an INCONCLUSIVE comparison, with the reason."""
    found = replace(_blank(place), verdict=Verdict.INCONCLUSIVE)
    return replace(found, message=messages.inconclusive(place, found, why))


def _differs(place: Place, expected: Trace, actual: Trace, step: int) -> Comparison:
    wanted = expected.tokens[step]
    given = actual.tokens[step] if step < len(actual.tokens) else None
    scores = expected.scores[step] if step < len(expected.scores) else None
    regret = None
    if scores is not None and given is not None:
        own, other = scores.logprob(wanted), scores.logprob(given)
        regret = own - other if own is not None and other is not None else None
    total = len(expected.tokens)
    found = replace(
        _blank(place),
        verdict=Verdict.WRONG,
        step=step,
        expected=wanted,
        actual=given,
        margin=scores.margin if scores else None,
        regret=regret,
        steps=step,
        skipped=total - step - 1,
    )
    what = f"token {step + 1} of {total} differs (step {step})"
    if given is None:
        what = f"the answer ends too early: {step} of {total} tokens (step {step} is missing)"
    return replace(found, message=messages.difference(place, found, what, expected))


def _end_headline(expected: Trace, actual: Trace) -> str:
    total, given = len(expected.tokens), len(actual.tokens)
    if expected.finish == "stop" and given == total - 1:
        return f"the stop id of step {total - 1} was left out"
    if given < total:
        return f"the answer ends too early: {given} of {total} tokens"
    if given > total:
        return (
            f"the answer goes on past its stop id: {given} tokens where the reference "
            f"stopped at step {total - 1}"
        )
    if actual.finish is None:
        return f"the answer was cut off at {total} tokens: the engine did not end it"
    return (
        f"the answer ends for {actual.finish!r} where the reference's ends for "
        f"{expected.finish!r}"
    )


def _blank(place: Place) -> Comparison:
    prompt = place.case.prompts[place.row]
    return Comparison(
        check=place.check,
        prompt_id=prompt.id,
        verdict=Verdict.EXACT,
        case=place.case.id,
        batch=len(place.case.prompts),
        row=place.row,
        neighbours=place.neighbours,
    )


def _common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    for step, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return step
    return min(len(left), len(right))
