"""mlx-lm's own continuous batching: ``BatchGenerator``, and ``generate_step`` for one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Emission, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.records import Finish, ModelRef

__all__ = ["MlxLmBackend"]


class MlxLmBackend:
    """The embedded default: what ``mlx_lm.server`` runs, driven in process.

    A request that is `Request.alone` goes through ``generate_step``, as a single-user
    program would; all others share one ``BatchGenerator``.

    Args:
        completion_batch_size: Rows of one decode step, mlx-lm's default.
        prefill_batch_size: Prompts that are prefilled together, mlx-lm's default.
        prefill_step_size: Prompt tokens of one prefill step, mlx-lm's default.
    """

    name = "mlx-lm"

    def __init__(
        self,
        *,
        completion_batch_size: int = 32,
        prefill_batch_size: int = 8,
        prefill_step_size: int = 2048,
    ) -> None:
        self.capabilities = Capabilities(
            max_batch=completion_batch_size, prefill_chunk=prefill_step_size
        )
        self._sizes = {
            "completion_batch_size": completion_batch_size,
            "prefill_batch_size": prefill_batch_size,
            "prefill_step_size": prefill_step_size,
        }
        self._model: Any = None
        self._generator: Any = None
        self._stop_ids: tuple[int, ...] = ()
        self._names: dict[int, str] = {}
        self._alone: dict[str, _Solo] = {}
        self._width = 0
        self._chunks = 0

    def open(self, model: ModelRef) -> None:
        """Load the checkpoint with mlx-lm and build one ``BatchGenerator`` on it."""
        from mlx_lm.generate import BatchGenerator

        self._model = self.load(model)
        self._stop_ids = model.stop_ids
        self._generator = BatchGenerator(
            self._model, stop_tokens=[[token] for token in model.stop_ids], **self._sizes
        )

    def load(self, model: ModelRef) -> Any:
        """Return the model to serve; override to serve a patched one."""
        from mlxcheck.reference import load_model

        return load_model(model.path, trust_remote_code=model.trust_remote_code)

    def submit(self, request: Request) -> None:
        """Queue a request in the generator, or keep it for a run of its own."""
        if request.alone:
            step = self._sizes["prefill_step_size"]
            self._alone[request.id] = _Solo(self._model, request, step)
            return
        options: dict[str, Any] = {}
        if request.stop_ids != self._stop_ids:
            options.update(_stop_option(request.stop_ids))
        (uid,) = self._generator.insert(
            [list(request.tokens)], max_tokens=[request.max_tokens], **options
        )
        self._names[uid] = request.id

    def step(self) -> Sequence[Emission]:
        """Advance each lone request, then the batch, by one step."""
        out = [solo.step() for solo in self._alone.values()]
        for emission in out:
            if emission.finish is not None:
                del self._alone[emission.request_id]
        if not self._names:
            self._width = len(out)
            return out
        progress, responses = self._generator.next()
        self._chunks += bool(progress)
        self._width = len(responses)
        out += [self._emission(response) for response in responses]
        return out

    def cancel(self, request_id: str) -> None:
        """Drop the request and its KV cache."""
        self._alone.pop(request_id, None)
        uids = [uid for uid, name in self._names.items() if name == request_id]
        for uid in uids:
            self._generator.remove([uid])
            del self._names[uid]

    def stats(self) -> Mapping[str, int]:
        """Return the rows of the latest decode step, and the prefill steps so far."""
        return {"batch_width": self._width, "prefill_chunks": self._chunks}

    def close(self) -> None:
        """Close the generator, which restores the wired limit, and free the weights."""
        if self._generator is not None:
            self._generator.close()
        self._generator = self._model = None
        self._alone.clear()
        self._names.clear()

    def _emission(self, response: Any) -> Emission:
        name = self._names[response.uid]
        if response.finish_reason is not None:
            del self._names[response.uid]
        return Emission(
            request_id=name, token=int(response.token), finish=response.finish_reason
        )


class _Solo:
    """One request on ``generate_step``, which neither stops nor says why it ended."""

    def __init__(self, model: Any, request: Request, prefill_step_size: int) -> None:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        self._request = request
        self._given = 0
        self._steps = generate_step(
            mx.array(request.tokens),
            model,
            max_tokens=request.max_tokens,
            prefill_step_size=prefill_step_size,
        )

    def step(self) -> Emission:
        token = int(next(self._steps)[0])
        self._given += 1
        finish: Finish | None = None
        if token in self._request.stop_ids:
            finish = "stop"
        elif self._given == self._request.max_tokens:
            finish = "length"
        if finish:
            self._steps.close()
        return Emission(request_id=self._request.id, token=token, finish=finish)


def _stop_option(stop_ids: tuple[int, ...]) -> dict[str, Any]:
    """Build the per-request stop argument, whose name changed after mlx-lm 0.31."""
    # Not `from mlx_lm import generate`: the package exports a function of that name.
    generate = importlib.import_module("mlx_lm.generate")
    sequences = [[token] for token in stop_ids]
    if hasattr(generate, "StopSequences"):
        return {"stop_sequences": [generate.StopSequences(sequences)]}
    states = {"normal": [(sequence, None) for sequence in sequences]} if sequences else {}
    return {"state_machines": [generate.SequenceStateMachine(states, initial="normal")]}
