"""Whatever is given, the answer is one paragraph, the right status, and nothing half done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mlxcheck
from mlxcheck.cli import main
from mlxcheck.errors import PromptError

if TYPE_CHECKING:
    from collections.abc import Callable


ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "fixtures" / "models" / "qwen3-float32"
PROMPTS = [
    {"id": "one", "user": "What is 2+2?"},
    {"id": "two", "tokens": [7, 8]},
    {"id": "three", "tokens": [7, 8, 9]},
]
PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

Refused = Any  # a callable with keywords; see the fixture


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Write three short prompts to a file."""
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(PROMPTS), encoding="utf-8")
    return str(path)


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of copies of the model in which one file is replaced or left out."""

    def make(**files: bytes | None) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(MODEL, folder)
        for name, content in files.items():
            path = folder / name.replace("__", ".")
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
        return folder

    return make


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Return a runner of commands that have to be refused in one paragraph."""

    def run(*arguments: object, status: int = USAGE, words: tuple[str, ...]) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(["run", *map(str, arguments)]) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        (paragraph,) = [line for line in err.splitlines() if line.startswith("mlxcheck: ")]
        for word in words:
            assert word in paragraph, paragraph
        assert sorted(tmp_path.rglob("*")) == before, "something was left behind"
        return paragraph

    return run


# The model.


def test_no_such_path(refused: Refused, tmp_path: Path) -> None:
    """A path that is not there is not taken for a hub id."""
    refused(tmp_path / "nowhere" / "at" / "all", words=("nowhere", "no such folder", "Check"))


def test_a_file_for_a_folder(refused: Refused) -> None:
    """The weights' own file is a likely mistake."""
    refused(MODEL / "model.safetensors", words=("is a file", "Give the folder"))


def test_a_folder_without_config(refused: Refused, broken: Callable[..., Path]) -> None:
    """The message names the file that is missing."""
    refused(broken(config__json=None), words=("no config.json", "Give the folder"))


def test_broken_json(refused: Refused, broken: Callable[..., Path]) -> None:
    """The message says where in the file."""
    folder = broken(config__json=b'{"model_type": "qwen3",\n  oops}')
    refused(folder, words=("config.json", "broken JSON at line 2, column 3", "fetch"))


def test_unknown_model_type(refused: Refused, broken: Callable[..., Path]) -> None:
    """The nearest names that mlx-lm knows are offered."""
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    folder = broken(config__json=json.dumps({**config, "model_type": "qwen33"}).encode())
    refused(folder, words=("'qwen33'", "Did you mean", "qwen3"))


def test_truncated_safetensors(refused: Refused, broken: Callable[..., Path]) -> None:
    """The message says how many bytes there are and how many there should be."""
    whole = (MODEL / "model.safetensors").read_bytes()
    folder = broken(model__safetensors=whole[: len(whole) // 2])
    words = (
        "model.safetensors",
        "truncated",
        f"{len(whole) // 2} of {len(whole)} bytes",
        "again",
    )
    refused(folder, words=words)


def test_missing_tokenizer(refused: Refused, broken: Callable[..., Path]) -> None:
    """Without one there is no stop set."""
    folder = broken(tokenizer__json=None, tokenizer_config__json=None)
    refused(folder, words=("no tokenizer", "tokenizer.json", "Fetch"))


def test_broken_tokenizer(refused: Refused, broken: Callable[..., Path]) -> None:
    """Whatever the tokenizer's own code raises becomes one paragraph."""
    refused(broken(tokenizer__json=b"{}"), words=("the tokenizer cannot be loaded",))


def test_weights_of_another_shape(refused: Refused, broken: Callable[..., Path]) -> None:
    """What only loading can find is told by mlx-lm, and passed on in one paragraph."""
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    folder = broken(config__json=json.dumps({**config, "hidden_size": 32}).encode())
    refused(folder, words=("mlx-lm cannot load this checkpoint",))


def test_a_hub_id_that_is_neither_cached_nor_in_reach(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline is no mistake of the caller: no verdict, status 3."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = ("mlxcheck-tests/no-such-model", "hub cache does not hold it", "network")
    refused("mlxcheck-tests/no-such-model", status=INCONCLUSIVE, words=words)


def test_no_model_at_all(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable is offered."""
    monkeypatch.delenv("MLXCHECK_MODEL", raising=False)
    refused(words=("no model", "MLXCHECK_MODEL"))


# The prompts.


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"id": "a", "user": ""}], ("a", "empty")),
        ([{"id": "a", "tokens": []}], ("a", "empty")),
        ([{"id": "a", "text": ""}], ("'a'", "empty")),
        ([{"id": "a", "tokens": [1] * 5000}], ("'a'", "5000 tokens", "Shorten")),
        ([{"id": "a", "tokens": [1, 10**6]}], ("'a'", "1000000 at position 1", "vocabulary")),
        ([{"id": "a", "tokens": [-1]}], ("'a'", "-1 at position 0")),
        ([{"id": "a", "tokens": [1.5]}], ("(a)", "1.5")),
        ([{"id": "a", "length": "x", "of": "b"}], ("a", "'x'")),
        ([{"id": "a", "length": 9, "of": "b"}], ("'a'", "'b'", "not among")),
        ([{"id": "b", "text": "hi"}, {"id": "a", "length": -1, "of": "b"}], ("a", "-1")),
        ([{"id": "a", "user": "hi"}] * 2, ("'a'", "twice", "Rename")),
        ([{"id": "a"}], ("(a)", "user")),
        ([{"user": "hi"}], ("entry 0", "'id'")),
        (["hi"], ("entry 0", "'hi'")),
        ([], ("no prompt",)),
        ({}, ("expected a JSON list", "dict")),
    ],
)
def test_bad_prompts(
    refused: Refused, tmp_path: Path, entries: object, words: tuple[str, ...]
) -> None:
    """The prompt is named, with what is wrong with it."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    refused(MODEL, "--prompts", path, words=words)


def test_a_prompt_file_that_is_not_there_or_not_json(refused: Refused, tmp_path: Path) -> None:
    """Found before anything is loaded."""
    path = tmp_path / "p.json"
    refused(MODEL, "--prompts", path, words=(str(path), "No such file"))
    path.write_text("[{", encoding="utf-8")
    refused(MODEL, "--prompts", path, words=(str(path), "not JSON"))


def test_more_tokens_than_any_prompt_leaves_room_for(refused: Refused) -> None:
    """The packaged prompts that fit are none."""
    refused(MODEL, "--max-tokens", "1000000", words=("1000000", "max_tokens"))


def test_prompts_in_the_call() -> None:
    """The API says the same of what a command line cannot hold."""
    for prompts, word in (
        ("What?", "list"),
        ([3], "prompts\\[0\\]"),
        ([""], "empty"),
        ([], "no "),
    ):
        with pytest.raises(PromptError, match=word):
            mlxcheck.check(MODEL, "mlx-lm", prompts=prompts)


# The options.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-tokens", "0"), ("max_tokens=0",)),
        (("--watchdog", "0"), ("--watchdog 0", "SECONDS")),
        (("--watchdog", "nan"), ("--watchdog nan",)),
        (("--watchdog", "1e12"), ("--watchdog 1e+12",)),
        (("--check", "token"), ("'token'", "Did you mean tokens")),
        (("--case", "alone/nobody"), ("alone/nobody",)),
        (("--json", "no/such/folder/r.json"), ("no/such/folder/r.json", "folder")),
        (("--json", "r.xml"), ("r.xml", ".json")),
        (("--json", "."), (".json",)),
        (("--revision", "main"), ("revision='main'", "leave it out")),
    ],
)
def test_bad_options(
    refused: Refused, prompts: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """The option and its value are in the message."""
    refused(MODEL, "--prompts", prompts, *options, words=words)


@pytest.mark.parametrize(
    "options", [["--max-tokens", "x"], ["--effort", "most"], ["--jsn", "r.json"]]
)
def test_arguments_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """The parser's own errors have the same status, and no traceback."""
    assert main(["run", str(MODEL), *options]) == USAGE
    assert options[0] in capsys.readouterr().err


def test_a_report_path_that_cannot_be_written(refused: Refused, tmp_path: Path) -> None:
    """Found before anything is loaded: a folder of that name, a file for a folder."""
    folder = tmp_path / "r.json"
    folder.mkdir()
    refused(MODEL, "--json", folder, words=(str(folder), "is a folder"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    refused(MODEL, "--json", tmp_path / "file" / "r.json", words=("cannot write", "folder"))


def test_too_little_memory(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict, with the numbers that the gate compared."""
    monkeypatch.setenv("MLXCHECK_MIN_FREE_GB", "100000")
    words = ("too little memory", "RAM available", "100.0 TB", "MLXCHECK_MIN_FREE_GB")
    refused(MODEL, status=INCONCLUSIVE, words=words)


def test_a_floor_that_is_no_number(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable and its value are named."""
    monkeypatch.setenv("MLXCHECK_MIN_FREE_GB", "lots")
    refused(MODEL, words=("MLXCHECK_MIN_FREE_GB='lots'", "number of GB"))


# The backend, before it runs.


def test_an_unknown_backend(refused: Refused) -> None:
    """The nearest name is offered, before a model is looked at."""
    refused("no/model", "--backend", "mlxlm", words=("'mlxlm'", "Did you mean mlx-lm"))


def test_a_backend_whose_package_is_not_installed(refused: Refused) -> None:
    """What to install is named, before a model is looked at."""
    words = ("fast_engine.adapter", "Install", "'fast_engine'")
    refused("no/model", "--backend", "fast_engine.adapter:Engine", words=words)


def test_a_backend_module_that_needs_what_is_not_installed(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompts: str
) -> None:
    """The missing package is named, not the module that wants it."""
    (tmp_path / "needs_much.py").write_text("import fast_engine\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    words = ("needs_much", "fast_engine", "Install")
    refused(MODEL, "--prompts", prompts, "--backend", "needs_much:Engine", words=words)


def test_a_backend_module_without_that_attribute(refused: Refused, prompts: str) -> None:
    """The nearest attribute is offered."""
    words = ("'Sleepz'", "Did you mean Sleeps")
    refused(MODEL, "--prompts", prompts, "--backend", "tests.engines:Sleepz", words=words)


def test_an_engine_that_says_it_is_not_installed(refused: Refused, prompts: str) -> None:
    """An adapter's own words are passed on: a usage error, not a failed comparison."""
    backend = "tests.engines:NotInstalled"
    words = ("pip install fast-engine",)
    refused(MODEL, "--prompts", prompts, "--backend", backend, words=words)
