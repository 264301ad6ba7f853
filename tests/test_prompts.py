"""Prompts: every form that is taken, and a sentence for every one that is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck import prompts
from mlxcheck.errors import PromptError
from mlxcheck.prompts import Question
from mlxcheck.records import ModelRef, Prompt
from tests.support.drawing import unhurried

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Words:
    """A tokenizer of one id a character; its template adds 1 before and 9 after a turn."""

    has_chat_template = True

    def __init__(self, *, template: bool = True) -> None:
        """Have a template, or not."""
        self.has_chat_template = template
        self.asked: list[dict[str, Any]] = []

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, turns: list[dict[str, str]], **options: Any) -> list[int]:
        self.asked.append(options)
        if turns[0]["role"] not in {"system", "user"}:
            msg = "Conversation roles must alternate"
            raise ValueError(msg)
        return [token for turn in turns for token in (1, *self.encode(turn["content"]), 9)]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[object], Path]:
    """Return a function that writes a prompt file."""

    def write(content: object) -> Path:
        path = tmp_path / "prompts.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return write


def refused(items: object) -> str:
    """Return what is said of prompts that are not taken."""
    with pytest.raises(PromptError) as caught:
        prompts.as_questions(items)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value), "an error is one paragraph"
    return str(caught.value)


# --- The packaged set -----------------------------------------------------------------------


def test_none_is_the_packaged_set() -> None:
    """Without prompts the packaged ones are asked, each with a name of its own."""
    found = prompts.as_questions(None)

    assert found == prompts.packaged()
    assert len({question.id for question in found}) == len(found) > 20


def test_packaged_lengths() -> None:
    """The set cuts prompts at the lengths where kernels are known to change."""
    found = prompts.packaged()

    lengths = {question.length for question in found if question.length is not None}
    assert lengths >= {1, 2, 8, 9, 31, 32, 33}
    names = {question.id for question in found}
    assert {question.of for question in found if question.length is not None} <= names


# --- Forms ----------------------------------------------------------------------------------


def test_every_form_is_taken() -> None:
    """Strings, ids, messages, prompts and questions may be mixed."""
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    own = Question(id="own", text="raw")

    found = prompts.as_questions(
        ["What is 2+2?", [5, 6], (7,), turns, Prompt(id="mine", tokens=(8, 9)), own]
    )

    assert found == (
        Question(id="p0-what-is-2-2", messages=({"role": "user", "content": "What is 2+2?"},)),
        Question(id="p1", tokens=(5, 6)),
        Question(id="p2", tokens=(7,)),
        Question(id="p3", messages=tuple(turns)),
        Question(id="mine", tokens=(8, 9)),
        own,
    )


@unhurried
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_names_of_strings_are_fit_for_a_command_line(texts: list[str]) -> None:
    """Any text gets a short printable name without spaces, and each its own."""
    names = [question.id for question in prompts.as_questions(texts)]

    assert len(set(names)) == len(texts)
    for name in names:
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set(" '\"/\\[]:,")
        assert len(name) <= 40


def test_an_iterator_of_prompts_is_taken() -> None:
    """Prompts may come from a generator."""
    assert [q.id for q in prompts.as_questions(iter(["a", "b"]))] == ["p0-a", "p1-b"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("hello", "prompts='hello': expected a list of prompts."),
        (b"hello", "prompts=b'hello': expected a list of prompts."),
        ({"role": "user"}, "prompts={'role': 'user'}: expected a list of prompts."),
        (5, "prompts=5: expected a list of prompts."),
        ([], "prompts: no prompt at all."),
        ([""], "prompts[0] (p0) is empty: it has no token to start from."),
        (["a", []], "prompts[1] (p1) is empty: it has no token to start from."),
        ([[1, 2.0]], "prompts[0] (p0): expected a token id at 1 but got 2.0."),
        ([[True]], "prompts[0] (p0): expected a token id at 0 but got True."),
        ([["a"]], "prompts[0] (p0): expected a token id at 0 but got 'a'."),
        ([7], "prompts[0]: expected a string, a list of token ids, a list of messages"),
        ([None], "but got None (NoneType)."),
        ([b"abc"], "but got b'abc' (bytes)."),
        (
            [Prompt(id="a", tokens=(1,)), Prompt(id="a", tokens=(2,))],
            "prompts: the prompt id 'a' is used twice.",
        ),
    ],
)
def test_what_is_no_prompt(items: object, expected: str) -> None:
    """Each thing that is no prompt is shown, with its place."""
    assert expected in refused(items)


# --- Files ----------------------------------------------------------------------------------


def test_a_file_of_every_kind(file: Callable[[object], Path]) -> None:
    """A prompt file may hold one of five contents an entry."""
    turns = [{"role": "user", "content": "Hi"}]

    found = prompts.read_file(
        file(
            [
                {"id": "a", "user": "Hello"},
                {"id": "b", "messages": turns},
                {"id": "c", "text": "raw"},
                {"id": "d", "tokens": [4, 5]},
                {"id": "e", "length": 2, "of": "a"},
            ]
        )
    )

    assert found == (
        Question(id="a", messages=({"role": "user", "content": "Hello"},)),
        Question(id="b", messages=tuple(turns)),
        Question(id="c", text="raw"),
        Question(id="d", tokens=(4, 5)),
        Question(id="e", length=2, of="a"),
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"id": "a"}, "expected a JSON list of prompts but got dict."),
        ([], "no prompt at all."),
        (["a"], "entry 0: expected an object with an 'id' but got 'a'."),
        ([{"user": "Hi"}], "entry 0: expected an object with an 'id' but got {'user': 'Hi'}."),
        ([{"id": 3, "user": "Hi"}], "entry 0: expected an object with an 'id'"),
        ([{"id": "a"}], "entry 0 (a): expected one of user, messages, text, tokens, length"),
        ([{"id": "a", "user": "x", "text": "y"}], "but got ['user', 'text']."),
        ([{"id": "a", "user": ""}], "entry 0 (a) is empty"),
        ([{"id": "a", "tokens": []}], "entry 0 (a) is empty"),
        ([{"id": "a", "tokens": [1.5]}], "entry 0 (a): expected a token id at 0 but got 1.5."),
        ([{"id": "a", "tokens": 5}], "entry 0: expected a string, a list of token ids"),
        ([{"id": "a", "length": "two", "of": "b"}], "entry 0 (a): length 'two'; expected a"),
        ([{"id": "a", "length": None}], "entry 0 (a): length None; expected a whole number"),
        ([{"id": "a", "length": 0, "of": "b"}], "entry 0 (a): length 0; expected a whole"),
        ([{"id": "a", "length": -1, "of": "b"}], "length -1; expected a whole number above 0."),
        ([{"id": "a", "length": True, "of": "b"}], "length True; expected a whole number"),
        ([{"id": "a", "user": "x"}, {"id": "a", "user": "y"}], "prompt id 'a' is used twice"),
    ],
)
def test_what_is_no_prompt_file(
    file: Callable[[object], Path], content: object, expected: str
) -> None:
    """Each bad entry is named by its place in the file, the file first."""
    path = file(content)

    with pytest.raises(PromptError) as caught:
        prompts.read_file(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """No file, a folder, and what is not JSON or not text, are told apart."""
    broken, binary = tmp_path / "broken.json", tmp_path / "binary.json"
    broken.write_text("[{", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(PromptError, match="cannot be read: No such file or directory"):
        prompts.read_file(tmp_path / "none.json")
    with pytest.raises(PromptError, match="cannot be read: Is a directory"):
        prompts.read_file(tmp_path)
    with pytest.raises(PromptError, match="the prompt file is not JSON: Expecting"):
        prompts.read_file(broken)
    with pytest.raises(PromptError, match="the prompt file is not JSON: 'utf-8' codec"):
        prompts.read_file(binary)


# --- Encoding -------------------------------------------------------------------------------


def test_encoding_keeps_order_and_names() -> None:
    """Each form becomes ids in its own way; cuts may come before what they cut."""
    found = prompts.encode(
        [
            Question(id="cut", length=2, of="turn"),
            Question(id="turn", messages=({"role": "user", "content": "ab"},)),
            Question(id="raw", text="ab"),
            Question(id="ids", tokens=(4, 5)),
        ],
        Words(),
    )

    assert found == (
        Prompt(id="cut", tokens=(1, 97)),
        Prompt(id="turn", tokens=(1, 97, 98, 9), text="ab", messages=(("user", "ab"),)),
        Prompt(id="raw", tokens=(97, 98), text="ab"),
        Prompt(id="ids", tokens=(4, 5)),
    )


def test_the_template_is_asked_the_same_way_every_time() -> None:
    """The generation prompt is added and thinking is off, outright."""
    words = Words()

    prompts.encode(prompts.as_questions(["a"]), words)

    assert words.asked == [{"add_generation_prompt": True, "enable_thinking": False}]


def test_a_base_model_gets_the_bare_words() -> None:
    """Where there is no template, the last turn's words are the prompt."""
    (found,) = prompts.encode(prompts.as_questions(["ab"]), Words(template=False))

    assert found.tokens == (97, 98)
    assert found.messages is None


def test_turns_are_kept_where_they_went_through_the_template() -> None:
    """All turns stay with their prompt, in order, so that an engine can be asked of them."""
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]

    (found,) = prompts.encode(prompts.as_questions([turns]), Words())

    assert found.messages == (("system", "Be brief."), ("user", "Hi"))
    assert found.text == "Hi"


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "user", "content": "Hi", "tool_calls": []},
    ],
)
def test_turns_that_are_more_than_words_are_not_kept(turn: Any) -> None:
    """A turn that two words cannot say is not kept, rather than half of it."""
    (found,) = prompts.encode([Question(id="a", messages=(turn,))], Words())

    assert (found.messages, found.tokens) == (None, (1, 72, 105, 9))


def test_content_that_is_no_text_is_not_kept() -> None:
    """Parts of a turn, as of images, go to the template and nowhere else."""
    turn: Any = {"role": "user", "content": ["a", "b"]}

    class Parts(Words):
        def encode(self, text: Any) -> list[int]:
            return super().encode("".join(text))

    (found,) = prompts.encode([Question(id="a", messages=(turn,))], Parts())

    assert (found.messages, found.tokens) == (None, (1, 97, 98, 9))


def test_default_ids_say_nothing_of_thinking() -> None:
    """mlx-lm's own defaults are asked for: only the generation prompt is added."""
    words = Words()

    found = prompts.default_ids([{"role": "user", "content": "ab"}], words)

    assert found == (1, 97, 98, 9)
    assert words.asked == [{"add_generation_prompt": True}]


def test_default_ids_of_turns_that_the_template_refuses() -> None:
    """What the template raises is told in one sentence."""
    with pytest.raises(PromptError) as caught:
        prompts.default_ids([{"role": "tool", "content": "x"}], Words())

    assert str(caught.value).startswith("the chat template refuses the turns: Conversation ro")


def test_a_template_that_refuses() -> None:
    """What the checkpoint's template raises is told with the prompt's name."""
    turns = [{"role": "tool", "content": "x"}]

    with pytest.raises(
        PromptError, match="prompt 'p0': the chat template refuses it: Conversation roles"
    ):
        prompts.encode(prompts.as_questions([turns]), Words())


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("b", "prompt 'a': wants 3 tokens of 'b', which has 2 tokens."),
        ("zz", "prompt 'a': wants 3 tokens of 'zz', which is not among the prompts."),
    ],
)
def test_a_cut_that_is_too_long(of: str, expected: str) -> None:
    """A cut of more than there is, or of nothing, is refused."""
    questions = [Question(id="a", length=3, of=of), Question(id="b", tokens=(1, 2))]

    with pytest.raises(PromptError) as caught:
        prompts.encode(questions, Words())

    assert str(caught.value) == expected


# --- Fit ------------------------------------------------------------------------------------

MODEL = ModelRef(source="a/tiny", path="/a/tiny", vocab_size=50, max_positions=10)


OUTSIDE = "is outside the vocabulary of tiny (0 to 49)."
LONG = "7 tokens and 4 to decode are more than the 10 positions of tiny. Shorten it, or lower"


@pytest.mark.parametrize(
    ("tokens", "most", "expected"),
    [
        ((), 1, "prompt 'a' is empty: it has no token to start from. Drop it."),
        ((3, 50), 1, f"prompt 'a': token id 50 at position 1 {OUTSIDE}"),
        ((-1,), 1, f"prompt 'a': token id -1 at position 0 {OUTSIDE}"),
        ((1,) * 7, 4, f"prompt 'a': {LONG} max_tokens."),
    ],
)
def test_what_a_model_cannot_take(tokens: tuple[int, ...], most: int, expected: str) -> None:
    """Empty, outside the vocabulary and too long are refused before anything is loaded."""
    with pytest.raises(PromptError) as caught:
        prompts.require_fit([Prompt(id="a", tokens=tokens)], MODEL, most)

    assert str(caught.value) == expected


def test_what_just_fits() -> None:
    """The last position and the ends of the vocabulary are taken; no limit is no limit."""
    endless = ModelRef(source="a/tiny", path="/a/tiny", vocab_size=50)

    prompts.require_fit([Prompt(id="a", tokens=(0, 49) * 3)], MODEL, 4)
    prompts.require_fit([Prompt(id="a", tokens=(0, 49) * 300)], endless, 4)
