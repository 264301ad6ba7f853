"""Rules on what an adapter can show or be told beyond tokens, as its capabilities say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxcheck.contracts.backend_answers import set_chunk
from mlxcheck.contracts.backend_rules import Breach, NotAsked, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.contracts.backend_bench import Bench
    from mlxcheck.contracts.backend_shown import Shown
    from mlxcheck.contracts.backend_steps import Row

__all__ = ["LONGEST", "NUMBERS", "encodes_to_ids"]

LONGEST = 300
"""Tokens of the longest prompt: more than the blocks of known prefix caches hold."""

_MEDIUM = 12
_READ, _PART = 39, 8
_TRIES = 4
_HIGHEST = 0.25
"""Nats over 0 that a log-probability may be where no logits tell its dtype: one unit in the
last place of bfloat16 for logits of up to 64."""

_CHAT = ({"role": "user", "content": "What is the capital of France?"},)


@rule
def goes_on_from_what_is_forced(bench: Bench) -> None:
    """A forced request is given the tokens of Request.forced, all of them, in order."""
    _require(bench, "teacher_forcing")
    _, own = _own(bench)
    size, stops = bench.model.vocab_size, set(bench.model.stop_ids)
    others = [token for token in range(size) if token not in stops]
    forced = tuple(others[(token + 1) % len(others)] for token in own)
    row = bench.answer(bench.prompt(_MEDIUM), max_tokens=len(forced), forced=forced, alone=True)
    if tuple(row.tokens) != forced:
        raise Breach(
            call=f"step() for {row.told} with forced={list(forced)}",
            expected=f"tokens {list(forced)}",
            actual=f"tokens {row.tokens}",
            advice="give the next of Request.forced at each step, and go on from that",
        )


@rule
def shows_whole_logits(bench: Bench) -> None:
    """Logits are finite floats of shape [vocabulary] or [1, vocabulary]."""
    _require(bench, "logits")
    row = _forced_to_its_own(bench)
    size = bench.model.vocab_size
    for where, shown in _steps(row):
        whole = shown.shape[-1:] >= (size,) and math.prod(shown.shape[:-1]) == 1
        if not (whole and "float" in shown.dtype):
            raise Breach(
                call=where,
                expected=f"Emission.logits: floats of shape [{size}] or [1, {size}]",
                actual=shown.logits or "None",
                advice="give the row of this request, raw, from which its token was chosen",
            )
        if not shown.finite:
            raise Breach(
                call=where,
                expected="Emission.logits: finite numbers",
                actual=f"{shown.logits}, with NaN or infinite ones among them",
                advice="give the logits before any mask or sampler touches them",
            )


@rule
def shows_the_logits_of_its_token(bench: Bench) -> None:
    """The largest logit is that of the token that the engine says by itself."""
    _require(bench, "logits")
    if not bench.capabilities.ids:
        reason = "capabilities.ids is False"
        raise NotAsked(reason)
    row = _forced_to_its_own(bench)
    for (where, shown), token in zip(_steps(row), row.tokens, strict=False):
        if not _usable(bench, shown):
            reason = "its logits are not whole"
            raise NotAsked(reason)
        top = shown.top
        gap = shown.at(top) - shown.at(token)
        if gap > shown.rounding(abs(shown.at(top))):
            raise Breach(
                call=where,
                expected=f"logits whose largest is that of token {token}, which it said alone",
                actual=f"the largest is that of token {top}, by {gap:.4g}",
                advice="show the logits that this very token was chosen from, before forcing",
            )


@rule
def shows_log_probabilities(bench: Bench) -> None:
    """Emission.logprobs maps ids of the vocabulary to numbers of at most 0."""
    _require(bench, "logprobs")
    row = _forced_to_its_own(bench)
    for where, shown in _steps(row):
        told: Any = shown.logprobs
        actual = f"{told!r:.80} ({type(told).__name__})"
        if isinstance(told, Mapping) and told:
            bad = [item for item in told.items() if not _probability(bench, shown, *item)]
            if not bad:
                continue
            actual = f"{bad[0][0]!r}: {bad[0][1]!r:.60}"
        raise Breach(
            call=where,
            expected="Emission.logprobs: a mapping of int ids to natural-log probabilities",
            actual=actual,
            advice="give log-softmax of the logits, for the token itself at least",
        )


@rule
def reports_what_its_logits_say(bench: Bench) -> None:
    """Reported log-probabilities are the log-softmax of the logits, but for rounding."""
    _require(bench, "logits")
    _require(bench, "logprobs")
    row = _forced_to_its_own(bench)
    for where, shown in _steps(row):
        if not (_usable(bench, shown) and isinstance(shown.logprobs, Mapping)):
            reason = "its logits or its log-probabilities are not whole"
            raise NotAsked(reason)
        lse, top = shown.normaliser, shown.at(shown.top)
        for token, told in shown.logprobs.items():
            if not _probability(bench, shown, token, told):
                reason = "its log-probabilities are not whole"
                raise NotAsked(reason)
            own = shown.at(token) - lse
            room = shown.rounding(max(abs(lse), abs(top), abs(own)))
            if not abs(told - own) <= room:
                raise Breach(
                    call=where,
                    expected=f"{own:.6g} for token {token}, as its logits say, give or take "
                    f"{room:.2g}",
                    actual=f"{told:.6g}",
                    advice="report natural logarithms, of the same logits, at temperature 1",
                )


@rule
def reads_in_chunks(bench: Bench) -> None:
    """Prompts are read in calls of set_prefill_chunk(size); None sets it back."""
    _require(bench, "sets_prefill_chunk")
    whole = _calls(bench)
    set_chunk(bench, _PART)
    try:
        parts = _calls(bench)
    finally:
        set_chunk(bench, None)
    least = _READ // _PART  # a few tokens may be left to the first decode, or be cached
    if parts < least:
        raise Breach(
            call=f"set_prefill_chunk({_PART}), then a prompt of {_READ} tokens",
            expected=f"prefill_chunks of stats() to grow by {least} at least",
            actual=f"it grew by {parts}",
            advice="read what is submitted from then on in calls of at most so many tokens",
        )
    back = _calls(bench)
    if back != whole:
        raise Breach(
            call=f"set_prefill_chunk(None), then a prompt of {_READ} tokens",
            expected=f"prefill_chunks of stats() to grow by {whole}, as at first",
            actual=f"it grew by {back}",
            advice="go back to the engine's own size at None",
        )


@rule
def reuses_prefixes(bench: Bench) -> None:
    """A prompt that was answered before has its cached tokens counted."""
    _require(bench, "prefix_cache")
    longest = min(LONGEST, (bench.model.max_positions or LONGEST) // 4)
    prompt = bench.prompt(longest)
    bench.answer(prompt, max_tokens=2)
    before = bench.stats().get("cached_tokens")
    if before is None:
        reason = "stats() does not tell cached_tokens"
        raise NotAsked(reason)
    row = bench.answer(prompt, max_tokens=2)
    now = bench.stats().get("cached_tokens", 0)
    if now <= before:
        raise Breach(
            call=f"stats() after {row.told}, which was asked before",
            expected=f"cached_tokens of more than {before}",
            actual=f"cached_tokens={now}",
            advice="count the prompt tokens that were not computed again, or state no cache",
        )


@rule
def encodes_to_ids(bench: Bench) -> None:
    """What encode() gives is a list of ids of the vocabulary."""
    ask = _method(bench, "encode")
    _ids(bench, f"encode({list(_CHAT)})", bench.call("encode()", lambda: ask(list(_CHAT))))


@rule
def tells_its_stop_ids(bench: Bench) -> None:
    """What stop_set() gives is a list of ids of the vocabulary."""
    _ids(bench, "stop_set()", bench.call("stop_set()", _method(bench, "stop_set")))


NUMBERS = (
    goes_on_from_what_is_forced,
    shows_whole_logits,
    shows_the_logits_of_its_token,
    shows_log_probabilities,
    reports_what_its_logits_say,
    reads_in_chunks,
    reuses_prefixes,
    encodes_to_ids,
    tells_its_stop_ids,
)
"""Asked in this order, after the rules on requests."""


def _require(bench: Bench, name: str) -> None:
    if not getattr(bench.capabilities, name):
        reason = f"capabilities.{name} is False"
        raise NotAsked(reason)


def _method(bench: Bench, name: str) -> Any:
    _require(bench, "encode")
    method = getattr(bench.backend, name, None)
    if not callable(method):
        reason = f"the backend has no {name}()"
        raise NotAsked(reason)
    return method


def _own(bench: Bench) -> tuple[tuple[int, ...], list[int]]:
    """Return a prompt, and what the engine says to it by itself, in two tokens at least.

    Raises:
        NotAsked: No answer that was tried has so many ids.
    """
    for more in range(_TRIES):
        prompt = bench.prompt(_MEDIUM + more)
        tokens = bench.answer(prompt, alone=True).tokens
        if len(tokens) > 1:
            return prompt, tokens
    reason = "no answer that was tried has two ids"
    raise NotAsked(reason)


def _forced_to_its_own(bench: Bench) -> Row:
    """Return a request that shows its numbers: made to say what it says by itself.

    An engine that cannot be forced shows them of every request.
    """
    if not bench.capabilities.teacher_forcing:
        return bench.answer(bench.prompt(_MEDIUM), alone=True)
    prompt, own = _own(bench)
    return bench.answer(prompt, max_tokens=len(own), forced=own, alone=True)


def _steps(row: Row) -> Iterator[tuple[str, Shown]]:
    for step, shown in enumerate(row.numbers):
        yield f"step(), emission {step + 1} of {row.told}", shown


def _usable(bench: Bench, shown: Shown) -> bool:
    return (
        shown.finite
        and shown.shape[-1:] >= (bench.model.vocab_size,)
        and math.prod(shown.shape[:-1]) == 1
    )


def _probability(bench: Bench, shown: Shown, token: object, told: object) -> bool:
    whole = isinstance(token, int) and 0 <= token < bench.model.vocab_size
    if not whole or isinstance(told, bool) or not isinstance(told, float | int):
        return False
    room = _HIGHEST
    if _usable(bench, shown):
        room = shown.rounding(max(abs(shown.normaliser), abs(shown.at(shown.top))))
    return told <= room  # False for NaN


def _calls(bench: Bench) -> int:
    """Return how many prefill calls a new prompt takes."""
    before = bench.stats().get("prefill_chunks")
    if before is None:
        reason = "stats() does not tell prefill_chunks"
        raise NotAsked(reason)
    bench.answer(bench.prompt(_READ), max_tokens=2)
    return bench.stats().get("prefill_chunks", 0) - before


def _ids(bench: Bench, call: str, given: object) -> None:
    size = bench.model.vocab_size
    if isinstance(given, list) and given and all(_id(each, size) for each in given):
        return
    raise Breach(
        call=call,
        expected=f"a list of ints from 0 to {size - 1}, at least one",
        actual=f"{given!r:.100} ({type(given).__name__})",
        advice="give ids as Python ints: [int(token) for token in ...]",
    )


def _id(value: object, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
