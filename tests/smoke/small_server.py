"""A small OpenAI-compatible server, honest unless it is told which fault to have.

Run as ``python small_server.py PORT [FAULT] [TAG]``. It knows sums, capitals and how to
count; a token is a word with the blank before it. TAG does nothing: it makes the process one
that can be found.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PORT = int(sys.argv[1])
FAULT = sys.argv[2] if len(sys.argv) > 2 else "none"

MODEL = "small"
LONGEST = 10_000
CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Egypt": "Cairo"}
STEP_S = 0.002
TOGETHER_S = 0.02


class State:
    """What requests share, as they should not where there is a fault."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests = 0
        self.open_asked = 0
        self.first = ""
        self.flight: list[str] = []
        self.lefts = 0


STATE = State()


def answer(question: str) -> str:
    """Return the right answer."""
    sums = [(int(a), int(b)) for a, b in re.findall(r"(\d+)\+(\d+)", question)]
    if sums:
        a, b = sums[0]
        return f"{a}+{b} equals {a + b + (FAULT == 'wrong-sum')}."
    for country, city in CAPITALS.items():
        if country in question:
            named = "Lyon" if (city, FAULT) == ("Paris", "wrong-capital") else city
            return f"The capital of {country} is {named}."
    count = re.search(r"from (\d+) to (\d+)", question)
    if count:
        return f"Numbers: {' '.join(map(str, range(int(count[1]), int(count[2]) + 1)))}."
    with STATE.lock:
        STATE.open_asked += 1
        number = STATE.open_asked
    if FAULT == "draws":
        return f"The river runs {number} miles."
    if FAULT == "first-differs" and number == 1:
        return "The river ran to the sea."
    return "The river runs to the sea."


def spoken(question: str) -> str:
    """Return what is said, fault included."""
    text = answer(question)
    STATE.first = STATE.first or text
    if FAULT == "repeats-first":
        return STATE.first
    if FAULT == "empty":
        return ""
    if FAULT == "leaks-thinking":
        return f"<think>Let me see.</think>{text}"
    return text


def pieces(text: str) -> list[str]:
    """Return the tokens of a text."""
    return re.findall(r"\s*\S+", text)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Keep quiet."""

    def do_GET(self) -> None:
        """Answer for health and the list of models."""
        if self.path == "/health":
            self.send(503 if FAULT == "never-ready" else 200, {"status": "ok"})
        elif self.path == "/v1/models":
            listed = [] if FAULT == "no-models" else [{"id": MODEL, "object": "model"}]
            self.send(200, {"object": "list", "data": listed})
        else:
            self.send(404, {"error": {"message": "no such path"}})

    def do_POST(self) -> None:
        """Answer a chat."""
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with STATE.lock:
            STATE.requests += 1
            number = STATE.requests
        if FAULT == "dies" or (FAULT == "dies-second" and number > 1):
            return  # the connection is closed; health stays green
        if FAULT == "hangs":
            time.sleep(600)
        try:
            body = json.loads(raw)
        except ValueError:
            if FAULT == "crashes-on-json":
                os._exit(7)
            self.send(500 if FAULT == "fails-on-json" else 400, {"error": {"message": "JSON"}})
            return
        refusal = self.refusal(body)
        if refusal:
            self.send(refusal, {"error": {"message": "cannot be"}})
            return
        self.chat(body, body["messages"][0]["content"] if body["messages"] else "")

    def refusal(self, body: dict[str, Any]) -> int:
        """Return the status of a request that cannot be; 0 if it can."""
        if body["model"] != MODEL and FAULT != "any-model":
            return 404
        if body["max_tokens"] > LONGEST and FAULT != "clamps":
            return 400
        return 422 if not body["messages"] and FAULT != "no-messages" else 0

    def chat(self, body: dict[str, Any], question: str) -> None:
        """Answer, whole or in pieces."""
        taken_for = question if body.get("stream") else self.taken_for(question)
        said, finish = self.cut(body, spoken(taken_for))
        if body.get("stream"):
            self.stream(said, finish)
            return
        if FAULT in {"rounds", "garbles"} and len(STATE.flight) > 1 and len(said) < 8:
            # Another answer in company: as good a one, or a wrong one.
            said = [*said, " Indeed."] if FAULT == "rounds" else [" What?"]
        with STATE.lock:
            STATE.flight.remove(question)
        asked = len(pieces(question)) + 3
        counts = {
            "prompt_tokens": 1 if FAULT == "prompt-not-counted" else asked,
            "completion_tokens": len(said) + (finish == "stop"),
            "total_tokens": asked + len(said) + (finish == "stop") + (FAULT == "wrong-total"),
        }
        message = {"role": "assistant", "content": "".join(said)}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        self.send(200, {"choices": [choice], "usage": counts})

    def taken_for(self, question: str) -> str:
        """Return the question that is answered: its own, or that of another in flight."""
        with STATE.lock:
            STATE.flight.append(question)
        if FAULT in {"mixes", "rounds", "garbles"}:
            time.sleep(TOGETHER_S)
        with STATE.lock:
            return STATE.flight[-1] if FAULT == "mixes" else question

    def cut(self, body: dict[str, Any], text: str) -> tuple[list[str], str | None]:
        """Return the tokens up to the end, and its reason."""
        finish: str | None = "stop"
        for stop in body.get("stop") or ():
            if stop in text and FAULT != "loses-stop":
                text = text[: text.index(stop)]
        said = pieces(text)
        if len(said) > body["max_tokens"] and FAULT != "ignores-max-tokens":
            said = said[: body["max_tokens"]]
            finish = "stop" if FAULT == "wrong-finish" else "length"
        return said, None if FAULT == "no-finish" else finish

    def stream(self, said: list[str], finish: str | None) -> None:
        """Send one event a token."""
        wrong = FAULT == "wrong-content-type"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if wrong else "text/event-stream")
        self.end_headers()
        self.wfile.write(b": here it comes\n\n")
        if FAULT == "loses-piece":
            del said[1:2]
        lefts = STATE.lefts
        try:
            for number, piece in enumerate(said):
                if FAULT == "closes-mid-stream" and number == 2:
                    return
                time.sleep(STEP_S)
                self.event({"delta": {"content": piece}, "finish_reason": None})
                if FAULT == "disturbed" and STATE.lefts > lefts:
                    break
            self.event({"delta": {}, "finish_reason": finish})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:  # whoever asked has left
            STATE.lefts += 1

    def event(self, choice: dict[str, Any]) -> None:
        """Send one event."""
        content = json.dumps({"choices": [{"index": 0, **choice}]})
        self.wfile.write(f"data: {content}\n\n".encode())
        self.wfile.flush()

    def send(self, status: int, content: dict[str, Any]) -> None:
        """Send a whole answer."""
        wrong = FAULT == "wrong-content-type" and status == 200
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if wrong else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def goodbye(number: int, _frame: object) -> None:
    """End in order: leave a file, at the path in place of TAG."""
    Path(sys.argv[3]).write_text(str(number), encoding="utf-8")
    raise SystemExit


class Server(ThreadingHTTPServer):
    """Accepts eight at once, and more."""

    request_queue_size = 64
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet of clients that leave."""


if __name__ == "__main__":
    if "--child" in sys.argv:
        time.sleep(600)
    if FAULT.startswith("has-children"):
        # One that has left the group, so that it would live on.
        subprocess.Popen([sys.executable, *sys.argv, "--child"], start_new_session=True)
        FAULT = FAULT.removeprefix("has-children-and-")
    if FAULT == "says-goodbye":
        signal.signal(signal.SIGTERM, goodbye)
    if FAULT == "outlives":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stderr.write(f"small server: {FAULT}\n")
    Server(("127.0.0.1", PORT), Handler).serve_forever()
