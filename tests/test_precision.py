"""Precision passes: the float32 copy of a checkpoint, what it costs, and TF32."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlxcheck import checkpoint, precision
from mlxcheck.checkpoint import Checkpoint, inspect
from mlxcheck.errors import ModelError
from mlxcheck.precision import (
    cast_bytes,
    cast_copy,
    native_dtype,
    room_for_copy,
    tf32_is_off,
    turn_tf32_off,
)
from mlxcheck.reference import load_model, read_tokenizer
from tests.support.checkpoints import TENSORS, configure, safetensors, said, written

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
QUANTISED = ["qwen3-8bit", "qwen3_moe-8bit", "qwen2_moe-8bit"]
GB = 10**9


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any) -> Path:
    """Give each test a folder of its own for temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def native() -> Checkpoint:
    """The smallest quantised fixture."""
    return inspect(MODELS / "qwen3_moe-8bit")


def hashes(folder: str | Path) -> dict[str, str]:
    """Hash every file of a folder by its name."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in Path(folder).iterdir()
    }


def tensors_of(folder: str | Path) -> dict[str, mx.array]:
    """Load every weight of a folder as MLX does."""
    found: dict[str, mx.array] = {}
    for file in Path(folder).glob("model*.safetensors"):
        loaded: Any = mx.load(str(file))
        found.update(loaded)
    return found


def sharded(folder: Path) -> Path:
    """Write the smallest quantised fixture as two weight files with an index."""
    source = MODELS / "qwen3_moe-8bit"
    for file in source.glob("*.json"):
        shutil.copyfile(file, folder / file.name)
    weights = sorted(tensors_of(source).items())
    where = {}
    for number, part in enumerate((weights[:30], weights[30:]), 1):
        name = f"model-0000{number}-of-00002.safetensors"
        mx.save_safetensors(str(folder / name), dict(part), metadata={"format": "mlx"})
        where.update(dict.fromkeys(dict(part), name))
    index = {"metadata": {"total_size": 515_984, "own": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def logits(folder: str) -> mx.array:
    """Compute the logits of a few ids."""
    result: mx.array = load_model(folder)(mx.array([[5, 17, 300, 42]]))
    mx.eval(result)
    return result


# --- What there is to cast ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("U32", "BF16"), "bfloat16"),
        (("F32", "F16", "BF16"), "bfloat16"),
        (("F16", "F32", "U32"), "float16"),
        (("U32", "F32"), "float32"),
        ((), "float32"),
    ],
)
def test_the_native_type(native: Checkpoint, dtypes: tuple[str, ...], expected: str) -> None:
    """Half precision wherever a tensor has it; packed weights say nothing."""
    assert native_dtype(replace(native, dtypes=dtypes)) == expected


@pytest.mark.parametrize("name", ["qwen3-float32", "qwen3_moe-float32", "qwen2_moe-float32"])
def test_nothing_is_copied_that_is_float32(name: str, temporary: Path) -> None:
    """Such a checkpoint is its own float32 pass."""
    found = inspect(MODELS / name)

    with cast_copy(found) as actual:
        assert actual is found
        assert list(temporary.iterdir()) == []
    assert cast_bytes(found) == found.weight_bytes


# --- The copy -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTISED)
def test_a_copy_holds_the_same_numbers(name: str) -> None:
    """Packed weights are the same bits, and floats the same values in float32."""
    found = inspect(MODELS / name)
    before = tensors_of(found.model.path)

    with cast_copy(found) as copy:
        after = tensors_of(copy.model.path)

        assert after.keys() == before.keys()
        for key, tensor in before.items():
            assert after[key].dtype == (
                mx.uint32 if tensor.dtype == mx.uint32 else mx.float32
            ), key
            assert mx.array_equal(after[key], tensor.astype(after[key].dtype)), key
        assert cast_bytes(found) == copy.weight_bytes
        assert copy.weight_bytes == sum(tensor.nbytes for tensor in after.values())
        assert copy.largest_tensor == max(tensor.nbytes for tensor in after.values())
        assert sorted(copy.dtypes) == ["F32", "U32"]


@pytest.mark.parametrize("name", QUANTISED)
def test_a_copy_computes_in_float32(name: str) -> None:
    """The reference loads it; its logits are float32, and near those of the original."""
    found = inspect(MODELS / name)
    original = logits(found.model.path)

    with cast_copy(found) as copy:
        actual = logits(copy.model.path)
        read_tokenizer(copy)

    assert (original.dtype, actual.dtype) == (mx.bfloat16, mx.float32)
    assert mx.allclose(actual, original, rtol=0, atol=0.5)
    halves = actual.astype(mx.bfloat16).astype(mx.float32)
    assert not mx.array_equal(actual, halves), "computed in bfloat16, and cast afterwards"


def test_a_copy_says_what_it_is(native: Checkpoint) -> None:
    """It is known by what the user gave, with the stop set that has been read."""
    found = replace(native, model=replace(native.model, source="a/b", stop_ids=(7,)))

    with cast_copy(found) as copy:
        assert copy.model == replace(found.model, path=copy.model.path)
        assert copy.model.path != found.model.path
        assert copy.config == {**found.config, "torch_dtype": "float32"}
        assert json.loads((Path(copy.model.path) / "config.json").read_bytes()) == copy.config


def test_a_copy_has_every_file(tmp_path: Path, temporary: Path) -> None:
    """Small files are copied and large ones linked to; folders and chat templates too."""
    written(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ x }}", encoding="utf-8")
    (tmp_path / "own.py").write_text("x = 1", encoding="utf-8")
    (tmp_path / "extra").mkdir()
    (tmp_path / "large.bin").write_bytes(bytes(10**7 + 1))

    with cast_copy(inspect(tmp_path)) as copy:
        folder = Path(copy.model.path)
        assert {file.name for file in folder.iterdir()} == {
            file.name for file in tmp_path.iterdir()
        }
        linked = {file.name for file in folder.iterdir() if file.is_symlink()}
        assert linked == {"large.bin", "extra"}
        assert (folder / "own.py").read_text(encoding="utf-8") == "x = 1"
        assert folder.parent == temporary.resolve()
        assert folder.name.startswith(f"mlxcheck-float32-{os.getpid()}-")

    assert (tmp_path / "large.bin").stat().st_size == 10**7 + 1
    assert (tmp_path / "extra").is_dir()


def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    """A snapshot of links to blobs is copied as if it were files."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    for folder in (blobs, snapshot):
        folder.mkdir()
    for number, file in enumerate(written(blobs).iterdir()):
        (snapshot / file.name).symlink_to(file.rename(blobs / f"blob{number}"))

    with cast_copy(inspect(snapshot)) as copy:
        assert not any(file.is_symlink() for file in Path(copy.model.path).iterdir())
        assert copy.weight_bytes == 400 + 2 * 200 + 40


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"torch_dtype": "float32"}),
        ({"dtype": "bfloat16"}, {"dtype": "float32"}),
        (
            {"dtype": "float16", "torch_dtype": "float16"},
            {"dtype": "float32", "torch_dtype": "float32"},
        ),
        (
            {"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16", "x": 1}},
            {"torch_dtype": "float32", "text_config": {"dtype": "float32", "x": 1}},
        ),
        (
            {"torch_dtype": "bfloat16", "text_config": {"x": 1}},
            {"torch_dtype": "float32", "text_config": {"x": 1}},
        ),
    ],
)
def test_the_configuration_names_float32(
    tmp_path: Path, given: dict[str, object], expected: dict[str, object]
) -> None:
    """Under whichever name it is there, and inside; nothing else is changed."""
    configure(written(tmp_path), **given)
    found = inspect(tmp_path)

    with cast_copy(found) as copy:
        assert copy.config == {**found.config, **expected}
    assert inspect(tmp_path).config == found.config


def test_a_sharded_checkpoint(tmp_path: Path, native: Checkpoint) -> None:
    """Every weight file is cast under its own name, and the index has the new size."""
    found = inspect(sharded(tmp_path))

    with cast_copy(native) as whole, cast_copy(found) as copy:
        folder = Path(copy.model.path)
        assert len(list(folder.glob("model-*.safetensors"))) == 2
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
        source = json.loads((tmp_path / "model.safetensors.index.json").read_bytes())
        assert index["weight_map"] == source["weight_map"]
        assert index["metadata"] == {"total_size": copy.weight_bytes, "own": 1}
        assert source["metadata"]["total_size"] == found.weight_bytes
        assert mx.array_equal(logits(copy.model.path), logits(whole.model.path))


def test_a_broken_index_stops_nothing(tmp_path: Path) -> None:
    """The reference does not read it."""
    (written(tmp_path) / "model.safetensors.index.json").write_text("{", encoding="utf-8")

    with cast_copy(inspect(tmp_path)) as copy:
        assert copy.weight_bytes == 840


def test_types_and_metadata_that_are_kept(tmp_path: Path) -> None:
    """FP8 stays FP8, where MLX itself would make bytes of it; foreign metadata stays."""
    kinds = {"a": ("U8", 3), "b": ("F8_E4M3", 5), "c": ("F16", 6), "d": ("I64", 16)}
    tensors = {**kinds, "e": ("BOOL", 1), "f": ("F64", 8), "g": ("BF16", 2)}
    raw = safetensors(tensors, __metadata__={"format": "pt", "own": "1"})
    (written(tmp_path) / "model.safetensors").write_bytes(raw)

    with cast_copy(inspect(tmp_path)) as copy:
        (shard,) = checkpoint.shards(Path(copy.model.path))

    assert shard.header["__metadata__"] == {"format": "pt", "own": "1"}
    changed = {"c": ("F32", 12), "g": ("F32", 4)}
    assert {t.name: (t.dtype, t.size) for t in shard.tensors} == {**tensors, **changed}
    in_place = sorted(shard.tensors, key=lambda tensor: tensor.start)
    assert all(left.end == right.start for left, right in pairwise(in_place)), "no holes"
    width = {"I64": 8, "F64": 8, "F32": 4}
    assert all((shard.start + t.start) % width.get(t.dtype, 1) == 0 for t in shard.tensors)


@pytest.mark.parametrize(("kind", "code"), [("BF16", mx.bfloat16), ("F16", mx.float16)])
def test_every_half_is_cast_exactly(
    tmp_path: Path, monkeypatch: Any, kind: str, code: mx.Dtype
) -> None:
    """All 65,536 bit patterns, in several stretches: subnormals, infinities, minus zero."""
    assert precision._STRETCH % 2 == 0, "a stretch ends between two elements"
    monkeypatch.setattr(precision, "_STRETCH", 1000)
    bits = struct.pack("<65536H", *range(65536))
    head = safetensors({"x": (kind, len(bits))})[: -len(bits)]
    (written(tmp_path) / "model.safetensors").write_bytes(head + bits)

    with cast_copy(inspect(tmp_path)) as copy:
        file = Path(copy.model.path) / "model.safetensors"
        actual = file.read_bytes()[-4 * 65536 :]

    values = struct.unpack("<65536f", actual)
    whole: Any = mx.view(mx.arange(65536).astype(mx.uint16), code)
    assert mx.array_equal(mx.array(values).astype(code), whole, equal_nan=True)
    assert values[1] == (2.0**-133 if kind == "BF16" else 2.0**-24)
    assert struct.unpack("<65536I", actual)[0x8000] == 0x80000000


def test_the_source_is_only_read(native: Checkpoint) -> None:
    """Every file of it is the same afterwards, also when the copy is written to."""
    before = hashes(native.model.path)

    with cast_copy(native) as copy:
        (Path(copy.model.path) / "tokenizer.json").write_text("{}", encoding="utf-8")

    assert hashes(native.model.path) == before


def test_nothing_stays_on_the_device(native: Checkpoint) -> None:
    """Neither live arrays nor pooled ones, and never more than a stretch at once."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    with cast_copy(native):
        assert mx.get_active_memory() == before
        assert mx.get_cache_memory() == 0
        assert mx.get_peak_memory() - before < native.weight_bytes


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_half_a_half_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """A tensor of two-byte elements with an odd number of bytes never gets to a cast."""
    raw = safetensors({"x": (kind, 3)})
    (written(tmp_path) / "model.safetensors").write_bytes(raw)

    assert "its header is not what the format says." in said(tmp_path)


# --- It goes --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError, OSError, KeyboardInterrupt, SystemExit])
def test_a_copy_goes_whatever_happens(
    native: Checkpoint, temporary: Path, error: type[BaseException]
) -> None:
    """What goes wrong while it is used goes through as it is, and leaves nothing."""
    mine = error("mine")

    with pytest.raises(error) as caught, cast_copy(native):
        raise mine

    assert caught.value is mine
    assert list(temporary.iterdir()) == []


def test_a_copy_goes_at_the_end(native: Checkpoint, temporary: Path) -> None:
    """A copy lives as long as it is used."""
    with cast_copy(native):
        assert len(list(temporary.iterdir())) == 1

    assert list(temporary.iterdir()) == []


def test_a_copy_that_is_interrupted_half_written(
    native: Checkpoint, temporary: Path, monkeypatch: Any
) -> None:
    """Ctrl-C in the middle of a weight file leaves nothing."""
    seen: list[int] = []

    def interrupted(*_: object) -> bytes:
        seen.extend(file.stat().st_size for file in temporary.glob("*/model*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(precision, "_widened", interrupted)
    with pytest.raises(KeyboardInterrupt), cast_copy(native):
        pytest.fail("there is no copy")

    assert len(seen) == 1, "it was being written"
    assert list(temporary.iterdir()) == []


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond *size* bytes."""
    import resource
    import signal

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full(native: Checkpoint, temporary: Path) -> None:
    """A write that fails for real is one sentence, and leaves nothing."""
    with (
        file_size_limit(200_000),
        pytest.raises(ModelError) as caught,
        cast_copy(native),
    ):
        pytest.fail("there is no copy")

    size = f"{cast_bytes(native) / 1000:.1f} kB"
    assert str(caught.value) == (
        f"{native.model.source}: a float32 copy of {size} cannot be made: File too large. "
        "Make room on the disk, or set TMPDIR to a larger one."
    )
    assert list(temporary.iterdir()) == []


def test_a_folder_that_cannot_be_made(
    native: Checkpoint, temporary: Path, monkeypatch: Any
) -> None:
    """A temporary folder that is not there is the same sentence."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))

    with pytest.raises(ModelError, match="No such file or directory"), cast_copy(native):
        pytest.fail("there is no copy")


def test_a_weight_file_that_becomes_shorter(tmp_path: Path, monkeypatch: Any) -> None:
    """A source that changes under the copy is said, not filled up with anything."""
    found = inspect(written(tmp_path))
    parts = checkpoint.shards(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(safetensors(TENSORS)[:-100])
    monkeypatch.setattr(checkpoint, "shards", lambda _: parts)

    with pytest.raises(ModelError, match="has become shorter"), cast_copy(found):
        pytest.fail("there is no copy")


def test_copies_of_killed_processes_go(native: Checkpoint, temporary: Path) -> None:
    """Those of dead processes go; of live ones, and what only looks alike, stays."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = temporary / f"mlxcheck-float32-{dead.pid}-abc"
    kept = [
        temporary / f"mlxcheck-float32-{os.getpid()}-abc",
        temporary / f"mlxcheck-float32-{os.getppid()}-abc",
        temporary / "mlxcheck-float32-notes",
        temporary / f"my-mlxcheck-float32-{dead.pid}-abc",
    ]
    for folder in (stale, *kept):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x")
    file = temporary / f"mlxcheck-float32-{dead.pid}-file"
    file.write_bytes(b"x")
    link = temporary / f"mlxcheck-float32-{dead.pid}-link"
    link.symlink_to(kept[0])

    with cast_copy(native):
        assert not stale.exists()

    assert set(temporary.iterdir()) == {*kept, file, link}
    assert (kept[0] / "model.safetensors").exists()


def test_copies_of_other_users_stay(
    native: Checkpoint, temporary: Path, monkeypatch: Any
) -> None:
    """In a folder that all share, nobody's but the user's own are removed."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    theirs = temporary / f"mlxcheck-float32-{dead.pid}-abc"
    theirs.mkdir()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)

    with cast_copy(native):
        assert theirs.is_dir()


# --- Room -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "reserve", "written_out"),
    [(100 * GB, GB, ("1.0 GB", "1.0 GB")), (2 * GB, GB // 10, ("100.6 MB", "100.0 MB"))],
)
def test_room_for_a_copy(
    monkeypatch: Any, total: int, reserve: int, written_out: tuple[str, str]
) -> None:
    """Just enough will do, and a byte less will not; the sentence has the numbers."""
    native = inspect(MODELS / "qwen3_moe-8bit")
    need = cast_bytes(native)
    disk = SimpleNamespace(total=total, free=need + reserve)
    monkeypatch.setattr(shutil, "disk_usage", {tempfile.gettempdir(): disk}.__getitem__)

    assert room_for_copy(native) is None
    disk.free -= 1
    free, left = written_out
    assert room_for_copy(native) == (
        f"a float32 copy needs {need / 1000:.1f} kB of disk, and {tempfile.gettempdir()} has "
        f"{free} free less {left} reserve; make room, or set TMPDIR to a larger disk"
    )


def test_room_that_cannot_be_asked_for(native: Checkpoint, monkeypatch: Any) -> None:
    """A temporary folder that is not there has no room."""
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")

    assert room_for_copy(native) == (
        "a float32 copy cannot be made: No such file or directory; set TMPDIR"
    )


def test_no_room_is_needed_for_float32(monkeypatch: Any) -> None:
    """Nothing is copied, so a full disk does not matter."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=GB, free=0))

    assert room_for_copy(inspect(MODELS / "qwen3-float32")) is None


# --- TF32 -----------------------------------------------------------------------------------


def test_tf32_is_off_on_the_cpu() -> None:
    """A CPU has no tensor cores to round anything."""
    with mx.stream(mx.cpu):
        assert tf32_is_off()


@pytest.mark.parametrize("bits", [7, 10, 15])
def test_products_that_are_rounded_are_seen(monkeypatch: Any, bits: int) -> None:
    """Factors with the mantissa of bfloat16, TF32, or two bfloat16 are found out."""
    exact = mx.matmul

    def cut(factor: mx.array) -> mx.array:
        mask = mx.array(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF, dtype=mx.uint32)
        return mx.view(mx.view(factor, mx.uint32) & mask, mx.float32)

    monkeypatch.setattr(mx, "matmul", lambda a, b: exact(cut(a), cut(b)))
    assert not tf32_is_off()


def test_turning_tf32_off(monkeypatch: Any) -> None:
    """It is turned off unless the user has said something."""
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    turn_tf32_off()
    assert os.environ["MLX_ENABLE_TF32"] == "0"

    monkeypatch.setenv("MLX_ENABLE_TF32", "1")
    turn_tf32_off()
    assert os.environ["MLX_ENABLE_TF32"] == "1"
