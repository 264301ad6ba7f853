"""Drives one candidate: ids in equal ids out, budgets, watchdog, every exception kept."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from mlxcheck.backends.base import Backend, Capabilities, Emission, Request
from mlxcheck.errors import BackendError, EngineCrashed, EngineFault, EngineHung, UsageError
from mlxcheck.inflight import Row, Seen, checked
from mlxcheck.observing import Watcher
from mlxcheck.records import Case, Fault, ModelRef, Trace
from mlxcheck.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from mlxcheck.policy import Policy

__all__ = ["Answers", "Session"]

T = TypeVar("T")

_REOPENINGS = 2  # an engine that breaks a third time is given up: each case may cost a load
_IDLE_S = 0.001


@dataclass(frozen=True, slots=True)
class Answers:
    """What one case brought.

    Attributes:
        traces: One a row, in the order of `Case.prompts`.
        width: Rows of the widest decode step that the engine reported; None if it
            reports none.
        chunks: Prefill calls that it reported over the case; None if it reports none.
        cached: Prompt tokens that it reports not to have computed again; None likewise.
    """

    traces: tuple[Trace, ...]
    width: int | None
    chunks: int | None = None
    cached: int | None = None


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
        self._totals: dict[str, int] = {}

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

        Args:
            case: At least one prompt.
            max_tokens: The most tokens for each, or for each its own.
            expected: The reference's answers by prompt id: what a case that is
                `Case.forced` is forced to, and whose top tokens are looked up where the
                engine shows its numbers.

        Returns:
            A trace for every row, faults included; this raises for misuse alone.

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
        requests, rows = self._prepare(case, max_tokens, expected or {})
        seen = Seen(self._totals)
        with self._watchdog.hold():
            fault = self._ready()
            if fault is None:
                fault = self._drive(requests, rows, seen)
            if fault is not None:
                for row in rows.values():
                    if not row.done:
                        row.fail(fault)
        self._totals = seen.totals
        traces = tuple(row.trace() for row in rows.values())
        grown = seen.grown("prefill_chunks"), seen.grown("cached_tokens")
        return Answers(traces, seen.width, *grown)

    def _prepare(
        self, case: Case, max_tokens: int | Sequence[int], expected: Mapping[str, Trace]
    ) -> tuple[list[Request], dict[str, Row]]:
        requests: list[Request] = []
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
            requests.append(request)
            rows[request.id] = Row(
                prompt.id,
                request.max_tokens,
                self._model.stop_ids,
                Watcher(trace, self._model.vocab_size),
                forced,
            )
        return requests, rows

    def _drive(
        self, requests: Sequence[Request], rows: dict[str, Row], seen: Seen
    ) -> Fault | None:
        """Run to the end; a fault ends every row that has not ended by itself."""
        backend = self._backend
        assert backend is not None  # noqa: S101 - _ready() has seen to it
        try:
            with self._calling("submit"):
                for request in requests:
                    backend.submit(request)
            self._step_until_done(backend, rows, seen)
            with self._calling("step"):
                for row in rows.values():
                    row.done = False  # till its numbers are read: a fault in that is its own
                for row in rows.values():
                    row.read()
        except EngineFault as error:
            self._discard()
            return _fault(error)
        except BaseException:
            self._cancel_quietly(backend, rows)
            raise
        return None

    def _step_until_done(self, backend: Backend, rows: dict[str, Row], seen: Seen) -> None:
        last_progress = time.monotonic()
        while not all(row.done for row in rows.values()):
            with self._calling("step") as calling:
                emissions = tuple(backend.step())
                calling.what = "stats"
                moved = seen.see(backend.stats())
            for emission in emissions:
                moved |= self._take(backend, rows, emission)
            if moved:
                last_progress = time.monotonic()
                continue
            if time.monotonic() - last_progress > self._policy.watchdog_s:
                silent = [row.prompt_id for row in rows.values() if not row.done]
                msg = (
                    f"no token within {self._policy.watchdog_s:g} s for {', '.join(silent)}: "
                    "step() returns, and gives nothing"
                )
                raise EngineHung(msg)
            time.sleep(_IDLE_S)

    def _take(self, backend: Backend, rows: dict[str, Row], emission: object) -> bool:
        """Take one emission in; tell whether it brought a row further."""
        if not isinstance(emission, Emission):
            msg = f"step() gave {emission!r:.80} ({type(emission).__name__}), not an Emission"
            raise EngineFault(msg)
        row = rows.get(emission.request_id)
        if row is None:
            msg = (
                f"it gave a token for request {emission.request_id!r}, which is not in flight; "
                f"in flight are {', '.join(rows)}"
            )
            raise EngineFault(msg)
        if row.done:
            if row.fault is None and row.finish is not None and self.capabilities.stop:
                msg = f"it gave token {emission.token!r} for {row.prompt_id} after its finish"
                row.fail(Fault(summary=msg))
            return False
        token, problem = checked(emission.token, self._model.vocab_size)
        if problem:
            row.fail(Fault(summary=f"step {len(row.tokens)}: {problem}"))
            self._cancel(backend, emission.request_id)
            return True
        if row.forced and token != row.forced[len(row.tokens)]:
            msg = f"step {len(row.tokens)}: it was to go on from token "
            msg += f"{row.forced[len(row.tokens)]}, and went on from {token}"
            row.fail(Fault(summary=msg))
            self._cancel(backend, emission.request_id)
            return True
        with self._calling("step"):  # it may wait for numbers that are only queued
            row.watcher.take(emission)
        row.tokens.append(token)
        stopped = token in row.stop_ids and not self.capabilities.stop
        row.finish = "stop" if stopped else emission.finish
        overrun = row.finish is None and len(row.tokens) >= row.max_tokens
        if (stopped and emission.finish is None) or overrun:
            self._cancel(backend, emission.request_id)  # where it raises, this row fails too
        row.done = row.finish is not None or overrun
        return True

    def _cancel(self, backend: Backend, request_id: str) -> None:
        with self._calling("cancel"):
            backend.cancel(request_id)

    def _cancel_quietly(self, backend: Backend, rows: Mapping[str, Row]) -> None:
        for request_id, row in rows.items():
            if not row.done:
                try:
                    self._cancel(backend, request_id)
                except EngineFault:  # on the way out of another exception
                    return

    def _ready(self) -> Fault | None:
        """Open the engine again where the last case broke it, a few times."""
        if self._backend is None and self._openings <= _REOPENINGS:
            self._open()
        if self._backend is not None:
            return None
        return self._unopened or Fault(
            summary=f"not asked: the engine broke {self._openings} times and was given up"
        )

    def _open(self) -> None:
        self._openings += 1
        self._totals = {}
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
            self._openings = _REOPENINGS + 1
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

    def _calling(self, what: str) -> _Calling:
        return _Calling(self._watchdog, what)


class _Calling:
    """The watchdog's guard, with the engine's exceptions turned into faults."""

    def __init__(self, watchdog: Watchdog, what: str) -> None:
        self.what = what
        self._guard = watchdog.guard(f"{what}()")

    def __enter__(self) -> Self:
        self._guard.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._guard.__exit__(kind, error, where)
        # SystemExit too: an engine's sys.exit(0) must not end the run as a pass.
        if isinstance(error, EngineFault) or not isinstance(error, Exception | SystemExit):
            return
        text = "".join(traceback.format_exception(error))
        msg = f"{self.what}() raised {type(error).__name__}: {error}\n{text}"
        raise EngineCrashed(msg) from error


def _fault(error: EngineFault) -> Fault:
    summary, _, detail = str(error).partition("\n")
    return Fault(summary=summary, detail=detail)
