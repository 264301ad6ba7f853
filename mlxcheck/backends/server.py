"""A server that is running, asked over HTTP: whatever it is, by the best way in that it has."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Emission, Request, TextEmission
from mlxcheck.backends.server_probe import Found, Prompts, find
from mlxcheck.errors import (
    BackendError,
    CannotAsk,
    EngineFault,
    RequestFailed,
    ServerError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from mlxcheck.backends.server_wires import Piece, Reader
    from mlxcheck.records import Finish, ModelRef
    from mlxcheck.serving.client import Client

__all__ = ["MODEL_VARIABLE", "URL_VARIABLE", "ServerBackend"]

URL_VARIABLE = "MLXCHECK_SERVER_URL"
"""Environment variable with the URL of the server, where none is given."""

MODEL_VARIABLE = "MLXCHECK_SERVER_MODEL"
"""Environment variable with the model's name on the server, where it is not told from
``/v1/models``."""

_WAIT_S = 0.05
_CLOSE_S = 5.0

_Failure = CannotAsk | RequestFailed


@dataclass(slots=True)
class _Live:
    """One request, in flight or with something yet to be told of it."""

    request: Request
    reader: Reader
    emissions: deque[Emission | TextEmission] = field(default_factory=deque)
    held: Piece | None = None
    begun: bool = False
    over: bool = False
    cancelled: bool = False


class ServerBackend:
    """Ask a running server, with each request on a thread of its own.

    What the server can show is found out when it is opened: token ids and log-probabilities,
    token ids, or text alone (`mlxcheck.backends.server_probe`). It decodes greedily, at
    temperature 0, and stops by itself at its own stop set. A stop id that the answer does not
    hold is added where the server says at which id it stopped, and where it says only that it
    stopped, as one that is not named.

    Subclasses may set `url` and `model`.

    Args:
        url: Where it is; by default `url` of the class, then ``MLXCHECK_SERVER_URL``.
        model: Its model's name there; likewise, then ``MLXCHECK_SERVER_MODEL``, then from
            ``/v1/models``.
        timeout_s: For one request, from its start to its last byte.

    Attributes:
        name: What reports call it.
        capabilities: Those of a server that has not been asked, until it is opened.
    """

    name = "server"
    url: str | None = None
    model: str | None = None

    def __init__(
        self, url: str | None = None, *, model: str | None = None, timeout_s: float = 600.0
    ) -> None:
        self.capabilities = Capabilities(casts=False)
        self._url = url or self.url or os.environ.get(URL_VARIABLE, "")
        self._named = model or self.model or os.environ.get(MODEL_VARIABLE) or None
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._found: Found | None = None
        self._prompts: Prompts | None = None
        self._stop_ids: frozenset[int] = frozenset()
        self._lives: dict[str, _Live] = {}
        self._threads: list[threading.Thread] = []
        self._waiting: list[threading.Thread] = []
        self._failures: queue.SimpleQueue[_Failure] = queue.SimpleQueue()
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._cached: int | None = None
        self._width = 0

    def open(self, model: ModelRef) -> None:
        """Find out what the server can be asked, with a few small requests.

        Raises:
            BackendError: There is no server, none that answers, or none that can be asked.
        """
        from mlxcheck.reference import stop_set, tokenizer_of
        from mlxcheck.serving.client import Client

        if not self._url:
            msg = (
                f"backend 'server': no server is named. Set {URL_VARIABLE}, for one at "
                "http://127.0.0.1:PORT, or give ServerBackend a url."
            )
            raise BackendError(msg)
        try:
            self._client = Client(self._url, timeout_s=self._timeout_s)
        except UsageError as error:
            msg = f"backend 'server': {error}"
            raise BackendError(msg) from error
        tokenizer = tokenizer_of(model)
        self._prompts = Prompts(tokenizer)
        self._stop_ids = frozenset(model.stop_ids or stop_set(tokenizer))
        self._found = find(self._client, model, self._prompts, self._named)
        self.capabilities = self._found.capabilities
        if self._found.forgets:
            with suppress(ServerError):  # what was asked to find out is to be forgotten
                self._client.post("/flush_cache", {})

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids that the server makes of a chat, as it says itself.

        Raises:
            EngineFault: It does not say so.
        """
        client, found = self._opened()
        return found.chat_ids(client, messages)

    def submit(self, request: Request) -> None:
        """Take one request in; it is sent in the next `step`, with all that wait then.

        Raises:
            CannotAsk: The prompt's ids are not what the server would make of their text, or
                other ids are to end the answer than those that end it on the server.
        """
        client, found = self._opened()
        if set(request.stop_ids) - set(self._stop_ids):
            why = "the server ends answers at the model's own stop set, and takes no other ids"
            raise CannotAsk(request.id, why)
        assert self._prompts is not None  # noqa: S101 - the backend is open
        text = None
        if found.takes_text:
            text = self._prompts.text(request.tokens)
            if text is None:
                why = (
                    "the server takes text, and the text of these ids is read as others: no "
                    "text can ask for them"
                )
                raise CannotAsk(request.id, why)
        live = _Live(request, found.wire.reader())
        body = found.wire.body(request, text)
        with self._lock:
            self._lives[request.id] = live
        thread = threading.Thread(
            target=self._ask, args=(client, found, live, body), name=f"server {request.id}"
        )
        thread.daemon = True  # one that hangs in a read must not hold the process
        self._waiting.append(thread)

    def step(self) -> Sequence[Emission | TextEmission]:
        """Send what waits, wait for news, and return at most one emission a request.

        Raises:
            CannotAsk: Of one request: the server read another prompt than it was given.
            RequestFailed: Of one request: no answer, or none that can be read.
        """
        waiting, self._waiting = self._waiting, []
        self._threads = [each for each in self._threads if each.is_alive()] + waiting
        for thread in waiting:
            thread.start()
        if not self._ready():
            self._news.wait(_WAIT_S)
            self._news.clear()
        if not self._failures.empty():
            failure = self._failures.get()
            with self._lock:
                known = self._lives.pop(failure.request_id, None)
            if known is not None:
                raise failure
        with self._lock:
            out = [live.emissions.popleft() for live in self._lives.values() if live.emissions]
            for emission in out:
                if emission.finish is not None:
                    del self._lives[emission.request_id]
        return out

    def cancel(self, request_id: str) -> None:
        """Close the connection of a request, with its next event, and forget it."""
        with self._lock:
            live = self._lives.pop(request_id, None)
            if live is not None:
                live.cancelled = live.over = True

    def stats(self) -> Mapping[str, int]:
        """Return how many answers came at once, and the prompt tokens found in a cache.

        ``batch_width`` is of streams alone: of answers that come whole, nobody outside can say
        which were made together. Each is left out where the server does not show it.
        """
        stats: dict[str, int] = {}
        if self._found is not None and self._found.wire.streams:
            stats["batch_width"] = self._width
        if self._cached is not None:
            stats["cached_tokens"] = self._cached
        with self._lock:
            self._width = self._running()
        return stats

    def close(self) -> None:
        """End every thread; one in a read ends with it, or with the process."""
        with self._lock:
            for live in self._lives.values():
                live.cancelled = live.over = True
            self._lives.clear()
        self._waiting.clear()
        until = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._client = self._found = self._prompts = None

    def _opened(self) -> tuple[Client, Found]:
        assert self._client is not None and self._found is not None  # noqa: S101, PT018
        return self._client, self._found

    def _ready(self) -> bool:
        with self._lock:
            told = any(live.emissions for live in self._lives.values())
        return told or not self._failures.empty()

    def _running(self) -> int:
        return sum(live.begun and not live.over for live in self._lives.values())

    # --- On the threads of the requests -----------------------------------------------------

    def _ask(self, client: Client, found: Found, live: _Live, body: dict[str, Any]) -> None:
        """Ask, and tell what comes or what went wrong."""
        name = live.request.id
        try:
            with closing(_payloads(client, found, body)) as payloads:
                for payload in payloads:
                    if live.cancelled:
                        return
                    self._tell(live, list(live.reader.take(payload)))
            self._finish(live)
        except CannotAsk as error:
            self._fail(live, error)
        except (EngineFault, ServerError) as error:
            self._fail(live, RequestFailed(name, str(error)))
        except Exception as error:  # noqa: BLE001 - an answer may hold anything
            what = f"its answer cannot be read: {type(error).__name__}: {error}"
            self._fail(live, RequestFailed(name, what))

    def _tell(self, live: _Live, pieces: Sequence[Piece]) -> None:
        """Pass pieces on, but for the last: it may turn out to be the end."""
        if not pieces:
            return
        self._compare_prompt(live)
        with self._lock:
            live.begun = True
            self._width = max(self._width, self._running())
            for piece in pieces:
                if live.held is not None:
                    live.emissions.append(_emission(live, live.held))
                live.held = piece
        self._news.set()

    def _finish(self, live: _Live) -> None:
        """Pass the last piece on with the end, and the stop id that it may lack."""
        reader = live.reader
        if reader.finish is None:
            msg = "the answer ended without a reason: no 'stop', no 'length'"
            raise EngineFault(msg)
        self._compare_prompt(live)
        with self._lock:
            live.over = True
            live.emissions.extend(_last(live))
            if reader.cached_tokens is not None:
                self._cached = (self._cached or 0) + reader.cached_tokens
        self._news.set()

    def _compare_prompt(self, live: _Live) -> None:
        given, read = len(live.request.tokens), live.reader.prompt_tokens
        if read is not None and read != given:
            why = (
                f"the server read a prompt of {read} tokens where one of {given} was meant: "
                "what it says is no answer to that"
            )
            raise CannotAsk(live.request.id, why)

    def _fail(self, live: _Live, failure: _Failure) -> None:
        with self._lock:
            live.over = True
            told = not live.cancelled
        if told:
            self._failures.put(failure)
            self._news.set()


def _payloads(client: Client, found: Found, body: dict[str, Any]) -> Generator[dict[str, Any]]:
    """Yield the events of an answer, or the answer that comes whole."""
    wire = found.wire
    if wire.streams:
        with client.stream(wire.path, body) as events:
            yield from events
        return
    answer = client.post(wire.path, body)
    if not answer.ok or not isinstance(answer.json, dict):
        msg = f"POST {wire.path}: status {answer.status}, {answer.text!r:.300}"
        raise EngineFault(msg)
    yield answer.json


def _last(live: _Live) -> list[Emission | TextEmission]:
    """Return the end of an answer, with the stop id that it may lack."""
    held, finish, at = live.held, live.reader.finish, live.reader.stopped_at
    name, stops = live.request.id, live.request.stop_ids
    if held is not None and (held.token is None or finish != "stop" or held.token in stops):
        return [_emission(live, held, finish)]
    before = [] if held is None else [_emission(live, held)]
    if finish == "stop" and at is not None and at in stops:
        return [*before, Emission(request_id=name, token=at, finish=finish)]
    return [*before, TextEmission(request_id=name, finish=finish)]


def _emission(
    live: _Live, piece: Piece, finish: Finish | None = None
) -> Emission | TextEmission:
    name = live.request.id
    if piece.token is None:
        return TextEmission(request_id=name, text=piece.text or "", finish=finish)
    return Emission(request_id=name, token=piece.token, logprobs=piece.logprobs, finish=finish)
