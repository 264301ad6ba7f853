"""Checks of requests in company: after one another, at once, and beside one that leaves.

A request in company may be computed in other shapes than alone, and near ties then flip. So
another answer than alone is a fault where it is a neighbour's, or wrong where the one alone
was right. Where both are right, or neither is, text alone cannot tell rounding from a fault,
and the check is inconclusive: the backend ``server`` can tell.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, BrokenBarrierError, Event
from typing import TYPE_CHECKING

from mlxcheck.errors import ServerError
from mlxcheck.smoke.asking import CheckFailed, Undecided
from mlxcheck.smoke.questions import COUNTS, EIGHT, LONG, OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlxcheck.smoke.asking import Asker, Reply
    from mlxcheck.smoke.questions import Question

__all__ = ["cancelled", "eight", "repeatable"]

_TIMES = 5
_OPEN_TOKENS = 32
_TRIES = 3
_ROUNDS = 3
_START_S = 10.0
_ROUNDING = (
    "in company a model may round otherwise; `mlxcheck run MODEL --backend server` measures it"
)


def repeatable(asker: Asker) -> str:
    """The same prompt five times, one after another, at temperature 0: one answer.

    The first may find nothing in the KV cache where the others find the prompt, and is then
    computed in other shapes. So if it alone differs, nothing is decided.
    """
    replies = [asker.ask(OPEN, max_tokens=_OPEN_TOKENS) for _ in range(_TIMES)]
    texts = [reply.thought + reply.text for reply in replies]
    for reply, text in zip(replies[2:], texts[2:], strict=True):
        if text != texts[1]:
            reply.fail(f"at temperature 0 the same answer as the time before: {texts[1]!r}")
    if texts[0] != texts[1]:
        msg = (
            f"asked {replies[0].asked} {_TIMES} times: the first answer, {texts[0]!r}, is not "
            f"the others', {texts[1]!r}; with a prefix in its KV cache a model may round "
            "otherwise"
        )
        raise Undecided(msg)
    return f"{_TIMES} times {replies[0].shown}"


def eight(asker: Asker) -> str:
    """Eight requests at once each get their own answer, the one that they get alone."""
    alone = {question: asker.alone(question) for question in EIGHT}
    if len({reply.text for reply in alone.values()}) < len(EIGHT):
        same = ", ".join(f"{reply.asked}: {reply.text!r:.60}" for reply in alone.values())
        msg = f"asked alone, not all of eight questions have answers of their own: {same}"
        raise Undecided(msg)
    for _ in range(_ROUNDS):
        outcomes = _at_once(partial(_with_others, asker, Barrier(len(EIGHT))), EIGHT)
        _judge(alone, outcomes, f"with {len(EIGHT) - 1} others at once")
    return f"{_ROUNDS} times {len(EIGHT)} at once, each its own answer, as alone"


def cancelled(asker: Asker) -> str:
    """A stream that is left in the middle disturbs no neighbour, nor whoever comes next."""
    alone = {question: asker.alone(question) for question in COUNTS}
    before = asker.alone(LONG)
    for _ in range(_TRIES):
        if _leave_beside(asker, alone):
            break
    else:
        msg = f"in {_TRIES} tries the neighbours had their answers before the stream was left"
        raise Undecided(msg)
    _judge({LONG: before}, {LONG: _outcome(asker.ask, LONG)}, "after a stream of it was left")
    return f"{len(COUNTS)} neighbours of a stream that was left have their answers as alone"


def _with_others(asker: Asker, barrier: Barrier, question: Question) -> Reply:
    _meet(barrier)
    return asker.ask(question)


def _leave_beside(asker: Asker, alone: Mapping[Question, Reply]) -> bool:
    """Leave a stream while its neighbours wait; tell whether they still did."""
    barrier, left = Barrier(len(alone) + 1), Event()
    waiting: list[bool] = []

    def neighbour(question: Question) -> Reply:
        _meet(barrier)
        reply = asker.stream(question)
        waiting.append(left.is_set())
        return reply

    def leave(question: Question) -> None:
        _meet(barrier)
        with asker.streaming(question) as events:
            for event in events:
                if "content" in str(event):
                    break
        left.set()

    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(leave, LONG)
        outcomes = _at_once(neighbour, tuple(alone))
        leaving.result()
    _judge(alone, outcomes, "beside a stream that was left in the middle")
    return any(waiting)


def _at_once(
    ask: Callable[[Question], Reply], questions: Sequence[Question]
) -> dict[Question, Reply | CheckFailed | ServerError]:
    with ThreadPoolExecutor(len(questions)) as pool:
        outcomes = pool.map(lambda question: _outcome(ask, question), questions)
        return dict(zip(questions, outcomes, strict=True))


def _outcome(
    ask: Callable[[Question], Reply], question: Question
) -> Reply | CheckFailed | ServerError:
    try:
        return ask(question)
    except (CheckFailed, ServerError) as error:
        return error


def _meet(barrier: Barrier) -> None:
    try:
        barrier.wait(_START_S)
    except BrokenBarrierError:  # a thread that did not start: the others ask all the same
        return


def _judge(
    alone: Mapping[Question, Reply],
    outcomes: Mapping[Question, Reply | CheckFailed | ServerError],
    company: str,
) -> None:
    """Hold answers in company against those alone.

    Raises:
        CheckFailed: One is missing, cut, another's, or wrong.
        ServerError: One did not come, though the others may have.
        Undecided: One is another than alone, for which rounding may be the reason.
    """
    doubts: list[str] = []
    for question, outcome in outcomes.items():
        own = alone[question]
        if isinstance(outcome, CheckFailed | ServerError):
            raise outcome
        if (outcome.text, outcome.thought) == (own.text, own.thought):
            continue
        asked = f"{own.asked} {company}"
        for other in alone:
            if other != question and outcome.text == alone[other].text:
                came = f"{outcome.shown}, which is the answer to {alone[other].asked}"
                raise CheckFailed(asked, came, f"as alone: {own.shown}")
        wrong = question.answered_by(own.text) and not question.answered_by(outcome.text)
        if wrong or outcome.finish != own.finish:
            raise CheckFailed(asked, outcome.shown, f"as alone: {own.shown}")
        doubts.append(f"asked {asked}: {outcome.shown}; alone: {own.shown}")
    if doubts:
        more = [f"{len(doubts) - 1} more differ likewise"] if doubts[1:] else []
        raise Undecided("\n".join([doubts[0], *more, _ROUNDING]))
