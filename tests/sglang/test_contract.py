"""What the adapter asks of SGLang is checked when it is opened, and put into words."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends.sglang import SglangBackend, SglangRadixBackend
from mlxcheck.backends.sglang_pools import load_runner
from mlxcheck.errors import BackendError
from tests.support import sglang_linux

if TYPE_CHECKING:
    from mlxcheck.records import ModelRef


def _engine() -> Any:
    return importlib.import_module(sglang_linux.ENGINE)


def test_importing_the_adapter_imports_no_engine() -> None:
    """SGLang, torch and MLX come in with `open`, and not before."""
    code = (
        "import sys, mlxcheck.backends.sglang\n"
        "print([n for n in ('sglang', 'torch', 'mlx', 'mlx_lm', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_this_release_fits() -> None:
    """Every signature that the adapter relies on is there in the installed release."""
    assert load_runner("sglang") is _engine().MlxModelRunner


def test_not_installed(model: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names what to install."""

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(BackendError, match=r"'sglang-radix'.*pip install sglang.*Apple"):
        SglangRadixBackend().open(model)


def test_an_import_that_fails(model: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dependency that is missing is named, with the release that wanted it."""
    monkeypatch.setitem(sys.modules, sglang_linux.ENGINE, None)
    with pytest.raises(BackendError, match=rf"sglang {metadata.version('sglang')} raised Mod"):
        SglangBackend().open(model)


def test_a_parameter_that_is_gone(model: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyword that the release no longer takes is named before anything is loaded."""

    def extend(self: Any, req_id: Any, new_token_ids: Any, new_slot_ids: Any) -> int:
        raise NotImplementedError

    monkeypatch.setattr(_engine().MlxModelRunner, "extend", extend)
    with pytest.raises(BackendError) as caught:
        SglangBackend().open(model)
    assert "MlxModelRunner.extend has no parameter 'needs_logits'" in str(caught.value)
    assert f"sglang {metadata.version('sglang')} does not fit" in str(caught.value)


def test_a_parameter_that_is_new(model: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyword without a default, that the adapter does not give, is named as well."""

    def decode_batch(self: Any, req_ids: Any, lora_ids: Any, **_: Any) -> list[int]:
        raise NotImplementedError

    monkeypatch.setattr(_engine().MlxModelRunner, "decode_batch", decode_batch)
    with pytest.raises(BackendError, match=r"MlxModelRunner\.decode_batch wants .*'lora_ids'"):
        SglangBackend().open(model)


def test_a_method_that_is_gone(model: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release without one of the methods is refused by that method's name."""
    monkeypatch.delattr(_engine().MlxModelRunner, "release_request_row")
    with pytest.raises(BackendError, match=r"has no MlxModelRunner\.release_request_row"):
        SglangBackend().open(model)
