"""Records made by hand: what tests of the pure rooms feed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.checks.base import Grounds
from mlxcheck.messages import Place
from mlxcheck.noise import Arm, Noise
from mlxcheck.records import Case, Finish, ModelRef, Prompt, Scores, Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.backends.base import Capabilities
    from mlxcheck.checks.base import Effort
    from mlxcheck.records import Fault

__all__ = [
    "STOPS",
    "case_of",
    "grounds",
    "measured",
    "model",
    "place",
    "prompt",
    "scores",
    "text_of",
    "trace",
]

STOPS = (2, 3)
"""The stop set of the models here."""


def model(*, vocab_size: int = 100, stop_ids: tuple[int, ...] = STOPS) -> ModelRef:
    """Make a model that is nowhere on disk."""
    return ModelRef(source="a/tiny", path="/a/tiny", vocab_size=vocab_size, stop_ids=stop_ids)


def grounds(
    prompts: Sequence[Prompt],
    capabilities: Capabilities,
    effort: Effort = "standard",
    seed: int = 0,
    expected: Sequence[Trace] = (),
) -> Grounds:
    """Make what a plan is made from."""
    return Grounds(
        prompts=prompts,
        capabilities=capabilities,
        effort=effort,
        seed=seed,
        expected={each.prompt_id: each for each in expected},
        model=model(),
    )


def prompt(name: str = "sum", length: int = 3) -> Prompt:
    """Make a prompt of so many ids."""
    return Prompt(id=name, tokens=tuple(10 + n % 50 for n in range(length)))


def case_of(*names: str, case_id: str = "batch-x", alone: bool = False) -> Case:
    """Make a case of prompts with these ids."""
    return Case(id=case_id, prompts=tuple(prompt(name) for name in names), alone=alone)


def scores(*ids: int, step: float = 0.5) -> Scores:
    """Make scores that fall by *step* nats from one id to the next."""
    return Scores(
        ids=ids, logprobs=tuple(-0.25 - step * n for n in range(len(ids))), logsumexp=9.0
    )


def measured(
    swing: float = 0.0, *, span: float | None = None, dtype: str = "bfloat16"
) -> Noise:
    """Make a noise of one step in one arm.

    Args:
        swing: Its largest change of a pair.
        span: Its largest change of all; None for the same.
        dtype: Of the logits.
    """
    arm = Arm(
        arm="one shot",
        prompt_id="sum",
        errors=(0.01,),
        divergences=(0.0,),
        swings=(swing,),
        spans=(swing if span is None else span,),
        flips=(),
    )
    return Noise(dtype=dtype, exact=False, arms=(arm,))


def trace(
    *tokens: int,
    finish: Finish | None = "stop",
    prompt_id: str = "sum",
    scored: Sequence[Scores] = (),
    fault: Fault | None = None,
) -> Trace:
    """Make a trace of these tokens."""
    return Trace(
        prompt_id=prompt_id, tokens=tokens, finish=finish, scores=tuple(scored), fault=fault
    )


def place(check: str = "tokens", case: Case | None = None, row: int = 0) -> Place:
    """Make the place of a row; by default of a prompt that is alone."""
    return Place(
        check=check,
        case=case or case_of("sum", case_id="alone/sum", alone=True),
        row=row,
        reference="mlx-lm 0.0",
        candidate="mine",
        again="mlxcheck run M --backend mine",
        text_of=text_of,
    )


def text_of(token: int) -> str:
    """Return the text of a token: a letter, or the name of the stop id."""
    return "<end>" if token in STOPS else chr(97 + token % 26)
