"""The reference: what it says, what it shows of its logits, and that it goes away."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxcheck import checkpoint, reference
from mlxcheck.errors import ModelError, ReferenceBroken, UsageError
from mlxcheck.prompts import Question, encode
from mlxcheck.records import Prompt

MODELS = Path(__file__).parents[1] / "fixtures" / "models"


@pytest.fixture(scope="module")
def found() -> checkpoint.Checkpoint:
    """The dense float32 fixture, with its stop set."""
    seen = checkpoint.inspect(MODELS / "qwen3-float32")
    stop = reference.stop_set(reference.read_tokenizer(seen))
    return replace(seen, model=replace(seen.model, stop_ids=stop))


@pytest.fixture(scope="module")
def prompt(found: checkpoint.Checkpoint) -> Prompt:
    """One chat turn, as ids."""
    turn = ({"role": "user", "content": "What is 2+2?"},)
    return encode([Question(id="sum", messages=turn)], reference.read_tokenizer(found))[0]


def test_tokens_are_those_of_a_bare_greedy_loop(
    found: checkpoint.Checkpoint, prompt: Prompt
) -> None:
    """A loop over the model itself, without generate_step and cache, says the same."""
    model = reference.load_model(found.model.path)
    tokens = list(prompt.tokens)
    while len(tokens) < len(prompt.tokens) + 64:
        logits = model(mx.array([tokens]))[0, -1]
        tokens.append(int(mx.argmax(logits)))
        if tokens[-1] in found.model.stop_ids:
            break

    trace = reference.Reference(found).decode(prompt, max_tokens=64)

    assert list(trace.tokens) == tokens[len(prompt.tokens) :]
    assert trace.finish == "stop"


def test_every_step_has_its_own_normalised_scores(
    found: checkpoint.Checkpoint, prompt: Prompt
) -> None:
    """Each step's best id is its token, and the kept probabilities are those of the logits."""
    model = reference.load_model(found.model.path)
    trace = reference.Reference(found).decode(prompt, max_tokens=64)
    step = 3
    context = [*prompt.tokens, *trace.tokens[:step]]
    logits = model(mx.array([context]))[0, -1].astype(mx.float32)
    expected = (logits - mx.logsumexp(logits)).tolist()

    scores = trace.scores[step]

    assert [entry.ids[0] for entry in trace.scores] == list(trace.tokens)
    assert len(scores.ids) == 64
    assert sorted(scores.logprobs, reverse=True) == list(scores.logprobs)
    for token, logprob in zip(scores.ids, scores.logprobs, strict=True):
        assert math.isclose(logprob, expected[token], abs_tol=1e-4)
    assert math.isclose(scores.margin, scores.logprobs[0] - scores.logprobs[1])


def test_max_tokens_cuts_the_answer(found: checkpoint.Checkpoint, prompt: Prompt) -> None:
    """An answer that is cut ends for length, with as many tokens and scores."""
    trace = reference.Reference(found).decode(prompt, max_tokens=2)

    assert (len(trace.tokens), len(trace.scores), trace.finish) == (2, 2, "length")


def test_a_long_answer_is_scored_in_stretches(found: checkpoint.Checkpoint) -> None:
    """Past the stretch after which raw logits are dropped, no step is lost or doubled."""
    endless = replace(found, model=replace(found.model, stop_ids=()))
    prompt = Prompt(id="any", tokens=(5, 6, 7))

    trace = reference.Reference(endless).decode(prompt, max_tokens=150)

    assert len(trace.scores) == 150
    assert [scores.ids[0] for scores in trace.scores] == list(trace.tokens)


def test_logits_that_are_not_numbers_stop_the_run(
    found: checkpoint.Checkpoint, prompt: Prompt
) -> None:
    """A reference that says NaN is no reference."""
    loaded = reference.Reference(found)
    head = loaded._model.lm_head
    head.weight = mx.full(head.weight.shape, math.nan)

    with pytest.raises(ReferenceBroken, match=r"'sum', 0 steps"):
        loaded.decode(prompt, max_tokens=4)


def test_logits_that_are_not_numbers_when_scored_again_stop_the_run(
    found: checkpoint.Checkpoint, prompt: Prompt
) -> None:
    """As kernels do that read what was never written: sound at one shape, NaN at another."""
    loaded = reference.Reference(found)
    trace = loaded.decode(prompt, max_tokens=4)
    head = loaded._model.lm_head
    head.weight = mx.full(head.weight.shape, math.nan)
    loaded.decode = lambda *_, **__: trace  # type: ignore[method-assign]

    with pytest.raises(ReferenceBroken, match=r"scores the same answer once more .*'sum'"):
        loaded.noise([(prompt, trace)], seconds=1.0, exact=True)


def test_scores_break_ties_by_the_lower_id() -> None:
    """Equal logits are listed as argmax would take them."""
    (scores,) = reference.score_rows([mx.array([[0.0, 2.0, 1.0, 2.0]])])

    assert scores.ids == (1, 3, 2, 0)
    assert scores.margin == 0.0


def test_stop_set_falls_back_to_the_single_id() -> None:
    """Tokenizers without a set have one end-of-sequence id, or none."""

    class Tokenizer:
        eos_token_ids: Any = None
        eos_token_id: Any = 7

    assert reference.stop_set(Tokenizer()) == (7,)
    Tokenizer.eos_token_ids = {9, 3}
    assert reference.stop_set(Tokenizer()) == (3, 9)
    Tokenizer.eos_token_ids = Tokenizer.eos_token_id = None
    assert reference.stop_set(Tokenizer()) == ()


def test_a_checkpoint_that_mlx_lm_refuses_is_a_model_error(tmp_path: Path) -> None:
    """mlx-lm's own words are kept, after the path."""
    with pytest.raises(ModelError, match="mlx-lm cannot load this checkpoint"):
        reference.load_model(str(tmp_path))


def test_release_lets_go_of_the_model(found: checkpoint.Checkpoint) -> None:
    """Nothing but the caller's weak reference is left."""
    loaded = reference.Reference(found)

    ref = loaded.release()

    assert ref() is None


def test_an_mlx_that_cannot_be_imported_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing shared library is no traceback but a line on what to install."""
    monkeypatch.setitem(sys.modules, "mlx_lm.utils", None)

    with pytest.raises(UsageError, match=r"install mlxcheck\[cpu\]"):
        reference.require_mlx()
