"""Checks of requests that cannot be: refused with a 4xx status, after which life goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlxcheck.serving.client import excerpt
from mlxcheck.smoke.asking import CHAT, CheckFailed
from mlxcheck.smoke.questions import TWO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.smoke.asking import Asker

__all__ = ["broken_json", "empty_messages", "huge_max_tokens", "unknown_model"]

_NO_MODEL = "mlxcheck/no-such-model"
_HUGE = 10**9
"""Tokens: more than any model has positions, and no overflow of 32 bits."""


def unknown_model(asker: Asker) -> str:
    """A model that the server does not have is refused."""
    return _refused(asker, f"model {_NO_MODEL!r}", asker.body(TWO, model=_NO_MODEL))


def huge_max_tokens(asker: Asker) -> str:
    """More tokens than the model has positions are refused.

    A server that answers has cut the number in silence: whoever relies on it gets less.
    """
    return _refused(asker, f"max_tokens {_HUGE:,}", asker.body(TWO, max_tokens=_HUGE))


def empty_messages(asker: Asker) -> str:
    """No messages at all are refused."""
    return _refused(asker, "no messages", asker.body(TWO, messages=[]))


def broken_json(asker: Asker) -> str:
    """A body that is no JSON is refused."""
    return _refused(asker, "a body that is no JSON", b'{"model": "m", "messages": [')


def _refused(asker: Asker, asked: str, body: Mapping[str, Any] | bytes) -> str:
    answer = asker.client.post(CHAT, body)
    came = f"status {answer.status}: {excerpt(answer.text)}"
    if answer.status // 100 != 4:  # noqa: PLR2004 - the class of a status
        raise CheckFailed(asked, came, "a 4xx status", silent=answer.status >= 500)  # noqa: PLR2004 - the server's own failure
    asker.ask(TWO)
    return came
