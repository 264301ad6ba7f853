"""Whatever people write can be gone through: nothing raises, nothing runs away."""

from __future__ import annotations

import ast
from pathlib import Path

import mlx_lm
import pytest
import rich

from mlxcheck.contracts import check_stub
from mlxcheck.contracts.classes import class_model
from mlxcheck.contracts.lifecycle import Lifecycle
from mlxcheck.contracts.sources import Library

FOLDERS = [Path(str(package.__file__)).parent for package in (rich, mlx_lm)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_class_of_a_package_can_be_followed(folder: Path) -> None:
    """From its constructor, and through each of its methods."""
    library, classes, methods = Library(), 0, 0
    for file in sorted(folder.rglob("*.py")):
        source = library.read(file)
        for node in source.definitions.values():
            if isinstance(node, ast.ClassDef):
                model = class_model(library, source, node)
                made = Lifecycle(model)
                state = made.construct()
                classes += 1
                for member in model.members.values():
                    life = Lifecycle(model)
                    life.enter(member, state, ())
                    methods += member.function is not None
                    assert not life.cut, f"{file}: {model.name}.{member.name}"

    assert classes > 100
    assert methods > 300


def test_every_file_of_a_package_can_be_a_caller() -> None:
    """Of a class that much of it uses; it is no stub of itself, so that nothing is wrong."""
    package = FOLDERS[0]

    report = check_stub(
        f"{package / 'console.py'}:Console", f"{package / 'console.py'}:Console", [package]
    )

    assert report.files > 50
    assert report.reads + report.calls > 200
    assert [found.name for found in report.findings] == []
