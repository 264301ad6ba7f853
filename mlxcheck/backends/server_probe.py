"""What a running server can be asked, found out by asking it.

Each way in is tried with real requests, the one that shows most first, and taken where the
answer holds what it should. What a server documents, or is called, is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Request
from mlxcheck.backends.server_wires import Generate, IdsInLogprobs, ReturnsIds, TextAlone
from mlxcheck.errors import BackendError, EngineFault, ServerError
from mlxcheck.texts import spelling_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlxcheck.backends.server_wires import Wire
    from mlxcheck.records import ModelRef
    from mlxcheck.serving.client import Client

__all__ = ["Found", "Prompts", "find"]

_TEXT = "The capital of France is Paris. 2+2 equals 4. "
_END = "The capital of France is"
_LONG = 96  # tokens: more than engines that cache by blocks need to find a prompt again
_SAID = 6
_CHAT = "/v1/chat/completions"


class Prompts:
    """The model's tokenizer, as a server that takes text would use it.

    Args:
        tokenizer: mlx-lm's.

    Attributes:
        spelling: Its spelling.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.spelling = spelling_of(tokenizer)

    def text(self, tokens: Sequence[int]) -> str | None:
        """Return a text that is read as exactly these ids; None where there is none.

        Tokenizers put a first token before a text that has none: such a one is left out.
        """
        for ids in (tokens, tokens[1:]):
            text = self.spelling.decode(ids)
            if text and [int(each) for each in self._tokenizer.encode(text)] == list(tokens):
                return text
        return None

    def example(self, most: int) -> tuple[int, ...]:
        """Return a prompt of many tokens, up to *most*, that text can ask for."""
        tokens: tuple[int, ...] = ()
        for times in range(_LONG):
            longer = tuple(int(each) for each in self._tokenizer.encode(_TEXT * times + _END))
            if len(longer) <= most and (not tokens or self.text(longer)):
                tokens = longer
            if len(longer) >= min(_LONG, most):
                break
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A server that has been asked.

    Attributes:
        wire: The way in.
        capabilities: What can be asked through it.
        model: The model's name there; None where it needs none.
        forgets: It can be told to forget the prompts that it has read.
    """

    wire: Wire
    capabilities: Capabilities
    model: str | None
    forgets: bool = False

    @property
    def takes_text(self) -> bool:
        """Whether prompts are given as text."""
        return isinstance(self.wire, IdsInLogprobs | TextAlone)

    def chat_ids(self, client: Client, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids that the server makes of a chat.

        Raises:
            EngineFault: It does not say so.
        """
        body: dict[str, Any] = {
            "messages": [dict(turn) for turn in messages],
            "max_tokens": 1,
            "temperature": 0,
            "return_token_ids": True,  # vLLM's name of it, and SGLang's
            "return_prompt_token_ids": True,
        }
        named = {} if self.model is None else {"model": self.model}
        answer = client.post(_CHAT, body | named)
        whole = answer.json if isinstance(answer.json, dict) else {}
        choices = whole.get("choices") or [{}]
        ids = whole.get("prompt_token_ids") or choices[0].get("prompt_token_ids")
        if not answer.ok or not isinstance(ids, list):
            msg = (
                f"POST {_CHAT}: status {answer.status}, and no ids of the prompt in the answer"
            )
            raise EngineFault(msg)
        return [int(token) for token in ids]


def find(client: Client, model: ModelRef, prompts: Prompts, named: str | None) -> Found:
    """Find the way in that shows most.

    Args:
        client: Of the server.
        model: The reference's.
        prompts: Its tokenizer.
        named: The model's name there, where the user gave it.

    Raises:
        BackendError: There is no server, or no way in.
    """
    name = named or _served(client, model)
    most = model.max_positions or _LONG * 2
    tokens = prompts.example(most - _SAID)
    tried: list[str] = []
    for wire in _wires(client, name, prompts):
        problem = _try(client, wire, prompts, tokens, model)
        if not problem:
            return _settled(client, wire, name, _request(tokens, model))
        tried.append(f"{wire.name}: {problem}")
        _require_alive(client, wire)
    msg = f"{client.url} cannot be asked for the answer to a prompt. Tried were " + "; ".join(
        tried
    )
    raise BackendError(msg)


def _wires(client: Client, name: str | None, prompts: Prompts) -> Iterator[Wire]:
    # SGLang's MLX backend ends with the first request for log-probabilities (0.5.23), where
    # it was not started with --mlx-enable-sampling; its other devices give them.
    info = _get(client, "/server_info")
    ends = info.get("mlx_enable_sampling") is False and info.get("device") != "cuda"
    if info or _exists(client, "/generate"):
        if not ends:
            yield Generate(logprobs=True)
        yield Generate()
    yield ReturnsIds(model=name, logprobs=True)
    yield ReturnsIds(model=name)
    yield IdsInLogprobs(model=name, spelling=prompts.spelling)
    yield TextAlone(model=name)
    yield TextAlone(model=name).whole()


def _settled(client: Client, wire: Wire, name: str | None, again: Request) -> Found:
    """Ask the rest: whether prompts are found again, and what chats are read as."""
    found = Found(
        wire=wire,
        model=name,
        capabilities=Capabilities(
            casts=False,
            # What comes whole cannot be met in the middle.
            joins=wire.streams,
            ids=wire.ids,
            logprobs=wire.logprobs,
        ),
    )
    reuses = False
    # The check of prefixes makes prompts of any ids, and no text can ask for most of these.
    if not found.takes_text:
        reader = wire.reader()
        _answer(client, wire, reader, again, None)
        reuses = bool(reader.cached_tokens)
    try:
        found.chat_ids(client, [{"role": "user", "content": "2+2?"}])
        encodes = True
    except (EngineFault, ServerError, TypeError, ValueError, AttributeError, IndexError):
        encodes = False
        _require_alive(client, wire)
    can = replace(found.capabilities, prefix_cache=reuses, encode=encodes)
    return replace(found, capabilities=can, forgets=reuses and isinstance(wire, Generate))


def _try(
    client: Client, wire: Wire, prompts: Prompts, tokens: tuple[int, ...], model: ModelRef
) -> str:
    """Ask one small request; return what is wrong with the answer, or nothing."""
    reader = wire.reader()
    takes_text = isinstance(wire, IdsInLogprobs | TextAlone)
    text = prompts.text(tokens) if takes_text else None
    if takes_text and text is None:
        return "the text of no prompt is read as its own ids"
    try:
        pieces = _answer(client, wire, reader, _request(tokens, model), text)
    except (EngineFault, ServerError) as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f"an answer of another form ({type(error).__name__}: {error})"
    read = reader.prompt_tokens
    wrong = (
        (reader.finish is None, "the answer does not say why it ended"),
        (
            read not in {None, len(tokens)},
            f"it read {read} prompt tokens where {len(tokens)} were given",
        ),
        (not pieces and wire.ids, "no token ids"),
        (not pieces and reader.finish == "length", "no text"),
        (
            wire.logprobs and not all(piece.logprobs for piece in pieces),
            "no log-probabilities by token id",
        ),
    )
    return next((text for found, text in wrong if found), "")


def _answer(
    client: Client, wire: Wire, reader: Any, request: Request, text: str | None
) -> list[Any]:
    body = wire.body(request, text)
    if wire.streams:
        with client.stream(wire.path, body) as events:
            return [piece for payload in events for piece in reader.take(payload)]
    answer = client.post(wire.path, body)
    if not answer.ok or not isinstance(answer.json, dict):
        msg = f"status {answer.status}: {answer.text!r:.120}"
        raise EngineFault(msg)
    return list(reader.take(answer.json))


def _request(tokens: tuple[int, ...], model: ModelRef) -> Request:
    return Request(id="probe", tokens=tokens, max_tokens=_SAID, stop_ids=model.stop_ids)


def _served(client: Client, model: ModelRef) -> str | None:
    """Return the model's name on the server; None where it tells of none.

    Raises:
        BackendError: There is no server, or it has several models and none by this name.
    """
    try:
        answer = client.get("/v1/models")
    except ServerError as error:
        if error.kind == "refused":
            msg = f"{error}. Start the server first, or mend its URL."
            raise BackendError(msg) from error
        return None
    listed = answer.json.get("data") if isinstance(answer.json, dict) else None
    named = [each.get("id") for each in listed or () if isinstance(each, dict)]
    names = [name for name in named if isinstance(name, str)]
    here = {model.source, model.path, str(Path(model.path).resolve())}
    for fits in (here.__contains__, lambda name: name.rpartition("/")[2] == model.name):
        if found := [name for name in names if fits(name)]:
            return str(found[0])
    if len(names) > 1:
        msg = (
            f"{client.url} serves {', '.join(names[:8])}, and none is called {model.name}. Set "
            "MLXCHECK_SERVER_MODEL to the one that was made of this checkpoint."
        )
        raise BackendError(msg)
    return names[0] if names else None


def _get(client: Client, path: str) -> dict[str, Any]:
    try:
        answer = client.get(path)
    except ServerError:
        return {}
    return answer.json if answer.ok and isinstance(answer.json, dict) else {}


def _exists(client: Client, path: str) -> bool:
    """Tell whether a path is known: asked for nothing, it is refused and not missing."""
    try:
        return client.post(path, {}).status not in {404, 405, 501}
    except ServerError:
        return False


def _require_alive(client: Client, wire: Wire) -> None:
    try:
        client.get("/v1/models")
    except ServerError as error:
        if error.kind == "refused":
            msg = (
                f"{client.url} went down while it was found out what it can show, at or before "
                f"{wire.name}{' and log-probabilities' if wire.logprobs else ''}: {error}"
            )
            raise BackendError(msg) from error
