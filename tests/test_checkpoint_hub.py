"""Checkpoints from the hub: cached, fetched, refused, and out of reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from mlxcheck import checkpoint
from mlxcheck.errors import ModelUnavailable
from tests.support.checkpoints import said, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a checkpoint that nothing is wrong with."""
    return written(tmp_path)


class Hub:
    """A hub that answers from what it was given: a folder or an error, cached or not."""

    def __init__(self, cached: Path | Exception, fetched: Path | Exception) -> None:
        """Keep what to answer."""
        self.cached, self.fetched = cached, fetched
        self.calls: list[dict[str, Any]] = []

    def download(self, source: str, **options: Any) -> str:
        """Stand in for snapshot_download."""
        self.calls.append({"source": source, **options})
        found = self.cached if options["local_files_only"] else self.fetched
        if isinstance(found, Exception):
            raise found
        return str(found)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hub]:
    """Return a function that puts a hub in the place of the real one."""

    def put(cached: Path | Exception, fetched: Path | Exception) -> Hub:
        made = Hub(cached, fetched)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", made.download)
        return made

    return put


NOT_CACHED = LocalEntryNotFoundError("not cached\nand more lines")


def test_a_cached_model_is_not_fetched(hub: Callable[..., Hub], folder: Path) -> None:
    """What the cache holds is used without a network, at the revision asked for."""
    made = hub(folder, AssertionError("no network was needed"))

    actual = checkpoint.inspect("owner/name", revision="abc").model

    assert (actual.source, actual.path) == ("owner/name", str(folder))
    assert (actual.revision, actual.name) == ("abc", "name")
    (call,) = made.calls
    assert (call["source"], call["revision"]) == ("owner/name", "abc")
    assert "model*.safetensors" in call["allow_patterns"]


@pytest.mark.parametrize("cached", ["nothing", "no weights"])
def test_what_is_not_cached_is_fetched(
    hub: Callable[..., Hub], folder: Path, tmp_path_factory: pytest.TempPathFactory, cached: str
) -> None:
    """The hub is asked where the cache holds nothing, or a tokenizer alone."""
    partial = tmp_path_factory.mktemp("cache")
    (partial / "config.json").write_text("{}", encoding="utf-8")
    made = hub(NOT_CACHED if cached == "nothing" else partial, folder)

    assert checkpoint.inspect("owner/name").weight_bytes == 640
    assert [call["local_files_only"] for call in made.calls] == [True, False]


class Refused(Exception):  # noqa: N818 - stands in for the HTTP library's own
    """An exception of a network library, which is no OSError."""


@pytest.mark.parametrize(
    "error", [ConnectionError("offline"), Refused("offline"), TimeoutError("offline")]
)
def test_offline_and_not_cached(hub: Callable[..., Hub], error: Exception) -> None:
    """Whatever the network raises, the model is unavailable, with the reason in a line."""
    hub(NOT_CACHED, error)

    with pytest.raises(ModelUnavailable) as caught:
        checkpoint.inspect("owner/name", revision="abc")

    text = str(caught.value)
    assert text.startswith("owner/name at revision abc: there is no such folder here, ")
    assert f"could not be fetched ({type(error).__name__}: offline)" in text
    assert "\n" not in text


def test_a_name_that_the_hub_refuses(hub: Callable[..., Hub]) -> None:
    """An id that no hub model can have is a mistake, and no state of the network."""
    hub(HFValidationError("Repo id must use alphanumeric chars"), NOT_CACHED)

    assert "not a valid hub id: Repo id must use" in said("owner/na--me")


def test_offline_mode_and_an_empty_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the real client, offline and nothing cached, the model is unavailable."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    with pytest.raises(ModelUnavailable, match="the hub cache does not hold it"):
        checkpoint.inspect("mlxcheck-tests/no-such-model")
