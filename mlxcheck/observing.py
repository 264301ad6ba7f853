"""Turns the numbers that an engine shows, step by step, into scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mlxcheck import reference
from mlxcheck.errors import EngineFault
from mlxcheck.noise import ulp
from mlxcheck.records import Scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.backends.base import Emission
    from mlxcheck.records import Trace

__all__ = ["Watcher"]

_FLUSH = 64  # rows of raw logits held at once, as by the reference


class Watcher:
    """The scores of one row.

    Args:
        expected: The reference's answer, whose top tokens are looked up at each step; None
            keeps the candidate's own best only.
        vocab_size: Rows of the output head, at least as many as logits must have.
    """

    def __init__(self, expected: Trace | None, vocab_size: int) -> None:
        self._expected = expected.scores if expected else ()
        self._vocab_size = vocab_size
        self._rows: list[Any] = []
        self._told: list[Mapping[int, float] | None] = []
        self._blind = False
        self.scores: list[Scores] = []
        self.reported: list[float] = []

    def take(self, emission: Emission) -> None:
        """Take in what one emission shows.

        Raises:
            EngineFault: It shows something that cannot be logits or log-probabilities.
        """
        if emission.logits is not None:
            self._rows.append(self._row(emission.logits))
            self._told.append(emission.logprobs)
            if len(self._rows) == _FLUSH:
                self._flush()
        elif emission.logprobs:
            self._flush()  # what came before comes first
            self.scores.append(_of_reported(emission.logprobs))
        else:
            self._blind = True  # one score a token, or none: what follows has no place

    def close(self) -> tuple[tuple[Scores, ...], tuple[float, ...]]:
        """Return the scores, and how far the reported log-probabilities are from them."""
        self._flush()
        if self._blind:
            return (), ()
        both = len(self.reported) == len(self.scores)  # else an entry could be of any step
        return tuple(self.scores), tuple(self.reported) if both else ()

    def _row(self, logits: Any) -> Any:
        import mlx.core as mx

        try:
            row = logits if isinstance(logits, mx.array) else mx.array(logits)
        except (TypeError, ValueError, RuntimeError) as error:
            msg = f"step() gave logits that are no array: {error}"
            raise EngineFault(msg) from None
        size = row.shape[-1] if row.ndim else 1
        few = size < self._vocab_size or row.size != size  # too few tokens, or several rows
        if few or not mx.issubdtype(row.dtype, mx.floating):
            msg = (
                f"step() gave logits of shape {tuple(row.shape)} and dtype {row.dtype}; "
                f"expected floats, one for each of the {self._vocab_size} tokens"
            )
            raise EngineFault(msg)
        return row.reshape(1, -1)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        told, self._told = self._told, []
        if not rows or self._blind:
            return
        first = len(self.scores)
        wanted = self._expected[first : first + len(rows)]
        if len(wanted) == len(rows):
            scored = reference.score_at(rows, [scores.ids for scores in wanted])
        else:
            scored = reference.score_rows(rows)
        self.scores += scored
        for row, says, scores in zip(rows, told, scored, strict=True):
            if says:
                self.reported.append(_off(says, scores, reference.dtype_of(row)))


def _of_reported(logprobs: Mapping[int, float]) -> Scores:
    pairs = sorted(logprobs.items(), key=lambda pair: (-pair[1], pair[0]))
    return Scores(
        ids=tuple(int(token) for token, _ in pairs),
        logprobs=tuple(float(logprob) for _, logprob in pairs),
    )


def _off(says: Mapping[int, float], scores: Scores, dtype: str) -> float:
    """Return the largest difference of reported and own log-probabilities, in units.

    A unit is that of the largest number on the way: the logit, the log-sum-exp, the result.
    """
    worst = 0.0
    for token, logprob in zip(scores.ids, scores.logprobs, strict=True):
        told = says.get(token)
        if told is None:
            continue
        size = max(abs(scores.logsumexp or 0.0), abs(scores.top_logit), abs(logprob))
        off = abs(told - logprob) / ulp(dtype, size if math.isfinite(size) else 1.0)
        worst = off if math.isnan(off) else max(worst, off)
    return worst
