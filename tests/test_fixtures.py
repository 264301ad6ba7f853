"""The fixture models answer, stop by themselves, and can be built again."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "fixtures" / "models"
PROMPTS = ROOT / "mlxcheck" / "data" / "prompts.json"
NAMES = (
    "qwen2_moe-float32",
    "qwen2_moe-8bit",
    "qwen3_moe-float32",
    "qwen3_moe-8bit",
    "qwen3-float32",
    "qwen3-8bit",
    "gemma3_text-float32",
    "lfm2-float32",
    "gemma2-float32",
)
TIED = ("lfm2-float32", "gemma2-float32")
"""Their head is the embedding, transposed: mlx-lm's classes have no other."""

MEGABYTE = 10**6
CHAT_END, TEXT_END = "<|im_end|>", "<|endoftext|>"


SPECIALS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gemma3_text-float32", {"sliding_window": 2048}),
    ("gemma3_text-float32", {"sliding_window": 15}),
    ("gemma3_text-float32", {"sliding_window_pattern": 3}),
    ("gemma3_text-float32", {"rope_local_base_freq": 1e6}),
    ("gemma3_text-float32", {"rope_theta": 1e4}),
    ("gemma3_text-float32", {"query_pre_attn_scalar": 32}),
    ("gemma2-float32", {"attn_logit_softcapping": 1e9}),
    ("gemma2-float32", {"final_logit_softcapping": 1e9}),
    ("gemma2-float32", {"query_pre_attn_scalar": 32}),
    ("lfm2-float32", {"rope_theta": 1e4}),
)
"""What a family is there for, set to what an engine would take by mistake."""


def _numbers(first: int, last: int) -> str:
    return "Numbers: " + " ".join(str(n) for n in range(first, last + 1)) + "."


# By prompt id: what must be said, and which of the two stop ids must end it.
ANSWERS = {
    "sum-2-2": ("2+2 equals 4.", CHAT_END),
    "sum-7-5": ("7+5 equals 12.", CHAT_END),
    "sum-9-9": ("9+9 equals 18.", CHAT_END),
    "capital-france": ("The capital of France is Paris.", CHAT_END),
    "capital-iceland": ("The capital of Iceland is Reykjavik.", CHAT_END),
    "filler-sum-3-4": ("3+4 equals 7.", CHAT_END),
    "filler-capital-norway": ("The capital of Norway is Oslo.", CHAT_END),
    "filler-sum-8-6": ("8+6 equals 14.", CHAT_END),
    "filler-capital-kenya": ("The capital of Kenya is Nairobi.", CHAT_END),
    "repeat-3": ("Again: umbrella jacket zebra.", CHAT_END),
    "repeat-11": (
        "Again: island violin bread grape drum marble quilt zebra needle jacket wagon.",
        CHAT_END,
    ),
    "recall-near": ("The word was violin.", CHAT_END),
    "recall-far": ("The word was candle.", CHAT_END),
    "count-1-44": (_numbers(1, 44), TEXT_END),
    "count-9-45": (_numbers(9, 45), TEXT_END),
    "complete-sum-6-3": (" 9.", TEXT_END),
    "complete-capital-spain": (" Madrid.", TEXT_END),
}


def _prompts() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(PROMPTS.read_text(encoding="utf-8"))
    return entries


def _json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _ids(tokenizer: Any, entry: dict[str, Any]) -> list[int]:
    if "text" in entry:
        return list(tokenizer.encode(entry["text"], add_special_tokens=False))
    turn = [{"role": "user", "content": entry["user"]}]
    return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True))


@pytest.fixture(scope="module", params=NAMES)
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """Each model with its tokenizer, loaded once."""
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(MODELS / request.param))[:2]
    yield model, tokenizer
    del model


def test_answers_and_ends(loaded: tuple[Any, Any]) -> None:
    """Greedy answers are right, and end by themselves with the stop id of their kind."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    model, tokenizer = loaded
    entries = {entry["id"]: entry for entry in _prompts()}
    said = {}
    for name in ANSWERS:
        tokens: list[int] = []
        prompt = mx.array(_ids(tokenizer, entries[name]))
        for token, _ in generate_step(prompt, model, max_tokens=64):
            tokens.append(token)
            if token in tokenizer.eos_token_ids:
                break
        end = tokenizer.convert_ids_to_tokens(tokens[-1])
        said[name] = (tokenizer.decode(tokens[:-1]), end)
    assert said == ANSWERS


@pytest.mark.parametrize("name", NAMES)
def test_folder(name: str) -> None:
    """A folder is small and says what engines look for: two stops, and where the head is."""
    folder = MODELS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3 * MEGABYTE
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    config = _json(folder / "config.json")
    assert config["tie_word_embeddings"] is (name in TIED)
    assert ("quantization" in config) == name.endswith("-8bit")
    stops = _json(folder / "generation_config.json")["eos_token_id"]
    added = _json(folder / "tokenizer.json")["added_tokens"]
    text = {token["id"]: token["content"] for token in added}
    assert [text[stop] for stop in stops] == [CHAT_END, TEXT_END]
    assert config["eos_token_id"] == stops[0]


@pytest.mark.parametrize("name", NAMES)
def test_weights(name: str) -> None:
    """Float32 is all float32; 8-bit is bf16 with packed experts; a head is there or tied."""
    import mlx.core as mx

    weights = mx.load(str(MODELS / name / "model.safetensors"))
    assert isinstance(weights, dict)
    assert ("lm_head.weight" in weights) == (name not in TIED)
    kinds = {value.dtype for value in weights.values()}
    if name.endswith("-float32"):
        assert kinds == {mx.float32}
        return
    assert kinds == {mx.bfloat16, mx.uint32}
    experts = [key for key in weights if "switch_mlp" in key and key.endswith(".weight")]
    assert bool(experts) == ("moe" in name)
    assert all(weights[key].dtype == mx.uint32 for key in experts)


def _last(name: str, changed: dict[str, Any] | None = None) -> Any:
    """The logits after a long prompt, of a model with some of its settings *changed*."""
    import mlx.core as mx
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(MODELS / name), model_config=changed or {})[:2]
    entry = next(entry for entry in _prompts() if entry["id"] == "filler-capital-kenya")
    return model(mx.array([_ids(tokenizer, entry)]))[0, -1]


@pytest.mark.parametrize(("name", "changed"), SPECIALS, ids=str)
def test_specials_matter(name: str, changed: dict[str, Any]) -> None:
    """An engine that overlooks what a family is there for says something else."""
    assert abs(_last(name) - _last(name, changed)).max().item() > 0.01


def test_state_matters() -> None:
    """The convolutions of lfm2 need the state of their own row, between steps too."""
    import mlx.core as mx
    import mlx_lm
    from mlx_lm.models.cache import ArraysCache, KVCache, make_prompt_cache

    model, tokenizer = mlx_lm.load(str(MODELS / "lfm2-float32"))[:2]
    prompt = _ids(tokenizer, _prompts()[0])
    found = []
    for forgotten in (False, True):
        cache = make_prompt_cache(model)
        assert [type(each) for each in cache] == [ArraysCache, KVCache] * 2
        model(mx.array([prompt[:-1]]), cache=cache)
        if forgotten:
            cache[0][0] = mx.zeros_like(cache[0][0])
        found.append(model(mx.array([prompt[-1:]]), cache=cache)[0, -1])
    assert abs(found[0] - found[1]).max().item() > 0.01


def test_prompts_are_well_formed() -> None:
    """Ids are unique and plain, each entry has one source, and `of` points backwards."""
    seen: set[str] = set()
    for entry in _prompts():
        name = entry["id"]
        assert re.fullmatch(r"[a-z0-9-]+", name)
        assert name not in seen
        if "length" in entry:
            assert set(entry) == {"id", "length", "of"}
            assert entry["of"] in seen
            assert name == f"len-{entry['length']}"
        else:
            assert set(entry) in ({"id", "user"}, {"id", "text"})
        seen.add(name)
    assert {"sum-2-2", "capital-france", *ANSWERS} <= seen
    lengths = {entry["length"] for entry in _prompts() if "length" in entry}
    assert lengths == {1, 2, 8, 9, 31, 32, 33}


def test_prompt_lengths(loaded: tuple[Any, Any]) -> None:
    """Some prompts are equally long, the longest has hundreds of tokens, prefixes fit."""
    _, tokenizer = loaded
    entries = _prompts()
    lengths = {e["id"]: len(_ids(tokenizer, e)) for e in entries if "length" not in e}
    assert len({n for name, n in lengths.items() if name.startswith("sum-")}) == 1
    assert 400 < max(lengths.values()) < 600
    for entry in entries:
        if "length" in entry:
            assert entry["length"] < lengths[entry["of"]]


def test_build_is_reproducible(tmp_path: Path) -> None:
    """Two short builds from the same seed write the same bytes."""
    hashes = []
    for run in ("one", "two"):
        out = tmp_path / run
        command = [sys.executable, str(ROOT / "fixtures" / "build.py"), "--steps", "2"]
        command += ["--only", "qwen3-float32", "--no-check", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        folder = out / "qwen3-float32"
        files = sorted(folder.iterdir())
        hashes.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files})
    assert hashes[0] == hashes[1]
    assert "model.safetensors" in hashes[0]
