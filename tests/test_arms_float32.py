"""The arm in float32 of a model that is cast in place, and what is planted in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mlxcheck import arms, checkpoint
from mlxcheck.noise import IN_FLOAT32, Noise, difference
from mlxcheck.records import Prompt, Scores, Trace
from mlxcheck.reference import Reference, read_tokenizer, score_at, stop_set
from tests.support.scored import ARMS, swing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.noise import Difference

EIGHT = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-8bit"
LENGTHS = (3, 40, 9, 17)
STEPS = 8

Pair = tuple[Prompt, Trace]


def _load() -> Reference:
    seen = checkpoint.inspect(EIGHT)
    stop = stop_set(read_tokenizer(seen))
    return Reference(replace(seen, model=replace(seen.model, stop_ids=stop)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """A reference that was measured and cast.

    Attributes:
        pairs: What it had said in bfloat16.
        noise: What was measured.
        model: What is left of it.
        before: Its parameters as they were, by name.
    """

    pairs: tuple[Pair, ...]
    noise: Noise
    model: Any
    before: dict[str, mx.array]


@pytest.fixture(scope="module")
def cast() -> Cast:
    """Four prompts of several lengths, in all ways and in float32."""
    loaded = _load()
    prompts = [
        Prompt(id=f"p{size}", tokens=tuple(20 + (7 * n) % 200 for n in range(size)))
        for size in LENGTHS
    ]
    pairs = tuple((prompt, loaded.decode(prompt, max_tokens=STEPS)) for prompt in prompts)
    before = dict(tree_flatten(loaded._model.parameters()))
    found = loaded.noise(pairs, seconds=1e9, exact=False, cast=True)
    return Cast(pairs=pairs, noise=found, model=loaded._model, before=before)


@pytest.fixture(scope="module")
def full(cast: Cast) -> Any:
    """The same checkpoint, loaded anew and cast by mlx's own function."""
    model = _load()._model
    model.set_dtype(mx.float32)
    assert model is not cast.model
    return model


def _logits(model: Any, pair: Pair) -> mx.array:
    """Return a row a step, from all tokens at once."""
    prompt, trace = pair
    ids = mx.array([[*prompt.tokens, *trace.tokens[:-1]]])
    found: mx.array = model(ids, cache=make_prompt_cache(model))[0, len(prompt.tokens) - 1 :]
    return found


def _read(model: Any, pair: Pair) -> tuple[Scores, ...]:
    """Return what a model says of the tokens that the reference's scores hold."""
    logits = _logits(model, pair)
    return score_at([row[None] for row in logits], [each.ids for each in pair[1].scores])


def _differences(ours: Sequence[Scores], theirs: Sequence[Scores]) -> list[Difference]:
    return list(map(difference, ours, theirs))


# --- The cast --------------------------------------------------------------------------------


def test_the_model_computes_in_float32_afterwards(cast: Cast) -> None:
    """Every number that is not quantised is what it was, in float32; the others stay."""
    after = dict(tree_flatten(cast.model.parameters()))
    kinds = {name: value.dtype for name, value in cast.before.items()}

    assert set(kinds.values()) == {mx.uint32, mx.bfloat16}
    assert after.keys() == kinds.keys()
    for name, value in after.items():
        quantised = kinds[name] == mx.uint32
        assert value.dtype == (mx.uint32 if quantised else mx.float32), name
        assert mx.array_equal(value, cast.before[name].astype(value.dtype)).item(), name
    assert _logits(cast.model, cast.pairs[0]).dtype == mx.float32
    assert cast.noise.dtype == "bfloat16"  # that of what was measured


def test_weights_are_cast_one_module_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is made before the next is begun: in one stroke all would be there twice."""
    applied, evaluated = [0], list[int]()
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    model.set_dtype(mx.bfloat16)
    apply, evaluate = nn.Module.apply, mx.eval

    def watched(self: nn.Module, *args: Any, **options: Any) -> Any:
        applied[0] += 1
        return apply(self, *args, **options)

    def made(*what: Any) -> None:
        evaluated.append(applied[0])
        evaluate(*what)

    monkeypatch.setattr(nn.Module, "apply", watched)
    monkeypatch.setattr(mx, "eval", made)
    arms._cast(model)

    assert applied[0] >= 4
    assert evaluated == list(range(1, applied[0] + 1))
    kinds = {value.dtype for _, value in tree_flatten(model.parameters())}
    assert kinds == {mx.float32}


def test_a_model_that_is_not_cast_stays_in_its_own_dtype() -> None:
    """Unless it is said that there is room, there is no such arm."""
    loaded = _load()
    prompt = Prompt(id="p3", tokens=(20, 27, 34))
    pair = prompt, loaded.decode(prompt, max_tokens=2)

    found = loaded.noise([pair], seconds=1e9, exact=False)

    assert [each.arm for each in found.arms] == list(ARMS)
    assert _logits(loaded._model, pair).dtype == mx.bfloat16
    assert loaded.noise([pair], seconds=1.0, exact=False, cast=True, arms=False).arms == ()
    assert _logits(loaded._model, pair).dtype == mx.bfloat16


# --- The arm ---------------------------------------------------------------------------------


def test_every_prompt_that_was_scored_has_the_arm(cast: Cast) -> None:
    """After all others, in the same order."""
    names = [(each.arm, each.prompt_id) for each in cast.noise.arms]
    order = ["p3", "p9", "p17", "p40"]

    assert IN_FLOAT32 == "in float32"
    assert names == [
        *((way, prompt) for prompt in order for way in ARMS),
        *((IN_FLOAT32, prompt) for prompt in order),
    ]
    assert {each.arm for each in cast.noise.telling} >= {IN_FLOAT32}


def test_its_numbers_are_those_of_two_engines(cast: Cast, full: Any) -> None:
    """Differences to float32 times the root of 2; divergences are computed of these."""
    for pair in cast.pairs:
        prompt, trace = pair
        (found,) = [
            each
            for each in cast.noise.arms
            if each.arm == IN_FLOAT32 and each.prompt_id == prompt.id
        ]
        theirs = _read(full, pair)
        plain = _differences(trace.scores, theirs)
        swings = map(swing, trace.scores, theirs)
        scaled = _differences(trace.scores, [*_scaled(trace.scores, theirs)])
        root = math.sqrt(2)
        assert min(off.error for off in plain) > 1e-3
        assert found.errors == pytest.approx([root * off.error for off in plain], abs=1e-5)
        assert found.spans == pytest.approx([root * off.span for off in plain], abs=1e-5)
        assert found.swings == pytest.approx([root * each for each in swings], abs=1e-5)
        wanted = [off.divergence for off in scaled]
        assert found.divergences == pytest.approx(wanted, rel=1e-3, abs=1e-7)
        best = [int(token) for token in mx.argmax(_logits(full, pair), axis=-1)]
        assert list(found.flips) == [n for n, t in enumerate(trace.tokens) if t != best[n]]


def _scaled(ours: Sequence[Scores], theirs: Sequence[Scores]) -> Iterator[Scores]:
    """Move what another says away from the reference by the root of 2."""
    for a, b in zip(ours, theirs, strict=True):
        there = dict(zip(b.ids, b.logprobs, strict=True))
        moved = tuple(
            old + math.sqrt(2) * (there[token] - old)
            for token, old in zip(a.ids, a.logprobs, strict=True)
        )
        yield replace(a, logprobs=moved)


# --- Probes ----------------------------------------------------------------------------------


def test_in_float32_a_probe_is_the_changes_doing_alone(cast: Cast, full: Any) -> None:
    """Small changes, held against the cast model: the rounding of 16 bits is not in it."""
    _held_against(cast.noise, cast.pairs, full, {"all": 0.0005, "one": 0.005}, clean=True)

    arm = {each.prompt_id: each for each in cast.noise.arms if each.arm == IN_FLOAT32}
    for probe in cast.noise.probes:
        assert max(probe.errors) < min(arm[probe.prompt_id].errors)


def test_in_sixteen_bits_a_probe_is_held_against_the_same_shape() -> None:
    """Larger changes, against the model without them, whatever it said when it decoded."""
    loaded = _load()
    prompt = Prompt(id="p40", tokens=tuple(20 + (7 * n) % 200 for n in range(40)))
    trace = loaded.decode(prompt, max_tokens=STEPS)
    moved = [
        replace(each, logprobs=tuple(p - 0.5 * (n % 2) for n, p in enumerate(each.logprobs)))
        for each in trace.scores
    ]
    pair = prompt, replace(trace, scores=tuple(moved))  # as if decoding had been far off

    found = loaded.noise([pair], seconds=1e9, exact=False)

    assert min(min(each.errors) for each in found.arms) > 0.2
    _held_against(found, [pair], loaded._model, {"all": 0.02, "one": 0.2}, clean=False)


def _held_against(
    found: Noise, pairs: Sequence[Pair], model: Any, changes: dict[str, float], *, clean: bool
) -> None:
    """Plant the same changes by hand."""
    layers = [layer.self_attn for layer in model.layers]
    by_id = {prompt.id: (prompt, trace) for prompt, trace in pairs}
    assert len(found.probes) == 2 * min(1, len(pairs))
    for place, probe in enumerate(found.probes):
        pair = by_id[probe.prompt_id]
        size = changes["one" if place % 2 else "all"]
        assert (probe.change, probe.clean) == (size, clean)
        plain = _read(model, pair)
        kept = [layer.scale for layer in layers]
        for layer in layers[len(layers) // 2 :][:1] if place % 2 else layers:
            layer.scale *= 1 + size
        changed = _read(model, pair)
        for layer, scale in zip(layers, kept, strict=True):
            layer.scale = scale
        ours = [
            replace(b, ids=a.ids, logprobs=tuple(map(_at(b), a.ids)))
            for a, b in zip(pair[1].scores, plain, strict=True)
        ]
        offs = _differences(ours, changed)
        assert max(off.error for off in offs) > 1e-5
        assert probe.errors == pytest.approx([off.error for off in offs], rel=0.02, abs=3e-6)
        assert probe.spans == pytest.approx([off.span for off in offs], rel=0.02, abs=1e-5)


def _at(scores: Scores) -> Any:
    return dict(zip(scores.ids, scores.logprobs, strict=True)).__getitem__
