"""The noise of a loaded reference: what is scored again, how, and within what time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlxcheck import arms, checkpoint
from mlxcheck.arms import Scored, measure
from mlxcheck.noise import Noise, difference
from mlxcheck.records import Prompt, Trace
from mlxcheck.reference import Reference, read_tokenizer, score_at, stop_set
from tests.support.scored import ARMS, again_from, swing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
LENGTHS = (3, 40, 9, 17, 1)
STEPS = 7

Pairs = tuple[tuple[Prompt, Trace], ...]


@pytest.fixture(scope="module")
def loaded() -> Reference:
    """The mixture of experts, in float32."""
    seen = checkpoint.inspect(MODELS / "qwen3_moe-float32")
    stop = stop_set(read_tokenizer(seen))
    return Reference(replace(seen, model=replace(seen.model, stop_ids=stop)))


@pytest.fixture(scope="module")
def pairs(loaded: Reference) -> Pairs:
    """Five prompts of several lengths, a single token among them, and their answers."""
    prompts = [
        Prompt(id=f"p{size}", tokens=tuple(20 + (7 * n) % 200 for n in range(size)))
        for size in LENGTHS
    ]
    return tuple((prompt, loaded.decode(prompt, max_tokens=STEPS)) for prompt in prompts)


@pytest.fixture
def scales(loaded: Reference) -> Iterator[list[Any]]:
    """The modules whose scale is changed; whatever a test does to it is undone."""
    modules = arms._attention(loaded._model)
    kept = [module.scale for module in modules]
    yield modules
    for module, scale in zip(modules, kept, strict=True):
        module.scale = scale


def _noise(loaded: Reference, pairs: Pairs, seconds: float = 1e9) -> Noise:
    return loaded.noise(pairs, seconds=seconds, exact=True)


# --- What is measured ------------------------------------------------------------------------


def test_every_prompt_is_scored_in_every_way(loaded: Reference, pairs: Pairs) -> None:
    """Four arms a prompt, one entry a step, and not a bit of noise on the CPU build."""
    found = _noise(loaded, pairs)

    assert (found.dtype, found.exact) == ("float32", True)
    assert {(each.arm, each.prompt_id) for each in found.arms} == set(
        itertools.product(ARMS, (prompt.id for prompt, _ in pairs))
    )
    assert len(found.arms) == len(ARMS) * len(pairs)
    steps = {prompt.id: len(trace.tokens) for prompt, trace in pairs}
    for each in found.arms:
        size = steps[each.prompt_id]
        columns = (each.errors, each.divergences, each.swings, each.spans)
        assert [len(column) for column in columns] == [size] * 4
        assert each.flips == ()
        assert max(each.errors + each.spans) < 1e-4
    assert found.largest < 1e-4


def test_steps_are_scored_in_their_own_context(loaded: Reference, pairs: Pairs) -> None:
    """An answer that is off by one step would differ by far more than rounding."""
    prompt, trace = pairs[1]
    later = replace(trace, scores=(*trace.scores[1:], trace.scores[0]))

    found = _noise(loaded, ((prompt, later),))

    for each in found.arms:
        assert min(each.errors) > 0.01
        assert len(each.flips) >= 1
        expected = [n for n, s in enumerate(trace.scores) if s.ids[0] != later.scores[n].ids[0]]
        assert list(each.flips) == expected


def test_beginnings_are_decoded_again(loaded: Reference, pairs: Pairs) -> None:
    """The reference agrees with itself, over at most six steps a prompt."""
    asked: list[tuple[str, int]] = []

    def again(prompt: Prompt, steps: int) -> Trace:
        asked.append((prompt.id, steps))
        return loaded.decode(prompt, max_tokens=steps)

    found = measure(None, Scored(pairs, 1e9), again, dtype="float32", exact=True)

    assert found.repeats
    assert sorted(asked) == sorted((p.id, min(6, len(t.tokens))) for p, t in pairs)
    assert found.repeated == sum(steps for _, steps in asked)
    assert (found.arms, found.probes) == ((), ())


def _token(trace: Trace) -> Trace:
    return replace(trace, tokens=(*trace.tokens[:-1], trace.tokens[-1] ^ 1))


def _number(trace: Trace) -> Trace:
    last = trace.scores[-1]
    moved = replace(last, logprobs=(*last.logprobs[:-1], last.logprobs[-1] + 1e-7))
    return replace(trace, scores=(*trace.scores[:-1], moved))


@pytest.mark.parametrize("change", [_token, _number])
@pytest.mark.parametrize("which", ["p1", "p40"])
def test_one_number_that_comes_out_otherwise_is_told(
    loaded: Reference, pairs: Pairs, change: Callable[[Trace], Trace], which: str
) -> None:
    """One last bit in one prompt, the first or the last that is asked, is no repetition."""

    def again(prompt: Prompt, steps: int) -> Trace:
        trace = loaded.decode(prompt, max_tokens=steps)
        return change(trace) if prompt.id == which else trace

    assert not measure(None, Scored(pairs, 1e9), again, dtype="float32", exact=True).repeats


def test_no_prompt_is_no_noise(loaded: Reference) -> None:
    """Nothing was decoded, and nothing is measured."""
    found = _noise(loaded, ())

    assert (found.arms, found.probes, found.repeated) == ((), (), 0)


def test_one_prompt_is_measured(loaded: Reference, pairs: Pairs) -> None:
    """A run of one prompt has its arms and both its probes."""
    found = _noise(loaded, pairs[:1], seconds=0.0)

    assert [each.arm for each in found.arms] == list(ARMS)
    assert len(found.probes) == 2
    assert found.repeated == min(6, len(pairs[0][1].tokens))


# --- The arms' own arithmetic ----------------------------------------------------------------


def test_arms_do_what_the_pure_difference_does(
    loaded: Reference, pairs: Pairs, scales: list[Any]
) -> None:
    """A model with another scale: every number is that of `noise.difference`."""
    for module in scales:
        module.scale *= 1.3
    (prompt, trace), *_ = pairs[1:]
    logits = _logits(loaded, prompt, trace)
    theirs = score_at(logits, [scores.ids for scores in trace.scores])
    pure = [difference(*both) for both in zip(trace.scores, theirs, strict=True)]

    found = _noise(loaded, ((prompt, trace),))

    swings = list(map(swing, trace.scores, theirs))
    assert max(off.error for off in pure) > 0.01
    assert not found.repeats
    for each in found.arms:
        assert each.errors == pytest.approx([off.error for off in pure], abs=1e-6)
        assert each.divergences == pytest.approx([off.divergence for off in pure], abs=1e-6)
        assert each.spans == pytest.approx([off.span for off in pure], abs=1e-6)
        assert each.swings == pytest.approx(swings, abs=1e-6)
        best = [int(mx.argmax(row)) for row in logits]
        expected = [n for n, s in enumerate(trace.scores) if s.ids[0] != best[n]]
        assert list(each.flips) == expected


def test_what_moves_all_alike_shows_in_the_span_alone() -> None:
    """The best token is less likely for a token that was not kept: no rival gained on it."""
    logits = mx.array([[3.0, 2.0, 1.0, 0.0]])
    base = arms._Base(mx.array([[0, 1, 2]]), logits[:, :3] - mx.logsumexp(logits) + 0.5)

    found = arms._numbers(base, logits)

    assert found["spans"] == pytest.approx([0.5])
    assert found["errors"] + found["swings"] == pytest.approx([0.0, 0.0], abs=1e-6)


def _logits(loaded: Reference, prompt: Prompt, trace: Trace) -> list[mx.array]:
    """Return a row a step, from the whole context each, without any cache."""
    return [
        loaded._model(mx.array([[*prompt.tokens, *trace.tokens[:step]]]))[0, -1:]
        for step in range(len(trace.tokens))
    ]


@pytest.mark.parametrize(("chunks", "rows"), [(1, 1), (2, 1), (3, 1), (1, 2), (5, 1)])
@pytest.mark.parametrize("place", range(len(LENGTHS)))
def test_chunks_and_rows_are_the_same_mathematics(
    loaded: Reference, pairs: Pairs, place: int, chunks: int, rows: int
) -> None:
    """Wherever the answer begins within a chunk, its steps are all there, in order."""
    prompt, trace = pairs[place]
    calls: list[tuple[int, ...]] = []

    found = arms._score(_Counted(loaded._model, calls), prompt, trace, chunks=chunks, rows=rows)

    length = len(prompt.tokens) + len(trace.tokens) - 1
    size = -(-length // chunks)
    assert [shape[0] for shape in calls] == [rows] * -(-length // size)
    assert sum(shape[1] for shape in calls) == length
    assert max(shape[1] for shape in calls) == size
    wanted = mx.concatenate(_logits(loaded, prompt, trace))
    assert found.shape == wanted.shape
    assert mx.allclose(found, wanted, atol=1e-3).item()


class _Counted:
    """A model that writes down the shapes that it is called with."""

    def __init__(self, model: Any, calls: list[tuple[int, ...]]) -> None:
        self._model = model
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, ids: Any, **options: Any) -> Any:
        self._calls.append(tuple(ids.shape))
        return self._model(ids, **options)


# --- Planted changes -------------------------------------------------------------------------


def test_changes_are_planted_and_taken_back(
    loaded: Reference, pairs: Pairs, scales: list[Any]
) -> None:
    """Two kinds in one prompt, with errors well above the noise; the model is as it was."""
    before = [module.scale for module in scales]

    found = _noise(loaded, pairs)

    assert [module.scale for module in scales] == before
    middle = len(before) // 2
    kinds = [
        ("of the attention scale in all layers", 0.0005),
        (f"of it in one layer (of index {middle})", 0.005),
    ]
    assert [(probe.what, probe.change) for probe in found.probes] == kinds
    chosen = list(dict.fromkeys(probe.prompt_id for probe in found.probes))
    assert chosen == ["p17"]  # the last that was scored
    for probe in found.probes:
        assert probe.clean
        assert max(probe.errors) > 10 * found.largest
        assert len(probe.errors) == len(probe.spans)


def test_changes_are_larger_where_the_noise_is(loaded: Reference, pairs: Pairs) -> None:
    """In a native dtype a change that float32 would show is lost in rounding."""
    found = loaded.noise(pairs[:1], seconds=1.0, exact=False)

    assert [(probe.change, probe.clean) for probe in found.probes] == [
        (0.02, False),
        (0.2, False),
    ]


def test_one_layer_is_one_layer(loaded: Reference, pairs: Pairs, scales: list[Any]) -> None:
    """A change in all layers changes each by as much, one in one layer that alone."""
    kept = [module.scale for module in scales]
    seen: list[list[float]] = []

    class Watching(_Counted):
        def __call__(self, ids: Any, **options: Any) -> Any:
            seen.append([m.scale / old for m, old in zip(scales, kept, strict=True)])
            return super().__call__(ids, **options)

    model = Watching(loaded._model, [])
    planted = list(arms._probe(model, *pairs[0], clean=False))

    middle = len(kept) // 2
    assert len(planted) == 2
    assert seen[0] == [1.0] * len(kept)
    assert seen[1] == pytest.approx([1.02] * len(kept))
    assert seen[2] == pytest.approx([1.2 if n == middle else 1.0 for n in range(len(kept))])


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_the_scale_is_restored_also_where_scoring_raises(
    loaded: Reference, pairs: Pairs, scales: list[Any], calls: int
) -> None:
    """Whichever call of the model fails, its scales are what they were."""
    before = [module.scale for module in scales]
    changed: list[bool] = []

    class Fails(_Counted):
        def __call__(self, ids: Any, **options: Any) -> Any:
            if len(self._calls) == calls + 7:  # the arms: 1 + 2 + 3 + 1 calls
                changed.append([module.scale for module in scales] != before)
                message = "out of memory"
                raise RuntimeError(message)
            return super().__call__(ids, **options)

    model = Fails(loaded._model, [])
    with pytest.raises(RuntimeError, match="out of memory"):
        measure(model, Scored(pairs[:1], 1), again_from(pairs), dtype="float32", exact=True)

    assert changed == [calls > 0]
    assert [module.scale for module in scales] == before


def test_a_model_without_a_scale_has_no_probes(pairs: Pairs) -> None:
    """Nothing can be planted in a model that keeps its scale elsewhere: nothing is said."""
    model = SimpleNamespace(named_modules=lambda: [("layers.0.self_attn", SimpleNamespace())])

    assert list(arms._probe(model, *pairs[0], clean=True)) == []


def test_attention_is_found_in_the_order_of_layers() -> None:
    """Layer 10 comes after layer 9, and a scale that is no float is none of ours."""
    named = [(f"layers.{n}.self_attn", SimpleNamespace(scale=float(n))) for n in (10, 9, 0, 2)]
    named += [("layers.1.attention", SimpleNamespace(scale=mx.array(1.0)))]
    named += [("layers.1.mlp", SimpleNamespace(scale=7.0))]
    model = SimpleNamespace(named_modules=lambda: named)

    assert [module.scale for module in arms._attention(model)] == [0.0, 2.0, 9.0, 10.0]
