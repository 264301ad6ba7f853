"""Server-sent events, as OpenAI-compatible servers stream them.

The format is that of the HTML standard (section *Server-sent events*); the ``[DONE]`` at the
end and the JSON in each event are OpenAI's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mlxcheck.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

__all__ = ["Events"]

_DONE = "[DONE]"
_IGNORED = ("event:", "id:", "retry:")


class Events:
    """The JSON objects of a stream, in order, up to ``[DONE]``.

    Comments, which servers send to keep the connection alive, are left out. Iterating raises
    `ServerError` where the stream breaks off, takes too long, ends without ``[DONE]``, or
    holds what is no event.

    Args:
        chunks: The body as it comes.
        asked: What for, for the messages.
        headers: Those of the answer, by lower-case name.

    Attributes:
        headers: As given.
    """

    def __init__(
        self, chunks: Iterable[bytes], asked: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.headers = dict(headers or {})
        self._asked = asked
        self._number = 0
        self._events = self._read(chunks)

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case; empty where none is given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._events

    def __next__(self) -> dict[str, Any]:
        return next(self._events)

    def _read(self, chunks: Iterable[bytes]) -> Generator[dict[str, Any]]:
        held: list[str] = []
        for line in _lines(chunks):
            if line.startswith("data:"):
                held.append(line.removeprefix("data:").removeprefix(" "))
            elif not line:
                payload, held = "\n".join(held), []
                if payload == _DONE:
                    return
                if payload:
                    yield self._object(payload)
            elif not line.startswith((":", *_IGNORED)):
                what = "a line that is none of server-sent events"
                raise self._malformed(what, line)
        if held == [_DONE]:  # some servers leave out the blank line behind it
            return
        msg = (
            f"{self._asked}: the stream ended without [DONE] after {self._number:,} events"
            + (f" and an unfinished one: {held!r:.200}" if held else "")
        )
        raise ServerError(msg, kind="broken")

    def _object(self, payload: str) -> dict[str, Any]:
        self._number += 1
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            what = f"event {self._number:,} is no JSON object"
            raise self._malformed(what, payload)
        return value

    def _malformed(self, what: str, line: str) -> ServerError:
        return ServerError(f"{self._asked}: {what}: {line!r:.200}", kind="malformed")


def _lines(chunks: Iterable[bytes]) -> Generator[str]:
    """Yield the lines as they are finished; the last one without an end too."""
    left = b""
    for chunk in chunks:
        *whole, left = (left + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
    if left:
        yield left.decode("utf-8", "replace")
