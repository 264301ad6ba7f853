"""A server without a model: it says over real HTTP what a test tells it to, right or wrong."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Script", "serving"]

Ids = tuple[int, ...]


@dataclass(kw_only=True)
class Script:
    """What a server is able to do, what it says, and what is wrong with it.

    Attributes:
        tokenizer: Of the model that it pretends to serve.
        stops: Its stop set.
        wires: The ways in: ``"generate"``, ``"ids"``, ``"logprobs"``, ``"text"``, ``"whole"``
            (text, but not in a stream).
        answers: By the prompt's ids.
        otherwise: To every other prompt.
        alternatives: The second best token at every step.
        numbers: It gives log-probabilities.
        names_stops: Answers hold their stop id, or say at which id they stopped.
        chats: It says what it makes of chats.
        info: What ``/server_info`` says.
        models: What ``/v1/models`` lists.
        pause_s: Before every token.
        miscounts: Prompts that it reads with one token more.
        cuts: Prompts whose answers break off after a token.
        swaps: Two requests at once get each other's answers.
        hangs: Prompts that it never answers.
        forgets_budget: It goes on until its answer's end.
    """

    tokenizer: Any
    stops: Ids
    wires: frozenset[str]
    answers: dict[Ids, Ids] = field(default_factory=dict)
    otherwise: Ids = ()
    alternatives: int = 0
    numbers: bool = False
    names_stops: bool = True
    chats: bool = False
    info: dict[str, Any] | None = None
    models: Sequence[str] = ("tiny",)
    pause_s: float = 0.0
    miscounts: set[Ids] = field(default_factory=set)
    cuts: set[Ids] = field(default_factory=set)
    hangs: set[Ids] = field(default_factory=set)
    swaps: bool = False
    forgets_budget: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: list[Ids] = field(default_factory=list)
    seen: set[Ids] = field(default_factory=set)
    pair: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    waiting: list[Ids] = field(default_factory=list)

    def answer(self, prompt: Ids, most: int) -> tuple[Ids, str]:
        """Return what is said, and why it ends."""
        if self.swaps and prompt in self.answers:
            self.waiting.append(prompt)
            with contextlib.suppress(threading.BrokenBarrierError):
                self.pair.wait(timeout=5)
                prompt = next(each for each in self.waiting if each != prompt)
        said = self.answers.get(prompt, self.otherwise)
        kept = said if self.forgets_budget else said[:most]
        return kept, "stop" if kept[-1:] and kept[-1] in self.stops else "length"

    def text(self, ids: Ids) -> str:
        """Return the text of an answer: that of all but its stop id."""
        plain = [token for token in ids if token not in self.stops]
        return str(self.tokenizer.decode(plain)) if plain else ""

    def numbered(self, token: int) -> list[tuple[int, float]]:
        """Return the log-probabilities of one step, the worst first."""
        return [(self.alternatives, -5.0), (token, -0.01)]


class _Handler(BaseHTTPRequestHandler):
    script: Script

    def log_message(self, *_args: object) -> None:
        """Say nothing on standard error."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, {"data": [{"id": name} for name in self.script.models]})
        elif self.path == "/server_info" and self.script.info is not None:
            self._send(200, self.script.info)
        else:
            self._send(404, {"error": "no such path"})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size) or b"{}")
        self.script.asked.append({"path": self.path, **body})
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        script, wires = self.script, self.script.wires
        if self.path == "/generate" and "generate" in wires:
            if "input_ids" not in body:
                self._send(400, {"error": {"message": "no input"}})
                return
            self._generate(body, tuple(body["input_ids"]))
        elif self.path == "/v1/completions":
            self._completion(body)
        elif self.path == "/v1/chat/completions" and script.chats:
            ids = script.tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True
            )
            self._send(200, {"choices": [{"prompt_token_ids": list(ids)}]})
        elif self.path == "/flush_cache":
            script.seen.clear()
            self._send(200, {})
        else:
            self._send(404, {"error": "no such path"})

    def _completion(self, body: dict[str, Any]) -> None:
        wires, prompt = self.script.wires, body["prompt"]
        if isinstance(prompt, list):
            if "ids" in wires and body.get("return_token_ids"):
                self._ids(body, tuple(prompt))
            else:
                self._send(400, {"error": "prompt must be a string"})
            return
        ids = tuple(int(token) for token in self.script.tokenizer.encode(prompt))
        if body.get("logprobs") and "logprobs" in wires:
            self._whole(body, ids, shows=True)
        elif body.get("stream") and "text" in wires:
            self._text(body, ids)
        elif not body.get("stream") and wires & {"text", "whole"}:
            self._whole(body, ids, shows=False)
        else:
            self._send(400, {"error": "no such parameter"})

    def _generate(self, body: dict[str, Any], prompt: Ids) -> None:
        script = self.script
        said, why = script.answer(prompt, body["sampling_params"]["max_new_tokens"])
        cached = len(prompt) - 1 if prompt in script.seen else 0
        shown = said if script.names_stops or why == "length" else said[:-1]
        events = []
        for end in range(1, len(shown) + 1):
            meta: dict[str, Any] = {
                "completion_tokens": end,
                "prompt_tokens": self._count(prompt),
                "cached_tokens": cached,
                "finish_reason": {"type": why} if end == len(shown) else None,
            }
            if script.numbers and body.get("return_logprob"):
                meta["output_token_logprobs"] = [[-0.01, token, None] for token in said[:end]]
                meta["output_top_logprobs"] = [
                    [[value, token, None] for token, value in script.numbered(each)[::-1]]
                    for each in said[:end]
                ]
            events.append({"output_ids": list(said[:end]), "meta_info": meta})
        self._stream(prompt, events)
        script.seen.add(prompt)

    def _ids(self, body: dict[str, Any], prompt: Ids) -> None:
        said, why = self.script.answer(prompt, body["max_tokens"])
        named = self.script.names_stops or why == "length"
        events: list[dict[str, Any]] = [
            {"choices": [{"token_ids": [token], "finish_reason": None}]}
            for token in (said if named else said[:-1])
        ]
        last: dict[str, Any] = {"token_ids": [], "finish_reason": why, "stop_reason": None}
        events += [{"choices": [last]}, {"choices": [], "usage": self._usage(prompt, said)}]
        if self.script.numbers and body.get("logprobs"):
            for event, token in zip(events, said, strict=False):
                top = {f"token_id:{each}": value for each, value in self.script.numbered(token)}
                event["choices"][0]["logprobs"] = {
                    "tokens": [f"token_id:{token}"],
                    "token_logprobs": [-0.01],
                    "top_logprobs": [top],
                }
        self._stream(prompt, events)

    def _text(self, body: dict[str, Any], prompt: Ids) -> None:
        said, why = self.script.answer(prompt, body["max_tokens"])
        texts = [self.script.text(said[:end]) for end in range(len(said) + 1)]
        events: list[dict[str, Any]] = [
            {"choices": [{"text": after[len(before) :], "finish_reason": None}]}
            for before, after in pairwise(texts)
            if after != before
        ]
        events += [
            {"choices": [{"text": "", "finish_reason": why}]},
            {"choices": [], "usage": self._usage(prompt, said)},
        ]
        self._stream(prompt, events)

    def _whole(self, body: dict[str, Any], prompt: Ids, *, shows: bool) -> None:
        self._wait(prompt)
        said, why = self.script.answer(prompt, body["max_tokens"])
        choice: dict[str, Any] = {"text": self.script.text(said), "finish_reason": why}
        if shows:
            content = [
                [{"id": each, "logprob": value} for each, value in self.script.numbered(token)]
                for token in said
            ]
            # As mlx-lm's server does it: the entry's own id is that of its first alternative.
            choice["logprobs"] = {
                "content": [dict(top[0], top_logprobs=top) for top in content]
            }
        if prompt in self.script.cuts:
            self._head(200, "application/json", length=1000)
            self.wfile.write(b'{"choices": [')
            return
        self._send(200, {"choices": [choice], "usage": self._usage(prompt, said)})

    def _count(self, prompt: Ids) -> int:
        return len(prompt) + (prompt in self.script.miscounts)

    def _usage(self, prompt: Ids, said: Ids) -> dict[str, Any]:
        return {"prompt_tokens": self._count(prompt), "completion_tokens": len(said)}

    def _wait(self, prompt: Ids) -> None:
        if prompt in self.script.hangs:
            time.sleep(3)

    def _stream(self, prompt: Ids, events: Sequence[dict[str, Any]]) -> None:
        self._wait(prompt)
        self._head(200, "text/event-stream")
        try:
            for number, event in enumerate(events):
                if number and prompt in self.script.cuts:
                    return
                time.sleep(self.script.pause_s)
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            self.script.closed.append(prompt)

    def _head(self, status: int, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, status: int, content: object) -> None:
        raw = json.dumps(content).encode()
        self._head(status, "application/json", len(raw))
        self.wfile.write(raw)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


@contextlib.contextmanager
def serving(script: Script) -> Iterator[str]:
    """Serve a script on a free port, for a block; yield its URL."""
    handler = type("Handler", (_Handler,), {"script": script})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
