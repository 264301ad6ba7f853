"""What callers do with the object that a stub stands for, as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import ast
    from collections.abc import Collection

    from mlxcheck.contracts.classes import Place
    from mlxcheck.contracts.roles import Evidence
    from mlxcheck.contracts.sources import Source

__all__ = ["Around", "How", "Loose", "Use", "Uses"]

How = Literal["read", "write", "call", "make"]
"""What can be done with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of the object by a caller.

    Attributes:
        how: What is done.
        name: The attribute or method.
        place: Where.
        when: The conditions around it, outermost first.
        guarded: It is behind `hasattr`, or in a ``try`` that catches what it raises.
        positional: Of a call: how many arguments are given by position.
        keywords: Of a call: which are given by name.
        whole: Of a call: it has no ``*`` or ``**``.
    """

    how: How
    name: str
    place: Place
    when: tuple[str, ...] = ()
    guarded: bool = False
    positional: int = 0
    keywords: tuple[str, ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Loose:
    """A place where the object gets out of sight."""

    name: str
    reason: str
    place: Place


@dataclass
class Uses:
    """Everything that callers do with the object.

    Attributes:
        found: The uses, each place once.
        loose: Where it gets out of sight.
        replaced: Methods of callers that were left out, since who holds the stub has its own.
    """

    found: dict[tuple[str, str, Place, int], Use] = field(default_factory=dict)
    loose: dict[tuple[str, Place], Loose] = field(default_factory=dict)
    replaced: int = 0


class Around(NamedTuple):
    """What all files share.

    Attributes:
        evidence: Who holds the object; more is added.
        sources: The callers' files.
        own: The classes of the stub and the base.
        replaced: Functions that do not run for the stub.
        uses: What is found.
    """

    evidence: Evidence
    sources: Collection[Source]
    own: Collection[ast.AST]
    replaced: Collection[ast.AST]
    uses: Uses
