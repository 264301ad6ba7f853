"""A stub held against the class that it stands for, and against who uses that class."""

from __future__ import annotations

import ast
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mlxcheck.contracts.callers import uses_of
from mlxcheck.contracts.classes import ClassModel, Member, class_model
from mlxcheck.contracts.found import ContractReport, Finding, Ignored
from mlxcheck.contracts.judged import Judge
from mlxcheck.contracts.pair import Pair
from mlxcheck.contracts.roles import Evidence
from mlxcheck.contracts.sources import Library, Source
from mlxcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mlxcheck.contracts.uses import Uses

__all__ = ["check_stub"]


def check_stub(
    stub: object,
    base: object,
    callers: Sequence[object] = (),
    *,
    role_names: Iterable[str] = (),
    ignore: Mapping[str, str] | None = None,
) -> ContractReport:
    """Hold a stub against its base and against the code that uses the base, from sources.

    Nothing is imported and nothing is run. What callers read, write and call on objects of the
    role is found in their sources: by annotation, by the attribute in which they keep it, by
    where it is handed on, and by `role_names`. The stub's construction is followed as the
    order of resolution has it, with parameters at their defaults, so that an attribute counts
    as there only where code sets it that the stub really runs.

    Args:
        stub: A class, or ``package.module:Class`` or ``path.py:Class``.
        base: The class that it stands for, in the same ways. It may be of another release
            than the one that the stub imports.
        callers: Modules, classes, dotted names, files or folders.
        role_names: Variables and attributes that hold such an object, beside those that are
            annotated or assigned so.
        ignore: What is not to be judged, each with its reason: the name of an attribute or
            method, or the end of a path (with ``*`` as in a shell) of code that does not run
            for this stub.

    Returns:
        A report; `ContractReport.require` makes an assertion of it.

    Raises:
        UsageError: A class or module has no source, or a reason is empty.
    """
    library, ignored = Library(), dict(ignore or {})
    if bare := [name for name, reason in ignored.items() if not reason.strip()]:
        msg = f"ignore: {bare[0]} has no reason. Say why it need not hold."
        raise UsageError(msg)
    base_model = class_model(library, *_class(library, base))
    pins = {base_model.node.name: base_model}
    stub_model = class_model(library, *_class(library, stub), pins)
    sources = [source for what in callers for source in library.modules(what)]
    sources = list({source.path: source for source in sources}.values())
    uses = _uses(library, stub_model, base_model, sources, frozenset(role_names))
    pair = Pair(stub_model, base_model, uses)
    judge = Judge(pair)
    judge.run()
    findings = list(judge.findings.values())
    used = [use for use in uses.found.values() if not use.guarded]
    return ContractReport(
        stub=stub_model.name,
        base=base_model.name,
        findings=_merged([f for f in findings if not _which(ignored, f.name, f.file)]),
        unresolved=tuple(
            each for each in judge.unresolved if not _which(ignored, each.name, each.file)
        ),
        ignored=_ignored(ignored, findings),
        files=len(sources),
        reads=sum(use.how in {"read", "write"} for use in used),
        calls=judge.calls,
        inherited=len(pair.inherited),
        guarded=len(uses.found) - len(used),
        replaced=uses.replaced,
    )


def _class(library: Library, what: object) -> tuple[Source, ast.ClassDef]:
    source, node = library.locate(what)
    if not isinstance(node, ast.ClassDef):
        msg = f"{source.path}:{node.lineno}: {node.name} is a function. Name a class."
        raise UsageError(msg)
    return source, node


def _uses(
    library: Library,
    stub: ClassModel,
    base: ClassModel,
    sources: Sequence[Source],
    given: frozenset[str],
) -> Uses:
    theirs = {model.node for model in base.mro}
    held = [base, *(model for model in stub.mro if model.node not in theirs)]
    evidence = Evidence(
        library=library,
        classes=frozenset(model.node.name for model in held),
        homes=frozenset((model.source.module, model.node.name) for model in held),
        given=given,
    )
    own = {model.node for model in (*stub.mro, *base.mro)}
    return uses_of(evidence, sources, own, _replaced(library, sources, stub))


def _replaced(library: Library, sources: Iterable[Source], stub: ClassModel) -> set[ast.AST]:
    """Return the methods of callers that whoever makes the stub has replaced with its own."""
    found: set[ast.AST] = set()
    for source in sources:
        for node in source.definitions.values():
            if isinstance(node, ast.ClassDef) and _makes(node, stub.node.name):
                holder = class_model(library, source, node)
                for each in holder.mro[1:]:
                    found |= {
                        member.function
                        for member in each.members.values()
                        if member.function and _is_replaced(holder, member)
                    }
    return found


def _is_replaced(holder: ClassModel, member: Member) -> bool:
    first = holder.find(member.name)
    if first is None or first is member or first.function is None:
        return False
    wanted = f"super().{member.name}"
    nodes = ast.walk(first.function)
    return not any(isinstance(n, ast.Attribute) and ast.unparse(n) == wanted for n in nodes)


def _makes(node: ast.AST, name: str) -> bool:
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(ast.unparse(call.func).rpartition(".")[2] == name for call in calls)


def _merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Make one finding of those of a kind and name: the first one that has no condition."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for found in sorted(findings, key=lambda each: (bool(each.when), each.file, each.line)):
        groups.setdefault((found.kind, found.name), []).append(found)
    merged = [
        replace(first, others=tuple(each.at for each in rest))
        for first, *rest in groups.values()
    ]
    return tuple(sorted(merged, key=lambda each: (bool(each.when), each.file, each.line)))


def _which(ignored: Iterable[str], name: str, file: str) -> str:
    """Return the rule that leaves out a name or a file."""
    for rule in ignored:
        if rule == name or (rule.endswith((".py", "*")) and fnmatchcase(file, f"*/{rule}")):
            return rule
    return ""


def _ignored(given: Mapping[str, str], findings: Sequence[Finding]) -> tuple[Ignored, ...]:
    rules = [_which(given, found.name, found.file) for found in findings]
    return tuple(
        Ignored(name=name, reason=why, findings=rules.count(name))
        for name, why in given.items()
    )
