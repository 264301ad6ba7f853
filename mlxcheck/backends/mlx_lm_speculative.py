"""mlx-lm's speculative decoding: a draft model proposes tokens, and the model decides."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mlxcheck.records import Finish, ModelRef

__all__ = ["SpeculativeBackend"]


class SpeculativeBackend:
    """``speculative_generate_step``, one request at a time.

    Args:
        draft: The folder of the draft model; None for the first of the model's own layers
            under its own head, which every checkpoint has, and which errs often enough.
        num_draft_tokens: Tokens that are proposed at once, mlx-lm's default for its server.
        prefill_step_size: Prompt tokens of one prefill step, mlx-lm's default.
    """

    name = "mlx-lm-speculative"

    def __init__(
        self,
        *,
        draft: str | Path | None = None,
        num_draft_tokens: int = 3,
        prefill_step_size: int = 512,
    ) -> None:
        # Its prefill calls are not told, so no chunk is stated that could be held against them.
        self.capabilities = Capabilities(batch=False, drafts=True)
        self._draft_path = draft
        self._options = {
            "num_draft_tokens": num_draft_tokens,
            "prefill_step_size": prefill_step_size,
        }
        self._model: Any = None
        self._draft: Any = None
        self._live: dict[str, Iterator[Emission]] = {}
        self._drafted = self._accepted = 0

    def open(self, model: ModelRef) -> None:
        """Load the model, and its draft.

        Raises:
            BackendError: No draft was given, and none can be made of this architecture.
        """
        from mlxcheck.reference import load_model

        self._model = load_model(model.path, trust_remote_code=model.trust_remote_code)
        if self._draft_path is not None:
            self._draft = load_model(str(self._draft_path), trust_remote_code=False)
        else:
            self._draft = _first_layers(self._model)

    def submit(self, request: Request) -> None:
        """Begin a request; the work is done in `step`."""
        self._live[request.id] = self._decode(request)

    def step(self) -> Sequence[Emission]:
        """Give the next token of each request."""
        out = [next(steps) for steps in self._live.values()]
        for emission in out:
            if emission.finish is not None:
                self.cancel(emission.request_id)
        return out

    def cancel(self, request_id: str) -> None:
        """Drop the request and its KV caches."""
        steps: Any = self._live.pop(request_id, None)
        if steps is not None:
            steps.close()

    def stats(self) -> Mapping[str, int]:
        """Return how many tokens were proposed so far, and how many of them were taken."""
        return {"drafted_tokens": self._drafted, "accepted_tokens": self._accepted}

    def close(self) -> None:
        """Free both models."""
        for request_id in list(self._live):
            self.cancel(request_id)
        self._model = self._draft = None

    def _decode(self, request: Request) -> Iterator[Emission]:
        import mlx.core as mx
        from mlx_lm.generate import speculative_generate_step

        steps = speculative_generate_step(
            mx.array(request.tokens),
            self._model,
            self._draft,
            max_tokens=request.max_tokens,
            **self._options,
        )
        given, taken = 0, 0
        proposed = min(request.max_tokens, self._options["num_draft_tokens"])
        for said, _, from_draft in steps:
            given += 1  # noqa: SIM113 - a count of tokens, not the number of a turn
            if from_draft:
                taken += 1
                self._drafted += 1
                self._accepted += 1
            else:  # the model's own token ends a round; what was proposed after it is refused
                self._drafted += proposed - taken
                taken = 0
                left = request.max_tokens - given
                proposed = min(left, self._options["num_draft_tokens"])
            finish: Finish | None = None
            if int(said) in request.stop_ids:
                finish = "stop"
            elif given == request.max_tokens:
                finish = "length"
            yield Emission(request_id=request.id, token=int(said), finish=finish)


def _first_layers(model: Any) -> Any:
    """Return a model of the first layers, with the weights of the whole one."""
    inner = getattr(model, "model", None)
    layers = getattr(inner, "layers", None)
    if not isinstance(layers, list) or len(layers) < 2:  # noqa: PLR2004 - one is no draft
        msg = (
            f"backend {SpeculativeBackend.name!r}: no draft can be made of the first layers of "
            f"a {type(model).__module__.rpartition('.')[2]}. Give it one: "
            "SpeculativeBackend(draft=FOLDER)."
        )
        raise BackendError(msg)
    draft = copy.copy(model)
    draft.model = copy.copy(inner)
    draft.model.layers = layers[: len(layers) // 2]
    return draft
