"""Every fault of the matrix, with its engine and a model that has what it breaks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from fixtures.faults.hybrid import HYBRID
from fixtures.faults.mlx_lm import FAULTS as MLX_LM
from fixtures.faults.paged import FAULTS as PAGED
from fixtures.faults.prompts import FAULTS as PROMPTS
from fixtures.faults.single import SINGLE, DraftIgnored
from fixtures.faults.small import SMALL
from fixtures.faults.speculative import FAULTS as SPECULATIVE
from fixtures.faults.windows import CHUNKED, WINDOWED
from fixtures.paged.backend import PagedBackend
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.backends.mlx_lm_speculative import SpeculativeBackend
from mlxcheck.backends.sglang import SglangBackend, SglangRadixBackend
from tests.honesty.shared import MODELS
from tests.support import sglang_linux

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fixtures.random_models import RandomModel

__all__ = ["Entry", "all_entries", "honest_engines"]

NARROW = (5, 46)
"""Rows whose faults want margins that the usual prompts of a trained model do not have."""

TURNS = ("qwen3_moe-float32", "qwen3-float32", "qwen2_moe-float32")
"""Trained models that faults without a need of their own are dealt to in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One fault on one model, or an honest engine.

    Attributes:
        backend: The class; of a fault with ``row``, ``sentence``, ``red`` and ``green``.
        engine: Whose mechanism it is.
        model: A trained model's name, or what to build.
        honest: Nothing may be red.
        usual: Asked the usual prompts, and not the fault's own.
    """

    backend: type[Any]
    engine: str
    model: str | RandomModel
    honest: bool = False
    usual: bool = False

    @property
    def row(self) -> int:
        """Of the table of faults; 0 of an engine without one."""
        return getattr(self.backend, "row", 0)

    @property
    def name(self) -> str:
        """What it does, in words."""
        return getattr(self.backend, "sentence", "") or "nothing: the engine as it is"

    @property
    def model_name(self) -> str:
        """The model, for people."""
        return self.model if isinstance(self.model, str) else self.model.name

    @property
    def family(self) -> str:
        """The model's architecture."""
        if isinstance(self.model, str):
            return self.model.rsplit("-", 1)[0]
        return str(self.model.family)


def all_entries() -> Iterator[Entry]:
    """Yield every fault, those of SGLang's runner where it is installed."""
    chunked = [fault for fault in CHUNKED if fault not in MLX_LM]
    for fault, model in zip((*MLX_LM, *chunked, *PROMPTS), cycle(TURNS), strict=False):
        yield Entry(backend=fault, engine="mlx-lm", model=model)
    for fault in HYBRID:
        yield Entry(backend=fault, engine="mlx-lm", model="lfm2-float32")
    for fault in WINDOWED:
        yield Entry(backend=fault, engine="mlx-lm", model="gemma3_text-float32")
    for trial in SMALL:
        # A trained model where there is one: in random weights every change flips tokens.
        name = f"{trial.model.family}-float32"
        trained = (MODELS / name).is_dir() and trial.model.below_zero is None
        yield Entry(
            backend=trial.fault,
            engine="mlx-lm",
            model=name if trained else trial.model,
            honest=trial.fault.honest,
            usual=trained and trial.fault.row not in NARROW,
        )
    for fault in SINGLE:
        yield Entry(backend=fault, engine="mlx-lm", model="qwen3-float32")
    for drafting in (*SPECULATIVE, DraftIgnored):
        yield Entry(backend=drafting, engine="mlx-lm-speculative", model="qwen3-float32")
    for paged in PAGED:
        yield Entry(backend=paged, engine="paged", model=f"{paged.family}-float32")
    if sglang_linux.missing() is None:
        from tests.sglang.faults import FAULTS as SGLANG

        for other in SGLANG:
            yield Entry(backend=other, engine="sglang", model="qwen3_moe-float32")


def honest_engines() -> Iterator[Entry]:
    """Yield the engines as they are, on every trained family that faults are planted on."""
    for model in ("lfm2-float32", "gemma2-float32"):
        yield Entry(backend=MlxLmBackend, engine="mlx-lm", model=model, honest=True)
    for model in (*TURNS, "gemma3_text-float32"):
        yield Entry(backend=MlxLmBackend, engine="mlx-lm", model=model, honest=True)
        yield Entry(backend=PagedBackend, engine="paged", model=model, honest=True)
    yield Entry(
        backend=SpeculativeBackend,
        engine="mlx-lm-speculative",
        model="qwen3-float32",
        honest=True,
    )
    if sglang_linux.missing() is None:
        for backend in (SglangBackend, SglangRadixBackend):
            yield Entry(
                backend=backend, engine="sglang", model="qwen3_moe-float32", honest=True
            )
