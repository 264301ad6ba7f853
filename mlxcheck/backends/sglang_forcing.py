"""Teacher forcing on SGLang's runner: its logits are seen, and its tokens are given.

The runner turns logits into tokens in one method, for prefill, extend, decode and chained
decode alike. While a forced request is in flight, that method of this one runner is wrapped;
everything before and after it is called as for any other request. The runner's public hooks
would show less: it ignores edits of the logits with sampling off, and ``logits_hook`` is not
there for a prefill or a chained step, and sees float32 copies.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.sglang_pools import ENGINE, misfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.backends.base import Capabilities

__all__ = ["Forcing"]

_SELECT = "_select_tokens_with_logprobs"
_SAMPLING = "sglang.srt.hardware_backend.mlx.sampling"
_FORCE_CALLS = ((ENGINE, f"MlxModelRunner.{_SELECT}", ("last_logits", "req_ids", "caches")),)
_LOGPROB_CALLS = (
    (ENGINE, "MlxModelRunner.collect_logprobs", ("lazy_logprobs",)),
    (_SAMPLING, "compute_logprobs", ("last_logits", "params", "tokens", "spec")),
    (_SAMPLING, "MlxLogprobSpec", ("top_ks", "token_ids")),
    (_SAMPLING, "MlxSamplingParams", ("temperature", "top_k", "top_p", "min_p", "seed")),
)
_TOP = 20  # the most that an OpenAI-compatible server is asked for


@dataclass(slots=True)
class _Step:
    """One selection of the runner's: a token for each row.

    Attributes:
        logits: What it selected from, shape ``[rows, vocabulary]``.
        tokens: What it went on from, shape ``[rows]``.
        logprobs: SGLang's report on all rows, once one was asked for.
    """

    logits: Any
    tokens: Any
    logprobs: Any = None


@dataclass(slots=True)
class _Answer:
    """One forced request.

    Attributes:
        left: What it is still to be given.
        seen: The steps that selected for it and were not taken yet, and its row in each.
    """

    left: deque[int]
    seen: deque[tuple[_Step, int]] = field(default_factory=deque)


class Forcing:
    """Gives forced requests their tokens, and keeps what the runner showed meanwhile.

    Args:
        runner: SGLang's; it is touched only between the first `add` and the last `drop`.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._own: Any = None  # the runner's method, while another stands in for it
        self._answers: dict[str, _Answer] = {}
        self._reports = not misfit(_LOGPROB_CALLS)

    def settle(self, capabilities: Capabilities) -> Capabilities:
        """Return *capabilities* without those that this release has not the methods for.

        The wrapped method is private: a release that lost it can still be driven free.
        """
        fits = not misfit(_FORCE_CALLS)
        return replace(
            capabilities,
            teacher_forcing=fits,
            logits=fits,
            logprobs=fits and self._reports,
        )

    def add(self, request_id: str, forced: Sequence[int]) -> None:
        """Give a request these tokens from now on, one a selection."""
        self._answers[request_id] = _Answer(deque(forced))
        if self._own is None:
            self._own = getattr(self._runner, _SELECT)
            setattr(self._runner, _SELECT, self._select)

    def drop(self, request_id: str) -> None:
        """Forget a request, if it is known, and leave the runner as it was after the last."""
        self._answers.pop(request_id, None)
        if not self._answers:
            self.close()

    def take(self, request_id: str) -> dict[str, Any]:
        """Return what an emission shows of a request's oldest step that was not taken yet.

        Returns:
            ``logits`` and, where this release reports them, ``logprobs``; nothing for a
            request that is not forced.

        Raises:
            RuntimeError: The runner had given the request a token without selecting one.
        """
        answer = self._answers.get(request_id)
        if answer is None:
            return {}
        if not answer.seen:
            msg = f"MlxModelRunner gave {request_id!r} a token without calling {_SELECT}"
            raise RuntimeError(msg)
        step, row = answer.seen.popleft()
        shown = {"logits": step.logits[row]}
        if self._reports:
            shown["logprobs"] = self._logprobs(step, row)
        return shown

    def close(self) -> None:
        """Forget every request, and leave the runner as it was."""
        self._answers.clear()
        if self._own is not None:
            delattr(self._runner, _SELECT)
            self._own = None

    def _select(
        self, last_logits: Any, req_ids: Sequence[str], *others: Any, **options: Any
    ) -> Any:
        """Let the runner choose, and put what was asked for in place of forced rows' choice.

        It is called while the graph is built, once a token that a request is given: a
        chained step may be queued before the one ahead of it has been waited for. A step
        past a request's end, computed in vain, keeps the runner's choice.
        """
        import mlx.core as mx

        own, logprobs = self._own(last_logits, req_ids, *others, **options)
        answers = [self._answers.get(request_id) for request_id in req_ids]
        if not any(answers):
            return own, logprobs
        given = [answer.left.popleft() if answer and answer.left else -1 for answer in answers]
        forced = mx.array(given)
        # The choice stays in the graph: of a queued step only the tokens are waited for, and
        # constants would not have it computed.
        tokens = mx.where(forced < 0, own, forced.astype(own.dtype))
        step = _Step(last_logits, tokens)
        for row, answer in enumerate(answers):
            if answer is not None:
                answer.seen.append((step, row))
        return tokens, logprobs

    def _logprobs(self, step: _Step, row: int) -> Mapping[int, float]:
        """Return what SGLang reports of a row: its highest ids, and the one it was given.

        With sampling off, as it is here, the runner reports none by itself. This is what
        it calls when sampling is on and every row is greedy.
        """
        from sglang.srt.hardware_backend.mlx import sampling

        if step.logprobs is None:
            rows = len(step.tokens)
            greedy = sampling.MlxSamplingParams(
                temperature=1.0, top_k=1, top_p=1.0, min_p=0.0, seed=None
            )
            lazy = sampling.compute_logprobs(
                last_logits=step.logits,
                params=[greedy] * rows,
                tokens=step.tokens,
                spec=sampling.MlxLogprobSpec(top_ks=(_TOP,) * rows, token_ids=(None,) * rows),
            )
            step.logprobs = self._runner.collect_logprobs(lazy_logprobs=lazy)
        found = step.logprobs
        top = dict(zip(found.top_idx[row], found.top_val[row], strict=True))
        return top | {int(step.tokens[row]): found.chosen[row]}
