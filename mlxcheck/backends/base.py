"""The narrow waist: what a candidate engine must be able to do, and nothing more.

An adapter is a plain class. It need not check ids, count tokens, watch the clock or catch
exceptions: `mlxcheck.session.Session` does all of that around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mlxcheck.records import Finish, ModelRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Backend", "Capabilities", "Emission", "ModelRef", "Request", "TextEmission"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can be asked.

    Attributes:
        batch: Several requests may be in flight at once.
        joins: Requests may be submitted, and cancelled, while others are being answered.
        max_batch: The most rows that the engine decodes in one step; None if unlimited
            or unknown. More may be submitted: the engine queues them.
        stop: The engine ends a request at a stop id by itself. Where False, the session
            cancels the request when it has said one.
        prefix_cache: Requests may reuse the KV cache of earlier ones.
        prefill_chunk: The most prompt tokens in one prefill step; None if unlimited or
            unknown.
        sets_prefill_chunk: The backend has ``set_prefill_chunk(size: int | None) -> None``:
            requests that are submitted from then on are prefilled in calls of at most so
            many tokens; None is the engine's own size again.
        casts: `Backend.open` loads the checkpoint that it is given, so that a copy of it in
            float32 can be compared too.
        drafts: The engine proposes tokens and has the model decide (speculative decoding).
        teacher_forcing: The engine can be made to go on from tokens that it is given
            (`Request.forced`) instead of its own.
        logits: `Emission.logits` is set; for forced requests at least.
        logprobs: `Emission.logprobs` is set; for forced requests at least, where the
            engine can be forced.
        encode: The backend has ``encode(messages) -> list[int]``, which turns chat turns
            into the ids that its engine would be given by default, or ``stop_set() ->
            list[int]``, the ids that end an answer there, or both.
        ids: The engine shows the ids of its tokens. Where False, it gives each `TextEmission`,
            whose text is read onto the reference's tokens: the same text is then the same.
    """

    batch: bool = True
    joins: bool = True
    max_batch: int | None = None
    stop: bool = True
    prefix_cache: bool = False
    prefill_chunk: int | None = None
    sets_prefill_chunk: bool = False
    casts: bool = True
    drafts: bool = False
    teacher_forcing: bool = False
    logits: bool = False
    logprobs: bool = False
    encode: bool = False
    ids: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be decoded greedily.

    Attributes:
        id: Unique for the life of the backend.
        tokens: The prompt, at least one id.
        max_tokens: The most tokens to give.
        stop_ids: Ids that end the answer; the one that does is given too.
        alone: No other request will be in flight beside it. An engine with a path of its
            own for single requests takes that path; others ignore this.
        forced: The answer to go on from, whatever the engine would have chosen: each
            emission gives the next of these, and its logits are those from which the
            engine itself would have chosen. As long as `max_tokens`. Only engines with
            `Capabilities.teacher_forcing` get such requests.
    """

    id: str
    tokens: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    alone: bool = False
    forced: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """One token of one request.

    Attributes:
        request_id: Which request.
        token: The id, a Python int.
        logprobs: Natural-log probabilities by token id as the engine itself reports them,
            for any of the ids; None where it shows none.
        logits: The raw logits that the token was chosen from, before any normalisation: an
            array of any float dtype and shape ``[vocabulary]`` or ``[1, vocabulary]``; None
            where the engine does not show them. It is read at once and not kept.
        finish: Set on the last emission of a request, and only there.
    """

    request_id: str
    token: int
    logprobs: Mapping[int, float] | None = None
    logits: Any = None
    finish: Finish | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEmission:
    """A piece of text of one request, from an engine that shows no token ids.

    An engine that does show them gives one without text where it says that a request has
    stopped, and not at which id.

    Attributes:
        request_id: Which request.
        text: What this adds to the answer; a stop id has no text.
        finish: Set on the last emission of a request, and only there.
    """

    request_id: str
    text: str = ""
    finish: Finish | None = None


@runtime_checkable
class Backend(Protocol):
    """One candidate engine, driven a step at a time.

    All calls come from one thread, the one that called `open`. Any exception that a
    method raises is kept, with its traceback, as the verdict of the case at hand. Two of
    `mlxcheck.errors`, raised by `submit` or `step`, are about one request, and the others go
    on: `CannotAsk` says that the engine cannot be given it as it stands, which is no verdict,
    and `RequestFailed` that the engine broke it.
    """

    name: str
    capabilities: Capabilities

    def open(self, model: ModelRef) -> None:
        """Build the engine on *model*. `capabilities` may be settled here.

        Nothing may be loaded before: the reference has just been freed.
        """

    def submit(self, request: Request) -> None:
        """Take one request in. Work may begin here or in `step`."""

    def step(self) -> Sequence[Emission | TextEmission]:
        """Advance by one step and return what came out.

        At most one token a request and call is expected of engines that decode a token
        a step; several are taken in the order given. An empty answer says that the
        engine worked (a prefill chunk, say) without a token to show.
        """

    def cancel(self, request_id: str) -> None:
        """Drop a request that has not finished; it must emit nothing more."""

    def stats(self) -> Mapping[str, int]:
        """Return what the latest `step` did, as far as the engine can tell.

        ``batch_width``: rows of the latest decode step. ``cached_tokens``: prompt tokens
        that were not computed again. ``prefill_chunks``: prefill calls so far.
        ``drafted_tokens`` and ``accepted_tokens``: what a draft proposed so far, and what of
        it the model took.
        """

    def close(self) -> None:
        """Free the engine and undo whatever `open` changed. Called once, always."""
