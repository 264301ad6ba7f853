"""Is the engine asked the same? Template, BOS, thinking default and stop set, by their ids.

All other checks hand ids to the engine, so none of them can see what it would have made of
a chat by itself. This one drives nothing: it asks the backend for the ids.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mlxcheck.errors import PromptError
from mlxcheck.parity import compare_ids, compare_stops, no_answer, no_verdict
from mlxcheck.records import STOP_SET, Case, Comparison, Fault, Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcheck.backends.base import Backend, Capabilities
    from mlxcheck.checks.base import EncodeReference, Expected, Grounds, PlaceFor, PlaceOf
    from mlxcheck.records import ModelRef
    from mlxcheck.session import Answers

__all__ = ["Prompts"]


class Prompts:
    """Compare what the engine would be given by default with what mlx-lm would."""

    name = "prompts"

    def refuse(self, capabilities: Capabilities) -> str | None:
        """Refuse backends that cannot say what their engine makes of a chat."""
        return None if capabilities.encode else "the backend takes token ids only"

    def plan(self, grounds: Grounds) -> tuple[Case, ...]:
        """Return nothing: no request is made."""
        del grounds
        return ()

    def judge(
        self, case: Case, expected: Expected, answers: Answers, place_of: PlaceOf
    ) -> tuple[Comparison, ...]:
        """Return nothing: no case is driven."""
        del case, expected, answers, place_of
        return ()

    def inspect(
        self,
        prompts: Sequence[Prompt],
        model: ModelRef,
        backend: Backend,
        encode_reference: EncodeReference,
        place_for: PlaceFor,
    ) -> tuple[Comparison, ...]:
        """Compare the ids of every prompt that was made of chat turns, and the stop sets.

        Either half is left out where the backend has no method for it.
        """
        # Looked up, since both methods are optional and so no part of the protocol.
        encode = getattr(backend, "encode", None)
        stop_set = getattr(backend, "stop_set", None)
        stops = place_for(Case(id=STOP_SET, prompts=(Prompt(id=STOP_SET, tokens=()),)))
        if encode is None and stop_set is None:
            why = "encode is among its capabilities, but it has no encode() and no stop_set()"
            return (no_answer(stops, Fault(summary=why)),)
        asked = [prompt for prompt in prompts if prompt.messages is not None and encode]
        found = [_ids(prompt, encode, encode_reference, place_for) for prompt in asked]
        if stop_set is not None:
            given = _ask("stop_set", stop_set)
            found.append(
                no_answer(stops, given)
                if isinstance(given, Fault)
                else compare_stops(stops, model.stop_ids, given)
            )
        return tuple(found)


def _ids(
    prompt: Prompt, encode: Any, encode_reference: EncodeReference, place_for: PlaceFor
) -> Comparison:
    turns = [{"role": role, "content": content} for role, content in prompt.messages or ()]
    place = place_for(Case(id=f"ids/{prompt.id}", prompts=(prompt,)))
    try:
        expected = encode_reference(turns)
    except PromptError as error:
        return no_verdict(place, f"mlx-lm itself cannot encode it: {error}")
    given = _ask("encode", encode, turns)  # last: an engine may change what it is given
    if isinstance(given, Fault):
        return no_answer(place, given)
    return compare_ids(place, expected, given)


def _ask(what: str, method: Callable[..., Any], *args: object) -> object:
    """Return what an engine's method gives, read to its end, or how it failed."""
    try:
        given = method(*args)
        # Here, since what is read item by item may raise at any of them.
        whole = isinstance(given, str | bytes) or not isinstance(given, Iterable)
        return given if whole else list(given)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an engine may raise
        summary = f"{what}() raised {type(error).__name__}: {error}".partition("\n")[0]
        return Fault(summary=summary, detail="".join(traceback.format_exception(error)))
