"""From what a user names to a backend: a table, entry points, dotted names, functions.

Nothing is imported until it is asked for.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from mlxcheck.backends.base import Backend
from mlxcheck.errors import BackendError

__all__ = [
    "BUILT_IN",
    "Factory",
    "command_name",
    "describe",
    "is_function",
    "known",
    "require_findable",
    "resolve",
    "targets",
    "working_folder_on_path",
]

Factory = Callable[[], Backend]
"""Makes a fresh, unopened backend."""

BUILT_IN = {
    "mlx-lm": "mlxcheck.backends.mlx_lm:MlxLmBackend",
    "mlx-lm-speculative": "mlxcheck.backends.mlx_lm_speculative:SpeculativeBackend",
    "server": "mlxcheck.backends.server:ServerBackend",
    "sglang": "mlxcheck.backends.sglang:SglangBackend",
    "sglang-lazy": "mlxcheck.backends.sglang:SglangLazyBackend",
    "sglang-radix": "mlxcheck.backends.sglang:SglangRadixBackend",
    "sglang-radix-lazy": "mlxcheck.backends.sglang:SglangRadixLazyBackend",
}
"""Import targets of the backends that come with mlxcheck, by name."""

_GROUP = "mlxcheck.backends"
_METHODS = ("open", "submit", "step", "cancel", "stats", "close")
_GENERATE_ARGUMENTS = 2


def known() -> tuple[str, ...]:
    """Return every registered name: built in, and from installed packages' entry points."""
    return tuple(sorted(targets()))


def describe(backend: object) -> str:
    """Return a short name for a backend that has not been made yet."""
    if isinstance(backend, str):
        return backend
    name = getattr(backend, "name", None)
    return name if isinstance(name, str) else str(getattr(backend, "__name__", backend))


def command_name(backend: object) -> str | None:
    """Return what names a backend on the command line, or None where nothing does."""
    if isinstance(backend, str):
        return backend
    module = getattr(backend, "__module__", "__main__")
    name = getattr(backend, "__qualname__", "<")
    return None if module == "__main__" or "<" in name else f"{module}:{name}"


def require_findable(backend: object) -> None:
    """Refuse a backend that is not there, without running any code of one that is.

    An engine may patch mlx-lm when it is imported; that has to wait until the reference has
    been made.

    Raises:
        BackendError: As for `resolve`, as far as can be told without an import.
    """
    if isinstance(backend, str):
        package = targets().get(backend, backend if ":" in backend else "").partition(":")[0]
        try:
            found = importlib.util.find_spec(package.partition(".")[0])
        except (ImportError, ValueError):
            found = None
        if found is not None:
            return
    resolve(backend)  # it knows best how to say what is missing


def is_function(backend: object) -> bool:
    """Tell a plain function ``generate(prompts, max_tokens)``; a name is not looked up."""
    other = isinstance(backend, str) or inspect.isclass(backend) or _has_methods(backend)
    return not other and callable(backend) and _takes_prompts(backend)


def targets() -> dict[str, str]:
    """Return every registered name with its ``module:attribute``."""
    installed = {entry.name: entry.value for entry in metadata.entry_points(group=_GROUP)}
    return {**installed, **BUILT_IN}  # a package must not replace an adapter unseen


@contextlib.contextmanager
def working_folder_on_path() -> Iterator[None]:
    """Let ``module:attribute`` name a module of the working folder, for a block."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # an engine may have changed the path
            sys.path.remove(here)


def resolve(backend: object) -> Factory:
    """Turn what `mlxcheck.check` accepts into a factory of unopened backends.

    Args:
        backend: A registered name, ``"package.module:attribute"``, a `Backend` class or
            factory, a ready `Backend`, or a function ``generate(prompts, max_tokens)``.

    Raises:
        BackendError: Unknown, cannot be imported, or none of these.
    """
    if isinstance(backend, str):
        return _from_object(_named(backend), backend)
    return _from_object(backend, describe(backend))


def _named(name: str) -> object:
    target = targets().get(name, name)
    if ":" in target:
        return _import(name, target)
    close = difflib.get_close_matches(name, known(), n=2)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    msg = (
        f"there is no backend {name!r}.{hint} Registered are {', '.join(known())}; an engine "
        "of your own is given as package.module:attribute."
    )
    raise BackendError(msg)


def _import(name: str, target: str) -> object:
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        missing = getattr(error, "name", None) or module_name
        msg = (
            f"backend {name!r}: importing {module_name} failed: {error}. Install what "
            f"provides {missing!r} in this environment, or mend the name."
        )
        raise BackendError(msg) from error
    except (Exception, SystemExit) as error:
        msg = (
            f"backend {name!r}: importing {module_name} raised {type(error).__name__}: "
            f"{error}. The module has to import before it can be driven."
        )
        raise BackendError(msg) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            msg = f"backend {name!r}: {module_name} has no {attribute!r}.{hint}"
            raise BackendError(msg)
        found = getattr(found, part)
    return found


def _from_object(target: Any, name: str) -> Factory:
    if not inspect.isclass(target) and _has_methods(target):
        return lambda: _made(lambda: target, name)
    if not callable(target):
        msg = (
            f"backend {name!r} is {target!r:.80}; expected a Backend, a class or factory of "
            "one, or a function generate(prompts, max_tokens)."
        )
        raise BackendError(msg)
    if not inspect.isclass(target) and _takes_prompts(target):
        from mlxcheck.backends.function import FunctionBackend

        return lambda: FunctionBackend(target, name)
    return lambda: _made(target, name)


def _made(factory: Callable[[], object], name: str) -> Backend:
    try:
        backend = factory()
    except TypeError as error:
        msg = f"backend {name!r}: making it without arguments failed: {error}."
        raise BackendError(msg) from error
    missing = [method for method in _METHODS if not callable(getattr(backend, method, None))]
    missing += [field for field in ("name", "capabilities") if not hasattr(backend, field)]
    if missing:
        msg = (
            f"backend {name!r}: {type(backend).__name__} lacks {', '.join(missing)}; "
            "mlxcheck.backends.base.Backend says what each must do."
        )
        raise BackendError(msg)
    return cast("Backend", backend)


def _has_methods(target: object) -> bool:
    return all(callable(getattr(target, method, None)) for method in _METHODS)


def _takes_prompts(target: Callable[..., object]) -> bool:
    """Tell ``generate(prompts, max_tokens)`` from a factory by what it needs."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional]
    required = [p for p in needed if p.default is inspect.Parameter.empty]
    return len(needed) >= _GENERATE_ARGUMENTS and len(required) >= 1
