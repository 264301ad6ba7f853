"""Honest engines never fail: many cases, and the ties among them with their margins.

A case is one prompt compared under one check in one pass.

    python tests/honesty/sweep.py [--device cpu|gpu] [--large] [--budget SECONDS]

Models are the trained ones and random ones of all families, in several kinds of weights;
candidates are mlx-lm's own batching in many sizes, the same summing in another order, and
the same showing nothing but tokens. `wide-attention`, which is run where it is asked for,
rounds less than MLX does on the CPU.

Exit status 1 on any WRONG, DRIFT or ERROR, on a control that does not hold, and on
INCONCLUSIVE anywhere but for tokens alone on random models in 16 bits.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlx.core as mx

import mlxcheck
from fixtures.faults.small import OtherOrder, Small
from fixtures.random_models import LARGE, RandomModel
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.errors import ReferenceBroken
from mlxcheck.policy import Policy
from mlxcheck.prompts import packaged
from tests.honesty.shared import (
    KINDS,
    MODELS,
    Folders,
    choose_device,
    in_kind,
    nonsense,
    say,
    write_json,
)
from tests.honesty.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fixtures.faults.planted import Patch

__all__ = ["main"]

TRAINED = ("qwen3", "qwen3_moe", "qwen2_moe")

SMALL = {
    "qwen3": RandomModel(family="qwen3", layers=2),
    "qwen3_moe": RandomModel(family="qwen3_moe", layers=2),
    "qwen2_moe": RandomModel(family="qwen2_moe", layers=2),
    # As many key heads as heads: batches of Gemma 2 with fewer are wrong in mlx-lm itself.
    "gemma2": RandomModel(family="gemma2", layers=2, kv_heads=4),
    "gemma3_text": RandomModel(family="gemma3_text", layers=2),
    "llama": RandomModel(family="llama", layers=2),
}
_SIZES = {name: value for name, value in LARGE.items() if name != "dtype"}
BIG = {
    "qwen3": RandomModel(family="qwen3", **_SIZES),
    "qwen3_moe": RandomModel(family="qwen3_moe", **_SIZES),
}
SIXTEEN_BITS = {kind for kind, (dtype, _) in KINDS.items() if dtype != "float32"}

WIDTHS = tuple(range(2, 17))
"""Rows of one decode step: the fullest batch of a run is one row more."""


class TokensAlone(MlxLmBackend):
    """mlx-lm, showing nothing but its tokens."""

    name = "tokens-alone"

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.capabilities = replace(
            self.capabilities, teacher_forcing=False, logits=False, logprobs=False
        )


_attend: Any = mx.fast.scaled_dot_product_attention


def _in_float32(
    queries: mx.array, keys: mx.array, values: mx.array, **options: Any
) -> mx.array:
    """Attend as kernels do that keep scores and sums in float32, and round once."""
    wide = [each.astype(mx.float32) for each in (queries, keys, values)]
    mask = options.get("mask")
    if isinstance(mask, mx.array) and mask.dtype != mx.bool_:
        options["mask"] = mask.astype(mx.float32)
    out: mx.array = _attend(*wide, **options).astype(queries.dtype)
    return out


class WideAttention(Small):
    """Honest: more exact than the reference where MLX has no fused kernel, as on the CPU."""

    name = "wide-attention"
    honest = True

    def patches(self) -> Iterator[Patch]:
        yield mx.fast, "scaled_dot_product_attention", _in_float32


CANDIDATES: dict[str, type[Any]] = {
    "mlx-lm": MlxLmBackend,
    "other-order": OtherOrder,
    "wide-attention": WideAttention,
    "tokens-alone": TokensAlone,
}


USUAL = ("mlx-lm", "other-order", "tokens-alone")
"""Those with MLX's own kernels in every place that rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run.

    Attributes:
        name: Of the model.
        model: What to build; None for a trained model.
        kind: Of the weights, a key of `KINDS`.
        candidate: A key of `CANDIDATES`.
        round: Another one draws other weights, prompts and sizes.
        lengths: The shortest and longest prompt, and how many.
        max_tokens: Of an answer.
    """

    name: str
    model: RandomModel | None
    kind: str
    candidate: str
    round: int
    lengths: tuple[int, int, int] = (1, 120, 8)
    max_tokens: int = 8

    @property
    def undecided(self) -> bool:
        """Whether INCONCLUSIVE is right."""
        random_16 = self.model is not None and self.kind in SIXTEEN_BITS
        return random_16 and self.candidate == "tokens-alone"

    @property
    def draw(self) -> random.Random:
        """Return a source of numbers of its own."""
        return random.Random(f"{self.name}/{self.kind}/{self.candidate}/{self.round}")  # noqa: S311 - no secret


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yield the runs, those of one round first, and in it every kind of each model in turn.

    What the time leaves out is then some models and no kind.
    """
    for number in range(options.rounds):
        for name in () if options.large else TRAINED:
            for kind in options.kinds:
                wanted = not options.models or f"{name}-trained" in options.models
                if wanted and kind in {"float32", "8bit"}:
                    job = Job(name=f"{name} trained", model=None, kind=kind, candidate="",
                              round=number)  # fmt: skip
                    yield from (replace(job, candidate=each) for each in options.candidates)
        for name, spec in (BIG if options.large else SMALL).items():
            for kind in options.kinds if not options.models or name in options.models else ():
                model = replace(in_kind(spec, kind), seed=number)
                job = Job(name=name, model=model, kind=kind, candidate="", round=number)
                if options.large:
                    job = replace(job, lengths=(3, 160, 24), max_tokens=48)
                yield from (replace(job, candidate=each) for each in options.candidates)


def prompts(job: Job) -> Sequence[object]:
    """Return prompts of mixed lengths; of trained models, half or all were taught."""
    shortest, longest, count = job.lengths
    draw = job.draw
    taught = [entry for entry in packaged() if not entry.id.startswith("len-")]
    # What a model was not taught it answers by near ties, of which tokens alone tell nothing.
    share = count if job.candidate == "tokens-alone" else count // 2
    known = [] if job.model else draw.sample(taught, share)
    if len(known) == count:
        return known
    spread = (longest / shortest) ** (1 / max(1, count - len(known) - 1))
    lengths = {round(shortest * spread**n) for n in range(count - len(known))}
    extra = [draw.randint(shortest, longest) for _ in range(count - len(known) - len(lengths))]
    seed = f"{job.name}/{job.round}"
    return [*known, *nonsense([*sorted(lengths), *extra], seed)]


def candidate(job: Job) -> type[Any]:
    """Return the engine, with sizes drawn for this run."""
    draw = job.draw
    sizes = {
        "completion_batch_size": draw.choice(WIDTHS) if job.round or not job.model else 16,
        "prefill_batch_size": draw.choice((1, 2, 3, 4, 8, 16)),
        # Not so few that a short answer is over before a long prompt has been read.
        "prefill_step_size": draw.choice((32, 48, 64, 512, 2048)),
    }
    honest: Any = CANDIDATES[job.candidate]

    def init(self: Any) -> None:
        honest.__init__(self, **sizes)

    return type(honest.__name__, (honest,), {"__init__": init})


def run(job: Job, folders: Folders, tally: Tally) -> float:
    """Do one run, and return the seconds it took.

    Raises:
        RuntimeError: This build of MLX cannot run the model.
    """
    model = folders.make(job.model) if job.model else _trained(job)
    start = time.perf_counter()
    alone = job.candidate == "tokens-alone" and job.kind in SIXTEEN_BITS
    report = mlxcheck.check(
        model,
        candidate(job),
        prompts=prompts(job),
        max_tokens=job.max_tokens,
        seed=job.round,
        # A float32 pass speaks for the engine too; here the tokens are to stand alone.
        policy=Policy(precision="native") if alone else None,  # type: ignore[arg-type]
    )
    tally.add((job.name, job.kind, job.candidate), report, undecided=job.undecided)
    return time.perf_counter() - start


def _trained(job: Job) -> Path:
    return MODELS / f"{job.name.removesuffix(' trained')}-{job.kind}"


def sweep(options: argparse.Namespace, tally: Tally) -> list[str]:
    """Do all runs that fit, and return what was left out."""
    left_out: list[str] = []
    end = time.perf_counter() + options.budget
    with Folders.temporary() as folders:
        for job in jobs(options):
            name = f"{job.name} {job.kind} {job.candidate} {job.round}"
            if time.perf_counter() > end:
                left_out.append(f"{name}: the time was used up")
                continue
            before, cases = len(tally.objections), tally.cases
            try:
                seconds = run(job, folders, tally)
            except (RuntimeError, ReferenceBroken) as error:
                left_out.append(f"{name}: {error}")
                continue
            new = len(tally.objections) - before
            said = f"{new} OBJECTIONS" if new else "ok"
            say(f"{said:4s} {name}: {tally.cases - cases} cases, {seconds:.1f} s")
    return left_out


def main(argv: list[str] | None = None) -> int:
    """Sweep; 1 where an honest engine was objected to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--large", action="store_true", help="12 layers of 1024, for a GPU")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="of weights")
    names = [*SMALL, *(f"{name}-trained" for name in TRAINED)]
    parser.add_argument("--models", nargs="+", choices=names, help="all, if left out")
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=USUAL)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--budget", type=float, default=540, help="seconds to begin runs in")
    parser.add_argument("--least", type=int, default=0, help="cases; fewer are a failure")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    options.kinds = options.kinds or (["bf16"] if options.large else [*KINDS])
    device = choose_device(options.device)
    tally, start = Tally(), time.perf_counter()
    left_out = sweep(options, tally)
    seconds = time.perf_counter() - start
    tally.tell()
    for text in left_out:
        say(f"left out {text}")
    bad = len(tally.objections)
    say(f"{tally.cases:,} honest cases on {device} in {seconds:.0f} s, {bad} objections")
    if options.json:
        found = {"device": device, "seconds": seconds, "left_out": left_out, **tally.plain()}
        write_json(options.json, found)
    return int(bool(bad) or tally.cases < max(1, options.least))


if __name__ == "__main__":
    sys.exit(main())
