"""The adapter around the real runner: who is computed when, and what is left afterwards."""

from __future__ import annotations

import gc
import os
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends.base import Backend
from mlxcheck.backends.sglang import (
    SglangBackend,
    SglangLazyBackend,
    SglangRadixBackend,
    SglangRadixLazyBackend,
)
from mlxcheck.errors import BackendError
from mlxcheck.purity import prove_pure
from tests.sglang.driving import Drive, opening, random_prompts, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.records import ModelRef
    from tests.sglang.driving import Expected

VARIANTS = (SglangBackend, SglangRadixBackend, SglangLazyBackend, SglangRadixLazyBackend)
LENGTHS = (1, 2, 8, 9, 31, 32, 33, 120)
ANSWER = 24


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
def opened(request: pytest.FixtureRequest, model: ModelRef) -> Iterator[Any]:
    """Yield a function that opens one variant with options; all are closed at the end."""
    with opening(request.param, model) as open_one:
        yield open_one


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_it_is_a_backend(variant: type[SglangBackend]) -> None:
    """Each variant is made without arguments, and says what it can be asked."""
    backend = variant()
    assert isinstance(backend, Backend)
    assert backend.capabilities.batch
    assert not backend.capabilities.stop
    assert backend.capabilities.prefix_cache is ("radix" in variant.name)


def test_alone_and_together(opened: Any, expected: Expected) -> None:
    """One request at a time and all at once give plain mlx-lm's tokens."""
    prompts = random_prompts(LENGTHS)
    wanted = expected(prompts, ANSWER)
    backend = opened()
    for number, prompt in enumerate(prompts):
        assert run(backend, [prompt], ANSWER, name=f"alone{number}-") == [wanted[number]]
    assert run(backend, prompts, ANSWER) == wanted
    assert run(backend, prompts[::-1], ANSWER, name="reversed") == wanted[::-1]


def test_all_rows_decode_in_one_step(opened: Any) -> None:
    """Requests that were submitted together share their decode steps."""
    drive = Drive(opened())
    for number, prompt in enumerate(random_prompts((5, 9, 3))):
        drive.submit(f"r{number}", prompt, 8)
    drive.finish()
    assert max(drive.widths) == 3
    drive.submit("next", (1, 2, 3), 8)
    drive.step()
    assert drive.widths[-1] <= 1


def test_more_requests_than_rows_wait(opened: Any, expected: Expected) -> None:
    """Beyond ``max_batch`` a request joins when another has left, and loses nothing."""
    prompts = random_prompts((4, 40, 7, 12, 3, 25, 9))
    drive = Drive(opened(max_batch=3))
    for number, prompt in enumerate(prompts):
        drive.submit(f"r{number}", prompt, 10 + number)
    wanted = [expected([prompt], 10 + n)[0] for n, prompt in enumerate(prompts)]
    assert drive.finish() == wanted
    assert max(drive.widths) == 3


def test_join_and_leave_midway(opened: Any, expected: Expected) -> None:
    """A request that joins late, and one that leaves early, disturb nobody."""
    early, long, late = random_prompts((6, 33, 14), seed=5)
    drive = Drive(opened())
    drive.submit("early", early, 7)
    drive.submit("long", long, 30)
    for _ in range(5):
        drive.step()
    drive.submit("late", late, 12)
    answers = drive.finish()
    assert answers == [expected([p], n)[0] for p, n in ((early, 7), (long, 30), (late, 12))]


def test_one_token_is_prefill_alone(opened: Any, expected: Expected) -> None:
    """``max_tokens=1`` ends with the first token, at its prefill."""
    prompts = random_prompts((1, 17))
    backend = opened()
    assert run(backend, prompts, 1) == expected(prompts, 1)
    assert backend.stats()["batch_width"] == 0


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_cancel_midway_leaves_the_others_alone(
    opened: Any, expected: Expected, victim: int
) -> None:
    """A cancelled request gives nothing more, and its neighbours say what they say alone."""
    prompts = random_prompts((20, 5, 33), seed=9)
    drive = Drive(opened())
    for number, prompt in enumerate(prompts):
        drive.submit(f"r{number}", prompt, ANSWER)
    while len(drive.answers[f"r{victim}"]) < 6:
        drive.step()
    drive.cancel(f"r{victim}")
    given = len(drive.answers[f"r{victim}"])
    answers = drive.finish()
    assert len(answers[victim]) == given
    for number, wanted in enumerate(expected(prompts, ANSWER)):
        assert answers[number] == wanted[: len(answers[number])]
        assert number == victim or len(answers[number]) == ANSWER


def test_cancel_before_and_during_prefill(opened: Any, expected: Expected) -> None:
    """A request can be dropped while it waits, and between two chunks of its prompt."""
    prompts = random_prompts((50, 6, 12), seed=2)
    drive = Drive(opened(prefill_chunk=8))
    for number, prompt in enumerate(prompts):
        drive.submit(f"r{number}", prompt, 9)
    drive.step()
    drive.step()
    drive.cancel("r0")
    drive.cancel("r2")
    answers = drive.finish()
    assert (answers[0], answers[2]) == ((), ())
    assert answers[1] == expected([prompts[1]], 9)[0]


def test_cancel_of_what_is_gone_does_nothing(opened: Any, expected: Expected) -> None:
    """An id that has ended, or was never there, is no trouble."""
    (prompt,) = random_prompts((8,))
    backend = opened()
    run(backend, [prompt], 4)
    backend.cancel("r0")
    backend.cancel("never")
    assert run(backend, [prompt], 4, name="again") == expected([prompt], 4)


def test_a_small_pool_is_drained_and_reused(opened: Any, expected: Expected) -> None:
    """Slots come back: a pool of two requests' size serves a dozen, and ends full again."""
    prompts = random_prompts((30, 25, 40, 12, 33, 8) * 2, seed=4)
    backend = opened(pool_size=130)
    assert run(backend, prompts, 20) == expected(prompts, 20)
    assert backend._ledger.free == 130
    assert backend._ledger.rows.available_size() == backend.capabilities.max_batch
    assert not backend._runner._req_caches


def test_a_request_larger_than_the_pool_is_refused(opened: Any) -> None:
    """It would wait for ever, so it is refused, with the option that helps."""
    backend = opened(pool_size=16)
    with pytest.raises(BackendError, match=r"needs 30 slots.*has 16.*pool_size=30"):
        run(backend, random_prompts((20,)), 10)


@pytest.mark.parametrize("chunk", [1, 7, 16, 500])
def test_chunked_prefill_equals_one_shot(opened: Any, expected: Expected, chunk: int) -> None:
    """Prompts shorter than, as long as, and longer than a chunk give the same tokens."""
    prompts = random_prompts((1, 7, 8, 16, 33, 90), seed=6)
    backend = opened(prefill_chunk=chunk)
    assert run(backend, prompts, 12) == expected(prompts, 12)
    least = max(len(prompts), sum(map(len, prompts)) // chunk)
    assert backend.stats()["prefill_chunks"] >= least


@pytest.mark.parametrize("option", ["pool_size", "max_batch", "prefill_chunk"])
def test_options_below_one_are_refused(option: str) -> None:
    """A size of nothing could not be meant; the text shows it."""
    options: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=rf"{option}=0"):
        SglangBackend(**options)


def test_lazy_queues_a_step_behind_the_one_before(
    model: ModelRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lazy surface is really taken: most decode steps are chained, none is one-shot."""
    backend = SglangLazyBackend()
    backend.open(model)
    steps = ("decode_batch_start_chained", "decode_batch_start", "decode_batch")
    calls = dict.fromkeys((*steps, "prefill_start"), 0)

    def spy(kind: str) -> None:
        original = getattr(backend._runner, kind)

        def counted(*args: Any, **options: Any) -> Any:
            calls[kind] += 1
            return original(*args, **options)

        monkeypatch.setattr(backend._runner, kind, counted)

    for kind in calls:
        spy(kind)
    run(backend, random_prompts((5, 9)), ANSWER)
    monkeypatch.undo()
    backend.close()
    assert calls["prefill_start"] == 2
    assert calls["decode_batch_start_chained"] >= ANSWER - 2
    assert calls["decode_batch_start"] == 1
    assert calls["decode_batch"] == 0


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("finished", [True, False], ids=["idle", "in-flight"])
def test_close_frees_everything(
    variant: type[SglangBackend], model: ModelRef, *, finished: bool
) -> None:
    """After `close` the runner and its model are dead, and MLX's memory is back."""
    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    backend = variant()
    backend.open(model)
    drive = Drive(backend)
    drive.submit("r", random_prompts((40,))[0], 30)
    for _ in range(5):
        drive.step()
    if finished:
        drive.finish()
    assert mx.get_active_memory() > before
    dead = weakref.ref(backend._runner), weakref.ref(backend._runner.model)
    backend.close()
    assert [ref() for ref in dead] == [None, None]
    assert mx.get_active_memory() <= before
    assert mx.get_cache_memory() == 0


def test_close_after_a_failed_open(model: ModelRef) -> None:
    """What opened half can be closed; what was never opened, too."""
    SglangBackend().close()
    backend = SglangBackend()
    broken = type(model)(source="nowhere", path="/nowhere")
    with pytest.raises(Exception, match="nowhere"):
        backend.open(broken)
    backend.close()


def test_open_leaves_mlx_lm_and_the_process_as_they_were(
    model: ModelRef, expected: Expected
) -> None:
    """Nothing of mlx_lm or MLX is replaced, and environment and limits are put back."""
    import mlx.core as mx

    (prompt,) = random_prompts((12,))
    limit = mx.set_cache_limit(2**30)
    environment = dict(os.environ)
    backend = SglangRadixLazyBackend()
    backend.open(model)
    prove_pure()
    answers = run(backend, [prompt], 8)
    backend.close()
    prove_pure()
    assert dict(os.environ) == environment
    assert mx.set_cache_limit(limit) == 2**30
    assert answers == expected([prompt], 8)


def test_it_opens_again(model: ModelRef, expected: Expected) -> None:
    """A fresh backend in the same process starts from nothing."""
    prompts = random_prompts((12, 30))
    for _ in range(2):
        backend = SglangRadixBackend()
        backend.open(model)
        assert run(backend, prompts, 8) == expected(prompts, 8)
        assert backend.stats()["cached_tokens"] == 0
        backend.close()
