"""How a comparison that cannot be made ends its test: a text, and whether it may skip."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import pytest

from mlxcheck.errors import MlxCheckError, ModelUnavailable, NotEnoughMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.records import Comparison

__all__ = ["Failed", "Refusal", "failure_text"]

_SKIPPING = (ModelUnavailable, NotEnoughMemory)
_WHOLE_MESSAGES = 3


class Failed(Exception):  # noqa: N818 - what pytest prints is its text alone
    """A generated item failed; the text is all that there is to say."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something did not come about. Text alone, so that it keeps no frame alive.

    An exception's traceback holds the frames it passed, and those a model.

    Attributes:
        text: One paragraph, or a traceback where the error is none of ours.
        reason: What summaries say: the text, or the traceback's last line.
        skips: Whether the state of this machine is to blame and the test may skip.
        kind: Raised for users' own tests.
        excused: It skips under ``--mlx-require`` too: something else speaks for the engine.
    """

    text: str
    reason: str
    skips: bool = False
    kind: type[MlxCheckError] = MlxCheckError
    excused: bool = False

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """Keep what an exception says."""
        if isinstance(error, MlxCheckError):
            text = str(error)
            return cls(text, text, isinstance(error, _SKIPPING), type(error))
        text = "".join(traceback.format_exception(error)).rstrip()
        return cls(text, f"{type(error).__name__}: {error}".partition("\n")[0])

    def end_item(self, *, require: bool) -> NoReturn:
        """Skip or fail a generated item."""
        if self.skips and (self.excused or not require):
            pytest.skip(self.text)
        raise Failed(self.text)

    def end_call(self) -> NoReturn:
        """Skip or fail the user's test that asked.

        Raises:
            MlxCheckError: Of the kind that it was.
        """
        __tracebackhide__ = True
        if self.skips:
            pytest.skip(self.text)
        raise self.kind(self.text)


def failure_text(failures: Sequence[Comparison]) -> str:
    """Put the messages of failing comparisons together, the first ones whole."""
    parts = [found.message for found in failures[:_WHOLE_MESSAGES]]
    rest = failures[_WHOLE_MESSAGES:]
    if rest:
        cases = ", ".join(dict.fromkeys(found.case for found in rest))
        parts.append(f"and {len(rest)} more like these, in {cases}")
    return "\n\n".join(parts)
