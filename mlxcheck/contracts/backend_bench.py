"""The bench on which an adapter is driven: every call is timed, and every exception kept."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from mlxcheck.backends.base import Backend, Capabilities, Request
from mlxcheck.contracts.backend_rules import Breach, NotAsked
from mlxcheck.contracts.backend_shown import read
from mlxcheck.contracts.backend_steps import EMITTED, Row
from mlxcheck.contracts.backend_watch import Watch
from mlxcheck.errors import BackendError, CannotAsk, EngineHung, RequestFailed
from mlxcheck.watchdog import Watchdog

if TYPE_CHECKING:
    from mlxcheck.records import ModelRef

__all__ = ["ANSWER", "Bench", "active_memory", "misstated"]

ANSWER = 6
"""Tokens of an answer, where a rule does not say."""

_GRACE_S = 10.0
_IDLE_S = 0.001
_SPOILT_S = 0.25  # where a token went astray, it is not waited for as long as it could take
_WAITS_S = (0.0, 0.05, 0.5)
_SIZES = ("max_batch", "prefill_chunk")
_AFTERMATH = 2  # steps after the end of all, in which what should not come could

T = TypeVar("T")


class Bench:
    """One adapter, opened where it is needed and anew where it broke.

    Args:
        factory: Makes an unopened backend.
        model: What it is opened on.
        text: Token ids that prompts are cut from.
        limit_s: How long one call may take, and how long no token may come.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        model: ModelRef,
        text: Sequence[int],
        limit_s: float,
    ) -> None:
        self.model = model
        self.watch = Watch(model.vocab_size)
        self.refusal: BackendError | None = None
        self.peak = 0
        self.name = ""
        self._factory = factory
        self._text = text
        self._place = 0
        self._limit_s = limit_s
        self._watchdog = Watchdog(limit_s, min(limit_s, _GRACE_S))
        self._backend: Any = None
        self._opened = False
        self._rows: dict[str, Row] = {}
        self._before: Mapping[str, int] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        """Start the clock."""
        self._watchdog.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Close what is open, also after Ctrl-C, and stop the clock."""
        self.discard()
        self._watchdog.__exit__()

    # --- Opening and closing ----------------------------------------------------------------

    def make(self) -> Any:
        """Return what the factory makes, unopened."""
        backend = self.call("factory()", self._made)
        self.name = str(getattr(backend, "name", None) or self.name)
        return backend

    def open(self, backend: Any) -> None:
        """Open a backend, and go on with it."""
        self.discard()
        self._backend = backend  # what opens half has to be closed too
        self._rows, self._before = {}, {}
        self.call("open(model)", lambda: self._open(backend))
        self._opened = True
        self.look()

    def close(self) -> None:
        """Close the backend, and forget it."""
        self.look()
        backend, self._backend = self._backend, None
        self._opened = False
        self._rows = {}
        if backend is not None:
            self.call("close()", backend.close)

    def discard(self) -> None:
        """Close a backend that broke; its own trouble in closing says nothing new."""
        with contextlib.suppress(Breach, NotAsked):
            self.close()

    @property
    def backend(self) -> Any:
        """The open backend; one that broke is replaced by a fresh one."""
        if not self._opened:
            try:
                self.open(self.make())
            except Breach as breach:
                msg = f"after a rule was broken the backend did not open again: {breach.actual}"
                raise NotAsked(msg) from None
        return self._backend

    @property
    def capabilities(self) -> Capabilities:
        """Those of the open backend; where they are none, the least."""
        backend = self.backend
        return Capabilities(batch=False) if misstated(backend) else backend.capabilities

    def look(self) -> None:
        """Note how much memory MLX holds."""
        self.peak = max(self.peak, _active())

    # --- Requests ---------------------------------------------------------------------------

    def prompt(self, length: int) -> tuple[int, ...]:
        """Return a prompt of this many tokens that is the beginning of no other one."""
        lap, start = divmod(self._place, len(self._text))
        self._place += 1
        stride = lap + 1  # the second time round leaves out every other token
        ids = itertools.islice(itertools.cycle(self._text), start, None, stride)
        return tuple(itertools.islice(ids, length))

    def submit(  # noqa: PLR0913 - the fields of a request
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = ANSWER,
        stop_ids: Sequence[int] | None = None,
        alone: bool | None = None,
        forced: Sequence[int] | None = None,
        name: str | None = None,
    ) -> Row:
        """Submit a request; it is said to be alone where the engine takes no two."""
        request = Request(
            id=f"c{next(self._numbers)}" if name is None else name,
            tokens=tuple(prompt),
            max_tokens=max_tokens,
            stop_ids=self.model.stop_ids if stop_ids is None else tuple(stop_ids),
            alone=not self.capabilities.batch if alone is None else alone,
            forced=None if forced is None else tuple(forced),
        )
        row = Row(request)
        backend = self.backend
        self._rows[request.id] = row
        self.call(f"submit() of {row.told}", lambda: backend.submit(request))
        return row

    def answer(self, prompt: Sequence[int], **options: Any) -> Row:
        """Submit a request, and step to its end."""
        row = self.submit(prompt, **options)
        self.finish(row)
        return row

    def step(self) -> bool:
        """Step once; tell whether that brought a request further."""
        backend, capabilities = self.backend, self.capabilities
        what = f"step() with {self._in_flight()}"
        given, shown = self.call(what, lambda: self._step(backend))
        moved = False
        for each, numbers in zip(given, shown, strict=True):
            moved |= self.watch.take(each, numbers, self._rows, capabilities)
        for row in self._rows.values():
            if row.state == "over":
                self.cancel(row)
        before = self._before.get("prefill_chunks", 0)
        return (self.stats().get("prefill_chunks", 0) != before) or moved

    def finish(self, *rows: Row) -> None:
        """Step until each of these has ended."""
        self.until(lambda: all(row.state != "live" for row in rows), rows)

    def until(self, reached: Callable[[], bool], rows: Sequence[Row]) -> None:
        """Step until something is so.

        Raises:
            Breach: Nothing came for longer than the limit.
        """
        last = time.monotonic()
        while not reached():
            if self.step():
                last = time.monotonic()
                continue
            limit = min(self._limit_s, _SPOILT_S) if self.watch.spoilt else self._limit_s
            if time.monotonic() - last > limit:
                waiting = [row.told for row in rows if row.state == "live"]
                raise Breach(
                    call=f"step(), again and again, with {self._in_flight()}",
                    expected=f"a token within {limit:g} s for {', '.join(waiting[:3])}",
                    actual="it returns, and gives nothing",
                    advice="see that each request comes to its end, whoever came or went",
                    hung=True,
                )
            time.sleep(_IDLE_S)

    def cancel(self, row: Row) -> None:
        """Cancel a request, live or not."""
        backend = self.backend
        self.call(f"cancel({row.request.id!r})", lambda: backend.cancel(row.request.id))
        if row.state != "finished":
            row.state = "cancelled"

    def stats(self) -> Mapping[str, int]:
        """Ask for the stats, and look at them; what is wrong with them is left out."""
        backend = self.backend
        stats = self.call("stats()", backend.stats)
        self.watch.see(stats, self._before, self.capabilities)
        if isinstance(stats, Mapping):
            self._before = {k: v for k, v in stats.items() if isinstance(v, int)}
        return self._before

    def rest(self) -> Breach | None:
        """Bring the backend to rest between two rules, and step on with nothing in flight.

        Returns:
            What broke in that; the backend is then replaced.
        """
        idle = False
        try:
            for row in self._rows.values():
                row.numbers.clear()
                if row.state == "live":
                    self.cancel(row)
            idle = True
            for _ in range(_AFTERMATH if self._rows else 0):
                self.step()
        except Breach as breach:
            self.discard()
            return breach if idle else None
        except NotAsked:
            self.discard()
        finally:
            self.watch.spoilt.clear()
        return None

    # --- One call ---------------------------------------------------------------------------

    def call(self, what: str, ask: Callable[[], T]) -> T:
        """Call the adapter.

        Args:
            what: The call, for a message.
            ask: Makes it.

        Raises:
            Breach: It raised, or did not come back in time.
            NotAsked: It says that its engine cannot be asked this.
        """
        try:
            with self._watchdog.guard(what):
                return ask()
        except EngineHung as error:
            found: Breach | NotAsked = self._late(what, str(error))
        except CannotAsk as error:
            found = NotAsked(f"the adapter says: {error}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an adapter may raise anything
            found = _raised(what, error)
        raise found  # out here: it must not keep the engine alive through what was raised

    def _made(self) -> Any:
        with self._refusable():
            return self._factory()

    def _open(self, backend: Backend) -> None:
        with self._refusable():
            backend.open(self.model)

    @contextlib.contextmanager
    def _refusable(self) -> Iterator[None]:
        """Keep the error by which an adapter says that it cannot be had here."""
        try:
            yield
        except BackendError as error:
            self.refusal = error
            raise

    def _step(self, backend: Backend) -> tuple[tuple[object, ...], list[Any]]:
        given: object = backend.step()
        if not isinstance(given, Sequence) or isinstance(given, str):
            self.watch.note(
                EMITTED[0],
                Breach(
                    call="step()",
                    expected="a sequence of Emission or TextEmission",
                    actual=f"{given!r:.100} ({type(given).__name__})",
                    advice="give a list; it may be empty",
                ),
            )
        out = tuple(given) if isinstance(given, Iterable) else ()
        return out, [read(each) for each in out]  # within the call: numbers may be queued only

    def _late(self, what: str, text: str) -> Breach:
        frames = [line.strip() for line in text.splitlines() if line.startswith("  File ")]
        at = f" {frames[-1]}" if frames else ""
        return Breach(
            call=what,
            expected=f"an end within {self._limit_s:g} s",
            actual=f"none; it was interrupted at{at}",
            advice="return from each call; step() may return with nothing",
            hung=True,
        )

    def _in_flight(self) -> str:
        live = [row.told for row in self._rows.values() if row.state == "live"]
        if not live:
            return "no request in flight"
        return live[0] if len(live) == 1 else f"{len(live)} requests in flight"


def active_memory(most: int | None = None) -> int:
    """Return the bytes that live MLX arrays hold, once garbage is gone.

    Args:
        most: More is looked at again a little later, since a GPU may be finishing its last
            work.
    """
    for wait in _WAITS_S:
        time.sleep(wait)
        gc.collect()
        if most is None or _active() <= most:
            break
    return _active()


def misstated(backend: Any) -> str:
    """Return what is wrong with the capabilities of a backend; empty where nothing is."""
    said = getattr(backend, "capabilities", None)
    if not isinstance(said, Capabilities):
        return f"{said!r:.60} ({type(said).__name__})"
    values = {field.name: getattr(said, field.name) for field in dataclasses.fields(said)}
    return ", ".join(
        f"{name}={value!r:.60} ({type(value).__name__})"
        for name, value in values.items()
        if not (_size(value) if name in _SIZES else isinstance(value, bool))
    )


def _size(value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return value is None or whole


def _active() -> int:
    import mlx.core as mx

    return int(mx.get_active_memory())


def _raised(what: str, error: BaseException) -> Breach:
    """Tell an exception in the adapter's words, with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, RequestFailed):
        said = f"the adapter says that request {error.request_id!r} failed: {error}"
    return Breach(
        call=what,
        expected="no exception",
        actual=said[:500],
        advice=f"it was raised at {at}; mend it, or raise CannotAsk for what cannot be asked",
    )
