"""Holds what an adapter says, step by step, against the rules that hold at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Emission
from mlxcheck.contracts.backend_report import BrokenRule
from mlxcheck.contracts.backend_steps import (
    EMITTED,
    OF_IDS,
    PIECES,
    STATED,
    TOTALS,
    Row,
    Saw,
    Stated,
    is_as_wide_as_max_batch,
    totals_never_fall,
)

if TYPE_CHECKING:
    from mlxcheck.backends.base import Capabilities
    from mlxcheck.contracts.backend_rules import Breach, Rule
    from mlxcheck.contracts.backend_shown import Shown

__all__ = ["Watch", "broken"]


class Watch:
    """Holds everything that a backend says against these rules, and keeps what breaks them.

    Args:
        vocab_size: Valid ids are below it.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.found: dict[str, BrokenRule] = {}
        self.spoilt: list[str] = []
        self._emissions = 0
        self._asked = False
        self._named: set[str] = set()
        self._most: int | None = None
        self._ids = True

    def take(
        self, given: object, shown: Shown, rows: Mapping[str, Row], capabilities: Capabilities
    ) -> bool:
        """Look at one emission, and book it; tell whether it brought its request further."""
        name = getattr(given, "request_id", None)
        row = rows.get(name) if isinstance(name, str) else None
        if row is not None and row.state == "over":
            return False  # the same step had its end
        self._emissions += 1
        self._ids = capabilities.ids
        live = tuple(each for each, other in rows.items() if other.state == "live")
        saw = Saw(given=given, row=row, live=live, ids=self._ids, vocab_size=self._vocab_size)
        self._judge(EMITTED, saw)
        if row is None or row.state != "live" or not hasattr(given, "finish"):
            return False
        self._book(row, given, shown)
        return True

    def see(self, stats: object, before: Mapping[str, int], capabilities: Capabilities) -> None:
        """Look at one answer of `stats`."""
        self._asked = True
        self._most = capabilities.max_batch if capabilities.batch else 1
        if isinstance(stats, Mapping):
            self._named.update(str(name) for name in stats)
        self._judge(STATED, Stated(stats=stats, before=before, most=self._most))

    def note(self, each: Rule, breach: Breach) -> None:
        """Keep a rule that was broken."""
        self.spoilt.append(each.name)
        known = self.found.get(each.name)
        if known is None:
            self.found[each.name] = broken(each, breach)
        else:
            self.found[each.name] = replace(known, times=known.times + 1)

    def unasked(self, each: Rule) -> str:
        """Return why there was nothing to hold against a rule; empty where there was."""
        if each in EMITTED:
            blind = each in OF_IDS and not self._ids
            why = "capabilities.ids is False" if blind else ""
            return why if self._emissions else "no emission came"
        if each is totals_never_fall and not self._named.intersection(TOTALS):
            return "stats() tells no totals"
        if each is is_as_wide_as_max_batch and "batch_width" not in self._named:
            return "stats() does not tell batch_width"
        if each is is_as_wide_as_max_batch and self._most is None:
            return "capabilities.max_batch is None"
        return "" if self._asked else "stats() was not called"

    def _book(self, row: Row, given: Any, shown: Shown) -> None:
        """Take in what can be used of an emission, right or not: the rest is asked too."""
        row.numbers.append(shown)
        row.said += 1
        if isinstance(given, Emission):
            token: Any = given.token
            token = token if isinstance(token, int) else 0
            row.tokens.append(token if 0 <= token < self._vocab_size else 0)
        else:
            row.pieces.append(str(given.text))
        row.finish = given.finish
        if given.finish is not None:
            row.state = "finished"
        elif row.said >= PIECES * row.request.max_tokens or _full(row):
            row.state = "over"

    def _judge(self, rules: tuple[Rule, ...], saw: object) -> None:
        for each in rules:
            breach = each.ask(saw)
            if breach is not None:
                self.note(each, breach)
                return


def broken(each: Rule, breach: Breach) -> BrokenRule:
    """Make a record of a rule that was broken."""
    return BrokenRule(
        rule=each.name,
        sentence=each.sentence,
        call=breach.call,
        expected=breach.expected,
        actual=breach.actual,
        advice=breach.advice,
    )


def _full(row: Row) -> bool:
    stopped = bool(row.tokens) and row.tokens[-1] in row.request.stop_ids
    return stopped or len(row.tokens) >= row.request.max_tokens
