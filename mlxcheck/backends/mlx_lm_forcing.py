"""Teacher forcing on mlx-lm's own surface: a sampler that says what it is told to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Forced"]


class Forced:
    """One request's sampler and logits processor.

    mlx-lm computes a step ahead of the token that it gives, so what the processor sees is
    queued until that token comes out.

    Args:
        tokens: What to say, in order; past their end the last one again.
    """

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._tokens = tokens
        self._said = 0
        self._seen: deque[Any] = deque()

    @property
    def sampler(self) -> Callable[[Any], Any]:
        """A sampler: log-probabilities ``[1, vocabulary]`` in, a token ``[1]`` out."""
        return self._sample

    @property
    def processor(self) -> Callable[[Any, Any], Any]:
        """A logits processor that keeps the raw logits, ``[1, vocabulary]``, as they are."""
        return self._watch

    def logits(self) -> Any:
        """Return the raw logits that the next token to come out was chosen from."""
        return self._seen.popleft()

    def _sample(self, logprobs: Any) -> Any:
        import mlx.core as mx

        del logprobs
        token = self._tokens[min(self._said, len(self._tokens) - 1)]
        self._said += 1
        return mx.array([token], dtype=mx.uint32)

    def _watch(self, tokens: Any, logits: Any) -> Any:
        del tokens
        self._seen.append(logits)
        return logits
