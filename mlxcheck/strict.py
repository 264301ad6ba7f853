"""What strict mode cannot ask: without ties, both sides have to compute in one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.checks.chunks import Chunks
from mlxcheck.checks.logits import Logits
from mlxcheck.checks.prefix import Prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.policy import Policy
    from mlxcheck.records import Prompt

__all__ = ["refused"]

_OTHER_SHAPES = {
    Chunks.name: "this check reads prompts in others",
    Prefix.name: "after a prefix hit the rest of a prompt is read in another",
}


def refused(
    name: str, capabilities: Capabilities, prompts: Iterable[Prompt], policy: Policy
) -> str:
    """Return why a check is not asked in strict mode; nothing where it is.

    Args:
        name: Of the check.
        capabilities: Of the open engine.
        prompts: All of the run.
        policy: With the prefill chunk of the reference.
    """
    if name == Logits.name:
        return "strict mode measures no noise that numbers could be held against"
    if name in _OTHER_SHAPES:
        return f"strict mode wants equal prefill chunks: {_OTHER_SHAPES[name]}"
    chunk, own = capabilities.prefill_chunk, policy.prefill_chunk
    longest = max(len(prompt.tokens) for prompt in prompts)
    if chunk in {None, own} or longest <= min(chunk, own):
        return ""
    return (
        f"strict mode wants equal prefill chunks: the backend's are of {chunk} tokens, the "
        f"reference's of {own}, and there are longer prompts. Use "
        f"Policy(prefill_chunk={chunk})"
    )
