"""The radix cache: what is reused is what would have been computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends.sglang import SglangRadixBackend, SglangRadixLazyBackend
from tests.sglang.driving import Drive, opening, random_prompts, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.records import ModelRef
    from tests.sglang.driving import Expected

ANSWER = 16


@pytest.fixture(
    params=[SglangRadixBackend, SglangRadixLazyBackend], ids=lambda variant: variant.name
)
def opened(request: pytest.FixtureRequest, model: ModelRef) -> Iterator[Any]:
    """Yield a function that opens one variant with options; all are closed at the end."""
    with opening(request.param, model) as open_one:
        yield open_one


def test_the_same_prompt_again(opened: Any, expected: Expected) -> None:
    """All but the last token of a known prompt is reused, a third time as well."""
    (prompt,) = random_prompts((40,))
    backend = opened()
    wanted = expected([prompt], ANSWER)
    cached = 0
    for name in ("first", "second", "third"):
        assert run(backend, [prompt], ANSWER, name=name) == wanted
        assert backend.stats()["cached_tokens"] == cached
        cached += len(prompt) - 1


def test_an_extended_prompt(opened: Any, expected: Expected) -> None:
    """A conversation goes on: prompt, answer and more words find the first turn's slots."""
    prompt, more = random_prompts((25, 10), seed=1)
    backend = opened()
    (answer,) = run(backend, [prompt], ANSWER, name="first")
    longer = prompt + answer + more
    assert run(backend, [longer], ANSWER, name="second") == expected([longer], ANSWER)
    # Of the answer, chained decode steps own no slots: at least the prompt is known.
    assert len(prompt) <= backend.stats()["cached_tokens"] < len(prompt) + len(answer)


def test_diverging_prompts(opened: Any, expected: Expected) -> None:
    """Prompts that part inside a stored stretch each get their own continuation."""
    stem, *tails = random_prompts((30, 8, 8, 1, 20), seed=2)
    prompts = [stem + tail for tail in tails] + [stem, stem[:17]]
    backend = opened()
    for number, prompt in enumerate(prompts):
        name = f"{number}-"
        assert run(backend, [prompt], ANSWER, name=name) == expected([prompt], ANSWER)
    # Two hits on the whole stem and the rest of it, one on the stem less its last token.
    assert backend.stats()["cached_tokens"] >= 3 * len(stem) + len(stem) - 1 + 16
    assert run(backend, prompts, ANSWER, name="together") == expected(prompts, ANSWER)


def test_equal_prompts_in_one_batch(opened: Any, expected: Expected) -> None:
    """Copies that are computed side by side are merged, and none is disturbed."""
    (prompt,) = random_prompts((33,), seed=3)
    backend = opened()
    assert run(backend, [prompt] * 4, ANSWER) == expected([prompt], ANSWER) * 4
    assert backend._ledger.free == backend._ledger.slots


def test_a_hit_on_a_request_that_still_runs(opened: Any, expected: Expected) -> None:
    """A prompt is shared from its prefill on, while its first owner still decodes."""
    (prompt,) = random_prompts((28,), seed=4)
    drive = Drive(opened())
    drive.submit("first", prompt, 30)
    for _ in range(4):
        drive.step()
    drive.submit("second", prompt, ANSWER)
    assert drive.finish() == [*expected([prompt], 30), *expected([prompt], ANSWER)]
    assert drive.backend.stats()["cached_tokens"] == len(prompt) - 1


def test_chunks_after_a_hit(opened: Any, expected: Expected) -> None:
    """What is left of a prompt after its known beginning is chunked as usual."""
    stem, tail = random_prompts((20, 40), seed=5)
    backend = opened(prefill_chunk=9)
    run(backend, [stem], 4, name="first")
    assert run(backend, [stem + tail], ANSWER) == expected([stem + tail], ANSWER)
    assert backend.stats()["cached_tokens"] >= len(stem)


def test_eviction_under_pressure(opened: Any, expected: Expected) -> None:
    """A small pool forgets its oldest prompts, and a forgotten one is computed again."""
    prompts = random_prompts((40,) * 8, seed=6)
    backend = opened(pool_size=150)
    for turn in ("first", "second"):
        for number, prompt in enumerate(prompts):
            name = f"{turn}{number}-"
            assert run(backend, [prompt], ANSWER, name=name) == expected([prompt], ANSWER)
    assert backend.stats()["cached_tokens"] < 8 * 39
    assert backend._ledger.free == 150


def test_what_was_cancelled_is_reused_rightly(opened: Any, expected: Expected) -> None:
    """The slots of a request dropped midway hold what its tokens say, and no more."""
    (prompt,) = random_prompts((22,), seed=7)
    wanted = expected([prompt], 30)[0]
    drive = Drive(opened())
    drive.submit("dropped", prompt, 30)
    while len(drive.answers["dropped"]) < 9:
        drive.step()
    drive.cancel("dropped")
    longer = prompt + wanted[:20]
    assert run(drive.backend, [longer], ANSWER, name="next") == expected([longer], ANSWER)
    assert drive.backend.stats()["cached_tokens"] >= len(prompt)
