"""All comparisons of a check together: what they come to, and what they could not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlxcheck.checks.base import not_formed
from mlxcheck.passes import near_of_arms, total
from mlxcheck.records import ALL_PROMPTS, Comparison, Verdict
from mlxcheck.session import Answers
from tests.support.made import case_of, place, trace
from tests.support.reported import comparison
from tests.support.scored import ARMS, CLEAR, NEAR, World, arm, noise, said, world

ALL = case_of(ALL_PROMPTS, case_id=ALL_PROMPTS)


def judged(
    run: World, looks: tuple[Comparison, ...] | None = None, *, tokens_alone: bool = False
) -> tuple[Comparison, list[str]]:
    """Return what a check comes to, and the names of the tests that failed."""
    found, tests = total(
        replace(place("batch", ALL), noise=run.noise),
        run.looks if looks is None else looks,
        run.expected,
        alpha=0.001 / 12,
        tokens_alone=tokens_alone,
    )
    return found, [test.name for test in tests if not test.passed]


def test_an_honest_run_is_exact() -> None:
    """All tests hold, and there is nothing to explain."""
    found, failed = judged(world(1))

    assert (found.verdict, found.message, failed) == (Verdict.EXACT, "", [])
    assert (found.prompt_id, found.case, found.batch) == (ALL_PROMPTS, ALL_PROMPTS, 0)


def test_larger_errors_together_are_drift() -> None:
    """Each position by itself would pass; the message has the tests that failed, no others."""
    found, failed = judged(world(1, prompts=24, steps=16, times=1.6))

    assert found.verdict is Verdict.DRIFT
    assert failed == ["errors", "divergences (their roots)"]
    assert found.message.splitlines()[0] == (
        "all-prompts, check batch: 24 prompts together differ by more than rounding does"
    )
    told = found.message.splitlines()[1:]
    assert [line.partition(":")[0].strip() for line in told] == [*failed, "again"]


@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.INCONCLUSIVE])
def test_what_was_not_compared_is_not_judged(verdict: Verdict) -> None:
    """Numbers of a row that failed are no evidence of rounding."""
    run = world(1, prompts=24, steps=16, times=9.0)

    found, failed = judged(run, tuple(replace(look, verdict=verdict) for look in run.looks))

    assert (found.verdict, failed) == (Verdict.EXACT, [])


def test_flips_that_the_arms_make_too_are_ties() -> None:
    """As many flips as an arm has are told as a tie, with the count."""
    run = _tied(prompts=4, arm_flips=2)
    looks = tuple(
        comparison(Verdict.TIE, 7, prompt_id=f"p{n}", step=1, ties=2, near=2) for n in range(4)
    )

    found, failed = judged(run, looks)

    assert (found.verdict, failed) == (Verdict.TIE, [])
    assert "no more ties than rounding makes" in found.message
    assert "8 flips in 4 prompts" in found.message


def test_more_flips_than_the_arms_make_are_drift() -> None:
    """Eight prompts with two ties each, where no arm has any."""
    run = _tied(prompts=8, arm_flips=0)
    looks = tuple(
        comparison(Verdict.TIE, 7, prompt_id=f"p{n}", step=1, ties=2, near=2) for n in range(8)
    )

    found, failed = judged(run, looks)

    assert (found.verdict, failed) == (Verdict.DRIFT, ["flips"])


def test_where_numbers_are_shown_flips_are_those_of_the_numbers() -> None:
    """A forced engine has no ties of tokens: what it would have said counts."""
    run = _tied(prompts=8, arm_flips=0)
    looks = tuple(
        comparison(
            steps=8, prompt_id=f"p{n}", flips=(1, 2), errors=(0.0,) * 8, divergences=(0.0,) * 8
        )
        for n in range(8)
    )

    assert judged(run, looks)[1] == ["flips"]
    quiet = tuple(replace(look, flips=(), ties=2) for look in looks)
    assert judged(run, quiet)[1] == []


def _tied(prompts: int, arm_flips: int, near: int = 2) -> World:
    """Make a run of answers of eight steps, some of them near, and arms that flip."""
    steps = [*[NEAR] * near, *[CLEAR] * (8 - near)]
    expected = {f"p{n}": said(*steps, prompt_id=f"p{n}") for n in range(prompts)}
    arms = [
        arm(*[0.0] * 8, prompt_id=name, arm=way, flips=tuple(range(arm_flips)))
        for name in expected
        for way in ARMS
    ]
    return World(noise=noise(*arms), looks=(), expected=expected)


@pytest.mark.parametrize(
    ("near", "alone", "exact", "verdict"),
    [
        (3, True, False, Verdict.INCONCLUSIVE),
        (2, True, False, Verdict.EXACT),  # 2 of 8 is a quarter, and no more than that
        (3, False, False, Verdict.EXACT),  # numbers were compared, or float32 backs it
        (8, True, True, Verdict.EXACT),
    ],
)
def test_tokens_alone_of_a_model_that_hardly_prefers_any(
    near: int, verdict: Verdict, *, alone: bool, exact: bool
) -> None:
    """Where a fault's flips would look like rounding's, agreement is no pass."""
    run = _tied(prompts=3, arm_flips=0, near=near)
    run = replace(run, noise=replace(run.noise, exact=exact))
    looks = tuple(comparison(steps=8, prompt_id=f"p{n}", near=near) for n in range(3))

    found, failed = judged(run, looks, tokens_alone=alone)

    assert (found.verdict, failed) == (verdict, [])
    if verdict is Verdict.INCONCLUSIVE:
        assert "at 9 of 24 steps the reference's best two tokens are closer" in found.message
        assert "tokens alone cannot tell here" in found.message


def test_near_uniform_tokens_that_fail_are_drift_all_the_same() -> None:
    """What was seen is not excused by what could not be."""
    run = _tied(prompts=8, arm_flips=0, near=8)
    looks = tuple(
        comparison(Verdict.TIE, 7, prompt_id=f"p{n}", step=1, ties=2, near=8) for n in range(8)
    )

    assert judged(run, looks, tokens_alone=True)[0].verdict is Verdict.DRIFT


def test_strict_mode_has_no_tests() -> None:
    """Without noise there is nothing to hold totals against."""
    run = world(1, times=9.0)

    found, tests = total(
        place("batch", ALL), run.looks, run.expected, alpha=0.001, tokens_alone=True
    )

    assert (found.verdict, tests) == (Verdict.EXACT, ())


def test_near_steps_of_the_arms() -> None:
    """Each counts once for all arms; prompts that are not here do not."""
    expected = {"sum": said(CLEAR, NEAR, NEAR)}
    arms = [arm(0.0, 0.0, 0.0, arm=way) for way in ARMS]

    assert near_of_arms(noise(*arms), expected) == 2
    assert near_of_arms(noise(arm(0.0, prompt_id="")), expected) == 0
    assert near_of_arms(noise(arm(0.0, 0.0, 0.0, swings=(9.0,) * 3)), expected) == 3


# --- Rows that never met ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "chunks", "formed"),
    [
        ((8, 8), None, False),
        ((8, 8), 0, False),
        ((7, 90), None, True),  # it may be over before the other has been read
        ((9, 90), 1, False),
        ((8, 90), 1, True),  # one chunk was read while a token was said
        ((20, 90), 12, False),
        ((19, 90), 12, True),
        ((3, 20, 90), 12, False),  # two of three could have met
        ((3, 19, 90), 12, True),
    ],
)
def test_rows_that_never_met(
    lengths: tuple[int, ...], chunks: int | None, *, formed: bool
) -> None:
    """Held against an engine only where two answers outlast all that had to be read."""
    names = [f"p{n}" for n in range(len(lengths))]
    expected = {
        name: trace(*(5,) * size, prompt_id=name)
        for name, size in zip(names, lengths, strict=True)
    }
    answers = Answers(traces=tuple(expected.values()), width=1, chunks=chunks)

    found = not_formed(case_of(*names), expected, answers)

    told = f"{len(names)} requests were submitted, but no decode step had two rows"
    assert found == ("" if formed else told)


def test_rows_that_met_or_could_not_be_seen_to() -> None:
    """One row, a width of two or an unknown one, and company without a reference: no word."""
    expected = {name: trace(*(5,) * 90, prompt_id=name) for name in ("sum", "count")}
    both, alone = case_of("sum", "count"), case_of("sum")
    answers = Answers(traces=tuple(expected.values()), width=1, chunks=2)

    assert not_formed(both, expected, answers)
    assert not not_formed(both, expected, replace(answers, width=2))
    assert not not_formed(both, expected, replace(answers, width=None))
    assert not not_formed(alone, expected, replace(answers, traces=answers.traces[:1]))
    assert not not_formed(case_of("sum", "other"), expected, answers)
