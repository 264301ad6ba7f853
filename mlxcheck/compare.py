"""Pure judgement: two traces in, a `Comparison` out. Nothing is printed, nothing is run.

The comparison ends at the reference's first stop id, included. What an engine says after
that is no evidence about its tokens; whether it stopped is a question of its own
(`compare_end`).

A candidate's token that is not the reference's is held against the band: with every entry of
the difference of two engines' log-probabilities known to be below d, a token whose regret is
above 2 d was not preferred by rounding (T-DiFR, arXiv 2511.20621, calls it the margin of a
token at temperature 0).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from mlxcheck import messages
from mlxcheck.noise import ulp
from mlxcheck.records import Comparison, Scores, Trace, Verdict

if TYPE_CHECKING:
    from mlxcheck.messages import Place
    from mlxcheck.noise import Noise

__all__ = [
    "at_scores",
    "blank",
    "compare_end",
    "compare_tokens",
    "first_tie",
    "matched_steps",
    "top",
    "weigh",
    "without_verdict",
]

_SHOWN = 5

Weighed = Literal["tie", "beyond", "unknown"]
"""A differing token against the band: within, beyond, or beyond what can be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """How far two answers can be compared.

    Attributes:
        compared: Steps at matched contexts, the differing ones included.
        ties: Those of them that differ within the band.
        end: The step at which it ended before the answers did, and why.
    """

    compared: int
    ties: tuple[int, ...]
    end: tuple[int, Weighed | Literal["missing", "lost"]] | None


def compare_tokens(place: Place, expected: Trace, actual: Trace) -> Comparison:
    """Compare token by token, to the end of the reference's answer.

    An engine that leaves the stop id itself out, as many do, has agreed.

    Args:
        place: Where the two were made.
        expected: The reference's trace.
        actual: The candidate's trace; past a tie it goes on where it was put back on the
            reference's tokens (`Trace.anchors`).

    Returns:
        EXACT; TIE where every difference is within the band; WRONG at the first step that
        is not; INCONCLUSIVE where a difference cannot be weighed, or the engine could not be
        asked; ERROR where it failed.
    """
    walk = _walk(place.noise, expected, actual)
    found = blank(place)
    if actual.fault is not None:
        return _unanswered(place, actual, walk)
    found = _with_ties(found, place.noise, walk, expected, actual)
    if walk.end is None or walk.end[1] == "lost":
        if not walk.ties:
            return replace(found, regret=0.0, steps=walk.compared)
        return _tie(place, found, walk, expected, actual)
    return _differs(place, found, walk, expected, actual)


def compare_end(place: Place, expected: Trace, actual: Trace) -> Comparison:
    """Compare how the two answers end: at the same step, for the same reason.

    Args:
        place: Where the two were made.
        expected: The reference's trace.
        actual: The candidate's, of an engine that stops by itself.

    Returns:
        EXACT; WRONG where it went on past the stop id, stopped early, left the stop id
        out, or gave another reason; TIE where a tie stands at the end itself; INCONCLUSIVE
        where the tokens before had differed.
    """
    found = blank(place)
    total, given = len(expected.tokens), len(actual.tokens)
    walk = _walk(place.noise, expected, actual)
    if actual.fault is not None:
        # The steps are told, not counted: the answer's end is all that is compared here.
        return replace(_unanswered(place, actual, walk), steps=0)
    if walk.end is not None and walk.end[1] not in {"missing", "lost"}:
        return without_verdict(place, _unmatched(walk.end[0]))
    if walk.ties and walk.ties[-1] == total - 1:
        last = walk.ties[-1]
        found = _with_ties(found, place.noise, walk, expected, actual)
        found = _at(found, place.noise, last, expected, actual)
        found = replace(found, verdict=Verdict.TIE, steps=0, ties=1)
        return replace(found, message=messages.tie(place, found, (last,), total))
    if walk.end is not None and walk.end[1] == "lost":
        return without_verdict(place, _unmatched(walk.end[0]))
    if given == total and actual.finish == expected.finish:
        return replace(found, steps=1)
    agreed = min(total, given)
    found = replace(
        found,
        verdict=Verdict.WRONG,
        step=agreed if given != total else total - 1,
        expected=expected.tokens[agreed] if agreed < total else None,
        actual=actual.tokens[agreed] if agreed < given else None,
    )
    what, told = _end_headline(expected, actual), replace(found, steps=agreed)
    return replace(found, message=messages.difference(place, told, what, expected))


def without_verdict(place: Place, why: str) -> Comparison:
    """Return an INCONCLUSIVE comparison, with the reason."""
    found = replace(blank(place), verdict=Verdict.INCONCLUSIVE)
    return replace(found, message=messages.inconclusive(place, found, why))


def first_tie(noise: Noise | None, expected: Trace, actual: Trace) -> int | None:
    """Return the step of a tie past which *actual* could go on from the reference's tokens.

    None where there is no such step: they agree, differ beyond the band, or the tie is the
    last step.
    """
    walk = _walk(noise, expected, actual)
    if actual.fault is not None or walk.end is None or walk.end[1] != "lost":
        return None
    return walk.end[0] - 1


def matched_steps(noise: Noise | None, expected: Trace, actual: Trace) -> int:
    """Return how many steps, from the first, the two made in the same context."""
    walk = _walk(noise, expected, actual)
    differs = walk.end is not None and walk.end[1] in {"beyond", "unknown"}
    return walk.compared + differs


def blank(place: Place) -> Comparison:
    """Return an EXACT comparison of nothing, to be filled in."""
    prompt = place.case.prompts[place.row]
    return Comparison(
        check=place.check,
        prompt_id=prompt.id,
        verdict=Verdict.EXACT,
        case=place.case.id,
        batch=len(place.case.prompts),
        row=place.row,
        neighbours=place.neighbours,
        precision=place.precision,
    )


def weigh(noise: Noise | None, scores: Scores | None, token: int, wanted: int) -> Weighed:
    """Hold the regret of a token against the band.

    Args:
        noise: What was measured; None allows nothing.
        scores: The reference's, at this step.
        token: The candidate's.
        wanted: The reference's.
    """
    if noise is None or scores is None:
        return "beyond"
    band, own, other = noise.band(scores), scores.logprob(wanted), scores.logprob(token)
    if own is None:
        return "beyond"
    if other is not None:
        return "tie" if own - other <= band else "beyond"
    # Outside of what was kept: its regret is at least that of the last one kept.
    return "beyond" if own - scores.logprobs[-1] > band else "unknown"


def _walk(noise: Noise | None, expected: Trace, actual: Trace) -> _Walk:
    ties: list[int] = []
    total, given = len(expected.tokens), len(actual.tokens)
    for step, wanted in enumerate(expected.tokens):
        if ties and ties[-1] == step - 1 and ties[-1] not in actual.anchors:
            return _Walk(compared=step, ties=tuple(ties), end=(step, "lost"))
        if step >= given:
            left_out = expected.finish == "stop" and given == step == total - 1
            end = None if left_out else (step, "missing")
            return _Walk(compared=step, ties=tuple(ties), end=end)  # type: ignore[arg-type]
        if actual.tokens[step] == wanted:
            continue
        weighed = _weigh_both(noise, expected, actual, step)
        if weighed != "tie":
            return _Walk(compared=step, ties=tuple(ties), end=(step, weighed))
        ties.append(step)
    return _Walk(compared=total, ties=tuple(ties), end=None)


def _weigh_both(noise: Noise | None, expected: Trace, actual: Trace, step: int) -> Weighed:
    """Weigh on the reference's side and, where the candidate shows numbers, on its own."""
    wanted, token = expected.tokens[step], actual.tokens[step]
    scores = expected.scores[step] if step < len(expected.scores) else None
    weighed = weigh(noise, scores, token, wanted)
    if weighed != "tie" or noise is None or scores is None or step >= len(actual.scores):
        return weighed
    own, other = actual.scores[step].logprob(token), actual.scores[step].logprob(wanted)
    if own is None or other is None:
        return weighed
    return "tie" if own - other <= noise.band(scores) else "beyond"


def _with_ties(
    found: Comparison, noise: Noise | None, walk: _Walk, expected: Trace, actual: Trace
) -> Comparison:
    """Count the ties and the near steps among what was compared."""
    if noise is None or not expected.scores:
        return found
    regrets = [
        _regret(expected.scores[step], expected.tokens[step], actual.tokens[step]) or 0.0
        for step in walk.ties
    ]
    near = sum(
        scores.margin <= noise.band(scores) for scores in expected.scores[: walk.compared]
    )
    return replace(found, ties=len(walk.ties), worst_tie=max(regrets, default=0.0), near=near)


def _unanswered(place: Place, actual: Trace, walk: _Walk) -> Comparison:
    if actual.fault is not None and not actual.fault.asked:
        return without_verdict(place, actual.fault.summary)
    found = replace(blank(place), verdict=Verdict.ERROR, steps=walk.compared)
    return replace(found, message=messages.failure(place, found, actual))


def _tie(
    place: Place, found: Comparison, walk: _Walk, expected: Trace, actual: Trace
) -> Comparison:
    first, total = walk.ties[0], len(expected.tokens)
    found = _at(found, place.noise, first, expected, actual)
    found = replace(
        found,
        verdict=Verdict.TIE,
        steps=walk.compared - 1,
        skipped=total - walk.compared if walk.end else 0,  # a stop id left out is agreed on
    )
    return replace(found, message=messages.tie(place, found, walk.ties, total))


def _differs(
    place: Place, found: Comparison, walk: _Walk, expected: Trace, actual: Trace
) -> Comparison:
    assert walk.end is not None  # noqa: S101 - the caller has seen to it
    step, why = walk.end
    total = len(expected.tokens)
    found = _at(found, place.noise, step, expected, actual)
    found = replace(found, verdict=Verdict.WRONG, steps=walk.compared, skipped=total - step - 1)
    if why == "unknown":
        # What could not be weighed was not compared either.
        found = replace(found, verdict=Verdict.INCONCLUSIVE, step=None, skipped=total - step)
        text = messages.unweighable(step, len(expected.scores[step].ids))
        return replace(found, message=messages.inconclusive(place, found, text))
    what = f"token {step + 1} of {total} differs (step {step})"
    if why == "missing":
        what = f"the answer ends too early: {step} of {total} tokens (step {step} is missing)"
    return replace(found, message=messages.difference(place, found, what, expected))


def _at(
    found: Comparison, noise: Noise | None, step: int, expected: Trace, actual: Trace
) -> Comparison:
    """Fill in everything about one step."""
    wanted = expected.tokens[step]
    token = actual.tokens[step] if step < len(actual.tokens) else None
    found = replace(found, step=step, expected=wanted, actual=token)
    if step < len(actual.scores):
        found = replace(found, top_actual=top(actual.scores[step]))
    if step >= len(expected.scores):
        return found
    return at_scores(found, noise, expected.scores[step], wanted, token)


def at_scores(
    found: Comparison, noise: Noise | None, scores: Scores, wanted: int, token: int | None
) -> Comparison:
    """Fill in margin, regret, band and units of one step."""
    regret = None if token is None else _regret(scores, wanted, token)
    units = None
    if noise is not None and regret is not None:
        units = regret / ulp(noise.dtype, scores.top_logit)
    return replace(
        found,
        margin=scores.margin,
        regret=regret,
        noise=None if noise is None else noise.band(scores),
        ulps=units,
        top_expected=top(scores),
    )


def top(scores: Scores) -> tuple[tuple[int, float], ...]:
    """Return the best few tokens with their log-probabilities."""
    return tuple(zip(scores.ids[:_SHOWN], scores.logprobs[:_SHOWN], strict=True))


def _regret(scores: Scores, wanted: int, token: int) -> float | None:
    """Return the reference's log-probability of its token minus another's, in nats.

    Never below 0: mlx-lm chooses from log-probabilities that were rounded to the model's
    dtype, where two logits that differ may have become equal.
    """
    own, other = scores.logprob(wanted), scores.logprob(token)
    return None if own is None or other is None else max(0.0, own - other)


def _unmatched(step: int) -> str:
    return f"the tokens differ from step {step} on, so their ends cannot be compared"


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
