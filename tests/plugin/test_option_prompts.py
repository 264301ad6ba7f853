"""``--mlx-prompts``: items for prompts of one's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Listed = Callable[..., list[str]]

ENTRIES = [{"id": "mine", "user": "Hello"}, {"id": "raw-ids", "tokens": [1, 2, 3]}]


@pytest.fixture(autouse=True)
def _one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the shortest names; `test_passes` is about several passes."""
    monkeypatch.setenv("MLXCHECK_PRECISION", "native")


def test_ids_come_from_the_file(listed: Listed, pytester: pytest.Pytester) -> None:
    """One item an entry, named by its id."""
    (pytester.path / "mine.json").write_text(json.dumps(ENTRIES), encoding="utf-8")

    ids = listed("--mlx-model=one", "--mlx-prompts=mine.json", "--mlx-check=tokens")

    assert ids == [
        "mlxcheck::one::mlx-lm::tokens[mine]",
        "mlxcheck::one::mlx-lm::tokens[raw-ids]",
        "mlxcheck::one::mlx-lm::tokens[all-prompts]",
    ]


def test_a_path_in_the_ini_file_reads_from_there(
    listed: Listed, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not matter from which folder pytest is started."""
    pytester.makeini("[pytest]\nmlx_prompts = mine.json\nmlx_model = one\nmlx_check = tokens\n")
    (pytester.path / "mine.json").write_text(json.dumps(ENTRIES), encoding="utf-8")
    (pytester.path / "below").mkdir()
    monkeypatch.chdir(pytester.path / "below")

    ids = listed()

    assert [nodeid.rpartition("::")[2] for nodeid in ids] == [
        "tokens[mine]",
        "tokens[raw-ids]",
        "tokens[all-prompts]",
    ]
