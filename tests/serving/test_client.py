"""The HTTP client against servers that do as they please."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.errors import ServerError, UsageError
from mlxcheck.serving.address import shown_url
from mlxcheck.serving.client import Client, excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

LEFT = threading.Event()
"""Set once a client has left a stream, as the server sees it."""


class Handler(BaseHTTPRequestHandler):
    """Does what the path says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Keep quiet."""

    def do_GET(self) -> None:
        """Answer, or do something worse."""
        if self.path == "/close":
            self.close_connection = True
        elif self.path == "/short":
            self.whole(b"abc", length=100)
            self.close_connection = True
        elif self.path == "/trickle":
            self.trickle()
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/headers":
            self.whole(json.dumps(dict(self.headers)).encode())
        else:
            self.whole(b"no JSON", status=404)

    def do_POST(self) -> None:
        """Stream, or say what was sent."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/echo":
            self.whole(body)
        elif self.path == "/refused":
            self.whole(b'{"error": "no"}', status=400)
        else:
            self.stream()

    def whole(self, body: bytes, status: int = 200, length: int | None = None) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", "Application/JSON; charset=utf-8")
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        self.wfile.write(body)

    def trickle(self) -> None:
        """Send the headers a byte at a time, each within any timeout for one read."""
        try:
            for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            return

    def stream(self) -> None:
        """Send events, in HTTP's own chunks where the path says so."""
        chunked = self.path == "/chunked"
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("X", "y")))
        self.end_headers()
        try:
            for number in range(200 if self.path == "/long" else 3):
                self.send(b'data: {"n": %d}\n\n' % number, chunked=chunked)
                if self.path == "/stuck" and number == 1:
                    time.sleep(3)
                time.sleep(0.02)
            self.send(b"data: [DONE]\n\n", chunked=chunked)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            LEFT.set()

    def send(self, data: bytes, *, chunked: bool) -> None:
        """Send a piece."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """Says nothing of clients that leave."""

    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return where the server is."""
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def error_of(url: str, path: str, timeout_s: float = 5.0) -> ServerError:
    """Return what a GET comes to."""
    with pytest.raises(ServerError) as raised:
        Client(url, timeout_s=timeout_s).get(path)
    return raised.value


def test_an_answer(url: str) -> None:
    """Status, media type, text, JSON and time."""
    answer = Client(f"{url}/v1/").post("/echo", {"a": "\u00e9"})

    assert (answer.status, answer.ok, answer.content_type) == (200, True, "application/json")
    assert answer.json == {"a": "\u00e9"}
    assert 0 < answer.seconds < 5


def test_bytes_go_as_they_are(url: str) -> None:
    """Broken JSON can be sent; what comes back is no JSON, and no error."""
    answer = Client(url).post("/echo", b'{"a": ')

    assert (answer.text, answer.json) == ('{"a": ', None)


def test_a_status_of_failure_is_an_answer(url: str) -> None:
    """And so is a redirect, which is not followed."""
    client = Client(url)

    assert client.get("/nothing").status == 404
    assert not client.get("/nothing").ok
    assert client.get("/moved").status == 302


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("/close", "broken", "GET /close: the server closed the connection without an answer"),
        ("/short", "broken", "GET /short: the answer broke off after 3 bytes"),
        ("/trickle", "timeout", "GET /trickle: no whole answer within 0.5 s"),
    ],
)
def test_no_answer_is_told_in_words(url: str, path: str, kind: str, message: str) -> None:
    """And in time."""
    began = time.monotonic()
    error = error_of(url, path, timeout_s=0.5)

    assert (error.kind, str(error).startswith(message)) == (kind, True)
    assert time.monotonic() - began < 2


def test_one_request_may_have_less_time(url: str) -> None:
    """Than the client's others."""
    began = time.monotonic()
    with pytest.raises(ServerError, match=r"within 0\.3 s"):
        Client(url).get("/trickle", timeout_s=0.3)

    assert time.monotonic() - began < 2


def test_nobody_is_there() -> None:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{probe.getsockname()[1]}"
        error = error_of(where, "/x")

    assert error.kind == "refused"
    assert str(error).startswith(f"GET /x: no server at {where}: ")


@pytest.mark.parametrize("path", ["/plain", "/chunked"])
def test_events_come_as_they_are_sent(url: str, path: str) -> None:
    """Not only when the stream is over, with or without HTTP's own chunks."""
    with Client(url).stream(path, {}) as events:
        assert events.content_type == "text/event-stream"
        began = time.monotonic()
        times = [(event["n"], time.monotonic() - began) for event in events]

    assert [number for number, _ in times] == [0, 1, 2]
    assert times[2][1] - times[0][1] > 0.02


def test_a_stream_can_be_left(url: str) -> None:
    """That closes the connection, as the server sees."""
    LEFT.clear()
    with Client(url).stream("/long", {}) as events:
        assert next(events) == {"n": 0}

    assert LEFT.wait(5)


def test_a_stream_that_stops(url: str) -> None:
    """What came is given, then the error."""
    seen: list[int] = []
    with (
        pytest.raises(ServerError) as raised,
        Client(url, timeout_s=0.5).stream("/stuck", {}) as it,
    ):
        seen.extend(event["n"] for event in it)

    assert seen == [0, 1]
    assert raised.value.kind == "timeout"
    assert "no whole answer within 0.5 s; 32 bytes of it had come" in str(raised.value)


def test_a_stream_that_is_refused(url: str) -> None:
    """The status and the body are told."""
    with pytest.raises(ServerError) as raised, Client(url).stream("/refused", {}):
        pass

    assert raised.value.kind == "status"
    assert str(raised.value) == (
        'POST /refused: status 400, expected a stream: \'{"error": "no"}\''
    )


def test_many_threads_ask_one_client(url: str) -> None:
    """Each gets its own answer."""
    client = Client(url)
    with ThreadPoolExecutor(16) as pool:
        numbers = list(pool.map(lambda n: client.post("/echo", {"n": n}).json["n"], range(64)))

    assert numbers == list(range(64))


def headers_seen(url: str, **more: str) -> dict[str, str]:
    """Return the headers that the server saw."""
    seen: dict[str, str] = Client(url, headers=more).get("/headers").json
    return seen


def test_who_asks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the environment goes before the user of the URL."""
    named = url.replace("http://", "http://me:s%40me@")
    pair = base64.b64encode(b"me:s@me").decode()

    assert "Authorization" not in headers_seen(url)
    assert headers_seen(named)["Authorization"] == f"Basic {pair}"
    monkeypatch.setenv("MLXCHECK_API_KEY", "key")
    assert headers_seen(named)["Authorization"] == "Bearer key"
    assert Client(named).url == url


def test_the_proxy_of_the_environment_is_not_asked(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for this machine."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    assert Client(url).get("/headers").ok
    assert Client(url.replace("127.0.0.1", "localhost")).get("/headers").ok


@pytest.mark.parametrize(
    "bad",
    ["", "host:80", "ftp://host", "http://", "http://h:99999", "http://[::1", "http://h?x=1"],
)
def test_what_is_no_url(bad: str) -> None:
    """One sentence says what one looks like."""
    with pytest.raises(UsageError, match=r"Expected http://HOST:PORT or https://HOST\."):
        Client(bad)


def test_a_bad_url_is_shown_without_its_password() -> None:
    """A mistake in a URL must not print the secret in it."""
    with pytest.raises(UsageError) as raised:
        Client("http://me:secret@h:x")

    assert "secret" not in str(raised.value)
    assert shown_url("https://me:secret@host:1/v1") == "https://host:1/v1"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_timeout_that_cannot_be(seconds: float) -> None:
    """Nothing is asked."""
    with pytest.raises(UsageError, match="expected more than 0"):
        Client("http://h", timeout_s=seconds)


def test_long_answers_are_cut_in_messages() -> None:
    """Their length is told."""
    assert excerpt("a\nb") == "'a\\nb'"
    assert excerpt("") == "an empty body"
    assert excerpt("x" * 1000, 3) == "'xxx'... (1,000 characters)"
