"""One server, asked as an OpenAI-compatible one, and its answers read with suspicion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mlxcheck.errors import ServerError
from mlxcheck.serving.client import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from mlxcheck.serving.client import Answer, Client
    from mlxcheck.serving.events import Events
    from mlxcheck.smoke.counting import Counter
    from mlxcheck.smoke.questions import Question

__all__ = ["CHAT", "Asker", "CheckFailed", "Reply", "Undecided", "listed", "pieced"]

CHAT = "/v1/chat/completions"
"""Where chats are answered."""

MODELS_PATH = "/v1/models"
_GONE = 500
"""From here on a status says that the server failed, and not the request."""


class CheckFailed(Exception):  # noqa: N818 - what a check says, not what went wrong in it
    """A check found a fault.

    Attributes:
        silent: No usable answer came, so that others may not come either.
    """

    def __init__(self, asked: str, came: str, expected: str, *, silent: bool = False) -> None:
        super().__init__(f"asked {asked}\n  came     {came}\n  expected {expected}")
        self.silent = silent


class Undecided(Exception):  # noqa: N818 - as above
    """A check cannot tell whether there is a fault; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that has the shape of one.

    Attributes:
        asked: What was asked, for messages.
        text: What is shown to the user.
        finish: The reason for its end; None where none was given.
        usage: The token counts, as they came; None where there are none.
        thought: What came apart from the answer, as reasoning.
        content_type: The media type that the server declared.
    """

    asked: str
    text: str
    finish: str | None
    usage: Mapping[str, Any] | None = None
    thought: str = ""
    content_type: str = ""

    def fail(self, expected: str) -> NoReturn:
        """Say that this is not what was expected.

        Raises:
            CheckFailed: Always.
        """
        raise CheckFailed(self.asked, self.shown, expected)

    @property
    def shown(self) -> str:
        """The text and its end, for messages."""
        text = excerpt(self.text) if self.text else "an empty answer"
        thought = (
            f" after {len(self.thought):,} characters of reasoning" if self.thought else ""
        )
        return f"{text}{thought}, finish_reason {self.finish!r}"


class Asker:
    """Asks one server about one model.

    Args:
        client: Where to.
        model: What requests call the model.
        max_tokens: Of one answer.
        counter: Counts tokens as the model's own tokenizer does; None without one.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        max_tokens: int = 256,
        counter: Counter | None = None,
    ) -> None:
        self.client = client
        self.model = model
        self.max_tokens = max_tokens
        self.counter = counter
        self._alone: dict[Question, Reply] = {}

    def body(self, question: Question, **fields: Any) -> dict[str, Any]:
        """Return the request for a greedy answer; *fields* replace its own."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": question.text}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
            **fields,
        }

    def ask(self, question: Question, **fields: Any) -> Reply:
        """Ask for a whole answer.

        Raises:
            CheckFailed: The answer has not the shape of one.
            ServerError: None came.
        """
        asked = _asked(question, fields)
        answer = self.client.post(CHAT, self.body(question, **fields))
        _require_success(asked, answer)
        choice = _choice(answer.json)
        message = choice.get("message") if choice else None
        if choice is None or not isinstance(message, dict):
            came = excerpt(answer.text)
            raise CheckFailed(asked, came, "JSON with choices[0].message", silent=True)
        return Reply(
            asked=asked,
            text=_text(message.get("content")),
            finish=choice.get("finish_reason"),
            usage=_usage(answer.json),
            thought=_thought(message),
            content_type=answer.content_type,
        )

    def alone(self, question: Question) -> Reply:
        """Return the answer to *question* when nothing else is asked; asked once."""
        if question not in self._alone:
            self._alone[question] = self.ask(question)
        return self._alone[question]

    def streaming(self, question: Question) -> AbstractContextManager[Events]:
        """Open the stream of an answer."""
        return self.client.stream(CHAT, self.body(question, stream=True))

    def stream(self, question: Question) -> Reply:
        """Ask for a stream, and piece the answer together.

        Raises:
            CheckFailed: An event has not the shape of one.
            ServerError: The stream did not come to its end.
        """
        with self.streaming(question) as events:
            return pieced(question, events, events.content_type)

    def lives(self) -> str:
        """Return why no answer comes any more; empty where one does."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 1,
        }
        try:
            answer = self.client.post(CHAT, body)
        except ServerError as error:
            return str(error)
        return "" if answer.ok else f"POST {CHAT}: status {answer.status}"


def listed(client: Client) -> list[str]:
    """Return the names of the models that a server lists, at least one.

    Raises:
        CheckFailed: It lists none.
        ServerError: No answer came.
    """
    answer = client.get(MODELS_PATH)
    entries = answer.json.get("data") if isinstance(answer.json, dict) else None
    ids = [
        entry.get("id")
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
    ]
    names = [name for name in ids if isinstance(name, str) and name]
    if not (answer.ok and names):
        came = f"status {answer.status}: {excerpt(answer.text)}"
        asked = f"GET {MODELS_PATH}"
        expected = "a list of models; without one, name the model with --served-model"
        raise CheckFailed(asked, came, expected)
    return names


def pieced(question: Question, events: Iterable[dict[str, Any]], content_type: str) -> Reply:
    """Put the events of a stream together.

    Raises:
        CheckFailed: An event has not the shape of one.
    """
    asked = _asked(question, {"stream": True})
    text = thought = ""
    finish: str | None = None
    usage: Mapping[str, Any] | None = None
    for number, event in enumerate(events, 1):
        usage = _usage(event) or usage
        if event.get("choices") == [] and "error" not in event:
            continue  # the event that holds the token counts alone
        choice = _choice(event)
        delta = choice.get("delta") if choice else None
        if choice is None or not isinstance(delta, dict):
            came = f"event {number:,}: {excerpt(str(event))}"
            raise CheckFailed(asked, came, "events with choices[0].delta", silent=True)
        text += _text(delta.get("content"))
        thought += _thought(delta)
        finish = choice.get("finish_reason") or finish
    return Reply(
        asked=asked,
        text=text,
        finish=finish,
        usage=usage,
        thought=thought,
        content_type=content_type,
    )


def _asked(question: Question, fields: Mapping[str, Any]) -> str:
    more = "".join(f", {name} {value!r:.80}" for name, value in fields.items())
    return f"{question.text!r}{more}"


def _require_success(asked: str, answer: Answer) -> None:
    if not answer.ok:
        came = f"status {answer.status}: {excerpt(answer.text)}"
        raise CheckFailed(asked, came, "status 200", silent=answer.status >= _GONE)


def _choice(content: Any) -> dict[str, Any] | None:
    choices = content.get("choices") if isinstance(content, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _usage(content: Any) -> Mapping[str, Any] | None:
    usage = content.get("usage") if isinstance(content, dict) else None
    return usage if isinstance(usage, dict) else None


def _text(content: Any) -> str:
    return content if isinstance(content, str) else ""


def _thought(message: Mapping[str, Any]) -> str:
    """Return the reasoning; servers call it by one of two names, or give it under both."""
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
