"""Rules that hold at every step, whatever was asked: of each emission, and of `stats`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mlxcheck.backends.base import Emission, Request, TextEmission
from mlxcheck.contracts.backend_rules import Breach, Rule, rule

if TYPE_CHECKING:
    from mlxcheck.contracts.backend_shown import Shown

__all__ = [
    "EMITTED",
    "OF_IDS",
    "PIECES",
    "STATED",
    "TOTALS",
    "Row",
    "Saw",
    "Stated",
    "is_as_wide_as_max_batch",
    "totals_never_fall",
]

PIECES = 8
"""Of text that a token may come in; an answer of more has forgotten its end."""

TOTALS = ("cached_tokens", "prefill_chunks", "drafted_tokens", "accepted_tokens")
"""What `Backend.stats` counts from the start on."""


@dataclass(slots=True)
class Row:
    """One request, and what came of it.

    Attributes:
        request: As it was submitted.
        state: ``live`` until its end; ``over`` where it ended without saying so, and is about
            to be cancelled.
        tokens: The ids that it was given.
        pieces: The text that it was given.
        numbers: What each of its emissions showed, until the next rule is asked.
        finish: As its last emission said.
        said: How many emissions it was given.
    """

    request: Request
    state: Literal["live", "over", "finished", "cancelled"] = "live"
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    numbers: list[Shown] = field(default_factory=list)
    finish: object = None
    said: int = 0

    @property
    def told(self) -> str:
        """What it is, for a message."""
        asked = self.request
        size = len(asked.tokens)
        prompt = f"prompt of {size} token{'' if size == 1 else 's'}"
        return f"request {asked.id!r} ({prompt}, max_tokens={asked.max_tokens})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saw:
    """One thing that `step` gave, and where it belongs.

    Attributes:
        given: The thing.
        row: Its request; None where there is none.
        live: The ids in flight.
        ids: The adapter shows token ids.
        vocab_size: Valid ids are below it.
    """

    given: Any
    row: Row | None
    live: tuple[str, ...]
    ids: bool
    vocab_size: int

    @property
    def where(self) -> str:
        """The call and the place in the answer."""
        if self.row is None:
            return "step()"
        return f"step(), emission {self.row.said + 1} of {self.row.told}"

    @property
    def count(self) -> int:
        """How many tokens its request has with this one."""
        return len(self.row.tokens) + 1 if self.row else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """One answer of `stats`, and the one before it."""

    stats: Any
    before: Mapping[str, int]
    most: int | None


# --- Of each emission -----------------------------------------------------------------------


@rule
def emits_emissions(saw: Saw) -> Breach | None:
    """What step() gives is a sequence of Emission or TextEmission."""
    if isinstance(saw.given, Emission | TextEmission):
        return None
    return Breach(
        call=saw.where,
        expected="a sequence of Emission or TextEmission",
        actual=_short(saw.given),
        advice="give a list; it may be empty",
    )


@rule
def answers_what_was_asked(saw: Saw) -> Breach | None:
    """Each emission is of a request that was submitted."""
    if saw.row is not None:
        return None
    return Breach(
        call=saw.where,
        expected=f"one of {', '.join(map(repr, saw.live)) or 'no request'} in request_id",
        actual=f"request_id={_short(saw.given.request_id)}",
        advice="give the id of the Request as it came to submit()",
    )


@rule
def is_quiet_after_a_finish(saw: Saw) -> Breach | None:
    """Nothing comes for a request after an emission with a finish."""
    if saw.row is None or saw.row.state != "finished":
        return None
    return Breach(
        call=saw.where,
        expected=f"nothing more after finish={saw.row.finish!r}",
        actual=_short(saw.given),
        advice="forget a request with its last emission, or set finish on its last one alone",
    )


@rule
def is_quiet_after_a_cancel(saw: Saw) -> Breach | None:
    """Nothing comes for a request after cancel()."""
    if saw.row is None or saw.row.state != "cancelled":
        return None
    return Breach(
        call=saw.where,
        expected=f"nothing more after cancel({saw.row.request.id!r})",
        actual=_short(saw.given),
        advice="drop the request in cancel(), and its tokens that were not given yet",
    )


@rule
def shows_ids_or_text(saw: Saw) -> Breach | None:
    """Where capabilities.ids is True each emission has an id, elsewhere text."""
    bare_stop = getattr(saw.given, "text", "") == "" and saw.given.finish == "stop"
    if saw.ids and (isinstance(saw.given, Emission) or bare_stop):
        return None
    text = getattr(saw.given, "text", None)
    if not saw.ids and isinstance(text, str):
        return None
    kind = "Emission with a token" if saw.ids else "TextEmission with a str in text"
    return Breach(
        call=saw.where,
        expected=f"an {kind}" if saw.ids else f"a {kind}",
        actual=_short(saw.given),
        advice="say in Capabilities.ids what the engine shows, and keep to it",
    )


@rule
def tokens_are_ids(saw: Saw) -> Breach | None:
    """A token is a Python int, and an id of the vocabulary."""
    token = getattr(saw.given, "token", 0)
    whole = isinstance(token, int) and not isinstance(token, bool)
    if whole and 0 <= token < saw.vocab_size:
        return None
    return Breach(
        call=saw.where,
        expected=f"token as an int from 0 to {saw.vocab_size - 1}",
        actual=f"token={token!r:.60} ({type(token).__name__})",
        advice="give int(token); where it is out of range, look at what was argmaxed over",
    )


@rule
def finish_is_a_reason(saw: Saw) -> Breach | None:
    """A finish is None, "stop" or "length"."""
    if saw.given.finish is None or saw.given.finish in {"stop", "length"}:
        return None
    return Breach(
        call=saw.where,
        expected="finish=None, finish='stop' or finish='length'",
        actual=f"finish={saw.given.finish!r:.60}",
        advice="translate the engine's own reasons",
    )


@rule
def stops_with_a_stop_id(saw: Saw) -> Breach | None:
    """A finish is "stop" only on a stop id, which is given."""
    if not isinstance(saw.given, Emission) or saw.given.finish != "stop" or saw.row is None:
        return None
    if saw.given.token in saw.row.request.stop_ids:
        return None
    return Breach(
        call=saw.where,
        expected=f"finish='stop' on one of the stop ids {list(saw.row.request.stop_ids)}",
        actual=f"finish='stop' on token {saw.given.token!r}",
        advice="give the stop id too, as the last token, with the finish on it",
    )


@rule
def is_as_long_as_max_tokens(saw: Saw) -> Breach | None:
    """A finish is "length" at max_tokens tokens, and neither before nor after."""
    if not isinstance(saw.given, Emission) or saw.given.finish != "length" or saw.row is None:
        return None
    if saw.count == saw.row.request.max_tokens:
        return None
    return Breach(
        call=saw.where,
        expected=f"finish='length' on token {saw.row.request.max_tokens}",
        actual=f"finish='length' on token {saw.count}",
        advice="count the tokens that were given; those of the prompt do not count",
    )


@rule
def says_its_finish(saw: Saw) -> Breach | None:
    """The last emission of a request says why it ended."""
    if saw.given.finish is not None or saw.row is None:
        return None
    most = saw.row.request.max_tokens
    text = isinstance(saw.given, TextEmission)
    if (saw.row.said + 1 < PIECES * most) if text else (saw.count < most):
        return None
    return Breach(
        call=saw.where,
        expected=f"finish='length', or 'stop', by now, with max_tokens={most}",
        actual="finish=None",
        advice="set finish on the emission that is a request's last",
    )


EMITTED: tuple[Rule, ...] = (
    emits_emissions,
    answers_what_was_asked,
    is_quiet_after_a_finish,
    is_quiet_after_a_cancel,
    shows_ids_or_text,
    tokens_are_ids,
    finish_is_a_reason,
    stops_with_a_stop_id,
    is_as_long_as_max_tokens,
    says_its_finish,
)
"""In the order in which they are asked of an emission: the first that is broken is told."""

OF_IDS = (tokens_are_ids, stops_with_a_stop_id, is_as_long_as_max_tokens)
"""Those that say nothing of an engine that shows text alone."""


# --- Of stats -------------------------------------------------------------------------------


@rule
def stats_are_counts(stated: Stated) -> Breach | None:
    """What stats() gives is ints of at least 0, by name."""
    if isinstance(stated.stats, Mapping):
        bad = [(name, value) for name, value in stated.stats.items() if not _counts(value)]
        bad += [(name, 0) for name in stated.stats if not isinstance(name, str)]
        if not bad:
            return None
        actual = f"{bad[0][0]!r}: {_short(bad[0][1])}"
    else:
        actual = _short(stated.stats)
    return Breach(
        call="stats()",
        expected="a mapping of str to int, each at least 0",
        actual=actual,
        advice="leave out what the engine does not tell",
    )


@rule
def totals_never_fall(stated: Stated) -> Breach | None:
    """What stats() counts from the start on never gets less."""
    for name in TOTALS:
        before, now = stated.before.get(name, 0), stated.stats.get(name, 0)
        if now < before:
            return Breach(
                call="stats()",
                expected=f"{name} of at least {before}, as before",
                actual=f"{name}={now}",
                advice=f"count {name} from open() on, over all requests",
            )
    return None


@rule
def is_as_wide_as_max_batch(stated: Stated) -> Breach | None:
    """No step decodes more rows than capabilities.max_batch, or than one without batch."""
    width = stated.stats.get("batch_width", 0)
    if stated.most is None or width <= stated.most:
        return None
    return Breach(
        call="stats()",
        expected=f"batch_width of at most {stated.most}",
        actual=f"batch_width={width}",
        advice="queue what does not fit, or state the real size in Capabilities.max_batch",
    )


STATED: tuple[Rule, ...] = (
    stats_are_counts,
    totals_never_fall,
    is_as_wide_as_max_batch,
)
"""In the order in which they are asked of an answer of `stats`."""


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _short(value: object) -> str:
    return f"{value!r:.100} ({type(value).__name__})"
