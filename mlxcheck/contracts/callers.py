"""What the sources of callers read, write and call on the object that a stub stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.contracts.roles import Evidence, Function
from mlxcheck.contracts.uses import Around, Uses
from mlxcheck.contracts.walks import Walk

if TYPE_CHECKING:
    import ast
    from collections.abc import Collection, Iterable

    from mlxcheck.contracts.sources import Source

__all__ = ["uses_of"]

_ROUNDS = 6
"""How often the files are gone through while that tells more of who holds the object."""


def uses_of(
    evidence: Evidence,
    sources: Iterable[Source],
    own: Collection[ast.AST],
    replaced: Collection[ast.AST],
) -> Uses:
    """Return what callers do with the object.

    Args:
        evidence: What is known of who holds it; more is added.
        sources: The callers' files.
        own: The classes of the stub and the base: their ``self`` is the object, and what they
            do with it is not a caller's doing.
        replaced: Functions that do not run for the stub.
    """
    kept = list(dict.fromkeys(sources))
    for source in kept:
        for node in source.definitions.values():
            if isinstance(node, Function):
                evidence.annotate(node, source)
    for _ in range(_ROUNDS):
        before, uses = evidence.size, Uses()
        around = Around(evidence, kept, own, replaced, uses)
        for source in kept:
            Walk(source, around).scope(source.tree.body, {}, None)
        if evidence.size == before:
            break
    uses.replaced = len(replaced)
    return uses
