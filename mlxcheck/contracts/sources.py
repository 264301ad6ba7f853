"""Modules and classes as they stand in their files: nothing here imports what it reads.

So releases that are not installed, or cannot be imported on this machine, can be looked at.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from mlxcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Definition", "Library", "Source", "scope_nodes"]

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
"""What a name of a module may lead to."""


@dataclass(frozen=True, eq=False)
class Source:
    """One file of Python.

    Attributes:
        path: Where it lies.
        tree: What it says.
    """

    path: Path
    tree: ast.Module

    @cached_property
    def root(self) -> Path:
        """The folder that its top package lies in."""
        packages = [up for up in self.path.parents if (up / "__init__.py").is_file()]
        return packages[-1].parent if packages else self.path.parent

    @cached_property
    def module(self) -> str:
        """Its dotted name."""
        parts = self.path.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def shown(self) -> str:
        """The path from its top package on."""
        return self.path.relative_to(self.root).as_posix()

    @cached_property
    def imports(self) -> dict[str, str]:
        """What each imported name is, as a dotted name, wherever in the file it is imported."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    found[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                start = self._package(node.level) if node.level else ""
                where = ".".join(part for part in (start, node.module) if part)
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{where}.{alias.name}"
        return found

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Its classes and functions by qualified name, as Python would name them."""
        return dict(_definitions(self.tree, ""))

    def _package(self, level: int) -> str:
        parts = self.module.split(".")
        keep = len(parts) - level + (self.path.name == "__init__.py")
        return ".".join(parts[:keep])


class Library:
    """Finds modules and what their names mean, and reads each file once."""

    def __init__(self) -> None:
        self._sources: dict[Path, Source] = {}

    def read(self, path: Path) -> Source:
        """Return a file's source.

        Raises:
            UsageError: It cannot be read, or is no Python of this version.
        """
        path = path.resolve()
        if path not in self._sources:
            try:
                tree = ast.parse(path.read_bytes(), filename=str(path))
            except OSError as error:
                msg = f"{path}: the source cannot be read: {error.strerror}."
                raise UsageError(msg) from error
            except (SyntaxError, ValueError) as error:
                msg = f"{path}: this is no Python that {sys.version.split()[0]} reads: {error}."
                raise UsageError(msg) from error
            self._sources[path] = Source(path, tree)
        return self._sources[path]

    def module(self, name: str, near: Source | None = None) -> Source | None:
        """Return a module's source by its dotted name, without importing anything.

        Args:
            name: Such as ``package.module``.
            near: A file whose own tree is looked through first, so that a release that lies
                in a folder is not mixed with an installed one.
        """
        parts = name.split(".")
        for up in near.path.parents if near else ():
            if (up / parts[0]).is_dir() and (up / parts[0] / "__init__.py").is_file():
                return self._under(up, parts)
        for up in near.path.parents if near else ():
            found = self._under(up, parts)
            if found:
                return found
        return self._installed(parts)

    def definition(self, name: str, near: Source) -> tuple[Source, Definition] | None:
        """Return the class or function that a name in a file leads to, through re-exports."""
        for _ in range(8):
            if name in near.definitions:
                return near, near.definitions[name]
            head, _, rest = name.partition(".")
            if head not in near.imports:
                return None
            whole = ".".join(part for part in (near.imports[head], rest) if part)
            module, _, name = whole.rpartition(".")
            found = self.module(module, near) if module else None
            if found is None:
                return None
            near = found
        return None

    def locate(self, what: object) -> tuple[Source, Definition]:
        """Return a class or function given as an object or as ``module-or-path.py:Name``.

        Raises:
            UsageError: There is none, or its source is not there.
        """
        if callable(what) and not isinstance(what, type):
            what = inspect.unwrap(getattr(what, "__func__", what))
        if isinstance(what, type | FunctionType):
            source, name = self._of_object(what), what.__qualname__
        elif isinstance(what, str) and ":" in what:
            where, _, name = what.rpartition(":")
            source = self.modules(where)[0]
        else:
            msg = (
                f"{what!r}: expected a class or function, or text such as "
                "package.module:Class or file.py:Class."
            )
            raise UsageError(msg)
        if name not in source.definitions:
            reached = self.definition(name, source)
            if reached is None:
                near = ", ".join(sorted(k for k in source.definitions if "." not in k)[:8])
                msg = f"{source.path}: there is no {name}. It defines {near or 'nothing'}."
                raise UsageError(msg)
            return reached
        return source, source.definitions[name]

    def modules(self, what: object) -> list[Source]:
        """Return the sources of a module, class, file or folder.

        Raises:
            UsageError: There are none.
        """
        if isinstance(what, ModuleType) and what.__file__:
            return [self.read(Path(what.__file__))]
        if isinstance(what, type | FunctionType):
            return [self._of_object(what)]
        if isinstance(what, str | Path) and (path := Path(what)).exists():
            files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            if files:
                return [self.read(file) for file in files]
        elif isinstance(what, str) and all(part.isidentifier() for part in what.split(".")):
            found = self.module(what)
            if found:
                return [found]
        msg = (
            f"{what!r}: no source. Name a module that is installed, a .py file or a folder of "
            "such files."
        )
        raise UsageError(msg)

    def _of_object(self, what: type | FunctionType) -> Source:
        try:
            file = inspect.getsourcefile(what)
        except TypeError:
            file = None
        if file is None or not Path(file).is_file():
            msg = f"{what.__module__}.{what.__qualname__}: its source is not there."
            raise UsageError(msg)
        return self.read(Path(file))

    def _installed(self, parts: list[str]) -> Source | None:
        try:
            spec = importlib.util.find_spec(parts[0])
        except (ImportError, ValueError):
            return None
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            found = self._under(Path(folder).parent, parts)
            if found:
                return found
        if spec and len(parts) == 1 and spec.origin and spec.origin.endswith(".py"):
            return self.read(Path(spec.origin))
        return None

    def _under(self, folder: Path, parts: list[str]) -> Source | None:
        stem = folder.joinpath(*parts)
        for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
            if path.is_file():
                return self.read(path)
        return None


def scope_nodes(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, those under ``if``, ``try`` and the like included."""
    for node in body:
        yield node
        if isinstance(node, Definition):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from scope_nodes(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from scope_nodes(handler.body)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
    for child in scope_nodes(getattr(node, "body", [])):
        if isinstance(child, Definition):
            yield f"{prefix}{child.name}", child
            inner = "" if isinstance(child, ast.ClassDef) else "<locals>."
            yield from _definitions(child, f"{prefix}{child.name}.{inner}")
