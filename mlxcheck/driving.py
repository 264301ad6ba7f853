"""One case on an open engine: submit, step, cancel, and take in what comes out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mlxcheck.backends.base import Backend, Emission, Request, TextEmission
from mlxcheck.calling import Calling
from mlxcheck.errors import CannotAsk, EngineFault, EngineHung, RequestFailed
from mlxcheck.inflight import Row, Seen, checked
from mlxcheck.records import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.policy import Policy
    from mlxcheck.scheduling import Timeline
    from mlxcheck.watchdog import Watchdog

__all__ = ["Driving"]

_IDLE_S = 0.001

_PIECES = 8  # of text that a token may come in; an answer of more has forgotten its budget


class Driving:
    """Drives the rows of one case to their ends.

    Args:
        backend: Open.
        requests: By id, in the order of the rows.
        rows: By request id, in the same order.
        watchdog: Held.
        policy: Its times.
        vocab_size: Valid ids are below it.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the pieces of one case
        self,
        backend: Backend,
        requests: Mapping[str, Request],
        rows: Mapping[str, Row],
        watchdog: Watchdog,
        policy: Policy,
        vocab_size: int,
    ) -> None:
        self._backend = backend
        self._requests = list(requests.values())
        self._rows = rows
        self._watchdog = watchdog
        self._policy = policy
        self._vocab_size = vocab_size

    def drive(self, timeline: Timeline, seen: Seen) -> None:
        """Submit and step until each row has ended, and read what the rows' watchers hold.

        Raises:
            EngineFault: What ends every row that has not ended by itself.
        """
        rows = list(self._rows.values())
        try:
            self._submit(timeline.starting())
            self._step_until_done(timeline, seen)
            with self._calling("step"):
                for row in rows:
                    row.done = False  # till its numbers are read: a fault in that is its own
                for row in rows:
                    row.read()
        except EngineFault:
            raise
        except BaseException:
            self._cancel_quietly()
            raise

    def _step_until_done(self, timeline: Timeline, seen: Seen) -> None:
        rows = list(self._rows.values())
        last_progress = time.monotonic()
        while timeline.waiting or not all(row.done for row in rows):
            moved = self._follow(timeline)
            with self._calling("step") as calling:
                emissions = self._step()
                calling.what = "stats"
                moved |= seen.see(self._backend.stats())
            for emission in emissions:
                moved |= self._take(emission)
            if moved:
                last_progress = time.monotonic()
                continue
            if time.monotonic() - last_progress > self._policy.watchdog_s:
                silent = [row.prompt_id for row in rows if not row.done]
                msg = (
                    f"no token within {self._policy.watchdog_s:g} s for {', '.join(silent)}: "
                    "step() returns, and gives nothing"
                )
                raise EngineHung(msg)
            time.sleep(_IDLE_S)

    def _step(self) -> tuple[object, ...]:
        try:
            return tuple(self._backend.step())
        except (CannotAsk, RequestFailed) as error:
            self._fail_one(error)
            return ()

    def _fail_one(self, error: CannotAsk | RequestFailed) -> None:
        """End the one row that an exception of the backend is about."""
        row = self._rows.get(error.request_id)
        if row is None:
            msg = f"it failed request {error.request_id!r}, which is not in flight: {error}"
            raise EngineFault(msg) from error
        summary, _, detail = str(error).partition("\n")
        asked = not isinstance(error, CannotAsk)
        row.fail(Fault(summary=summary, detail=detail, asked=asked))

    def _follow(self, timeline: Timeline) -> bool:
        """Cancel and submit as the schedule says; tell whether anything was."""
        rows = list(self._rows.values())
        leaving = timeline.leaving()
        for number in leaving:
            self._cancel(self._requests[number].id)
            rows[number].left = rows[number].done = True
        joining = timeline.joining()
        self._submit(joining)
        return bool(leaving or joining)

    def _submit(self, numbers: list[int]) -> None:
        rows = list(self._rows.values())
        with self._calling("submit"):
            for number in numbers:
                rows[number].submitted = True
                try:
                    self._backend.submit(self._requests[number])
                except (CannotAsk, RequestFailed) as error:
                    self._fail_one(error)

    def _take(self, emission: object) -> bool:
        """Take one emission in; tell whether it brought a row further."""
        if not isinstance(emission, Emission | TextEmission):
            msg = f"step() gave {emission!r:.80} ({type(emission).__name__}), not an Emission"
            raise EngineFault(msg)
        row = self._rows.get(emission.request_id)
        if row is None or not row.submitted:
            live = [name for name, each in self._rows.items() if each.submitted]
            msg = (
                f"it gave a token for request {emission.request_id!r}, which is not in flight; "
                f"in flight are {', '.join(live)}"
            )
            raise EngineFault(msg)
        if row.done:
            if row.fault is None and (message := self._after_end(row, emission)):
                row.fail(Fault(summary=message))
            return False
        if isinstance(emission, TextEmission):
            self._take_text(row, emission)
            return True
        token, problem = checked(emission.token, self._vocab_size)
        if not self._backend.capabilities.ids:
            problem = "it gave a token id, and its capabilities say that it shows none"
        if not problem and row.forced and token != row.forced[len(row.tokens)]:
            problem = f"it was to go on from token {row.forced[len(row.tokens)]}, and went on "
            problem += f"from {token}"
        if problem:
            row.fail(Fault(summary=f"step {len(row.tokens)}: {problem}"))
            self._cancel(emission.request_id)
            return True
        self._book(row, emission, token)
        return True

    def _after_end(self, row: Row, emission: Emission | TextEmission) -> str:
        given = "text" if isinstance(emission, TextEmission) else f"token {emission.token!r}"
        token = f"it gave {given} for {row.prompt_id} after"
        if row.left:
            return f"{token} it was cancelled"
        ends_itself = row.finish is not None and self._backend.capabilities.stop
        return f"{token} its finish" if ends_itself else ""

    def _take_text(self, row: Row, emission: TextEmission) -> None:
        """Keep a piece of text, or a stop at an unknown id; end the row at its last."""
        finish = emission.finish
        if self._backend.capabilities.ids:
            stop = row.unnamed_stop()
            if emission.text or finish != "stop" or stop is None:
                said = f"{emission.text!r:.40} for {finish!r}"
                row.fail(Fault(summary=f"it gave text, {said}, where a token id was due"))
                self._cancel(emission.request_id)
                return
            row.tokens.append(stop)
        else:
            row.texts.append(emission.text)
        row.finish = finish
        overrun = finish is None and row.said >= _PIECES * row.max_tokens
        if overrun:
            self._cancel(emission.request_id)
        row.done = finish is not None or overrun

    def _book(self, row: Row, emission: Emission, token: int) -> None:
        """Keep a token, and end the row where it is its last."""
        with self._calling("step"):  # it may wait for numbers that are only queued
            row.watcher.take(emission)
        row.tokens.append(token)
        stopped = token in row.stop_ids and not self._backend.capabilities.stop
        row.finish = "stop" if stopped else emission.finish
        overrun = row.finish is None and len(row.tokens) >= row.max_tokens
        if (stopped and emission.finish is None) or overrun:
            self._cancel(emission.request_id)  # where it raises, this row fails too
        row.done = row.finish is not None or overrun

    def _cancel(self, request_id: str) -> None:
        with self._calling("cancel"):
            self._backend.cancel(request_id)

    def _cancel_quietly(self) -> None:
        for request_id, row in self._rows.items():
            if not row.done:
                try:
                    self._cancel(request_id)
                except EngineFault:  # on the way out of another exception
                    return

    def _calling(self, what: str) -> Calling:
        return Calling(self._watchdog, what)
