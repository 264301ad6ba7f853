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
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FunctionType

__all__ = [
    "UNKNOWN",
    "Binding",
    "Scope",
    "changed_defaults",
    "nested",
    "read",
    "stored_globals",
]

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
_LOAD_CONST = _op("LOAD_CONST")
_IMPORT_NAME = _op("IMPORT_NAME")
_IMPORT_FROM = _op("IMPORT_FROM")
_FUNCTION_MADE = frozenset((_op("MAKE_FUNCTION"), _op("SET_FUNCTION_ATTRIBUTE")))
_STATEMENT_ENDS = frozenset(
    map(_op, ("POP_TOP", "STORE_SUBSCR", "STORE_ATTR", "DELETE_SUBSCR"))
)
_HAS_ATTRIBUTE_OP = "SET_FUNCTION_ATTRIBUTE" in _OPS  # Python 3.13: flags left MAKE_FUNCTION
_DEFAULTS, _KWDEFAULTS = 1, 2


class Binding(NamedTuple):
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


_OTHER = Binding(kind="other")


@dataclass(slots=True)
class Scope:
    """The names that one body binds.

    Attributes:
        names: Every binding of each name, in the order of the file.
        stars: Modules that are star-imported.
        imported: Top-level packages that are imported.
        deleted: Names that the body deletes again.
        branches: Whether some statement may not have run.
    """

    names: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    branches: bool = False


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


def changed_defaults(function: FunctionType, binding: Binding) -> list[str]:
    """Compare the default arguments of a live function with what its ``def`` says.

    Args:
        function: The function.
        binding: Its ``def``, without decorators.

    Returns:
        The positional and the keyword defaults, as text, of those that differ.
    """
    changed = []
    live, expected = function.__defaults__, binding.defaults
    # A constant tuple at the start may also be the first of several defaults.
    same = expected is UNKNOWN or _equal(live, expected)
    if not same and not (live and _equal(live[0], expected)):
        changed.append(str(live))
    keywords, told = function.__kwdefaults__, binding.kwdefaults
    if isinstance(told, dict):
        # Those that the bytecode computes are not among them.
        if any(not _equal((keywords or {}).get(key, UNKNOWN), told[key]) for key in told):
            changed.append(str(keywords))
    elif told is None and keywords is not None:
        changed.append(str(keywords))
    return changed


def _equal(live: object, expected: object) -> bool:
    """Compare constants, types included: an array's ``==`` is no bool, and 1 is not True."""
    if type(live) is not type(expected):
        return False
    if isinstance(live, tuple) and isinstance(expected, tuple):
        return len(live) == len(expected) and all(map(_equal, live, expected))
    return bool(live == expected)


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
        self._run()

    def _run(self) -> None:
        """Walk the instructions."""
        raw, consts, handlers = self._code.co_code, self._code.co_consts, _HANDLERS
        extended = 0
        for at in range(0, len(raw), 2):
            op = raw[at]
            if op in _SKIPPED:
                continue
            arg = raw[at + 1] | extended
            extended = 0
            if op == _LOAD_CONST:  # by far the most frequent
                self._loads.append(consts[arg])
            elif op == _EXTENDED_ARG:
                extended = arg << 8
                continue
            elif op in handlers:
                handlers[op](self, arg)
            elif op in _STATEMENT_ENDS:
                self._start()
            else:
                self._loads.append(BARRIER)
                if op in _JUMPS:
                    self._jumped = self.scope.branches = True
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

    def load_small_int(self, arg: int) -> None:
        self._loads.append(arg)

    def load_name(self, _arg: int) -> None:
        self._loads.append(UNKNOWN)

    def import_name(self, arg: int) -> None:
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

    def import_from(self, arg: int) -> None:
        self._attr = self._code.co_names[arg]

    def build_class(self, _arg: int) -> None:
        self._class_next = True

    def make_function(self, arg: int) -> None:
        """Note a function; the one right after LOAD_BUILD_CLASS is a class body."""
        code = self._loads[-1] if self._loads else None
        if not isinstance(code, CodeType):
            return
        if self._class_next:
            self._class, self._class_next = code, False
        elif code.co_name != "__annotate__":  # Python 3.14 makes one for the annotations
            self._functions.append(code)
        self._flags = 0 if _HAS_ATTRIBUTE_OP else arg

    def set_attribute(self, arg: int) -> None:
        self._flags |= arg

    def key_map(self, arg: int) -> None:
        """Read keyword defaults: the values, then a tuple of their names."""
        keys, values = self._loads[-1], self._loads[-1 - arg : -1]
        if isinstance(keys, tuple):
            self._keep_keywords(dict(zip(keys, values, strict=False)))
        self._loads.append(BARRIER)

    def map(self, arg: int) -> None:
        """Read keyword defaults: names and values by turns (Python 3.14)."""
        pairs = self._loads[len(self._loads) - 2 * arg :] if arg else []
        self._keep_keywords(dict(zip(pairs[::2], pairs[1::2], strict=False)))
        self._loads.append(BARRIER)

    def _keep_keywords(self, found: dict[object, object]) -> None:
        """Keep the constants, unless a value took more than one load."""
        if BARRIER not in found.values() and BARRIER not in found:
            known = {str(key): value for key, value in found.items() if value is not UNKNOWN}
            self._keywords = known

    def delete(self, arg: int) -> None:
        self.scope.deleted.add(self._code.co_names[arg])
        self._start()

    def store(self, arg: int) -> None:
        """Bind a name to what the statement made."""
        name = self._code.co_names[arg]
        self.scope.names.setdefault(name, []).append(self._binding(name))
        self._start()

    def _binding(self, name: str) -> Binding:
        """Tell what kind of statement this was."""
        if self._previous == _IMPORT_FROM and not self._as_module:
            return Binding(kind="from", module=self._module, attr=self._attr)
        if self._previous in (_IMPORT_FROM, _IMPORT_NAME):
            # ``import a.b`` binds a; ``import a.b as m`` ends in IMPORT_FROM and binds a.b.
            whole = self._previous == _IMPORT_FROM
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
        return _OTHER

    def _plain_def(self, code: CodeType) -> Binding:
        """Describe a ``def`` that has no decorator, with the defaults that can be told."""
        defaults: object = UNKNOWN
        keywords: object = UNKNOWN
        # With a jump or a second function in the statement, the loads are not in line.
        if not self._jumped and len(self._functions) == 1:
            defaults = keywords = None
            if self._flags & _DEFAULTS:
                first = self._loads[0]
                defaults = first if isinstance(first, tuple) else UNKNOWN
            if self._flags & _KWDEFAULTS:
                keywords = UNKNOWN if self._keywords is None else self._keywords
        return Binding("def", "", "", code, True, defaults, keywords)  # noqa: FBT003 - by name it is slow


_HANDLERS: dict[int, Callable[[_Reader, int], None]] = {
    _op("LOAD_SMALL_INT"): _Reader.load_small_int,
    _op("LOAD_NAME"): _Reader.load_name,
    _op("IMPORT_NAME"): _Reader.import_name,
    _op("IMPORT_FROM"): _Reader.import_from,
    _op("LOAD_BUILD_CLASS"): _Reader.build_class,
    _op("MAKE_FUNCTION"): _Reader.make_function,
    _op("SET_FUNCTION_ATTRIBUTE"): _Reader.set_attribute,
    _op("BUILD_CONST_KEY_MAP"): _Reader.key_map,
    _op("BUILD_MAP"): _Reader.map,
    _op("STORE_NAME"): _Reader.store,
    _op("STORE_GLOBAL"): _Reader.store,
    _op("DELETE_NAME"): _Reader.delete,
}
