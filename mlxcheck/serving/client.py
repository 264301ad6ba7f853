"""The HTTP client: whatever the server does, there is an answer or a clear error, in time.

Each request has a connection of its own. A server that closes connections when it should not
is then seen as it is, and not through a connection that another request had left behind.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlunsplit

import requests
from urllib3.exceptions import HTTPError, ReadTimeoutError

from mlxcheck.errors import ServerError, UsageError
from mlxcheck.serving.address import authorization, is_loopback, split_url
from mlxcheck.serving.events import Events
from mlxcheck.serving.waiting import too_late, within

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from requests import PreparedRequest, Response

__all__ = ["Answer", "Client", "excerpt"]

_KEPT = ("content-type", "retry-after", "server", "x-request-id")
_LARGEST = 64 * 1024 * 1024
"""Bytes of one answer. A server that sends without end must not fill the memory."""

_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back.

    Attributes:
        status: The HTTP status.
        headers: Those that checks look at, by lower-case name.
        text: The body, read as UTF-8.
        json: The body as JSON; None where it is none.
        seconds: From the request to the last byte.
    """

    status: int
    headers: Mapping[str, str]
    text: str
    json: Any
    seconds: float

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case; empty where none is given."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def ok(self) -> bool:
        """Whether the status is one of success (2xx)."""
        return self.status // 100 == 2  # noqa: PLR2004 - the class of a status


class Client:
    """Ask one server. May be used from several threads at once.

    The environment's proxies are used for other machines, never for this one. A key in
    ``MLXCHECK_API_KEY``, or user and password in the URL, go into the Authorization header and
    into no message.

    Args:
        url: Where the server is, ``http://`` or ``https://``; a ``/v1`` at its end is left
            out, since paths bring it.
        timeout_s: For one request, from its start to the last byte of its answer.
        headers: More headers for each request.

    Raises:
        UsageError: If the URL, the timeout or the key cannot be.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 60.0, headers: Mapping[str, str] | None = None
    ) -> None:
        if not timeout_s > 0:
            msg = f"a timeout of {timeout_s:g} s: expected more than 0."
            raise UsageError(msg)
        parts = split_url(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit(
            (parts.scheme, host, parts.path.rstrip("/").removesuffix("/v1"), "", "")
        )
        self.timeout_s = timeout_s
        self._headers = {"Accept-Encoding": "identity", **authorization(parts)}
        self._headers.update(headers or {})
        self._proxies = not is_loopback(parts.hostname or "")

    def get(self, path: str, *, timeout_s: float | None = None) -> Answer:
        """Ask for *path*.

        Args:
            path: What for.
            timeout_s: Instead of the client's own.

        Raises:
            ServerError: If no answer came.
        """
        return self._ask("GET", path, None, timeout_s or self.timeout_s)

    def post(self, path: str, body: Mapping[str, Any] | bytes) -> Answer:
        """Send *body* to *path*, as JSON; bytes are sent as they are.

        Raises:
            ServerError: If no answer came.
        """
        return self._ask("POST", path, body, self.timeout_s)

    @contextmanager
    def stream(
        self, path: str, body: Mapping[str, Any] | bytes, *, timeout_s: float | None = None
    ) -> Generator[Events]:
        """Send *body* to *path* and yield the events of the answer as they come.

        Leaving the block closes the connection, wherever the stream is.

        Args:
            path: Where to.
            body: As for `post`.
            timeout_s: Instead of the client's own.

        Raises:
            ServerError: If the status is none of success or no answer came; on the way, as
                `Events` says.
        """
        asked, limit = f"POST {path}", timeout_s or self.timeout_s
        started = time.monotonic()
        with requests.Session() as session:
            response = within(
                limit,
                lambda: self._send(session, "POST", path, body, limit),
                asked,
                late=requests.Response.close,
            )
            with response:
                chunks = _chunks(response, asked, started, limit)
                if response.status_code // 100 != 2:  # noqa: PLR2004 - the class of a status
                    said = excerpt(b"".join(chunks).decode("utf-8", "replace"))
                    msg = f"{asked}: status {response.status_code}, expected a stream: {said}"
                    raise ServerError(msg, kind="status")
                yield Events(chunks, asked, _headers(response))

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None, limit: float
    ) -> Answer:
        asked, started = f"{method} {path}", time.monotonic()

        def exchange() -> Answer:
            with (
                requests.Session() as session,
                self._send(session, method, path, body, limit) as response,
            ):
                whole = b"".join(_chunks(response, asked, started, limit))
                text = whole.decode("utf-8", "replace")
                return Answer(
                    status=response.status_code,
                    headers=_headers(response),
                    text=text,
                    json=_json(text),
                    seconds=time.monotonic() - started,
                )

        return within(limit, exchange, asked)

    def _send(
        self,
        session: requests.Session,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        limit: float,
    ) -> Response:
        asked, headers = f"{method} {path}", dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        session.trust_env = self._proxies
        session.auth = _as_it_is
        try:
            return session.request(
                method,
                f"{self.url}{path}",
                data=data,
                headers=headers,
                timeout=limit,
                stream=True,
                allow_redirects=False,
            )
        except requests.Timeout as error:
            raise too_late(asked, limit) from error
        except requests.exceptions.SSLError as error:
            msg = f"{asked}: no TLS connection to {self.url}: {_reason(error)}"
            raise ServerError(msg, kind="refused") from error
        except requests.ConnectionError as error:
            raise self._unconnected(asked, error) from error
        except requests.RequestException as error:
            msg = f"{asked}: the request could not be made: {_reason(error)}"
            raise ServerError(msg, kind="broken") from error

    def _unconnected(self, asked: str, error: requests.ConnectionError) -> ServerError:
        """Tell a server that is not there from one that hangs up."""
        reason = _reason(error)
        if any(word in repr(error) for word in ("NewConnectionError", "NameResolutionError")):
            return ServerError(f"{asked}: no server at {self.url}: {reason}", kind="refused")
        msg = f"{asked}: the server closed the connection without an answer ({reason})"
        return ServerError(msg, kind="broken")


def excerpt(text: str, most: int = _SHOWN) -> str:
    """Return *text* as it may stand in a message: quoted, in one line, cut where it is long."""
    cut = text[:most]
    more = f"... ({len(text):,} characters)" if len(text) > most else ""
    return f"{cut!r}{more}" if text else "an empty body"


def _as_it_is(request: PreparedRequest) -> PreparedRequest:
    """Keep a password file of the user's out of it: the header is the client's own."""
    return request


def _headers(response: Response) -> dict[str, str]:
    return {name: response.headers[name] for name in _KEPT if name in response.headers}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _chunks(response: Response, asked: str, started: float, limit: float) -> Iterator[bytes]:
    """Yield the body as it comes, each piece as soon as it is there."""
    read = 0
    while True:
        try:
            chunk = response.raw.read1(65536)
        except ReadTimeoutError as error:
            raise too_late(asked, limit, read) from error
        except (HTTPError, OSError, ValueError) as error:
            msg = f"{asked}: the answer broke off after {read:,} bytes ({_reason(error)})"
            raise ServerError(msg, kind="broken") from error
        if not chunk:
            return
        read += len(chunk)
        yield chunk
        if time.monotonic() - started > limit:
            raise too_late(asked, limit, read)
        if read > _LARGEST:
            msg = f"{asked}: the answer is longer than {_LARGEST:,} bytes"
            raise ServerError(msg, kind="malformed")


def _reason(error: BaseException) -> str:
    """Return the innermost reason of an exception of the HTTP libraries, in one line."""
    inner: BaseException = error
    while True:
        held = getattr(inner, "reason", None)
        found = held if isinstance(held, BaseException) else None
        args = [arg for arg in inner.args if isinstance(arg, BaseException)]
        following = found or (args[-1] if args else None)
        if following is None:
            break
        inner = following
    text = " ".join(str(inner).split()) or type(inner).__name__
    return text.rpartition(": ")[2] if "Connection" in text.partition(":")[0] else text
