"""The ways in which servers can be asked, and how what they say is read.

Pure: bodies of requests, and readers of what comes back. Sources: SGLang's native
``/generate`` (``GenerateReqInput`` in ``managers/io_struct.py``), vLLM's and SGLang's
``return_token_ids`` of ``/v1/completions``, and mlx-lm's ``server.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from mlxcheck.errors import EngineFault
from mlxcheck.texts import spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlxcheck.backends.base import Request
    from mlxcheck.records import Finish
    from mlxcheck.texts import Spelling

__all__ = ["Generate", "IdsInLogprobs", "Piece", "Reader", "ReturnsIds", "TextAlone", "Wire"]

_TOP = 8
"""Alternatives a token: those that a near tie is among, and a streamed answer stays small."""

_TOP_WHOLE = 11  # the most that mlx-lm's server gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A token, or a piece of text, of one answer.

    Attributes:
        token: The id; None where `text` is all that is known.
        text: What it adds to the answer, where ids are not shown.
        logprobs: Natural-log probabilities by token id, as the server reports them.
    """

    token: int | None = None
    text: str | None = None
    logprobs: Mapping[int, float] | None = None


class Reader(Protocol):
    """Reads one answer, an event at a time.

    Attributes:
        finish: Why it ended, once that was said.
        stopped_at: The id at which it stopped, where that was said.
        prompt_tokens: How many the server read; None where it does not say.
        cached_tokens: How many of these it did not compute; None likewise.
    """

    finish: Finish | None
    stopped_at: int | None
    prompt_tokens: int | None
    cached_tokens: int | None

    def take(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        """Read one event, or a whole answer.

        Raises:
            EngineFault: It is no such thing, or an error.
        """


class _Answer:
    """What readers have in common."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.stopped_at: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None

    def _ended(self, reason: object) -> None:
        if reason is None:
            return
        if reason not in {"stop", "length"}:
            msg = f"the answer ended for {reason!r}, which is neither 'stop' nor 'length'"
            raise EngineFault(msg)
        self.finish = "stop" if reason == "stop" else "length"

    def _used(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """SGLang's own ``/generate``: ids in, ids out, a token an event."""

    name: str = "/generate with token ids"
    path: str = "/generate"
    streams: bool = True
    ids: bool = True
    logprobs: bool = False

    def body(self, request: Request, text: str | None) -> dict[str, Any]:
        """Return what is sent: greedy, and nothing else that changes a token."""
        del text
        body: dict[str, Any] = {
            "input_ids": list(request.tokens),
            "sampling_params": {"temperature": 0, "max_new_tokens": request.max_tokens},
            "stream": True,
        }
        if self.logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": _TOP}
        return body

    def reader(self) -> Reader:
        """Return what reads one answer."""
        return _Generated()


class _Generated(_Answer):
    """Events hold all ids so far, or with ``--incremental-streaming-output`` the new ones."""

    def __init__(self) -> None:
        super().__init__()
        self._given = 0

    def take(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        _refuse_error(payload)
        meta, ids = payload.get("meta_info"), payload.get("output_ids")
        if not isinstance(meta, dict) or not isinstance(ids, list):
            raise _malformed(payload)
        total = _count(meta.get("completion_tokens"), len(ids)) or 0
        fresh = ids[self._given :] if len(ids) == total else ids
        if self._given + len(fresh) != total:
            msg = f"{len(fresh)} new ids after {self._given}, where it counts {total} in all"
            raise EngineFault(msg)
        logprobs = _chosen(meta, len(fresh))
        for place, token in enumerate(fresh):
            yield Piece(token=token, logprobs=logprobs[place] if logprobs else None)
        self._given = total
        self.prompt_tokens = _count(meta.get("prompt_tokens"), self.prompt_tokens)
        self.cached_tokens = _count(meta.get("cached_tokens"), self.cached_tokens)
        reason = meta.get("finish_reason")
        if isinstance(reason, dict):
            if reason.get("type") == "abort":
                msg = f"the server aborted it: {reason.get('message')}"
                raise EngineFault(msg)
            self._ended(reason.get("type"))
            self.stopped_at = _count(reason.get("matched"), None)


def _chosen(meta: Mapping[str, Any], count: int) -> list[dict[int, float]]:
    """Return the log-probabilities of the last *count* tokens, alternatives included."""
    own, tops = meta.get("output_token_logprobs"), meta.get("output_top_logprobs")
    if not isinstance(own, list) or len(own) < count or not count:
        return []
    out = []
    for place in range(-count, 0):
        triples = [own[place]]
        if isinstance(tops, list) and len(tops) == len(own):
            triples += tops[place] or []
        out.append({int(token): float(logprob) for logprob, token, *_ in triples})
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnsIds:
    """``/v1/completions`` of vLLM's kind: ids as the prompt, and ids in the answer.

    Attributes:
        model: Its name there; None to leave it out.
    """

    model: str | None = None
    name: str = "/v1/completions with token ids"
    path: str = "/v1/completions"
    streams: bool = True
    ids: bool = True
    logprobs: bool = False

    def body(self, request: Request, text: str | None) -> dict[str, Any]:
        """Return what is sent."""
        del text
        body = _completion(self.model, list(request.tokens), request) | {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if self.logprobs:
            body |= {"logprobs": _TOP, "return_tokens_as_token_ids": True}
        return body

    def reader(self) -> Reader:
        """Return what reads one answer."""
        return _ReturnedIds()


class _ReturnedIds(_Answer):
    def take(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        choice = _choice(payload)
        self._used(payload.get("usage"))
        if choice is None:
            return
        ids = choice.get("token_ids") or []
        if not isinstance(ids, list):
            raise _malformed(payload)
        if isinstance(choice.get("prompt_token_ids"), list):
            self.prompt_tokens = len(choice["prompt_token_ids"])
        logprobs = _by_id(choice.get("logprobs"), len(ids))
        for place, token in enumerate(ids):
            yield Piece(token=token, logprobs=logprobs[place] if logprobs else None)
        self._ended(choice.get("finish_reason"))
        for name in ("matched_stop", "stop_reason"):
            self.stopped_at = _count(choice.get(name), self.stopped_at)


def _by_id(shown: object, count: int) -> list[dict[int, float]]:
    """Return log-probabilities whose tokens are written ``token_id:17``."""
    if not isinstance(shown, dict):
        return []
    names, own = shown.get("tokens") or [], shown.get("token_logprobs") or []
    tops = shown.get("top_logprobs") or [{}] * count
    if not len(names) == len(own) == len(tops) == count:
        return []
    named = [{name: own[place], **(tops[place] or {})} for place, name in enumerate(names)]
    try:
        return [
            {int(name.removeprefix("token_id:")): float(value) for name, value in step.items()}
            for step in named
        ]
    except (TypeError, ValueError):  # tokens as text: of which ids, nobody can say
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsInLogprobs:
    """``/v1/completions`` of mlx-lm's server: text as the prompt, ids beside log-probabilities.

    The answer comes whole: its events hold no ids. With alternatives the ``id`` of an entry is
    any of these, and not the token that was said (mlx-lm 0.32.2), so that the tokens are those
    of the alternatives that have the answer's text.

    Attributes:
        model: Its name there; None to leave it out.
        spelling: The tokenizer's.
    """

    spelling: Spelling
    model: str | None = None
    name: str = "/v1/completions with ids beside log-probabilities"
    path: str = "/v1/completions"
    streams: bool = False
    ids: bool = True
    logprobs: bool = True

    def body(self, request: Request, text: str | None) -> dict[str, Any]:
        """Return what is sent."""
        options = {"logprobs": True, "top_logprobs": _TOP_WHOLE}
        return _completion(self.model, text, request) | options

    def reader(self) -> Reader:
        """Return what reads one answer."""
        return _WithLogprobs(self.spelling)


class _WithLogprobs(_Answer):
    def __init__(self, spelling: Spelling) -> None:
        super().__init__()
        self._spelling = spelling

    def take(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        choice = _choice(payload) or {}
        self._used(payload.get("usage"))
        shown, text = choice.get("logprobs"), choice.get("text")
        entries = shown.get("content") if isinstance(shown, dict) else None
        if not isinstance(entries, list) or not isinstance(text, str):
            raise _malformed(payload)
        try:
            steps = [_alternatives(entry) for entry in entries]
        except (KeyError, TypeError, ValueError):
            raise _malformed(payload) from None
        tokens = spelled(text, steps, self._spelling)
        if tokens is None:
            msg = f"no ids of its log-probabilities have the text of its answer, {text!r:.80}"
            raise EngineFault(msg)
        self._ended(choice.get("finish_reason"))
        for token, step in zip(tokens, steps, strict=True):
            yield Piece(token=token, logprobs=step)


def _alternatives(entry: Mapping[str, Any]) -> dict[int, float]:
    listed: Sequence[Mapping[str, Any]] = entry.get("top_logprobs") or [entry]
    return {int(each["id"]): float(each["logprob"]) for each in listed}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAlone:
    """``/v1/completions`` as all servers have it: text in, text out.

    Attributes:
        model: Its name there; None to leave it out.
    """

    model: str | None = None
    name: str = "/v1/completions with text"
    path: str = "/v1/completions"
    streams: bool = True
    ids: bool = False
    logprobs: bool = False

    def body(self, request: Request, text: str | None) -> dict[str, Any]:
        """Return what is sent."""
        body = _completion(self.model, text, request)
        if self.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def reader(self) -> Reader:
        """Return what reads one answer."""
        return _Text()

    def whole(self) -> TextAlone:
        """Return the same for answers that come whole."""
        return replace(self, streams=False)


class _Text(_Answer):
    def take(self, payload: Mapping[str, Any]) -> Iterator[Piece]:
        choice = _choice(payload)
        self._used(payload.get("usage"))
        if choice is None:
            return
        text = choice.get("text")
        if not isinstance(text, str | None):
            raise _malformed(payload)
        if text:
            yield Piece(text=text)
        self._ended(choice.get("finish_reason"))


def _completion(model: str | None, prompt: object, request: Request) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    return named | {"prompt": prompt, "max_tokens": request.max_tokens, "temperature": 0}


def _choice(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the one choice; None in an event that holds the usage alone."""
    _refuse_error(payload)
    choices = payload.get("choices")
    if choices == []:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise _malformed(payload)
    return choices[0]


def _refuse_error(payload: Mapping[str, Any]) -> None:
    if payload.get("error"):
        msg = f"the server says: {payload['error']!r:.300}"
        raise EngineFault(msg)


def _malformed(payload: Mapping[str, Any]) -> EngineFault:
    return EngineFault(f"the server's answer has not the form that it should: {payload!r:.300}")


def _count(value: object, other: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else other


Wire = Generate | ReturnsIds | IdsInLogprobs | TextAlone
"""One way in. All have a name for messages, the path of requests, and what they can show."""
