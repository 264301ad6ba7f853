"""Callables from the outside in: what a wrapper wraps, where a thing comes from, its name."""

from __future__ import annotations

import functools
import gc
import sys
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TypeGuard

__all__ = [
    "describe",
    "home",
    "is_code",
    "is_function",
    "is_generated",
    "is_native",
    "is_shell",
    "replaced",
    "top",
    "unwrap",
]


def top(name: object) -> str:
    """Give the top-level package of a module name; empty for what is no name."""
    return name.partition(".")[0] if isinstance(name, str) else ""


def is_code(obj: object) -> bool:
    """Tell whether *obj* can be run, or hands out what can: no table, number or text."""
    return callable(obj) or hasattr(type(obj), "__get__") or isinstance(obj, ModuleType)


def is_shell(obj: object) -> bool:
    """Tell whether an object of Python's own only hands on what is inside it."""
    return is_native(obj) and type(obj).__module__ == "builtins"


def is_function(obj: object) -> TypeGuard[FunctionType]:
    """Tell whether *obj* is a function written in Python.

    `isinstance` would believe ``__class__``, and what mx.compile returns claims to be the
    function that it compiled.
    """
    return type(obj) is FunctionType


def is_generated(function: FunctionType) -> bool:
    """Tell whether a function was made from text, as `dataclasses` makes them."""
    return function.__code__.co_filename.startswith("<")


def is_native(obj: object) -> bool:
    """Tell whether a callable was made by an extension or by Python itself."""
    if is_function(obj) or isinstance(obj, type):
        return False
    return type(obj).__module__ in {"nanobind", "builtins"}


def home(obj: object) -> str:
    """Name the module that *obj* comes from.

    Of a function it is the module whose globals it uses: `functools.wraps` copies
    ``__module__`` and the name, so those prove nothing.
    """
    if is_function(obj):
        return str(obj.__globals__.get("__name__", ""))
    if isinstance(obj, ModuleType):
        return obj.__name__
    if isinstance(obj, type) or is_native(obj):
        return str(getattr(obj, "__module__", "") or "")
    return type(obj).__module__


def unwrap(obj: object) -> list[object]:
    """Open one layer.

    Args:
        obj: A wrapper of any of the kinds that Python, functools and mlx make, or a function
            that a decorator returned.

    Returns:
        What is inside; empty for what wraps nothing.
    """
    if type(obj).__module__ == "mlx.core":
        # mx.compile and mx.custom_function hide theirs, but tell the garbage collector.
        inside = gc.get_referents(obj)
        return [part for part in inside if callable(part) and not isinstance(part, type)]
    match obj:
        case property():
            return [part for part in (obj.fget, obj.fset, obj.fdel) if part is not None]
        case staticmethod() | classmethod() | MethodType():
            return [obj.__func__]
        case functools.partial() | functools.partialmethod() | functools.cached_property():
            return [obj.func]
        case FunctionType():
            wrapped = getattr(obj, "__wrapped__", None)
            return [wrapped] if wrapped is not None else _closed_over(obj)
    wrapped = getattr(obj, "__wrapped__", None)
    return [] if wrapped is None or isinstance(obj, type) else [wrapped]


def _closed_over(function: FunctionType) -> list[object]:
    """List the functions in a closure: a decorator without `functools.wraps` keeps its own."""
    found: list[object] = []
    for cell in function.__closure__ or ():
        content = _content(cell)
        if is_function(content):
            found.append(content)
    return found


def _content(cell: CellType) -> object:
    """Read a cell that may still be empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def describe(obj: object) -> str:
    """Name *obj* and, for what is written in Python, the place where it is written."""
    if is_function(obj):
        code = obj.__code__
        return f"`{home(obj)}.{code.co_qualname}` ({code.co_filename}:{code.co_firstlineno})"
    if isinstance(obj, type):
        return f"class `{obj.__module__}.{obj.__qualname__}`{_place(obj)}"
    if isinstance(obj, ModuleType):
        return f"module `{obj.__name__}` ({getattr(obj, '__file__', None) or 'no file'})"
    return _describe_instance(obj)


def _describe_instance(obj: object) -> str:
    """Name a wrapper by what is inside, a native function by itself, the rest by class."""
    inside = unwrap(obj)
    if inside:
        kind = "compiled function" if type(obj).__name__ == "_gc_func" else type(obj).__name__
        return f"a {kind} of {describe(inside[0])}"
    if is_native(obj) and callable(obj):
        return f"native `{home(obj)}.{getattr(obj, '__name__', '?')}`"
    if is_shell(obj):
        return f"{obj!r:.60}"
    return f"an instance of {describe(type(obj))}"


def replaced(name: str, live: object) -> str:
    """Word the main finding: what *name* should be, and what is there."""
    return f"`{name}` was replaced by {describe(live)}"


def _place(kind: type) -> str:
    """Find where a class is written: its first method knows, else its module does."""
    for value in vars(kind).values():
        if is_function(value) and home(value) == kind.__module__:
            return f" ({value.__code__.co_filename}:{value.__code__.co_firstlineno})"
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return f" ({path})" if path else ""
