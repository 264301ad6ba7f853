"""Noise and scored answers made by hand: what tests of bands, tests and passes feed in."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlxcheck.noise import Arm, Noise, Probe
from mlxcheck.records import Scores
from tests.support.driven import Engine
from tests.support.made import trace
from tests.support.reported import comparison

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlxcheck.backends.base import Emission, Request
    from mlxcheck.records import Comparison, Prompt, Trace

__all__ = [
    "ALT",
    "ARMS",
    "CLEAR",
    "NEAR",
    "WHAT",
    "Scripted",
    "World",
    "again_from",
    "arm",
    "noise",
    "probed",
    "row",
    "said",
    "swing",
    "world",
]

ALT = 30
"""What a near token is above the reference's own."""

WHAT = "of a knob"
"""What is planted here."""

ARMS = ("one shot", "2 chunks", "3 chunks", "2 equal rows")


def row(*logprobs: float, first: int = 0, logsumexp: float | None = 9.0) -> Scores:
    """Make the scores of the tokens from *first* on."""
    ids = tuple(range(first, first + len(logprobs)))
    return Scores(ids=ids, logprobs=logprobs, logsumexp=logsumexp)


def arm(*errors: float, prompt_id: str = "sum", **more: Any) -> Arm:
    """Make an arm of these errors, all else none unless said; spans are swings unless said."""
    none = (0.0,) * len(errors)
    made = {"arm": ARMS[0], "divergences": none, "swings": none, "flips": (), **more}
    made.setdefault("spans", made["swings"])
    return Arm(prompt_id=prompt_id, errors=errors, **made)


def noise(*arms: Arm, dtype: str = "bfloat16", exact: bool = False, **more: Any) -> Noise:
    """Make what was measured of these arms."""
    return Noise(dtype=dtype, exact=exact, arms=arms, **more)


CLEAR, NEAR = row(-0.25, -3.0, -6.0), row(-0.7, -0.75, -6.0)
"""A step that no rounding turns, and one that it may."""


def said(*scored: Scores, prompt_id: str = "sum") -> Trace:
    """Make the reference's answer of these steps."""
    return trace(*(each.ids[0] for each in scored), prompt_id=prompt_id, scored=scored)


def swing(ours: Scores, theirs: Scores) -> float:
    """Return how far another moves the best token from one of its seven rivals."""
    there = dict(zip(theirs.ids, theirs.logprobs, strict=True))
    offs = [there[token] - old for token, old in zip(ours.ids, ours.logprobs, strict=True)]
    return max(abs(off - offs[0]) for off in offs[:8])


def again_from(pairs: Sequence[tuple[Prompt, Trace]]) -> Callable[[Prompt, int], Trace]:
    """Answer again what was answered."""
    by_id = {prompt.id: trace for prompt, trace in pairs}

    def again(prompt: Prompt, steps: int) -> Trace:
        trace = by_id[prompt.id]
        return replace(trace, tokens=trace.tokens[:steps], scores=trace.scores[:steps])

    return again


class Scripted(Engine):
    """Says what the script has for a prompt's ids, as far as it may."""

    script: Mapping[tuple[int, ...], tuple[int, ...]]
    shows: Callable[[Request, int], Mapping[str, Any]] = staticmethod(lambda *_: {})
    width = 7
    breaks_at = 0
    """The step, counted from 1, that raises."""

    def trouble(self, method: str) -> None:
        super().trouble(method)
        if method == "step" and self.log.count("step") == self.breaks_at:
            message = "boom"
            raise ZeroDivisionError(message)

    def submit(self, request: Request) -> None:
        super().submit(request)
        answer = self.script[request.tokens]
        self.end = "stop" if answer[-1] == 2 else "length"
        self.live[request.id] = list(answer[: request.max_tokens])

    def emit(self, name: str) -> Emission:
        (request,) = [each for each in self.requests if each.id == name]
        said_so_far = len(self.script[request.tokens]) - len(self.live[name])
        return replace(super().emit(name), **self.shows(request, said_so_far))

    def stats(self) -> Mapping[str, int]:
        Scripted.width -= 1
        return {"batch_width": self.width}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One run over prompts that were all scored again.

    Attributes:
        noise: Four arms a prompt.
        looks: The candidate's comparisons, one a prompt.
        expected: The reference's traces by prompt id.
    """

    noise: Noise
    looks: tuple[Comparison, ...]
    expected: dict[str, Trace]


def world(  # noqa: PLR0913 - the knobs of one simulation
    seed: int,
    *,
    prompts: int = 12,
    steps: int = 8,
    heavy: float = 0.0,
    times: float = 1.0,
    raised: float = 0.0,
    armed: int | None = None,
) -> World:
    """Draw a run: log-normal errors about levels of prompt and step, for all scorers alike.

    Args:
        seed: Of all chance.
        prompts: How many.
        steps: Of each answer.
        heavy: The share of steps from which on a scorer's error is ten times what it was.
        times: The candidate's errors over what an arm's would be.
        raised: A fault's error, which adds to the candidate's in squares.
        armed: Of how many prompts the arms are kept; None for all.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    arms: list[Arm] = []
    looks: list[Comparison] = []
    expected: dict[str, Trace] = {}
    for name in (f"p{n}" for n in range(prompts)):
        levels = _levels(draw, steps)
        for way in ARMS:
            errors = _errors(draw, levels, heavy)
            swings = tuple(3 * error for error in errors)
            more = {"divergences": _squares(errors), "swings": swings}
            arms.append(arm(*errors, prompt_id=name, arm=way, **more))
        said = (math.hypot(times * error, raised) for error in _errors(draw, levels, heavy))
        looks.append(_look(name, tuple(said)))
        expected[name] = trace(
            *(5,) * steps, prompt_id=name, scored=[row(-0.25, -5.0, first=5)] * steps
        )
    kept = arms if armed is None else arms[: armed * len(ARMS)]
    return World(noise=noise(*kept), looks=tuple(looks), expected=expected)


def probed(
    run: World,
    change: float = 0.02,
    size: float = 40.0,
    span: float = 0.0,
    *,
    clean: bool = True,
) -> World:
    """Add a probe to a run: its errors are *size* times the change.

    Beside the noise, where it is not *clean*.
    """
    probes: list[Probe] = []
    for name in run.expected:
        columns = [each.errors for each in run.noise.arms if each.prompt_id == name]
        means = [sum(step) / len(step) for step in zip(*columns, strict=True)]
        made = Probe(
            what=WHAT,
            change=change,
            prompt_id=name,
            errors=tuple(math.hypot(0.0 if clean else m, size * change) for m in means),
            spans=(span,) * len(means),
            clean=clean,
        )
        probes.append(made)
    return replace(run, noise=replace(run.noise, probes=tuple(probes)))


def _look(name: str, errors: tuple[float, ...]) -> Comparison:
    return comparison(prompt_id=name, errors=errors, divergences=_squares(errors))


def _levels(draw: random.Random, steps: int) -> list[float]:
    of_prompt = 0.05 * draw.lognormvariate(0, 0.5)
    return [of_prompt * draw.lognormvariate(0, 0.5) for _ in range(steps)]


def _errors(draw: random.Random, levels: Sequence[float], heavy: float) -> tuple[float, ...]:
    moved = 1.0
    out: list[float] = []
    for level in levels:
        moved = 10.0 if draw.random() < heavy else moved
        out.append(moved * level * draw.lognormvariate(0, 0.4))
    return tuple(out)


def _squares(errors: Sequence[float]) -> tuple[float, ...]:
    return tuple(error * error / 2 for error in errors)
