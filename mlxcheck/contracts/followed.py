"""What is noted while the methods of a class are followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcheck.contracts.classes import Member, Place

__all__ = ["Read", "SelfCall", "Stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An attribute that a method reads on its own object.

    Attributes:
        name: The attribute.
        place: Where.
        member: The method.
        when: Conditions that could not be decided.
    """

    name: str
    place: Place
    member: Member
    when: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCall:
    """A method's call of a method of its own object.

    Attributes:
        member: What is called.
        place: Where.
        positional: How many arguments are given by position, ``self`` not counted.
        keywords: Which are given by name.
        whole: The call has no ``*`` or ``**``.
    """

    member: Member
    place: Place
    positional: int
    keywords: tuple[str, ...]
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """An assertion that fails, or an error that is raised, on every way that leads there.

    Attributes:
        place: Where.
        text: The statement.
        member: The method that holds it.
        decided: The conditions that led there, and how each was decided.
    """

    place: Place
    text: str
    member: Member
    decided: tuple[tuple[str, bool], ...]
