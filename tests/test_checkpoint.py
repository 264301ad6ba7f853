"""Checkpoints: what is read without loading a weight, and what is said of broken ones."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck import checkpoint
from mlxcheck.checkpoint import Checkpoint
from mlxcheck.errors import ModelError
from mlxcheck.records import ModelRef
from tests.support.checkpoints import CONFIG, TENSORS, configure, safetensors, said, written
from tests.support.drawing import unhurried

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a checkpoint that nothing is wrong with."""
    return written(tmp_path)


# --- What is read ---------------------------------------------------------------------------


def test_what_the_files_say(folder: Path) -> None:
    """Sizes come from the header, the rest from the config; nothing else is opened."""
    actual = checkpoint.inspect(folder)

    assert actual == Checkpoint(
        model=ModelRef(
            source=str(folder),
            path=str(folder.resolve()),
            model_type="qwen3",
            vocab_size=320,
            max_positions=1024,
        ),
        config=CONFIG,
        weight_bytes=640,
        largest_tensor=400,
        dtypes=("F32", "BF16"),
    )


def test_a_sharded_checkpoint_is_summed(folder: Path) -> None:
    """All model*.safetensors count, and other safetensors do not."""
    (folder / "model.safetensors").unlink()
    for number, tensors in enumerate([{"a": ("U32", 900)}, {"b": ("F16", 90)}, TENSORS], 1):
        shard = folder / f"model-0000{number}-of-00003.safetensors"
        shard.write_bytes(safetensors(tensors))
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    (folder / "adapters.safetensors").write_bytes(safetensors({"c": ("F16", 5000)}))

    actual = checkpoint.inspect(folder)

    assert (actual.weight_bytes, actual.largest_tensor) == (900 + 90 + 640, 900)
    assert actual.dtypes == ("U32", "F32", "BF16", "F16")


def test_configurations_of_multimodal_models_are_nested(folder: Path) -> None:
    """Vocabulary and positions are looked up where such models keep them."""
    inner = {"vocab_size": 77, "max_position_embeddings": 33}
    configure(folder, "vocab_size", "max_position_embeddings", text_config=inner)

    actual = checkpoint.inspect(folder).model

    assert (actual.vocab_size, actual.max_positions) == (77, 33)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"n_positions": 64}, 64),
        ({"max_seq_len": 32}, 32),
        ({}, None),
        ({"seq_length": 0}, None),
    ],
)
def test_positions_have_several_names(
    folder: Path, changed: dict[str, object], expected: int | None
) -> None:
    """Positions are known by their older names too; unknown is None, not a guess."""
    configure(folder, "max_position_embeddings", **changed)

    assert checkpoint.inspect(folder).model.max_positions == expected


def test_names_that_mlx_lm_maps_are_known(folder: Path) -> None:
    """A model type that mlx-lm serves under another one's file is not refused."""
    configure(folder, model_type="mistral")

    assert checkpoint.inspect(folder).model.model_type == "mistral"


def test_code_in_a_checkpoint_is_run_only_when_it_is_trusted(folder: Path) -> None:
    """A model_file is refused unless it is allowed, and then the type may be unknown."""
    configure(folder, model_type="own", model_file="own.py")

    assert "asks to run 'own.py'" in said(folder)
    actual = checkpoint.inspect(folder, trust_remote_code=True).model
    assert (actual.model_type, actual.trust_remote_code) == ("own", True)


@pytest.mark.parametrize("name", ["tokenizer.model", "tokenizer_config.json", "own.tiktoken"])
def test_any_kind_of_tokenizer_will_do(folder: Path, name: str) -> None:
    """One file of any tokenizer is enough to go on."""
    (folder / "tokenizer.json").rename(folder / name)

    assert checkpoint.inspect(folder).weight_bytes == 640


# --- Places ---------------------------------------------------------------------------------


def test_no_such_path(tmp_path: Path) -> None:
    """A path that is not there is told so, and not looked up on the hub."""
    assert "there is no such folder" in said(tmp_path / "none")


def test_a_file_for_a_folder(folder: Path) -> None:
    """The folder is wanted, not a file in it."""
    assert "is a file. Give the folder" in said(folder / "config.json")


@pytest.mark.parametrize("source", ["~nosuchuser/model", "x" * 5000])
def test_a_path_that_cannot_be_looked_at(source: str) -> None:
    """A home that nobody has, and names that no file system takes, are no traceback."""
    assert "this path cannot be looked at: " in said(source)


def test_a_revision_of_a_folder(folder: Path) -> None:
    """A revision belongs to the hub."""
    assert "revision='main' was given for a folder" in said(folder, revision="main")


# --- Broken files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no config.json in this folder. Give the folder of an MLX checkpoint"),
        (b"{", "config.json: broken JSON at line 1, column 2: Expecting property name"),
        (b"\xff", "config.json: not UTF-8 text."),
        (b"[]", "config.json: expected a JSON object but got list."),
        (b"{}", "config.json has no model_type"),
        (b'{"model_type": 3}', "config.json has no model_type"),
        (b'{"model_type": "qwen33"}', "model_type 'qwen33' is not one that the installed mlx"),
        (b'{"model_type": "qwen3"}', "config.json has vocab_size=None; expected a whole"),
        (b'{"model_type": "qwen3", "vocab_size": true}', "has vocab_size=True; expected"),
        (b'{"model_type": "qwen3", "vocab_size": 0}', "has vocab_size=0; expected"),
    ],
)
def test_a_broken_config(folder: Path, content: bytes | None, expected: str) -> None:
    """Each way to break config.json is told apart, with file and place."""
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_bytes(content)

    text = said(folder)

    assert text.startswith(str(folder))
    assert expected in text


def test_a_config_that_cannot_be_read(folder: Path) -> None:
    """A folder where a file is due is no traceback."""
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()

    assert "config.json: cannot be read: Is a directory." in said(folder)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("qwen3_mo", " Did you mean qwen3_moe or "),
        ("llamma", " Did you mean llama or "),
        ("zzzzzz", " are). A newer mlx-lm may know it."),
    ],
)
def test_an_unknown_model_type(folder: Path, model_type: str, expected: str) -> None:
    """A model type that this mlx-lm lacks gets the nearest that it has."""
    configure(folder, model_type=model_type)

    text = said(folder)

    assert f"model_type {model_type!r} is not one that the installed mlx-lm knows" in text
    assert expected in text
    assert ("Did you mean" in text) == ("mean" in expected)


def test_no_weights(folder: Path) -> None:
    """A folder without weights is told from a broken one."""
    (folder / "model.safetensors").unlink()

    assert "no weights (model*.safetensors) in this folder." in said(folder)


def test_no_tokenizer(folder: Path) -> None:
    """A tokenizer is needed, and the error says for what."""
    (folder / "tokenizer.json").unlink()

    text = said(folder)

    assert "no tokenizer (tokenizer.json, tokenizer.model," in text
    assert "Its stop set decides" in text


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (0, "its 0 bytes end before its header does."),
        (7, "its 7 bytes end before its header does."),
        (8, "its 8 bytes end before its header does."),
        (100, "its 100 bytes end before its header does."),
        (-1, " bytes. Fetch it again."),
    ],
)
def test_truncated_weights(folder: Path, kept: int, expected: str) -> None:
    """A file that was cut off anywhere is found by its header and its size."""
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:kept])

    text = said(folder)

    assert text.startswith(f"{file}: truncated or broken safetensors file: ")
    assert expected in text
    assert kept != -1 or f"it has {len(whole) - 1} of {len(whole)} bytes" in text


def test_a_pointer_in_place_of_weights(folder: Path) -> None:
    """A file of text, as large-file storage leaves it, is no header."""
    pointer = b"version https://git-lfs.example/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_bytes(pointer)

    assert "bytes end before its header does" in said(folder)


def test_weights_that_cannot_be_read(folder: Path) -> None:
    """A link into a cache that has been emptied is no traceback."""
    file = folder / "model.safetensors"
    file.unlink()
    file.symlink_to(folder / "gone")

    assert f"{file}: cannot be read: No such file or directory." in said(folder)


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {},
        {"dtype": "F32"},
        {"dtype": "F32", "data_offsets": 4},
        {"dtype": "F32", "data_offsets": [0]},
        {"dtype": "F32", "data_offsets": [0, 1, 2]},
        {"dtype": "F32", "data_offsets": ["a", "b"]},
        {"dtype": "F32", "data_offsets": [8, 4]},
        {"dtype": "F32", "data_offsets": [-8, 4]},
        {"dtype": "F32", "data_offsets": [0, float("inf")]},
        {"dtype": "F32", "data_offsets": [0, float("nan")]},
    ],
)
def test_a_header_that_is_not_what_the_format_says(folder: Path, entry: object) -> None:
    """Whatever stands in a header, the error names the file."""
    (folder / "model.safetensors").write_bytes(safetensors(TENSORS, odd=entry))

    assert "its header is not what the format says." in said(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "data_offsets", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@unhurried
@given(JSON, st.binary(max_size=20))
def test_no_header_at_all_is_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, header: object, rest: bytes
) -> None:
    """Any JSON for a header, with anything after it, is read or refused in a sentence."""
    raw = json.dumps(header).encode()
    folder = tmp_path_factory.getbasetemp()
    configure(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + rest)

    try:
        actual = checkpoint.inspect(folder)
    except ModelError as error:
        assert str(folder / "model.safetensors") in str(error)  # noqa: PT017 - either will do
    else:
        assert 0 <= actual.largest_tensor <= actual.weight_bytes
        assert actual.largest_tensor <= len(rest)
