"""`mlxcheck.memory` and `mlxcheck.need`: the arithmetic, the machine, and the gate."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models import cache, qwen3

from mlxcheck.errors import UsageError
from mlxcheck.memory import (
    Need,
    Room,
    estimate,
    floor_bytes,
    gate,
    human,
    probe,
    reset_peak,
    usage,
)

MB = 10**6
GB = 10**9

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
}

ROOMY = Room(available=16 * GB, reserve=GB, working_set=11 * GB, active=0, max_buffer=8 * GB)
SMALL = Need(weights=GB, kv_cache=GB, activations=GB, margin=GB, buffer=GB)


def need(**changes: Any) -> Need:
    """Estimate CONFIG with some numbers changed."""
    numbers: dict[str, Any] = {
        "weight_bytes": 1_600_000,
        "config": CONFIG,
        "longest": 300,
        "max_tokens": 64,
        "batch": 2,
        "chunk": 128,
    }
    return estimate(**{**numbers, **changes})


def test_estimate_by_hand() -> None:
    """Each term is what the documented formula gives."""
    found = need()
    layer = 4 * 2 * 128 * (4 * 64 + 3 * 192)
    scores = 4 * 2 * 4 * 128 * 300
    logits = 4 * 128 * 500
    assert found == Need(
        weights=1_600_000,
        kv_cache=2 * 3 * 2 * 16 * 512 * 2 * 4,
        activations=layer + scores + logits,
        margin=64 * 2**20,
        buffer=scores,
    )
    assert found.total == sum((1_600_000, 786_432, layer + scores + logits, 64 * 2**20))


@pytest.mark.parametrize(
    ("longest", "max_tokens", "positions"),
    [(1, 1, 256), (192, 64, 256), (193, 64, 512), (256, 1, 512), (255, 1, 256), (600, 0, 768)],
)
def test_kv_cache_grows_in_steps(longest: int, max_tokens: int, positions: int) -> None:
    """Positions are rounded up to the step in which mlx-lm allocates."""
    found = need(longest=longest, max_tokens=max_tokens, batch=1)
    assert found.kv_cache == 2 * 3 * 2 * 16 * positions * 4


@pytest.mark.parametrize(("factor", "change"), [(2, {"batch": 4}), (0.5, {"kv_itemsize": 2})])
def test_kv_cache_scales(factor: float, change: dict[str, int]) -> None:
    """Rows and the size of a number multiply."""
    before, after = need().kv_cache, need(**change).kv_cache
    assert before is not None
    assert after == before * factor


def test_margin_is_a_tenth_of_a_large_model() -> None:
    """Above 640 MiB the margin grows with the rest."""
    found = need(weight_bytes=20 * GB)
    rest = 20 * GB + (found.kv_cache or 0) + (found.activations or 0)
    assert found.margin == rest // 10


@pytest.mark.parametrize(
    ("missing", "term"),
    [
        ("num_hidden_layers", "kv_cache"),
        ("num_attention_heads", "activations"),
        ("hidden_size", "activations"),
        ("vocab_size", "activations"),
    ],
)
def test_unknown_size_makes_its_term_unknown(missing: str, term: str) -> None:
    """A config that lacks a size is no error; the other terms still count."""
    found = need(config={key: CONFIG[key] for key in CONFIG if key != missing})
    assert getattr(found, term) is None
    assert found.total >= 1_600_000 + 64 * 2**20


def test_nothing_known() -> None:
    """An empty config leaves the margin alone."""
    found = need(weight_bytes=None, config={})
    assert found == Need(
        weights=None, kv_cache=None, activations=None, margin=64 * 2**20, buffer=None
    )
    assert found.total == 64 * 2**20


def test_sizes_under_text_config() -> None:
    """A multimodal config keeps the language model's sizes one level down."""
    nested = {"model_type": "gemma3", "vocab_size": None, "text_config": CONFIG}
    assert need(config=nested) == need()
    assert need(config={**CONFIG, "text_config": {"hidden_size": None}}) == need()


def test_other_names_and_shapes() -> None:
    """Older names are read; heads default to all of them, a list counts by its largest."""
    old = {
        "n_embd": 64,
        "n_layer": 3,
        "n_inner": 192,
        "n_head": 4,
        "vocab_size": 500,
    }
    everything = need(config={**CONFIG, "num_key_value_heads": 4})
    assert need(config=old) == everything
    assert need(config={**CONFIG, "num_key_value_heads": [1, 4, 2]}) == everything


def test_experts_count_by_those_that_work() -> None:
    """In a mixture of experts a token goes through some experts and the shared one."""
    moe = {
        **CONFIG,
        "moe_intermediate_size": 64,
        "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 32,
    }
    more = need(config=moe).activations or 0
    assert more - (need().activations or 0) == 4 * 2 * 128 * 3 * (4 * 64 + 32 - 192)


def test_latent_attention_counts_both_parts_of_a_key() -> None:
    """A key of multi-head latent attention is longer than hidden / heads."""
    latent = {**CONFIG, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8}
    assert need(config=latent).kv_cache == 2 * (need().kv_cache or 0)


VALUES: list[object] = [None, True, 0, -1, 7, 2**40, 0.5, "64", [], [3, 5], [3, None], {}]
ANY = st.sampled_from(VALUES)
KEYS = st.sampled_from([*CONFIG, "num_experts_per_tok", "n_head", "qk_rope_head_dim"])
CONFIGS = st.dictionaries(KEYS, ANY)
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Another test run on the same cores is no finding."""


@PATIENT
@given(st.builds(lambda outer, inner: {**outer, "text_config": inner}, CONFIGS, ANY | CONFIGS))
def test_no_config_is_an_error(config: dict[str, object]) -> None:
    """Whatever stands in a config: each term is a size or unknown."""
    found = need(config=config)
    for term in dataclasses.astuple(found):
        assert term is None or term >= 0


@pytest.fixture(scope="module")
def model() -> Any:
    """Make the model of CONFIG, with its weights in memory."""
    args = qwen3.ModelArgs(
        **CONFIG,
        rms_norm_eps=1e-6,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    )
    made = qwen3.Model(args)
    mx.eval(made.parameters())
    return made


@pytest.mark.parametrize(("longest", "max_tokens"), [(40, 20), (300, 10), (512, 1)])
def test_kv_cache_is_what_mlx_lm_takes(model: Any, longest: int, max_tokens: int) -> None:
    """The KV term equals the caches that a real decode leaves."""
    caches = cache.make_prompt_cache(model)
    prompt = mx.array([token % 500 for token in range(longest)])
    for _ in generate_step(prompt, model, max_tokens=max_tokens, prompt_cache=caches):
        pass
    taken = sum(layer.keys.nbytes + layer.values.nbytes for layer in caches)
    expected = need(longest=longest, max_tokens=max_tokens, batch=1, chunk=2048).kv_cache
    assert taken == expected


@pytest.mark.parametrize(("rows", "longest"), [(1, 700), (4, 300), (9, 64)])
def test_peak_is_within_the_estimate(model: Any, rows: int, longest: int) -> None:
    """A real prefill of a batch peaks below the need without its margin, yet not far below."""
    weights = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    tokens = mx.array([[token % 500 for token in range(longest)]] * rows)
    mx.eval(tokens)
    before = mx.get_active_memory()
    reset_peak()
    caches = cache.make_prompt_cache(model)
    mx.eval(model(tokens, cache=caches)[:, -1], [layer.state for layer in caches])
    peak = mx.get_peak_memory() - before + weights
    found = need(weight_bytes=weights, longest=longest, max_tokens=0, batch=rows, chunk=2048)
    bound = found.total - (found.margin or 0)
    # This engine keeps the logits of every row; the formula counts those of one.
    bound += 4 * (rows - 1) * longest * 500
    assert bound / 5 < peak <= bound + 64 * 2**20


def test_usage_sees_an_array() -> None:
    """Active, peak and resident memory are those of this process."""
    reset_peak()
    before = usage()
    array = mx.ones((1024, 1024))
    mx.eval(array)
    after = usage()
    assert after.active - before.active >= 4 * 2**20
    assert after.peak >= after.active
    assert after.rss == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    del array
    reset_peak()
    assert usage().peak < after.peak


def test_probe_of_this_machine() -> None:
    """RAM is told everywhere, Metal's terms only where Metal is."""
    room = probe()
    total = psutil.virtual_memory().total
    assert room.available is not None
    assert 0 < room.available <= total
    assert room.reserve == min(2**30, total // 20)
    assert room.active == mx.get_active_memory()
    if not mx.metal.is_available() and not mx.cuda.is_available():
        assert (room.working_set, room.max_buffer) == (None, None)


def test_probe_reads_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Metal the driver's own limits are read; one that is missing is unknown."""
    info = {"max_recommended_working_set_size": 5 * GB, "memory_size": 7 * GB}
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: info)
    assert (probe().working_set, probe().max_buffer) == (5 * GB, None)
    info["max_buffer_length"] = 3 * GB
    assert probe().max_buffer == 3 * GB


def test_probe_reads_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the device's free memory is the limit, with what MLX itself holds of it."""
    monkeypatch.setattr(mx, "device_info", lambda: {"free_memory": 4 * GB})
    monkeypatch.setattr(mx, "get_active_memory", lambda: GB)
    monkeypatch.setattr(mx, "get_cache_memory", lambda: 2 * GB)
    assert (probe().working_set, probe().active) == (7 * GB, GB)


@pytest.mark.parametrize("error", [RuntimeError("no /proc"), OSError(), AttributeError()])
def test_probe_without_psutil(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Where psutil cannot say, the terms are unknown and the gate stays open."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    room = probe()
    assert (room.available, room.reserve) == (None, None)
    assert gate(SMALL, room, floor=12 * GB).open


def test_reserve_is_a_share_of_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner with 7 GB keeps most of what is free; a large machine gives up 1 GiB."""
    for total, reserve in ((7 * GB, 350 * MB), (64 * GB, 2**30)):
        memory = SimpleNamespace(available=5 * GB, total=total)
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        assert probe().reserve == reserve


@pytest.mark.parametrize(
    ("text", "size"),
    [("12", 12 * GB), (" 0.5 ", GB // 2), ("0", 0), ("1e1", 10 * GB), ("", None), (" ", None)],
)
def test_floor(text: str, size: int | None) -> None:
    """The floor is a number of GB; blank is none."""
    assert floor_bytes({"MLXCHECK_MIN_FREE_GB": text}) == size


def test_floor_unset() -> None:
    """Without the variable there is no floor."""
    assert floor_bytes({"PATH": "12"}) is None


@pytest.mark.parametrize("text", ["twelve", "-1", "nan", "inf", "12GB", "1,5"])
def test_bad_floor(text: str) -> None:
    """A value that is no number of GB is named with its variable."""
    with pytest.raises(UsageError, match="MLXCHECK_MIN_FREE_GB=") as caught:
        floor_bytes({"MLXCHECK_MIN_FREE_GB": text})
    assert repr(text) in str(caught.value)


def test_gate_is_open_with_every_term() -> None:
    """An open gate prints every term, and its reason has both numbers."""
    found = gate(SMALL, ROOMY, largest_tensor=2 * GB)
    assert found.open
    assert found.terms == (
        "weights 1.0 GB",
        "KV cache 1.0 GB",
        "activations 1.0 GB",
        "margin 1.0 GB",
        "need in all 4.0 GB",
        "available RAM 16.0 GB",
        "reserve 1.0 GB",
        "working set 11.0 GB",
        "active 0 B",
        "largest buffer 2.0 GB",
        "one-buffer limit 8.0 GB",
        "floor not set",
    )
    assert found.reason == "memory: needs 4.0 GB, room 11.0 GB"


def changed(room: Room, **terms: int | None) -> Room:
    """Change some terms of a room."""
    return dataclasses.replace(room, **terms)


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (changed(ROOMY, available=5 * GB - 1), "5.0 GB RAM available less 1.0 GB reserve"),
        (changed(ROOMY, working_set=4 * GB - 1), "room 4.0 GB (4.0 GB working set)"),
        (changed(ROOMY, active=8 * GB), "11.0 GB working set less 8.0 GB active"),
        (changed(ROOMY, reserve=13 * GB), "room 3.0 GB"),
        (changed(ROOMY, available=0), "room -1.0 GB"),
    ],
)
def test_too_little_room(room: Room, words: str) -> None:
    """The smaller of RAM and working set decides; the reason has need, room and a way out."""
    found = gate(SMALL, room)
    assert not found.open
    assert words in found.reason
    assert "needs 4.0 GB (weights 1.0 GB, KV cache 1.0 GB" in found.reason
    assert "smaller model" in found.reason
    assert "\n" not in found.reason


def test_just_enough_is_enough() -> None:
    """The limit itself passes; a byte less does not."""
    for spare, open_ in ((0, True), (-1, False)):
        by_ram = changed(ROOMY, available=5 * GB + spare)
        by_device = changed(ROOMY, working_set=4 * GB + spare)
        by_buffer = changed(ROOMY, max_buffer=GB + spare)
        assert [gate(SMALL, room).open for room in (by_ram, by_device, by_buffer)] == [
            open_
        ] * 3


def test_one_buffer_limit() -> None:
    """An array larger than the device's largest buffer closes the gate, room or not."""
    found = gate(SMALL, ROOMY, largest_tensor=9 * GB)
    assert not found.open
    assert "one array needs 9.0 GB" in found.reason
    assert "8.0 GB in one buffer" in found.reason


def test_floor_closes_the_gate() -> None:
    """Below the floor the reason names the variable, however small the need."""
    assert gate(SMALL, ROOMY, floor=16 * GB).open
    found = gate(SMALL, ROOMY, floor=16 * GB + 1)
    assert not found.open
    assert "16.0 GB RAM available, below the floor of 16.0 GB" in found.reason
    assert "MLXCHECK_MIN_FREE_GB" in found.reason
    assert found.terms[-1] == "floor 16.0 GB"


def test_unknown_room_never_blocks() -> None:
    """A machine that tells nothing gets the benefit of the doubt, in words."""
    nothing = Room(available=None, reserve=None, working_set=None, active=None, max_buffer=None)
    found = gate(SMALL, nothing, floor=12 * GB, largest_tensor=100 * GB)
    assert found.open
    assert found.reason == "memory: needs 4.0 GB, room unknown"
    for line in ("available RAM", "reserve", "working set", "active", "one-buffer limit"):
        assert f"{line} unknown" in found.terms


def test_unknown_need_never_blocks_by_itself() -> None:
    """An unknown term counts nothing; the known ones still can close the gate."""
    vague = Need(weights=None, kv_cache=None, activations=None, margin=GB)
    assert gate(vague, ROOMY).open
    assert "weights unknown" in gate(vague, ROOMY).terms
    assert "largest buffer unknown" in gate(vague, ROOMY).terms
    assert not gate(dataclasses.replace(vague, weights=20 * GB), ROOMY).open


SIZES = st.none() | st.integers(min_value=0, max_value=100)


@PATIENT
@given(st.tuples(*[SIZES] * 5), st.tuples(*[SIZES] * 5), SIZES, SIZES)
def test_gate_is_open_unless_a_known_number_closes_it(
    needs: tuple[int | None, ...],
    rooms: tuple[int | None, ...],
    floor: int | None,
    largest: int | None,
) -> None:
    """For any mix of known and unknown terms the answer is that of the rule."""
    wanted = Need(**dict(zip(Need.__dataclass_fields__, needs, strict=True)))
    room = Room(**dict(zip(Room.__dataclass_fields__, rooms, strict=True)))
    total = sum(term or 0 for term in needs[:4])
    buffer = max(needs[4] or 0, largest or 0)
    shut = (
        (room.available is not None and total > room.available - (room.reserve or 0))
        or (room.working_set is not None and total > room.working_set - (room.active or 0))
        or (room.max_buffer is not None and buffer > room.max_buffer)
        or (room.available is not None and floor is not None and room.available < floor)
    )
    found = gate(wanted, room, floor=floor, largest_tensor=largest)
    assert found.open is not shut
    assert len(found.terms) == 12
    assert ("too little memory" in found.reason) is shut


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_600_000, "1.6 MB"),
        (12 * GB, "12.0 GB"),
        (-GB, "-1.0 GB"),
        (1500 * GB, "1.5 TB"),
    ],
)
def test_human(size: int | None, text: str) -> None:
    """Sizes are decimal, with one digit behind the point."""
    assert human(size) == text


def test_importing_costs_nothing() -> None:
    """The module loads neither mlx nor psutil until it is asked something."""
    code = (
        "import sys, mlxcheck.memory, mlxcheck.release, mlxcheck.purity\n"
        "print([m for m in ('mlx', 'mlx_lm', 'psutil', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
