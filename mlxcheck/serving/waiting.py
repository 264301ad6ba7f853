"""Waiting for something that may never come."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from mlxcheck.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["too_late", "within"]

T = TypeVar("T")

_GRACE_S = 0.25
"""The HTTP library's own timeout comes first, and says how much had come."""


def within(
    limit: float,
    work: Callable[[], T],
    asked: str,
    *,
    late: Callable[[T], object] = lambda _: None,
) -> T:
    """Return what *work* does on a thread of its own, or raise once *limit* is over.

    The HTTP library's timeouts are for one read: a server that sends a byte now and then
    would keep it waiting for ever.

    Args:
        limit: Seconds.
        work: What to do. It goes on when nobody waits any more, to its own end.
        asked: What for, for the message.
        late: What to do with a result that nobody waits for.

    Raises:
        ServerError: Of kind ``"timeout"``.
    """
    done, lock = threading.Event(), threading.Lock()
    results: list[T] = []
    errors: list[BaseException] = []
    given_up = False

    def run() -> None:
        try:
            result = work()
            with lock:
                results.append(result)
                if given_up:
                    late(result)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)
        done.set()

    threading.Thread(target=run, name=f"mlxcheck {asked}", daemon=True).start()
    finished = False
    try:
        finished = done.wait(limit + _GRACE_S)
    finally:
        with lock:
            given_up = not finished
            if given_up and results:
                late(results[0])
    if not finished:
        raise too_late(asked, limit)
    if errors:
        raise errors[0]
    return results[0]


def too_late(asked: str, limit: float, read: int | None = None) -> ServerError:
    """Return the error of a request that took too long.

    Args:
        asked: What for.
        limit: Seconds.
        read: Bytes that had come; None where there was no answer at all.
    """
    got = "" if read is None else f"; {read:,} bytes of it had come"
    return ServerError(f"{asked}: no whole answer within {limit:g} s{got}", kind="timeout")
