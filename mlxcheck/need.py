"""What a run needs in memory: arithmetic on the checkpoint's own numbers. Sizes are bytes.

With ``positions = longest + max_tokens`` rounded up to 256 and
``c = min(chunk, longest)``::

    kv_cache    = 2 * layers * kv_heads * head_dim * positions * batch * kv_itemsize
    layer       = 4 * batch * c * (4 * hidden + 3 * inner)
    scores      = 4 * batch * heads * c * longest
    logits      = 4 * max(c, batch) * vocab
    activations = layer + scores + logits
    margin      = max(64 MiB, 10 % of the above)

MLX frees an array after its last use, so one layer is alive at a time: the residual,
its normed copy, queries and attention output (4 of width hidden), then gate, up and
their product (3 of the feed-forward width; in a mixture of experts that of all the
experts a token is sent to). The scores are an upper bound: a fused kernel never writes
them, but the CPU build and head sizes without a kernel do. mlx-lm evaluates the logits
of one position a row; engines that keep those of a whole prompt prefill one row at a
time, hence ``max(c, batch)``. The KV term counts every layer as full attention:
sliding windows, state-space layers and latent caches take less.

The margin is for what has no term: the copy made when a cache grows, compiled kernels,
Python itself. One report that sized it took a seventh of the weights and 1 GB, which
would shut out a tiny model on a small machine; a tenth with a floor of 64 MiB does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Need", "estimate"]

CACHE_STEP = 256
"""Tokens by which mlx-lm's KV caches grow (``KVCache.step`` in mlx_lm/models/cache.py)."""

FLOAT32 = 4
"""Bytes of a float32, the widest dtype that an activation takes."""

MIN_MARGIN = 64 * 2**20
"""Bytes of margin that every run gets: what a Python process grows by anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a run takes at its peak, in bytes; None where that is unknown.

    Attributes:
        weights: One copy of the model.
        kv_cache: Keys and values of every row at its longest.
        activations: One layer and the logits, in the longest prefill chunk.
        margin: For what the formula does not see.
        buffer: The largest single array that is not a weight; not part of the total.
    """

    weights: int | None
    kv_cache: int | None
    activations: int | None
    margin: int | None
    buffer: int | None = None

    @property
    def total(self) -> int:
        """The sum of the terms that are known, in bytes."""
        terms = (self.weights, self.kv_cache, self.activations, self.margin)
        return sum(term for term in terms if term is not None)


class _Shape:
    """The numbers of an architecture, read from a config that may lack any of them."""

    def __init__(self, config: Mapping[str, object]) -> None:
        nested = config.get("text_config")
        # Multimodal checkpoints keep the language model's numbers one level down.
        inner = nested if isinstance(nested, dict) else {}
        told = {key: value for key, value in inner.items() if value is not None}
        self._config: dict[str, object] = {**config, **told}
        self.layers = self._int("num_hidden_layers", "n_layers", "n_layer", "num_layers")
        self.hidden = self._int("hidden_size", "n_embd", "d_model", "dim", "model_dim")
        self.heads = self._int("num_attention_heads", "n_heads", "n_head", "num_heads")
        kv_heads = self._int("num_key_value_heads", "num_kv_heads", "n_kv_heads")
        self.kv_heads = self.heads if kv_heads is None else kv_heads
        self.vocab = self._int("vocab_size")
        self.head_dim = self._head_dim()
        self.inner = self._inner()

    def _int(self, *keys: str) -> int | None:
        """Read the first of *keys* that holds a size; of a list, one a layer, the largest."""
        for key in keys:
            value = self._config.get(key)
            values = value if isinstance(value, list | tuple) and value else [value]
            if all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values):
                return int(max(values))
        return None

    def _head_dim(self) -> int | None:
        """Read the width of a head; a latent-attention key is a nope and a rope part."""
        nope, rope = self._int("qk_nope_head_dim"), self._int("qk_rope_head_dim")
        if nope is not None and rope is not None:
            return nope + rope
        told = self._int("head_dim")
        if told is None and self.hidden is not None and self.heads is not None:
            return -(-self.hidden // self.heads)
        return told

    def _inner(self) -> int | None:
        """Read the feed-forward width: that of all the experts that one token is sent to."""
        dense = self._int("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
        expert = self._int("moe_intermediate_size") or dense
        routed = self._int("num_experts_per_tok", "num_experts_per_token", "moe_topk")
        if expert is None or routed is None:
            return dense
        shared = self._int("shared_expert_intermediate_size") or 0
        return max(dense or 0, expert * routed + shared)


def _kv_cache(shape: _Shape, positions: int, batch: int, itemsize: int) -> int | None:
    """Bytes of keys and values, as mlx-lm's ``KVCache`` allocates them."""
    layers, kv_heads, head_dim = shape.layers, shape.kv_heads, shape.head_dim
    if layers is None or kv_heads is None or head_dim is None:
        return None
    rounded = -(-positions // CACHE_STEP) * CACHE_STEP
    return 2 * layers * kv_heads * head_dim * rounded * batch * itemsize


def _activations(shape: _Shape, chunk: int, context: int, batch: int) -> tuple[int, ...] | None:
    """Bytes of one layer's arrays, its attention scores and the logits, in this order."""
    hidden, heads, vocab = shape.hidden, shape.heads, shape.vocab
    if hidden is None or heads is None or vocab is None:
        return None
    inner = shape.inner or 4 * hidden
    layer = batch * chunk * (4 * hidden + 3 * inner) * FLOAT32
    scores = batch * heads * chunk * context * FLOAT32
    logits = max(chunk, batch) * vocab * FLOAT32
    return layer, scores, logits


def estimate(  # noqa: PLR0913 - each is a fact of the run, and none has a default to guess
    *,
    weight_bytes: int | None,
    config: Mapping[str, object],
    longest: int,
    max_tokens: int,
    batch: int,
    chunk: int,
    kv_itemsize: int = FLOAT32,
) -> Need:
    """Estimate what a run needs at its peak; the formula is at the top of this file.

    Args:
        weight_bytes: Bytes of the weights, from the safetensors headers; None if unknown.
        config: The checkpoint's ``config.json``; the sizes may be under ``text_config``.
        longest: Tokens of the longest prompt.
        max_tokens: Tokens that one answer may take.
        batch: Rows of the widest batch.
        chunk: Tokens that are prefilled at a time.
        kv_itemsize: Bytes of one cached number; 4 for float32, 2 for bfloat16.

    Returns:
        The terms. One whose sizes the config does not give is None, never an error.
    """
    shape = _Shape(config)
    longest, batch, chunk = max(longest, 1), max(batch, 1), max(chunk, 1)
    kv_cache = _kv_cache(shape, longest + max(max_tokens, 0), batch, kv_itemsize)
    parts = _activations(shape, min(chunk, longest), longest, batch)
    activations = None if parts is None else sum(parts)
    known = sum(term for term in (weight_bytes, kv_cache, activations) if term is not None)
    return Need(
        weights=weight_bytes,
        kv_cache=kv_cache,
        activations=activations,
        margin=max(MIN_MARGIN, known // 10),
        buffer=None if parts is None else max(parts),
    )
