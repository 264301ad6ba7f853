"""The references of a session: one load a model, for all items and tests together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck import release
from mlxcheck.errors import PromptError
from mlxcheck.pytest_doorway.outcomes import Refusal
from mlxcheck.recording import Memo, Recorded, Settings, Want, record_each

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["References"]


class References:
    """Records references, keeps what they said, and never a model.

    Every set of prompts that is known to be wanted is planned before the first is asked
    for: then all models are loaded and freed in turn, each once, before any candidate.

    Args:
        settings: What every comparison depends on.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._planned: dict[str, list[Want]] = {}
        self._memos: dict[str, Memo] = {}
        self._refused: dict[str, Refusal] = {}

    def plan(self, source: str, want: Want) -> None:
        """Have a set decoded in the model's first load."""
        self._planned.setdefault(source, []).append(want)

    def recorded(self, source: str, want: Want) -> Recorded | Refusal:
        """Return what the reference says to a set, recorded now where it was not planned.

        No candidate may be open.
        """
        planned, self._planned = self._planned, {}
        if source in planned:
            planned[source].append(want)
        for each, wants in planned.items():
            self._record(each, wants)
        found = self._record(source, [want])
        return found if isinstance(found, Refusal) else found[0]

    def _record(
        self, source: str, wants: Sequence[Want]
    ) -> Refusal | tuple[Recorded | Refusal, ...]:
        if source not in self._refused:
            memo = self._memos.setdefault(source, Memo())
            try:
                found = record_each(source, wants, self._settings, memo=memo)
            except Exception as error:  # noqa: BLE001 - told by every item that needed it
                self._refused[source] = Refusal.of(error)
            else:
                return tuple(
                    Refusal.of(each) if isinstance(each, PromptError) else each
                    for each in found
                )
            # The traceback is gone, and with it what it held: the next load starts clean.
            release.take_baseline()
        return self._refused[source]
