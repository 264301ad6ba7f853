"""What is asked: the packaged set, files of prompts, and the way from words to token ids.

Ids go everywhere. Text is turned into ids once, here, with the reference's own tokenizer,
so that no engine's template or BOS habit can differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxcheck.errors import PromptError
from mlxcheck.records import RESERVED, Prompt

if TYPE_CHECKING:
    from mlxcheck.records import ModelRef

__all__ = [
    "Question",
    "as_questions",
    "default_ids",
    "encode",
    "packaged",
    "read_file",
    "require_fit",
]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_KINDS = ("user", "messages", "text", "tokens", "length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt before its ids are known: it has a name without a tokenizer.

    Exactly one of the contents is set.

    Attributes:
        id: Unique in a run.
        messages: Chat turns ``{"role": ..., "content": ...}``, sent through the template.
        text: Raw text, encoded as it stands.
        tokens: Ids as they are.
        length: The first so many ids of the question *of*.
        of: The question that *length* cuts.
    """

    id: str
    messages: tuple[Mapping[str, str], ...] | None = None
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    length: int | None = None
    of: str | None = None


def packaged() -> tuple[Question, ...]:
    """Return the default set: sums, capitals, filler, patterns, and a grid of lengths.

    Lengths 1, 2, 8, 9, 31, 32 and 33 stand where kernels are known to change: single-row
    paths, the eight-row step of attention kernels, and tiles of 32.
    """
    raw = resources.files("mlxcheck").joinpath("data/prompts.json").read_text(encoding="utf-8")
    return _from_json(json.loads(raw), "the packaged prompts")


def read_file(path: str | Path) -> tuple[Question, ...]:
    """Read questions from a JSON file.

    The file holds a list of objects. Each has an ``id`` and one of ``user`` (one chat
    turn), ``messages``, ``text`` (raw), ``tokens``, or ``length`` with ``of``.

    Raises:
        PromptError: The file cannot be read, or an entry is not one of these.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: the prompt file cannot be read: {error.strerror}."
        raise PromptError(msg) from None
    except ValueError as error:
        msg = f"{path}: the prompt file is not JSON: {error}."
        raise PromptError(msg) from None
    return _from_json(raw, str(path))


def as_questions(items: Iterable[object] | None) -> tuple[Question, ...]:
    """Take prompts in any form that `mlxcheck.check` accepts.

    Args:
        items: Strings (one chat turn each), lists of ids, lists of messages, `Prompt` or
            `Question` objects; None for the packaged set.

    Raises:
        PromptError: Something else, an empty set, or an id that is taken twice.
    """
    if items is None:
        return packaged()
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        msg = f"prompts={items!r}: expected a list of prompts. Put it in a list: [...]."
        raise PromptError(msg)
    return _unique([_question(item, index) for index, item in enumerate(items)], "prompts")


def encode(questions: Sequence[Question], tokenizer: Any) -> tuple[Prompt, ...]:
    """Turn questions into prompts with the reference's tokenizer.

    Args:
        questions: Each `Question.of` must name another of them.
        tokenizer: mlx-lm's ``TokenizerWrapper``.

    Raises:
        PromptError: An empty prompt, or no chat template where one is needed.
    """
    done: dict[str, Prompt] = {}
    for question in sorted(questions, key=lambda item: item.length is not None):
        done[question.id] = _encode_one(question, tokenizer, done)
    return tuple(done[question.id] for question in questions)


def default_ids(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that mlx-lm makes of chat turns by default: what its server does.

    Unlike `encode`, this says nothing of thinking: mlx-lm then turns it on where the
    tokenizer knows think tokens.

    Args:
        messages: Chat turns ``{"role": ..., "content": ...}``.
        tokenizer: mlx-lm's ``TokenizerWrapper``, with a chat template.

    Raises:
        PromptError: The template refuses the turns.
    """
    try:
        ids = _through_template(messages, tokenizer)
    except Exception as error:  # noqa: BLE001 - templates are code from the checkpoint
        msg = f"the chat template refuses the turns: {error}."
        raise PromptError(msg) from None
    return tuple(int(token) for token in ids)


def require_fit(prompts: Sequence[Prompt], model: ModelRef, max_tokens: int) -> None:
    """Refuse prompts that the model cannot take.

    Raises:
        PromptError: Empty, an id outside the vocabulary, or longer than the positions.
    """
    for prompt in prompts:
        if not prompt.tokens:
            msg = f"prompt {prompt.id!r} is empty: it has no token to start from. Drop it."
            raise PromptError(msg)
        for place, token in enumerate(prompt.tokens):
            if not 0 <= token < model.vocab_size:
                msg = (
                    f"prompt {prompt.id!r}: token id {token} at position {place} is outside "
                    f"the vocabulary of {model.name} (0 to {model.vocab_size - 1})."
                )
                raise PromptError(msg)
        limit = model.max_positions
        if limit is not None and len(prompt.tokens) + max_tokens > limit:
            msg = (
                f"prompt {prompt.id!r}: {len(prompt.tokens)} tokens and {max_tokens} to decode "
                f"are more than the {limit} positions of {model.name}. Shorten it, or lower "
                "max_tokens."
            )
            raise PromptError(msg)


def _encode_one(question: Question, tokenizer: Any, done: Mapping[str, Prompt]) -> Prompt:
    if question.length is not None:
        return _cut(question, done)
    if question.tokens is not None:
        return Prompt(id=question.id, tokens=question.tokens)
    if question.messages is not None:
        text = question.messages[-1].get("content", "")
        ids = _apply_template(question, tokenizer)
    else:
        text = question.text or ""
        ids = tokenizer.encode(text)
    return Prompt(
        id=question.id,
        tokens=tuple(int(token) for token in ids),
        text=text,
        messages=_turns(question, tokenizer),
    )


def _turns(question: Question, tokenizer: Any) -> tuple[tuple[str, str], ...] | None:
    """Return the turns that went through the template, if they are no more than words."""
    messages = question.messages
    if messages is None or not tokenizer.has_chat_template:
        return None
    if any(set(turn) != {"role", "content"} for turn in messages):
        return None
    # Checked, since prompt files and callers may hold anything: images come as lists.
    pairs = [(turn["role"], turn["content"]) for turn in messages]
    plain = all(isinstance(word, str) for pair in pairs for word in pair)
    return tuple(pairs) if plain else None


def _cut(question: Question, done: Mapping[str, Prompt]) -> Prompt:
    whole = done.get(question.of or "")
    length = question.length or 0
    if whole is None or len(whole.tokens) < length:
        have = (
            "is not among the prompts" if whole is None else f"has {len(whole.tokens)} tokens"
        )
        msg = f"prompt {question.id!r}: wants {length} tokens of {question.of!r}, which {have}."
        raise PromptError(msg)
    return Prompt(id=question.id, tokens=whole.tokens[:length])


def _apply_template(question: Question, tokenizer: Any) -> Sequence[int]:
    if not tokenizer.has_chat_template:
        # A base model has no template: the bare words are then the honest question.
        ids: Sequence[int] = tokenizer.encode(
            (question.messages or ({},))[-1].get("content", "")
        )
        return ids
    try:
        # Passed outright, since engines differ in their default for it.
        ids = _through_template(question.messages or (), tokenizer, enable_thinking=False)
    except Exception as error:  # noqa: BLE001 - templates are code from the checkpoint
        msg = f"prompt {question.id!r}: the chat template refuses it: {error}."
        raise PromptError(msg) from None
    return ids


def _through_template(
    messages: Sequence[Mapping[str, str]], tokenizer: Any, **options: bool
) -> Sequence[int]:
    ids: Sequence[int] = tokenizer.apply_chat_template(
        [dict(turn) for turn in messages], add_generation_prompt=True, **options
    )
    return ids


def _from_json(raw: object, where: str) -> tuple[Question, ...]:
    if not isinstance(raw, list):
        msg = f"{where}: expected a JSON list of prompts but got {type(raw).__name__}."
        raise PromptError(msg)
    return _unique([_from_entry(entry, n, where) for n, entry in enumerate(raw)], where)


def _from_entry(entry: object, index: int, where: str) -> Question:
    at = f"{where}: entry {index}"
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        msg = f"{at}: expected an object with an 'id' but got {entry!r:.80}."
        raise PromptError(msg)
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        msg = f"{at} ({entry['id']}): expected one of {', '.join(_KINDS)} but got {kinds}."
        raise PromptError(msg)
    if kinds == ["length"]:
        length = entry["length"]
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            msg = f"{at} ({entry['id']}): length {length!r}; expected a whole number above 0."
            raise PromptError(msg)
        return Question(id=entry["id"], length=length, of=str(entry.get("of")))
    content = entry[kinds[0]]
    if kinds == ["text"]:
        return Question(id=entry["id"], text=str(content))
    return _question_of(content, entry["id"], at)


def _question(item: object, index: int) -> Question:
    if isinstance(item, Question):
        return item
    if isinstance(item, Prompt):
        return Question(id=item.id, tokens=item.tokens)
    slug = _UNSAFE.sub("-", item.lower()).strip("-")[:32] if isinstance(item, str) else ""
    return _question_of(item, f"p{index}-{slug}" if slug else f"p{index}", f"prompts[{index}]")


def _question_of(content: object, name: str, at: str) -> Question:
    """Read a chat turn, a list of messages or a list of ids."""
    if isinstance(content, str):
        if not content:
            msg = f"{at} ({name}) is empty: it has no token to start from. Drop it."
            raise PromptError(msg)
        return Question(id=name, messages=({"role": "user", "content": content},))
    if isinstance(content, Sequence) and not content:
        msg = f"{at} ({name}) is empty: it has no token to start from. Drop it."
        raise PromptError(msg)
    if isinstance(content, Sequence) and all(isinstance(turn, Mapping) for turn in content):
        return Question(id=name, messages=tuple(content))
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        for place, token in enumerate(content):
            if not isinstance(token, int) or isinstance(token, bool):
                msg = f"{at} ({name}): expected a token id at {place} but got {token!r}."
                raise PromptError(msg)
        return Question(id=name, tokens=tuple(content))
    msg = (
        f"{at}: expected a string, a list of token ids, a list of messages or a Prompt, but "
        f"got {content!r:.80} ({type(content).__name__})."
    )
    raise PromptError(msg)


def _unique(questions: Sequence[Question], where: str) -> tuple[Question, ...]:
    if not questions:
        msg = f"{where}: no prompt at all. Nothing compared would be no verdict."
        raise PromptError(msg)
    seen: set[str] = set()
    for question in questions:
        if not question.id or not question.id.isprintable() or " " in question.id:
            msg = (
                f"{where}: the prompt id {question.id!r} cannot stand in a test id or on a "
                "command line. Use printable characters and no spaces."
            )
            raise PromptError(msg)
        if question.id in RESERVED:
            msg = f"{where}: the prompt id {question.id!r} is one of mlxcheck's own. Rename it."
            raise PromptError(msg)
        if question.id in seen:
            msg = f"{where}: the prompt id {question.id!r} is used twice. Rename one."
            raise PromptError(msg)
        seen.add(question.id)
    return tuple(questions)
