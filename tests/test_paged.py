"""The paged runner says what mlx-lm says, whatever is shared, cut up or drained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from fixtures.paged import PagedBackend
from fixtures.paged.prefix import PrefixCache
from mlxcheck.backends.base import Backend, Request
from mlxcheck.errors import BackendError
from tests.support.paged import BAND, BASE, RAGGED, Models, Opener, nonsense, wave

if TYPE_CHECKING:
    from collections.abc import Iterator

RING: dict[str, Any] = {"windowed": "ring", "prefix_cache": False}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return the models that this file uses, each built and decoded once."""
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def opened(models: Models) -> Iterator[Opener]:
    """Return what opens a backend."""
    opener = Opener(models)
    yield opener
    opener.close()


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_moe", {}),
        ("qwen3", {"prefix_cache": False, "prefill_chunk": 5, "block_size": 3}),
        ("gemma3_text", {}),
        ("gemma3_text", {**RING, "prefill_chunk": 7}),
        ("gemma3_text", {**RING, "block_size": 1, "prefill_chunk": 64}),
    ],
)
def test_it_says_what_mlx_lm_says(
    opened: Opener, family: str, sizes: dict[str, Any], *, forced: bool
) -> None:
    """Alone and in a ragged batch whose rows join and leave, beyond the window too."""
    engine = opened(family, **sizes)

    engine.run({"alone": (RAGGED[1], 24)}, forced=forced)
    engine.run(wave(RAGGED, 6), forced=forced)

    assert engine.off() == set()
    assert max(engine.widths) > 2
    free, blocks = engine.settled()
    assert free == blocks


def test_forced_requests_show_their_numbers(opened: Opener) -> None:
    """Logits and the log-probability of the forced token, even of one it would not choose."""
    engine = opened()
    prompt = RAGGED[0]
    forced = (5, 7)
    engine.backend.submit(Request(id="f", tokens=prompt, max_tokens=2, forced=forced))
    said = [one for _ in range(3) for one in engine.backend.step()]

    assert [one.token for one in said] == [5, 7]
    first = engine.model.answer(prompt, 1)[1][0]
    assert float(mx.abs(said[0].logits - first).max()) < BAND
    expected = (first[5] - mx.logsumexp(first)).item()
    assert said[0].logprobs is not None
    assert said[0].logprobs[5] == pytest.approx(expected, abs=BAND)
    assert [one.finish for one in said] == [None, "length"]


def test_a_stop_id_ends_its_own_row_only(opened: Opener) -> None:
    """The id is given, with its reason; the other rows go on."""
    engine = opened()
    two = {"a": (RAGGED[0], 12), "b": (RAGGED[3], 12)}
    answers = {name: engine.model.answer(*asked)[0] for name, asked in two.items()}
    stop = next(token for token in answers["a"][2:] if token not in answers["b"])
    end = answers["a"].index(stop) + 1

    engine.run(two, forced=False, stop=[stop])

    assert [one.token for one in engine.said["a"]] == answers["a"][:end]
    assert engine.said["a"][-1].finish == "stop"
    assert [one.token for one in engine.said["b"]] == answers["b"]
    assert engine.said["b"][-1].finish == "length"


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
def test_prefixes_are_reused_and_change_nothing(opened: Opener, family: str) -> None:
    """Exact, extended and diverging prompts: all but what differs comes from the cache."""
    engine = opened(family)
    tail = tuple(engine.model.answer(BASE, 6)[0][:5])
    cases = {
        "cold": (BASE, 0),
        "exact": (BASE, 25),  # three blocks shared and one token of the fourth copied
        "again": (BASE, 25),
        "answer": ((*BASE, *tail, 300), 31),  # what was said is kept as well
        "extended": ((*BASE, 300, 301), 26),
        "diverging": (BASE[:20] + (400,) * 9, 20),
        "within": (BASE[:16], 15),  # a full block, of which the last token is computed
        "disjoint": (RAGGED[1], 0),
    }
    for name, (prompt, cached) in cases.items():
        before = engine.backend.stats()["cached_tokens"]
        engine.run({name: (prompt, 6)})
        assert engine.backend.stats()["cached_tokens"] - before == cached, name

    assert engine.off() == set()


def test_equal_prompts_of_a_batch_share_blocks(opened: Opener) -> None:
    """The second and third take the full blocks of the first, which still decodes."""
    engine = opened()

    engine.run(wave([BASE] * 3, 6))

    assert engine.off() == set()
    assert engine.backend.stats()["cached_tokens"] == 2 * 24


def test_a_key_is_of_all_tokens_before_it_and_of_the_model(opened: Opener) -> None:
    """Equal blocks after different ones are different; so are those of another model."""
    pool = opened().backend.runner.storage.pool
    one, other = PrefixCache(pool, "one"), PrefixCache(pool, "other")
    second = [
        cache.key(cache.key(cache._root, first), (9, 9))
        for cache, first in ((one, (1, 2)), (one, (1, 3)), (other, (1, 2)))
    ]

    assert len(set(second)) == 3
    assert second[0] == one.key(one.key(one._root, (1, 2)), (9, 9))


def test_eviction_takes_what_was_used_least_recently_and_nothing_in_use(opened: Opener) -> None:
    """Under pressure the oldest prefix goes; a running request keeps its blocks."""
    engine = opened(blocks=12)
    old, recent, filler, live = nonsense(16, 16, 24, 17, seed=7)
    engine.run({"old": (old, 2), "recent": (recent, 2)})
    engine.run({"touch": (recent, 2)})
    engine.submit({"live": (live, 20)})
    engine.step()
    engine.run({"filler": (filler, 2)})
    while engine.said["live"][-1].finish is None:
        engine.step()
    before = engine.backend.stats()["cached_tokens"]
    engine.run({"recent again": (recent, 2)})
    middle = engine.backend.stats()["cached_tokens"]
    engine.run({"old again": (old, 2)})

    assert middle - before == 15
    assert engine.backend.stats()["cached_tokens"] == middle
    assert engine.off() == set()
    free, blocks = engine.settled()
    assert free == blocks == 12


def test_what_a_running_request_holds_is_not_evicted(opened: Opener) -> None:
    """Of a finished and a running one, only the finished one's blocks can be had."""
    engine = opened()
    engine.run({"done": (BASE, 2)})
    engine.submit({"runs": (RAGGED[1], 9)})
    engine.step()
    prefix = engine.backend.runner.storage.prefix
    assert prefix is not None

    assert (len(prefix), prefix.evictable) == (4 + 2, 4)
    assert [prefix.evict() for _ in range(5)] == [True] * 4 + [False]
    assert len(prefix) == 2


def test_blocks_that_a_row_will_grow_into_are_not_given_away(opened: Opener) -> None:
    """Two requests of one block now and five in the end wait for each other in a pool of 8."""
    engine = opened(blocks=8)

    engine.run({f"r{n}": (prompt, 33) for n, prompt in enumerate(nonsense(8, 8, seed=9))})

    assert engine.off() == set()
    assert max(engine.widths) == 1


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_pool_that_fits_one_request_is_drained_to_its_last_block(
    opened: Opener, *, prefix_cache: bool
) -> None:
    """Requests wait for blocks, and each gets all there are; one block more is refused."""
    engine = opened(blocks=5, prefix_cache=prefix_cache)
    storage = engine.backend.runner.storage
    full = wave(nonsense(30, 30, seed=8), 11)
    full = {name: (prompt, 11) for name, (prompt, _) in full.items()}  # 40 positions
    engine.submit(full)
    least = storage.pool.free
    for _ in range(30):
        engine.step()
        least = min(least, storage.pool.free)

    assert engine.off() == set()
    assert least == 0
    assert max(engine.widths) == 1
    assert engine.settled() == (5, 5)
    with pytest.raises(BackendError, match="does not fit in 5 blocks"):
        engine.submit({"more": (full["r0"][0], 12)})


def test_more_rows_than_the_batch_holds_wait(opened: Opener) -> None:
    """No decode step is wider than allowed, and all get their answers in the end."""
    engine = opened(max_batch=2)

    engine.run(wave(RAGGED, 5))

    assert engine.off() == set()
    assert max(engine.widths) == 2


def test_a_prompt_is_prefilled_by_chunks_beside_the_rows_that_decode(opened: Opener) -> None:
    """One chunk a step; the size holds for requests submitted after it was set."""
    engine = opened(prefix_cache=False, prefill_chunk=16)
    engine.run({"first": (RAGGED[4], 4)})
    counts = [engine.backend.stats()["prefill_chunks"]]
    for size in (7, None):
        engine.backend.set_prefill_chunk(size)
        engine.run({f"chunk {size}": (RAGGED[4], 4)})
        counts.append(engine.backend.stats()["prefill_chunks"] - sum(counts))
    engine.submit({"row": (RAGGED[0], 9)})
    engine.step()
    engine.submit({"joins": (RAGGED[4], 4)})
    engine.widths.clear()
    for _ in range(12):
        engine.step()

    assert counts == [3, 6, 3]
    # Three chunks beside one row, three steps of two rows, and the rest of the longer one.
    assert engine.widths == [1, 1, 1, 2, 2, 2, 1, 1, 0, 0, 0, 0]
    assert engine.off() == set()
    with pytest.raises(ValueError, match="expected at least 1"):
        engine.backend.set_prefill_chunk(0)


@pytest.mark.parametrize("sizes", [{}, RING], ids=["pool", "ring"])
@pytest.mark.parametrize("steps", [0, 1, 4], ids=["waiting", "mid-prefill", "mid-decode"])
def test_a_cancelled_request_gives_all_blocks_back(
    opened: Opener, sizes: dict[str, Any], steps: int
) -> None:
    """It says no more, holds nothing, and what it left is right for the next one."""
    engine = opened("gemma3_text", prefill_chunk=16, **sizes)
    engine.submit({"gone": (RAGGED[4], 9)})
    for _ in range(steps):
        engine.step()
    engine.backend.cancel("gone")
    said = engine.said.pop("gone")
    free, blocks = engine.settled()
    storage = engine.backend.runner.storage

    assert len(said) == max(0, steps - 2)
    assert engine.backend.step() == []
    assert free == blocks
    assert storage.prefix is None or storage.prefix.evictable == len(storage.prefix)
    engine.run({"next": (RAGGED[4], 9)})
    assert engine.off() == set()


def test_quantised_keys_keep_the_tokens_of_a_trained_model(opened: Opener) -> None:
    """Eight bits move the logits by little, and by something."""
    engine = opened("qwen3_moe", kv_bits=8)
    prompt = (680, *range(300, 310))
    engine.run({"q": (prompt, 6)})
    exact, rows = engine.model.answer(prompt, 6)
    moved = [
        float(mx.abs(one.logits - row).max())
        for one, row in zip(engine.said["q"], rows, strict=True)
    ]

    assert [mx.argmax(one.logits).item() for one in engine.said["q"]] == exact
    assert 1e-3 < max(moved) < 2.0


@pytest.mark.parametrize(
    ("sizes", "text"),
    [({"blocks": 0}, "blocks=0"), ({"windowed": "ring"}, "prefix_cache=False")],
)
def test_sizes_that_cannot_work_are_refused(sizes: dict[str, Any], text: str) -> None:
    """By name and value, before anything is loaded."""
    with pytest.raises(ValueError, match=text):
        PagedBackend(**sizes)


def test_it_is_a_backend(opened: Opener) -> None:
    """It has what mlxcheck asks of one."""
    assert isinstance(opened().backend, Backend)
