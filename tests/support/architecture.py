"""The plan of the house: which room may look into which, and where each library lives.

Imports go down only: a module may import those of lower layers, and of its own layer only
its `NEIGHBOURS`. Imports for type checkers alone do not count as looking into a room, since
nothing is imported; a library may not be named outside its room even so.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "LAYERS",
    "Import",
    "bad_imports",
    "bad_libraries",
    "dead_rows",
    "imports_of",
    "package_sources",
    "too_long",
]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "policy", "records", "whole"),
    (
        "budget",
        "checkpoint",
        "compare",
        "contracts.asserted",
        "contracts.bodies",
        "contracts.callers",
        "contracts.classes",
        "contracts.doubles",
        "contracts.expressions",
        "contracts.followed",
        "contracts.found",
        "contracts.judged",
        "contracts.lifecycle",
        "contracts.pair",
        "contracts.roles",
        "contracts.signatures",
        "contracts.sources",
        "contracts.stub",
        "contracts.uses",
        "contracts.values",
        "contracts.walks",
        "drift",
        "holders",
        "jitter",
        "memory",
        "messages",
        "need",
        "noise",
        "noise_cache",
        "parity",
        "passes",
        "precision",
        "pristine",
        "prompts",
        "purity",
        "release",
        "report",
        "serving",
        "serving.*",
        "texts",
        "totals",
        "watchdog",
        "wrappers",
    ),
    ("phases", "settings"),
    ("arms", "backends", "backends.*", "reference"),
    (
        "calling",
        "contracts",
        "contracts.backend*",
        "driving",
        "growth",
        "inflight",
        "observing",
        "scheduling",
        "session",
        "smoke",
        "smoke.*",
    ),
    ("anchoring", "asked", "checks", "checks.*"),
    ("decoding", "recording"),
    ("precisions",),
    ("engagement", "provenance", "strict"),
    ("run",),
    ("smaller",),
    ("machine", "search", "shrink", "strategies"),
    ("replay", "replay_file", "repro"),
    ("assertions", "render", "render.*"),
    (
        "__main__",
        "cli",
        "command",
        "command_contract",
        "command_replay",
        "command_smoke",
        "plugin",
        "pytest_doorway",
        "pytest_doorway.*",
    ),
    ("__init__",),
)
"""From the ground up. A new module needs a place here: the lowest that its imports allow."""

NEIGHBOURS = {
    "compare": ("messages", "noise"),
    "contracts": ("contracts.*",),
    "contracts.*": ("contracts.*", "messages"),
    "drift": ("compare", "messages", "noise"),
    "messages": ("noise",),
    "totals": ("noise",),
    "policy": ("errors", "records"),
    "noise_cache": ("noise",),
    "recording": ("decoding",),
    "passes": ("compare", "drift", "messages", "noise", "totals"),
    "reference": ("arms",),
    "driving": ("calling", "inflight", "scheduling"),
    "scheduling": ("inflight",),
    "session": ("calling", "driving", "growth", "inflight", "observing", "scheduling"),
    "parity": ("compare", "messages"),
    "precision": ("checkpoint", "memory"),
    "memory": ("need",),
    "purity": ("pristine", "wrappers"),
    "release": ("holders", "memory"),
    "report": ("messages", "noise", "passes"),
    "backends.function": ("backends.base",),
    "backends.mlx_lm": ("backends.base", "backends.mlx_lm_forcing", "reference"),
    "backends.mlx_lm_speculative": ("backends.base", "reference"),
    "backends.registry": ("backends.base", "backends.function"),
    "backends.server": (
        "backends.base",
        "backends.server_probe",
        "backends.server_wires",
        "reference",
    ),
    "backends.server_probe": ("backends.base", "backends.server_wires"),
    "backends.sglang": (
        "backends.base",
        "backends.sglang_forcing",
        "backends.sglang_pools",
    ),
    "backends.sglang_forcing": ("backends.sglang_pools",),
    "search": ("strategies",),
    "serving.*": ("memory", "serving.*"),
    "smoke": ("smoke.*",),
    "smoke.*": ("smoke.*",),
    "checks": ("checks.*",),
    "checks.*": ("checks.base",),
    "checks.schedule": ("checks.prefix",),
    "checks.logits": ("checks.batch",),
    "checks.long": ("checks.chunks",),
    "__main__": ("cli",),
    "cli": ("command", "command_contract", "command_replay", "command_smoke"),
    "render.smoke": ("render.terminal",),
    "replay": ("replay_file",),
    "repro": ("replay", "replay_file"),
    "plugin": ("pytest_doorway",),
    "pytest_doorway": ("plugin", "pytest_doorway.*"),
    "pytest_doorway.*": ("plugin", "pytest_doorway.*"),
}
"""Modules of one layer that may be imported by another one of it."""

ROOMS = {
    "huggingface_hub": ("checkpoint",),
    "hypothesis": ("machine", "search", "strategies"),
    "mlx": ("*",),
    "mlx_lm": ("*",),
    "psutil": ("memory",),
    "pytest": ("plugin", "pytest_doorway", "pytest_doorway.*"),
    "requests": ("serving.*",),
    "rich": ("render.*",),
    "sglang": ("backends.sglang*",),
    "torch": ("backends.sglang*",),
    "urllib3": ("serving.*",),
}
"""Where each library that is not Python's own lives. None else may be imported at all."""

LATE = ("mlx", "mlx_lm", "sglang", "torch")
"""Libraries that are imported inside functions only: they cost seconds, or a device."""

MODULE_LINES = 400
FUNCTION_LINES = 40

_ROOT = Path(__file__).parents[2] / "mlxcheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import statement's target.

    Attributes:
        target: The dotted name.
        line: Where.
        late: Inside a function.
        typing: Under ``if TYPE_CHECKING``.
    """

    target: str
    line: int
    late: bool
    typing: bool


def package_sources() -> dict[str, str]:
    """Return the text of every module of the package, by its name in `LAYERS`."""
    found: dict[str, str] = {}
    for file in sorted(_ROOT.rglob("*.py")):
        name = ".".join(file.relative_to(_ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file.read_text(encoding="utf-8")
    return found


def imports_of(source: str) -> list[Import]:
    """Return every import of a module, `importlib.import_module("...")` included."""
    return list(_walk(ast.parse(source), late=False, typing=False))


def bad_imports(sources: Mapping[str, str]) -> list[str]:
    """Return the imports that do not go down, and the modules that have no layer.

    Args:
        sources: Texts by module name, as `package_sources` returns them.
    """
    bad: list[str] = []
    for module, source in sources.items():
        if _layer(module) is None:
            bad.append(f"{module}: has no layer; give it a place in LAYERS of {__file__}")
            continue
        for found in imports_of(source):
            if found.target.startswith("."):
                bad.append(f"{module}:{found.line}: relative import; name the module whole")
            elif found.target.partition(".")[0] == "mlxcheck" and not found.typing:
                target = _room(found.target, sources)
                if not _may_import(module, target):
                    bad.append(f"{module}:{found.line}: imports {target}, which is not below")
    return bad


def bad_libraries(sources: Mapping[str, str]) -> list[str]:
    """Return the imports of libraries outside their rooms, or too early."""
    bad: list[str] = []
    for module, source in sources.items():
        for found in imports_of(source):
            library = found.target.partition(".")[0]
            if library in sys.stdlib_module_names or library in {"", "mlxcheck"}:
                continue
            at = f"{module}:{found.line}: imports {library}"
            if library not in ROOMS:
                bad.append(f"{at}, which has no room; see ROOMS of {__file__}")
            elif not any(fnmatchcase(module, room) for room in ROOMS[library]):
                bad.append(f"{at}, which lives in {', '.join(ROOMS[library])}")
            elif library in LATE and not (found.late or found.typing):
                bad.append(f"{at} at module level; import it where it is used")
    return bad


def dead_rows(modules: Mapping[str, str]) -> list[str]:
    """Return the names of `LAYERS` that no module bears any more."""
    rows = [row for layer in LAYERS for row in layer]
    return [row for row in rows if not any(fnmatchcase(module, row) for module in modules)]


def too_long(sources: Mapping[str, str]) -> list[str]:
    """Return the modules and functions that are longer than they may be.

    A function's length is that of its body without the docstring.
    """
    bad: list[str] = []
    for module, source in sources.items():
        lines = len(source.splitlines())
        if lines > MODULE_LINES:
            bad.append(f"{module}: {lines} lines, {MODULE_LINES} at most")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[ast.get_docstring(node) is not None :]
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > FUNCTION_LINES:
                    bad.append(f"{module}.{node.name}: {lines} lines, {FUNCTION_LINES} at most")
    return bad


def _walk(node: ast.AST, *, late: bool, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        only_types = typing or (isinstance(node, ast.If) and _guards_types(node, child))
        for target in _targets(child):
            line = getattr(child, "lineno", 0)
            yield Import(target=target, line=line, late=late, typing=only_types)
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(child, late=late or inside, typing=only_types)


def _guards_types(node: ast.If, child: ast.AST) -> bool:
    named = ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
    return named and child in node.body


def _targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        return [f"{start}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return [first.value]
    return []


def _room(target: str, sources: Mapping[str, str]) -> str:
    """Return the module that a dotted name inside the package leads to, or the package."""
    _, _, name = target.partition(".")
    while name and name not in sources:
        name = name.rpartition(".")[0]
    return name or "__init__"


def _layer(module: str) -> int | None:
    for number, layer in enumerate(LAYERS):
        if any(fnmatchcase(module, row) for row in layer):
            return number
    return None


def _may_import(module: str, target: str) -> bool:
    own, other = _layer(module), _layer(target)
    if own is None or other is None or other > own:
        return False
    rows = [
        room for key, rooms in NEIGHBOURS.items() if fnmatchcase(module, key) for room in rooms
    ]
    return other < own or any(fnmatchcase(target, row) for row in rows)
