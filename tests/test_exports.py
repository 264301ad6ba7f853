"""The public surface is a list: complete, sorted, documented, and free until it is used."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from importlib import metadata
from itertools import zip_longest

import pytest

import mlxcheck
from tests.support.architecture import package_sources

SOURCES = package_sources()
TREES = {name: ast.parse(source) for name, source in SOURCES.items()}
HEAVY = ("hypothesis", "mlx", "mlx_lm", "numpy", "pytest", "rich", "torch", "transformers")


def listed(tree: ast.Module) -> list[str] | None:
    """Return a module's `__all__`, or None where it has none that can be read."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and target.id == "__all__":
            names: list[str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            return names
    return None


def in_order(names: list[str]) -> list[str]:
    """Sort names as ruff does: constants, classes, the rest; each by their letters."""

    def key(name: str) -> tuple[int, str]:
        if name.isupper() and len(name) > 1:
            return 0, name
        return (1 if name[0].isupper() else 2), name

    return sorted(names, key=key)


def documented(tree: ast.Module) -> set[str]:
    """Return the names of a module that have a docstring, in whichever way."""
    found: set[str] = set()
    for node, after in zip_longest(tree.body, tree.body[1:]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {node.name} if ast.get_docstring(node) else set()
        elif isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found |= {item.id for item in ast.walk(node) if isinstance(item, ast.Name)}
    return found


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module defines at its top itself, rather than imports."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = [item for item in ast.walk(node) if isinstance(item, ast.Name)]
            found |= {item.id for item in names if isinstance(item.ctx, ast.Store)}
    return found


# --- The top --------------------------------------------------------------------------------


def test_every_public_name_has_a_home() -> None:
    """The list at the top is the table of homes and the version, sorted."""
    assert mlxcheck.__all__ == sorted([*mlxcheck._HOMES, "__version__"])
    assert dir(mlxcheck) == mlxcheck.__all__


@pytest.mark.parametrize("name", sorted(mlxcheck._HOMES))
def test_a_public_name_is_that_of_its_home(name: str) -> None:
    """Each name is fetched from its home, is the same object there, and is public there."""
    home = importlib.import_module(f"mlxcheck.{mlxcheck._HOMES[name]}")

    assert getattr(mlxcheck, name) is getattr(home, name)
    assert name in home.__all__


def test_type_checkers_see_the_same_names_from_the_same_homes() -> None:
    """The imports for type checkers and the table for the interpreter agree."""
    (guard,) = [node for node in TREES["__init__"].body if isinstance(node, ast.If)]

    seen = {
        alias.name: (node.module or "").removeprefix("mlxcheck.")
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert seen == mlxcheck._HOMES


def test_version_is_the_installed_ones() -> None:
    """The version is that of the package's metadata."""
    assert mlxcheck.__version__ == metadata.version("mlxcheck")


def test_a_name_that_is_not_there() -> None:
    """An unknown name is an AttributeError like any other module's."""
    with pytest.raises(AttributeError, match="module 'mlxcheck' has no attribute 'chek'"):
        mlxcheck.chek  # noqa: B018 - the access is what is tested


# --- Every module ---------------------------------------------------------------------------


@pytest.mark.parametrize("module", sorted(TREES))
def test_a_module_lists_its_public_names(module: str) -> None:
    """Each module has a docstring and a sorted `__all__` of names that it has."""
    tree = TREES[module]
    names = listed(tree)

    assert ast.get_docstring(tree), "no docstring"
    assert names is not None, "no __all__"
    assert names == in_order(names)
    assert len(set(names)) == len(names)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(names) <= defined(tree) | imported | {"__version__"}


@pytest.mark.parametrize("module", sorted(set(TREES) - {"__init__"}))
def test_public_names_are_documented(module: str) -> None:
    """What a module lists and defines has a docstring, constants and aliases too."""
    tree = TREES[module]

    public = set(listed(tree) or ()) & defined(tree)

    assert public - documented(tree) == set()


@pytest.mark.parametrize("module", sorted(TREES))
def test_public_methods_are_documented(module: str) -> None:
    """Each public method of a listed class says what it does."""
    names = set(listed(TREES[module]) or ())
    bare = [
        f"{node.name}.{method.name}"
        for node in TREES[module].body
        if isinstance(node, ast.ClassDef) and node.name in names
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        if not method.name.startswith("_") and not ast.get_docstring(method)
    ]

    assert bare == []


def test_the_rules_are_seen_to_fail() -> None:
    """A module that breaks each of them is found out."""
    tree = ast.parse(
        '__all__ = ["b", "A", "NUMBER", "TOLD"]\n'
        "NUMBER = 7\n"
        'TOLD = 7\n"""Why seven."""\n'
        "class A: pass\n"
        'def b():\n    """Do."""\n'
    )

    assert listed(tree) == ["b", "A", "NUMBER", "TOLD"]
    assert in_order(["b", "A", "NUMBER", "TOLD"]) == ["NUMBER", "TOLD", "A", "b"]
    assert defined(tree) == {"__all__", "NUMBER", "TOLD", "A", "b"}
    assert documented(tree) == {"TOLD", "b"}
    assert listed(ast.parse("x = 1")) is None


# --- What importing costs -------------------------------------------------------------------


def imported_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter imports for a line of code."""
    script = (
        "import sys\nbefore = set(sys.modules)\n"
        f"{code}\nprint(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    """`import mlxcheck` costs one small module, and none of anybody else."""
    found = imported_by("import mlxcheck")

    ours = {name for name in found if re.match(r"mlxcheck(\.|$)", name)}
    others = {name.partition(".")[0] for name in found - ours}
    assert ours == {"mlxcheck"}
    assert others <= sys.stdlib_module_names


def test_public_names_cost_no_engine() -> None:
    """Fetching every public name still loads no engine, terminal or test library."""
    found = imported_by("from mlxcheck import *\nimport mlxcheck.backends.registry")

    assert "mlxcheck.assertions" in found
    assert {name.partition(".")[0] for name in found} & set(HEAVY) == set()
