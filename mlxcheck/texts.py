"""Pure reading of text as tokens, for engines that show no token ids.

What such an engine says is held against the reference token by token all the same: its text
is read onto the reference's answer. Where the text is the reference's, so are the tokens. Two
sequences of tokens with one text cannot be told apart in this way; that is all that is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlxcheck.records import Finish, Scores, Trace

__all__ = ["Spelling", "read", "spelled", "spelling_of"]

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes for bytes that do not make a character yet."""

_MOST_TRIES = 5_000  # decodings while a path is looked for; an honest one takes one a token


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A tokenizer, as far as text and ids are concerned.

    Attributes:
        decode: The text of ids, special ones included.
        encode: The ids of a text, nothing added.
        hidden: Ids that an engine may leave out of its text: the special ones.
    """

    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], Sequence[int]]
    hidden: frozenset[int] = frozenset()

    def text(self, ids: Sequence[int], *, hide: bool) -> str:
        """Return what *ids* say for certain: without characters that are not finished."""
        kept = [token for token in ids if token not in self.hidden] if hide else list(ids)
        return self.settled(self.decode(kept)) if kept else ""

    def settled(self, text: str) -> str:
        """Return a text without the unfinished at its end, and without a space at its front.

        Detokenizers differ in that space: mlx-lm's streaming ones leave it out.
        """
        return text.rstrip(_UNFINISHED).removeprefix(" ")


def spelling_of(tokenizer: Any) -> Spelling:
    """Return the spelling of mlx-lm's ``TokenizerWrapper``, or of what has its methods."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids)))

    def encode(text: str) -> Sequence[int]:
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]

    hidden = frozenset(int(token) for token in getattr(tokenizer, "all_special_ids", ()))
    return Spelling(decode=decode, encode=encode, hidden=hidden)


def read(
    said: str,
    finish: Finish | None,
    expected: Trace | None,
    spelling: Spelling,
    stop_ids: Sequence[int],
) -> tuple[int, ...]:
    """Read a text onto the reference's answer.

    Args:
        said: All that the engine said. A stop id has no text.
        finish: Why it ended; None where it was cut off.
        expected: The reference's answer; None where there is none.
        spelling: The tokenizer's.
        stop_ids: Those that end an answer.

    Returns:
        The reference's tokens as far as the text is theirs. Where it goes another way, the
        token among the reference's best of that step that fits the text, the longest first,
        then the most probable; else what the tokenizer makes of the text from there on, or
        where that would look like one of these, an id that is none of them. Last, where it
        says that it stopped, a stop id.
    """
    if expected is None:
        tokens = tuple(spelling.encode(said))
        return (*tokens, stop_ids[0]) if finish == "stop" and stop_ids else tokens
    # Engines leave special tokens out of their text, or they do not: what agrees for longer.
    ways = [
        _Reading(said, finish, expected, spelling, tuple(stop_ids), hide=hide).tokens()
        for hide in (True, False)
    ]
    return max(ways, key=lambda tokens: _agreed(tokens, expected.tokens))


def spelled(
    said: str, steps: Sequence[Mapping[int, float]], spelling: Spelling
) -> tuple[int, ...] | None:
    """Choose one id a step so that together they have a text, the most probable ones first.

    Args:
        said: The text.
        steps: At each step the ids that it may be, with their log-probabilities.
        spelling: The tokenizer's.

    Returns:
        The ids; None where none have that text.
    """
    wanted = spelling.settled(said)
    ranked = [sorted(step, key=lambda token: (-step[token], token)) for step in steps]
    for hide in (True, False):
        found = _path(wanted, ranked, spelling, hide=hide)
        if found is not None:
            return found
    return None


def _path(
    wanted: str, ranked: Sequence[Sequence[int]], spelling: Spelling, *, hide: bool
) -> tuple[int, ...] | None:
    """Search depth first; the next choice of the deepest step is tried first."""
    open_paths: list[tuple[int, ...]] = [()]
    for _ in range(_MOST_TRIES):
        if not open_paths:
            return None
        path = open_paths.pop()
        text = spelling.text(path, hide=hide)
        if not wanted.startswith(text):
            continue
        if len(path) < len(ranked):
            open_paths += [(*path, token) for token in reversed(ranked[len(path)])]
        elif text == wanted:
            return path
    return None


class _Reading:
    """One way of reading: with special tokens left out, or spelled."""

    def __init__(  # noqa: PLR0913 - those of `read`
        self,
        said: str,
        finish: Finish | None,
        expected: Trace,
        spelling: Spelling,
        stop_ids: tuple[int, ...],
        *,
        hide: bool,
    ) -> None:
        self._said = spelling.settled(said)
        self._finish = finish
        self._expected = expected
        self._spelling = spelling
        self._stop_ids = stop_ids
        self._hide = hide
        stops = expected.finish == "stop"
        self._body = expected.tokens[:-1] if stops else expected.tokens

    def tokens(self) -> tuple[int, ...]:
        """Return what was said, as tokens."""
        body, whole = self._body, self._expected.tokens
        texts = [self._text(body[:step]) for step in range(len(body) + 1)]
        if self._said in {texts[-1], self._text(whole)}:
            return whole if self._finish == "stop" else body
        longest = max(step for step, text in enumerate(texts) if self._said.startswith(text))
        # Ids without text of their own: the ways may part at any of them.
        at = [step for step, text in enumerate(texts) if text == texts[longest]]
        if self._said == texts[longest]:
            return self._early(at)
        if self._finish is None and texts[longest:][1:] and self._half(texts[longest + 1]):
            return body[:longest]
        return self._parted(at)

    def _text(self, ids: Sequence[int]) -> str:
        return self._spelling.text(ids, hide=self._hide)

    def _half(self, following: str) -> bool:
        """Tell whether the text was cut off within the reference's next token."""
        return following.startswith(self._said)

    def _scores(self, step: int) -> Scores | None:
        scores = self._expected.scores
        return scores[step] if step < len(scores) else None

    def _early(self, at: Sequence[int]) -> tuple[int, ...]:
        """Read a text that ends where the reference's goes on."""
        if self._finish != "stop" or not self._stop_ids:
            return self._body[: at[-1]]
        told = [
            (_regret(scores, token), step, token)
            for step in at
            for token in self._stop_ids
            if (scores := self._scores(step)) is not None and token in scores.ids
        ]
        _, step, token = min(told, default=(0.0, at[-1], self._stop_ids[0]))
        return (*self._body[:step], token)

    def _parted(self, at: Sequence[int]) -> tuple[int, ...]:
        """Read a text that goes another way at one of these steps."""
        start = self._text(self._body[: at[-1]])
        fits = [
            (len(text), scores.logprob(token), step, token)
            for step in at
            if (scores := self._scores(step)) is not None
            for token in scores.ids
            if len(text := self._text((*self._body[:step], token))) > len(start)
            and self._said.startswith(text)
        ]
        if fits:
            *_, step, token = max(fits, key=lambda fit: (fit[0], fit[1] or 0.0, -fit[2]))
            return self._ended((*self._body[:step], token))
        step = at[0]
        rest = tuple(self._spelling.encode(self._said[len(start) :]))
        way = (*self._body[:step], *rest)
        same = _agreed(way, self._body)
        if self._text(way) == self._said and same < len(way):
            return self._ended(way)
        return (*self._body[:step], self._unlike(step, rest))

    def _ended(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Add the stop id, where all has been read and it says that it stopped."""
        stopped = self._finish == "stop" and self._stop_ids
        if stopped and self._text(tokens) == self._said:
            return (*tokens, self._stop_ids[0])
        return tokens

    def _unlike(self, step: int, rest: Sequence[int]) -> int:
        """Return an id that cannot be taken for one of the reference's best."""
        scores = self._scores(step)
        taken = {*(scores.ids if scores else ()), *self._expected.tokens[step : step + 1]}
        free = [token for token in rest if token not in taken and token not in self._stop_ids]
        others = range(len(taken) + len(self._stop_ids) + 1)
        return next(
            iter(free),
            next(each for each in others if each not in taken | {*self._stop_ids}),
        )


def _regret(scores: Scores, token: int) -> float:
    return scores.logprobs[0] - (scores.logprob(token) or 0.0)


def _agreed(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
