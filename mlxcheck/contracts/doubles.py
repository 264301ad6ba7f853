"""Test doubles held against the code that they are passed to."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

from mlxcheck.contracts.callers import uses_of
from mlxcheck.contracts.classes import Member, Place, class_model
from mlxcheck.contracts.found import ContractBroken, ContractReport, Finding, Unresolved
from mlxcheck.contracts.roles import Evidence, Function
from mlxcheck.contracts.signatures import bind_error, shown
from mlxcheck.contracts.sources import Library, Source
from mlxcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcheck.contracts.classes import ClassModel
    from mlxcheck.contracts.uses import Use, Uses

__all__ = ["assert_counts", "check_double"]

_NOT_THERE = object()


def check_double(
    double: object,
    used_by: Callable[..., Any] | str | Sequence[Callable[..., Any] | str],
    *,
    parameter: str | None = None,
) -> ContractReport:
    """Hold a double against the code that uses it: what that reads, writes and calls is there.

    A double is an object, since doubles are often built by hand. What is written has to be
    there before, so that a counter that the real object has cannot be forgotten. A method that
    is called on a double made of functions is bound as well.

    Args:
        double: The object that is passed.
        used_by: The function that it is passed to, or the class whose methods it is the
            ``self`` of; or their text, ``package.module:name`` or ``path.py:name``.
        parameter: Which parameter it is passed as; by default the first one, which is
            ``self`` of a method.

    Returns:
        A report; `ContractReport.require` makes an assertion of it.

    Raises:
        UsageError: `used_by` has no source, or no such parameter.
    """
    library = Library()
    given = [used_by] if isinstance(used_by, str) or callable(used_by) else used_by
    located = [library.locate(what) for what in given]
    uses, methods = _used(library, located, parameter)
    name = type(double).__name__
    findings: list[Finding] = []
    unresolved = [_loose(each.name, each.reason, each.place) for each in uses.loose.values()]
    calls = 0
    seen: set[str] = set()
    for use in uses.found.values():
        if use.guarded or (use.name.startswith("__") and use.name.endswith("__")):
            continue
        value = getattr(double, use.name, _NOT_THERE)
        if value is _NOT_THERE and use.name not in seen:
            seen.add(use.name)
            findings.append(_lacks(name, use, uses, methods))
        elif value is not _NOT_THERE and use.how == "call":
            calls += 1
            findings += _call(name, use, value)
    return ContractReport(
        stub=name,
        base=", ".join(node.name for _, node in located),
        findings=tuple(findings),
        unresolved=tuple(unresolved),
        files=len({source.path for source, _ in located}),
        reads=sum(use.how in {"read", "write"} for use in uses.found.values()),
        calls=calls,
        guarded=sum(use.guarded for use in uses.found.values()),
    )


def assert_counts(
    double: object, step: Callable[[], object], attribute: str, by: float = 1
) -> None:
    """Assert that a step raises a counter.

    Args:
        double: The object that has the counter.
        step: Is called once, without arguments.
        attribute: The counter's name.
        by: How much it has to be raised by.

    Raises:
        ContractBroken: There is no such attribute, it is no number, or it is raised by
            something else.
    """
    __tracebackhide__ = True
    name = f"{type(double).__name__}.{attribute}"
    before = _number(double, attribute, name, "before")
    step()
    after = _number(double, attribute, name, "after")
    if after - before != by:
        msg = (
            f"{name} was {before} and is {after} after one step: raised by {after - before}, "
            f"expected {by}. Count where the real step counts."
        )
        raise ContractBroken(msg)


def _number(double: object, attribute: str, name: str, when: str) -> Any:
    value = getattr(double, attribute, _NOT_THERE)
    if value is _NOT_THERE:
        msg = f"{name} is not there {when} the step. Give the double this counter, as 0."
        raise ContractBroken(msg)
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} is {value!r} {when} the step, which is no number. Start it as 0."
        raise ContractBroken(msg)
    return value


def _used(
    library: Library,
    located: Sequence[tuple[Source, ast.ClassDef | Function]],
    parameter: str | None,
) -> tuple[Uses, dict[str, Member]]:
    """Return what the code does with the double, and the methods of the classes among it."""
    evidence = Evidence(library=library, classes=frozenset())
    methods: dict[str, Member] = {}
    for source, node in located:
        if isinstance(node, ast.ClassDef):
            model = class_model(library, source, node)
            methods.update(_methods(model))
            picked: list[Function] = [m.function for m in methods.values() if m.function]
        else:
            picked = [node]
        named = [_held(each, parameter) for each in picked]
        if not any(named):
            what = f"no parameter {parameter}" if parameter else "no parameter"
            at = f"{source.path}:{node.lineno}"
            msg = f"{at}: {node.name} has {what}, so that no double is passed to it."
            raise UsageError(msg)
        for each, name in zip(picked, named, strict=True):
            if name:
                evidence.parameters.setdefault(each, {})[name] = "one"
    sources = list(dict.fromkeys(source for source, _ in located))
    for member in methods.values():
        if member.owner.source not in sources:
            sources.append(member.owner.source)
    return uses_of(evidence, sources, (), ()), methods


def _methods(model: ClassModel) -> dict[str, Member]:
    found: dict[str, Member] = {}
    for each in reversed(model.mro):
        found.update({name: m for name, m in each.members.items() if m.function})
    return {name: m for name, m in found.items() if m.kind in {"method", "property"}}


def _held(function: Function, parameter: str | None) -> str | None:
    """Return which parameter of a function is the double."""
    args = function.args
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    if parameter is not None:
        return parameter if parameter in names else None
    return names[0] if names else None


def _lacks(name: str, use: Use, uses: Uses, methods: dict[str, Member]) -> Finding:
    others = [
        str(u.place)
        for u in uses.found.values()
        if u.name == use.name and u.place != use.place and not u.guarded
    ]
    does = {"read": "reads", "write": "writes", "call": "calls"}[use.how]
    lines = [f"missing-attribute  {name}.{use.name}: {use.place} {does} it"]
    if use.when:
        lines.append(f"where {' and '.join(use.when)}")
    if use.name in methods:
        member = methods[use.name]
        lines.append(f"{member.owner.name} defines it at {member.place}")
    lines.append(f"give the double {use.name}, as what it stands for has it")
    return Finding(
        kind="missing-attribute",
        name=use.name,
        message="\n  ".join(lines),
        file=use.place.file,
        line=use.place.line,
        at=str(use.place),
        when=use.when,
        others=tuple(dict.fromkeys(others)),
    )


def _call(name: str, use: Use, value: Any) -> list[Finding]:
    """Bind a call of the double's own method, where Python can tell its signature."""
    if not callable(value):
        error, lines = f"{type(value).__name__} cannot be called", []
    else:
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):
            return []
        error = bind_error(signature, use.positional, use.keywords, whole=use.whole)
        lines = [f"double  {shown(use.name, signature)}"]
    if not error:
        return []
    head = f"call-does-not-bind  {name}.{use.name}: {use.place} calls it: {error}"
    message = "\n  ".join([head, *lines, "let the double take what it is called with"])
    return [
        Finding(
            kind="call-does-not-bind",
            name=use.name,
            message=message,
            file=use.place.file,
            line=use.place.line,
            at=str(use.place),
            when=use.when,
        )
    ]


def _loose(name: str, reason: str, place: Place) -> Unresolved:
    return Unresolved(name=name, reason=reason, file=place.file, line=place.line)
