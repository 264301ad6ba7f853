"""Checks of one answer at a time."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from mlxcheck.errors import ServerError
from mlxcheck.smoke.asking import CheckFailed, listed
from mlxcheck.smoke.questions import FRANCE, TWO

if TYPE_CHECKING:
    from mlxcheck.smoke.asking import Asker, Reply
    from mlxcheck.smoke.questions import Question

__all__ = [
    "again",
    "answers",
    "capital",
    "content_type",
    "finish",
    "models",
    "stream",
    "thinking",
    "two",
]

_ENDS = ("stop", "length", "content_filter", "tool_calls", "function_call")
"""Every finish_reason that OpenAI's API has."""

_TAGS = ("<think>", "</think>", "<|channel|>", "<seed:think>", "</seed:think>")
"""Marks around what models think before they answer."""


def models(asker: Asker) -> str:
    """The server lists its models."""
    return f"listed: {', '.join(listed(asker.client))}"


def answers(asker: Asker) -> str:
    """The first request is answered, and not by nothing."""
    reply = asker.ask(FRANCE)
    _require_text(reply)
    return reply.shown


def again(asker: Asker) -> str:
    """A second request, for something else, is answered too, and not with the first answer."""
    first, second = asker.ask(FRANCE), asker.ask(TWO)
    _require_text(second)
    if second.text == first.text:
        second.fail(f"another answer than the one to {first.asked} before it")
    return second.shown


def two(asker: Asker) -> str:
    """2+2 gives 4."""
    return _require_right(asker.ask(TWO), TWO)


def capital(asker: Asker) -> str:
    """The capital of France is Paris."""
    return _require_right(asker.ask(FRANCE), FRANCE)


def content_type(asker: Asker) -> str:
    """Answers say that they are JSON, streams that they are event streams."""
    reply = asker.ask(TWO)
    if reply.content_type != "application/json":
        came = f"Content-Type {reply.content_type!r}"
        raise CheckFailed(reply.asked, came, "Content-Type 'application/json'")
    with suppress(ServerError), asker.streaming(TWO) as events:
        if events.content_type != "text/event-stream":
            came = f"Content-Type {events.content_type!r}"
            asked, expected = f"{reply.asked}, stream True", "Content-Type 'text/event-stream'"
            raise CheckFailed(asked, came, expected)
        deque(events, maxlen=0)  # whether it comes to its end is for the check `stream`
    return "application/json and text/event-stream"


def finish(asker: Asker) -> str:
    """The reason for the end is one of those that there are, and the true one.

    Where the server counts tokens, an answer shorter than it might have been has stopped.
    """
    reply = asker.ask(TWO)
    count = (reply.usage or {}).get("completion_tokens")
    if reply.finish not in _ENDS:
        reply.fail(f"finish_reason one of {', '.join(_ENDS)}")
    if isinstance(count, int) and count < asker.max_tokens and reply.finish == "length":
        reply.fail(f"'stop': {count} tokens came of the {asker.max_tokens} that were allowed")
    if isinstance(count, int) and count > asker.max_tokens:
        reply.fail(f"at most {asker.max_tokens} tokens; the server counts {count}")
    return reply.shown


def thinking(asker: Asker) -> str:
    """What a model thinks before it answers is no part of the answer."""
    for reply in (asker.ask(TWO), asker.ask(FRANCE)):
        for tag in _TAGS:
            if tag in reply.text:
                reply.fail(f"no {tag} in the answer: what a model thinks goes apart from it")
    return "no mark of reasoning in an answer"


def stream(asker: Asker) -> str:
    """A streamed answer, pieced together, is the whole answer, and ends alike."""
    for question in (FRANCE, TWO):
        whole, pieces = asker.ask(question), asker.stream(question)
        if (pieces.text, pieces.thought) != (whole.text, whole.thought):
            pieces.fail(f"the answer that came without streaming: {whole.shown}")
        if pieces.finish != whole.finish:
            pieces.fail(f"finish_reason {whole.finish!r}, as without streaming")
        _require_text(pieces)
    return pieces.shown


def _require_text(reply: Reply) -> None:
    if not (reply.text.strip() or reply.thought.strip()):
        reply.fail("an answer that is not empty")


def _require_right(reply: Reply, question: Question) -> str:
    if not question.answered_by(reply.text):
        cut = "; it was cut at max_tokens, see --max-tokens" if reply.finish == "length" else ""
        reply.fail(f"an answer with {' '.join(question.expects)!r}{cut}")
    return reply.shown
