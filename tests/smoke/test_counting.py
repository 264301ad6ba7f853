"""Token counts are held against the model's own tokenizer, where one is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxcheck.smoke.asking import Asker, CheckFailed, Reply
from mlxcheck.smoke.counting import Counter, counter_for
from mlxcheck.smoke.limits import max_tokens, usage
from mlxcheck.smoke.questions import LONG, TWO, Question

MODEL = Path(__file__).parents[2] / "fixtures" / "models" / "qwen3_moe-float32"
SHORT, COUNTED = "2+2 equals 4.", "Numbers: 1 2 3 4 5 6"


@pytest.fixture(scope="module")
def counter() -> Counter:
    """Return the counter of a fixture."""
    return counter_for(str(MODEL))


class Said(Asker):
    """Answers from memory, with counts that are right but for what is added to them."""

    def __init__(self, counter: Counter, *, prompt: int = 0, completion: int = 0) -> None:
        self.counter = counter
        self.max_tokens = 64
        self._off = prompt, completion

    def ask(self, question: Question, **fields: Any) -> Reply:
        assert self.counter is not None
        cut = "max_tokens" in fields
        text = COUNTED if cut else {TWO: SHORT, LONG: f"{COUNTED} 7 8 9."}[question]
        completion = 8 if cut else self.counter.answer(text) + self._off[1]
        prompt = self.counter.prompt(question) + self._off[0]
        counts = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        finish = "length" if cut else "stop"
        return Reply(asked=repr(question.text), text=text, finish=finish, usage=counts)

    def alone(self, question: Question) -> Reply:
        return self.ask(question)


def test_the_counts_are_the_tokenizers(counter: Counter) -> None:
    """Template and answer are counted in ids."""
    assert (counter.prompt(TWO), counter.answer(SHORT)) == (14, 6)


@pytest.mark.parametrize("ended", [0, 1])
def test_right_counts_pass(counter: Counter, ended: int) -> None:
    """With or without the token that ends the answer."""
    assert usage(Said(counter, completion=ended)).endswith("as the tokenizer counts")


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        ({"prompt": 1}, "expected prompt_tokens 14, as the chat template and the tokenizer"),
        ({"completion": 2}, "expected completion_tokens 6, or 7 with the one that ends it"),
        ({"completion": -1}, "expected completion_tokens 6, or 7 with the one that ends it"),
    ],
)
def test_counts_that_only_a_tokenizer_knows_to_be_wrong(
    counter: Counter, off: dict[str, int], expected: str
) -> None:
    """They agree among themselves, and are off by one."""
    with pytest.raises(CheckFailed) as raised:
        usage(Said(counter, **off))
    assert expected in str(raised.value)


def test_an_answer_of_more_tokens_than_allowed(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own count says 8; the tokenizer counts more."""
    monkeypatch.setitem(globals(), "COUNTED", f"{COUNTED} 7 8")

    with pytest.raises(CheckFailed) as raised:
        max_tokens(Said(counter))
    assert "expected at most 8 tokens; this is" in str(raised.value)
