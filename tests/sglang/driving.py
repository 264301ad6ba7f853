"""A bare loop around a backend, and plain mlx-lm's answers to hold it against.

The adapter's tests drive it themselves: `mlxcheck.session` hides what they look at.
"""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mlxcheck.backends.base import Request
from mlxcheck.records import ModelRef

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.backends.base import Emission
    from mlxcheck.backends.sglang import SglangBackend

__all__ = ["MODELS", "Drive", "Expected", "model_ref", "opening", "random_prompts", "run"]

MODELS = Path(__file__).resolve().parents[2] / "fixtures" / "models"
_MOST_STEPS = 5000  # far more than any test needs: an engine that never ends must not hang

Tokens = tuple[int, ...]


def model_ref(path: Path) -> ModelRef:
    """Return what a backend is opened on, for a folder with a ``config.json``."""
    config = json.loads((path / "config.json").read_text())
    return ModelRef(
        source=str(path),
        path=str(path),
        model_type=config["model_type"],
        vocab_size=config["vocab_size"],
    )


@contextmanager
def opening(variant: type[SglangBackend], model: ModelRef) -> Iterator[Any]:
    """Yield a function that opens *variant* with options; all are closed at the end."""
    made: list[SglangBackend] = []

    def open_one(**options: Any) -> SglangBackend:
        backend = variant(**options)
        made.append(backend)
        backend.open(model)
        return backend

    yield open_one
    for backend in made:
        backend.close()


def random_prompts(lengths: Sequence[int], *, seed: int = 0, below: int = 250) -> list[Tokens]:
    """Return prompts of these lengths with ids that every fixture's vocabulary has."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    return [tuple(dice.randrange(below) for _ in range(length)) for length in lengths]


class Expected:
    """Plain mlx-lm's greedy answers, stop ids ignored, each computed once."""

    def __init__(self, model: ModelRef) -> None:
        self._path = model.path
        self._model: Any = None
        self._known: dict[tuple[Tokens, int], Tokens] = {}

    def __enter__(self) -> Self:
        """Load nothing yet: the first question does."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the model."""
        self._model = None

    def __call__(self, prompts: Sequence[Tokens], max_tokens: int) -> list[Tokens]:
        """Return one answer a prompt."""
        return [self._one(prompt, max_tokens) for prompt in prompts]

    def release(self) -> None:
        """Free the model, and keep the answers."""
        self._model = None

    def _one(self, prompt: Tokens, max_tokens: int) -> Tokens:
        key = prompt, max_tokens
        if key not in self._known:
            import mlx.core as mx
            import mlx_lm
            from mlx_lm.generate import generate_step

            if self._model is None:
                self._model = mlx_lm.load(self._path)[0]
            steps = generate_step(mx.array(prompt), self._model, max_tokens=max_tokens)
            self._known[key] = tuple(int(token) for token, _ in steps)
        return self._known[key]


@dataclass(slots=True)
class Drive:
    """Requests in flight on one backend, and all that they were given."""

    backend: SglangBackend
    answers: dict[str, list[int]] = field(default_factory=dict)
    shown: dict[str, list[Emission]] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    widths: list[int] = field(default_factory=list)

    def submit(
        self, request_id: str, prompt: Tokens, max_tokens: int, *, forced: Tokens | None = None
    ) -> None:
        """Hand one request over."""
        self.answers[request_id] = []
        self.shown[request_id] = []
        self.backend.submit(
            Request(id=request_id, tokens=prompt, max_tokens=max_tokens, forced=forced)
        )

    def cancel(self, request_id: str) -> None:
        """Drop one request."""
        self.backend.cancel(request_id)
        self.finished[request_id] = "cancelled"

    def step(self) -> None:
        """Advance once, and check that only requests in flight are given anything."""
        for emission in self.backend.step():
            assert emission.request_id not in self.finished
            self.answers[emission.request_id].append(emission.token)
            self.shown[emission.request_id].append(emission)
            if emission.finish is not None:
                self.finished[emission.request_id] = emission.finish
        self.widths.append(self.backend.stats()["batch_width"])

    def finish(self) -> list[Tokens]:
        """Advance until all have ended, and return the answers in order of submission."""
        for _ in range(_MOST_STEPS):
            if len(self.finished) == len(self.answers):
                return [tuple(tokens) for tokens in self.answers.values()]
            self.step()
        msg = f"no end after {_MOST_STEPS} steps"
        raise AssertionError(msg)


def run(
    backend: SglangBackend, prompts: Sequence[Tokens], max_tokens: int, *, name: str = "r"
) -> list[Tokens]:
    """Submit all prompts at once, and return their answers."""
    drive = Drive(backend)
    for number, prompt in enumerate(prompts):
        drive.submit(f"{name}{number}", prompt, max_tokens)
    return drive.finish()
