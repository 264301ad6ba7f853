"""An adapter without a model that keeps every rule, and how others come by breaking one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcheck.backends.base import Capabilities, Emission, Request, TextEmission

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.records import Finish, ModelRef

__all__ = ["CannotCancel", "Changes", "Live", "Refuses", "Sound", "TextAlone"]


@dataclass(slots=True)
class Live:
    """One request in the engine."""

    request: Request
    chunk: int
    read: int = 0
    said: list[int] = field(default_factory=list)

    @property
    def reading(self) -> bool:
        """Some of its prompt has yet to be read."""
        return self.read < len(self.request.tokens)


class Sound:
    """Decodes two rows at a time, and says what a generator of numbers says to the context."""

    name = "sound"
    capabilities = Capabilities(
        max_batch=2,
        prefix_cache=True,
        sets_prefill_chunk=True,
        teacher_forcing=True,
        logits=True,
        logprobs=True,
        encode=True,
    )
    room = 2

    def __init__(self) -> None:
        self.waiting: list[Live] = []
        self.rows: dict[str, Live] = {}
        self.known: set[tuple[int, ...]] = set()
        self.chunk: int | None = None
        self.width = self.chunks = self.cached = 0
        self.model: ModelRef | None = None
        self.weights: Any = None

    def open(self, model: ModelRef) -> None:
        self.model = model
        self.weights = mx.zeros(100_000)
        mx.eval(self.weights)

    def submit(self, request: Request) -> None:
        self.waiting.append(Live(request, self.chunk or 1000))
        if request.tokens in self.known:
            self.cached += len(request.tokens) - 1
        self.known.add(request.tokens)

    def step(self) -> Any:
        while self.waiting and len(self.rows) < self.room:
            live = self.waiting.pop(0)
            self.rows[live.request.id] = live
        reading = [live for live in self.rows.values() if live.reading][:1]
        decoding = [live for live in self.rows.values() if not live.reading]
        for live in reading:
            live.read += live.chunk
            self.chunks += 1
        self.width = len(decoding)
        out: list[Any] = []
        for live in [*decoding, *(live for live in reading if not live.reading)]:
            out += self.say(live)
        return out

    def say(self, live: Live) -> Sequence[Any]:
        logits = self.logits(live)
        chosen: Any = mx.argmax(logits).item()
        token = int(chosen)
        if live.request.forced is not None:
            token = live.request.forced[len(live.said)]
        live.said.append(token)
        finish = self.finish(live, token)
        if finish is not None:
            del self.rows[live.request.id]
        own = float((logits[token] - mx.logsumexp(logits)).item())
        return [
            Emission(
                request_id=live.request.id,
                token=token,
                logits=logits,
                logprobs={token: own},
                finish=finish,
            )
        ]

    def logits(self, live: Live) -> Any:
        assert self.model is not None
        seed = hash((live.request.tokens, *live.said)) % 2**32
        return mx.random.normal((self.model.vocab_size,), key=mx.random.key(seed))

    def finish(self, live: Live, token: int) -> Finish | None:
        if token in live.request.stop_ids:
            return "stop"
        return "length" if len(live.said) == live.request.max_tokens else None

    def cancel(self, request_id: str) -> None:
        self.waiting = [live for live in self.waiting if live.request.id != request_id]
        self.rows.pop(request_id, None)

    def stats(self) -> Any:
        return {
            "batch_width": self.width,
            "cached_tokens": self.cached,
            "prefill_chunks": self.chunks,
        }

    def set_prefill_chunk(self, size: int | None) -> None:
        self.chunk = size

    def encode(self, messages: Sequence[Mapping[str, str]]) -> Any:
        return [len(turn["content"]) for turn in messages]

    def stop_set(self) -> Any:
        assert self.model is not None
        return list(self.model.stop_ids)

    def close(self) -> None:
        self.weights = None
        self.waiting.clear()
        self.rows.clear()


class TextAlone(Sound):
    """The same, but shows text and no ids."""

    name = "text-alone"
    capabilities = Capabilities(ids=False, max_batch=2)

    def say(self, live: Live) -> Sequence[Any]:
        return [self.text(each) for each in super().say(live)]

    def text(self, said: Emission) -> Any:
        """Spell a token."""
        return TextEmission(
            request_id=said.request_id, text=f" {said.token}", finish=said.finish
        )


class Refuses(Sound):
    """Raises for what `bad` says."""

    def submit(self, request: Request) -> None:
        if self.bad(request):
            msg = f"request {request.id} cannot be served"
            raise ValueError(msg)
        super().submit(request)

    def bad(self, request: Request) -> bool:
        """Tell a request that is refused."""
        raise NotImplementedError


class CannotCancel(Sound):
    """Raises for what `bad` says."""

    def cancel(self, request_id: str) -> None:
        if self.bad(request_id):
            raise KeyError(request_id)
        super().cancel(request_id)

    def bad(self, request_id: str) -> bool:
        """Tell a request that is not cancelled."""
        raise NotImplementedError


class Changes(Sound):
    """Gives its emissions changed."""

    def say(self, live: Live) -> Sequence[Any]:
        (said,) = super().say(live)
        return self.changed(said)

    def changed(self, said: Emission) -> Sequence[Any]:
        """Return what is given in the place of one emission."""
        raise NotImplementedError
