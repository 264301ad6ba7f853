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
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from mlxcheck.errors import EngineHung

__all__ = ["Watchdog"]

_EXIT_STATUS = 1  # a hung engine is a failed check
_POLL_S = 0.25


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
        self._signals = threading.current_thread() is threading.main_thread()
        self._old_handler: Any = None
        self._old_timer = (0.0, 0.0)
        self._doing = ""

    def __enter__(self) -> Watchdog:
        """Take over the alarm signal, where this is the main thread."""
        if self._signals:
            self._old_timer = signal.setitimer(signal.ITIMER_REAL, 0)
            self._old_handler = signal.signal(signal.SIGALRM, self._ring)
        self._thread = threading.Thread(target=self._watch, name="mlxcheck-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the alarm back as it was found."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._armed_until:
            faulthandler.cancel_dump_traceback_later()
        if self._signals:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._old_handler)
            if self._old_timer[0]:
                signal.setitimer(signal.ITIMER_REAL, *self._old_timer)

    @contextlib.contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        """Give the block the watchdog's time.

        Args:
            doing: What the engine was asked, for the message.

        Raises:
            EngineHung: The block did not end in time; the text has its stack.
        """
        self._doing = doing
        self._arm()
        try:
            yield
        except _Alarm as alarm:
            msg = (
                f"no progress within {self._seconds:g} s in {doing}; it was interrupted at\n"
                f"{alarm.stack}"
            )
            raise EngineHung(msg) from None
        finally:
            self._deadline = None
            if self._signals:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self) -> None:
        now = time.monotonic()
        self._deadline = now + self._seconds
        if self._signals:
            # Rings again each grace period: a bare `except:` may swallow the first.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._grace)
        whole = self._seconds + 2 * self._grace
        # Starting faulthandler's thread costs as much as a small decode step, so it is
        # armed well ahead and renewed now and then.
        if self._armed_until < now + whole:
            ahead = whole + self._grace
            faulthandler.dump_traceback_later(ahead, exit=True, file=sys.__stderr__ or 2)
            self._armed_until = now + ahead

    def _ring(self, _signum: int, frame: FrameType | None) -> None:
        if self._deadline is not None:
            raise _Alarm("".join(traceback.format_stack(frame)))

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_S):
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline + self._grace:
                self._end_process()

    def _end_process(self) -> None:
        stacks = "\n".join(
            f"thread {ident}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
        )
        text = (
            f"the candidate made no progress within {self._seconds:g} s in {self._doing} and "
            f"could not be interrupted in {self._grace:g} s more. The process ends here.\n{stacks}"
        )
        try:
            if self._last_words is not None:
                self._last_words(text)
            else:
                os.write(2, f"mlxcheck: {text}\n".encode())
        finally:
            os._exit(_EXIT_STATUS)
