"""Faults planted in SGLang's own runner, its attention wrapper, its caches and its tree.

Numbers are rows of the table of faults in the documentation of what mlxcheck catches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fixtures.faults.planted import Expect, Patch, Planted
from mlxcheck.backends.sglang import SglangBackend
from tests.sglang.driving import random_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.records import ModelRef

__all__ = ["FAULTS", "Faulty"]


class Faulty(Planted, SglangBackend):
    """SGLang with a fault: patched when it has opened, whole again when it is closed."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(**self.options)

    def open(self, model: ModelRef) -> None:
        """Open, which imports SGLang, then plant the fault."""
        super().open(model)
        self.plant()

    def close(self) -> None:
        """Undo the fault, then close."""
        self.undo()
        super().close()


def _context() -> Any:
    from sglang.srt.hardware_backend.mlx.kv_cache import BatchedDecodeContext

    return BatchedDecodeContext


def _runner() -> Any:
    from sglang.srt.hardware_backend.mlx.model_runner import MlxModelRunner

    return MlxModelRunner


class OnlyRowZeroRotated(Faulty):
    """Row 1."""

    row = 1
    sentence = "rotation is applied to row 0 only in single-token decode"
    red = Expect(check="batch", case="batch-5/same|batch-2", only=lambda found: found.row > 0)
    green = (
        Expect(check="tokens"),
        Expect(check="batch", case="batch-1/"),
        Expect(check="batch", case="batch-2/", only=lambda found: found.row == 0),
    )

    def patches(self) -> Iterator[Patch]:
        import mlx.core as mx

        post_init = _context().__post_init__

        def unrotated(context: Any) -> None:
            post_init(context)
            # A rotation by position 0 is none at all.
            context.offsets = mx.where(mx.arange(context.batch_size) == 0, context.offsets, 0)

        yield _context(), "__post_init__", unrotated


class SharedOffset(Faulty):
    """Row 3."""

    row = 3
    sentence = "one RoPE offset, the longest row's, is shared by the batch"
    red = Expect(check="batch", case="batch-2/short-long|batch-8/")
    green = (
        Expect(check="tokens"),
        Expect(check="batch", case="batch-1/|.*equal-length|.*same"),
        Expect(check="batch", case="batch-2/short-long", only=lambda found: found.row == 1),
    )

    def patches(self) -> Iterator[Patch]:
        import mlx.core as mx

        post_init = _context().__post_init__

        def shared(context: Any) -> None:
            post_init(context)
            context.offsets = mx.broadcast_to(context.offsets.max(), context.offsets.shape)

        yield _context(), "__post_init__", shared


class PaddingVisible(Faulty):
    """Row 4."""

    row = 4
    sentence = "the padding mask is ignored where lengths differ by more than one"
    red = Expect(check="batch", case="batch-2/short-long|batch-8/")
    green = (
        Expect(check="tokens"),
        Expect(check="batch", case="batch-2/short-long", only=lambda found: found.row == 1),
        Expect(check="batch", case="batch-1/|.*equal-length|.*same"),
    )

    def patches(self) -> Iterator[Patch]:
        import mlx.core as mx

        post_init = _context().__post_init__

        def blind(context: Any) -> None:
            post_init(context)
            missing = context.max_len - context.valid_lens
            context.valid_lens = mx.where(missing > 1, context.max_len, context.valid_lens)

        yield _context(), "__post_init__", blind


class FirstPadVisible(Faulty):
    """Row 5."""

    row = 5
    sentence = "the padding mask is off by one: the pad next to the keys is visible"
    # One pad among many keys moves little: nonsense leaves the model margins that are
    # narrow enough for it to show in tokens.
    prompts = random_prompts((3, 5, 7, 9, 14, 20, 26, 40) * 2, seed=1)
    red = Expect(check="batch", case="batch-[2358]/")
    green = (
        Expect(check="tokens"),
        Expect(check="batch", case="batch-1/|.*equal-length|.*same"),
    )

    def patches(self) -> Iterator[Patch]:
        import mlx.core as mx

        post_init = _context().__post_init__

        def off_by_one(context: Any) -> None:
            post_init(context)
            context.valid_lens = mx.minimum(context.valid_lens + 1, context.max_len)

        yield _context(), "__post_init__", off_by_one


class FirstBlockIsTheKey(Faulty):
    """Row 21."""

    row = 21
    sentence = "the radix tree compares the first block of tokens and takes the rest as equal"
    options: ClassVar[dict[str, Any]] = {"radix_cache": True}
    red = Expect(check="prefix")
    green = ()  # whatever was asked before may be taken for what is asked now

    def patches(self) -> Iterator[Patch]:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        match_at = RadixKey.match_at
        block = 4

        def hasty(key: Any, other: Any, offset: int, page_size: int = 1) -> int:
            length = min(len(key), len(other) - offset)
            found = int(match_at(key, other, offset, page_size))
            return length if found >= block else found

        yield RadixKey, "match_at", hasty


class CacheReusedAsItIs(Faulty):
    """Row 22."""

    row = 22
    sentence = "a KV buffer that a request has freed is given to the next one without a reset"
    red = Expect(check="tokens")
    green = ()  # only the first request of all finds a clean buffer

    def patches(self) -> Iterator[Patch]:
        from sglang.srt.hardware_backend.mlx.kv_cache import ContiguousAttentionKVCache

        yield ContiguousAttentionKVCache, "reset", lambda _cache: None


class StaleRowWritten(Faulty):
    """Row 22, in the slot pool."""

    row = 22
    sentence = "KV past a request's own slots is written to those of its row's last owner"
    options: ClassVar[dict[str, Any]] = {"radix_cache": True, "lazy": True}
    red = Expect(check="batch")
    green = ()  # only the first request of all finds clean slots

    def patches(self) -> Iterator[Patch]:
        sync = _runner()._sync_decode_kv_to_pool

        def unbounded(runner: Any, req_id: str, end: int | None = None) -> None:
            del end
            sync(runner, req_id)

        yield _runner(), "_sync_decode_kv_to_pool", unbounded


class OffsetsNotCompacted(Faulty):
    """Row 25."""

    row = 25
    sentence = "when a row leaves, keys and values are compacted but the offsets are not"
    red = Expect(check="batch", case="batch-8/|batch-5/[0-9]")
    green = (Expect(check="tokens"), Expect(check="batch", case="batch-1/|.*same"))

    def patches(self) -> Iterator[Patch]:
        import mlx.core as mx

        build = _runner()._build_batched_decode_context
        ids: list[str] = []
        offsets: list[int] = []

        def stale(runner: Any, caches: Any, req_ids: list[str]) -> Any:
            context = build(runner, caches, req_ids)
            goes_on = bool(ids) and set(req_ids) <= set(ids)
            kept = [n + 1 for n in offsets[: len(req_ids)]] if goes_on else context.seq_lens
            ids[:], offsets[:] = req_ids, kept
            context.offsets = mx.array(kept, dtype=mx.int32)
            return context

        yield _runner(), "_build_batched_decode_context", stale


class JoinIndexesModulo(Faulty):
    """Row 26."""

    row = 26
    sentence = "a joining row does not lengthen the batch axis and reads another row's logits"
    red = Expect(check="batch", case="batch-9/over")
    green = (Expect(check="tokens"), Expect(check="batch", case="batch-[12358]/"))

    def patches(self) -> Iterator[Patch]:
        import mlx.core as mx

        decode = _runner()._decode_with_batched_attention
        ids: list[str] = []
        axis = [0]

        def short(runner: Any, caches: Any, batched_input: Any, req_ids: list[str]) -> Any:
            logits = decode(runner, caches, batched_input, req_ids)
            stayed = len(set(ids) & set(req_ids))
            if req_ids != ids:
                axis[0] = stayed or len(req_ids)
            ids[:] = req_ids
            return logits[mx.arange(len(req_ids)) % axis[0]]

        yield _runner(), "_decode_with_batched_attention", short


class ChunkRestartsAtZero(Faulty):
    """Row 28."""

    row = 28
    sentence = "the second chunk of a prompt restarts its positions at 0"
    options: ClassVar[dict[str, Any]] = {"prefill_chunk": 24}
    red = Expect(check="tokens", case="alone/(filler|len-3)")
    green = (Expect(check="tokens", case="alone/(sum|capital|count|len-[1289]$)"),)

    def patches(self) -> Iterator[Patch]:
        from mlx import nn

        rope = nn.RoPE.__call__
        extend_start = _runner().extend_start
        done = [0]

        def rotate(layer: Any, x: Any, offset: Any = 0) -> Any:
            return rope(layer, x, offset - done[0])

        def restart(runner: Any, req_id: str, *args: Any, **options: Any) -> Any:
            done[0] = runner._first_attention_cache(runner._req_caches[req_id]).offset
            try:
                return extend_start(runner, req_id, *args, **options)
            finally:
                done[0] = 0

        yield nn.RoPE, "__call__", rotate
        yield _runner(), "extend_start", restart


FAULTS: tuple[type[Faulty], ...] = (
    OnlyRowZeroRotated,
    SharedOffset,
    PaddingVisible,
    FirstPadVisible,
    FirstBlockIsTheKey,
    CacheReusedAsItIs,
    StaleRowWritten,
    OffsetsNotCompacted,
    JoinIndexesModulo,
    ChunkRestartsAtZero,
)
"""Each fault once."""
