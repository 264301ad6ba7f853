"""Token counts as the model's own tokenizer has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlxcheck import checkpoint, prompts, reference

if TYPE_CHECKING:
    from mlxcheck.smoke.questions import Question

__all__ = ["Counter", "counter_for"]


class Counter:
    """Counts the tokens of prompts and answers.

    Args:
        tokenizer: mlx-lm's ``TokenizerWrapper``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def prompt(self, question: Question) -> int:
        """Return how many ids the chat template makes of one user turn."""
        turns = [{"role": "user", "content": question.text}]
        return len(prompts.default_ids(turns, self._tokenizer))

    def answer(self, text: str) -> int:
        """Return how many ids *text* is, without the one that ends it."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))


def counter_for(model: str, *, trust_remote_code: bool = False) -> Counter:
    """Load the tokenizer of a model, and not the model.

    Raises:
        MlxCheckError: It cannot be found or loaded.
    """
    found = checkpoint.inspect(model, trust_remote_code=trust_remote_code)
    return Counter(reference.read_tokenizer(found))
