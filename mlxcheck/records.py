"""The nouns: frozen, plain Python, free of arrays and callbacks, fit to be written to disk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

__all__ = [
    "ALL_PROMPTS",
    "FAILING",
    "RESERVED",
    "STOP_SET",
    "Case",
    "Comparison",
    "Fault",
    "Finish",
    "ModelRef",
    "Moment",
    "Phase",
    "Precision",
    "Prompt",
    "Schedule",
    "Scores",
    "Trace",
    "Verdict",
]

ALL_PROMPTS = "all-prompts"
"""The prompt id of what a check says about all its comparisons together."""

STOP_SET = "stop-set"
"""What the comparison of stop sets is called where others have their prompt's id."""

RESERVED = frozenset({ALL_PROMPTS, STOP_SET})
"""Ids that no prompt can have."""

Precision = Literal["float32", "native"]
"""A pass over one checkpoint: cast to float32 with TF32 off, or as it is."""

Finish = Literal["stop", "length"]
"""Why an answer ended: at a stop id, or at ``max_tokens``."""


class Verdict(StrEnum):
    """What one comparison came to."""

    EXACT = "EXACT"
    TIE = "TIE"
    DRIFT = "DRIFT"
    WRONG = "WRONG"
    ERROR = "ERROR"
    INCONCLUSIVE = "INCONCLUSIVE"


FAILING = frozenset({Verdict.DRIFT, Verdict.WRONG, Verdict.ERROR})
"""The verdicts that make a run fail."""


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
        window: The keys that a layer with a sliding window sees, in tokens; None where no
            layer has one, or none is named in ``config.json``.
        stop_ids: The tokenizer's stop set; empty until the tokenizer has been read.
    """

    source: str
    path: str
    revision: str | None = None
    trust_remote_code: bool = False
    model_type: str = ""
    vocab_size: int = 0
    max_positions: int | None = None
    window: int | None = None
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
        messages: The (role, content) turns that went through the chat template to give
            the ids; None where there were none.
    """

    id: str
    tokens: tuple[int, ...]
    text: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What an engine's raw logits said at one step, normalised in float32.

    Attributes:
        ids: The reference's: its top ``k = min(64, vocabulary)`` tokens. The candidate's:
            the reference's there and its own top 5, or what it reports. Best first, ties
            by lower id.
        logprobs: Their natural-log probabilities, in the same order.
        logsumexp: The log-sum-exp of the raw logits over the whole vocabulary; None where
            only log-probabilities are known.
        unrest: The reference's: how far these move, in nats, when the model's norms are
            jittered by a few units in the last place (`mlxcheck.jitter`). Next to nothing,
            but where a router stands at a tie; 0 where it was not measured.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    logsumexp: float | None = None
    unrest: float = 0.0

    @property
    def margin(self) -> float:
        """Top-1 minus top-2 log-probability, in nats."""
        if len(self.logprobs) < 2:  # noqa: PLR2004 - a vocabulary of one token
            return float("inf")
        return self.logprobs[0] - self.logprobs[1]

    @property
    def top_logit(self) -> float:
        """The largest raw logit; 0 where only log-probabilities are known."""
        return 0.0 if self.logsumexp is None else self.logprobs[0] + self.logsumexp

    @property
    def finite(self) -> bool:
        """Whether these can be numbers of a sound model: no NaN, no infinite sum."""
        lse = 0.0 if self.logsumexp is None else self.logsumexp
        best = math.isfinite(lse) and math.isfinite(self.logprobs[0])
        return best and not any(map(math.isnan, self.logprobs))

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
        asked: False: the request could not be put to it, which is none of its faults.
    """

    summary: str
    detail: str = ""
    asked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What an engine said to one prompt.

    Attributes:
        prompt_id: Which prompt.
        tokens: The ids it gave, the stop id included where it gave one.
        finish: Why it ended; None where the engine does not say.
        scores: One entry a token, or empty where the engine shows no logits.
        anchors: The steps after which the engine was put back on the reference's tokens:
            what it says next is said in the reference's context again. Where it was
            forced, every step.
        reported: How far the log-probabilities that it reports are from its own raw
            logits, one entry a token, in units in the last place of the logits' dtype;
            empty where it does not show both.
        left: It was cancelled before its end.
        text: What it said, where that is known as text alone, and `tokens` were read from
            it (`mlxcheck.texts`).
        fault: Set where the engine failed; `tokens` then holds what came before.
    """

    prompt_id: str
    tokens: tuple[int, ...]
    finish: Finish | None = None
    scores: tuple[Scores, ...] = ()
    anchors: tuple[int, ...] = ()
    reported: tuple[float, ...] = ()
    left: bool = False
    text: str | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in a case, told by what one of its rows has done: no clock, no engine's own step.

    Attributes:
        row: That row. It has to be submitted first.
        tokens: It has said so many; None: it has ended, whatever it said.
        steps: So many more steps of the engine have passed since.
    """

    row: int
    tokens: int | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who joins and who leaves at which moment.

    Attributes:
        joins: One a row: when it is submitted; None at the start.
        leaves: One a row: when it is cancelled; None where it stays to its end.
    """

    joins: tuple[Moment | None, ...]
    leaves: tuple[Moment | None, ...]

    @property
    def events(self) -> int:
        """Joins and leaves that are not at the start or the end."""
        return sum(moment is not None for moment in (*self.joins, *self.leaves))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Prompts that are submitted together, or as a schedule says: one drive of the candidate.

    Attributes:
        id: Unique in a run, and the same in every run of the same prompts and seed.
        prompts: One a row, in the order of submission; the same prompt may come twice.
        alone: One request that will have no company: an engine with a path of its own
            for that takes it.
        forced: The engine is made to go on from the reference's answers, and shows what it
            would have said.
        schedule: Who joins and leaves when; None: all start together and stay.
        given: One a row: so many tokens of the reference's answer are the prompt's end, and
            what is asked is the rest; empty where that is none for all.
        most: One a row: the most tokens of its answer, 0 for as many as the run allows; empty
            where that is so for all.
        chunk: Prompt tokens of a prefill call, where the engine can be told; None: its own.
        fresh: The engine is opened anew before it: what is asked is asked of one that knows
            nothing yet.
        rounds: How often it is driven, one time after the other; the last one is judged.
    """

    id: str
    prompts: tuple[Prompt, ...]
    alone: bool = False
    forced: bool = False
    schedule: Schedule | None = None
    given: tuple[int, ...] = ()
    most: tuple[int, ...] = ()
    chunk: int | None = None
    fresh: bool = False
    rounds: int = 1


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
        noise: The band that the regret was held against, in nats: what rounding may do, as
            measured; None where none was measured.
        ulps: The regret in units in the last place of the logits' dtype at their
            magnitude; None where the regret is.
        top_expected: The reference's best five tokens there with their log-probabilities.
        top_actual: The candidate's, where it shows them.
        ties: Steps that differ and are ties; they are in `steps`.
        worst_tie: The largest regret of these, in nats.
        near: Compared steps at which the reference's own margin is within the band.
        errors: Per step, the RMS of candidate minus reference over the log-probabilities
            of the reference's top 64, centred, in nats; NaN where not comparable.
        divergences: Per step, the divergence from the reference over the same, in nats.
        flips: The steps at which a forced candidate would have said another token.
        precision: The pass.
        message: The whole explanation, a paragraph a line.
        case: The `Case.id` that repeats it.
        batch: Rows in that case.
        row: This prompt's row.
        neighbours: The prompt ids of the other rows, in row order.
        steps: Steps that were compared and agree, ties included.
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
    ulps: float | None = None
    top_expected: tuple[tuple[int, float], ...] = ()
    top_actual: tuple[tuple[int, float], ...] = ()
    ties: int = 0
    worst_tie: float = 0.0
    near: int = 0
    errors: tuple[float, ...] = ()
    divergences: tuple[float, ...] = ()
    flips: tuple[int, ...] = ()
    precision: Precision = "native"
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
        name: ``"load"``, ``"reference"``, ``"noise"``, ``"release"``, ``"open"`` or
            ``"candidate"``.
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
