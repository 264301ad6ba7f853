"""The easiest way in: a plain function from prompts to answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.errors import EngineFault

if TYPE_CHECKING:
    from mlxcheck.records import Finish, ModelRef

__all__ = ["FunctionBackend", "Generate"]

Generate = Callable[[list[list[int]], int], Sequence[Sequence[int]]]
"""``generate(prompts, max_tokens)``: greedy answers, one list of ids a prompt, in order.

An answer may end with its stop id or leave it out; what follows a stop id is ignored.
The function is first called after the reference has been freed: load the model in it,
not before.
"""


class FunctionBackend:
    """Drive a function as an engine: all requests of a case in one call.

    Args:
        generate: The function.
        name: What reports call it.
    """

    def __init__(self, generate: Generate, name: str) -> None:
        self.name = name
        self.capabilities = Capabilities(stop=False, casts=False, joins=False)
        self._generate = generate
        self._waiting: list[Request] = []

    def open(self, model: ModelRef) -> None:
        """Do nothing: the function holds its own engine."""

    def submit(self, request: Request) -> None:
        """Keep the request for the next call."""
        self._waiting.append(request)

    def step(self) -> Sequence[Emission]:
        """Call the function once with everything that waits.

        Raises:
            EngineFault: The answer has not one list of ids for each prompt.
        """
        requests, self._waiting = self._waiting, []
        if not requests:
            return []
        most = max(request.max_tokens for request in requests)
        # Checked below: what a function of somebody else's returns may be anything.
        answers: Any = self._generate([list(r.tokens) for r in requests], most)
        if not isinstance(answers, Sequence) or isinstance(answers, str):
            msg = f"the function returned {answers!r:.80}; expected a list of lists of ids"
            raise EngineFault(msg)
        if len(answers) != len(requests):
            msg = f"the function returned {len(answers)} rows for {len(requests)} prompts"
            raise EngineFault(msg)
        return [
            emission
            for row, (request, answer) in enumerate(zip(requests, answers, strict=True))
            for emission in _emissions(row, request, answer)
        ]

    def cancel(self, request_id: str) -> None:
        """Forget the request, where it still waits."""
        self._waiting = [request for request in self._waiting if request.id != request_id]

    def stats(self) -> Mapping[str, int]:
        """Return nothing: what happens inside the function cannot be seen."""
        return {}

    def close(self) -> None:
        """Drop what waits."""
        self._waiting.clear()


def _emissions(row: int, request: Request, answer: Any) -> list[Emission]:
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        msg = f"row {row}: the function returned {answer!r:.80}; expected a list of ids"
        raise EngineFault(msg)
    if not answer:
        msg = f"row {row}: the function returned no token at all"
        raise EngineFault(msg)
    stop = next((n for n, token in enumerate(answer) if token in request.stop_ids), None)
    tokens = answer if stop is None else answer[: stop + 1]
    end: Finish = "length" if stop is None and len(tokens) >= request.max_tokens else "stop"
    last = len(tokens) - 1
    return [
        Emission(request_id=request.id, token=token, finish=end if place == last else None)
        for place, token in enumerate(tokens)
    ]
