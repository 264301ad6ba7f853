"""mlx-lm's own continuous batching: ``BatchGenerator``, and ``generate_step`` for one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.backends.mlx_lm_forcing import Forced

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
            max_batch=completion_batch_size,
            prefill_chunk=prefill_step_size,
            sets_prefill_chunk=True,
            teacher_forcing=True,
            logits=True,
            logprobs=True,
            encode=True,
        )
        self._sizes = {
            "completion_batch_size": completion_batch_size,
            "prefill_batch_size": prefill_batch_size,
            "prefill_step_size": prefill_step_size,
        }
        self._ref: ModelRef | None = None
        self._tokenizer: Any = None
        self._model: Any = None
        self._generator: Any = None
        self._stop_ids: tuple[int, ...] = ()
        self._names: dict[int, str] = {}
        self._forced: dict[int, Forced] = {}
        self._alone: dict[str, _Solo] = {}
        self._width = 0
        self._chunk = prefill_step_size
        self._chunks = 0

    def open(self, model: ModelRef) -> None:
        """Load the checkpoint with mlx-lm and build one ``BatchGenerator`` on it."""
        from mlx_lm.generate import BatchGenerator

        self._ref = model
        self._model = self.load(model)
        self._stop_ids = model.stop_ids
        self._generator = BatchGenerator(
            self._model, stop_tokens=[[token] for token in model.stop_ids], **self._sizes
        )

    def load(self, model: ModelRef) -> Any:
        """Return the model to serve; override to serve a patched one."""
        from mlxcheck.reference import load_model

        return load_model(model.path, trust_remote_code=model.trust_remote_code)

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return what ``mlx_lm.server`` makes of a chat, with its default template options.

        It passes no thinking option, and mlx-lm then turns thinking on where the tokenizer
        knows think tokens.
        """
        turns = [dict(turn) for turn in messages]
        ids = self.tokenizer().apply_chat_template(turns, add_generation_prompt=True)
        return [int(token) for token in ids]

    def stop_set(self) -> list[int]:
        """Return the ids at which ``mlx_lm.server`` ends an answer."""
        return sorted(int(token) for token in self.tokenizer().eos_token_ids)

    def tokenizer(self) -> Any:
        """Return the model's tokenizer, loaded at the first call as ``mlx_lm.load`` does."""
        from mlxcheck.reference import tokenizer_of

        if self._tokenizer is None:
            assert self._ref is not None  # noqa: S101 - the backend is open
            self._tokenizer = tokenizer_of(self._ref)
        return self._tokenizer

    def set_prefill_chunk(self, size: int | None) -> None:
        """Read prompts in calls of so many tokens from now on; None: as it was made."""
        self._chunk = size or self._sizes["prefill_step_size"]
        self._generator.prefill_step_size = self._chunk

    def submit(self, request: Request) -> None:
        """Queue a request in the generator, or keep it for a run of its own."""
        if request.alone:
            self._alone[request.id] = _Solo(self._model, request, self._chunk)
            return
        options: dict[str, Any] = {}
        forced = Forced(request.forced) if request.forced else None
        if forced is not None:
            options["samplers"] = [forced.sampler]
            options["logits_processors"] = [[forced.processor]]
        if request.stop_ids != self._stop_ids:
            options.update(_stop_option(request.stop_ids))
        (uid,) = self._generator.insert(
            [list(request.tokens)], max_tokens=[request.max_tokens], **options
        )
        self._names[uid] = request.id
        if forced is not None:
            self._forced[uid] = forced

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
            self._forget(uid)

    def stats(self) -> Mapping[str, int]:
        """Return the rows of the latest decode step, and the prefill steps so far."""
        return {"batch_width": self._width, "prefill_chunks": self._chunks}

    def close(self) -> None:
        """Close the generator, which restores the wired limit, and free the weights."""
        if self._generator is not None:
            self._generator.close()
        self._generator = self._model = self._tokenizer = None
        self._alone.clear()
        self._names.clear()
        self._forced.clear()

    def _forget(self, uid: int) -> None:
        del self._names[uid]
        self._forced.pop(uid, None)

    def _emission(self, response: Any) -> Emission:
        name, token = self._names[response.uid], int(response.token)
        shown = _shown(self._forced.get(response.uid), token, response.logprobs)
        if response.finish_reason is not None:
            self._forget(response.uid)
        return Emission(request_id=name, token=token, finish=response.finish_reason, **shown)


class _Solo:
    """One request on ``generate_step``, which neither stops nor says why it ended."""

    def __init__(self, model: Any, request: Request, prefill_step_size: int) -> None:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        self._request = request
        self._given = 0
        self._forced = Forced(request.forced) if request.forced else None
        options: dict[str, Any] = {}
        if self._forced is not None:
            options["sampler"] = self._forced.sampler
            options["logits_processors"] = [self._forced.processor]
        self._steps = generate_step(
            mx.array(request.tokens),
            model,
            max_tokens=request.max_tokens,
            prefill_step_size=prefill_step_size,
            **options,
        )

    def step(self) -> Emission:
        said, logprobs = next(self._steps)
        token = int(said)
        self._given += 1
        finish: Finish | None = None
        if token in self._request.stop_ids:
            finish = "stop"
        elif self._given == self._request.max_tokens:
            finish = "length"
        if finish:
            self._steps.close()
        shown = _shown(self._forced, token, logprobs)
        return Emission(request_id=self._request.id, token=token, finish=finish, **shown)


def _shown(forced: Forced | None, token: int, logprobs: Any) -> dict[str, Any]:
    """Return what an emission shows: of requests that are not forced, nothing.

    Only the token's own log-probability is read: the whole row would cost a copy a step.
    """
    if forced is None:
        return {}
    return {"logits": forced.logits(), "logprobs": {token: float(logprobs[token])}}


def _stop_option(stop_ids: tuple[int, ...]) -> dict[str, Any]:
    """Build the per-request stop argument, whose name changed after mlx-lm 0.31."""
    # Not `from mlx_lm import generate`: the package exports a function of that name.
    generate = importlib.import_module("mlx_lm.generate")
    sequences = [[token] for token in stop_ids]
    if hasattr(generate, "StopSequences"):
        return {"stop_sequences": [generate.StopSequences(sequences)]}
    states = {"normal": [(sequence, None) for sequence in sequences]} if sequences else {}
    return {"state_machines": [generate.SequenceStateMachine(states, initial="normal")]}
