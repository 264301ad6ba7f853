"""Adapters that break a rule on what they say: emissions, stats, numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxcheck.backends.base import Emission, Request, TextEmission
from tests.contracts.adapters import Changes, Live, Sound, TextAlone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.records import Finish

__all__ = ["BROKEN"]


# --- Each emission --------------------------------------------------------------------------


class GivesTuples(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [said, (said.request_id, said.token)]


class GivesNone(Sound):
    def step(self) -> Any:
        return super().step() or None


class Yields(Sound):
    def step(self) -> Any:
        yield from super().step()


class AnswersStrangers(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [said, replace(said, request_id="nobody")]


class AnswersNobody(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, request_id=7)]  # type: ignore[arg-type]


class GoesOnAfterTheEnd(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [said, replace(said, finish=None)] if said.finish else [said]


class GoesOnAfterACancel(Sound):
    late: tuple[Emission, ...] = ()

    def cancel(self, request_id: str) -> None:
        if request_id in self.rows:
            self.late = (Emission(request_id=request_id, token=1),)
        super().cancel(request_id)

    def step(self) -> Any:
        late, self.late = self.late, ()
        return [*super().step(), *late]


class GivesTextToo(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [TextEmission(request_id=said.request_id, text="a"), said]


class GivesTextInstead(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [TextEmission(request_id=said.request_id, text="a", finish=said.finish)]


class TextMissing(TextAlone):
    def text(self, said: Emission) -> Any:
        given = super().text(said)
        return replace(given, text=None)


class TextWithoutEnd(TextAlone):
    def finish(self, live: Live, token: int) -> Finish | None:
        del live, token
        return None


class IdsAfterAll(TextAlone):
    def text(self, said: Emission) -> Any:
        return said


class GivesFloats(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, token=float(said.token))]  # type: ignore[arg-type]


class GivesArrays(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        token: Any = mx.array(said.token)
        return [replace(said, token=token)]


class LeavesTheVocabulary(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, token=said.token + 100_000)]


class EndsInItsOwnWords(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        finish: Any = "eos" if said.finish == "stop" else "max_tokens"
        return [replace(said, finish=finish)] if said.finish else [said]


class SwallowsStops(Sound):
    """Ends an answer before its fourth token, as if a stop id had come there."""

    def finish(self, live: Live, token: int) -> Finish | None:
        return "stop" if len(live.said) == 3 else super().finish(live, token)


class EndsEarly(Sound):
    def finish(self, live: Live, token: int) -> Finish | None:
        early = len(live.said) == live.request.max_tokens - 1
        return "length" if early else super().finish(live, token)


class EndsWithoutAWord(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, finish=None)] if said.finish == "length" else [said]


class NeverEnds(Sound):
    def finish(self, live: Live, token: int) -> Finish | None:
        found = super().finish(live, token)
        return None if found == "length" else found


# --- Stats ----------------------------------------------------------------------------------


class CountsInFloats(Sound):
    def stats(self) -> Any:
        return {**super().stats(), "batch_width": float(self.width)}


class CountsInAList(Sound):
    def stats(self) -> Any:
        return list(super().stats().values())


class CountsBelowNothing(Sound):
    def stats(self) -> Any:
        return {**super().stats(), "drafted_tokens": -1}


class CountsAnew(Sound):
    def submit(self, request: Request) -> None:
        self.chunks = 0
        super().submit(request)


class TakesThree(Sound):
    room = 3


class TakesTwoForOne(Sound):
    capabilities = replace(Sound.capabilities, batch=False)

    def stats(self) -> Any:
        return {**super().stats(), "batch_width": 2}


# --- Numbers --------------------------------------------------------------------------------


class IgnoresForcing(Sound):
    def submit(self, request: Request) -> None:
        super().submit(replace(request, forced=None))


class ShowsPartOfTheLogits(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, logits=said.logits[:-5])]


class ShowsNoLogits(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, logits=None)]


class ShowsNames(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, logits={"logits": 1})]


class ShowsHoles(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, logits=mx.where(said.logits > 1, math.nan, said.logits))]


class ShowsTheWholeBatch(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, logits=mx.stack([said.logits, said.logits]))]


class ShowsAnotherStep(Sound):
    def say(self, live: Live) -> Sequence[Any]:
        (said,) = super().say(live)
        late = self.logits(live)
        told = float((late[said.token] - mx.logsumexp(late)).item())
        return [replace(said, logits=late, logprobs={said.token: told})]


class ReportsProbabilities(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        assert said.logprobs is not None
        told = {token: math.exp(value) for token, value in said.logprobs.items()}
        return [replace(said, logprobs=told)]


class ReportsNothing(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        return [replace(said, logprobs=None)]


class ReportsByName(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        told: Any = {f"token_id:{said.token}": -0.5}
        return [replace(said, logprobs=told)]


class ReportsColder(Changes):
    def changed(self, said: Emission) -> Sequence[Any]:
        assert said.logprobs is not None
        told = {token: value / 0.9 for token, value in said.logprobs.items()}
        return [replace(said, logprobs=told)]


class ReadsAtOnce(Sound):
    def set_prefill_chunk(self, size: int | None) -> None:
        del size


class KeepsItsChunk(Sound):
    def set_prefill_chunk(self, size: int | None) -> None:
        self.chunk = size or self.chunk


class CachesUnseen(Sound):
    def stats(self) -> Any:
        return {**super().stats(), "cached_tokens": 0}


class EncodesToAnArray(Sound):
    def encode(self, messages: Sequence[Mapping[str, str]]) -> Any:
        return mx.array(super().encode(messages))


class EncodesToNothing(Sound):
    def encode(self, messages: Sequence[Mapping[str, str]]) -> Any:
        return super().encode(messages)[:0]


class StopsAtNames(Sound):
    def stop_set(self) -> Any:
        return ["<eos>"]


BROKEN: dict[str, tuple[Any, ...]] = {
    "goes-on-from-what-is-forced": (IgnoresForcing,),
    "shows-whole-logits": (
        ShowsPartOfTheLogits,
        ShowsNoLogits,
        ShowsNames,
        ShowsHoles,
        ShowsTheWholeBatch,
    ),
    "shows-the-logits-of-its-token": (ShowsAnotherStep,),
    "shows-log-probabilities": (ReportsProbabilities, ReportsNothing, ReportsByName),
    "reports-what-its-logits-say": (ReportsColder,),
    "reads-in-chunks": (ReadsAtOnce, KeepsItsChunk),
    "reuses-prefixes": (CachesUnseen,),
    "encodes-to-ids": (EncodesToAnArray, EncodesToNothing),
    "tells-its-stop-ids": (StopsAtNames,),
    "emits-emissions": (GivesTuples, GivesNone, Yields),
    "answers-what-was-asked": (AnswersStrangers, AnswersNobody),
    "is-quiet-after-a-finish": (GoesOnAfterTheEnd,),
    "is-quiet-after-a-cancel": (GoesOnAfterACancel,),
    "shows-ids-or-text": (GivesTextToo, GivesTextInstead, TextMissing, IdsAfterAll),
    "tokens-are-ids": (GivesFloats, GivesArrays, LeavesTheVocabulary),
    "finish-is-a-reason": (EndsInItsOwnWords,),
    "stops-with-a-stop-id": (SwallowsStops,),
    "is-as-long-as-max-tokens": (EndsEarly,),
    "says-its-finish": (EndsWithoutAWord, NeverEnds, TextWithoutEnd),
    "stats-are-counts": (CountsInFloats, CountsInAList, CountsBelowNothing),
    "totals-never-fall": (CountsAnew,),
    "is-as-wide-as-max-batch": (TakesThree, TakesTwoForOne),
}
"""Adapters that break one rule each, by its name."""
