"""Text read as tokens: the reference's where it is theirs, and never where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlxcheck.compare import compare_end, compare_tokens
from mlxcheck.records import Finish, Scores, Trace, Verdict
from mlxcheck.texts import Spelling, read, spelled, spelling_of
from tests.support.drawing import unhurried
from tests.support.made import STOPS, measured, place

WORDS: dict[int, bytes] = {
    0: b"\xffzz",
    2: b"<end>",
    3: b"<eot>",
    4: b"<think>",
    5: b"Pa",
    6: b"ris",
    7: b"Paris",
    8: b" is",
    9: b" it",
    10: b".",
    11: "é".encode()[:1],
    12: "é".encode()[1:],
    13: "ê".encode()[1:],
    14: b" ",
    15: b"P",
    16: b"a",
    17: b"Rome",
    18: b" Paris",
}
"""A vocabulary with words in several pieces, characters in two, and special tokens."""

SPECIAL = frozenset({2, 3, 4})
PLAIN = sorted(set(WORDS) - SPECIAL - {0, 11, 12, 13})


def decode(ids: object) -> str:
    """Put bytes together, as byte-level tokenizers do."""
    assert isinstance(ids, list | tuple)
    return b"".join(WORDS[token] for token in ids).decode("utf-8", "replace")


def encode(text: str) -> list[int]:
    """Take the longest word that fits, again and again; what there is no word for is 14."""
    out, left = [], text.encode()
    ranked = sorted((word, token) for token, word in WORDS.items() if token not in SPECIAL)
    while left:
        fits = [(word, token) for word, token in ranked if left.startswith(word)]
        word, token = max(fits, key=lambda pair: len(pair[0]), default=(left[:1], 14))
        out.append(token)
        left = left[len(word) :]
    return out


SPELLING = Spelling(decode=decode, encode=encode, hidden=SPECIAL)


def answer(
    *tokens: int, finish: Finish = "stop", best: dict[int, Scores] | None = None
) -> Trace:
    """Make the reference's answer; its second best is never any word's beginning but by *best*.

    Args:
        tokens: What it says.
        finish: Why it ends.
        best: The scores of some steps.
    """
    plain = [Scores(ids=(token, 0), logprobs=(-0.1, -9.0), logsumexp=9.0) for token in tokens]
    for step, scores in (best or {}).items():
        plain[step] = scores
    return Trace(prompt_id="sum", tokens=tokens, finish=finish, scores=tuple(plain))


def scores(*pairs: tuple[int, float]) -> Scores:
    """Make scores of these tokens, best first."""
    ids, logprobs = zip(*pairs, strict=True)
    return Scores(ids=ids, logprobs=logprobs, logsumexp=9.0)


def ask(said: str, expected: Trace | None, finish: Finish | None = "stop") -> tuple[int, ...]:
    """Read a text."""
    return read(said, finish, expected, SPELLING, STOPS)


# --- The same text ----------------------------------------------------------------------------


@unhurried
@given(st.lists(st.sampled_from(PLAIN), max_size=12), st.sampled_from(("stop", "length")))
def test_the_reference_s_own_text_is_its_own_tokens(tokens: list[int], finish: Finish) -> None:
    """Whatever it says, its text is read as what it said, its stop id included."""
    whole = (*tokens, 2) if finish == "stop" else tuple(tokens)
    assume(whole)

    assert ask(decode(tokens), answer(*whole, finish=finish), finish) == whole


def test_one_text_in_other_tokens_is_the_same() -> None:
    """Text alone cannot tell them apart: "Pa" and "ris" are read as "Paris"."""
    assert ask("Paris.", answer(7, 10, 2)) == (7, 10, 2)
    assert ask("Paris.", answer(5, 6, 10, 2)) == (5, 6, 10, 2)


@pytest.mark.parametrize("said", ["Paris", " Paris"])
def test_a_space_at_the_front_is_no_difference(said: str) -> None:
    """Some detokenizers leave it out, and some do not."""
    assert ask(said, answer(18, 2)) == (18, 2)
    assert ask(said, answer(7, 2)) == (7, 2)


@pytest.mark.parametrize("said", ["Paris", "<think>Paris", "<think>Paris<end>"])
def test_special_tokens_are_shown_or_not(said: str) -> None:
    """Engines leave them out of their text, or spell them."""
    assert ask(said, answer(4, 7, 2)) == (4, 7, 2)


@pytest.mark.parametrize("said", ["Paris", "Paris\N{REPLACEMENT CHARACTER}"])
def test_a_character_that_was_cut_off_at_the_end(said: str) -> None:
    """Half a character is left out, or written as a replacement character."""
    assert ask(said, answer(7, 11, finish="length"), "length") == (7, 11)


def test_a_character_of_several_tokens() -> None:
    """It is read as the tokens that make it."""
    assert ask("Parisé.", answer(7, 11, 12, 10, 2)) == (7, 11, 12, 10, 2)


def test_an_end_for_another_reason_is_not_read_as_a_stop() -> None:
    """Equal text of an answer that was cut off has no stop id: its end differs."""
    tokens = ask("Paris", answer(7, 2), "length")

    assert tokens == (7,)
    actual = Trace(prompt_id="sum", tokens=tokens, finish="length")
    assert compare_end(place(), answer(7, 2), actual).verdict is Verdict.WRONG


# --- Another text -----------------------------------------------------------------------------


@unhurried
@given(
    st.lists(st.sampled_from(PLAIN), max_size=8),
    st.lists(st.sampled_from(PLAIN), max_size=8),
    st.sampled_from(("stop", "length")),
)
def test_another_text_is_never_read_as_the_reference_s(
    one: list[int], other: list[int], finish: Finish
) -> None:
    """Where the text differs, so does a token, and not before the text does."""
    said, wanted = decode(other).removeprefix(" "), decode(one).removeprefix(" ")
    assume(said != wanted)
    expected = answer(*one, 2)

    tokens = ask(decode(other), expected, finish)

    actual = Trace(prompt_id="sum", tokens=tokens, finish=finish)
    found = (compare_tokens(place(), expected, actual), compare_end(place(), expected, actual))
    assert Verdict.WRONG in {each.verdict for each in found}
    agreed = next(
        (n for n, pair in enumerate(zip(tokens, one, strict=False)) if len({*pair}) > 1), 0
    )
    assert said.startswith(decode(one[:agreed]).removeprefix(" "))


def test_the_token_that_fits_is_the_one_that_differs() -> None:
    """The longest of the reference's best that the text goes on with, so it can be weighed."""
    best = {1: scores((8, -0.7), (14, -0.75), (9, -0.8))}
    expected = answer(7, 8, 10, 2, best=best)

    assert ask("Paris it.", expected)[:2] == (7, 9)


def test_a_near_tie_in_text_is_a_tie() -> None:
    """It is weighed like any other token."""
    expected = answer(7, 8, 2, best={1: scores((8, -0.70), (9, -0.71))})
    actual = Trace(prompt_id="sum", tokens=ask("Paris it", expected), finish="stop")
    where = replace(place(), noise=measured(0.1))

    assert compare_tokens(where, expected, actual).verdict is Verdict.TIE


def test_of_two_that_fit_equally_the_more_probable_one() -> None:
    """Two tokens may have one text."""
    words = {**WORDS, 19: b" it"}
    spelling = Spelling(
        decode=lambda ids: b"".join(words[each] for each in ids).decode(), encode=encode
    )
    expected = answer(7, 8, 2, best={1: scores((8, -0.1), (19, -3.0), (9, -4.0))})

    assert read("Paris it", "stop", expected, spelling, STOPS)[1] == 19


def test_a_character_that_is_another_in_its_second_byte() -> None:
    """The first byte agrees; the difference is at the second, where it is known what fits."""
    expected = answer(7, 11, 12, 2, best={2: scores((12, -0.1), (13, -0.2))})

    assert ask("Parisê", expected)[:3] == (7, 11, 13)


def test_without_a_token_that_fits_the_tokenizer_s() -> None:
    """None of the reference's best fits: what the tokenizer makes of the rest stands there."""
    assert ask("Paris Rome", answer(7, 8, 2)) == (7, 14, 17, 2)


def test_what_stands_for_the_unknown_is_none_of_the_best() -> None:
    """A text that no token has must not be taken for a near tie."""
    expected = answer(7, 8, 2, best={1: scores((8, -0.70), (14, -0.71))})

    tokens = ask("Paris#", expected)

    assert tokens[0] == 7
    assert tokens[1] not in {8, 14, *STOPS}


def test_text_past_the_reference_s_stop() -> None:
    """It went on where the reference stopped: that is what differs."""
    assert ask("Paris.", answer(7, 2)) == (7, 10, 2)


def test_text_that_ends_too_early() -> None:
    """A stop is read where it came, a cut as missing tokens."""
    assert ask("Paris", answer(7, 8, 10, 2)) == (7, 2)
    assert ask("Paris", answer(7, 8, 10, 2), "length") == (7,)


def test_an_early_stop_that_is_a_near_tie() -> None:
    """The stop id is the one that the reference had among its best."""
    expected = answer(7, 8, 2, best={1: scores((8, -0.7), (3, -0.71))})

    assert ask("Paris", expected) == (7, 3)


# --- Answers that were cut off ----------------------------------------------------------------


@unhurried
@given(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=8), st.data())
def test_a_beginning_is_read_as_one(tokens: list[int], data: st.DataObject) -> None:
    """Of a row that left, what it had said agrees, within a token too."""
    text = decode(tokens)
    said = text[: data.draw(st.integers(0, len(text)))]

    found = ask(said, answer(*tokens, 2), None)

    assert found == tuple(tokens)[: len(found)]
    following = decode(tokens[: len(found) + 1]).removeprefix(" ")
    assert len(found) == len(tokens) or not said.removeprefix(" ").startswith(following)


def test_no_reference_is_the_tokenizer_s_own() -> None:
    """Company has no answer to be held against."""
    assert ask("Paris is", None) == (7, 8, 2)
    assert ask("Paris is", None, None) == (7, 8)


# --- A path through alternatives --------------------------------------------------------------


def test_the_best_tokens_are_taken_where_they_have_the_text() -> None:
    """The most probable of each step comes first."""
    steps = [{7: -0.1, 17: -3.0}, {8: -0.2, 9: -2.0}, {2: -0.1, 10: -4.0}]

    assert spelled("Paris is", steps, SPELLING) == (7, 8, 2)


def test_a_token_that_is_not_the_best_is_found_by_its_text() -> None:
    """A server may say another token than its numbers make the best."""
    steps = [{17: -0.1, 7: -3.0}, {8: -0.2, 9: -2.0}, {2: -0.1, 10: -4.0}]

    assert spelled("Paris it", steps, SPELLING) == (7, 9, 2)


def test_alternatives_without_the_text() -> None:
    """Nothing is made up."""
    assert spelled("Rome is", [{7: -0.1}, {8: -0.2}], SPELLING) is None
    assert spelled("Paris", [{7: -0.1}, {8: -0.2}], SPELLING) is None


def test_alternatives_without_end() -> None:
    """A search that finds nothing ends all the same."""
    steps = [{token: -0.1 * token for token in (14, 4, 2, 3)} for _ in range(40)]

    assert spelled("#", steps, SPELLING) is None


# --- A tokenizer ------------------------------------------------------------------------------


class Tokenizer:
    """What mlx-lm's wrapper has, as far as it matters here."""

    all_special_ids = (2, 3)

    def decode(self, ids: list[int]) -> str:
        """Spell."""
        return decode(ids)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Read, with a first token of its own unless it is told not to."""
        return [4, *encode(text)] if add_special_tokens else encode(text)


def test_a_spelling_of_a_tokenizer() -> None:
    """Nothing is added when text is read, and special ids may be left out."""
    spelling = spelling_of(Tokenizer())

    assert spelling.encode("Paris") == [7]
    assert spelling.hidden == {2, 3}
    assert spelling.text((7, 2, 11), hide=True) == "Paris"
    assert spelling.text((7, 2), hide=False) == "Paris<end>"
