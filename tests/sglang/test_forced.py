"""Teacher forcing: the runner goes on from what it is given, and shows what it would say.

Where MLX has no Metal, all differences measured here are 0. The tolerances leave room for
kernels whose sums depend on how many rows there are.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends.sglang import (
    SglangBackend,
    SglangLazyBackend,
    SglangRadixBackend,
    SglangRadixLazyBackend,
)
from tests.sglang.driving import MODELS, Drive, Expected, model_ref, opening, random_prompts
from tests.sglang.driving import run as run_free

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.backends.base import Emission
    from mlxcheck.records import ModelRef
    from tests.sglang.driving import Tokens

VARIANTS = (SglangBackend, SglangRadixBackend, SglangLazyBackend, SglangRadixLazyBackend)
LENGTHS = (1, 2, 8, 9, 31, 32, 33, 120)
ANSWER = 20
HOOKED = "_select_tokens_with_logprobs"
TOP = 64
TOLERANCE = 1e-3  # nats, in float32
TOLERANCE_8BIT = 0.5  # bfloat16: logits of 16 to 32 are 1/8 apart


class Taught:
    """Plain mlx-lm's raw logits, made to go on from given tokens one by one."""

    def __init__(self, model: ModelRef) -> None:
        import mlx_lm

        self._model: Any = mlx_lm.load(model.path)[0]

    def __call__(self, prompt: Tokens, forced: Tokens) -> list[Any]:
        """Return the row that each of *forced* was chosen from, or might have been."""
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache

        cache = make_prompt_cache(self._model)
        rows = [
            self._model(mx.array([tokens]), cache=cache)[0, -1]
            for tokens in (prompt, *((token,) for token in forced[:-1]))
        ]
        mx.eval(rows)
        return rows


@pytest.fixture(scope="module")
def taught(model: ModelRef) -> Taught:
    """Return plain mlx-lm on the model of most tests."""
    return Taught(model)


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
def opened(request: pytest.FixtureRequest, model: ModelRef) -> Iterator[Any]:
    """Yield a function that opens one variant with options; all are closed at the end."""
    with opening(request.param, model) as open_one:
        yield open_one


def _normalised(row: Any) -> Any:
    import mlx.core as mx

    row = row.reshape(-1).astype(mx.float32)
    return row - mx.logsumexp(row)


def _distance(shown: Any, wanted: Any) -> float:
    """Return the largest difference of log-probabilities over the reference's best."""
    import mlx.core as mx

    one, other = _normalised(shown), _normalised(wanted)
    best = mx.argsort(-other)[:TOP]
    return float(mx.abs(one[best] - other[best]).max())


def _distances(shown: Sequence[Emission], wanted: Sequence[Any]) -> list[float]:
    return [_distance(e.logits, row) for e, row in zip(shown, wanted, strict=True)]


def _best(row: Any) -> int:
    import mlx.core as mx

    return int(mx.argmax(row))


def _run_forced(
    backend: SglangBackend, pairs: Sequence[tuple[Tokens, Tokens]], *, name: str = "f"
) -> list[list[Emission]]:
    """Submit all prompts with the answers to give, and return what each was shown."""
    drive = Drive(backend)
    for number, (prompt, forced) in enumerate(pairs):
        drive.submit(f"{name}{number}", prompt, len(forced), forced=forced)
    assert drive.finish() == [forced for _, forced in pairs]
    return list(drive.shown.values())


def _nonsense(count: int, *, seed: int) -> list[Tokens]:
    """Return answers that no model would give."""
    return random_prompts((ANSWER,) * count, seed=seed)


def _hooked(backend: SglangBackend) -> bool:
    return HOOKED in vars(backend._runner)


@contextmanager
def _counted(runner: Any, *kinds: str) -> Iterator[dict[str, int]]:
    """Yield how often each of the runner's methods is called."""
    calls = dict.fromkeys(kinds, 0)

    def counting(kind: str) -> Any:
        original = getattr(runner, kind)

        def counted(*args: Any, **options: Any) -> Any:
            calls[kind] += 1
            return original(*args, **options)

        return counted

    for kind in kinds:
        setattr(runner, kind, counting(kind))
    yield calls
    for kind in kinds:
        delattr(runner, kind)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_it_can_be_asked(variant: type[SglangBackend]) -> None:
    """Each variant says so before it is opened."""
    can = variant().capabilities
    assert can.teacher_forcing
    assert can.logits
    assert can.logprobs


def test_mlx_lms_own_answer(opened: Any, expected: Expected, taught: Taught) -> None:
    """Made to say mlx-lm's answer, it would have said it anyway, from the same logits."""
    prompts = random_prompts(LENGTHS, seed=11)
    pairs = list(zip(prompts, expected(prompts, ANSWER), strict=True))
    wanted = [taught(*pair) for pair in pairs]
    backend = opened()
    shown = [_run_forced(backend, [p], name=f"alone{n}-")[0] for n, p in enumerate(pairs)]
    shown += _run_forced(backend, pairs)
    for (_, answer), emissions, rows in zip(pairs * 2, shown, wanted * 2, strict=True):
        assert all(emission.logits.shape == (683,) for emission in emissions)
        assert tuple(_best(emission.logits) for emission in emissions) == answer
        assert max(_distances(emissions, rows)) <= TOLERANCE
    # With the radix cache, the batch was computed from what the lone requests had left.
    assert bool(backend.stats()["cached_tokens"]) is backend.capabilities.prefix_cache


def test_what_it_would_not_have_said(opened: Any, expected: Expected, taught: Taught) -> None:
    """From another token it goes on as mlx-lm goes on from it, and not as before."""
    (prompt,) = random_prompts((17,), seed=12)
    (answer,) = expected([prompt], ANSWER)
    own = taught(prompt, answer)
    backend = opened()
    for step in (0, 1, ANSWER // 2):
        other = (*answer[:step], (answer[step] + 1) % 250, *answer[step + 1 :])
        (shown,) = _run_forced(backend, [(prompt, other)], name=f"{step}-")
        assert max(_distances(shown, taught(prompt, other))) <= TOLERANCE
        assert _best(shown[step].logits) == answer[step]
        apart = _distances(shown, own)
        assert max(apart[: step + 1]) <= TOLERANCE
        assert min(apart[step + 1 :]) > 10 * TOLERANCE


@pytest.mark.parametrize("options", [{}, {"prefill_chunk": 7}, {"max_batch": 3}])
def test_nonsense_in_a_batch(opened: Any, taught: Taught, options: dict[str, int]) -> None:
    """Each row goes on from its own tokens, however prompts are cut and rows are queued."""
    pairs = list(zip(random_prompts(LENGTHS, seed=13), _nonsense(8, seed=14), strict=True))
    # Answers of many lengths: rows leave, and some end while the next step is in flight.
    pairs = [(prompt, forced[: 3 + 2 * row]) for row, (prompt, forced) in enumerate(pairs)]
    for (prompt, forced), shown in zip(
        pairs, _run_forced(opened(**options), pairs), strict=True
    ):
        assert max(_distances(shown, taught(prompt, forced))) <= TOLERANCE


def test_one_token(opened: Any, taught: Taught) -> None:
    """A forced answer of one token is shown at its prefill."""
    prompts = random_prompts((1, 30), seed=15)
    backend = opened()
    for prompt, (emission,) in zip(
        prompts, _run_forced(backend, [(p, (7,)) for p in prompts]), strict=True
    ):
        assert emission.finish == "length"
        assert _distance(emission.logits, taught(prompt, (7,))[0]) <= TOLERANCE
    assert not _hooked(backend)


def test_beside_free_rows(opened: Any, expected: Expected, taught: Taught) -> None:
    """Free rows say what they say alone, and show nothing; all decode in one batch."""
    prompts = random_prompts((5, 40, 12, 33, 1, 21), seed=16)
    answers = _nonsense(6, seed=17)
    drive = Drive(opened())
    for row, (prompt, forced) in enumerate(zip(prompts, answers, strict=True)):
        drive.submit(f"r{row}", prompt, ANSWER, forced=forced if row % 2 else None)
    given = drive.finish()
    assert max(drive.widths) == len(prompts)
    wanted = expected(prompts, ANSWER)
    for row, shown in enumerate(drive.shown.values()):
        if row % 2:
            assert given[row] == answers[row]
            assert max(_distances(shown, taught(prompts[row], answers[row]))) <= TOLERANCE
        else:
            assert given[row] == wanted[row]
            assert all(e.logits is None and e.logprobs is None for e in shown)


def test_joining_free_rows_midway(opened: Any, expected: Expected, taught: Taught) -> None:
    """A forced row that comes late and leaves early is seen whole, and disturbs nobody."""
    long, guest = random_prompts((14, 26), seed=18)
    forced = _nonsense(1, seed=19)[0][:6]
    drive = Drive(opened())
    drive.submit("long", long, 30)
    for _ in range(5):
        drive.step()
    assert not _hooked(drive.backend)
    drive.submit("guest", guest, len(forced), forced=forced)
    while "guest" not in drive.finished:
        drive.step()
    assert not _hooked(drive.backend)
    assert drive.finish() == [*expected([long], 30), forced]
    assert max(_distances(drive.shown["guest"], taught(guest, forced))) <= TOLERANCE


def test_nothing_is_left_on_the_runner(opened: Any, expected: Expected) -> None:
    """The wrapper is there while a forced request is, and only then."""
    prompts = random_prompts((9, 30), seed=20)
    backend = opened()
    before = dict(vars(backend._runner))
    assert run_free(backend, prompts, ANSWER, name="before") == expected(prompts, ANSWER)
    drive = Drive(backend)
    drive.submit("short", prompts[0], 4, forced=(1, 2, 3, 4))
    drive.submit("longer", prompts[1], 9, forced=(5,) * 9)
    while "short" not in drive.finished:
        assert _hooked(backend)
        drive.step()
    assert _hooked(backend)
    drive.finish()
    assert vars(backend._runner).keys() == before.keys()
    assert run_free(backend, prompts, ANSWER, name="after") == expected(prompts, ANSWER)
    assert not backend._runner._req_caches


def test_close_with_a_forced_request_in_flight(opened: Any) -> None:
    """The runner is given back whole."""
    backend = opened()
    runner = backend._runner
    drive = Drive(backend)
    drive.submit("r", (1, 2, 3), 9, forced=(4,) * 9)
    for _ in range(3):
        drive.step()
    backend.close()
    assert HOOKED not in vars(runner)


@pytest.mark.parametrize("steps", [0, 1, 2, 6])
def test_cancel_midway(opened: Any, expected: Expected, taught: Taught, steps: int) -> None:
    """A forced request is dropped while it waits, is prefilled or decodes."""
    prompts = random_prompts((60, 5, 33), seed=21)
    forced, kept = _nonsense(2, seed=22)
    drive = Drive(opened(prefill_chunk=40))
    drive.submit("dropped", prompts[0], ANSWER, forced=forced)
    drive.submit("free", prompts[1], ANSWER)
    drive.submit("kept", prompts[2], ANSWER, forced=kept)
    for _ in range(steps):
        drive.step()
    drive.cancel("dropped")
    given, free, other = drive.finish()
    assert given == forced[: len(given)]
    assert (free, other) == (*expected([prompts[1]], ANSWER), kept)
    assert max(_distances(drive.shown["kept"], taught(prompts[2], kept))) <= TOLERANCE
    assert not _hooked(drive.backend)
    assert drive.backend._ledger.free == drive.backend._ledger.slots


def test_cancel_of_the_last_forced_row(opened: Any, expected: Expected) -> None:
    """The free rows that stay go on unobserved, a step that was in flight included."""
    prompts = random_prompts((8, 19), seed=23)
    drive = Drive(opened())
    drive.submit("dropped", prompts[0], ANSWER, forced=_nonsense(1, seed=24)[0])
    drive.submit("free", prompts[1], ANSWER)
    while len(drive.answers["dropped"]) < 6:
        drive.step()
    drive.cancel("dropped")
    assert not _hooked(drive.backend)
    assert drive.finish()[1:] == expected([prompts[1]], ANSWER)


def test_reported_logprobs(opened: Any) -> None:
    """What SGLang reports is the logits normalised: its 20 best, and the token given."""
    pairs = list(zip(random_prompts((4, 25, 11), seed=25), _nonsense(3, seed=26), strict=True))
    for (_, forced), shown in zip(pairs, _run_forced(opened(), pairs), strict=True):
        for token, emission in zip(forced, shown, strict=True):
            assert emission.logprobs is not None
            assert {token, _best(emission.logits)} <= emission.logprobs.keys()
            assert len(emission.logprobs) in {20, 21}
            own = _normalised(emission.logits)
            for candidate, logprob in emission.logprobs.items():
                assert logprob == pytest.approx(float(own[candidate]), abs=1e-4)


def test_the_same_calls_as_for_free_requests(opened: Any) -> None:
    """Forced answers take the methods of free ones, as often; chained steps included."""
    prompts = random_prompts((6, 15), seed=27)
    backend = opened()
    kinds = (
        "prefill",
        "prefill_start",
        "decode_batch",
        "decode_batch_start",
        "decode_batch_start_chained",
    )
    with _counted(backend._runner, *kinds) as free:
        run_free(backend, prompts, ANSWER)
    answers = _nonsense(2, seed=28)
    with _counted(backend._runner, *kinds) as forced:
        _run_forced(backend, list(zip(prompts, answers, strict=True)))
    assert forced == free
    assert forced["decode_batch_start" if "lazy" in backend.name else "decode_batch"] >= 1


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_8bit(variant: type[SglangBackend]) -> None:
    """With 8-bit weights the logits are bfloat16, as the runner made them, and mlx-lm's."""
    import mlx.core as mx

    model = model_ref(MODELS / "qwen3_moe-8bit")
    prompts = random_prompts((3, 40, 17), seed=29)
    with Expected(model) as answers:
        pairs = list(zip(prompts, answers(prompts, ANSWER), strict=True))
    pairs += list(zip(prompts, _nonsense(3, seed=30), strict=True))
    reference = Taught(model)
    with opening(variant, model) as open_one:
        found = _run_forced(open_one(), pairs)
        for pair, shown in zip(pairs, found, strict=True):
            assert all(emission.logits.dtype == mx.bfloat16 for emission in shown)
            assert max(_distances(shown, reference(*pair))) <= TOLERANCE_8BIT


def _runner_class() -> Any:
    from sglang.srt.hardware_backend.mlx.model_runner import MlxModelRunner

    return MlxModelRunner


def test_a_release_without_the_method(model: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be opened, and says that it cannot be forced."""
    monkeypatch.delattr(_runner_class(), HOOKED)
    with opening(SglangBackend, model) as open_one:
        can = open_one().capabilities
    assert (can.teacher_forcing, can.logits, can.logprobs) == (False, False, False)


def test_a_release_without_logprobs(model: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be forced all the same."""
    monkeypatch.delattr(_runner_class(), "collect_logprobs")
    with opening(SglangBackend, model) as open_one:
        backend = open_one()
        can = backend.capabilities
        assert (can.teacher_forcing, can.logits, can.logprobs) == (True, True, False)
        ((emission,),) = _run_forced(backend, [((1, 2, 3), (4,))])
        assert emission.logits is not None
        assert emission.logprobs is None


def test_a_selection_elsewhere_is_an_error(
    model: ModelRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that chose behind the wrapper's back is not taken at its word."""
    with opening(SglangBackend, model) as open_one:
        backend = open_one()
        monkeypatch.setattr(backend._runner, "prefill", lambda **_: 4)
        with pytest.raises(RuntimeError, match=rf"gave 'f0' a token without calling {HOOKED}"):
            _run_forced(backend, [((1, 2, 3), (4,))])
