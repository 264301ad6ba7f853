"""Adapters that break a rule on opening, closing, or the requests that they take."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import mlx.core as mx

from mlxcheck.backends.base import Emission, Request
from mlxcheck.errors import RequestFailed
from tests.contracts.adapters import CannotCancel, Live, Refuses, Sound

if TYPE_CHECKING:
    from mlxcheck.records import Finish, ModelRef

__all__ = ["BROKEN"]


# --- Stating, opening, closing --------------------------------------------------------------


class NeedsArguments(Sound):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path


class LacksStats(Sound):
    stats = None  # type: ignore[assignment]


class LacksItsChunks(Sound):
    set_prefill_chunk = None  # type: ignore[assignment]


class LacksEncoding(Sound):
    encode = stop_set = None  # type: ignore[assignment]


class Nameless(Sound):
    name = ""


class NamedByANumber(Sound):
    name = 7  # type: ignore[assignment]


class SizeAsText(Sound):
    capabilities = replace(Sound.capabilities, max_batch="2")  # type: ignore[arg-type]


class SizeOfNothing(Sound):
    capabilities = replace(Sound.capabilities, prefill_chunk=0)


class CapableByDict(Sound):
    capabilities = {"batch": True}  # type: ignore[assignment]  # noqa: RUF012


class ClosesOnlyOpen(Sound):
    def close(self) -> None:
        if self.model is None:
            msg = "'NoneType' object has no attribute 'shutdown'"
            raise AttributeError(msg)
        super().close()


class DoesNotOpen(Sound):
    def open(self, model: ModelRef) -> None:
        msg = f"no kernel for {model.model_type}"
        raise RuntimeError(msg)


class HangsInOpen(Sound):
    def open(self, model: ModelRef) -> None:
        del model
        time.sleep(60)


class RenamesItself(Sound):
    def open(self, model: ModelRef) -> None:
        super().open(model)
        self.name = f"sound on {model.name}"


class SettlesBadly(Sound):
    def open(self, model: ModelRef) -> None:
        super().open(model)
        self.capabilities = None  # type: ignore[assignment]


class RaisesWhenIdle(Sound):
    def step(self) -> Any:
        next(iter(self.rows or self.waiting))
        return super().step()


class SpeaksWhenIdle(Sound):
    def step(self) -> Any:
        return super().step() if self.known else [Emission(request_id="", token=0)]


class ClosesBadly(Sound):
    def close(self) -> None:
        super().close()
        if self.model is not None:
            msg = "the pool was closed twice"
            raise RuntimeError(msg)


class OpensOnce(Sound):
    opened: ClassVar[bool] = False

    def open(self, model: ModelRef) -> None:
        if OpensOnce.opened:
            msg = "the process group is initialised already"
            raise RuntimeError(msg)
        OpensOnce.opened = True
        super().open(model)


class OpensItselfOnce(Sound):
    def open(self, model: ModelRef) -> None:
        assert self.model is None, "opened already"
        super().open(model)


class ClosesOnlyIdle(Sound):
    def close(self) -> None:
        assert not self.rows, "requests in flight"
        super().close()


class KeepsItsWeights(Sound):
    kept: ClassVar[list[Any]] = []

    def close(self) -> None:
        self.kept.append(self.weights)
        super().close()


# --- Requests -------------------------------------------------------------------------------


class RefusesAll(Refuses):
    def bad(self, request: Request) -> bool:
        del request
        return True


class FailsAll(Sound):
    def step(self) -> Any:
        for request_id in self.rows:
            raise RequestFailed(request_id, "status 500")
        return super().step()


class Silent(Sound):
    def step(self) -> Any:
        return []


class Hangs(Sound):
    def step(self) -> Any:
        if self.waiting:
            time.sleep(60)
        return super().step()


class RefusesLone(Refuses):
    def bad(self, request: Request) -> bool:
        return request.alone


class RefusesOneToken(Refuses):
    def bad(self, request: Request) -> bool:
        return len(request.tokens) == 1


class RefusesShortAnswers(Refuses):
    def bad(self, request: Request) -> bool:
        return request.max_tokens == 1


class OverlooksTheFirst(Sound):
    def finish(self, live: Live, token: int) -> Finish | None:
        found = super().finish(live, token)
        return None if found == "stop" and len(live.said) == 1 else found


class LooksAtTheFirst(Sound):
    def finish(self, live: Live, token: int) -> Finish | None:
        found = super().finish(live, token)
        return None if found == "stop" and len(live.said) > 1 else found


class RefusesText(Refuses):
    def bad(self, request: Request) -> bool:
        return not request.id.removeprefix("c").isdecimal()


class Wanders(Sound):
    def logits(self, live: Live) -> Any:
        del live
        self.turns = getattr(self, "turns", 0) + 1
        assert self.model is not None
        return mx.random.normal((self.model.vocab_size,), key=mx.random.key(self.turns))


class RefusesCompany(Refuses):
    def bad(self, request: Request) -> bool:
        del request
        return bool(self.rows or self.waiting)


class RefusesGuests(Refuses):
    def bad(self, request: Request) -> bool:
        del request
        return bool(self.rows)


class ForgetsTheFormer(Sound):
    """Drops a request that is decoded when another one comes."""

    def submit(self, request: Request) -> None:
        self.rows.clear()
        super().submit(request)


class RefusesToQueue(Refuses):
    def bad(self, request: Request) -> bool:
        del request
        return len(self.rows) + len(self.waiting) >= self.room


class CannotCancelWaiting(CannotCancel):
    def bad(self, request_id: str) -> bool:
        return any(live.request.id == request_id for live in self.waiting)


class CannotCancelReading(CannotCancel):
    def bad(self, request_id: str) -> bool:
        return request_id in self.rows and self.rows[request_id].reading


class CannotCancelDecoding(CannotCancel):
    def bad(self, request_id: str) -> bool:
        return request_id in self.rows and not self.rows[request_id].reading


class CancelsAll(Sound):
    def cancel(self, request_id: str) -> None:
        if request_id in self.rows and not self.rows[request_id].reading:
            self.rows.clear()
        super().cancel(request_id)


class CannotCancelStrangers(CannotCancel):
    def bad(self, request_id: str) -> bool:
        here = {live.request.id for live in self.waiting} | set(self.rows)
        return request_id not in here


BROKEN: dict[str, tuple[Any, ...]] = {
    "is-made-without-arguments": (NeedsArguments,),
    "has-its-methods": (LacksStats, LacksItsChunks, LacksEncoding),
    "has-a-name": (Nameless, NamedByANumber),
    "states-its-capabilities": (SizeAsText, SizeOfNothing, CapableByDict),
    "closes-unopened": (ClosesOnlyOpen,),
    "opens": (DoesNotOpen, HangsInOpen),
    "states-the-same-when-open": (RenamesItself, SettlesBadly),
    "gives-nothing-when-idle": (RaisesWhenIdle, SpeaksWhenIdle),
    "answers": (RefusesAll, FailsAll, Silent, Hangs),
    "answers-alone": (RefusesLone,),
    "answers-a-prompt-of-one-token": (RefusesOneToken,),
    "gives-one-token": (RefusesShortAnswers,),
    "takes-any-id": (RefusesText,),
    "repeats-itself": (Wanders,),
    "stops-at-its-first-token": (OverlooksTheFirst,),
    "stops-at-a-later-token": (LooksAtTheFirst,),
    "answers-several-at-once": (RefusesCompany,),
    "lets-requests-join": (RefusesGuests, ForgetsTheFormer),
    "queues-what-does-not-fit": (RefusesToQueue,),
    "cancels-what-waits": (CannotCancelWaiting,),
    "cancels-in-prefill": (CannotCancelReading,),
    "cancels-in-decode": (CannotCancelDecoding, CancelsAll),
    "cancels-what-is-over": (CannotCancelStrangers,),
    "closes": (ClosesBadly,),
    "frees-its-memory": (KeepsItsWeights,),
    "opens-a-fresh-one": (OpensOnce,),
    "opens-again": (OpensItselfOnce,),
    "closes-in-flight": (ClosesOnlyIdle,),
}
"""Adapters that break one rule each, by its name."""
