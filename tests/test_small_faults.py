"""Small faults are small, and there: measured on raw logits at matched contexts.

The error of a position is the root mean square, over the reference's top 64, of the centred
difference of float32 log-probabilities.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, generate_step

from fixtures.faults.small import (
    SMALL,
    PaddedVocabulary,
    RowIsNaN,
    Trial,
    WindowOneTooLong,
    scaled_attention,
)
from fixtures.random_models import RandomModel, build
from mlxcheck.backends.base import ModelRef, Request
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.reference import load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mlxcheck.records import Prompt

STEPS = 12
TOP = 64
PROMPTS = 10
"""As many as the longest list of one fault but the padded vocabulary's, whose tokens count."""

SEEN = 1e-4
ROUNDING = 1e-5

# These two have tests of their own: their logits are right but for one row, or a few columns.
UNLIKE = (PaddedVocabulary, RowIsNaN)


def _name(trial: Trial) -> str:
    return f"{trial.fault.name}-{trial.model.family}"


class Bench:
    """Models on disk, and what the unpatched mlx-lm says of them, each made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = functools.cache(self._folder)
        self.reference = functools.cache(self._reference)
        self.honest = functools.cache(self._honest)

    def _folder(self, spec: RandomModel) -> Path:
        return build(spec, self.root / f"{spec.name}-{spec.kv_heads}")

    def _reference(
        self, spec: RandomModel, prompts: tuple[Prompt, ...]
    ) -> tuple[list[list[int]], list[mx.array]]:
        """Greedy tokens and raw logits ``[steps, vocabulary]`` of single requests."""
        model = load_model(str(self.folder(spec)))
        answers, logits = [], []
        for prompt in prompts:
            rows: list[mx.array] = []
            steps = generate_step(
                mx.array(prompt.tokens),
                model,
                max_tokens=STEPS,
                logits_processors=[_watch(rows)],
            )
            answers.append([int(token) for token, _ in steps])
            logits.append(mx.concatenate(rows[:STEPS]))
        return answers, logits

    def _honest(self, spec: RandomModel, prompts: tuple[Prompt, ...]) -> list[mx.array]:
        return self.forced(MlxLmBackend, spec, prompts)

    def forced(
        self,
        backend: Callable[[], MlxLmBackend],
        spec: RandomModel,
        prompts: tuple[Prompt, ...],
        *,
        together: bool = True,
    ) -> list[mx.array]:
        """Raw logits of *backend* by prompt, fed the reference's tokens."""
        answers, _ = self.reference(spec, prompts)
        with_answers = list(zip(prompts, answers, strict=True))
        engine = backend()
        engine.open(_ref(self.folder(spec)))
        try:
            if together:
                return _force(engine._model, with_answers)
            return [_force(engine._model, [one])[0] for one in with_answers]
        finally:
            engine.close()


def _ref(folder: Path) -> ModelRef:
    return ModelRef(source=str(folder), path=str(folder))


def _watch(rows: list[mx.array]) -> Callable[[Any, mx.array], mx.array]:
    def watch(_tokens: Any, logits: mx.array) -> mx.array:
        rows.append(logits)
        return logits

    return watch


def _say(answer: list[int]) -> Callable[[mx.array], mx.array]:
    # The generator looks a step ahead, past the end.
    tokens = itertools.chain(answer, itertools.repeat(0))
    return lambda _logprobs: mx.array([next(tokens)])


def _force(model: Any, asked: list[tuple[Prompt, list[int]]]) -> list[mx.array]:
    rows: list[list[mx.array]] = [[] for _ in asked]
    generator = BatchGenerator(model)
    generator.insert(
        [list(prompt.tokens) for prompt, _ in asked],
        max_tokens=[STEPS] * len(asked),
        samplers=[_say(answer) for _, answer in asked],
        logits_processors=[[_watch(row)] for row in rows],
    )
    left = len(asked)
    while left:
        left -= sum(bool(response.finish_reason) for response in generator.next()[1])
    generator.close()
    return [mx.concatenate(row[:STEPS]) for row in rows]


def _errors(reference: mx.array, candidate: mx.array) -> list[float]:
    """The error of each position."""
    best = mx.argsort(-reference, axis=-1)[:, :TOP]
    parts = []
    for logits in (reference, candidate):
        wide = logits.astype(mx.float32)
        logprobs = wide - mx.logsumexp(wide, axis=-1, keepdims=True)
        parts.append(mx.take_along_axis(logprobs, best, axis=-1))
    moved: Any = parts[1] - parts[0]
    moved = moved - moved.mean(axis=-1, keepdims=True)
    return _list(mx.sqrt((moved**2).mean(axis=-1)))


def _all_errors(reference: list[mx.array], candidate: list[mx.array]) -> list[float]:
    pairs = zip(reference, candidate, strict=True)
    return [error for one, two in pairs for error in _errors(one, two)]


def _same(one: list[mx.array], two: list[mx.array]) -> bool:
    return all(bool(mx.array_equal(a, b)) for a, b in zip(one, two, strict=True))


def _kept(reference: list[mx.array], candidate: list[mx.array]) -> float:
    same: list[bool] = []
    for one, two in zip(reference, candidate, strict=True):
        choices: Any = mx.argmax(one, axis=-1) == mx.argmax(two, axis=-1)
        same += choices.tolist()
    return sum(same) / len(same)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One for the module, on the processor: sizes are stated for it."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield Bench(tmp_path_factory.mktemp("small"))
    mx.set_default_device(before)


@pytest.mark.parametrize("trial", [t for t in SMALL if t.fault not in UNLIKE], ids=_name)
def test_effect_is_small_and_gone_after_close(trial: Trial, bench: Bench) -> None:
    """Guilty ones move the logits, honest ones round; afterwards mlx-lm is whole again."""
    fault, spec, prompts = trial.fault, trial.model, _prompts(trial)
    _, reference = bench.reference(spec, prompts)
    honest = bench.honest(spec, prompts)
    assert max(_all_errors(reference, honest)) < ROUNDING

    changed = bench.forced(fault, spec, prompts)
    errors = _all_errors(reference, changed)
    if fault.honest:
        assert 0 < max(errors) < ROUNDING
    else:
        assert sum(error > SEEN for error in errors) > len(errors) / 2
    assert _kept(reference, changed) >= trial.kept

    few = prompts[-2:]
    alone = bench.forced(fault, spec, few, together=False)
    assert _same(bench.reference(spec, few)[1], alone) != fault.alone
    assert _same(honest, bench.forced(MlxLmBackend, spec, prompts))


def _prompts(trial: Trial) -> tuple[Prompt, ...]:
    prompts: Any = trial.fault.prompts
    return tuple(prompts[:PROMPTS])


def test_window_fault_shows_beyond_the_window_only(bench: Bench) -> None:
    """Up to the window all keys are seen anyway, bit for bit; one key more shows at once."""
    (trial,) = [t for t in SMALL if t.fault is WindowOneTooLong]
    prompts, window = _prompts(trial), trial.model.window
    honest = bench.honest(trial.model, prompts)
    changed = bench.forced(trial.fault, trial.model, prompts)
    within = beyond = 0
    for prompt, one, two in zip(prompts, honest, changed, strict=True):
        errors = _errors(one, two)
        for step, error in enumerate(errors):
            seen = len(prompt.tokens) + step
            if seen <= window:
                assert mx.array_equal(one[step], two[step]), f"{seen} tokens"
                within += 1
            else:
                assert error > SEEN, f"{seen} tokens"
                beyond += 1
    assert min(within, beyond) > 20


def test_padded_vocabulary_shows_where_all_logits_are_negative(bench: Bench) -> None:
    """An id behind the vocabulary comes there and nowhere else; most prompts stay right."""
    (trial,) = [t for t in SMALL if t.fault is PaddedVocabulary]
    raw: Any = trial.fault.prompts
    prompts = tuple(raw)
    answers, logits = bench.reference(trial.model, prompts)
    wrong = 0
    engine = trial.fault()
    engine.open(_ref(bench.folder(trial.model)))
    for prompt, answer, rows in zip(prompts, answers, logits, strict=True):
        engine.submit(Request(id=prompt.id, tokens=prompt.tokens, max_tokens=STEPS, alone=True))
        said = [engine.step()[0].token for _ in range(STEPS)]
        below = [best < 0 for best in _list(rows.max(axis=-1))]
        first = below.index(True) if any(below) else STEPS
        assert said[:first] == answer[:first]
        assert all(token >= trial.model.vocab for token in said[first : first + 1])
        wrong += first < STEPS
    engine.close()
    assert 0 < wrong < len(prompts) / 2


def _list(values: Any) -> list[float]:
    out: list[float] = values.tolist()
    return out


def test_one_row_of_nan_and_all_else_bit_for_bit(bench: Bench) -> None:
    """The second row of a batch, at its fourth token; greedy sampling calls that id 0."""
    (trial,) = [t for t in SMALL if t.fault is RowIsNaN]
    prompts = _prompts(trial)
    honest = bench.honest(trial.model, prompts)
    changed = bench.forced(trial.fault, trial.model, prompts)
    for row, (one, two) in enumerate(zip(honest, changed, strict=True)):
        for step in range(STEPS):
            if (row, step) == (1, RowIsNaN.lost_at):
                assert all(math.isnan(value) for value in _list(two[step]))
                assert mx.argmax(two[step]).item() == 0
            else:
                assert mx.array_equal(one[step], two[step]), f"row {row}, step {step}"
    alone = bench.forced(trial.fault, trial.model, prompts[:2], together=False)
    assert _same(bench.reference(trial.model, prompts[:2])[1], alone)


@pytest.mark.parametrize(
    ("layers", "changed", "name"),
    [
        ("all", [0, 1, 2], "attention-scale-x1.5-all"),
        (None, [1], "attention-scale-x1.5-middle"),
        (2, [2], "attention-scale-x1.5-2"),
    ],
)
def test_scaled_attention_changes_the_layers_it_names(
    layers: Any, changed: list[int], name: str, bench: Bench
) -> None:
    """The factor is on those layers' scale, and the class says so."""
    fault = scaled_attention(1.5, layers)
    assert fault.name == name
    engine = fault()
    engine.open(_ref(bench.folder(RandomModel())))
    scales = [block.self_attn.scale for block in engine._model.layers]
    engine.close()
    plain = 32**-0.5
    assert scales == [plain * 1.5 if n in changed else plain for n in range(3)]


def test_trials_have_names_of_their_own() -> None:
    """A fault runs on a family once, and says its row and what is wrong."""
    names = [_name(trial) for trial in SMALL]
    assert len(set(names)) == len(names)
    assert {t.fault.row for t in SMALL} == {5, 9, 33, 35, 36, 45, 46}
    assert {t.fault.row for t in SMALL if t.fault.honest} == {45}
    assert all(t.fault.sentence for t in SMALL)
