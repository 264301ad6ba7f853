"""The plan of the house is kept, and each rule of it is seen to fail."""

from __future__ import annotations

import pytest

from tests.support import architecture
from tests.support.architecture import (
    Import,
    bad_imports,
    bad_libraries,
    dead_rows,
    imports_of,
    package_sources,
    too_long,
)

SOURCES = package_sources()
EMPTY = dict.fromkeys(SOURCES, "")
"""The package with nothing in it, to plant things in."""


def test_imports_go_down_only() -> None:
    """No module imports one of its own layer or above, unless they are listed neighbours."""
    assert bad_imports(SOURCES) == []


def test_each_library_lives_in_its_room() -> None:
    """No library is named outside its room, none is imported that has no room."""
    assert bad_libraries(SOURCES) == []


def test_rooms_are_small() -> None:
    """No module and no function is longer than a reader can hold."""
    assert too_long(SOURCES) == []


def test_the_plan_has_no_dead_rows() -> None:
    """Every name in the table of layers belongs to a module."""
    assert dead_rows(SOURCES) == []


def test_the_sources_are_the_package() -> None:
    """What the rules are held against is the whole package, folders included."""
    assert {"__init__", "run", "checks", "checks.batch", "backends.base"} <= set(SOURCES)
    assert "def record(" in SOURCES["recording"]


# --- Each rule, broken on purpose -----------------------------------------------------------


def test_every_kind_of_import_is_seen() -> None:
    """Plain, from, aliased, nested, guarded and by name: none gets past."""
    source = """\
import rich.table as table, os
from mlxcheck.records import Case, Trace
if TYPE_CHECKING:
    import mlx
else:
    import torch
class Engine:
    import psutil
    def load(self):
        from mlx_lm import load
try:
    import numpy
except ImportError:
    x = lambda: importlib.import_module("hypothesis")
from . import session
"""

    assert imports_of(source) == [
        Import(target="rich.table", line=1, late=False, typing=False),
        Import(target="os", line=1, late=False, typing=False),
        Import(target="mlxcheck.records.Case", line=2, late=False, typing=False),
        Import(target="mlxcheck.records.Trace", line=2, late=False, typing=False),
        Import(target="mlx", line=4, late=False, typing=True),
        Import(target="torch", line=6, late=False, typing=False),
        Import(target="psutil", line=8, late=False, typing=False),
        Import(target="mlx_lm.load", line=10, late=True, typing=False),
        Import(target="numpy", line=12, late=False, typing=False),
        Import(target="hypothesis", line=14, late=True, typing=False),
        Import(target="..session", line=15, late=False, typing=False),
    ]


@pytest.mark.parametrize(
    ("module", "source", "target"),
    [
        ("records", "from mlxcheck.errors import UsageError", "errors"),
        ("records", "import mlxcheck.report", "report"),
        ("compare", "from mlxcheck import session", "session"),
        ("compare", "def f():\n    from mlxcheck.session import Session", "session"),
        ("compare", "from mlxcheck.report import Report", "report"),
        ("messages", "from mlxcheck.compare import compare_tokens", "compare"),
        ("need", "from mlxcheck import memory", "memory"),
        ("backends.function", "from mlxcheck.backends.registry import resolve", None),
        ("backends.base", "from mlxcheck.checks.base import Check", "checks.base"),
        ("reference", "from mlxcheck.backends.mlx_lm import MlxLmBackend", None),
        ("session", "from mlxcheck.checks import ALL", "checks"),
        ("checks.base", "from mlxcheck.checks.batch import Batch", "checks.batch"),
        ("checks.tokens", "from mlxcheck import checks", "checks"),
        ("run", "from mlxcheck.render.terminal import show", "render.terminal"),
        ("assertions", "from mlxcheck.render import progress", "render.progress"),
        ("render.terminal", "from mlxcheck.cli import main", "cli"),
        ("command", "from mlxcheck import cli", "cli"),
        ("cli", "import mlxcheck.plugin", "plugin"),
        ("cli", "from mlxcheck import check", "__init__"),
        ("cli", "import mlxcheck", "__init__"),
    ],
)
def test_an_import_that_does_not_go_down(module: str, source: str, target: str | None) -> None:
    """An import upwards or sideways is found, inside functions too, and named."""
    (found,) = bad_imports({**EMPTY, module: source})

    assert found.startswith(f"{module}:")
    assert target is None or f"imports {target}, which is not below" in found


def test_an_import_downwards_or_for_types_is_none_of_them() -> None:
    """What the rules allow is not found."""
    allowed = """\
from mlxcheck import checks
from mlxcheck.backends.base import Request
from mlxcheck.session import Session
if TYPE_CHECKING:
    from mlxcheck.render.terminal import show
"""

    assert bad_imports({**EMPTY, "run": allowed}) == []


def test_a_relative_import() -> None:
    """Modules are named whole."""
    (found,) = bad_imports({**EMPTY, "run": "from .session import Session"})

    assert found == "run:1: relative import; name the module whole"


@pytest.mark.parametrize("module", ["sweep", "backends_of_mine", "tools.sweep"])
def test_a_module_without_a_layer(module: str) -> None:
    """A new module is told where to be written down."""
    (found,) = bad_imports({**EMPTY, module: ""})

    assert found.startswith(f"{module}: has no layer; give it a place in LAYERS of ")
    assert found.endswith("architecture.py")


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("cli", "import rich", "imports rich, which lives in render.*"),
        ("render", "from rich.table import Table", "imports rich, which lives in render.*"),
        ("run", "def f():\n    import psutil", "imports psutil, which lives in memory"),
        ("checks.base", "import pytest", "imports pytest, which lives in plugin"),
        ("run", "from huggingface_hub import x", "huggingface_hub, which lives in checkpoint"),
        ("backends.mlx_lm", "def f():\n    import torch", "torch, which lives in backends.sg"),
        ("run", "from sglang.srt import x", "imports sglang, which lives in backends.sglang*"),
        ("plugin", "import numpy", "imports numpy, which has no room; see ROOMS of"),
        ("compare", "import numpy as np", "imports numpy, which has no room; see ROOMS of"),
        ("cli", "if TYPE_CHECKING:\n    from rich.table import Table", "imports rich, which"),
        ("run", 'x = importlib.import_module("rich.table")', "imports rich, which lives in"),
        ("reference", "import mlx.core as mx", "imports mlx at module level"),
        ("backends.mlx_lm", "from mlx_lm import load", "imports mlx_lm at module level"),
        ("backends.sglang", "import torch", "imports torch at module level"),
        ("run", "class A:\n    import mlx", "imports mlx at module level"),
    ],
)
def test_a_library_in_the_wrong_room(module: str, source: str, expected: str) -> None:
    """A library outside its room, without one, or loaded too early is found and named."""
    (found,) = bad_libraries({**EMPTY, module: source})

    assert found.startswith(f"{module}:")
    assert expected in found


def test_libraries_where_they_belong_are_none_of_them() -> None:
    """In its room a library is let be; mlx is everywhere, in functions or for types."""
    late = "if TYPE_CHECKING:\n    import mlx.core as mx\ndef f():\n    import mlx_lm"

    assert (
        bad_libraries({"run": late, "render.html": "import rich", "plugin": "import os"}) == []
    )


def test_a_module_that_is_too_long() -> None:
    """One line more than allowed is too many."""
    limit = architecture.MODULE_LINES

    assert too_long({"run": "x = 1\n" * limit}) == []
    assert too_long({"run": "x = 1\n" * (limit + 1)}) == ["run: 401 lines, 400 at most"]


@pytest.mark.parametrize("head", ["def f():", "async def f():", "class A:\n  def f(self):"])
def test_a_function_that_is_too_long(head: str) -> None:
    """A body of one line more than allowed is too long; its docstring is not counted."""
    doc = '    """What.\n\n    Why.\n    """'
    limit = architecture.FUNCTION_LINES

    def source(lines: int) -> str:
        return "\n".join([head, doc, *["    x = 1"] * lines])

    assert too_long({"run": source(limit)}) == []
    assert too_long({"run": source(limit + 1)}) == ["run.f: 41 lines, 40 at most"]


def test_a_row_that_is_dead() -> None:
    """A row is dead once its module is gone; a folder's once it is empty."""
    left = {name: text for name, text in EMPTY.items() if not name.startswith("render")}
    del left["need"]

    assert dead_rows(left) == ["need", "render", "render.*"]
