"""When rows are submitted and cancelled: a schedule held against what rows have done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.inflight import Row
    from mlxcheck.records import Moment, Schedule

__all__ = ["Timeline"]


class Timeline:
    """Tells, before each step of the engine, who leaves and who joins.

    A moment that cannot come any more, since the row that it waits for ended with fewer
    tokens, comes at once: nothing waits for ever. It is told as missed.

    Args:
        schedule: None: all start together and stay.
        rows: Of the case, in order.
    """

    def __init__(self, schedule: Schedule | None, rows: Sequence[Row]) -> None:
        nothing = (None,) * len(rows)
        joins = schedule.joins if schedule else nothing
        leaves = schedule.leaves if schedule else nothing
        self._rows = rows
        self._now = 0
        self._reached: dict[Moment, int] = {}
        self._joins = {row: moment for row, moment in enumerate(joins) if moment}
        self._leaves = {row: moment for row, moment in enumerate(leaves) if moment}
        self._missed: set[int] = set()

    @property
    def waiting(self) -> bool:
        """Whether rows have yet to be submitted."""
        return bool(self._joins)

    @property
    def missed(self) -> tuple[int, ...]:
        """The rows whose join or leave did not come while it was to."""
        return tuple(sorted(self._missed | set(self._leaves)))

    def starting(self) -> list[int]:
        """Return the rows that are submitted before the first step."""
        return [row for row in range(len(self._rows)) if row not in self._joins]

    def leaving(self) -> list[int]:
        """Return the rows that are cancelled now; a step has passed since the last call."""
        self._now += 1
        due = [row for row, moment in self._leaves.items() if self._due(moment)]
        for row in due:
            moment = self._leaves.pop(row)
            if self._rows[row].done or self._late(moment):
                self._missed.add(row)
        return [row for row in due if self._rows[row].submitted and not self._rows[row].done]

    def joining(self) -> list[int]:
        """Return the rows that are submitted now."""
        due = [row for row, moment in self._joins.items() if self._due(moment)]
        if not due and all(row.done for row in self._rows if row.submitted):
            due = list(self._joins)[:1]  # nobody is left who could bring a moment about
            self._missed.update(due)
        for row in due:
            if self._late(self._joins.pop(row)):
                self._missed.add(row)
        return due

    def _due(self, moment: Moment) -> bool:
        row = self._rows[moment.row]
        if moment not in self._reached:
            said = moment.tokens is not None and row.said >= moment.tokens
            if not row.submitted or not (row.done or said):
                return False
            self._reached[moment] = self._now
        return row.done or self._now - self._reached[moment] >= moment.steps

    def _late(self, moment: Moment) -> bool:
        """Tell whether a row ended that was to be still alive."""
        row = self._rows[moment.row]
        if moment.tokens is None or not row.done:
            return False
        return not (row.left and row.said >= moment.tokens)  # who left at that moment
