"""The reference: unpatched mlx-lm, greedy, ids in and ids out.

Nothing here is clever on purpose. It calls mlx-lm's own ``load_model``,
``load_tokenizer`` and ``generate_step``, and looks at the raw logits through a logits
processor that returns them untouched.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import weakref
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcheck.arms import NotFinite, Scored, measure
from mlxcheck.errors import ModelError, ReferenceBroken, UsageError
from mlxcheck.records import ModelRef, Prompt, Scores, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.checkpoint import Checkpoint
    from mlxcheck.noise import Noise

__all__ = [
    "Reference",
    "device",
    "dtype_of",
    "load_model",
    "read_tokenizer",
    "require_mlx",
    "score_at",
    "score_rows",
    "stop_set",
    "tokenizer_of",
    "version",
]

TOP_K = 64
"""Log-probabilities kept a step: beyond the top 64 a difference decides no greedy token."""

_OWN_BEST = 5  # what a message shows of the candidate's own choice

_FLUSH = 64  # steps of raw logits held at once: 64 x 150,000 float32 are 38 MB


def require_mlx() -> None:
    """Make sure that mlx and mlx-lm can be imported, shared libraries included.

    Raises:
        UsageError: They cannot; the text says what to install.
    """
    try:
        importlib.import_module("mlx.core")
        importlib.import_module("mlx_lm.utils")
    except (ImportError, OSError) as error:
        msg = (
            f"mlx cannot be used in this environment: {_first_line(error)}. On Linux mlx needs "
            "a build of its own: install mlxcheck[cpu], or mlxcheck[cuda13] with an NVIDIA "
            "GPU. On a Mac, install mlx-lm anew."
        )
        raise UsageError(msg) from error


@functools.cache  # reading a package's metadata costs as much as a small decode step
def version() -> str:
    """Return the name and version of the reference engine."""
    return f"mlx-lm {metadata.version('mlx-lm')}"


def read_tokenizer(checkpoint: Checkpoint) -> Any:
    """Load the tokenizer as ``mlx_lm.load`` does, without the weights.

    Raises:
        ModelError: The tokenizer files are broken.
    """
    return tokenizer_of(checkpoint.model)


def tokenizer_of(model: ModelRef) -> Any:
    """Do as `read_tokenizer` for the model of a checkpoint."""
    from mlx_lm.utils import load_config, load_tokenizer

    path = Path(model.path)
    extra = {"trust_remote_code": True} if model.trust_remote_code else None
    try:
        eos = load_config(path).get("eos_token_id")
        return load_tokenizer(path, extra, eos_token_ids=eos)
    except Exception as error:
        msg = f"{model.path}: the tokenizer cannot be loaded: {_first_line(error)}"
        raise ModelError(msg) from error


def stop_set(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that end an answer: ``eos_token_ids``, else ``eos_token_id``."""
    ids = getattr(tokenizer, "eos_token_ids", None)
    if not ids:
        single = getattr(tokenizer, "eos_token_id", None)
        ids = [] if single is None else [single]
    return tuple(sorted(int(token) for token in ids))


def load_model(path: str, *, trust_remote_code: bool = False) -> Any:
    """Load a checkpoint with mlx-lm; the one place that knows its signature's history.

    Raises:
        ModelError: mlx-lm refuses the checkpoint.
    """
    from mlx_lm.utils import load_model as load

    options: dict[str, bool] = {}
    if trust_remote_code and "trust_remote_code" in inspect.signature(load).parameters:
        options["trust_remote_code"] = True  # older releases run such code unasked
    try:
        model, _ = load(Path(path), **options)
    except (ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        msg = f"{path}: mlx-lm cannot load this checkpoint: {_first_line(error)}"
        raise ModelError(msg) from error
    return model


class Reference:
    """One loaded reference model.

    Args:
        checkpoint: What to load. Its `ModelRef.stop_ids` end every answer.
        prefill_chunk: Prompt tokens of one prefill step.

    Attributes:
        path: What was loaded.
        dtype: Of the raw logits, once something has been decoded.
    """

    def __init__(self, checkpoint: Checkpoint, *, prefill_chunk: int = 2048) -> None:
        self._ref = checkpoint.model
        self._prefill_chunk = prefill_chunk
        self.path = self._ref.path
        self.dtype = ""
        self._model: Any = load_model(
            self._ref.path, trust_remote_code=self._ref.trust_remote_code
        )

    def decode(self, prompt: Prompt, *, max_tokens: int) -> Trace:
        """Decode one prompt greedily with ``generate_step``.

        Args:
            prompt: At least one id, all inside the vocabulary.
            max_tokens: The most tokens to give.

        Returns:
            The tokens up to and including the first stop id, and the `Scores` of each.

        Raises:
            ReferenceBroken: The model's logits are not finite.
        """
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        rows: list[mx.array] = []

        def watch(_tokens: mx.array, logits: mx.array) -> mx.array:
            rows.append(logits)
            self.dtype = self.dtype or dtype_of(logits)
            return logits

        tokens: list[int] = []
        scores: list[Scores] = []
        steps = generate_step(
            mx.array(prompt.tokens),
            self._model,
            max_tokens=max_tokens,
            prefill_step_size=self._prefill_chunk,
            logits_processors=[watch],
        )
        try:
            for token, _ in steps:
                tokens.append(int(token))
                if len(tokens) - len(scores) == _FLUSH:
                    scores += self._flush(rows, _FLUSH, prompt)
                if tokens[-1] in self._ref.stop_ids:
                    break
        finally:
            steps.close()  # a generator that lives on in a traceback would hold the model
        scores += self._flush(rows, len(tokens) - len(scores), prompt)
        stopped = tokens[-1] in self._ref.stop_ids
        return Trace(
            prompt_id=prompt.id,
            tokens=tuple(tokens),
            finish="stop" if stopped else "length",
            scores=tuple(scores),
        )

    def noise(  # noqa: PLR0913 - keyword-only but for what was said
        self,
        pairs: Sequence[tuple[Prompt, Trace]],
        *,
        seconds: float,
        exact: bool,
        arms: bool = True,
        cast: bool = False,
        routed: bool = False,
    ) -> Noise:
        """Measure how far rounding moves what this model has just said.

        Args:
            pairs: Prompts that have been decoded, and their answers.
            seconds: What that took; the noise may take a share of it.
            exact: See `Noise.exact`.
            arms: Whether to, or only to see that the reference agrees with itself.
            cast: There is room to cast the model to float32, in place, once all else has
                been done; nothing more can be decoded then.
            routed: The model has experts.

        Raises:
            ReferenceBroken: What was finite when it was decoded no longer is.
        """
        scored = Scored(tuple(pairs), seconds)
        try:
            return measure(
                self._model if arms else None,
                scored,
                lambda prompt, steps: self.decode(prompt, max_tokens=steps),
                dtype=self.dtype,
                exact=exact,
                cast=cast,
                routed=routed,
            )
        except NotFinite as error:
            msg = (
                f"{self._ref.source}: the reference's own logits are finite where it decodes, "
                f"and not where it scores the same answer once more (prompt "
                f"{error.prompt_id!r}). No engine can be judged against them: the checkpoint "
                "or this MLX build is broken."
            )
            raise ReferenceBroken(msg) from None

    def release(self) -> weakref.ref[object]:
        """Let go of the model and return a weak reference that must die."""
        ref: weakref.ref[object] = weakref.ref(self._model)
        self._model = None
        return ref

    def _flush(self, rows: list[Any], count: int, prompt: Prompt) -> tuple[Scores, ...]:
        """Score the first *count* rows and drop them; generate_step is a row ahead."""
        scored = score_rows(rows[:count]) if count else ()
        del rows[:count]
        for place, scores in enumerate(scored):
            if not scores.finite:
                msg = (
                    f"{self._ref.source}: the reference's own logits are not finite (prompt "
                    f"{prompt.id!r}, {place} steps into a stretch of {count}). No engine can "
                    "be judged against them: the checkpoint or this MLX build is broken."
                )
                raise ReferenceBroken(msg)
        return scored


def score_rows(rows: Sequence[Any]) -> tuple[Scores, ...]:
    """Normalise raw logits in float32 and keep the best of them.

    Log-probabilities that an engine hands out are rounded again in the model's dtype,
    which hides small faults; so they are made from the raw logits, in float32.

    Args:
        rows: Arrays of shape ``[1, vocabulary]``, any float dtype, one a step.

    Returns:
        One `Scores` a row, with the top ``min(64, vocabulary)`` entries.
    """
    return _scored(rows, TOP_K)


def score_at(rows: Sequence[Any], ids: Sequence[Sequence[int]]) -> tuple[Scores, ...]:
    """Normalise raw logits in float32 and keep those of given tokens, and the best five.

    Args:
        rows: As for `score_rows`.
        ids: As many tokens for each row, the same number for all.
    """
    return _scored(rows, _OWN_BEST, ids)


def _scored(
    rows: Sequence[Any], most: int, ids: Sequence[Sequence[int]] = ()
) -> tuple[Scores, ...]:
    """Score the best *most* tokens of each row, and those of *ids* where it is given."""
    import mlx.core as mx

    logits = mx.concatenate(list(rows)).astype(mx.float32)
    k = min(most, logits.shape[-1])
    lse = mx.logsumexp(logits, axis=-1, keepdims=True)
    kept = mx.argpartition(-logits, kth=k - 1, axis=-1)[:, :k].astype(mx.int32)
    if ids:
        wanted = mx.array([list(row) for row in ids], dtype=mx.int32)
        kept = mx.concatenate([wanted, kept], axis=-1)
    logprobs = mx.take_along_axis(logits, kept, axis=-1) - lse
    mx.eval(kept, logprobs, lse)
    columns: list[Any] = [kept.tolist(), logprobs.tolist(), lse[:, 0].tolist()]
    return tuple(_best_first(*row) for row in zip(*columns, strict=True))


def device() -> str:
    """Return MLX's default device, and its name where it has one."""
    import mlx.core as mx

    return f"{mx.default_device()} {mx.device_info().get('device_name', '')}".strip()


def dtype_of(logits: Any) -> str:
    """Return ``"float32"``, ``"bfloat16"`` or ``"float16"`` for an MLX array."""
    return str(logits.dtype).rpartition(".")[2]


def _best_first(ids: list[int], logprobs: list[float], lse: float) -> Scores:
    pairs = sorted(set(zip(logprobs, ids, strict=True)), key=lambda pair: (-pair[0], pair[1]))
    return Scores(
        ids=tuple(token for _, token in pairs),
        logprobs=tuple(logprob for logprob, _ in pairs),
        logsumexp=lse,
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().split(chr(10), 1)[0]}"
