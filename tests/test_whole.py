"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcheck.errors import ReportError
from mlxcheck.smoke import SmokeReport, SmokeResult
from mlxcheck.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

SMOKE = SmokeReport(
    server="s",
    served_model="m",
    results=(SmokeResult(name="sum", outcome="pass", message="'\ud800'"),),
)


def test_a_text_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    """Others may read it; a lone surrogate is escaped, and nothing else is left behind."""
    path = tmp_path / "report.json"
    path.write_text("old", encoding="utf-8")

    write_whole(path, "new \ud800")

    assert path.read_text(encoding="utf-8") == "new \\ud800\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [lambda path: write_whole(path, "new"), SMOKE.save])
def test_what_was_there_stays_where_the_disk_is_full(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of writing is what fails; the old file is whole, and no part of the new one."""
    path = tmp_path / "report.json"
    path.write_text("old", encoding="utf-8")

    def full(_part: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises((OSError, ReportError), match="No space left"):
        write(path)

    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
