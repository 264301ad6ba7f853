"""Who holds an object: from its referrers up to a name that a person can look for."""

from __future__ import annotations

import functools
import gc
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["holders"]

MOST = 3
"""Holders that are named: the first is nearly always the culprit."""

DEPTH = 8
"""Links of a chain, from the object to a name."""

VISITS = 150
"""Objects looked at; each costs one pass over all that Python tracks."""

QUIET = frozenset({__name__, "mlxcheck.release"})
"""Modules whose own calls do not count: they hold the object only to ask about it."""

Link = tuple[str, object | None]
"""What holds, in words, and the next object up; None where the words are a name already."""


def holders(target: object, *, ignore: Sequence[object] = ()) -> list[str]:
    """Name what keeps *target* alive, the shortest chains first.

    Args:
        target: The object. Calls on the stack are looked through as well.
        ignore: Containers of the caller's own, which do not count.

    Returns:
        Up to three chains, each as ``attribute `.model` of a `Engine`, itself held by module
        global `engine.CURRENT```; empty where nothing that Python sees holds it.
    """
    return _Walk(ignore).chains(target)


class _Walk:
    """One search, breadth first.

    The objects to visit are kept in one list, so that the search can tell its own
    references from those of others.
    """

    def __init__(self, ignore: Sequence[object]) -> None:
        self._nodes: list[object] = []
        self._own = {id(self._nodes), id(ignore), *map(id, ignore)}
        self._modules = {
            # Anything may be put into sys.modules; only a real module has globals.
            id(vars(module)): name
            for name, module in list(sys.modules.items())
            if hasattr(module, "__dict__")
        }
        self._locals = self._index_locals()

    def chains(self, target: object) -> list[str]:
        """Search upwards until enough names are found."""
        found: list[str] = []
        loose: list[str] = []
        self._nodes.append(target)
        paths: list[tuple[str, ...]] = [()]
        seen = {id(target)}
        at = 0
        while at < min(len(self._nodes), VISITS) and len(found) < MOST:
            path = paths[at]
            links = self._links(self._nodes[at])
            if not links and path:
                loose.append(_chain(path))
            for text, upper in links:
                if upper is None:
                    found.append(_chain((*path, text)))
                elif id(upper) not in seen and len(path) < DEPTH:
                    seen.add(id(upper))
                    self._nodes.append(upper)
                    paths.append((*path, text))
            # Its pairs refer to the objects that come next, and would be found as holders.
            del links
            at += 1
        return list(dict.fromkeys(found or loose))[:MOST]

    def _index_locals(self) -> dict[int, list[str]]:
        """Describe the locals of every running call by the ``id`` of their values.

        The garbage collector does not look into calls that are running.
        """
        index: dict[int, list[str]] = {}
        for top in sys._current_frames().values():  # noqa: SLF001 - the only way to them
            frame: types.FrameType | None = top
            while frame is not None:
                if frame.f_globals.get("__name__") not in QUIET:
                    for name, value in self._frame_locals(frame).items():
                        text = f"local variable `{name}` of {_code(frame)}"
                        index.setdefault(id(value), []).append(text)
                frame = frame.f_back
        return index

    def _frame_locals(self, frame: types.FrameType) -> dict[str, object]:
        """Read a frame's locals; a module's own are its globals, and named as such."""
        found = frame.f_locals
        if found is frame.f_globals:
            return {}
        # Before Python 3.13 this is a snapshot that the frame keeps: ours, not a holder.
        self._own.add(id(found))
        return dict(found)

    def _links(self, obj: object) -> list[Link]:
        """List what refers to *obj*."""
        links: list[Link] = [(text, None) for text in self._locals.get(id(obj), ())]
        for upper in gc.get_referrers(obj):
            if id(upper) not in self._own and not _ours(upper):
                links.extend(self._describe(obj, upper))
        return links

    def _describe(self, obj: object, upper: object) -> Iterator[Link]:  # noqa: C901, PLR0912 - a flat table: one line for each kind of holder
        """Say how *upper* holds *obj*."""
        match upper:
            case dict():
                yield from self._in_dict(obj, upper)
            case list() | tuple():
                yield from self._in_sequence(obj, upper)
            case types.CellType():
                yield from self._in_cell(upper)
            case types.FrameType() | types.TracebackType():
                yield from self._in_frame(obj, upper)
            case types.GeneratorType():
                yield f"suspended generator {_where(upper.gi_code)}", upper
            case types.CoroutineType():
                yield f"suspended coroutine {_where(upper.cr_code)}", upper
            case types.FunctionType():
                yield f"function {_where(upper.__code__)}", upper
            case types.MethodType():
                yield f"bound method `{upper.__qualname__}`", upper
            case functools.partial():
                yield f"partial of `{_named(upper.func)}`", upper
            case BaseException():
                yield f"the traceback of {type(upper).__name__}({str(upper)[:60]!r})", upper
            case types.ModuleType() | type():
                return  # both hold through a dict, which is a referrer of its own
            case functools._lru_cache_wrapper():  # noqa: SLF001 - its type has no other name
                yield f"the cache of `{_named(upper)}`", upper
            case _:
                yield from _in_instance(obj, upper)

    def _in_dict(self, obj: object, upper: dict[object, object]) -> Iterator[Link]:
        """Name the key, and the module, class or instance whose dict it is."""
        keys = [key for key, value in list(upper.items()) if value is obj] or ["?"]
        module = self._modules.get(id(upper))
        if module is None and {"__name__", "__builtins__"} <= upper.keys():
            module = str(upper["__name__"])
        if module is not None:
            yield from ((f"module global `{module}.{key}`", None) for key in keys)
            return
        if type(upper) is not dict:
            yield from ((_key_of(key, upper), upper) for key in keys)
            return
        for owner in gc.get_referrers(upper):
            if isinstance(owner, type) and owner.__dict__.get(str(keys[0])) is obj:
                name = f"{owner.__module__}.{owner.__qualname__}.{keys[0]}"
                yield f"class attribute `{name}`", None
                return
            if _dict_of(owner) is upper:
                yield f"attribute `.{keys[0]}` of a `{type(owner).__name__}`", owner
                return
        yield f"key {keys[0]!r} of a dict", upper

    def _in_sequence(self, obj: object, upper: Sequence[object]) -> Iterator[Link]:
        """Name the index; a tuple may be a function's defaults."""
        for function in gc.get_referrers(upper) if isinstance(upper, tuple) else ():
            if isinstance(function, types.FunctionType) and function.__defaults__ is upper:
                yield f"a default argument of {_where(function.__code__)}", function
                return
        index = next((i for i, value in enumerate(upper) if value is obj), 0)
        yield f"item {index} of a {type(upper).__name__} of {len(upper)}", upper

    def _in_cell(self, cell: types.CellType) -> Iterator[Link]:
        """Name the variable and the function that closes over it."""
        for closure in gc.get_referrers(cell):
            if not isinstance(closure, tuple):
                continue
            for function in gc.get_referrers(closure):
                if not isinstance(function, types.FunctionType) or not function.__closure__:
                    continue
                for index, free in enumerate(function.__closure__):
                    if free is cell:
                        name = function.__code__.co_freevars[index]
                        where = _where(function.__code__)
                        yield f"closure variable `{name}` of {where}", function

    def _in_frame(
        self, obj: object, upper: types.FrameType | types.TracebackType
    ) -> Iterator[Link]:
        """Name the local of a call that has ended; something keeps its traceback."""
        if isinstance(upper, types.TracebackType):
            yield "", upper
            return
        for name, value in self._frame_locals(upper).items():
            if value is obj:
                yield f"local variable `{name}` of {_code(upper)}, a call that ended", upper


def _in_instance(obj: object, upper: object) -> Iterator[Link]:
    """Name the attribute, in the instance's dict or a slot."""
    kind = type(upper)
    names = list(_dict_of(upper) or ())
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names.extend([slots] if isinstance(slots, str) else slots)
    for name in names:
        try:
            value = object.__getattribute__(upper, name)
        except AttributeError:  # a slot that is empty
            continue
        if value is obj:
            yield f"attribute `.{name}` of a `{kind.__name__}`", upper
            return
    yield f"a `{kind.__module__}.{kind.__qualname__}`", upper


def _dict_of(obj: object) -> dict[str, object] | None:
    """Read an instance's dict, past any attribute hook that the object has."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def _key_of(key: object, upper: dict[object, object]) -> str:
    """Word an item of a dict's subclass; an MLX module keeps its attributes as items."""
    kind = type(upper)
    if any(base.__module__.startswith("mlx.nn") for base in kind.__mro__):
        return f"attribute `.{key}` of a `{kind.__name__}`"
    return f"key {key!r} of a `{kind.__name__}`"


def _ours(upper: object) -> bool:
    """Tell whether a frame or generator is one of this file."""
    code = getattr(upper, "f_code", None) or getattr(upper, "gi_code", None)
    return code is not None and code.co_filename == __file__


def _named(obj: object) -> str:
    """Give the best name that an object has."""
    return str(getattr(obj, "__qualname__", None) or type(obj).__name__)


def _where(code: types.CodeType) -> str:
    """Write a function with its place."""
    return f"`{code.co_qualname}` ({code.co_filename}:{code.co_firstlineno})"


def _code(frame: types.FrameType) -> str:
    """Write a call with the line that it is at."""
    return f"`{frame.f_code.co_qualname}` ({frame.f_code.co_filename}:{frame.f_lineno})"


def _chain(path: Sequence[str]) -> str:
    """Join the links, nearest first; an empty one only joins its neighbours."""
    return ", itself held by ".join(text for text in path if text)
