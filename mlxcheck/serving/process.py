"""A server as a child process: started, waited for, and always ended.

The server gets a session of its own, so that Ctrl-C in the terminal reaches this process
alone, which then ends the server in order. Children that leave the server's process group
are known by a mark in their environment.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from mlxcheck.errors import ServerError, UsageError
from mlxcheck.memory import processes_marked
from mlxcheck.serving.client import Client
from mlxcheck.serving.launch import PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    from mlxcheck.serving.launch import Launch

__all__ = ["ServerProcess", "ends_in_order"]

MARK = "MLXCHECK_SERVED_BY"
"""Environment variable by which a server and all that it starts are known."""

_TAIL_LINES = 12
_TAIL_BYTES = 16 * 1024
_PROBE_S, _LEAST_PROBE_S = 5.0, 0.5
_PAUSE_S = 0.05
_TOLD_EVERY_S = 5.0
_GRACE_S = 10.0
"""Seconds between the request to end and the kill: servers free a GPU in that time."""


class ServerProcess:
    """A running server; a context manager that starts it and always ends it.

    Entering raises `ServerError` where the server ends, or does not become ready in time,
    and `UsageError` where the command cannot be run.

    Args:
        launch: What to start.
        wait_s: Longest wait until it is ready.
        tell: Called with a line now and then while it is waited for.

    Attributes:
        url: Where it is.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        wait_s: float = 600.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._launch = launch
        self._wait_s = wait_s
        self._tell = tell
        self._mark = uuid.uuid4().hex
        # Without a name from the start: nothing is left of it, however this ends.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def ended(self) -> int | None:
        """The status with which it ended by itself, negative for a signal; else None."""
        return None if self._process is None else self._process.poll()

    def tail(self) -> str:
        """Return the last lines that it wrote, indented; or that there are none."""
        size = os.fstat(self._log.fileno()).st_size
        # The child shares the file's position, so it must not be moved.
        end = os.pread(self._log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        lines = end.decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        if not lines:
            return "It wrote nothing."
        return "\n".join(["The end of its log:", *(f"  | {line}" for line in lines)])

    def stop(self) -> None:
        """End the server and everything that it started; harmless when repeated."""
        process, self._process = self._process, None
        try:
            if process is not None:
                self._ask_to_end(process)
        finally:  # also where Ctrl-C comes a second time
            if process is not None:
                self._kill(process)
            self._log.close()

    def _start(self) -> None:
        port = _free_port()
        words = [word.replace(PORT, str(port)) for word in self._launch.command]
        mark = {MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **mark, **self._launch.env},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            msg = f"{words[0]} cannot be run: {error}."
            raise UsageError(msg) from None
        self.url = f"http://127.0.0.1:{port}"

    def _wait(self) -> None:
        began = told = time.monotonic()
        why = ""
        while (passed := time.monotonic() - began) < self._wait_s:
            left = self._wait_s - passed
            why = self._not_ready(min(_PROBE_S, max(left, _LEAST_PROBE_S)))
            if self.ended is not None:
                msg = f"the server ended with status {self.ended} before it was ready. "
                raise ServerError(msg + self.tail(), kind="refused")
            if not why:
                return
            if time.monotonic() - told >= _TOLD_EVERY_S:
                told = time.monotonic()
                last = self.tail().rpartition("\n")[2].removeprefix("  | ")
                self._tell(f"waiting for the server: {told - began:.0f} s; {last}")
            time.sleep(min(_PAUSE_S, left))
        msg = f"the server was not ready within {self._wait_s:g} s: {why}. {self.tail()}"
        raise ServerError(msg, kind="timeout")

    def _not_ready(self, limit: float) -> str:
        """Return why the server cannot be asked yet; empty if it can."""
        path = self._launch.ready
        try:
            answer = Client(self.url, timeout_s=limit).get(path)
        except ServerError as error:
            return str(error)
        return "" if answer.ok else f"GET {path}: status {answer.status}"

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        limit = time.monotonic() + _GRACE_S
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        for pid in processes_marked(MARK, self._mark):
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != process.pid:  # nobody has asked this one yet
                    os.kill(pid, signal.SIGTERM)
        while processes_marked(MARK, self._mark) and time.monotonic() < limit:
            time.sleep(_PAUSE_S)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        _signal_group(process, signal.SIGKILL)
        for _ in range(20):  # one that is being killed may have started another one
            left = processes_marked(MARK, self._mark)
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(_PAUSE_S)
        process.wait()


@contextmanager
def ends_in_order() -> Generator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does: through every ``finally``.

    To be used on the main thread.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the group, which may outlive its leader, or be gone already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
