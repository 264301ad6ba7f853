"""One request in flight, and what the engine says of itself meanwhile."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcheck import texts
from mlxcheck.records import Fault, Finish, Scores, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlxcheck.observing import Watcher
    from mlxcheck.texts import Spelling

__all__ = ["Row", "Seen", "checked"]


@dataclass(slots=True)
class Row:
    """One request in flight."""

    prompt_id: str
    max_tokens: int
    stop_ids: tuple[int, ...]
    watcher: Watcher
    expected: Trace | None = None
    forced: tuple[int, ...] | None = None
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish: Finish | None = None
    submitted: bool = False
    done: bool = False
    left: bool = False
    fault: Fault | None = None
    scores: tuple[Scores, ...] = ()
    reported: tuple[float, ...] = ()

    @property
    def said(self) -> int:
        """How many tokens it has said; of an engine that shows text, how many pieces."""
        return len(self.tokens) + len(self.texts)

    def unnamed_stop(self) -> int | None:
        """Return the id that stands for a stop of which it was not said at which."""
        step = len(self.tokens)
        tokens = self.expected.tokens if self.expected else ()
        wanted = tokens[step] if step < len(tokens) else None
        return wanted if wanted in self.stop_ids else next(iter(self.stop_ids), None)

    def read(self) -> None:
        """Read the numbers; this waits for what the engine has only queued."""
        self.scores, self.reported = self.watcher.close()
        self.done = True

    def trace(self, spelling: Callable[[], Spelling]) -> Trace:
        """Return what was said, with text read as tokens.

        Args:
            spelling: Loads the tokenizer's; called where there is text.
        """
        text = "".join(self.texts) if self.texts else None
        tokens = tuple(self.tokens)
        if text is not None:
            tokens = texts.read(text, self.finish, self.expected, spelling(), self.stop_ids)
        return Trace(
            prompt_id=self.prompt_id,
            tokens=tokens,
            text=text,
            finish=self.finish,
            scores=self.scores,
            anchors=tuple(range(len(self.tokens))) if self.forced else (),
            reported=self.reported,
            left=self.left,
            fault=self.fault,
        )

    def fail(self, fault: Fault) -> None:
        """End the row for a fault."""
        self.done, self.fault = True, fault


class Seen:
    """What `Backend.stats` said over a case: how wide it got, and whether it prefills.

    Args:
        before: The totals as they stood before the case.
    """

    def __init__(self, before: Mapping[str, int]) -> None:
        self.width: int | None = None
        self.totals = dict(before)
        self._before = before

    def see(self, stats: Mapping[str, int]) -> bool:
        """Take in the numbers of one step; tell whether a prefill went on."""
        moved = stats.get("prefill_chunks", 0) != self.totals.get("prefill_chunks", 0)
        self.totals = dict(stats)
        if "batch_width" in stats:
            self.width = max(self.width or 0, stats["batch_width"])
        return moved

    def grown(self, name: str) -> int | None:
        """Return by how much a total grew; None where the engine does not tell it."""
        return self.totals[name] - self._before.get(name, 0) if name in self.totals else None


def checked(token: object, vocab_size: int) -> tuple[int, str]:
    """Return the token as an int, or what is wrong with it."""
    if isinstance(token, bool):
        return 0, f"it gave {token!r} where a token id was due"
    try:
        value = operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        return 0, f"it gave {token!r} ({type(token).__name__}) where an int token id was due"
    if not 0 <= value < vocab_size:
        return 0, f"it gave token id {value}, outside the vocabulary (0 to {vocab_size - 1})"
    return value, ""
