"""What servers answer, event by event: each form is read, and each bad one told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends.base import Request
from mlxcheck.backends.server_wires import Generate, IdsInLogprobs, Piece, ReturnsIds, TextAlone
from mlxcheck.errors import EngineFault
from mlxcheck.texts import Spelling

if TYPE_CHECKING:
    from mlxcheck.backends.server_wires import Reader, Wire

LETTERS = Spelling(
    decode=lambda ids: "".join(chr(60 + token) for token in ids),
    encode=lambda text: [ord(letter) - 60 for letter in text],
)
REQUEST = Request(id="r0", tokens=(10, 11), max_tokens=7, stop_ids=(2,))
LISTED: dict[str, Any] = {
    "content": [
        {
            "id": 9,
            "logprob": -3.0,
            "top_logprobs": [{"id": 9, "logprob": -3.0}, {"id": 5, "logprob": -0.1}],
        },
        {"id": 6, "logprob": -0.2},
    ]
}
"""As mlx-lm's server gives them: with alternatives an entry is any of these."""


def event(ids: list[int], total: int, **meta: Any) -> dict[str, Any]:
    """Make an event of SGLang's."""
    return {"output_ids": ids, "meta_info": {"completion_tokens": total, **meta}}


def choice(**fields: Any) -> dict[str, Any]:
    """Make an event of ``/v1/completions``."""
    return {"choices": [fields]}


def said(reader: Reader, *events: dict[str, Any]) -> list[Piece]:
    """Read events."""
    return [piece for each in events for piece in reader.take(each)]


# --- What is sent -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "path", "prompt"),
    [
        (Generate(), "/generate", {"input_ids": [10, 11]}),
        (ReturnsIds(model="m"), "/v1/completions", {"prompt": [10, 11], "model": "m"}),
        (IdsInLogprobs(spelling=LETTERS), "/v1/completions", {"prompt": "words"}),
        (TextAlone(), "/v1/completions", {"prompt": "words"}),
    ],
)
def test_every_request_is_greedy(wire: Wire, path: str, prompt: dict[str, Any]) -> None:
    """Temperature 0, the budget, and nothing else by which a token could change."""
    body = wire.body(REQUEST, "words")

    assert wire.path == path
    assert prompt.items() <= body.items()
    inner = body.get("sampling_params", body)
    assert inner["temperature"] == 0
    assert 7 in {inner.get("max_tokens"), inner.get("max_new_tokens")}
    changing = {"top_p", "top_k", "min_p", "seed", "stop", "repetition_penalty", "logit_bias"}
    assert not changing & {*body, *inner}
    assert ("model" in body) == ("model" in prompt)


# --- What comes back --------------------------------------------------------------------------


def test_events_with_all_ids_so_far() -> None:
    """Each id is taken once; the last event says why it ended, and what was in the cache."""
    reader = Generate().reader()

    pieces = said(
        reader,
        event([5], 1, finish_reason=None),
        event([5, 6], 2, finish_reason=None),
        event([5, 6, 2], 3, finish_reason={"type": "stop", "matched": 2}, prompt_tokens=2),
    )

    assert [piece.token for piece in pieces] == [5, 6, 2]
    assert (reader.finish, reader.stopped_at, reader.prompt_tokens) == ("stop", 2, 2)
    assert reader.cached_tokens is None


def test_events_with_the_new_ids_alone() -> None:
    """Servers that stream so are told by the number of tokens that they count."""
    reader = Generate().reader()

    pieces = said(
        reader, event([5], 1), event([6, 7], 3), event([8], 4, finish_reason={"type": "length"})
    )

    assert [piece.token for piece in pieces] == [5, 6, 7, 8]
    assert reader.finish == "length"


def test_log_probabilities_of_the_new_ids() -> None:
    """Of both forms, the last ones belong to the new ids."""
    reader = Generate(logprobs=True).reader()
    own = [[-0.1, 5, None], [-0.2, 6, None]]
    tops = [[[-0.1, 5, None], [-3.0, 9, None]], [[-0.2, 6, None]]]
    shown = {"output_token_logprobs": own, "output_top_logprobs": tops}

    said(reader, event([5], 1))
    (piece,) = said(reader, event([5, 6], 2, **shown))

    assert (piece.token, piece.logprobs) == (6, {6: -0.2})


def test_ids_that_were_lost() -> None:
    """An event that counts more ids than were ever given is no answer."""
    with pytest.raises(EngineFault, match="1 new ids after 0, where it counts 3 in all"):
        said(Generate().reader(), event([5], 3))


def test_ids_beside_a_finish_of_their_own() -> None:
    """The end may come after the last id, and the usage after that."""
    reader = ReturnsIds().reader()
    usage = {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}

    pieces = said(
        reader,
        choice(token_ids=[5], finish_reason=None, prompt_token_ids=[10, 11]),
        choice(token_ids=[], finish_reason="stop", stop_reason=2),
        {"choices": [], "usage": usage},
    )

    assert [piece.token for piece in pieces] == [5]
    assert (reader.finish, reader.stopped_at) == ("stop", 2)
    assert (reader.prompt_tokens, reader.cached_tokens) == (2, 1)


@pytest.mark.parametrize(
    ("shown", "logprobs"),
    [
        (
            {
                "tokens": ["token_id:5"],
                "token_logprobs": [-0.1],
                "top_logprobs": [{"token_id:5": -0.1, "token_id:9": -3.0}],
            },
            {5: -0.1, 9: -3.0},
        ),
        ({"tokens": ["A"], "token_logprobs": [-0.1], "top_logprobs": None}, None),
        ({"tokens": ["token_id:5"], "token_logprobs": [], "top_logprobs": None}, None),
    ],
    ids=["ids", "words", "one too few"],
)
def test_log_probabilities_by_id(shown: dict[str, Any], logprobs: object) -> None:
    """They are taken where it is known of which ids they are."""
    reader = ReturnsIds(logprobs=True).reader()

    (piece,) = said(reader, choice(token_ids=[5], finish_reason=None, logprobs=shown))

    assert piece.logprobs == logprobs


def test_the_ids_of_a_text() -> None:
    """Of the alternatives those that have the text, whatever an entry calls itself."""
    reader = IdsInLogprobs(spelling=LETTERS).reader()

    pieces = said(reader, choice(text="AB", finish_reason="length", logprobs=LISTED))

    assert [piece.token for piece in pieces] == [5, 6]
    assert pieces[0].logprobs == {9: -3.0, 5: -0.1}


def test_ids_that_are_not_the_text_s() -> None:
    """What belongs to another answer is no answer."""
    with pytest.raises(EngineFault, match="no ids of its log-probabilities have the text"):
        said(
            IdsInLogprobs(spelling=LETTERS).reader(),
            choice(text="AZ", finish_reason="length", logprobs=LISTED),
        )


def test_pieces_of_text() -> None:
    """Empty ones are no news."""
    reader = TextAlone().reader()

    pieces = said(
        reader,
        choice(text="A", finish_reason=None),
        choice(text="", finish_reason=None),
        choice(text="B", finish_reason="length"),
    )

    assert [piece.text for piece in pieces] == ["A", "B"]
    assert reader.finish == "length"


# --- What is no answer ------------------------------------------------------------------------

WIRES = [Generate(), ReturnsIds(), IdsInLogprobs(spelling=LETTERS), TextAlone()]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: type(wire).__name__)
@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ({"error": {"message": "out of memory"}}, "the server says: .*out of memory"),
        ({"detail": "?"}, "has not the form that it should"),
        ({"choices": "?", "meta_info": "?"}, "has not the form that it should"),
    ],
)
def test_what_is_no_answer(wire: Wire, payload: dict[str, Any], told: str) -> None:
    """An error within a stream, or something else altogether, is told in its own words."""
    with pytest.raises(EngineFault, match=told):
        said(wire.reader(), payload)


def test_an_end_for_no_known_reason() -> None:
    """Answers end at a stop id or at their budget."""
    with pytest.raises(EngineFault, match="ended for 'tool_calls'"):
        said(TextAlone().reader(), choice(text="A", finish_reason="tool_calls"))
    abort = {"type": "abort", "message": "no memory"}
    with pytest.raises(EngineFault, match="the server aborted it: no memory"):
        said(Generate().reader(), event([5], 1, finish_reason=abort))
