"""A checkpoint on disk, read without loading a weight: found, checked, measured.

Everything that can be known to be wrong about a model is found here, before memory is
asked for. Only this room asks the hub.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlxcheck.errors import ModelError, ModelUnavailable
from mlxcheck.records import ModelRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Checkpoint", "Shard", "Tensor", "inspect", "locate", "shards"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WEIGHTS = "model*.safetensors"
_FILES = ("*.json", _WEIGHTS, "*.py", "*.model", "*.tiktoken", "*.txt", "*.jinja")
_POSITIONS = ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length")
_EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight", "wte.weight")
_HEADER_LIMIT = 100_000_000  # bytes; the safetensors format's own limit on its header


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the files of a checkpoint say.

    Attributes:
        model: Where it is and what it is.
        config: ``config.json``, as mlx-lm reads it.
        weight_bytes: Bytes of all tensors.
        largest_tensor: Bytes of the largest one.
        dtypes: Tensor element types by name in the files, most bytes first.
    """

    model: ModelRef
    config: Mapping[str, object]
    weight_bytes: int
    largest_tensor: int
    dtypes: tuple[str, ...]


def inspect(
    source: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> Checkpoint:
    """Find a checkpoint and read everything about it but its weights.

    Args:
        source: A folder, or a hub id ``owner/name``.
        revision: A hub revision; a pinned commit makes runs repeatable.
        trust_remote_code: Allow a ``model_file`` in the checkpoint to be run.

    Raises:
        ModelError: The folder, its config, weights or tokenizer are missing or broken.
        ModelUnavailable: A hub model that is neither cached nor within reach.
    """
    path = locate(source, revision=revision)
    config = _read_config(path)
    model_type = _model_type(config, path, trust_remote_code=trust_remote_code)
    tensors = [tensor for shard in shards(path) for tensor in shard.tensors]
    _require_tokenizer(path)
    by_dtype: dict[str, int] = {}
    for tensor in tensors:
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.size
    return Checkpoint(
        model=ModelRef(
            source=str(source),
            path=str(path),
            revision=revision,
            trust_remote_code=trust_remote_code,
            model_type=model_type,
            vocab_size=_vocab_size(config, tensors, path),
            max_positions=_max_positions(config),
            window=_window(config),
        ),
        config=config,
        weight_bytes=sum(tensor.size for tensor in tensors),
        largest_tensor=max((tensor.size for tensor in tensors), default=0),
        dtypes=tuple(sorted(by_dtype, key=lambda name: (-by_dtype[name], name))),
    )


def locate(source: str | Path, *, revision: str | None = None) -> Path:
    """Return the folder of a checkpoint, fetched from the hub only if it is not cached.

    Raises:
        ModelError: A path that does not exist or is not a folder.
        ModelUnavailable: A hub model that is neither cached nor within reach.
    """
    try:
        path = Path(source).expanduser()
        folder, other = path.is_dir(), path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # no such user, not allowed, too long
        msg = f"{source}: this path cannot be looked at: {_line(error)}. Check it."
        raise ModelError(msg) from None
    if folder:
        if revision is not None:
            msg = (
                f"{source}: revision={revision!r} was given for a folder on this machine. "
                "Only hub ids have revisions; leave it out."
            )
            raise ModelError(msg)
        return path.resolve()
    if other:
        msg = f"{source} is a file. Give the folder that holds config.json and the weights."
        raise ModelError(msg)
    if not _HUB_ID.fullmatch(str(source)):
        msg = (
            f"{source}: there is no such folder, and it does not read as a hub id "
            "(owner/name). Check the path."
        )
        raise ModelError(msg)
    return _from_hub(str(source), revision)


def _from_hub(source: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    at = f" at revision {revision}" if revision else ""
    reason = ""
    for local_only in (True, False):
        try:
            path = Path(
                snapshot_download(
                    source,
                    revision=revision,
                    allow_patterns=list(_FILES),
                    local_files_only=local_only,
                )
            )
        except HFValidationError as error:
            msg = f"{source}: not a folder here, and not a valid hub id: {_line(error)}"
            raise ModelError(msg) from None
        except Exception as error:  # noqa: BLE001 - also what the HTTP library raises
            reason = f"{type(error).__name__}: {_line(error)}"
        else:
            # A cache that holds a tokenizer alone is no checkpoint yet.
            if not local_only or any(path.glob(_WEIGHTS)):
                return path
    msg = (
        f"{source}{at}: there is no such folder here, the hub cache does not hold it, and it "
        f"could not be fetched ({reason}). Check the name, or fetch it once with a network."
    )
    raise ModelUnavailable(msg)


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def _read_config(path: Path) -> dict[str, object]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        msg = (
            f"{path}: no config.json in this folder. Give the folder of an MLX checkpoint "
            "(config.json, model*.safetensors, tokenizer files)."
        )
        raise ModelError(msg) from None
    except OSError as error:
        msg = f"{file}: cannot be read: {error.strerror}."
        raise ModelError(msg) from None
    except UnicodeDecodeError:
        msg = f"{file}: not UTF-8 text. The file is broken; fetch the checkpoint again."
        raise ModelError(msg) from None
    except json.JSONDecodeError as error:
        msg = (
            f"{file}: broken JSON at line {error.lineno}, column {error.colno}: {error.msg}. "
            "Mend the file, or fetch the checkpoint again."
        )
        raise ModelError(msg) from None
    if not isinstance(config, dict):
        msg = f"{file}: expected a JSON object but got {type(config).__name__}."
        raise ModelError(msg)
    return config


def _model_type(config: Mapping[str, object], path: Path, *, trust_remote_code: bool) -> str:
    if (model_file := config.get("model_file")) is not None:
        if not trust_remote_code:
            msg = (
                f"{path}: config.json asks to run {model_file!r} from the checkpoint. If you "
                "trust it, say so: trust_remote_code=True, or --trust-remote-code."
            )
            raise ModelError(msg)
        return str(config.get("model_type", model_file))
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        msg = f"{path}: config.json has no model_type, so mlx-lm cannot tell what it is."
        raise ModelError(msg)
    known = _known_types()
    if known and model_type not in known:
        close = difflib.get_close_matches(model_type, known, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        msg = (
            f"{path}: model_type {model_type!r} is not one that the installed mlx-lm knows "
            f"({len(known)} are).{hint} A newer mlx-lm may know it."
        )
        raise ModelError(msg)
    return model_type


def _known_types() -> frozenset[str]:
    """Model types of the installed mlx-lm: its model files, and its remapped names."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    folder = Path(spec.submodule_search_locations[0]) / "models"
    files = {file.stem for file in folder.glob("[!_]*.py")}
    from mlx_lm import utils

    return frozenset(files | set(getattr(utils, "MODEL_REMAPPING", {})))


class Tensor(NamedTuple):
    """One entry of a header.

    Attributes:
        name: Its name.
        dtype: Its element type, as the format names it: ``"BF16"``.
        rows: Its first dimension, 0 for a scalar.
        start: Its first byte, counted from `Shard.start`.
        end: The byte after its last.
    """

    name: str
    dtype: str
    rows: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.end - self.start


class Shard(NamedTuple):
    """One weight file.

    Attributes:
        file: Where.
        header: What its header says, ``__metadata__`` included where it is there.
        tensors: The entries of the header that are tensors, in its order.
        start: The byte of the file that the tensors' own offsets count from.
    """

    file: Path
    header: Mapping[str, Any]
    tensors: Sequence[Tensor]
    start: int


def shards(path: Path) -> list[Shard]:
    """Read the headers of a checkpoint's weight files, in the order of their names.

    Raises:
        ModelError: There is no weight file in the folder, or one is broken.
    """
    files = sorted(path.glob(_WEIGHTS))
    if not files:
        msg = f"{path}: no weights ({_WEIGHTS}) in this folder. Fetch the checkpoint."
        raise ModelError(msg)
    return [_shard(file) for file in files]


def _shard(file: Path) -> Shard:
    """Read one header: 8 bytes of little-endian length, then JSON, then the tensors.

    The layout is that of the safetensors format's own description.
    """
    broken = f"{file}: truncated or broken safetensors file"
    remedy = "Fetch it again."
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1  # noqa: PLR2004
            whole = 0 < length <= min(_HEADER_LIMIT, size - 8)
            raw = stream.read(length) if whole else b""
    except OSError as error:
        msg = f"{file}: cannot be read: {error.strerror}. {remedy}"
        raise ModelError(msg) from None
    if not whole:
        msg = f"{broken}: its {size} bytes end before its header does. {remedy}"
        raise ModelError(msg)
    try:
        header = json.loads(raw)
        entries = ((key, value) for key, value in header.items() if key != "__metadata__")
        tensors = [_tensor(name, entry) for name, entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        msg = f"{broken}: its header is not what the format says. {remedy}"
        raise ModelError(msg) from None
    wanted = 8 + length + max((tensor.end for tensor in tensors), default=0)
    if wanted > size:
        msg = f"{broken}: it has {size} of {wanted} bytes. {remedy}"
        raise ModelError(msg)
    return Shard(file, header, tensors, 8 + length)


def _tensor(name: str, entry: Mapping[str, Any]) -> Tensor:
    start, end = map(int, entry["data_offsets"])
    halved = entry["dtype"] in ("BF16", "F16") and (end - start) % 2 == 1
    if not 0 <= start <= end or halved:
        raise ValueError
    rows = int(next(iter(entry["shape"]), 0))
    return Tensor(name, str(entry["dtype"]), rows, start, end)


def _require_tokenizer(path: Path) -> None:
    wanted = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    tiktoken = any(path.glob("*.tiktoken"))
    if not tiktoken and not any((path / name).exists() for name in wanted):
        msg = (
            f"{path}: no tokenizer ({', '.join(wanted)} or *.tiktoken). Its stop set decides "
            "where answers end, so the reference cannot do without. Fetch the checkpoint whole."
        )
        raise ModelError(msg)


def _nested(config: Mapping[str, object], key: str) -> object:
    """Look a key up at the top, then where multimodal configurations keep it."""
    if key in config:
        return config[key]
    inner = config.get("text_config")
    return inner.get(key) if isinstance(inner, dict) else None


def _vocab_size(config: Mapping[str, object], tensors: Sequence[Tensor], path: Path) -> int:
    """Read it from the config or, where a family leaves it to a default, the embedding."""
    value = _nested(config, "vocab_size")
    if value is None:
        rows = [tensor.rows for tensor in tensors if tensor.name.endswith(_EMBEDDINGS)]
        value = max(rows, default=None)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    msg = f"{path}: config.json has vocab_size={value!r}; expected a whole number above 0."
    raise ModelError(msg)


def _max_positions(config: Mapping[str, object]) -> int | None:
    for key in _POSITIONS:
        value = _nested(config, key)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _window(config: Mapping[str, object]) -> int | None:
    # Configurations of models that have none may name one all the same, and switch it off.
    if _nested(config, "use_sliding_window") is False:
        return None
    value = _nested(config, "sliding_window")
    return value if isinstance(value, int) and value > 0 else None
