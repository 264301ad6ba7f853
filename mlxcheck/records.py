"""The nouns: frozen, plain Python, free of arrays and callbacks, fit to be written to disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

__all__ = [
    "Case",
    "Comparison",
    "Fault",
    "Finish",
    "ModelRef",
    "Phase",
    "Prompt",
    "Scores",
    "Trace",
    "Verdict",
]

Finish = Literal["stop", "length"]
"""Why an answer ended: at a stop id, or at ``max_tokens``."""


class Verdict(StrEnum):
    """What one comparison came to."""

    EXACT = "EXACT"
    WRONG = "WRONG"
    ERROR = "ERROR"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A checkpoint on this machine, as both engines are pointed at it.

    Attributes:
        source: What the user gave: a path or a hub id.
        path: The folder that holds config, weights and tokenizer.
        revision: The hub revision, where one was asked for.
        trust_remote_code: Whether code in the checkpoint may be run.
        model_type: The architecture, as in ``config.json``.
        vocab_size: Rows of the output head; valid ids are ``0 <= id < vocab_size``.
        max_positions: The longest sequence that the model is made for, in tokens.
        stop_ids: The tokenizer's stop set; empty until the tokenizer has been read.
    """

    source: str
    path: str
    revision: str | None = None
    trust_remote_code: bool = False
    model_type: str = ""
    vocab_size: int = 0
    max_positions: int | None = None
    stop_ids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the last part of the source, short enough for a table or a test id."""
        return self.source.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids with a name.

    Attributes:
        id: Unique in a run; printable, used in test ids and on the command line.
        tokens: The ids that every engine gets.
        text: What the ids were made from, for people; never encoded again.
    """

    id: str
    tokens: tuple[int, ...]
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What an engine's raw logits said at one step, normalised in float32.

    Attributes:
        ids: The top ``k = min(64, vocabulary)`` tokens, best first, ties by lower id.
        logprobs: Their natural-log probabilities, in the same order.
        logsumexp: The log-sum-exp of the raw logits over the whole vocabulary.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    logsumexp: float

    @property
    def margin(self) -> float:
        """Top-1 minus top-2 log-probability, in nats."""
        if len(self.logprobs) < 2:  # noqa: PLR2004 - a vocabulary of one token
            return float("inf")
        return self.logprobs[0] - self.logprobs[1]

    def logprob(self, token: int) -> float | None:
        """The log-probability of *token*, or None where it is not in the top k."""
        try:
            return self.logprobs[self.ids.index(token)]
        except ValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How an engine failed to answer.

    Attributes:
        summary: One line.
        detail: The traceback or stack, where there is one.
    """

    summary: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What an engine said to one prompt.

    Attributes:
        prompt_id: Which prompt.
        tokens: The ids it gave, the stop id included where it gave one.
        finish: Why it ended; None where the engine does not say.
        scores: One entry a token, or empty where the engine shows no logits.
        fault: Set where the engine failed; `tokens` then holds what came before.
    """

    prompt_id: str
    tokens: tuple[int, ...]
    finish: Finish | None = None
    scores: tuple[Scores, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Prompts that are submitted together: one drive of the candidate.

    Attributes:
        id: Unique in a run, and the same in every run of the same prompts and seed.
        prompts: One a row, in the order of submission; the same prompt may come twice.
        alone: One request that will have no company: an engine with a path of its own
            for that takes it.
    """

    id: str
    prompts: tuple[Prompt, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One prompt under one check: a verdict with its evidence.

    Attributes:
        check: The question.
        prompt_id: The prompt.
        verdict: The answer.
        step: The first step (from 0) at which the tokens differ; None on agreement.
        expected: The reference's token there; None past its end.
        actual: The candidate's token there; None where it had already ended.
        margin: The reference's own top-1 minus top-2 log-probability there, in nats.
        regret: The reference's log-probability of its own token minus that of the
            candidate's, in nats; 0 on agreement, None where it cannot be known.
        noise: The measured noise that the regret was held against, in nats; None where
            none was measured.
        message: The whole explanation, a paragraph a line.
        case: The `Case.id` that repeats it.
        batch: Rows in that case.
        row: This prompt's row.
        neighbours: The prompt ids of the other rows, in row order.
        steps: Steps that were compared and agreed.
        skipped: Reference steps that were not compared.
    """

    check: str
    prompt_id: str
    verdict: Verdict
    step: int | None = None
    expected: int | None = None
    actual: int | None = None
    margin: float | None = None
    regret: float | None = None
    noise: float | None = None
    message: str = ""
    case: str = ""
    batch: int = 1
    row: int = 0
    neighbours: tuple[str, ...] = ()
    steps: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of a run, measured at its end.

    Attributes:
        name: ``"baseline"``, ``"load"``, ``"reference"``, ``"release"``, ``"open"``,
            ``"candidate"`` or ``"close"``.
        seconds: Wall time.
        active: MLX's active memory, bytes.
        cached: MLX's cached (pooled) memory, bytes.
        peak: MLX's peak of active memory within the phase, bytes.
        rss: The process's resident set, bytes.
    """

    name: str
    seconds: float
    active: int
    cached: int
    peak: int
    rss: int
