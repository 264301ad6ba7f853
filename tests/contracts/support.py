"""The miniature engine, and copies of it in which something was changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcheck.contracts import check_stub

if TYPE_CHECKING:
    from mlxcheck.contracts import ContractReport

MINIATURE = Path(__file__).parent / "miniature"
CALLERS = ("worker.py", "scheduler.py")


def copied(folder: Path, changes: dict[str, tuple[str, str]]) -> Path:
    """Return a copy of the miniature engine with one text in a file replaced by another.

    Args:
        folder: Where it goes.
        changes: What is replaced by what, by file. The text has to be there.
    """
    whole = folder / "tests" / "contracts" / "miniature"
    shutil.copytree(MINIATURE, whole, ignore=shutil.ignore_patterns("__pycache__"))
    for package in (folder / "tests", folder / "tests" / "contracts"):
        (package / "__init__.py").touch()
    for name, (old, new) in changes.items():
        text = (whole / name).read_text(encoding="utf-8")
        assert old in text, f"{name} has no {old!r}"
        (whole / name).write_text(text.replace(old, new), encoding="utf-8")
    return whole


def checked(where: Path = MINIATURE, **options: Any) -> ContractReport:
    """Hold the stub of a miniature engine against its runner and its callers."""
    return check_stub(
        f"{where / 'stub.py'}:StubRunner",
        f"{where / 'runner.py'}:Runner",
        [where / name for name in CALLERS],
        **options,
    )


def told(report: ContractReport) -> list[tuple[str, str]]:
    """Return kind and name of every finding."""
    return [(found.kind, found.name) for found in report.findings]
