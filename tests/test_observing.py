"""What an engine shows of its numbers: read where it can be, refused where it cannot."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcheck.backends.base import Capabilities, Emission
from mlxcheck.errors import EngineFault
from mlxcheck.noise import ulp
from mlxcheck.observing import Watcher
from mlxcheck.reference import score_rows
from tests.support.driven import Engine, drive, fault_of
from tests.support.made import case_of, scores, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlxcheck.records import Scores

SIZE = 8
LOGITS = [0.0, 1.0, -2.0, 3.5, 0.25, -1.0, 3.0, 2.0]
LSE = math.log(sum(map(math.exp, LOGITS)))


def _seen(logits: Any = None, logprobs: Mapping[int, float] | None = None) -> Emission:
    return Emission(request_id="r0", token=3, logits=logits, logprobs=logprobs)


def _watched(
    *emissions: Emission, wanted: tuple[Scores, ...] = (), size: int = SIZE
) -> tuple[tuple[Scores, ...], tuple[float, ...]]:
    """Return what a watcher makes of emissions, beside an answer with these scores."""
    expected = trace(*(3,) * len(wanted), scored=wanted) if wanted else None
    watcher = Watcher(expected, size)
    for emission in emissions:
        watcher.take(emission)
    return watcher.close()


# --- Logits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [
        mx.array(LOGITS),
        mx.array([LOGITS]),
        mx.array(LOGITS, dtype=mx.bfloat16),
        mx.array(LOGITS, dtype=mx.float16),
        LOGITS,
        [LOGITS],
        tuple(LOGITS),
        np.array(LOGITS, dtype=np.float32),
        np.array([LOGITS], dtype=np.float64),
        np.array(LOGITS, dtype=np.float16),
    ],
)
def test_logits_in_every_form(shown: Any) -> None:
    """Arrays, lists and numpy's arrays, as a row or as a matrix of one, in any float dtype."""
    (found,), reported = _watched(_seen(shown))

    assert found.ids == (3, 6, 7, 1, 4, 0, 5, 2)
    assert found.logprobs == pytest.approx([LOGITS[n] - LSE for n in found.ids], abs=1e-5)
    assert found.logsumexp == pytest.approx(LSE, abs=1e-5)
    assert reported == ()


def test_the_references_tokens_are_looked_up_beside_its_own_best() -> None:
    """The numbers of a step are those of the reference's top, and of the best five."""
    logits = [float(n) for n in range(20)]
    wanted = (scores(2, 0, 4), scores(19, 18, 1))

    (first, second), _ = _watched(_seen(logits), _seen(logits), wanted=wanted, size=20)

    assert first.ids == (19, 18, 17, 16, 15, 4, 2, 0)
    assert second.ids == (19, 18, 17, 16, 15, 1)
    assert first.logprobs[0] - first.logprobs[5] == pytest.approx(15.0, abs=1e-4)


def test_past_the_references_end_its_own_best_are_kept() -> None:
    """An answer that goes on longer has numbers there too."""
    logits = [float(n) for n in range(20)]

    found, _ = _watched(_seen(logits), _seen(logits), wanted=(scores(2, 0, 4),), size=20)

    assert len(found) == 2
    assert found[1].ids == tuple(range(19, -1, -1))


@pytest.mark.parametrize("rows", [63, 64, 65, 129])
def test_many_rows_come_out_in_order(rows: int) -> None:
    """However many are held at once, each is scored at its own step's tokens."""
    shown = [[*LOGITS[:-1], float(step)] for step in range(rows)]
    wanted = tuple(scores(step % 5, 5) for step in range(rows))
    emissions = [_seen(mx.array(row), {7: 0.0}) for row in shown]

    found, reported = _watched(*emissions, wanted=wanted)

    assert (len(found), len(reported)) == (rows, rows)
    for step in range(rows):
        (alone,) = score_rows([mx.array(shown[step : step + 1])])
        assert found[step].logsumexp == pytest.approx(alone.logsumexp, abs=1e-5)
        assert {step % 5, 5} <= set(found[step].ids)


def test_few_rows_are_held_at_once() -> None:
    """A long answer's logits would fill the memory."""
    watcher = Watcher(None, SIZE)
    for step in range(200):
        watcher.take(_seen(LOGITS))
        assert len(watcher._rows) == (step + 1) % 64


def test_more_than_the_vocabulary_is_a_padded_head() -> None:
    """Rows past the last token are no fault of an engine's."""
    (found,), _ = _watched(_seen([*LOGITS, -9.0, -9.0]))

    assert len(found.ids) == SIZE + 2


@pytest.mark.parametrize(
    "shown",
    [
        LOGITS[:-1],
        mx.array(LOGITS[:-1]),
        np.array(LOGITS[:-1]),
        [int(logit) for logit in LOGITS],
        mx.array([1] * SIZE),
        np.array([1] * SIZE),
        mx.array([True] * SIZE),
        mx.array(LOGITS).astype(mx.complex64),
        mx.array([LOGITS, LOGITS]),
        [LOGITS, LOGITS],
        mx.zeros((SIZE, 1)),
        3.5,
        [],
        mx.array([]),
        "logits",
        {3: 1.0},
        object(),
        [1.0, "a"],
        [[1.0], [1.0, 2.0]],
        np.array(["a"] * SIZE),
        np.array([None] * SIZE),
    ],
)
def test_what_cannot_be_logits_is_the_engines_fault(shown: Any) -> None:
    """Too short, no floats, several rows or no array at all: one plain sentence."""
    with pytest.raises(EngineFault, match=r"^step\(\) gave logits ") as caught:
        _watched(_seen(shown))

    assert "\n" not in str(caught.value)


def test_a_fault_tells_shape_and_dtype() -> None:
    """What came and what was due."""
    with pytest.raises(EngineFault) as caught:
        _watched(_seen(mx.array([[1, 2, 3]])))

    assert str(caught.value) == (
        "step() gave logits of shape (1, 3) and dtype mlx.core.int32; "
        "expected floats, one for each of the 8 tokens"
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_kept_as_such(bad: float) -> None:
    """They are for the judge, not for the one that reads."""
    (found,), _ = _watched(_seen([bad, *LOGITS[1:]]), wanted=(scores(3, 6),))

    assert not found.finite


@pytest.mark.parametrize("rows", [2, 80])
def test_rows_that_do_not_fit_together_are_the_engines_fault(rows: int) -> None:
    """What only shows when the numbers are read, at the end or on the way, ends no run."""

    class Grows(Engine):
        capabilities = Capabilities(logits=True)
        answer = (*[5] * (rows - 1), 2)

        def emit(self, name: str) -> Emission:
            size = 100 + len(self.live[name])
            return replace(super().emit(name), logits=mx.zeros(size))

    (answers,) = drive(Grows, case_of("sum"), max_tokens=rows)

    assert fault_of(answers).summary.startswith("step() raised ValueError")


# --- Reported log-probabilities --------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("off", [3.0, -3.0])
def test_reported_numbers_are_measured_in_units(dtype: str, off: float) -> None:
    """Three units off, at the largest number on the way, are three."""
    logits = mx.array([100.0, *LOGITS[1:]], dtype=getattr(mx, dtype))
    unit = ulp(dtype, 100.0)
    (own,) = score_rows([logits.reshape(1, -1)])

    _, reported = _watched(_seen(logits, {0: own.logprobs[0] + off * unit}))

    assert reported == pytest.approx([3.0], rel=1e-3)


@pytest.mark.parametrize(
    ("logits", "token", "size"),
    [
        ([1.0, -300.0, *[0.0] * 6], 1, 300.0),  # the log-probability
        ([-130.0] * 8, 0, 130.0),  # the logit; the log-sum-exp is -127.9
        ([127.0] * 8, 0, 129.0),  # the log-sum-exp
    ],
)
def test_units_are_those_of_the_largest_number_on_the_way(
    logits: list[float], token: int, size: float
) -> None:
    """Whichever of the three it is."""
    shown = mx.array(logits, dtype=mx.bfloat16)
    (own,) = score_rows([shown.reshape(1, -1)])
    told = {token: (own.logprob(token) or 0.0) + 2 * ulp("bfloat16", size)}

    _, reported = _watched(_seen(shown, told))

    assert reported == pytest.approx([2.0], rel=1e-3)


def test_the_worst_of_all_reported_numbers_counts() -> None:
    """Several tokens a step; one that was not looked up is left out."""
    logits = [float(n) for n in range(20)]
    (own,) = score_rows([mx.array([logits])])
    unit = ulp("float32", 19.0)
    told = {19: own.logprobs[0], 18: own.logprobs[1] + 500 * unit, 3: 9e9}

    (_, reported) = _watched(_seen(logits, told), wanted=(scores(19, 18),), size=20)

    assert reported == pytest.approx([500.0], rel=0.01)


@pytest.mark.parametrize("order", [1, -1])
def test_a_reported_nan_is_not_small(order: int) -> None:
    """NaN stays NaN, whatever other tokens' numbers say before and after it."""
    (own,) = score_rows([mx.array([LOGITS])])
    told = dict(zip(own.ids, own.logprobs, strict=True)) | {own.ids[3]: math.nan}
    pairs = list(told.items())[::order]

    _, reported = _watched(_seen(LOGITS, dict(pairs)))

    assert math.isnan(reported[0])


def test_reported_numbers_alone_are_the_scores() -> None:
    """Without logits what the engine reports is all there is, the best first."""
    shown = {4: -2.0, 3: -0.5, 9: -2.0}

    (found,), reported = _watched(_seen(logprobs=shown), wanted=(scores(3, 4),))

    assert (found.ids, found.logprobs) == ((3, 4, 9), (-0.5, -2.0, -2.0))
    assert found.logsumexp is None
    assert reported == ()


# --- Gaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("shown", [_seen(LOGITS, {3: -1.0}), _seen(logprobs={3: -1.0})])
@pytest.mark.parametrize("gap", [_seen(), _seen(logprobs={})])
def test_a_step_without_numbers_makes_blind(place: int, shown: Emission, gap: Emission) -> None:
    """One score a token or none: what follows a gap would have the wrong place."""
    emissions = [shown] * 3
    emissions[place] = gap

    assert _watched(*emissions) == ((), ())


def test_nothing_shown_is_nothing() -> None:
    """No emission, no score."""
    assert _watched() == ((), ())


def _only_logits() -> Emission:
    return _seen(LOGITS)


def _only_reported() -> Emission:
    return _seen(logprobs={5: -0.125})


@pytest.mark.parametrize(
    "order",
    [
        (_only_logits, _only_reported),
        (_only_reported, _only_logits),
        (_only_logits, _only_reported, _only_logits),
    ],
)
def test_logits_and_reported_numbers_by_turns_keep_their_steps(
    order: tuple[Callable[[], Emission], ...],
) -> None:
    """An engine that shows logits at some steps only is read in the order of its steps."""
    found, _ = _watched(*(make() for make in order))

    assert [each.ids[0] for each in found] == [
        3 if make is _only_logits else 5 for make in order
    ]


def test_reported_numbers_have_one_entry_a_token_or_none() -> None:
    """An engine that reports at some steps only is not held to them at other ones."""
    some = [_seen(LOGITS), _seen(LOGITS, {3: 9.0}), _seen(LOGITS)]

    found, reported = _watched(*some)

    assert (len(found), reported) == (3, ())
    assert len(_watched(*[some[1]] * 3)[1]) == 3
