"""Server-sent events, as they come off the wire."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.errors import ServerError
from mlxcheck.serving.events import Events

WIRE = (
    b'data: {"n": 1}\n\n: still here\n\nevent: x\nid: 7\ndata: {"n":\ndata: 2}\n\n'
    b"data:[DONE]\n\n"
)


def read(*chunks: bytes) -> list[dict[str, Any]]:
    """Return the events of a body in chunks."""
    return list(Events(chunks, "POST /x"))


def test_events_are_read_and_comments_are_not() -> None:
    """Data in two lines is one event, and a blank after the colon is optional."""
    assert read(WIRE) == [{"n": 1}, {"n": 2}]


@given(st.lists(st.integers(0, len(WIRE)), max_size=6), st.booleans())
def test_chunks_may_end_anywhere(cuts: list[int], crlf: bool) -> None:  # noqa: FBT001 - drawn
    """In the middle of a line, of an event, or of the end of a line."""
    wire = WIRE.replace(b"\n", b"\r\n") if crlf else WIRE
    edges = [0, *sorted(cuts), len(wire)]
    chunks = [wire[a:b] for a, b in pairwise(edges)]

    assert read(*chunks) == [{"n": 1}, {"n": 2}]


def test_a_character_in_two_chunks() -> None:
    """Bytes are put together before they are decoded."""
    whole = 'data: {"s": "\u00e9"}\n\ndata: [DONE]\n\n'.encode()
    at = whole.index("\u00e9".encode()) + 1

    assert read(whole[:at], whole[at:]) == [{"s": "\u00e9"}]


def test_the_end_without_a_blank_line() -> None:
    """Some servers leave it out."""
    assert read(b'data: {"n": 1}\n\ndata: [DONE]\n') == [{"n": 1}]
    assert read(b'data: {"n": 1}\n\ndata: [DONE]') == [{"n": 1}]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"", "broken", "the stream ended without [DONE] after 0 events"),
        (b'data: {"n": 1}\n\n', "broken", "the stream ended without [DONE] after 1 events"),
        (b'data: {"n": 1}\n\ndata: {"n"', "broken", "and an unfinished one: ['{\"n\"']"),
        (b"data: {n}\n\n", "malformed", "event 1 is no JSON object: '{n}'"),
        (b"data: [1]\n\n", "malformed", "event 1 is no JSON object: '[1]'"),
        (b'{"error": "x"}\n', "malformed", "a line that is none of server-sent events"),
    ],
)
def test_what_is_no_stream_is_told(body: bytes, kind: str, message: str) -> None:
    """With what was asked, and what came."""
    with pytest.raises(ServerError) as raised:
        read(body)

    assert raised.value.kind == kind
    assert str(raised.value).startswith("POST /x: ")
    assert message in str(raised.value)
