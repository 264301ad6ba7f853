"""Contracts of live classes and methods: what is overridden, and which calls bind."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from mlxcheck.contracts.found import ContractBroken
from mlxcheck.contracts.signatures import bind_error, shown
from mlxcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["assert_binds", "assert_overrides"]

_NOT_THERE = object()


def assert_overrides(stub: type, base: type, names: str | Iterable[str]) -> None:
    """Assert that names are defined by the stub itself, and not inherited from the base.

    A class between the stub and the base counts as the stub's: what matters is that the
    base's own definition does not run.

    Args:
        stub: The class that overrides.
        base: The class that it stands for, and derives from.
        names: One name, or several.

    Raises:
        ContractBroken: A name is inherited, or is nowhere. The text shows the base's own.
        UsageError: `stub` does not derive from `base`, or no name was given.
    """
    __tracebackhide__ = True
    wanted = [names] if isinstance(names, str) else list(names)
    if base not in stub.__mro__ or stub is base:
        msg = (
            f"{stub.__qualname__} does not derive from {base.__qualname__}. Give the class "
            "first, then its base."
        )
        raise UsageError(msg)
    if not wanted:
        msg = f"no name to look for in {stub.__qualname__}. Give at least one."
        raise UsageError(msg)
    theirs = set(base.__mro__)
    own = [each for each in stub.__mro__ if each not in theirs]
    bad = [name for name in wanted if not any(name in vars(each) for each in own)]
    if bad:
        blocks = [_inherited(stub, name) for name in bad]
        raise ContractBroken("\n".join(blocks))


def assert_binds(method: Callable[..., Any], *args: object, **kwargs: object) -> None:
    """Assert that a call would bind. Nothing is called.

    Args:
        method: A function, or a method. One that is looked up on its class is given its
            ``self``.
        *args: What it would be called with by position.
        **kwargs: What it would be called with by name.

    Raises:
        ContractBroken: It does not bind. The text shows the call and the signature.
        UsageError: It cannot be called, or Python does not know its signature.
    """
    __tracebackhide__ = True
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError) as error:
        msg = f"{method!r} has no signature: {error}. Give a function or a method."
        raise UsageError(msg) from error
    supplied = int(_unbound(method))
    error_text = bind_error(signature, len(args) + supplied, tuple(kwargs))
    if error_text:
        name = getattr(method, "__qualname__", repr(method))
        given = [repr(each) for each in args] + [f"{k}={v!r}" for k, v in kwargs.items()]
        msg = (
            f"{name} does not bind: {error_text}\n"
            f"  call   {name}({', '.join(given)})\n"
            f"  takes  {shown(name, signature)}\n"
            f"  take these arguments, or change the call"
        )
        raise ContractBroken(msg)


def _unbound(method: Callable[..., Any]) -> bool:
    """Return whether a function was looked up on its class, so that it wants a ``self``."""
    if not inspect.isfunction(method):
        return False
    owner = method.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(method).parameters), "")
    return bool(owner) and not owner.endswith("<locals>") and first == "self"


def _inherited(stub: type, name: str) -> str:
    holder = next((each for each in stub.__mro__ if name in vars(each)), None)
    if holder is None:
        return (
            f"{stub.__qualname__} has no {name}, and no base of it has\n"
            "  correct the name, or define it"
        )
    value = inspect.getattr_static(holder, name, _NOT_THERE)
    function = getattr(value, "__func__", value)
    told = f"{holder.__qualname__}.{name}"
    if inspect.isfunction(function):
        told = shown(told, inspect.signature(function))
    return (
        f"{stub.__qualname__}.{name} is inherited from {holder.__qualname__}, not overridden\n"
        f"  runs   {told}\n"
        f"  define {name} in {stub.__qualname__}"
    )
