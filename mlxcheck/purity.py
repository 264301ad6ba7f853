"""Prove that the reference runs mlx-lm's own code: nobody has replaced a part of it.

An engine may patch mlx_lm or mlx when it is imported. The reference would then run the very
fault that it is there to find. So before it decodes, each name of each loaded module is held
against what the module's own file binds: functions and methods by their code, imported names
by identity with their source, names of the native ``mlx.core`` by being native.

Out of reach: the inside of native code, one native function of mlx in place of another,
tables and numbers, and attributes set on a single object.
"""

from __future__ import annotations

import builtins
import sys
from dataclasses import dataclass
from enum import EnumMeta
from importlib.machinery import ExtensionFileLoader, PathFinder
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING

from mlxcheck import pristine
from mlxcheck.errors import ReferenceTampered
from mlxcheck.wrappers import (
    describe,
    home,
    is_code,
    is_function,
    is_generated,
    is_native,
    is_shell,
    replaced,
    top,
    unwrap,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.pristine import Binding

__all__ = ["Purity", "prove_pure"]

LISTED = 5
"""Findings that the message names."""

MAKERS = frozenset(("abc", "builtins", "collections", "dataclasses", "enum", "functools"))
MAKERS |= {"reprlib", "types", "typing"}
"""Standard modules that put methods into a class which its file does not write out."""

IMPLICIT = frozenset({"__new__", "__init_subclass__", "__class_getitem__"})
"""Methods that Python makes static or class methods without a decorator."""

_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Purity:
    """What a proof covered.

    Attributes:
        functions: Functions and methods that were verified, native ones included.
        modules: Modules that were looked at.
        unverifiable: Those of them whose loader has no code to compare with.
    """

    functions: int
    modules: int
    unverifiable: int


def prove_pure(packages: Sequence[str] = ("mlx_lm", "mlx")) -> Purity:
    """Prove that every loaded module of *packages* is what its own file says.

    Args:
        packages: Top-level packages; of each, all modules that are loaded.

    Returns:
        How much was verified.

    Raises:
        ReferenceTampered: If a name is bound to something else. The text names it, and
            what was put in its place, from where.
    """
    proof = _Proof(packages)
    proof.run()
    if proof.findings:
        raise ReferenceTampered(_message(proof.findings))
    return Purity(
        functions=proof.functions, modules=proof.modules, unverifiable=proof.unverifiable
    )


def _message(findings: Sequence[str]) -> str:
    """Write the paragraph, the first findings spelled out."""
    more = len(findings) - LISTED
    return (
        f"the reference is not plain mlx-lm: {'; '.join(findings[:LISTED])}"
        + (f"; and {more} more" if more > 0 else "")
        + ". A patched reference proves nothing, so it was not run: import the engine after "
        "the reference has run, or take its patch off first."
    )


class _Proof:
    """One walk over the loaded modules of some packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.findings: list[str] = []
        self.functions = self.modules = self.unverifiable = 0
        self.packages = frozenset(packages)
        self.loaded = {
            name: module
            for name, module in list(sys.modules.items())
            if top(name) in self.packages and isinstance(module, ModuleType)
        }
        self._codes: dict[str, CodeType | None] = {}
        self._trees: dict[str, dict[str, list[CodeType]]] = {}

    def run(self) -> None:
        """Look at every module."""
        for name, module in self.loaded.items():
            self.modules += 1
            code = self._code(name)
            if code is not None:
                _ModuleProof(self, module, code).run()
            elif self._native(name):
                self._check_native(module)
            else:
                self._check_unverifiable(name, module)

    def genuine(self, function: FunctionType) -> bool:
        """Tell whether a function is one that the file of its own module defines."""
        name = home(function)
        module = self.loaded.get(name)
        if module is None or vars(module) is not function.__globals__:
            return False
        if name not in self._trees:
            tree = self._trees[name] = {}
            code = self._code(name)
            for inner in pristine.nested(code) if code is not None else ():
                tree.setdefault(inner.co_qualname, []).append(inner)
        wanted = function.__code__
        return wanted in self._trees[name].get(wanted.co_qualname, ())

    def _code(self, name: str) -> CodeType | None:
        """Ask the module's loader for the code of its file; None where it has none."""
        if name not in self._codes:
            loader = getattr(self.loaded[name].__spec__, "loader", None)
            get_code = getattr(loader, "get_code", None)
            try:
                code = get_code(name) if get_code is not None else None
            except (ImportError, OSError, SyntaxError, EOFError, ValueError):
                code = None
            self._codes[name] = code if isinstance(code, CodeType) else None
        return self._codes[name]

    def _native(self, name: str) -> bool:
        """Tell whether a module is an extension, or a part that an extension made."""
        module = self.loaded.get(name)
        if module is None:
            return False
        if isinstance(getattr(module.__spec__, "loader", None), ExtensionFileLoader):
            return True
        return module.__spec__ is None and self._native(name.rpartition(".")[0])

    def _check_unverifiable(self, name: str, module: ModuleType) -> None:
        """Count a module without code; one that hides a file of its name was put there."""
        parent = self.loaded.get(name.rpartition(".")[0])
        paths = getattr(parent, "__path__", None)
        spec = PathFinder.find_spec(name, list(paths)) if paths else None
        if module.__spec__ is None and spec is not None and spec.has_location:
            self.findings.append(f"module `{name}` is not the one in {spec.origin}")
        self.unverifiable += 1

    def _check_native(self, module: ModuleType) -> None:
        """Hold the names of a native module against being native and of these packages."""
        for attr, live in list(vars(module).items()):
            name = f"{module.__name__}.{attr}"
            if name in sys.modules:
                if live is not sys.modules[name]:
                    self.findings.append(replaced(name, live))
            elif isinstance(live, type):
                self._check_native_type(name, live)
            elif callable(live) and not attr.startswith("__"):
                self.functions += 1
                if not is_native(live) or top(home(live)) not in self.packages:
                    self.findings.append(replaced(name, live))

    def _check_native_type(self, name: str, live: type) -> None:
        """Hold the methods of a native type against being native."""
        if top(live.__module__) not in self.packages:
            self.findings.append(replaced(name, live))
        elif type(live).__module__ == "nanobind":
            for attr, value in list(vars(live).items()):
                method = value.fget if isinstance(value, property) else value
                if is_code(method):
                    self.functions += 1
                    if not is_native(method) or isinstance(method, staticmethod | classmethod):
                        self.findings.append(replaced(f"{name}.{attr}", method))


class _ModuleProof:
    """One module held against the code of its file."""

    def __init__(self, proof: _Proof, module: ModuleType, code: CodeType) -> None:
        self._proof = proof
        self._name = module.__name__
        self._globals = vars(module)
        self._code = code
        self._package = module.__package__ or self._name.rpartition(".")[0]
        self._scope = pristine.read(code, self._package)
        self._known = self._scope.imported | MAKERS | proof.packages | {"contextlib"}
        self._rebound: set[str] | None = None

    def run(self) -> None:
        """Check each name that the file binds, and those that it does not."""
        for attr, bindings in self._scope.names.items():
            live = self._globals.get(attr, _MISSING)
            # A name that is gone fails loudly where it is used; it cannot mislead.
            if live is not _MISSING and attr not in self._scope.deleted:
                name = f"{self._name}.{attr}"
                self._proof.findings.extend(self._check(name, live, bindings))
        for attr, live in list(self._globals.items()):
            if attr not in self._scope.names and not attr.startswith("__"):
                self._check_unbound(attr, live)

    def _check_unbound(self, attr: str, live: object) -> None:
        """Check a submodule, a name that came by ``import *``, or one from outside."""
        name = f"{self._name}.{attr}"
        stars = [vars(sys.modules[star]) for star in self._scope.stars if star in sys.modules]
        offered = [names[attr] for names in stars if attr in names]
        if offered:
            wrong = is_code(live) and all(live is not value for value in offered)
            wrong = wrong and not self._original(live, home(live), attr)
        elif name in self._proof.loaded:
            wrong = live is not self._proof.loaded[name]
        else:
            # A global with the name of a builtin hides it from this module's functions.
            wrong = callable(live) and hasattr(builtins, attr)
        if wrong:
            self._proof.findings.append(replaced(name, live))

    def _check(self, name: str, live: object, bindings: Sequence[Binding]) -> list[str]:
        """Check a name against every statement that may have bound it last."""
        self._proof.functions += any(binding.kind == "def" for binding in bindings)
        problems: list[str] = []
        for binding in bindings:
            problems = self._problems(name, live, binding)
            if not problems:
                return []
        if self._rebinds(name.rpartition(".")[2]) and not self._foreign(live):
            return []
        return problems

    def _problems(self, name: str, live: object, binding: Binding) -> list[str]:
        """Say what is wrong with *live*, if *binding* is what made it."""
        code = binding.code
        if binding.kind == "class" and code is not None:
            return self._class_problems(name, live, code)
        if binding.plain:
            return self._plain_problems(name, live, binding)
        if binding.kind == "from":
            culprits = self._not_imported(live, binding)
        elif binding.kind == "import":
            culprits = self._not_module(live, binding.module)
        else:
            culprits = self._foreign(live, code)
        return [replaced(name, culprit) for culprit in culprits]

    def _rebinds(self, attr: str) -> bool:
        """Tell whether a function of the module rebinds *attr* by a ``global`` statement."""
        if self._rebound is None:
            self._rebound = pristine.stored_globals(self._code)
        return attr in self._rebound

    def _not_imported(self, live: object, binding: Binding) -> list[object]:
        """Hold ``from module import attr`` against that attribute as it is now."""
        source = sys.modules.get(binding.module)
        # Not getattr: a lazy module would start to import things.
        expected = vars(source).get(binding.attr, _MISSING) if source else _MISSING
        if expected is _MISSING:
            expected = sys.modules.get(f"{binding.module}.{binding.attr}", _MISSING)
        if live is expected:
            return []
        if expected is _MISSING:
            return self._foreign(live)
        if not is_code(live) and not is_code(expected):
            return []
        if self._original(live, binding.module, binding.attr):
            return []  # it is the source that was changed, after this import; told there
        # Where a foreign package was patched, mlx-lm may still hold the original: no matter.
        origin = top(binding.module)
        if origin not in self._proof.packages and top(home(live)) == origin:
            return []
        return [live]

    def _original(self, live: object, module: str, attr: str) -> bool:
        """Tell whether *live* is what the file of *module* calls *attr*, as it was made."""
        if is_function(live):
            own = home(live) == module and live.__code__.co_qualname == attr
            return own and self._proof.genuine(live)
        if not isinstance(live, type) or (live.__module__, live.__qualname__) != (module, attr):
            return False
        functions = [value for value in vars(live).values() if is_function(value)]
        return all(
            self._proof.genuine(found) or top(home(found)) in MAKERS or is_generated(found)
            for found in functions
        )

    def _not_module(self, live: object, module: str) -> list[object]:
        """Hold ``import module`` against that module as it is now."""
        if live is sys.modules.get(module):
            return []
        # A foreign module may have been loaded again since; the older copy is as good.
        foreign = top(module) not in self._proof.packages
        return [] if foreign and home(live) == module else [live]

    def _plain_problems(self, name: str, live: object, binding: Binding) -> list[str]:
        """Hold an undecorated function against its code: no wrapper is allowed here."""
        if name.rpartition(".")[2] in IMPLICIT and isinstance(live, staticmethod | classmethod):
            live = live.__func__
        if not is_function(live) or not self._is_own(live, binding.code):
            return [replaced(name, live)]
        changed = pristine.changed_defaults(live, binding)
        return [f"the default arguments of `{name}` were changed to {text}" for text in changed]

    def _is_own(self, live: object, code: CodeType | None) -> bool:
        """Tell whether *live* is the very function that *code* makes in this module."""
        return is_function(live) and live.__code__ == code and live.__globals__ is self._globals

    def _foreign(self, live: object, code: CodeType | None = None) -> list[object]:
        """Find, under the wrappers, what neither this file nor its imports can have put there.

        With *code* the innermost has to be the function that it makes.
        """
        queue, seen, reached = [live], set[int](), code is None
        while queue:
            obj = queue.pop()
            if id(obj) in seen:
                continue
            seen.add(id(obj))
            if code is not None and self._is_own(obj, code):
                reached = True
                continue
            if not self._trusted(obj):
                return [obj]
            queue.extend(unwrap(obj))
        return [] if reached else [live]

    def _trusted(self, obj: object) -> bool:
        """Tell whether one layer comes from this file, its imports or mlx's own code."""
        if not is_code(obj) or isinstance(obj, ModuleType) or is_shell(obj):
            return True
        if is_function(obj) and top(home(obj)) in self._proof.packages:
            return self._proof.genuine(obj)
        origin = top(home(obj))
        # A kernel that mlx compiles from source text is native and has no name.
        return origin in self._known or (not origin and is_native(obj))

    def _class_problems(self, name: str, live: object, code: CodeType) -> list[str]:
        """Hold a class and all that is in it against its body."""
        scope = pristine.read(code, self._package)
        expected = (self._name, code.co_qualname)
        if not isinstance(live, type) or (live.__module__, live.__qualname__) != expected:
            return [replaced(name, live)]
        own, problems = vars(live), []
        for attr, bindings in scope.names.items():
            value = own.get(attr, _MISSING)
            if attr in scope.deleted or (attr == "__new__" and isinstance(live, EnumMeta)):
                continue
            if value is not _MISSING:
                problems += self._check(f"{name}.{attr}", value, bindings)
            elif not scope.branches and all(binding.kind == "def" for binding in bindings):
                problems.append(f"`{name}.{attr}` was removed")
        for attr, value in list(own.items()):
            if attr not in scope.names and self._is_added(live, value):
                whose = "which its file does not define"
                problems.append(f"`{name}.{attr}`, {whose}, was set to {describe(value)}")
        return problems

    def _is_added(self, owner: type, value: object) -> bool:
        """Tell whether a value in a class was put there after its file had made it."""
        if not is_code(value):
            return False
        makes = hasattr(owner, "__dataclass_fields__") or issubclass(owner, tuple)
        queue = [value]
        while queue:
            obj = queue.pop()
            if is_shell(obj):
                queue.extend(unwrap(obj))
            elif is_function(obj) and top(home(obj)) in self._proof.packages:
                # A class decorator of the package's own leaves functions made inside it.
                made = "<locals>" in obj.__code__.co_qualname and self._proof.genuine(obj)
                made = made or (makes and is_generated(obj))
                if not made or any(self._foreign(inside) for inside in unwrap(obj)):
                    return True
            elif top(home(obj)) not in MAKERS:
                return True
        return False
