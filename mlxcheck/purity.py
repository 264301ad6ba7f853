"""Prove that the reference runs mlx-lm's own code: nobody has replaced a part of it.

An engine may patch mlx_lm or mlx when it is imported. The reference would then run the very
fault that it is there to find. So before it decodes, each name of each loaded module is held
against what the module's own file binds: functions and methods by their code, imported names
by identity with their source, names of the native ``mlx.core`` by being native.

What Python cannot see is out of reach: the inside of native code, and one native function
put in place of another.
"""

from __future__ import annotations

import builtins
import functools
import importlib.machinery
import sys
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING

from mlxcheck import pristine
from mlxcheck.culprit import describe, layers, top
from mlxcheck.errors import ReferenceTampered
from mlxcheck.pristine import UNKNOWN, Binding, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Purity", "prove_pure"]

LISTED = 5
"""Findings that the message names."""

MAKERS = frozenset({"dataclasses", "enum", "collections", "typing", "functools", "reprlib"})
"""Standard modules that put methods into a class which its file does not write out."""

IMPLICIT = frozenset({"__new__", "__init_subclass__", "__class_getitem__"})
"""Methods that Python itself makes static or class methods."""

_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Purity:
    """What a proof covered.

    Attributes:
        functions: Functions and methods held against their own file, native ones included.
        modules: Modules looked at.
        unverifiable: Modules whose loader has no code to compare with.
    """

    functions: int
    modules: int
    unverifiable: int


def prove_pure(packages: Sequence[str] = ("mlx_lm", "mlx")) -> Purity:
    """Prove that every loaded module of *packages* is what its own file says.

    Args:
        packages: Top-level packages; with each, all its modules that are loaded.

    Returns:
        How much was verified.

    Raises:
        ReferenceTampered: If a name is bound to something else; the text names it and
            who put what in its place.
    """
    proof = _Proof(packages)
    proof.run()
    if proof.findings:
        raise ReferenceTampered(_message(proof.findings))
    return Purity(
        functions=proof.functions, modules=proof.modules, unverifiable=proof.unverifiable
    )


def _message(findings: list[str]) -> str:
    """Write the paragraph, the first findings spelled out."""
    listed = "; ".join(findings[:LISTED])
    more = len(findings) - LISTED
    return (
        f"the reference is not plain mlx-lm: {listed}"
        + (f"; and {more} more" if more > 0 else "")
        + ". A patched reference proves nothing, so nothing was decoded: import the engine "
        "after the reference has run, or take its patch off first."
    )


class _Proof:
    """One walk over the loaded modules."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.findings: list[str] = []
        self.functions = self.modules = self.unverifiable = 0
        self._packages = frozenset(packages)
        self._loaded = {
            name: module
            for name, module in list(sys.modules.items())
            if top(name) in self._packages and isinstance(module, ModuleType)
        }
        self._codes: dict[str, CodeType | None] = {}

    def run(self) -> None:
        """Look at every module; a package without a file (a namespace) binds nothing."""
        for name, module in self._loaded.items():
            self.modules += 1
            code = self._code(name)
            if code is not None:
                _ModuleProof(self, module, code).run()
            elif self._is_native(name):
                self._native(module)
            else:
                self._unverifiable(name, module)

    def _code(self, name: str) -> CodeType | None:
        """Ask the module's loader for the code of its file; None where it has none."""
        if name not in self._codes:
            spec = getattr(self._loaded.get(name), "__spec__", None)
            get_code = getattr(getattr(spec, "loader", None), "get_code", None)
            try:
                code = get_code(name) if get_code else None
            except (ImportError, OSError, SyntaxError, EOFError, ValueError):
                code = None
            self._codes[name] = code if isinstance(code, CodeType) else None
        return self._codes[name]

    def _is_native(self, name: str) -> bool:
        """Tell whether a module is, or was made by, an extension."""
        loader = getattr(getattr(self._loaded.get(name), "__spec__", None), "loader", None)
        if isinstance(loader, importlib.machinery.ExtensionFileLoader):
            return True
        parent = name.rpartition(".")[0]
        return bool(parent) and loader is None and self._is_native(parent)

    def _unverifiable(self, name: str, module: ModuleType) -> None:
        """Count a module without code; one that hides a real file was put there."""
        parent = self._loaded.get(name.rpartition(".")[0])
        paths = list(getattr(parent, "__path__", ()))
        spec = importlib.machinery.PathFinder.find_spec(name, paths) if paths else None
        if module.__spec__ is None and spec is not None and spec.origin is not None:
            self.findings.append(f"module `{name}` is not the one in {spec.origin}")
        self.unverifiable += 1

    def _native(self, module: ModuleType) -> None:
        """Hold the names of a native module against being native."""
        for attr, value in vars(module).items():
            name = f"{module.__name__}.{attr}"
            if isinstance(value, ModuleType):
                if attr in {part.rpartition(".")[2] for part in self._loaded}:
                    self._expect(name, value, sys.modules.get(name, value))
            elif isinstance(value, type):
                self._native_type(name, value)
            elif callable(value) and not attr.startswith("__"):
                self.functions += 1
                if not _is_native_function(value) or top(value.__module__) not in self._packages:
                    self._found(name, value)

    def _native_type(self, name: str, kind: type) -> None:
        """Hold the methods of a native type against being native."""
        if type(kind).__module__ != "nanobind":
            if top(kind.__module__) not in self._packages:
                self._found(name, kind)
            return
        for attr, value in vars(kind).items():
            method = value.fget if isinstance(value, property) else value
            if callable(method):
                self.functions += 1
                if not _is_native_function(method):
                    self._found(f"{name}.{attr}", method)

    def _expect(self, name: str, live: object, expected: object) -> None:
        """Report *live* unless it is *expected*."""
        if live is not expected:
            self._found(name, live)

    def _found(self, name: str, live: object) -> None:
        """Report what stands where something else should."""
        self.findings.append(f"`{name}` was replaced by {describe(live)}")

    def genuine(self, function: FunctionType) -> bool:
        """Tell whether a function is one that its own module's file defines."""
        name = function.__globals__.get("__name__")
        module = self._loaded.get(name) if isinstance(name, str) else None
        if module is None or vars(module) is not function.__globals__:
            return False
        code = self._code(str(name))
        return code is not None and function.__code__ in pristine.nested(code)


def _is_native_function(value: object) -> bool:
    """Tell whether a callable is made by an extension or by Python itself."""
    return type(value).__module__ in {"nanobind", "builtins"} and not isinstance(
        value, FunctionType | type
    )


class _ModuleProof:
    """One module held against its file."""

    def __init__(self, proof: _Proof, module: ModuleType, code: CodeType) -> None:
        self._proof = proof
        self._module = module
        self._globals = vars(module)
        self._code = code
        package = module.__package__ or module.__name__.rpartition(".")[0]
        self._package = package
        self._scope = pristine.read(code, package)
        self._rebound: set[str] | None = None
        self._known = frozenset().union(self._scope.imported, MAKERS, ("contextlib", "abc"))

    def run(self) -> None:
        """Check each name that the file binds, and those that it does not."""
        name = self._module.__name__
        for attr, bindings in self._scope.names.items():
            live = self._globals.get(attr, _MISSING)
            if live is not _MISSING and attr not in self._scope.deleted:
                self._check(f"{name}.{attr}", attr, live, bindings, None)
        for attr, live in list(self._globals.items()):
            if attr not in self._scope.names and not attr.startswith("__"):
                self._check_unbound(f"{name}.{attr}", attr, live)

    def _check_unbound(self, name: str, attr: str, live: object) -> None:
        """Check a name that came by ``import *``, or from outside."""
        sources = [vars(sys.modules[star]) for star in self._scope.stars if star in sys.modules]
        offered = [source[attr] for source in sources if attr in source]
        if offered:
            if _is_code(live) and all(live is not value for value in offered):
                self._proof._found(name, live)
        elif callable(live) and hasattr(builtins, attr):
            # A global of this name hides the builtin from every function of the module.
            self._proof._found(name, live)
