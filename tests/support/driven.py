"""An engine made of Python alone, and what drives it through a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlxcheck.backends.base import Capabilities, Emission, Request
from mlxcheck.policy import Policy
from mlxcheck.session import Answers, Session
from tests.support.made import case_of, model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlxcheck.records import Case, Fault, Finish, ModelRef

__all__ = ["ONE", "PATIENT", "TWO", "Engine", "Maker", "broken", "drive", "fault_of"]

PATIENT = Policy(watchdog_s=60, grace_s=5)


class Engine:
    """Answers every request with `answer`, a token a step, and writes down what it is asked.

    Each method asks `trouble` first, so that a test can make any of them misbehave.
    """

    name = "engine"
    capabilities = Capabilities()
    answer: tuple[Any, ...] = (5, 6, 2)
    end: Finish | None = "stop"

    def __init__(self) -> None:
        """Begin with nothing in flight."""
        self.live: dict[str, list[Any]] = {}
        self.requests: list[Request] = []
        self.log: list[str] = []

    def trouble(self, method: str) -> None:
        """Note the call; raise here to break it."""
        self.log.append(method)

    def open(self, model: ModelRef) -> None:
        self.trouble("open")
        del model

    def submit(self, request: Request) -> None:
        self.trouble("submit")
        self.requests.append(request)
        self.live[request.id] = list(self.answer)

    def step(self) -> Sequence[Emission]:
        self.trouble("step")
        return [self.emit(name) for name in list(self.live)]

    def emit(self, name: str) -> Emission:
        """Give the next token of a request."""
        left = self.live[name]
        token = left.pop(0)
        finish = self.end if not left else None
        if not left:
            del self.live[name]
        return Emission(request_id=name, token=token, finish=finish)

    def cancel(self, request_id: str) -> None:
        self.trouble(f"cancel {request_id}")
        self.live.pop(request_id, None)

    def stats(self) -> Mapping[str, int]:
        self.trouble("stats")
        return {}

    def close(self) -> None:
        self.trouble("close")


class Maker:
    """A factory that keeps every engine it made."""

    def __init__(self, kind: Callable[[], Engine]) -> None:
        """Begin with none made."""
        self.kind = kind
        self.made: list[Engine] = []

    def __call__(self) -> Engine:
        """Make one more."""
        self.made.append(self.kind())
        return self.made[-1]

    @property
    def log(self) -> list[str]:
        """What the only engine was asked."""
        (engine,) = self.made
        return engine.log


def broken(
    method: str, error: BaseException | None = None, *, times: int = 99
) -> Callable[[], Engine]:
    """Return a class whose method raises, the first so many times over all its engines."""
    left = [times]

    class Broken(Engine):
        def trouble(self, asked: str) -> None:
            super().trouble(asked)
            if asked.split(maxsplit=1)[0] == method and left[0]:
                left[0] -= 1
                raise error or ZeroDivisionError(f"in {method}")

    return Broken


def drive(
    factory: Callable[[], Engine],
    *cases: Case,
    max_tokens: int = 8,
    policy: Policy = PATIENT,
) -> list[Answers]:
    """Run cases in one session."""
    with Session(factory, model(), policy) as session:
        return [session.run(case, max_tokens=max_tokens) for case in cases]


def fault_of(answers: Answers, row: int = 0) -> Fault:
    """Return the fault of a row, which must have one."""
    fault = answers.traces[row].fault
    assert fault is not None
    return fault


ONE, TWO = case_of("sum", case_id="one"), case_of("sum", "count", case_id="two")
