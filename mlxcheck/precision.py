"""Precision passes: a checkpoint as it is, and the same one with its floats as float32.

In bfloat16 two right engines differ by rounding; in float32 they hardly do. Both load the
copy that is made here by its path, so that they still start from the same bytes. Its weight
files are written tensor by tensor: a copy takes memory for one stretch of a tensor, whatever
the size of the model, and types that MLX would load as another one (FP8) stay what they are.

All sizes are bytes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import struct
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mlxcheck import checkpoint
from mlxcheck.errors import ModelError
from mlxcheck.memory import human

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlxcheck.checkpoint import Checkpoint, Shard, Tensor

__all__ = [
    "cast_bytes",
    "cast_copy",
    "native_dtype",
    "room_for_copy",
    "tf32_is_off",
    "turn_tf32_off",
]

_PREFIX = "mlxcheck-float32-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-.+")
_HALVES = {"BF16": "bfloat16", "F16": "float16"}
"""The types that are cast, as the files name them and as MLX does."""

_STRETCH = 2**24  # bytes read at once, a whole number of elements
_SMALL = 10**7  # bytes; larger files that are no weights are linked to, not copied
_RESERVE = 10**9
_TF32 = "MLX_ENABLE_TF32"


def native_dtype(found: Checkpoint) -> str:
    """Return the type that a checkpoint's activations have as it is, in MLX's words.

    Returns:
        ``"bfloat16"`` where any tensor is, else ``"float16"`` where any is, else
        ``"float32"``: then no copy is needed.
    """
    return next((name for kind, name in _HALVES.items() if kind in found.dtypes), "float32")


def cast_bytes(found: Checkpoint) -> int:
    """Return the bytes of all tensors of a float32 copy, from the headers alone.

    Raises:
        ModelError: A weight file is missing or broken.
    """
    parts = checkpoint.shards(Path(found.model.path))
    return sum(_cast_size(tensor) for part in parts for tensor in part.tensors)


def room_for_copy(found: Checkpoint) -> str | None:
    """Tell why a float32 copy cannot be made.

    A GB of the disk, or a twentieth of a small one, is left to everything else.

    Returns:
        One sentence with the bytes that are needed and those that are free, or None where
        there is room or no copy is needed.

    Raises:
        ModelError: A weight file is missing or broken.
    """
    if native_dtype(found) == "float32":
        return None
    need = cast_bytes(found)
    try:
        folder = tempfile.gettempdir()
        disk = shutil.disk_usage(folder)
    except OSError as error:
        return f"a float32 copy cannot be made: {error.strerror or error}; set TMPDIR"
    reserve = min(_RESERVE, disk.total // 20)
    if need <= disk.free - reserve:
        return None
    return (
        f"a float32 copy needs {human(need)} of disk, and {folder} has {human(disk.free)} "
        f"free less {human(reserve)} reserve; make room, or set TMPDIR to a larger disk"
    )


@contextmanager
def cast_copy(found: Checkpoint) -> Iterator[Checkpoint]:
    """Make a copy whose bfloat16 and float16 tensors are float32, for as long as it is used.

    Every value is kept exactly, since float32 holds all of both types. Tensors of any other
    type are copied bit by bit: packed weights, and FP8. The folder goes on exit, however
    that comes about; one that a killed process has left goes at the next copy.

    Args:
        found: What to copy; its files are only read.

    Yields:
        The copy: `Checkpoint.model` has its path and, for people, the source of *found*.
        Where nothing is to be cast, *found* itself.

    Raises:
        ModelError: The copy cannot be written, for want of room for one; nothing is left.
    """
    if native_dtype(found) == "float32":
        yield found
        return
    try:
        _remove_stale(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    except OSError as error:
        raise _not_written(found, error) from error
    try:
        yield _written(found, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def turn_tf32_off() -> None:
    """Have MLX multiply float32 matrices in float32, unless the environment says otherwise.

    MLX reads ``MLX_ENABLE_TF32`` once, at the first float32 product that a GPU could take in
    reduced precision: this has no effect after that, and later changes have none at all.
    See "Numerical Precision" in MLX's documentation.
    """
    os.environ.setdefault(_TF32, "0")


def tf32_is_off() -> bool:
    """Measure whether the default device multiplies float32 matrices in float32.

    Of the factors, 256 x 256 each, one has values that need 16 bits of mantissa and the
    other is the identity, so that the product is exactly the first, in any order of summing.
    TF32 keeps 10 bits. On a GPU this settles what MLX does from here on: `turn_tf32_off`
    comes before. One product stands for quantised ones, convolutions and attention too,
    since MLX decides for all by the same switch.
    """
    import mlx.core as mx

    side = 256  # wide enough for the kernels that use tensor cores
    steps = mx.arange(side * side, dtype=mx.float32).reshape(side, side)
    values = 1 + steps / (side * side)
    return bool(mx.array_equal(mx.matmul(values, mx.eye(side)), values).item())


# --- One copy -------------------------------------------------------------------------------


def _written(found: Checkpoint, folder: Path) -> Checkpoint:
    """Fill *folder* and read it as any other checkpoint is read."""
    source = Path(found.model.path)
    parts = checkpoint.shards(source)
    names = {part.file.name for part in parts}
    total = sum(_cast_size(tensor) for part in parts for tensor in part.tensors)
    try:
        for file in source.iterdir():
            if file.name == "config.json":
                _write_json(folder / file.name, _as_float32(found.config))
            elif file.name == "model.safetensors.index.json":
                _write_json(folder / file.name, _index(file, total))
            elif file.name not in names:
                _share(file, folder / file.name)
        for part in parts:
            _cast(part, folder / part.file.name)
    except OSError as error:
        raise _not_written(found, error) from error
    made = checkpoint.inspect(folder, trust_remote_code=found.model.trust_remote_code)
    return replace(made, model=replace(found.model, path=made.model.path))


def _not_written(found: Checkpoint, error: OSError) -> ModelError:
    return ModelError(
        f"{found.model.source}: a float32 copy of {human(cast_bytes(found))} cannot be made: "
        f"{error.strerror or error}. Make room on the disk, or set TMPDIR to a larger one."
    )


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _as_float32(config: Mapping[str, object]) -> dict[str, object]:
    """Change the type that a configuration names: engines may cast what they load to it."""
    changed = {**config}
    for key in {"dtype", "torch_dtype"} & config.keys() or {"torch_dtype"}:
        changed[key] = "float32"
    inner = config.get("text_config")
    if isinstance(inner, dict):
        named = {"dtype", "torch_dtype"} & inner.keys()
        changed["text_config"] = {**inner, **dict.fromkeys(named, "float32")}
    return changed


def _index(file: Path, total: int) -> object:
    """Read an index of shards, and put the copy's size into it; the names are the same."""
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return {}  # mlx-lm does not look at it, so a broken one is no reason to stop
    if isinstance(index, dict) and isinstance(index.get("metadata"), dict):
        index["metadata"]["total_size"] = total
    return index


def _share(file: Path, target: Path) -> None:
    """Copy what is small, so that nothing written through the copy gets to the source."""
    if file.is_file() and file.stat().st_size <= _SMALL:
        shutil.copyfile(file, target)
    else:
        target.symlink_to(file.resolve())


# --- One weight file ------------------------------------------------------------------------


def _cast(part: Shard, target: Path) -> None:
    import mlx.core as mx

    # Widest first keeps every tensor at a multiple of its element size, which engines that
    # map the file into memory rely on.
    tensors = sorted(part.tensors, key=lambda tensor: (-_bits(tensor), tensor.start))
    with part.file.open("rb") as source, target.open("xb") as sink:
        sink.write(_header(part, tensors))
        for tensor in tensors:
            source.seek(part.start + tensor.start)
            for raw in _stretches(source, tensor.size):
                sink.write(_widened(raw, tensor.dtype) if tensor.dtype in _HALVES else raw)
    mx.clear_cache()


def _header(part: Shard, tensors: Sequence[Tensor]) -> bytes:
    """Make the header of a copy: its length in 8 bytes, then JSON, filled up with spaces.

    What else the source's header says stays, its metadata above all: some engines go by
    ``{"format": "mlx"}``, and it would be untrue of a file that is not.
    """
    header = dict(part.header)
    place = 0
    for tensor in tensors:
        end = place + _cast_size(tensor)
        dtype = "F32" if tensor.dtype in _HALVES else tensor.dtype
        entry = {"dtype": dtype, "data_offsets": [place, end]}
        header[tensor.name] = {**part.header[tensor.name], **entry}
        place = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def _cast_size(tensor: Tensor) -> int:
    return tensor.size * 2 if tensor.dtype in _HALVES else tensor.size


def _bits(tensor: Tensor) -> int:
    """Return the width of an element of the copy, which its type's name tells: F8_E4M3."""
    if tensor.dtype in _HALVES:
        return 32
    width = re.search(r"\d+", tensor.dtype)
    return int(width[0]) if width else 8  # BOOL


def _stretches(source: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0:
        raw = source.read(min(size, _STRETCH))
        if not raw:
            raise OSError(errno.EIO, f"{source.name} has become shorter")
        yield raw
        size -= len(raw)


def _widened(raw: bytes, dtype: str) -> memoryview:
    """Cast little-endian elements to float32, on the CPU: no accelerator is touched."""
    import mlx.core as mx

    bits: Any = memoryview(raw).cast("H")
    halves = mx.view(mx.array(bits), getattr(mx, _HALVES[dtype]), stream=mx.cpu)
    wide: Any = halves.astype(mx.float32, stream=mx.cpu)
    return memoryview(wide)


# --- What killed processes left -------------------------------------------------------------


def _remove_stale(folder: Path) -> None:
    """Remove the copies of this user whose process is no more."""
    for entry in folder.glob(f"{_PREFIX}*"):
        match = _NAME.fullmatch(entry.name)
        with suppress(OSError):  # it is gone already: another process has removed it
            if match and _is_own_folder(entry) and not _lives(int(match[1])):
                shutil.rmtree(entry, ignore_errors=True)


def _is_own_folder(entry: Path) -> bool:
    seen = entry.lstat()
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 is not sent; it only asks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # another user's
    return True
