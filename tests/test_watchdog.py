"""The watchdog: each way to hang is ended by the way that is made for it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mlxcheck.errors import EngineHung
from mlxcheck.policy import Policy
from mlxcheck.watchdog import Watchdog
from tests.support.driven import ONE, Engine, drive, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from mlxcheck.backends.base import Emission

SECONDS, GRACE = 0.3, 8.0
LONG = 30.0


@pytest.fixture(autouse=True)
def fresh_alarm() -> Iterator[None]:
    """Leave the alarm as it was found, whatever a test does."""
    handler = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


def busy() -> None:
    """Hang in Python."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass


def asleep() -> None:
    """Hang in a system call that a signal interrupts."""
    time.sleep(LONG)


def waiting() -> None:
    """Hang on a lock, as a scheduler's thread would."""
    threading.Event().wait(LONG)


def stubborn() -> None:
    """Hang, and swallow what ordinary engines swallow."""
    for _ in range(3):
        with contextlib.suppress(Exception):
            busy()


def deaf() -> None:
    """Hang, and swallow even the first alarm."""
    try:
        busy()
    except BaseException:  # noqa: BLE001 - the fault that is planted
        busy()


# --- Way 1: the alarm -----------------------------------------------------------------------


@pytest.mark.parametrize("hang", [busy, asleep, waiting, stubborn])
def test_a_hang_in_python_is_interrupted_where_it_is(hang: Callable[[], None]) -> None:
    """The alarm ends it in time, and the text has what was asked and the engine's stack."""
    dog = Watchdog(SECONDS, GRACE)
    began = time.monotonic()

    with dog, pytest.raises(EngineHung) as caught, dog.guard("go()"):
        hang()

    summary, *stack = str(caught.value).splitlines()
    assert summary == "no progress within 0.3 s in go(); it was interrupted at"
    assert any(f", in {hang.__name__}" in line for line in stack)
    assert SECONDS <= time.monotonic() - began < LONG / 2


def test_a_second_alarm_ends_what_swallowed_the_first() -> None:
    """An alarm rings again, for a bare `except`, before the grace is over."""
    began = time.monotonic()

    with Watchdog(SECONDS, 4.0) as dog, pytest.raises(EngineHung), dog.guard("go()"):
        deaf()

    assert SECONDS + 1 <= time.monotonic() - began < SECONDS + 4


def test_a_session_makes_a_hang_a_fault_with_its_stack() -> None:
    """A step that never returns is an ERROR of its case, and says where it was."""

    class Hangs(Engine):
        def step(self) -> Sequence[Emission]:
            busy()
            return []

    (answers,) = drive(Hangs, ONE, policy=Policy(watchdog_s=SECONDS, grace_s=GRACE))

    summary = "no progress within 0.3 s in step(); it was interrupted at"
    assert fault_of(answers).summary == summary
    assert ", in busy" in fault_of(answers).detail


def test_what_is_in_time_is_let_be() -> None:
    """A call within its time returns, and each call has the whole time for itself."""
    with Watchdog(1.0, GRACE) as dog:
        for _ in range(4):
            with dog.guard("go()"):
                time.sleep(0.3)


def test_other_exceptions_pass() -> None:
    """What a block raises in time leaves it as it is."""
    with Watchdog(LONG, GRACE) as dog, pytest.raises(LookupError), dog.guard("go()"):
        raise LookupError


def test_alarm_and_timer_are_given_back() -> None:
    """The handler and a timer that somebody else had set are as they were found."""

    def ring(_signum: int, _frame: FrameType | None) -> None:
        """Stand in for the handler of a test runner's own timeout."""

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 100.0, 7.0)

    with Watchdog(LONG, GRACE) as dog, dog.guard("go()"):
        assert signal.getsignal(signal.SIGALRM) is not ring
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= LONG

    assert signal.getsignal(signal.SIGALRM) is ring
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    assert (90 < left <= 100, interval) == (True, 7.0)


def test_nothing_is_left_behind() -> None:
    """After a hang as after none: no timer, no handler, no thread."""
    threads = threading.active_count()
    handler = signal.getsignal(signal.SIGALRM)

    with Watchdog(SECONDS, GRACE) as dog, pytest.raises(EngineHung), dog.guard("go()"):
        busy()

    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert threading.active_count() == threads


def test_a_thread_that_is_not_the_main_one_gets_no_alarm() -> None:
    """Off the main thread the alarm is left alone, where the watchdog was made or not."""
    handler = signal.getsignal(signal.SIGALRM)
    dog = Watchdog(LONG, GRACE)
    seen: list[object] = []

    def elsewhere() -> None:
        with dog, dog.guard("go()"):
            seen.append(signal.getsignal(signal.SIGALRM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert seen == [handler]


# --- Ways 2 and 3: in processes of their own ------------------------------------------------

PRELUDE = """\
import ctypes, os, sys, threading, time
from mlxcheck.watchdog import Watchdog

def native_hang(library):
    # A mutex that is locked twice: no signal ends the wait.
    mutex = ctypes.create_string_buffer(256)
    library.pthread_mutex_init(mutex, None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def last_words(text):
    print("last words:", text, flush=True)

"""


def run(script: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a script after the prelude; return what it did, and how long it took."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, time.monotonic() - began


def test_native_code_that_lets_the_interpreter_go_ends_the_process() -> None:
    """Where no signal helps, the last words are said, with every stack, and the status is 1."""
    done, seconds = run("""
        with Watchdog(0.2, 0.3, last_words) as dog, dog.guard("step()"):
            native_hang(ctypes.CDLL(None))
        print("came back")
    """)

    assert done.returncode == 1
    assert done.stdout.startswith(
        "last words: the candidate made no progress within 0.2 s in step() and could not be "
        "interrupted in 0.3 s more. The process ends here.\nthread "
    )
    assert ", in native_hang" in done.stdout
    assert "came back" not in done.stdout
    assert seconds < LONG


def test_without_last_words_the_stacks_go_to_standard_error() -> None:
    """A session that nobody listens to still says why the process ends."""
    done, _ = run("""
        with Watchdog(0.2, 0.3) as dog, dog.guard("step()"):
            native_hang(ctypes.CDLL(None))
    """)

    assert done.returncode == 1
    assert done.stderr.startswith("mlxcheck: the candidate made no progress within 0.2 s")
    assert ", in native_hang" in done.stderr


def test_last_words_that_fail_are_told_and_do_not_stop_the_end() -> None:
    """Where saving the report raises, stacks and traceback are shown and the status is 1."""
    done, _ = run("""
        def choke(text):
            raise OSError("no space left")

        with Watchdog(0.2, 0.3, choke) as dog, dog.guard("step()"):
            native_hang(ctypes.CDLL(None))
    """)

    assert done.returncode == 1
    assert "the candidate made no progress" in done.stderr
    assert "OSError: no space left" in done.stderr


def test_a_hang_off_the_main_thread_ends_the_process() -> None:
    """Without an alarm it is the second way that ends even a hang in Python."""
    done, _ = run("""
        def engine():
            with Watchdog(0.2, 0.3, last_words) as dog, dog.guard("step()"):
                while True:
                    time.sleep(0.01)

        thread = threading.Thread(target=engine)
        thread.start()
        thread.join()
    """)

    assert done.returncode == 1
    assert done.stdout.startswith("last words: the candidate made no progress")
    assert ", in engine" in done.stdout


def test_native_code_that_holds_the_interpreter_ends_the_process() -> None:
    """Where no Python can run any more, faulthandler shows the stack; the status is 1."""
    done, seconds = run("""
        with Watchdog(0.2, 0.2, last_words) as dog, dog.guard("step()"):
            native_hang(ctypes.PyDLL(None))
        print("came back")
    """)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Timeout (")
    assert " in native_hang" in done.stderr
    assert seconds < LONG


def test_time_between_the_calls_is_not_the_engines() -> None:
    """A session that is open and idle, for longer than the watchdog's whole time, lives on."""
    done, _ = run("""
        with Watchdog(0.2, 0.3, last_words) as dog:
            with dog.guard("step()"):
                pass
            time.sleep(1.5)
            with dog.guard("step()"):
                pass
        time.sleep(1.3)
        print("alive")
    """)

    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
