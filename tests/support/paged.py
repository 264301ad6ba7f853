"""What drives the paged runner, and what mlx-lm says to the same prompts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from fixtures.paged import PagedBackend
from fixtures.random_models import RandomModel, build
from mlxcheck.backends.base import Request
from mlxcheck.records import ModelRef
from mlxcheck.reference import load_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.backends.base import Emission

__all__ = [
    "BAND",
    "BASE",
    "RAGGED",
    "Driven",
    "Known",
    "Models",
    "Opener",
    "Wave",
    "nonsense",
    "wave",
]

MOE = Path(__file__).parents[2] / "fixtures" / "models" / "qwen3_moe-float32"

BAND = 1e-4
"""Of logits: rings keep another order than mlx-lm's, and sums round."""


def nonsense(*lengths: int, seed: int = 2) -> list[tuple[int, ...]]:
    """Return prompts of random ids."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    return [tuple(draw.randrange(260, 670) for _ in range(length)) for length in lengths]


RAGGED = nonsense(3, 17, 33, 9, 40, 8, 1)
(BASE,) = nonsense(26, seed=5)


class Known:
    """A model, and mlx-lm's own greedy answers on it."""

    def __init__(self, path: Path) -> None:
        self.ref = ModelRef(source=str(path), path=str(path))
        self._model = load_model(str(path))
        self._answers: dict[tuple[tuple[int, ...], int], tuple[list[int], list[mx.array]]] = {}

    def answer(self, prompt: tuple[int, ...], count: int) -> tuple[list[int], list[mx.array]]:
        """Return the tokens that mlx-lm says and the logits that they come from."""
        if (prompt, count) not in self._answers:
            cache, fed = make_prompt_cache(self._model), prompt
            tokens: list[int] = []
            rows: list[mx.array] = []
            for _ in range(count):
                rows.append(self._model(mx.array([fed]), cache=cache)[0, -1])
                tokens.append(int(mx.argmax(rows[-1])))
                fed = (tokens[-1],)
            self._answers[prompt, count] = tokens, rows
        return self._answers[prompt, count]


class Models:
    """A trained model with experts, and of any other family one of random weights.

    Random weights leave narrow margins: a slot too many or too few shows in the logits.

    Args:
        folder: Where those are built, each when it is first asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Known] = {}

    def __getitem__(self, family: str) -> Known:
        if family not in self._known:
            made = self._folder / family
            path = MOE if family == "qwen3_moe" else build(RandomModel(family=family), made)
            self._known[family] = Known(path)
        return self._known[family]


Wave = dict[str, tuple[tuple[int, ...], int]]


class Driven:
    """An open backend and what it said."""

    def __init__(self, backend: PagedBackend, model: Known) -> None:
        self.backend = backend
        self.model = model
        self.said: dict[str, list[Emission]] = {}
        self.prompts: Wave = {}
        self.widths: list[int] = []
        backend.open(model.ref)

    def submit(self, wave: Wave, *, forced: bool = True, stop: Sequence[int] = ()) -> None:
        """Submit requests; forced ones show their logits."""
        for name, (prompt, count) in wave.items():
            answer = tuple(self.model.answer(prompt, count)[0]) if forced else None
            self.prompts[name], self.said[name] = (prompt, count), []
            self.backend.submit(
                Request(
                    id=name,
                    tokens=prompt,
                    max_tokens=count,
                    stop_ids=tuple(stop),
                    forced=answer,
                )
            )

    def step(self) -> None:
        """Make one step."""
        for emission in self.backend.step():
            self.said[emission.request_id].append(emission)
        self.widths.append(self.backend.stats()["batch_width"])

    def run(self, wave: Wave, *, forced: bool = True, stop: Sequence[int] = ()) -> None:
        """Submit requests and step until all have ended."""
        self.submit(wave, forced=forced, stop=stop)
        for _ in range(1000):
            if all(self.said[name] and self.said[name][-1].finish for name in wave):
                return
            self.step()
        pytest.fail(f"not at their end after 1,000 steps: {list(wave)}")

    def off(self) -> set[str]:
        """Return the requests whose tokens or logits are not mlx-lm's."""
        return {name for name in self.said if not self.agrees(name)}

    def agrees(self, name: str) -> bool:
        """Tell whether a request got mlx-lm's tokens from mlx-lm's logits."""
        tokens, rows = self.model.answer(*self.prompts[name])
        said = self.said[name]
        if [emission.token for emission in said] != tokens:
            return False
        shown = [(one.logits, row) for one, row in zip(said, rows, strict=True)]
        return all(own is None or float(mx.abs(own - row).max()) < BAND for own, row in shown)

    def settled(self) -> tuple[int, int]:
        """Return the blocks that are free or kept for reuse, and all that there are."""
        storage = self.backend.runner.storage
        kept = len(storage.prefix) if storage.prefix is not None else 0
        pools = [storage.pool, *([storage.rings] if storage.rings is not None else [])]
        return sum(pool.free for pool in pools) + kept, sum(pool.blocks for pool in pools)


class Opener:
    """Opens backends, and closes them all in the end."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._backends: list[PagedBackend] = []

    def __call__(
        self,
        family: str = "qwen3",
        kind: type[PagedBackend] = PagedBackend,
        **sizes: Any,
    ) -> Driven:
        """Open a backend on a model of *family*."""
        self._backends.append(kind(**sizes))
        return Driven(self._backends[-1], self._models[family])

    def close(self) -> None:
        """Close what was opened; closing twice does no harm."""
        for backend in self._backends:
            backend.close()


def wave(prompts: Sequence[tuple[int, ...]], count: int, name: str = "r") -> Wave:
    """Name prompts, with answers of different lengths so that they leave one by one."""
    return {f"{name}{n}": (prompt, count + n % 3) for n, prompt in enumerate(prompts)}
