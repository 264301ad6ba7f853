"""Measures the noise of a loaded reference: the same answers, scored in other benign ways.

Each way (arm) is the same mathematics in another shape: all tokens at once, in two chunks,
in three, in equal rows. What moves between them is rounding, since kernels are chosen by
shape. No arm runs a batched engine: an arm that ran the suspect kernel would hide its fault.
"""

from __future__ import annotations

import math
import operator
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlxcheck import jitter
from mlxcheck.budget import Budget
from mlxcheck.noise import IN_FLOAT32, RIVALS, Arm, Noise, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mlxcheck.records import Prompt, Scores, Trace

__all__ = ["NotFinite", "Scored", "measure"]

SHARE = 0.09
"""Of the reference phase that the arms may take; with what is under way when it is used up,
and the repeats, the whole stays under 0.15."""

LONG = 24
"""Steps an answer, on the average, above which the share falls, with the root of the length: a
step of a longer answer is as good a sample, and costs the arms less than it cost to decode."""

_STEPS = 8, 64
"""Steps of an answer that are scored, but for the first one, which is scored whole: as many as
an answer has on the average, within these. More answers tell more than more of one."""

_JITTER_SHARE = 0.15  # of models with experts, where shapes differ: not on the CPU build
_REPEAT_SHARE = 0.01
_REPEAT_STEPS = 6
_LONGEST = 2048  # tokens in one call: longer ones would need more memory than decoding did
_ROWS = 2
_FIRST = 3  # prompts that are scored whatever it takes: of fewer no spread can be told
_PROBED = 1  # prompts that changes are planted for: each costs three scorings more
_CAST_ROWS, _PROBE_ROWS = 2, 1  # what these add for each prompt, about
_PLANTED = {True: (0.0005, 0.005), False: (0.02, 0.2)}
"""Relative changes of the attention scale that are planted, in all layers and in one, where
that is computed in float32 and where it is not: well above the noise, and small enough that
twice the change makes twice the error."""


class NotFinite(Exception):  # noqa: N818 - it is no error of the caller's
    """Logits that were finite are not where they are computed again.

    Attributes:
        prompt_id: Where.
    """

    def __init__(self, prompt_id: str) -> None:
        super().__init__(prompt_id)
        self.prompt_id = prompt_id


@dataclass(frozen=True, slots=True)
class Scored:
    """What was decoded, and how long that took.

    Attributes:
        pairs: Prompts with the reference's answers and their scores.
        seconds: Wall time of the whole reference phase.
    """

    pairs: tuple[tuple[Prompt, Trace], ...]
    seconds: float

    @property
    def mean_steps(self) -> float:
        """Steps of an answer, on the average."""
        return sum(len(trace.tokens) for _, trace in self.pairs) / max(1, len(self.pairs))


def measure(  # noqa: PLR0913 - keyword-only but for what is measured
    model: Any,
    scored: Scored,
    again: Callable[[Prompt, int], Trace],
    *,
    dtype: str,
    exact: bool,
    cast: bool = False,
    routed: bool = False,
) -> Noise:
    """Score some of the answers again, within a share of the time that decoding them took.

    Args:
        model: The loaded model, as mlx-lm calls it: ids ``[rows, tokens]`` and a KV cache to
            logits ``[rows, tokens, vocabulary]``; None decodes beginnings again and no more.
        scored: The reference's answers; each needs its `Scores`.
        again: Decodes a prompt again, up to so many tokens.
        dtype: Of the raw logits.
        exact: See `Noise.exact`.
        cast: In the end cast the model to float32, in place: there is room, and nothing else
            is wanted of it.
        routed: The model has experts, and so steps that the least rounding moves far.

    Returns:
        At least three prompts in every arm, where so many fit; prompts are taken in one
        order, spread over the lengths, so that more time only adds to them.

    Raises:
        NotFinite: Scored again, logits are not finite.
    """
    repeated, repeats = _repeat(scored, again)
    steps = sum(len(trace.tokens) for _, trace in scored.pairs)
    noise = Noise(dtype=dtype, exact=exact, repeated=repeated, repeats=repeats, steps=steps)
    if model is None:
        return noise
    fewest = min(_FIRST, len(scored.pairs))
    rows = sum(rows for _, _, rows in _ways()) + (_CAST_ROWS if cast else _PROBE_ROWS)
    budget = Budget(_share(scored) * scored.seconds, rows=rows, fewest=fewest)
    arms: list[Arm] = []
    chosen: list[tuple[Prompt, Trace]] = []
    cut: set[str] = set()
    for prompt, whole in _spread(scored.pairs):
        trace = _begun(whole, scored) if chosen else whole
        tokens = len(prompt.tokens) + len(trace.tokens)
        if not budget.allows(tokens):
            continue
        for name, chunks, count in _ways():
            with budget.timing(tokens * count):
                found = _score(model, prompt, trace, chunks=chunks, rows=count)
                arms.append(_arm(name, prompt, found, _Base.of(trace.scores)))
        budget.spend(tokens)
        chosen.append((prompt, trace))
        cut |= {prompt.id} if trace.tokens != whole.tokens else set()
    if cast:
        _cast(model)
        for prompt, trace in chosen:
            arms.append(_in_float32(prompt, trace, _score(model, prompt, trace)))
    unrest: list[tuple[str, tuple[float, ...]]] = []
    if routed and exact and any(any(arm.errors) for arm in arms):
        seconds = _JITTER_SHARE * scored.seconds
        unrest = [*_unrest(model, _spread(scored.pairs), time.perf_counter() + seconds)]
    probes = [
        probe
        for prompt, trace in chosen[-_PROBED:]
        for probe in _probe(model, prompt, trace, clean=cast or exact)
    ]
    _require_finite(arms, probes, unrest)
    kept = tuple(replace(arm, whole=arm.prompt_id not in cut) for arm in arms)
    return replace(noise, arms=kept, probes=tuple(probes), unrest=tuple(unrest))


def _require_finite(
    arms: Sequence[Arm],
    probes: Sequence[Probe],
    unrest: Sequence[tuple[str, tuple[float, ...]]],
) -> None:
    measured = [(each.prompt_id, each.errors) for each in arms]
    measured += [(each.prompt_id, each.errors) for each in probes]
    for prompt_id, numbers in (*measured, *unrest):
        if not all(map(math.isfinite, numbers)):
            raise NotFinite(prompt_id)


def _share(scored: Scored) -> float:
    """Return the share of the reference phase that the arms may take."""
    return SHARE * math.sqrt(min(1.0, LONG / max(1.0, scored.mean_steps)))


def _begun(trace: Trace, scored: Scored) -> Trace:
    """Return the beginning of an answer, of as many steps as are scored."""
    fewest, most = _STEPS
    steps = max(fewest, min(most, round(scored.mean_steps)))
    return replace(trace, tokens=trace.tokens[:steps], scores=trace.scores[:steps])


def _ways() -> Iterator[tuple[str, int, int]]:
    yield "one shot", 1, 1
    yield "2 chunks", 2, 1
    yield "3 chunks", 3, 1
    yield f"{_ROWS} equal rows", 1, _ROWS


def _spread(pairs: Sequence[tuple[Prompt, Trace]]) -> list[tuple[Prompt, Trace]]:
    """Order prompts: the shortest, then so that any more hold shorter and longer ones."""
    fit = [pair for pair in pairs if len(pair[0].tokens) + len(pair[1].tokens) <= _LONGEST]
    fit.sort(key=lambda pair: (len(pair[0].tokens) + len(pair[1].tokens), pair[0].id))
    places = range(len(fit))
    out = [*places[:_FIRST]]
    step = len(fit)
    while len(out) < len(fit):
        step = max(1, step // 2)
        out += [place for place in places[::step] if place not in out]
    return [fit[place] for place in out]


def _repeat(scored: Scored, again: Callable[[Prompt, int], Trace]) -> tuple[int, bool]:
    """Decode a few beginnings a second time; the scores have to be the same bit for bit."""
    end = time.perf_counter() + _REPEAT_SHARE * scored.seconds
    steps, same = 0, True
    # Where all are too long to be scored, the shortest: it takes no more than decoding did.
    shortest = sorted(scored.pairs, key=lambda pair: len(pair[0].tokens))[:1]
    for prompt, trace in _spread(scored.pairs) or shortest:
        if steps and time.perf_counter() > end:
            break
        other = again(prompt, min(_REPEAT_STEPS, len(trace.tokens)))
        count = len(other.tokens)
        same &= other.tokens == trace.tokens[:count] and other.scores == trace.scores[:count]
        steps += count
    return steps, same


def _score(model: Any, prompt: Prompt, trace: Trace, *, chunks: int = 1, rows: int = 1) -> Any:
    """Return the raw logits of an answer's steps, ``[steps, vocabulary]``, of the last row."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    tokens = mx.array(prompt.tokens + trace.tokens[:-1])
    length = tokens.shape[0]
    ids = mx.broadcast_to(tokens, (rows, length))
    cache = make_prompt_cache(model)
    size = -(-length // chunks)
    first = len(prompt.tokens) - 1
    parts = []
    for start in range(0, length, size):
        logits = model(ids[:, start : start + size], cache=cache)
        if start + size > first:
            parts.append(logits[-1, max(0, first - start) :])
        else:
            mx.eval([layer.state for layer in cache])
    return mx.concatenate(parts).astype(mx.float32)


def _unrest(
    model: Any, pairs: Sequence[tuple[Prompt, Trace]], end: float
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Score answers with jittered norms, until time is up; tell each step's largest span.

    Against the model that is not jittered, in the same shape: of the noise nothing is left.
    """
    for prompt, trace in pairs:
        if time.perf_counter() > end:
            return
        base = _Base.here(model, prompt, trace)
        spans: list[tuple[float, ...]] = []
        for seed in range(jitter.TIMES):
            with jitter.jittered(model, seed):
                spans.append(_numbers(base, _score(model, prompt, trace))["spans"])
        yield prompt.id, tuple(map(max, zip(*spans, strict=True)))


def _cast(model: Any) -> None:
    """Cast weights that are not quantised, norms and scales to float32, one after the other.

    In one stroke the old and the new ones would be held at once.
    """
    import mlx.core as mx

    for _, module in model.named_modules():
        module.apply(
            lambda x: x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x,
            filter_fn=lambda _module, _key, value: isinstance(value, mx.array),
        )
        mx.eval(module.parameters())


@dataclass(frozen=True, slots=True)
class _Base:
    """What scores are held against: ids ``[steps, k]`` and their log-probabilities."""

    ids: Any
    logprobs: Any

    @classmethod
    def of(cls, scores: Sequence[Scores]) -> _Base:
        import mlx.core as mx

        ids = mx.array([each.ids for each in scores])
        return cls(ids, mx.array([each.logprobs for each in scores]))

    @classmethod
    def here(cls, model: Any, prompt: Prompt, trace: Trace) -> _Base:
        """Return what the model as it now is says of the same tokens, in one shot."""
        base = cls.of(trace.scores)
        return cls(base.ids, base.read(_score(model, prompt, trace)))

    def read(self, logits: Any) -> Any:
        """Return the log-probabilities of these ids in raw float32 logits."""
        import mlx.core as mx

        found = mx.take_along_axis(logits, self.ids, axis=-1)
        return found - mx.logsumexp(logits, axis=-1, keepdims=True)


def _arm(name: str, prompt: Prompt, logits: Any, base: _Base, scale: float = 1.0) -> Arm:
    import mlx.core as mx

    best: Any = mx.argmax(logits, axis=-1).tolist()
    wanted: Any = base.ids[:, 0].tolist()
    flips = tuple(n for n, token in enumerate(best) if token != wanted[n])
    return Arm(arm=name, prompt_id=prompt.id, flips=flips, **_numbers(base, logits, scale))


def _in_float32(prompt: Prompt, trace: Trace, logits: Any) -> Arm:
    """Return the arm of the same answer in float32.

    This is how far the reference itself is from what it computes. Another engine of the same
    dtype is as far in another direction: the two differ by the root of 2 times as much.
    """
    return _arm(IN_FLOAT32, prompt, logits, _Base.of(trace.scores), scale=math.sqrt(2))


def _numbers(base: _Base, logits: Any, scale: float = 1.0) -> dict[str, Any]:
    """Do what `noise.difference` does, for all steps at once on the device.

    Returns:
        Every number of an `Arm` by its name.
    """
    import mlx.core as mx

    offs = (base.read(logits) - base.logprobs) * scale
    # A masked token is at minus infinity on both sides, and that from itself is no number.
    offs = mx.where(mx.isfinite(base.logprobs), offs, 0.0)
    centred = offs - offs.mean(axis=-1, keepdims=True)
    turned = mx.abs(offs - offs[:, :1])
    ours = mx.exp(base.logprobs)
    columns = {
        "errors": mx.sqrt((centred * centred).mean(axis=-1)),
        "divergences": (ours * (mx.expm1(mx.minimum(offs, 50)) - offs)).sum(axis=-1),
        "swings": turned[:, :RIVALS].max(axis=-1),
        "spans": mx.maximum(turned.max(axis=-1), mx.abs(offs[:, 0])),
    }
    mx.eval(*columns.values())
    lists: dict[str, Any] = {name: column.tolist() for name, column in columns.items()}
    return {name: tuple(values) for name, values in lists.items()}


def _probe(model: Any, prompt: Prompt, trace: Trace, *, clean: bool) -> Iterator[Probe]:
    """Plant changes of the attention scale, where the model has one that can be found.

    What each does is told against the model without it in the same shape: of the noise only
    what the change itself rolls anew is left, and in float32 (*clean*) as good as nothing.
    """
    attention = _attention(model)
    if not attention:
        return
    middle = len(attention) // 2
    base = _Base.here(model, prompt, trace)
    everywhere, once = _PLANTED[clean]
    planted = (
        ("of the attention scale in all layers", everywhere, attention),
        (f"of it in one layer (of index {middle})", once, attention[middle : middle + 1]),
    )
    for what, change, modules in planted:
        kept = [module.scale for module in modules]
        try:
            for module, scale in zip(modules, kept, strict=True):
                module.scale = scale * (1 + change)
            found = _numbers(base, _score(model, prompt, trace))
        finally:
            for module, scale in zip(modules, kept, strict=True):
                module.scale = scale
        yield Probe(
            what=what,
            change=change,
            prompt_id=prompt.id,
            errors=found["errors"],
            spans=found["spans"],
            clean=clean,
        )


def _attention(model: Any) -> list[Any]:
    """Return the modules that multiply queries with keys by a scale of their own, in order."""
    found = [
        (tuple(int(part) for part in name.split(".") if part.isdigit()), module)
        for name, module in model.named_modules()
        if "att" in name.rpartition(".")[2]
        and isinstance(getattr(module, "scale", None), float)
    ]
    return [module for _, module in sorted(found, key=operator.itemgetter(0))]
