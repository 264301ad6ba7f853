"""What the arms may take: time, and prompts that are not too long."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck import arms, budget
from mlxcheck.arms import Scored, measure
from mlxcheck.budget import Budget
from mlxcheck.records import Prompt, Scores, Trace
from tests.support.scored import again_from, arm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.noise import Arm, Noise


class _Clock:
    """Time that goes on where a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """The arms' clock, where a token costs a second, in all rows of the ways and the probe."""
    made = _Clock()
    monkeypatch.setattr(arms, "time", SimpleNamespace(perf_counter=made))
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=made))

    def score(_model: Any, prompt: Prompt, trace: Trace, *, rows: int = 1, **_: int) -> Any:
        made.now += rows * (len(prompt.tokens) + len(trace.tokens)) / 6
        return trace

    def as_arm(name: str, prompt: Prompt, _expected: Any, _logits: Any) -> Arm:
        return arm(0.0, prompt_id=prompt.id, arm=name)

    monkeypatch.setattr(arms, "_score", score)
    monkeypatch.setattr(arms, "_arm", as_arm)
    monkeypatch.setattr(arms, "_probe", lambda *_, **__: ())
    return made


def _pair(size: int) -> tuple[Prompt, Trace]:
    """Make a prompt and answer of so many tokens together."""
    scored = (Scores(ids=(5, 6), logprobs=(-0.5, -1.5), logsumexp=1.0),)
    prompt = Prompt(id=f"n{size}", tokens=tuple(range(size - 1)))
    return prompt, Trace(prompt_id=prompt.id, tokens=(5,), finish="length", scores=scored)


def _measured(
    pairs: Sequence[tuple[Prompt, Trace]], seconds: float, *, cast: bool = False
) -> Noise:
    found = Scored(tuple(pairs), seconds)
    again = again_from(pairs)
    return measure(object(), found, again, dtype="bfloat16", exact=False, cast=cast)


def _names(found: Noise) -> list[str]:
    return list(dict.fromkeys(each.prompt_id for each in found.arms))


@pytest.mark.parametrize(
    ("seconds", "names"),
    [
        (0.0, ""),
        (49.2, ""),  # 10 + 11 + 12 are done, and the next could take 1.25 * 13
        (49.3, "n13"),
        (50.4, "n13"),
        (50.6, "n14"),
        (51.7, "n14"),
        (51.8, "n15"),
        (57.9, "n15"),
        (58.1, "n20"),
        (71.7, "n20 n14"),
        (71.8, "n20 n15"),
    ],
)
def test_the_time_is_bounded(clock: _Clock, seconds: float, names: str) -> None:
    """Three prompts whatever it takes; others only where what those took leaves time."""
    pairs = [_pair(10 + n) for n in range(20)]
    start = clock.now

    found = _measured(pairs, seconds / arms.SHARE)

    assert _names(found) == ["n10", "n11", "n12", *names.split()]
    assert clock.now - start <= max(seconds, 33)


def test_what_comes_after_the_arms_is_reckoned_with(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is cast is scored once more, and in float32: fewer prompts fit."""
    monkeypatch.setattr(arms, "_cast", lambda _: None)
    monkeypatch.setattr(arms, "_in_float32", lambda prompt, *_: arm(0.0, prompt_id=prompt.id))
    pairs = [_pair(10 + n) for n in range(20)]
    limit = (33 * 7 / 6 + 1.25 * 13 * 7 / 6) / arms.SHARE  # 7 rows instead of 6

    less, more = (_names(_measured(pairs, limit + by, cast=True)) for by in (-1.0, 1.0))

    assert clock.now > 100
    assert (less, more) == (["n10", "n11", "n12"], ["n10", "n11", "n12", "n13"])


@pytest.mark.parametrize("by", ["rows", "chunks"])
def test_a_cold_device_does_not_count(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The first call of each kind compiles kernels: minutes of that shut no prompt out."""
    pairs = [_pair(10 + n) for n in range(20)]
    score, seen = arms._score, set[int]()

    def cold(model: Any, prompt: Prompt, trace: Trace, **options: int) -> Any:
        clock.now += 0.0 if options[by] in seen else 600.0
        seen.add(options[by])
        return score(model, prompt, trace, **options)

    monkeypatch.setattr(arms, "_score", cold)
    found = _measured(pairs, 65.0 / arms.SHARE)

    assert clock.now > 1200
    assert _names(found) == ["n10", "n11", "n12", "n20"]


@pytest.mark.parametrize(("seconds", "more"), [(398.0, []), (400.0, ["n60"])])
def test_two_rows_are_twice_the_tokens(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, more: list[str]
) -> None:
    """So prompts of one length tell what a call takes whatever is in it, here 12 seconds."""
    score = arms._score

    def dear(model: Any, prompt: Prompt, trace: Trace, **options: int) -> Any:
        clock.now += 12.0
        return score(model, prompt, trace, **options)

    monkeypatch.setattr(arms, "_score", dear)
    pairs = [*[_pair(6)] * 3, _pair(60)]

    # In each of 6 rows 12 s and 1/6 s for each token: 3 * 78, and 1.25 * 132 to come.
    found = _measured(pairs, seconds / arms.SHARE)

    assert _names(found) == ["n6", *more]


# --- What a prompt would take ----------------------------------------------------------------


def _costs(clock: _Clock, timed: Sequence[tuple[int, float]], tokens: int, rows: int) -> float:
    """Return what a prompt is thought to take: the least time with which it is allowed."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        made = Budget(middle, rows=rows, fewest=0)
        for size, seconds in timed:
            with made.timing(size):
                clock.now += seconds
        low, high = (low, middle) if made.allows(tokens) else (middle, high)
    return high


@pytest.mark.parametrize(
    ("timed", "tokens", "expected"),
    [
        ([(10, 2.0)], 30, 6.0),  # one size: so much a token
        ([(10, 2.0)], 5, 1.0),
        ([(10, 2.0), (30, 4.0)], 50, 6.0),  # a second, and a tenth for each token
        ([(30, 4.0), (10, 2.0)], 20, 3.0),  # in any order
        ([(10, 2.0), (30, 4.0)], 5, 1.5),
        ([(10, 2.0), (20, 99.0), (30, 4.0)], 50, 6.0),  # what is between them is no matter
        ([(10, 1.0), (30, 9.0)], 5, 2.0),  # dearer than a line: never less than its slope
        ([(10, 4.0), (30, 2.0)], 50, 2.0),  # the first was cold: fewer take no longer
        ([(10, 4.0), (20, 2.0), (30, 3.0)], 50, 4.0),
        ([(10, 90.0), (10, 2.0), (30, 4.0), (30, 80.0)], 50, 6.0),  # the quickest of each
        ([(10, 2.0), (30, 90.0)], 50, 220.0),  # only ever seen dear
    ],
)
@pytest.mark.parametrize("rows", [1, 6])
def test_a_prompt_takes_what_a_line_says(
    clock: _Clock,
    timed: list[tuple[int, float]],
    tokens: int,
    expected: float,
    rows: int,
) -> None:
    """Through the quickest scorings of the fewest and the most tokens, and a quarter more."""
    found = _costs(clock, timed, tokens, rows)

    assert found == pytest.approx(1.25 * rows * expected, rel=1e-6)


@pytest.mark.parametrize("fewest", [1, 3])
def test_so_many_prompts_are_always_allowed(clock: _Clock, fewest: int) -> None:
    """Also where there is no time at all, and where they took more than there was."""
    made = Budget(0.0, rows=1, fewest=fewest)
    told: list[bool] = []
    for _ in range(fewest):
        told.append(made.allows(10))
        with made.timing(10):
            clock.now += 50.0
        told.append(made.allows(10**6))
        made.spend(10)

    assert all(told)
    assert not made.allows(1)


def test_what_is_spent_is_gone(clock: _Clock) -> None:
    """In what prompts of those sizes take, and not by the clock."""
    made = Budget(100.0, rows=2, fewest=1)
    for seconds in (700.0, 10.0):
        with made.timing(10):
            clock.now += seconds
    made.spend(10)

    assert (made.allows(32), made.allows(33)) == (True, False)  # 80 are left
    made.spend(20)
    assert (made.allows(16), made.allows(17)) == (True, False)
    with made.timing(10):
        clock.now += 5.0  # so the 30 of before took 30 as well
    assert (made.allows(56), made.allows(57)) == (True, False)


def test_a_scoring_that_failed_says_nothing_of_time(clock: _Clock) -> None:
    """One that raised at once would make all others look dear."""
    made = Budget(100.0, rows=1, fewest=1)
    message = "out of memory"
    with pytest.raises(RuntimeError, match=message), made.timing(10):
        raise RuntimeError(message)
    with made.timing(10):
        clock.now += 1.0
    made.spend(10)

    assert not made.allows(10**4)


# --- The share -------------------------------------------------------------------------------


def test_the_whole_stays_under_its_share() -> None:
    """Arms and repetitions together take what is promised, and not much of it is left."""
    assert 0.09 < arms.SHARE + arms._REPEAT_SHARE < 0.12


@pytest.mark.parametrize(
    ("steps", "part"),
    [((1,), 1), ((24, 24), 1), ((40, 8), 1), ((96,), 1 / 2), ((200, 16), 0.471)],
)
def test_the_share_falls_with_the_length_of_answers(
    steps: tuple[int, ...], part: float
) -> None:
    """With the root of the average, above 24 steps."""
    pairs = [_pair(5) for _ in steps]
    long = tuple(
        (prompt, replace(trace, tokens=(5,) * size))
        for (prompt, trace), size in zip(pairs, steps, strict=True)
    )

    assert arms._share(Scored(long, 1.0)) == pytest.approx(arms.SHARE * part, rel=1e-3)
    assert arms._share(Scored((), 1.0)) == arms.SHARE


@pytest.mark.usefixtures("clock")
def test_longer_answers_are_scored_in_their_beginning() -> None:
    """But for the first; as many steps as an answer has on the average, within bounds."""
    sizes = {"short": 40, "usual": 50, "long": 120}
    pairs = [
        (Prompt(id=name, tokens=(1, 2)), replace(_pair(3)[1], prompt_id=name, tokens=(5,) * n))
        for name, n in sizes.items()
    ]
    seen: dict[str, int] = {}

    def as_arm(name: str, prompt: Prompt, logits: Any, _base: Any) -> Arm:
        seen[prompt.id] = len(logits.tokens)
        return arm(0.0, prompt_id=prompt.id, arm=name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "_arm", as_arm)
        found = _measured(pairs, 1e9)

    assert seen == {"short": 40, "usual": 50, "long": 64}
    assert {each.prompt_id for each in found.arms if not each.whole} == {"long"}
    assert [arms._begun(_made(n), Scored(_answers(n), 1.0)).tokens for n in (3, 9, 99)] == [
        (5,) * 3,
        (5,) * 9,
        (5,) * 64,
    ]


def _made(steps: int) -> Trace:
    return replace(_pair(3)[1], tokens=(5,) * steps)


def _answers(steps: int) -> tuple[tuple[Prompt, Trace], ...]:
    return ((_pair(3)[0], _made(steps)),)


def test_more_time_only_adds_prompts(clock: _Clock) -> None:
    """What is scored with less time is scored, in the same order, with more."""
    pairs = [_pair(10 + n) for n in range(15)]

    found = [_names(_measured(pairs, limit / arms.SHARE)) for limit in (0, 60, 120, 200, 999)]

    assert clock.now > 100
    for less, more in itertools.pairwise(found):
        assert set(less) <= set(more)
    assert [len(names) for names in found] == sorted(len(names) for names in found)
    assert len(found[0]) == 3
    assert len(found[-1]) == len(pairs)


def test_shorter_and_longer_prompts_are_spread() -> None:
    """The three shortest first; then the middle before what is between."""
    pairs = [_pair(size) for size in (80, 10, 50, 30, 70, 20, 60, 40)]

    order = [prompt.id for prompt, _ in arms._spread(pairs)]

    assert order == ["n10", "n20", "n30", "n50", "n70", "n40", "n60", "n80"]


def test_prompts_that_are_too_long_are_left_out(clock: _Clock) -> None:
    """Of 2,048 tokens, prompt and answer, is scored; of one more is not."""
    pairs = [_pair(2048), _pair(2049), _pair(5)]

    found = _measured(pairs, 1e9)

    assert clock.now > 100
    assert _names(found) == ["n5", "n2048"]


@pytest.mark.usefixtures("clock")
def test_long_prompts_too_are_decoded_again() -> None:
    """That a reference agrees with itself is never told of nothing."""
    found = _measured([_pair(2049)], 1e9)

    assert found.arms == ()
    assert found.repeated == 1


def test_prompts_are_told_apart_by_place_not_by_content() -> None:
    """The same prompt and answer three times is three of them, and comes to an end."""
    assert len(arms._spread([_pair(5)] * 3)) == 3


def test_repeating_has_a_share_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One prompt whatever it takes; then as long as a hundredth of the time lasts."""
    made = _Clock()
    monkeypatch.setattr(arms, "time", SimpleNamespace(perf_counter=made))
    pairs = [_pair(size) for size in (5, 6, 7, 8)]
    answers = again_from(pairs)

    def again(prompt: Prompt, steps: int) -> Trace:
        made.now += 1.0
        return answers(prompt, steps)

    repeated = [
        measure(None, Scored(tuple(pairs), s), again, dtype="float32", exact=True).repeated
        for s in (0.0, 150.0, 1000.0)
    ]

    assert repeated == [1, 2, 4]
