"""Drives one candidate: ids in equal ids out, budgets, watchdog, every exception kept."""

from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeVar

from mlxcheck import reference
from mlxcheck.backends.base import Backend, Capabilities, Request
from mlxcheck.calling import Calling
from mlxcheck.driving import Driving
from mlxcheck.errors import BackendError, EngineFault, UsageError
from mlxcheck.growth import Held, measure
from mlxcheck.inflight import Row, Seen
from mlxcheck.observing import Watcher
from mlxcheck.records import Case, Fault, ModelRef, Trace
from mlxcheck.scheduling import Timeline
from mlxcheck.texts import Spelling, spelling_of
from mlxcheck.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from mlxcheck.policy import Policy

__all__ = ["Answers", "Session"]

T = TypeVar("T")

_REOPENINGS = 2  # an engine that breaks a third time is given up: each case may cost a load


@dataclass(frozen=True, slots=True)
class Answers:
    """What one case brought.

    Attributes:
        traces: One a row, in the order of `Case.prompts`.
        width: Rows of the widest decode step that the engine reported; None if it
            reports none.
        chunks: Prefill calls that it reported over the case; None if it reports none.
        cached: Prompt tokens that it reports not to have computed again; None likewise.
        drafted: Tokens that a draft proposed over the case; None if it reports none.
        accepted: How many of these the model took; None likewise.
        missed: Rows whose join or leave did not come at its moment.
        growth: What was held after each round; empty for a case of one.
    """

    traces: tuple[Trace, ...]
    width: int | None
    chunks: int | None = None
    cached: int | None = None
    missed: tuple[int, ...] = ()
    drafted: int | None = None
    accepted: int | None = None
    growth: tuple[Held, ...] = ()


class Session:
    """One candidate, open between ``with`` and its end, and not outside.

    Args:
        factory: Makes an unopened backend; called again where an engine broke.
        model: What it is opened on. `ModelRef.stop_ids` end every answer.
        policy: The watchdog's times.
        last_words: See `Watchdog`.

    Raises:
        BackendError: Raised by ``with``, where the adapter itself says that its engine
            is not installed. Any other exception from `Backend.open` becomes the fault
            of every case.
    """

    def __init__(
        self,
        factory: Callable[[], Backend],
        model: ModelRef,
        policy: Policy,
        *,
        last_words: Callable[[str], None] | None = None,
    ) -> None:
        self._factory = factory
        self._model = model
        self._policy = policy
        self._watchdog = Watchdog(policy.watchdog_s, policy.grace_s, last_words)
        self._backend: Backend | None = None
        self._thread = 0
        self._numbers = itertools.count()
        self._unopened: Fault | None = None
        self._openings = 0
        self._renewed = 0
        self._driven = False
        self._totals: dict[str, int] = {}
        self._spelling: Spelling | None = None

    def __enter__(self) -> Self:
        """Open the engine on this thread."""
        self._thread = threading.get_ident()
        self._watchdog.__enter__()
        try:
            self._open()
        except BaseException:
            try:
                self._discard()  # Ctrl-C may have come half way
            finally:
                self._thread = 0
                self._watchdog.__exit__()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Close the engine, also after Ctrl-C."""
        try:
            self._close()
        except EngineFault:
            if error is None:  # it must not hide that the block was cut short
                raise
        finally:
            self._thread = 0
            self._watchdog.__exit__()

    @property
    def unopened(self) -> Fault | None:
        """Why the engine did not open, where it did not."""
        return self._unopened

    @property
    def capabilities(self) -> Capabilities:
        """What the open engine can be asked; nothing much where it did not open."""
        return self._backend.capabilities if self._backend else Capabilities()

    def inspect(self, ask: Callable[[Backend], T]) -> T | None:
        """Let the open engine be asked something under the watchdog; None if it is not open.

        Args:
            ask: Gets the backend; it has to keep the engine's exceptions to itself.
        """
        with self._watchdog.hold():
            if self._ready() is not None or self._backend is None:
                return None
            with self._calling("encode"):
                return ask(self._backend)

    def run(
        self,
        case: Case,
        *,
        max_tokens: int | Sequence[int],
        expected: Mapping[str, Trace] | None = None,
    ) -> Answers:
        """Submit a case's prompts together and step until each has ended.

        A case of several rounds is driven so often, with new requests each time, up to the
        first round that has a fault.

        Args:
            case: At least one prompt.
            max_tokens: The most tokens for each, or for each its own.
            expected: The reference's answers by prompt id: what a case that is
                `Case.forced` is forced to, and whose top tokens are looked up where the
                engine shows its numbers.

        Returns:
            A trace for every row, of the last round, faults included; this raises for
            misuse alone.

        Raises:
            UsageError: Outside ``with``, or from a thread that did not open the engine.
        """
        if not self._thread:
            msg = "this session is closed: drive it between `with Session(...)` and its end."
            raise UsageError(msg)
        if threading.get_ident() != self._thread:
            msg = (
                "this session was opened on another thread. MLX streams belong to a thread, so "
                "an engine is driven from the one that opened it."
            )
            raise UsageError(msg)
        if case.fresh:
            self._renew()
        answers = self._round(case, max_tokens, expected or {})
        growth = [measure()] if case.rounds > 1 else []
        while len(growth) < case.rounds > 1 and not any(row.fault for row in answers.traces):
            answers = self._round(case, max_tokens, expected or {})
            growth.append(measure())
        return replace(answers, growth=tuple(growth))

    def _round(
        self, case: Case, max_tokens: int | Sequence[int], expected: Mapping[str, Trace]
    ) -> Answers:
        """Drive a case once."""
        requests, rows = self._prepare(case, max_tokens, expected)
        seen = Seen(self._totals)
        missed: tuple[int, ...] = ()
        with self._watchdog.hold():
            fault = self._ready()
            if fault is None:
                self._driven = True
                fault, missed = self._drive(requests, rows, seen, case)
            if fault is not None:
                for row in rows.values():
                    if not row.done:
                        row.fail(fault)
        self._totals = seen.totals
        traces = tuple(row.trace(self._spell) for row in rows.values())
        return Answers(
            traces,
            seen.width,
            chunks=seen.grown("prefill_chunks"),
            cached=seen.grown("cached_tokens"),
            missed=missed,
            drafted=seen.grown("drafted_tokens"),
            accepted=seen.grown("accepted_tokens"),
        )

    def _prepare(
        self, case: Case, max_tokens: int | Sequence[int], expected: Mapping[str, Trace]
    ) -> tuple[dict[str, Request], dict[str, Row]]:
        requests: dict[str, Request] = {}
        rows: dict[str, Row] = {}
        most = itertools.repeat(max_tokens) if isinstance(max_tokens, int) else max_tokens
        for prompt, tokens in zip(case.prompts, most, strict=False):
            trace = expected.get(prompt.id)
            forced = trace.tokens if case.forced and trace else None
            request = Request(
                id=f"r{next(self._numbers)}",
                tokens=prompt.tokens,
                max_tokens=len(forced) if forced else tokens,
                stop_ids=self._model.stop_ids,
                alone=case.alone,
                forced=forced,
            )
            requests[request.id] = request
            rows[request.id] = Row(
                prompt.id,
                request.max_tokens,
                self._model.stop_ids,
                Watcher(trace, self._model.vocab_size),
                trace,
                forced,
            )
        return requests, rows

    def _drive(
        self, requests: Mapping[str, Request], rows: Mapping[str, Row], seen: Seen, case: Case
    ) -> tuple[Fault | None, tuple[int, ...]]:
        """Run to the end; a fault ends every row that has not ended by itself."""
        backend = self._backend
        assert backend is not None  # noqa: S101 - _ready() has seen to it
        timeline = Timeline(case.schedule, list(rows.values()))
        driving = Driving(
            backend, requests, rows, self._watchdog, self._policy, self._model.vocab_size
        )
        try:
            if backend.capabilities.sets_prefill_chunk:
                with self._calling("set_prefill_chunk"):
                    backend.set_prefill_chunk(case.chunk)  # type: ignore[attr-defined]
            driving.drive(timeline, seen)
        except EngineFault as error:
            self._discard()
            return _fault(error), timeline.missed
        return None, timeline.missed

    def _spell(self) -> Spelling:
        """Return the spelling of the model's tokenizer, which is loaded at the first call."""
        if self._spelling is None:
            self._spelling = spelling_of(reference.tokenizer_of(self._model))
        return self._spelling

    def _renew(self) -> None:
        """Close an engine that has driven a case; the next one opens it again."""
        if self._backend is not None and self._driven:
            with self._watchdog.hold():
                self._discard()
            self._renewed += 1

    def _ready(self) -> Fault | None:
        """Open the engine again where the last case broke it, a few times."""
        broke = self._openings - self._renewed
        if self._backend is None and broke <= _REOPENINGS:
            self._open()
        if self._backend is not None:
            return None
        return self._unopened or Fault(
            summary=f"not asked: the engine broke {broke} times and was given up"
        )

    def _open(self) -> None:
        self._openings += 1
        self._totals = {}
        self._driven = False
        try:
            with self._calling("open"):
                backend = self._factory()
                # Kept before it is opened: what opens half must be closed too.
                self._backend = backend
                backend.open(self._model)
        except EngineFault as error:
            self._discard()
            # Once it has been open, its engine is installed: that is a fault like others.
            if isinstance(error.__cause__, BackendError) and self._openings == 1:
                raise error.__cause__ from None
            self._unopened = _fault(error)
            self._openings = _REOPENINGS + self._renewed + 1
        else:
            self._unopened = None

    def _discard(self) -> None:
        """Close an engine that broke; its own trouble in closing says nothing new."""
        with contextlib.suppress(EngineFault):
            self._close()

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            with self._calling("close"):
                backend.close()

    def _calling(self, what: str) -> Calling:
        return Calling(self._watchdog, what)


def _fault(error: EngineFault) -> Fault:
    summary, _, detail = str(error).partition("\n")
    return Fault(summary=summary, detail=detail)
