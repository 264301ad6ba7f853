"""What of SGLang's `mlxcheck.backends.sglang` stands on: runner, pools, and their contract.

The pools do what SGLang's scheduler does around its MLX runner, with SGLang's own classes:
``ReqToTokenPool`` names the slot of every position of every request,
``TokenToKVPoolAllocator`` hands the slots out, and ``RadixCache`` says which slots already
hold a prompt's beginning. Slot 0 and row 0 are padding in all three.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import os
import warnings
from array import array
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from mlxcheck.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["ENGINE", "Footprint", "Lease", "Ledger", "load_runner", "misfit"]

_TRIED = "0.5.23"
ENGINE = "sglang.srt.hardware_backend.mlx.model_runner"
_CACHE = "sglang.srt.mem_cache"
_PREFILL = (
    "req_id",
    "new_token_ids",
    "full_token_ids",
    "prefix_slot_ids",
    "new_slot_ids",
    "req_pool_idx",
    "needs_logits",
)
_EXTEND = ("req_id", "new_token_ids", "new_slot_ids", "needs_logits")
_CALLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        ENGINE,
        "MlxModelRunner",
        ("model_path", "trust_remote_code", "disable_radix_cache", "pool_size"),
    ),
    (ENGINE, "MlxModelRunner.init_cache_pools", ("req_to_token_pool",)),
    (ENGINE, "MlxModelRunner.prefill", _PREFILL),
    (ENGINE, "MlxModelRunner.prefill_start", _PREFILL),
    (ENGINE, "MlxModelRunner.prefill_finalize", ("pending",)),
    (ENGINE, "MlxModelRunner.extend", _EXTEND),
    (ENGINE, "MlxModelRunner.extend_start", _EXTEND),
    (ENGINE, "MlxModelRunner.extend_finalize", ("pending",)),
    (ENGINE, "MlxModelRunner.decode_batch", ("req_ids",)),
    (ENGINE, "MlxModelRunner.decode_batch_start", ("req_ids",)),
    (ENGINE, "MlxModelRunner.decode_batch_start_chained", ("prev",)),
    (ENGINE, "MlxModelRunner.decode_batch_finalize", ("pending",)),
    (ENGINE, "MlxModelRunner.cache_state_arrays", ("caches",)),
    (ENGINE, "MlxModelRunner.release_request_row", ("req_id", "owned_len")),
    (ENGINE, "MlxModelRunner.remove_request", ("req_id",)),
    (ENGINE, "MlxModelRunner.clear", ()),
    (
        f"{_CACHE}.memory_pool",
        "ReqToTokenPool",
        ("size", "max_context_len", "device", "enable_memory_saver"),
    ),
    (f"{_CACHE}.memory_pool", "ReqToTokenPool.alloc_rows", ("need_size",)),
    (f"{_CACHE}.memory_pool", "ReqToTokenPool.free_rows", ("indices",)),
    (
        f"{_CACHE}.allocator",
        "TokenToKVPoolAllocator",
        ("size", "dtype", "device", "kvcache", "need_sort"),
    ),
    (
        f"{_CACHE}.allocator",
        "TokenToKVPoolAllocator.free_segment",
        ("free_index", "start_pos"),
    ),
    (
        f"{_CACHE}.cache_init_params",
        "CacheInitParams",
        ("disable", "req_to_token_pool", "token_to_kv_pool_allocator", "page_size"),
    ),
    (f"{_CACHE}.base_prefix_cache", "InsertParams", ("key", "value")),
    (f"{_CACHE}.base_prefix_cache", "MatchPrefixParams", ("key",)),
    (f"{_CACHE}.base_prefix_cache", "EvictParams", ("num_tokens",)),
    (f"{_CACHE}.radix_cache", "RadixCache", ("params",)),
    (f"{_CACHE}.radix_cache", "RadixCache.path_device_indices", ("node",)),
    (f"{_CACHE}.radix_cache", "RadixKey", ("token_ids",)),
)
"""Everything of SGLang's that is called here or in `Ledger`, and with what."""


@dataclass(slots=True)
class Lease:
    """What one request holds in the pools.

    Attributes:
        row: Its row of the request-to-token table.
        prefix: Slots of the prompt's beginning that an earlier request had filled.
        owned: Positions, from the start, whose slots its row names.
        owed: Slots that it may still ask for.
        shared: Positions, from the start, whose slots belong to the radix tree.
        node: The tree node that it keeps from being evicted.
    """

    row: int
    prefix: list[int]
    owned: int
    owed: int
    shared: int
    node: Any = field(repr=False)


class Ledger:
    """Hands out rows and slots, and remembers prefixes if the radix cache is on.

    Args:
        slots: Slots of the KV pool, the padding slot aside.
        rows: Requests that may hold slots at once.
        context: The longest request, prompt and answer together.
        radix_cache: Whether requests share the slots of equal beginnings.
    """

    def __init__(self, *, slots: int, rows: int, context: int, radix_cache: bool) -> None:
        import torch
        from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.radix_cache import RadixCache

        self.slots = slots
        self.rows: Any = ReqToTokenPool(
            size=rows, max_context_len=context, device="cpu", enable_memory_saver=False
        )
        # The KV itself is the runner's: the allocator counts, and stores nothing.
        self._allocator: Any = TokenToKVPoolAllocator(
            size=slots, dtype=torch.float32, device="cpu", kvcache=None, need_sort=False
        )
        self._tree: Any = RadixCache(
            CacheInitParams(
                disable=not radix_cache,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self._allocator,
                page_size=1,
            )
        )
        self._owed = 0

    @property
    def free(self) -> int:
        """Slots that no request holds, those that the tree would give up included."""
        return int(self._allocator.available_size()) + int(self._tree.evictable_size())

    def admit(self, tokens: Sequence[int], max_tokens: int) -> Lease | None:
        """Give a request a row and the slots of its known beginning.

        Args:
            tokens: The prompt.
            max_tokens: The most tokens of the answer.

        Returns:
            None where no row is free, or too few slots to bring the request to its end.
        """
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        if not self.rows.available_size():
            return None
        # The last prompt token is computed in any case: its logits are the first answer.
        match = self._tree.match_prefix(MatchPrefixParams(key=_key(tokens[:-1])))
        node, known = match.last_device_node, int(match.device_prefix_len)
        self._tree.inc_lock_ref(node)
        owed = len(tokens) - known + max_tokens
        if self.free < self._owed + owed:
            self._tree.dec_lock_ref(node)
            return None
        (row,) = self.rows.alloc_rows(1)
        found = self._tree.path_device_indices(node)
        self.rows.write((row, slice(0, known)), found)
        self._owed += owed
        return Lease(
            row=row, prefix=found.tolist(), owned=known, owed=owed, shared=known, node=node
        )

    def extend(self, lease: Lease, count: int) -> list[int]:
        """Give a request slots for its next positions, and write them into its row.

        Args:
            lease: The request's.
            count: How many positions.

        Raises:
            RuntimeError: More was asked for than the admission had set aside.
        """
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        short = count - int(self._allocator.available_size())
        if short > 0:
            self._tree.evict(EvictParams(num_tokens=short))
        new = self._allocator.alloc(count)
        if new is None or count > lease.owed:
            msg = (
                f"the pool of {self.slots} slots ran dry: {count} were asked for by a request "
                f"that may still take {lease.owed}, with {self.free} free"
            )
            raise RuntimeError(msg)
        self.rows.write((lease.row, slice(lease.owned, lease.owned + count)), new)
        lease.owned += count
        lease.owed -= count
        self._owed -= count
        return [int(slot) for slot in new.tolist()]

    def checkpoint(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Let other requests find the slots that this one has filled.

        Where the tree already knew the same tokens, the request's own copies are given
        back and its row is pointed at the tree's.

        Args:
            lease: The request's.
            tokens: Its prompt and answer; the positions that it owns are taken.
        """
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams

        if self._tree.disable or lease.owned == lease.shared:
            return
        key = _key(tokens[: lease.owned])
        slots = self._row(lease)
        known = int(self._tree.insert(InsertParams(key=key, value=slots)).prefix_len)
        self._allocator.free_segment(slots[lease.shared : known], start_pos=lease.shared)
        node = self._tree.match_prefix(MatchPrefixParams(key=key)).last_device_node
        self.rows.write(
            (lease.row, slice(0, lease.owned)), self._tree.path_device_indices(node)
        )
        self._tree.inc_lock_ref(node)
        self._tree.dec_lock_ref(lease.node)
        lease.node, lease.shared = node, lease.owned

    def release(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Take a request's row and slots back, but for those that the tree keeps.

        Args:
            lease: The request's; it is of no use afterwards.
            tokens: Its prompt and answer.
        """
        self.checkpoint(lease, tokens)
        self._allocator.free_segment(self._row(lease)[lease.shared :], start_pos=lease.shared)
        self._tree.dec_lock_ref(lease.node)
        self.rows.free_rows([lease.row])
        self._owed -= lease.owed

    def _row(self, lease: Lease) -> Any:
        """Return a copy of the slots that a request's row names."""
        import torch

        row = self.rows.req_to_token[lease.row, : lease.owned]
        return row.to(dtype=torch.int64, copy=True)


def _key(tokens: Sequence[int]) -> Any:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", tokens))


def load_runner(backend: str) -> Any:
    """Import SGLang's ``MlxModelRunner`` and check that it can be called as it is here.

    Args:
        backend: The backend's name, for the messages.

    Raises:
        BackendError: SGLang is not installed, does not import, or has other signatures.
    """
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        msg = (
            f"backend {backend!r}: the package sglang is not installed here. `pip install "
            f"sglang` brings it (sglang {_TRIED} was tried); what its MLX engine needs "
            "beside it is in SGLang's documentation for Apple Silicon."
        )
        raise BackendError(msg) from None
    try:
        # Its import warns about GPUs that are not there; a user's "warnings are errors"
        # must not make an engine fault of that.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner = importlib.import_module(ENGINE).MlxModelRunner
            problem = misfit(_CALLS)
    except Exception as error:
        text = str(error).rstrip(".")
        msg = (
            f"backend {backend!r}: importing the MLX engine of sglang {version} raised "
            f"{type(error).__name__}: {text}. Install what it needs as SGLang's "
            f"documentation for Apple Silicon says (sglang {_TRIED} was tried)."
        )
        raise BackendError(msg) from error
    if problem:
        msg = (
            f"backend {backend!r}: sglang {version} does not fit: {problem}. This adapter was "
            f"written for sglang {_TRIED}; install that one, or bring the adapter up to date."
        )
        raise BackendError(msg)
    return runner


def misfit(calls: Iterable[tuple[str, str, tuple[str, ...]]]) -> str:
    """Say what of SGLang's is missing or called differently, or nothing.

    Args:
        calls: Modules, the callables in them, and the parameters that each is given.
    """
    for module, path, given in calls:
        try:
            target = operator.attrgetter(path)(importlib.import_module(module))
        except (ImportError, AttributeError):
            return f"{module} has no {path}"
        parameters = inspect.signature(target).parameters
        for name in given:
            if name not in parameters:
                return f"{path} has no parameter {name!r}"
        for name, parameter in parameters.items():
            optional = (
                parameter.default is not parameter.empty
                or parameter.kind is parameter.VAR_POSITIONAL
                or parameter.kind is parameter.VAR_KEYWORD
            )
            if name not in given and name != "self" and not optional:
                return f"{path} wants a parameter {name!r}, which is not given"
    return ""


class Footprint:
    """What importing SGLang and building its runner change outside of both.

    These are environment variables (cache folders, log levels), noted between ``with`` and
    its end, and MLX's wired and cache limits. Of mlx_lm and MLX nothing is replaced: the
    attention wrappers sit in the runner's own copy of the model.
    """

    def __init__(self) -> None:
        import mlx.core as mx

        setters = [mx.set_cache_limit]
        if mx.metal.is_available():
            setters.append(mx.set_wired_limit)
        self._limits = [(setter, _current(setter)) for setter in setters]
        self._before: dict[str, str] = {}
        self._changes: dict[str, tuple[str | None, str | None]] = {}

    def __enter__(self) -> None:
        """Note the environment as it is."""
        self._before = dict(os.environ)

    def __exit__(self, *_: object) -> None:
        """Note what has changed."""
        for name in {*self._before, *os.environ}:
            old, new = self._before.get(name), os.environ.get(name)
            if old != new:
                self._changes[name] = old, new

    def undo(self) -> None:
        """Put back what still is as SGLang left it."""
        for name, (old, new) in self._changes.items():
            if os.environ.get(name) != new:
                continue
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old
        for setter, limit in self._limits:
            setter(limit)


def _current(setter: Callable[[int], int]) -> int:
    """Read a limit of MLX's, which can only be read by setting it."""
    limit = setter(0)
    setter(limit)
    return limit
