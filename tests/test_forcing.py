"""Teacher forcing, on mlx-lm's own engine: the reference's tokens in, its numbers out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlxcheck import checkpoint
from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.backends.mlx_lm_forcing import Forced
from mlxcheck.records import Case, ModelRef, Prompt, Trace
from mlxcheck.reference import Reference, read_tokenizer, stop_set
from mlxcheck.session import Answers, Session
from tests.support.driven import PATIENT, Engine, Maker, fault_of
from tests.support.made import case_of, model, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
STEPS = 9
SIZES = (4, 23, 9, 2, 15)


# --- mlx-lm's engine -------------------------------------------------------------------------


class World:
    """A fixture, its prompts, what the reference says to them, and an open session."""

    def __init__(self, name: str) -> None:
        """Decode everything once."""
        found = checkpoint.inspect(MODELS / name)
        stop = stop_set(read_tokenizer(found))
        self.ref: ModelRef = replace(found.model, stop_ids=stop)
        reference = Reference(replace(found, model=self.ref))
        self.prompts = tuple(
            Prompt(id=f"p{size}", tokens=tuple(20 + 11 * n % 190 for n in range(size)))
            for size in SIZES
        )
        self.expected = {
            prompt.id: reference.decode(prompt, max_tokens=STEPS) for prompt in self.prompts
        }

    def run(
        self, *rows: int, expected: dict[str, Trace] | None = None, **case: Any
    ) -> tuple[Trace, ...]:
        """Submit rows together, forced to the reference's answers or to others."""
        made = Case(id="c", prompts=tuple(self.prompts[row] for row in rows), **case)
        with Session(MlxLmBackend, self.ref, PATIENT) as session:
            return session.run(
                made, max_tokens=STEPS, expected=self.expected if expected is None else expected
            ).traces


@pytest.fixture(scope="module", params=["qwen3-float32", "qwen3_moe-float32"])
def fixture(request: pytest.FixtureRequest) -> World:
    """A dense model and a mixture of experts, both in float32."""
    return World(request.param)


@pytest.mark.parametrize(
    ("rows", "alone"), [((1,), True), ((1,), False), ((0, 1), False), ((4, 2, 0, 3, 1), False)]
)
def test_forced_scores_are_the_references_bit_for_bit(
    fixture: World, rows: tuple[int, ...], *, alone: bool
) -> None:
    """Alone, in a batch of one, and in batches: the same tokens, and the same numbers."""
    found = fixture.run(*rows, alone=alone, forced=True)

    assert len(found) == len(rows)
    for each in found:
        expected = fixture.expected[each.prompt_id]
        assert each.fault is None
        assert (each.tokens, each.finish) == (expected.tokens, expected.finish)
        assert each.anchors == tuple(range(len(expected.tokens)))
        assert len(each.scores) == len(expected.scores)
        for ours, theirs in zip(expected.scores, each.scores, strict=True):
            kept = set(zip(ours.ids, ours.logprobs, strict=True))
            assert kept <= set(zip(theirs.ids, theirs.logprobs, strict=True))
            assert theirs.logsumexp == ours.logsumexp
            assert theirs.ids[0] == ours.ids[0]


def test_what_is_reported_is_what_the_logits_say(fixture: World) -> None:
    """The token's own log-probability, one a step, is within a few units."""
    for each in (*fixture.run(0, 1, forced=True), *fixture.run(1, alone=True, forced=True)):
        assert len(each.reported) == len(each.tokens)
        assert max(each.reported) < 64


@pytest.mark.parametrize("alone", [True, False])
def test_an_engine_goes_on_from_what_it_was_told(fixture: World, *, alone: bool) -> None:
    """Other tokens than its own: it says them, and its numbers are of that context."""
    prompt, other = fixture.prompts[0], (7, 8, 9, 10)
    longer = replace(prompt, tokens=(*prompt.tokens, *other[:2]))
    stand_in = replace(fixture.expected[prompt.id], tokens=other, scores=())

    (found,) = fixture.run(0, expected={prompt.id: stand_in}, alone=alone, forced=True)

    case = Case(id="c", prompts=(longer,), alone=alone, forced=True)
    rest = replace(stand_in, tokens=other[2:])
    with Session(MlxLmBackend, fixture.ref, PATIENT) as session:
        (plain,) = session.run(case, max_tokens=9, expected={prompt.id: rest}).traces
    assert (found.tokens, found.finish) == (other, "length")
    assert found.scores[2].ids[:5] == plain.scores[0].ids[:5]
    assert found.scores[2].logprobs[:5] == pytest.approx(plain.scores[0].logprobs[:5], abs=1e-4)


def test_free_rows_beside_forced_ones(fixture: World) -> None:
    """A row without an answer to follow says its own, shows nothing, and disturbs none."""
    known = {name: fixture.expected[name] for name in ("p4", "p9")}

    found = fixture.run(0, 1, 2, expected=known, forced=True)

    assert [each.tokens for each in found] == [
        fixture.expected[each.prompt_id].tokens for each in found
    ]
    assert [len(each.scores) for each in found] == [
        len(known[each.prompt_id].tokens) if each.prompt_id in known else 0 for each in found
    ]
    assert [bool(each.anchors) for each in found] == [True, False, True]


def test_one_prompt_twice_is_forced_twice(fixture: World) -> None:
    """Rows are forced one by one, not by their prompt."""
    first, second = fixture.run(0, 0, forced=True)

    assert first.tokens == second.tokens == fixture.expected["p4"].tokens
    assert first.scores == second.scores


def test_nothing_is_kept_from_case_to_case(fixture: World) -> None:
    """After forced cases, cancelled ones too, an engine is free again."""
    backend = MlxLmBackend()
    case = Case(id="c", prompts=fixture.prompts[:2], forced=True)
    with Session(lambda: backend, fixture.ref, PATIENT) as session:
        session.run(case, max_tokens=STEPS, expected=fixture.expected)
        request = Request(id="x", tokens=(5, 6), max_tokens=5, forced=(7, 8, 9, 10, 11))
        backend.submit(request)
        backend.step()
        backend.cancel("x")
        assert (backend._forced, backend._names, backend._alone) == ({}, {}, {})
        (free, _) = session.run(replace(case, forced=False), max_tokens=STEPS).traces

    assert free.tokens == fixture.expected[free.prompt_id].tokens
    assert (free.scores, free.anchors) == ((), ())


def test_the_sampler_says_its_tokens_and_the_last_one_again() -> None:
    """mlx-lm looks a step ahead, past the end."""
    forced = Forced((4, 9))

    said = [forced.sampler(mx.zeros((1, 12))).tolist() for _ in range(4)]

    assert said == [[4], [9], [9], [9]]


def test_logits_are_handed_out_in_the_order_of_the_steps() -> None:
    """What the processor saw first belongs to the first token, and is not changed."""
    forced = Forced((4, 9))
    rows = [mx.array([[float(n)]]) for n in range(3)]

    assert all(forced.processor(None, each) is each for each in rows)
    assert [forced.logits() is each for each in rows] == [True] * 3


# --- The session -----------------------------------------------------------------------------


EXPECTED = trace(5, 6, 7, 2)


class Follows(Engine):
    """Goes on from what it is told."""

    capabilities = Capabilities(teacher_forcing=True)

    def submit(self, request: Request) -> None:
        super().submit(request)
        self.end = "length"
        self.live[request.id] = list(request.forced or (8, 9))


def _forced(
    kind: type[Engine], expected: Trace = EXPECTED, *names: str
) -> tuple[Answers, Sequence[Engine]]:
    maker = Maker(kind)
    case = replace(case_of(*(names or ("sum",))), forced=True)
    with Session(maker, model(), PATIENT) as session:
        answers = session.run(case, max_tokens=8, expected={"sum": expected})
    return answers, maker.made


def test_a_forced_request_has_the_references_length() -> None:
    """As many tokens as the reference gave, whatever the budget of the others."""
    answers, (engine,) = _forced(Follows, EXPECTED, "sum", "count")

    first, second = engine.requests
    assert (first.forced, first.max_tokens) == ((5, 6, 7, 2), 4)
    assert (second.forced, second.max_tokens) == (None, 8)
    assert [each.tokens for each in answers.traces] == [(5, 6, 7, 2), (8, 9)]
    assert [each.anchors for each in answers.traces] == [(0, 1, 2, 3), ()]


@pytest.mark.parametrize("step", [0, 1, 3])
def test_an_engine_that_does_not_follow_is_at_fault(step: int) -> None:
    """It was told to go on from a token, and went on from another one."""

    class Strays(Follows):
        def submit(self, request: Request) -> None:
            super().submit(request)
            self.live[request.id][step] = 50

    answers, (engine,) = _forced(Strays)

    wanted = EXPECTED.tokens[step]
    assert fault_of(answers).summary == (
        f"step {step}: it was to go on from token {wanted}, and went on from 50"
    )
    assert answers.traces[0].tokens == EXPECTED.tokens[:step]
    assert "cancel r0" in engine.log


def test_a_free_case_is_not_forced() -> None:
    """The reference's answer is looked at, and not imposed."""
    maker = Maker(Engine)
    with Session(maker, model(), PATIENT) as session:
        session.run(case_of("sum"), max_tokens=8, expected={"sum": EXPECTED})

    assert maker.made[0].requests[0].forced is None
    assert maker.made[0].requests[0].max_tokens == 8


def test_numbers_of_a_forced_row_are_looked_up_at_the_references_tokens() -> None:
    """Each step at its own."""
    scored = Trace(prompt_id="sum", tokens=(5, 6), finish="length", scores=())

    class Shows(Follows):
        def emit(self, name: str) -> Emission:
            step = 2 - len(self.live[name])
            return replace(super().emit(name), logits=[float(n == step) for n in range(100)])

    answers, _ = _forced(Shows, scored)

    assert [each.ids[0] for each in answers.traces[0].scores] == [0, 1]
