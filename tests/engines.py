"""Small engines that behave badly, each in one way; named as ``tests.engines:Name``."""

from __future__ import annotations

import ctypes
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcheck.backends import mlx_lm
from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.backends.mlx_lm_forcing import Forced
from mlxcheck.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.records import ModelRef

__all__ = [
    "AlwaysWrong",
    "ClosesBadly",
    "ControlC",
    "ControlCInOpen",
    "Floats",
    "FloodsMarkup",
    "HoldsTheInterpreter",
    "IgnoresForcing",
    "Locks",
    "LocksNatively",
    "Loops",
    "Misreports",
    "NotInstalled",
    "OneAtATime",
    "OneRaises",
    "OpenRaises",
    "OutOfVocabulary",
    "ReportsOneNumber",
    "Scripted",
    "ShowsLogits",
    "ShowsLogprobs",
    "Silent",
    "Sleeps",
    "SleepsInOpen",
    "Slow",
    "UnknownIds",
    "no_tokens",
    "one_for_all",
    "text_for_ids",
    "too_few_rows",
]


class Scripted:
    """An engine without a model: it says token 1 to everything, for ever."""

    name = "scripted"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.waiting: dict[str, Request] = {}

    def open(self, model: ModelRef) -> None:
        """Load nothing."""

    def submit(self, request: Request) -> None:
        """Take a request in."""
        self.waiting[request.id] = request

    def step(self) -> Sequence[Emission]:
        """Give one token to each."""
        return [self.emission(request) for request in self.waiting.values()]

    def emission(self, request: Request) -> Emission:
        """Make one emission."""
        return Emission(request_id=request.id, token=1)

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self.waiting.pop(request_id, None)

    def stats(self) -> Mapping[str, int]:
        """Tell nothing."""
        return {}

    def close(self) -> None:
        """Forget all."""
        self.waiting.clear()


class AlwaysWrong(MlxLmBackend):
    """Says the right first token, and the one after the right one from there on."""

    name = "always-wrong"

    def step(self) -> Sequence[Emission]:
        """Change every token but the first of each request."""
        seen: set[str] = self.__dict__.setdefault("seen", set())
        out = []
        for emission in super().step():
            token = emission.token
            if emission.request_id in seen:
                token = 5 if token != 5 else 6
            seen.add(emission.request_id)
            out.append(
                Emission(request_id=emission.request_id, token=token, finish=emission.finish)
            )
        return out


class _Watched(Forced):
    """Looks on, and lets the engine choose."""

    def _sample(self, logprobs: Any) -> Any:
        return logprobs.argmax(axis=-1)


class ShowsLogits(MlxLmBackend):
    """Right, shows the raw logits of every answer, and cannot be forced."""

    name = "shows-logits"

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, teacher_forcing=False)

    def submit(self, request: Request) -> None:
        """Take a request in as one that is watched."""
        home: Any = mlx_lm
        kept, home.Forced = home.Forced, _Watched
        try:
            super().submit(replace(request, forced=request.tokens))
        finally:
            home.Forced = kept


class ShowsLogprobs(MlxLmBackend):
    """Right, and shows log-probabilities of all tokens, but no logits."""

    name = "shows-logprobs"
    shown = 1000

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, logits=False)

    def step(self) -> Sequence[Emission]:
        """Put log-probabilities in the place of logits."""
        return [self.told(emission) for emission in super().step()]

    def told(self, emission: Emission) -> Emission:
        """Tell the best few."""
        if emission.logits is None:
            return emission
        row = emission.logits.reshape(-1).astype(mx.float32)
        best: Any = mx.argsort(-row)[: self.shown].tolist()
        logprobs: Any = (row - mx.logsumexp(row)).tolist()
        told = {token: logprobs[token] for token in best}
        return replace(emission, logits=None, logprobs=told)


class ReportsOneNumber(ShowsLogprobs):
    """Right, and reports the log-probability of its own token alone, as many do."""

    name = "reports-one-number"
    shown = 1


class Misreports(MlxLmBackend):
    """Right, but reports log-probabilities that are not those of its logits."""

    name = "misreports"

    def step(self) -> Sequence[Emission]:
        """Add a tenth of a nat to what is reported."""
        return [
            replace(emission, logprobs={t: p + 0.1 for t, p in emission.logprobs.items()})
            if emission.logprobs
            else emission
            for emission in super().step()
        ]


class IgnoresForcing(MlxLmBackend):
    """Right, and says its own tokens where it is to go on from others."""

    name = "ignores-forcing"

    def submit(self, request: Request) -> None:
        """Forget what it is to go on from."""
        super().submit(replace(request, forced=None))


class OneAtATime(MlxLmBackend):
    """Right, and no two of its requests ever meet in a step."""

    name = "one-at-a-time"

    def __init__(self) -> None:
        super().__init__(completion_batch_size=1, prefill_batch_size=1)


class OneRaises(MlxLmBackend):
    """Right, but for prompts of two tokens, on which it raises."""

    name = "one-raises"

    def submit(self, request: Request) -> None:
        """Note whether the bad prompt is in flight."""
        self.bad = len(request.tokens) == 2
        super().submit(request)

    def step(self) -> Sequence[Emission]:
        """Raise while it is."""
        if self.bad:
            msg = "index 2 is out of bounds for axis 0 with size 2"
            raise IndexError(msg)
        return super().step()


class OpenRaises(Scripted):
    """Does not open."""

    def open(self, model: ModelRef) -> None:
        """Raise."""
        msg = f"no kernel for {model.model_type}"
        raise RuntimeError(msg)


class NotInstalled(Scripted):
    """An adapter whose engine is not there, and that says so."""

    def open(self, model: ModelRef) -> None:
        """Raise what adapters raise then."""
        del model
        msg = "fast-engine is not installed; pip install fast-engine"
        raise BackendError(msg)


class UnknownIds(Scripted):
    """Answers somebody else."""

    def emission(self, request: Request) -> Emission:
        """Name a request that was never made."""
        del request
        return Emission(request_id="nobody", token=1)


class Floats(Scripted):
    """Gives a float for a token."""

    def emission(self, request: Request) -> Emission:
        """Give 3.0, which equals 3 and is no id."""
        return Emission(request_id=request.id, token=3.0)  # type: ignore[arg-type]


class OutOfVocabulary(Scripted):
    """Gives an id that no model here has."""

    def emission(self, request: Request) -> Emission:
        """Give a million."""
        return Emission(request_id=request.id, token=1_000_000)


class FloodsMarkup(Scripted):
    """Raises with text that a terminal could take for more than text."""

    def step(self) -> Sequence[Emission]:
        """Raise."""
        msg = "[red]not markup[/red] \x1b[2Jnot an escape"
        raise ValueError(msg)


class Silent(Scripted):
    """Steps on and says nothing."""

    def step(self) -> Sequence[Emission]:
        """Return at once, with nothing."""
        return []


class Loops(Scripted):
    """Hangs in Python."""

    def step(self) -> Sequence[Emission]:
        """Never return."""
        while True:
            pass


class Sleeps(Scripted):
    """Hangs in a system call."""

    def step(self) -> Sequence[Emission]:
        """Sleep for an hour."""
        time.sleep(3600)
        return []


class SleepsInOpen(Scripted):
    """Hangs before there is anything to ask."""

    def open(self, model: ModelRef) -> None:
        """Sleep for an hour."""
        del model
        time.sleep(3600)


class Locks(MlxLmBackend):
    """Right once, then hangs in native code that let go of the interpreter."""

    name = "locks"

    def submit(self, request: Request) -> None:
        """Hang on the second request."""
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 1:
            _deadlock(ctypes.CDLL(None))
        super().submit(request)


class LocksNatively(MlxLmBackend):
    """Right on a float32 copy, and hangs in native code on anything else."""

    name = "locks-natively"

    def open(self, model: ModelRef) -> None:
        """Note which it is."""
        super().open(model)
        self.copy = "mlxcheck-float32-" in model.path

    def submit(self, request: Request) -> None:
        """Hang, or not."""
        if not self.copy:
            _deadlock(ctypes.CDLL(None))
        super().submit(request)


class HoldsTheInterpreter(Scripted):
    """Hangs in native code that keeps the interpreter to itself."""

    def step(self) -> Sequence[Emission]:
        """Never return, nor let anyone else run."""
        _deadlock(ctypes.PyDLL(None))
        return []


class Slow(MlxLmBackend):
    """Right, but slow, and says when it is opened and closed."""

    name = "slow"

    def open(self, model: ModelRef) -> None:
        """Open and say so."""
        super().open(model)
        sys.stderr.write("engine opened\n")
        sys.stderr.flush()

    def step(self) -> Sequence[Emission]:
        """Take a while."""
        time.sleep(0.02)
        return super().step()

    def close(self) -> None:
        """Close and say so."""
        super().close()
        sys.stderr.write("engine closed\n")
        sys.stderr.flush()


class ControlC(Slow):
    """Slow, and the person at the keyboard loses patience with the second request."""

    def submit(self, request: Request) -> None:
        """Do what Ctrl-C does, on the second request."""
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked > 1:
            raise KeyboardInterrupt
        super().submit(request)


class ControlCInOpen(Slow):
    """The person at the keyboard loses patience while it opens."""

    def open(self, model: ModelRef) -> None:
        """Do what Ctrl-C does, half opened."""
        super().open(model)
        raise KeyboardInterrupt


class ClosesBadly(MlxLmBackend):
    """Right, and raises in the end."""

    name = "closes-badly"

    def close(self) -> None:
        """Close, and raise."""
        super().close()
        msg = "the pool is not empty"
        raise RuntimeError(msg)


def too_few_rows(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Forget the last prompt."""
    del max_tokens
    return [[1] for _ in prompts[:-1]]


def no_tokens(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Say nothing to anyone."""
    del max_tokens
    return [[] for _ in prompts]


def one_for_all(prompts: list[list[int]], max_tokens: int) -> int:
    """Return a number where lists are due."""
    del prompts, max_tokens
    return 1


def text_for_ids(prompts: list[list[int]], max_tokens: int) -> list[str]:
    """Return text where ids are due."""
    del max_tokens
    return ["Paris" for _ in prompts]


def _deadlock(library: ctypes.CDLL) -> None:
    """Lock a mutex twice; signals do not end the wait, and nobody unlocks it."""
    mutex = ctypes.create_string_buffer(256)
    library.pthread_mutex_init(mutex, None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
