"""Checks of where answers end, and of how their tokens are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from mlxcheck.smoke.asking import CheckFailed, Undecided
from mlxcheck.smoke.questions import LONG, TWO, Question

if TYPE_CHECKING:
    from mlxcheck.smoke.asking import Asker, Reply

__all__ = ["max_tokens", "stop", "usage"]

_FEW = 8
_LEAST_WORDS = 6
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def max_tokens(asker: Asker) -> str:
    """An answer is cut at ``max_tokens``, and says so."""
    whole = asker.alone(LONG)
    if len(whole.text.split()) + len(whole.thought.split()) <= _FEW:
        msg = f"asked {whole.asked}: {whole.shown}, which is too short to be cut"
        raise Undecided(msg)
    cut = asker.ask(LONG, max_tokens=_FEW)
    might = whole.thought + whole.text
    # Half a character at the end is left out, or stands as U+FFFD.
    said = (cut.thought + cut.text).rstrip("\ufffd").rstrip()
    if len(said) >= len(might) or not might.startswith(said):
        cut.fail(f"a beginning, {_FEW} tokens long, of {whole.shown}")
    if cut.finish != "length":
        cut.fail("finish_reason 'length'")
    count = (cut.usage or {}).get("completion_tokens")
    if isinstance(count, int) and count > _FEW:
        cut.fail(f"at most {_FEW} tokens; the server counts {count}")
    if asker.counter and asker.counter.answer(said) > _FEW:
        cut.fail(f"at most {_FEW} tokens; this is {asker.counter.answer(said)}")
    return cut.shown


def stop(asker: Asker) -> str:
    """An answer ends before the ``stop`` text, which is no part of it."""
    whole = asker.alone(LONG)
    words = whole.text.split()
    if len(words) < _LEAST_WORDS:
        msg = f"asked {whole.asked}: {whole.shown}, which is too short to be stopped within"
        raise Undecided(msg)
    text = words[len(words) // 2]
    before = whole.text[: whole.text.index(text)]
    cut = asker.ask(LONG, stop=[text])
    if cut.text.rstrip() != before.rstrip():
        cut.fail(f"{before!r}, the answer up to the stop text")
    if cut.finish != "stop":
        cut.fail("finish_reason 'stop'")
    return cut.shown


def usage(asker: Asker) -> str:
    """Tokens are counted rightly: against the tokenizer, else against one another."""
    short, long = asker.ask(TWO), asker.ask(LONG, max_tokens=_FEW)
    for reply, question in ((short, TWO), (long, LONG)):
        counts = _counts(reply)
        if counts["total_tokens"] != counts["prompt_tokens"] + counts["completion_tokens"]:
            _wrong(reply, "total_tokens the sum of the two others")
        if not 0 < counts["completion_tokens"] <= asker.max_tokens:
            _wrong(reply, f"completion_tokens from 1 to {asker.max_tokens}")
        if counts["prompt_tokens"] < 1:
            _wrong(reply, "at least one prompt token")
        if asker.counter:
            _require_prompt(reply, counts["prompt_tokens"], asker.counter.prompt(question))
    if long.finish == "length" and _counts(long)["completion_tokens"] != _FEW:
        _wrong(long, f"completion_tokens {_FEW}, since the answer was cut there")
    if asker.counter is None:
        _require_growth(asker, short)
        return f"{short.usage}, consistent; without --model no tokenizer to count with"
    if not short.thought and short.finish == "stop":
        count, own = _counts(short)["completion_tokens"], asker.counter.answer(short.text)
        if count not in {own, own + 1}:  # servers count the token that ends it, or do not
            _wrong(short, f"completion_tokens {own}, or {own + 1} with the one that ends it")
    return f"{short.usage}, as the tokenizer counts"


def _require_growth(asker: Asker, short: Reply) -> None:
    """Without a tokenizer: more text is more tokens."""
    twice = Question(text=f"{TWO.text} {TWO.text} {TWO.text}")
    longer = asker.ask(twice, max_tokens=_FEW)
    if _counts(longer)["prompt_tokens"] <= _counts(short)["prompt_tokens"]:
        fewer = _counts(short)["prompt_tokens"]
        _wrong(longer, f"more than {fewer} prompt tokens, as {short.asked} has")


def _require_prompt(reply: Reply, count: int, own: int) -> None:
    if count != own:
        _wrong(reply, f"prompt_tokens {own}, as the chat template and the tokenizer make")


def _counts(reply: Reply) -> dict[str, int]:
    found = {name: (reply.usage or {}).get(name) for name in _COUNTS}
    good = {name: value for name, value in found.items() if isinstance(value, int)}
    if len(good) < len(found):
        _wrong(reply, f"whole numbers for {', '.join(_COUNTS)}")
    return good


def _wrong(reply: Reply, expected: str) -> NoReturn:
    raise CheckFailed(reply.asked, f"usage {reply.usage}", expected)
