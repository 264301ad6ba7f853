"""Signatures: read from sources, and held against calls and against each other."""

from __future__ import annotations

import ast
import inspect
from inspect import Parameter, Signature
from typing import Any

__all__ = ["Default", "bind_error", "narrower", "shown", "signature_of"]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Default:
    """A default as it is written; it is never evaluated.

    Args:
        node: The expression.
    """

    def __init__(self, node: ast.expr) -> None:
        self.node = node

    def __repr__(self) -> str:
        return ast.unparse(self.node)


def signature_of(arguments: ast.arguments) -> Signature:
    """Return the signature of a ``def``, without annotations; defaults are `Default`."""
    found: list[Parameter] = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    for number, (arg, value) in enumerate(zip(positional, defaults, strict=True)):
        kind = _POSITIONAL[number >= len(arguments.posonlyargs)]
        found.append(Parameter(arg.arg, kind, default=_default(value)))
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for arg, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(Parameter(arg.arg, Parameter.KEYWORD_ONLY, default=_default(value)))
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(found)


def _default(node: ast.expr | None) -> Any:
    return Parameter.empty if node is None else Default(node)


def shown(name: str, signature: Signature) -> str:
    """Return ``name(a, b=1)``."""
    bare = [
        parameter.replace(annotation=Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return f"{name}{Signature(bare)}"


def bind_error(
    signature: Signature, positional: int, keywords: tuple[str, ...], *, whole: bool = True
) -> str:
    """Say why a call does not bind; empty where it does.

    Args:
        signature: With ``self``, which is supplied, or without it for a static method.
        positional: How many arguments are given by position, ``self`` included.
        keywords: Which ones are given by name.
        whole: False where the call gives more through ``*`` or ``**``.
    """
    bind = signature.bind if whole else signature.bind_partial
    try:
        bind(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return ""


def narrower(override: Signature, base: Signature) -> list[str]:
    """Return what the base takes and the override does not.

    Both signatures are given with ``self``, or both without. What is compared is how a call
    may be made: the position, the name and whether an argument may be left out.
    """
    bad: list[str] = []
    own = override.parameters
    accepts_args = any(p.kind is Parameter.VAR_POSITIONAL for p in own.values())
    accepts_keywords = any(p.kind is Parameter.VAR_KEYWORD for p in own.values())
    places = [p for p in own.values() if p.kind in _POSITIONAL]
    theirs = [p for p in base.parameters.values() if p.kind in _POSITIONAL]
    for number, parameter in enumerate(theirs[: len(places)]):
        bad += _place(places[number], parameter, number)
    if len(theirs) > len(places) and not accepts_args:
        names = ", ".join(p.name for p in theirs[len(places) :])
        bad.append(f"takes no {names} by position")
    for parameter in base.parameters.values():
        if parameter.kind in _KEYWORD and not _self(parameter, theirs):
            bad += _name(own.get(parameter.name), parameter, accepts_keywords=accepts_keywords)
        elif parameter.kind is Parameter.VAR_POSITIONAL and not accepts_args:
            bad.append(f"takes no *{parameter.name}")
        elif parameter.kind is Parameter.VAR_KEYWORD and not accepts_keywords:
            bad.append(f"takes no **{parameter.name}")
    bad += [
        f"requires {p.name}, which the base does not have"
        for p in own.values()
        if p.kind in (*_POSITIONAL, Parameter.KEYWORD_ONLY)
        if p.default is inspect.Parameter.empty
        if p.name not in base.parameters
        and (p.kind not in _POSITIONAL or p in places[len(theirs) :])
    ]
    return list(dict.fromkeys(bad)) or _refused(override, base)


def _refused(override: Signature, base: Signature) -> list[str]:
    """Return calls that the base takes and the override does not, by trying them.

    What an argument's place and name do not show: one that is required by name in one of the
    two, or by position in the other.
    """
    kinds = [p.kind for p in base.parameters.values()]
    most = sum(kind in _POSITIONAL for kind in kinds) + (Parameter.VAR_POSITIONAL in kinds)
    named = [p for p in base.parameters.values() if p.kind in _KEYWORD]
    names = [p.name for p in named]
    if Parameter.VAR_KEYWORD in kinds:
        names += [p.name for p in override.parameters.values() if p.kind in _KEYWORD]
    for number in range(most + 1):
        left = [p for p in named if p.name not in list(base.parameters)[:number]]
        needed = {p.name for p in left if p.default is Parameter.empty}
        for more in ("", *names):
            given = tuple(sorted(needed | ({more} if more else set())))
            if not bind_error(base, number, given) and (
                error := bind_error(override, number, given)
            ):
                return [f"refuses a call that the base takes: {error}"]
    return []


def _place(own: Parameter, base: Parameter, number: int) -> list[str]:
    if own.default is Parameter.empty and base.default is not Parameter.empty:
        return [f"requires {own.name}, which may be left out of the base"]
    both = Parameter.POSITIONAL_OR_KEYWORD
    if number and own.name != base.name and (own.kind, base.kind) == (both, both):
        return [f"has {own.name} in the place of {base.name}"]
    return []


def _name(own: Parameter | None, base: Parameter, *, accepts_keywords: bool) -> list[str]:
    if own is None or own.kind not in _KEYWORD:
        return [] if accepts_keywords else [f"takes no {base.name} by name"]
    if own.default is Parameter.empty and base.default is not Parameter.empty:
        return [f"requires {own.name}, which may be left out of the base"]
    return []


def _self(parameter: Parameter, positional: list[Parameter]) -> bool:
    return bool(positional) and parameter is positional[0] and parameter.name in {"self", "cls"}
