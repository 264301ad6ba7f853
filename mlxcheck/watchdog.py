"""The clock on a candidate: three ways to end a silence, each for when the last one fails.

1. An alarm signal raises in the Python code that hangs, and its stack is kept.
2. Where native code has released the interpreter but never comes back, a thread hands the
   report so far to whoever runs the session, shows every stack and ends the process.
3. Where native code holds the interpreter itself, faulthandler's own thread, which needs no
   interpreter, shows the stacks and ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mlxcheck.errors import EngineHung

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["Watchdog", "stderr"]

stderr = 2
"""The descriptor that stacks are written to before the process is ended. Who captures
standard error, as pytest does, points this past the capture."""

_EXIT_STATUS = 1  # a hung engine is a failed check
_POLL_S = 0.25
_SOON_S = 0.001  # a timer of 0 would be none
_OWN = str(Path(__file__).with_name("session.py"))


class _Alarm(BaseException):
    """Not an Exception, so that an engine's own ``except Exception`` does not swallow it."""

    def __init__(self, stack: str) -> None:
        super().__init__(stack)
        self.stack = stack


class Watchdog:
    """Guards calls into an engine, from the thread that made it.

    Args:
        seconds: How long one call may take.
        grace: Seconds that each later way waits for the one before it.
        last_words: Called from another thread before the process is ended by way 2; it
            saves and shows what is known so far. Gets the text of all stacks.
    """

    def __init__(
        self, seconds: float, grace: float, last_words: Callable[[str], None] | None = None
    ) -> None:
        self._seconds = seconds
        self._grace = grace
        self._last_words = last_words
        self._deadline: float | None = None
        self._armed_until = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._signals = False
        self._held = False
        self._doing = ""

    def __enter__(self) -> Self:
        """Start the thread of way 2; way 1 needs this to be the main thread."""
        self._signals = threading.current_thread() is threading.main_thread()
        self._thread = threading.Thread(
            target=self._watch, name="mlxcheck-watchdog", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both clocks that outlive a call."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._armed_until:
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Take the alarm signal for a block of calls, and give it back as it was found.

        Somebody else's alarm, such as a test's time limit, is put off by no more than the
        block took. `guard` does this itself where it is not done around it.
        """
        if self._held or not self._signals:
            yield
            return
        start = time.monotonic()
        old_handler = signal.signal(signal.SIGALRM, self._ring)
        left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if old_handler is not None:  # None: one that C code had installed
                signal.signal(signal.SIGALRM, old_handler)
            if left:
                left = max(left - (time.monotonic() - start), _SOON_S)
                signal.setitimer(signal.ITIMER_REAL, left, interval)

    @contextlib.contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Give the block the watchdog's time.

        Args:
            doing: What the engine was asked, for the message.

        Raises:
            EngineHung: The block did not end in time; the text has its stack.
        """
        with self.hold():
            try:
                self._arm(doing)
                yield
            except _Alarm as alarm:
                msg = (
                    f"no progress within {self._seconds:g} s in {doing}; it was interrupted "
                    f"at\n{alarm.stack}"
                )
                raise EngineHung(msg) from None
            finally:
                self._deadline = None
                if self._signals:
                    signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self, doing: str) -> None:
        self._doing = doing
        self._deadline = time.monotonic() + self._seconds
        if self._signals:
            # Rings again within the grace: a bare `except:` may swallow the first.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._grace / 4)
        self._put_off()

    def _put_off(self) -> None:
        """Set faulthandler's clock, unless it is far enough ahead.

        Starting its thread costs as much as a small decode step, so it is armed well ahead
        and renewed now and then.
        """
        now = time.monotonic()
        whole = self._seconds + 2 * self._grace
        if self._armed_until < now + whole:
            ahead = whole + self._grace
            faulthandler.dump_traceback_later(ahead, exit=True, file=stderr)
            self._armed_until = now + ahead

    def _ring(self, _signum: int, frame: FrameType | None) -> None:
        if self._deadline is not None:
            raise _Alarm(_stack_of(frame))

    def _watch(self) -> None:
        while not self._stop.wait(min(_POLL_S, self._grace)):
            deadline = self._deadline
            if deadline is None:
                if self._armed_until:  # nobody is in the engine: its clock must not run out
                    self._put_off()
            elif time.monotonic() > deadline + self._grace:
                self._end_process()

    def _end_process(self) -> None:
        stacks = "\n".join(
            f"thread {ident}:\n{_stack_of(frame)}"
            # The one way to see other threads; there is no public name for it.
            for ident, frame in sys._current_frames().items()  # noqa: SLF001
            if ident != threading.get_ident()
        )
        text = (
            f"the candidate made no progress within {self._seconds:g} s in {self._doing} and "
            f"could not be interrupted in {self._grace:g} s more. The process ends here.\n"
            f"{stacks}"
        )
        try:
            if self._last_words is not None:
                self._last_words(text)
            else:
                _write(text)
        except BaseException:  # noqa: BLE001 - nobody is left to take it
            _write(f"{text}\n{traceback.format_exc()}")
        finally:
            os._exit(_EXIT_STATUS)


def _stack_of(frame: FrameType | None) -> str:
    """Write a stack, without what stands above the session: how it was called is no clue."""
    entries = traceback.extract_stack(frame)
    own = [place for place, entry in enumerate(entries) if entry.filename == _OWN]
    return "".join(traceback.format_list(entries[own[-1] + 1 if own else 0 :]))


def _write(text: str) -> None:
    """Write to standard error, past a lock that the thread that hangs may hold."""
    os.write(stderr, f"mlxcheck: {text}\n".encode(errors="backslashreplace"))
