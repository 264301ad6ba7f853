"""What a module's own file says that its names are, read from its bytecode.

The loader hands out the code of a file without running it, from the ``.pyc`` where there is
one, so this costs no parse. Of a module's or a class's body only the statements that bind a
name are understood: imports, ``def``, ``class``, and everything else as "something". What
is not understood is never held against anyone.
"""

from __future__ import annotations

import opcode
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["UNKNOWN", "Binding", "Scope", "nested", "read", "stored_globals"]

UNKNOWN = object()
"""A default value that the bytecode computes."""

BARRIER = object()
"""An instruction that is not a simple load."""

_OPS = opcode.opmap
_NONE = -1
"""An opcode that this Python does not have."""


def _op(name: str) -> int:
    """Look up an opcode; names come and go between Python versions."""
    return _OPS.get(name, _NONE)


_SKIPPED = frozenset(
    _op(name)
    for name in ("CACHE", "RESUME", "NOP", "PRECALL", "PUSH_NULL", "NOT_TAKEN", "MAKE_CELL")
)
_JUMPS = frozenset(opcode.hasjrel) | frozenset(opcode.hasjabs)
_EXTENDED_ARG = _op("EXTENDED_ARG")
_STORES = frozenset((_op("STORE_NAME"), _op("STORE_GLOBAL")))
_FUNCTION_MADE = frozenset((_op("MAKE_FUNCTION"), _op("SET_FUNCTION_ATTRIBUTE")))
_STATEMENT_ENDS = frozenset(
    map(_op, ("POP_TOP", "STORE_SUBSCR", "STORE_ATTR", "DELETE_SUBSCR"))
)
_HAS_ATTRIBUTE_OP = "SET_FUNCTION_ATTRIBUTE" in _OPS  # Python 3.13: flags left MAKE_FUNCTION
_DEFAULTS, _KWDEFAULTS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One statement that binds a name.

    Attributes:
        kind: ``"from"``: an attribute of a module; ``"import"``: a module; ``"def"`` and
            ``"class"``: made here; ``"other"``: the value of an expression.
        module: The module that is imported (from).
        attr: The attribute that is imported.
        code: The body of the function or class.
        plain: A ``def`` without decorators: what is bound is that very function.
        defaults: The function's default values; UNKNOWN where computed.
        kwdefaults: Those of its keyword-only arguments that are constants; UNKNOWN if none
            can be told.
    """

    kind: Literal["from", "import", "def", "class", "other"]
    module: str = ""
    attr: str = ""
    code: CodeType | None = None
    plain: bool = False
    defaults: object = UNKNOWN
    kwdefaults: object = UNKNOWN


@dataclass(slots=True)
class Scope:
    """The names that one body binds.

    Attributes:
        names: Every binding of each name, in the order of the file.
        stars: Modules that are star-imported.
        imported: Top-level packages that are imported.
        deleted: Names that the body deletes again.
    """

    names: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)


def read(code: CodeType, package: str) -> Scope:
    """Read the body of a module or class.

    Args:
        code: Its code.
        package: The package that relative imports start from.

    Returns:
        What it binds.
    """
    return _Reader(code, package).scope


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield *code* and all code inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)


def stored_globals(code: CodeType) -> set[str]:
    """Find the names that functions in *code* rebind by a ``global`` statement."""
    found = set()
    store = _op("STORE_GLOBAL")
    for inner in nested(code):
        raw, extended = inner.co_code, 0
        # The byte of an argument may look like the opcode: look before decoding.
        if store not in raw:
            continue
        for at in range(0, len(raw), 2):
            arg = raw[at + 1] | extended
            extended = arg << 8 if raw[at] == _EXTENDED_ARG else 0
            if raw[at] == store:
                found.add(inner.co_names[arg])
    return found


class _Reader:
    """One pass over the instructions of a body, statement by statement.

    `dis.get_instructions` would do, at ten times the cost: this runs before each reference
    over some forty modules.
    """

    def __init__(self, code: CodeType, package: str) -> None:
        self.scope = Scope()
        self._code = code
        self._package = package
        self._module = ""
        self._as_module = False
        self._previous = _NONE
        self._start()
        self._handlers: Mapping[int, Callable[[int], None]] = {
            _op("LOAD_CONST"): self._load_const,
            _op("LOAD_SMALL_INT"): self._loads_append,
            _op("LOAD_NAME"): lambda _: self._loads.append(UNKNOWN),
            _op("IMPORT_NAME"): self._import_name,
            _op("IMPORT_FROM"): self._import_from,
            _op("LOAD_BUILD_CLASS"): self._build_class,
            _op("MAKE_FUNCTION"): self._make_function,
            _op("SET_FUNCTION_ATTRIBUTE"): self._set_attribute,
            _op("BUILD_CONST_KEY_MAP"): self._key_map,
            _op("BUILD_MAP"): self._map,
            _op("STORE_NAME"): self._store,
            _op("STORE_GLOBAL"): self._store,
            _op("DELETE_NAME"): self._delete,
        }
        self._run()

    def _run(self) -> None:
        """Walk the instructions."""
        raw, handlers, extended = self._code.co_code, self._handlers, 0
        for at in range(0, len(raw), 2):
            op = raw[at]
            if op in _SKIPPED:
                continue
            if op == _EXTENDED_ARG:
                extended = (raw[at + 1] | extended) << 8
                continue
            handler = handlers.get(op)
            if handler is not None:
                handler(raw[at + 1] | extended)
            elif op in _STATEMENT_ENDS:
                self._start()
            else:
                self._loads.append(BARRIER)
                self._jumped = self._jumped or op in _JUMPS
            extended = 0
            self._previous = op

    def _start(self) -> None:
        """Begin a statement."""
        self._loads: list[object] = []
        self._functions: list[CodeType] = []
        self._class_next = False
        self._class: CodeType | None = None
        self._flags = 0
        self._keywords: dict[str, object] | None = None
        self._jumped = False

    def _load_const(self, arg: int) -> None:
        self._loads.append(self._code.co_consts[arg])

    def _loads_append(self, arg: int) -> None:
        self._loads.append(arg)

    def _import_name(self, arg: int) -> None:
        """Take level and names from the two constants before."""
        name = self._code.co_names[arg]
        level, names = self._loads[-2], self._loads[-1]
        if isinstance(level, int) and level > 0:
            base = self._package.rsplit(".", level - 1)[0]
            name = f"{base}.{name}" if name else base
        self._module, self._as_module = name, names is None
        self.scope.imported.add(name.partition(".")[0])
        if names == ("*",):
            self.scope.stars.append(name)

    def _import_from(self, arg: int) -> None:
        self._attr = self._code.co_names[arg]

    def _build_class(self, _arg: int) -> None:
        self._class_next = True

    def _make_function(self, arg: int) -> None:
        """Note a function; the one right after LOAD_BUILD_CLASS is a class body."""
        code = self._loads[-1] if self._loads else None
        if not isinstance(code, CodeType):
            return
        if self._class_next:
            self._class, self._class_next = code, False
        elif code.co_name != "__annotate__":  # Python 3.14 makes one for the annotations
            self._functions.append(code)
        self._flags = 0 if _HAS_ATTRIBUTE_OP else arg

    def _set_attribute(self, arg: int) -> None:
        self._flags |= arg

    def _key_map(self, arg: int) -> None:
        """Read keyword defaults: the values, then a tuple of their names."""
        keys, values = self._loads[-1], self._loads[-1 - arg : -1]
        if isinstance(keys, tuple):
            self._keep_keywords(dict(zip(keys, values, strict=False)))
        self._loads.append(BARRIER)

    def _map(self, arg: int) -> None:
        """Read keyword defaults: names and values by turns (Python 3.14)."""
        pairs = self._loads[len(self._loads) - 2 * arg :] if arg else []
        self._keep_keywords(dict(zip(pairs[::2], pairs[1::2], strict=False)))
        self._loads.append(BARRIER)

    def _keep_keywords(self, found: dict[object, object]) -> None:
        """Keep the constants, unless a value took more than one load."""
        if BARRIER not in found.values() and BARRIER not in found:
            known = {str(key): value for key, value in found.items() if value is not UNKNOWN}
            self._keywords = known

    def _delete(self, arg: int) -> None:
        self.scope.deleted.add(self._code.co_names[arg])
        self._start()

    def _store(self, arg: int) -> None:
        """Bind a name to what the statement made."""
        name = self._code.co_names[arg]
        self.scope.names.setdefault(name, []).append(self._binding(name))
        self._start()

    def _binding(self, name: str) -> Binding:
        """Tell what kind of statement this was."""
        if self._previous == _op("IMPORT_FROM") and not self._as_module:
            return Binding(kind="from", module=self._module, attr=self._attr)
        if self._previous in (_op("IMPORT_FROM"), _op("IMPORT_NAME")):
            # ``import a.b`` binds a; ``import a.b as m`` ends in IMPORT_FROM and binds a.b.
            whole = self._previous == _op("IMPORT_FROM")
            target = self._module if whole else self._module.partition(".")[0]
            return Binding(kind="import", module=target)
        if self._class is not None:
            return Binding(kind="class", code=self._class)
        if self._previous in _FUNCTION_MADE and self._functions:
            return self._plain_def(self._functions[-1])
        for code in self._functions:
            # A private name is mangled where it is stored: ``_Class__name``.
            if name.endswith(code.co_name):
                return Binding(kind="def", code=code)
        return Binding(kind="other")

    def _plain_def(self, code: CodeType) -> Binding:
        """Describe a ``def`` that has no decorator, with the defaults that can be told."""
        defaults: object = UNKNOWN
        keywords: object = UNKNOWN
        # With a jump or a second function in the statement, the loads are not in line.
        if not self._jumped and len(self._functions) == 1:
            defaults = self._loads[0] if self._flags & _DEFAULTS and self._loads else None
            defaults = defaults if isinstance(defaults, tuple | None) else UNKNOWN
            keywords = self._keywords if self._flags & _KWDEFAULTS else None
            if self._flags & _KWDEFAULTS and keywords is None:
                keywords = UNKNOWN
        return Binding(
            kind="def", code=code, plain=True, defaults=defaults, kwdefaults=keywords
        )
