"""SGLang's MLX engine: the real ``MlxModelRunner``, driven as SGLang's scheduler drives it.

Nothing of SGLang, torch or MLX is imported until a backend is opened.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.backends.sglang_forcing import Forcing
from mlxcheck.backends.sglang_pools import Footprint, Lease, Ledger, load_runner
from mlxcheck.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mlxcheck.records import ModelRef

__all__ = [
    "SglangBackend",
    "SglangLazyBackend",
    "SglangRadixBackend",
    "SglangRadixLazyBackend",
]

_SLOTS = 8192  # the runner itself sets 4096 positions aside for each row, pool or no pool
_ROWS = 8
_ROWS_IF_UNLIMITED = 256


@dataclass(slots=True)
class _Live:
    """One request, from submission to its end."""

    request: Request
    tokens: list[int] = field(default_factory=list)  # the prompt, then the answer
    computed: int = 0  # prompt positions that are in the KV cache
    started: bool = False
    lease: Lease | None = None

    def __post_init__(self) -> None:
        self.tokens.extend(self.request.tokens)

    @property
    def prompt_length(self) -> int:
        return len(self.request.tokens)


class SglangBackend:
    """SGLang's ``MlxModelRunner`` with its pools, without a server.

    Requests are prefilled as they come, before any decode step; then all that are in
    flight decode together, one ``decode_batch`` a step. Stop ids are left to the caller,
    as the runner leaves them to SGLang's scheduler.

    Args:
        radix_cache: Keep the KV of earlier requests and reuse equal beginnings.
        lazy: Use the ``*_start`` and ``*_finalize`` surface, as SGLang's overlap loop
            does: several prefills in one launch, and each decode step queued behind the
            one before it while nobody joins or leaves.
        pool_size: Slots of the KV pool; a request holds one a position.
        max_batch: The most rows of a decode step; more requests wait. None for no limit.
        prefill_chunk: The most prompt tokens of one prefill step; None for no limit.
    """

    name = "sglang"

    def __init__(
        self,
        *,
        radix_cache: bool = False,
        lazy: bool = False,
        pool_size: int = _SLOTS,
        max_batch: int | None = _ROWS,
        prefill_chunk: int | None = None,
    ) -> None:
        for option, value in (
            ("pool_size", pool_size),
            ("max_batch", max_batch),
            ("prefill_chunk", prefill_chunk),
        ):
            if value is not None and value < 1:
                msg = f"{type(self).__name__}({option}={value}): expected at least 1"
                raise ValueError(msg)
        self.capabilities = Capabilities(
            batch=max_batch != 1,
            max_batch=max_batch,
            stop=False,
            prefix_cache=radix_cache,
            prefill_chunk=prefill_chunk,
            sets_prefill_chunk=True,
            teacher_forcing=True,
            logits=True,
            logprobs=True,
        )
        self._lazy = lazy
        self._chunk = prefill_chunk
        self._slots = pool_size
        self._runner: Any = None
        self._ledger: Any = None
        self._forcing: Any = None
        self._footprint: Footprint | None = None
        self._waiting: deque[_Live] = deque()
        self._partial: _Live | None = None  # its prompt is in the cache up to a chunk's end
        self._live: dict[str, _Live] = {}
        self._pending: Any = None  # a decode step that was launched and not waited for
        self._ended: list[str] = []
        self._width = self._cached = self._chunks = 0

    def open(self, model: ModelRef) -> None:
        """Load the checkpoint into a runner, and build its pools.

        Raises:
            BackendError: SGLang is not installed, cannot be imported, or is a release
                that is called differently; the text says which and what is missing.
        """
        self._footprint = Footprint()
        with self._footprint:
            runner_class = load_runner(self.name)
            self._runner = runner_class(
                model_path=model.path,
                trust_remote_code=model.trust_remote_code,
                disable_radix_cache=not self.capabilities.prefix_cache,
                pool_size=self._slots,
            )
        self._ledger = Ledger(
            slots=self._slots,
            rows=self.capabilities.max_batch or _ROWS_IF_UNLIMITED,
            context=self._slots,
            radix_cache=self.capabilities.prefix_cache,
        )
        self._runner.init_cache_pools(req_to_token_pool=self._ledger.rows)
        self._forcing = Forcing(self._runner)
        self.capabilities = self._forcing.settle(self.capabilities)

    def set_prefill_chunk(self, size: int | None) -> None:
        """Read prompts in chunks of so many tokens from now on; None: as it was made."""
        self._chunk = size or self.capabilities.prefill_chunk

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            BackendError: It could not be brought to its end with the whole pool.
        """
        need = len(request.tokens) + request.max_tokens
        if need > self._slots:
            msg = (
                f"backend {self.name!r}: a prompt of {len(request.tokens)} tokens with "
                f"max_tokens={request.max_tokens} needs {need} slots, and the pool has "
                f"{self._slots}. Make it with {type(self).__name__}(pool_size={need}) or more."
            )
            raise BackendError(msg)
        if request.forced is not None:
            self._forcing.add(request.id, request.forced)
        self._waiting.append(_Live(request))

    def step(self) -> Sequence[Emission]:
        """Do one prefill or, where there is none to do, one decode step of all rows."""
        self._width = 0  # a width that outlives its step would vouch for the next case
        if self._pending is not None:
            out = self._land()
        elif chunks := self._next_chunks():
            out = self._prefill(chunks)
        elif self._live:
            out = self._decode()
        else:
            out = []
        self._forget_ended()
        return out

    def cancel(self, request_id: str) -> None:
        """Drop a request; what it computed stays in the radix cache, where there is one."""
        self._waiting = deque(live for live in self._waiting if live.request.id != request_id)
        if self._partial is not None and self._partial.request.id == request_id:
            live, self._partial = self._partial, None
            self._end(live)
        elif request_id in self._live:
            self._end(self._live[request_id])
        self._forcing.drop(request_id)  # it may have been waiting
        self._forget_ended()

    def stats(self) -> Mapping[str, int]:
        """Return the rows that the latest step decoded, and totals of the rest."""
        return {
            "batch_width": self._width,
            "cached_tokens": self._cached,
            "prefill_chunks": self._chunks,
        }

    def close(self) -> None:
        """Free runner, pools and weights, and put limits and environment back."""
        runner, self._runner, self._ledger, self._pending = self._runner, None, None, None
        if self._forcing is not None:
            self._forcing.close()
        self._forcing = self._partial = None
        self._waiting.clear()
        self._live.clear()
        if runner is not None:
            mx = _mlx()
            mx.synchronize()  # a step may still be in flight
            runner.clear()
            del runner
            gc.collect()
            mx.clear_cache()
        if self._footprint is not None:
            self._footprint.undo()
            self._footprint = None

    def _admit(self) -> _Live | None:
        """Give the oldest waiting request its row and slots, if they are free."""
        if not self._waiting:
            return None
        live = self._waiting[0]
        live.lease = self._ledger.admit(live.request.tokens, live.request.max_tokens)
        if live.lease is None:
            return None
        live.computed = len(live.lease.prefix)
        self._cached += live.computed
        return self._waiting.popleft()

    def _next_chunks(self) -> list[tuple[_Live, int]]:
        """Choose what to prefill now: requests, and the position that each gets to.

        As in SGLang, a prompt that was begun goes first, and the chunk size is shared by
        all prompts of one launch. The plain surface takes one prompt at a time.
        """
        room = self._chunk or sys.maxsize
        chunks: list[tuple[_Live, int]] = []
        live = self._partial or self._admit()
        while live is not None:
            end = min(live.prompt_length, live.computed + room)
            room -= end - live.computed
            chunks.append((live, end))
            self._partial = live if end < live.prompt_length else None
            live = self._admit() if self._lazy and room else None
        return chunks

    def _prefill(self, chunks: Sequence[tuple[_Live, int]]) -> list[Emission]:
        calls = [self._prefill_call(live, end) for live, end in chunks]
        if self._lazy:
            tokens = self._launch_prefills(calls)
        else:
            tokens = [getattr(self._runner, kind)(**options) for kind, options in calls]
        self._chunks += len(chunks)
        first: list[tuple[str, int]] = []
        for (live, end), token in zip(chunks, tokens, strict=True):
            live.computed = end
            self._ledger.checkpoint(live.lease, live.tokens)
            if end == live.prompt_length:
                self._live[live.request.id] = live
                first.append((live.request.id, token))
        return self._emit(first)

    def _prefill_call(self, live: _Live, end: int) -> tuple[str, dict[str, Any]]:
        """Return the runner's method for a chunk, and its arguments."""
        assert live.lease is not None  # noqa: S101 - _admit() has seen to it
        options: dict[str, Any] = {
            "req_id": live.request.id,
            "new_token_ids": live.tokens[live.computed : end],
            "new_slot_ids": self._ledger.extend(live.lease, end - live.computed),
            "needs_logits": end == live.prompt_length,
        }
        if live.started:
            return "extend", options
        live.started = True
        options["full_token_ids"] = live.tokens[:end]
        options["prefix_slot_ids"] = live.lease.prefix
        options["req_pool_idx"] = live.lease.row
        return "prefill", options

    def _launch_prefills(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[int]:
        """Queue every chunk before waiting for the first."""
        mx, runner = _mlx(), self._runner
        launched = [
            (kind, getattr(runner, f"{kind}_start")(**options)) for kind, options in calls
        ]
        mx.async_eval(
            mx.stack([pending.lazy_token for _, pending in launched]),
            *runner.cache_state_arrays(caches=[pending.cache for _, pending in launched]),
        )
        return [
            getattr(runner, f"{kind}_finalize")(pending=pending) for kind, pending in launched
        ]

    def _decode(self) -> list[Emission]:
        rows = list(self._live)
        for live in self._live.values():
            self._ledger.extend(live.lease, 1)
        if self._lazy:
            self._pending = self._launch(self._runner.decode_batch_start(req_ids=rows))
            return self._land()
        self._width = len(rows)
        tokens = self._runner.decode_batch(req_ids=rows)
        return self._emit(zip(rows, tokens, strict=True))

    def _land(self) -> list[Emission]:
        """Wait for the decode step in flight, with the next one queued behind it.

        Where a row ends in the first step, the next one was computed in vain for that
        row, and for the others it counts: they get two tokens.
        """
        pending, self._pending = self._pending, None
        following = None
        if not self._waiting and pending.req_ids == list(self._live):
            following = self._launch(self._runner.decode_batch_start_chained(prev=pending))
        out = self._finish(pending)
        if following is not None and following.req_ids == list(self._live):
            self._pending = following
        elif following is not None:
            out += self._finish(following)
        return out

    def _launch(self, pending: Any) -> Any:
        _mlx().async_eval(pending.lazy_tokens)
        return pending

    def _finish(self, pending: Any) -> list[Emission]:
        self._width = len(pending.req_ids)
        tokens = self._runner.decode_batch_finalize(pending=pending)
        return self._emit(zip(pending.req_ids, tokens, strict=True))

    def _emit(self, tokens: Iterable[tuple[str, int]]) -> list[Emission]:
        """Book one token a request, and end those that have said enough."""
        out: list[Emission] = []
        for request_id, token in tokens:
            live = self._live.get(request_id)
            if live is None:  # it ended while this step was in flight
                continue
            live.tokens.append(token)
            full = len(live.tokens) - live.prompt_length >= live.request.max_tokens
            out.append(
                Emission(
                    request_id=request_id,
                    token=token,
                    finish="length" if full else None,
                    **self._forcing.take(request_id),
                )
            )
            if full:
                self._end(live)
        return out

    def _end(self, live: _Live) -> None:
        """Give back row and slots, in the order of SGLang's scheduler.

        The runner copies the KV that is only in its own cache to the pool while the
        request still owns its row; then the radix tree takes the slots over.
        """
        self._live.pop(live.request.id, None)
        if live.lease is not None:
            self._runner.release_request_row(req_id=live.request.id, owned_len=live.lease.owned)
            self._ledger.release(live.lease, live.tokens)
        self._forcing.drop(live.request.id)
        self._ended.append(live.request.id)

    def _forget_ended(self) -> None:
        """Drop the runner's state of ended requests, unless a step in flight writes to it."""
        while self._ended and self._pending is None:
            self._runner.remove_request(req_id=self._ended.pop())


def _mlx() -> Any:
    import mlx.core as mx

    return mx


class SglangRadixBackend(SglangBackend):
    """`SglangBackend` with the radix cache on."""

    name = "sglang-radix"

    def __init__(self, **options: Any) -> None:
        super().__init__(radix_cache=True, **options)


class SglangLazyBackend(SglangBackend):
    """`SglangBackend` on the lazy surface."""

    name = "sglang-lazy"

    def __init__(self, **options: Any) -> None:
        super().__init__(lazy=True, **options)


class SglangRadixLazyBackend(SglangBackend):
    """`SglangBackend` with the radix cache on, on the lazy surface."""

    name = "sglang-radix-lazy"

    def __init__(self, **options: Any) -> None:
        super().__init__(radix_cache=True, lazy=True, **options)
