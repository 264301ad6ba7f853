"""A state machine that drives any backend a call at a time, and knows every token to expect.

Where a `Case` is drawn whole, here hypothesis decides before every step who is submitted and
who is cancelled; a failure prints the calls that lead to it.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from mlxcheck.asked import rest
from mlxcheck.backends import registry
from mlxcheck.backends.base import Backend, Emission, Request
from mlxcheck.compare import weigh

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcheck.policy import Mode
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Prompt, Trace

__all__ = ["EngineMachine", "machine"]

_QUIET_STEPS = 3
"""Steps after the last cancel in which an engine has to stay silent."""

_MOST = 8


@dataclass(slots=True, kw_only=True)
class _Live:
    """One request.

    Attributes:
        prompt: What was asked.
        expected: The reference's answer, as far as it was asked for.
        said: Tokens so far.
        over: Why it has nothing more to say; empty as long as it has.
    """

    prompt: Prompt
    expected: Trace
    said: int = 0
    over: str = ""


@dataclass(slots=True, kw_only=True, repr=False)
class _Engine:
    """The one engine of a machine class, opened by its first example.

    Attributes:
        factory: Makes it.
        record: Returns what the reference said; called once.
        calibrated: Whether near ties are let pass.
        max_rows: The most requests in flight.
        backend: Open; None before the first example and after a fault.
        known: What the reference said.
        numbers: Of requests: an id is never used again.
    """

    factory: Callable[[], Backend]
    record: Callable[[], Recorded]
    calibrated: bool
    max_rows: int
    backend: Backend | None = None
    known: Recorded | None = None
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def recorded(self) -> Recorded:
        if self.known is None:
            self.known = self.record()
        return self.known

    def prompts(self) -> dict[str, Prompt]:
        """Return the prompts that the reference has answered, shortest first."""
        known = self.recorded()
        answered = [prompt for prompt in known.prompts if prompt.id in known.traces]
        in_order = sorted(answered, key=lambda each: (len(each.tokens), each.id))
        return {prompt.id: prompt for prompt in in_order}

    def ready(self) -> Backend:
        if self.backend is None:
            # Before the candidate, which may patch mlx-lm, or take the memory.
            model = self.recorded().model
            backend = self.factory()
            self.backend = backend  # what opens half must be closed too
            backend.open(model)
        return self.backend

    def close(self) -> None:
        backend, self.backend = self.backend, None
        if backend is not None:
            backend.close()


class EngineMachine(RuleBasedStateMachine):
    """Submit, step and cancel, and hold every emission against the reference.

    Made by `machine`; a subclass may add rules and invariants of its own.
    """

    engine: ClassVar[_Engine]

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.engine.ready()
        self.requests: dict[str, _Live] = {}
        self.failed = False

    @classmethod
    def close(cls) -> None:
        """Close the engine; the next example opens another."""
        cls.engine.close()

    @property
    def live(self) -> list[str]:
        """The ids of the requests in flight, oldest first."""
        return [name for name, each in self.requests.items() if not each.over]

    def room(self) -> bool:
        """Tell whether one more request may be in flight."""
        rows = self.engine.max_rows if self.backend.capabilities.batch else 1
        return len(self.live) < rows

    def take(self, emission: Emission) -> None:
        """Hold one emission against the reference.

        Raises:
            AssertionError: It is not what the reference says there.
        """
        request = self.requests.get(emission.request_id)
        token = f"token {emission.token!r} for request {emission.request_id!r}"
        assert request is not None, f"it gave {token}, which is not in flight"  # noqa: S101
        who = f"{request.prompt.id}, request {emission.request_id!r}"
        assert not request.over, f"{who}: it gave {token} after {request.over}"  # noqa: S101
        wanted = request.expected.tokens[request.said]
        if emission.token != wanted:
            if not self._tie(request, emission.token):
                msg = (
                    f"{who}: token {request.said + 1} of {len(request.expected.tokens)} "
                    f"differs: expected {wanted}, got {emission.token}"
                )
                raise AssertionError(msg)
            self._cancel(emission.request_id, "it was cancelled at a tie")
            return
        request.said += 1
        self._end(emission, request, who)

    def _tie(self, request: _Live, token: int) -> bool:
        noise = self.engine.recorded().noise if self.engine.calibrated else None
        scored, step = request.expected.scores, request.said
        scores = scored[step] if step < len(scored) else None
        return weigh(noise, scores, token, request.expected.tokens[step]) != "beyond"

    def _end(self, emission: Emission, request: _Live, who: str) -> None:
        """See that it ends where the reference does, for the same reason."""
        total, wanted = len(request.expected.tokens), request.expected.finish
        # A stop id may be left out: whether it is given is no question of tokens.
        left_out = wanted == "stop" and request.said == total - 1
        if emission.finish is not None:
            ends = request.said == total or (left_out and emission.finish == "stop")
            told = f"{who}: it ends for {emission.finish!r} after {request.said} tokens; "
            told += f"expected {total} tokens and {wanted!r}"
            assert ends and emission.finish == wanted, told  # noqa: S101, PT018 - one rule
            request.over = "its finish"
        elif request.said == total:
            ends_itself = self.backend.capabilities.stop
            told = f"{who}: it does not end after {total} tokens; expected {wanted!r}"
            assert wanted == "length" or not ends_itself, told  # noqa: S101
            self._cancel(emission.request_id, "its last token")

    def _cancel(self, name: str, why: str) -> None:
        self.requests[name].over = why
        self.backend.cancel(name)

    def _advance(self) -> None:
        for emission in tuple(self.backend.step()):
            shown = "a machine compares token ids, and this engine does not show one"
            assert isinstance(emission, Emission), shown  # noqa: S101
            self.take(emission)

    def _quiet(self) -> None:
        """Cancel what is in flight, and see that the engine has nothing more to say."""
        for name in self.live:
            self._cancel(name, "it was cancelled")
        for _ in range(_QUIET_STEPS):
            self._advance()

    def teardown(self) -> None:
        """Leave nothing in flight; an engine that fails is not used again."""
        try:
            if not self.failed:
                self._quiet()
        except BaseException:
            self.failed = True
            raise
        finally:
            if self.failed:
                self.close()


def machine(
    backend: object,
    recorded: Recorded | Callable[[], Recorded],
    *,
    mode: Mode = "calibrated",
    max_rows: int = 4,
) -> type[EngineMachine]:
    """Make a state machine that drives a backend and knows what the reference says.

    The engine is opened by the first example, on the model of *recorded*, and again after an
    example that failed. ``TestCase`` closes it when its tests are over; who runs the machine
    otherwise calls ``close()``. There is no watchdog: an engine that hangs, hangs the test.

    Args:
        backend: Anything that `mlxcheck.check` takes.
        recorded: What the reference said, from `mlxcheck.recording.record`, or what returns it
            when the first example is drawn.
        mode: ``"strict"`` lets no near tie pass; ``"calibrated"`` cancels a request there.
        max_rows: The most requests in flight.

    Example::

        def recorded():
            return record("path/to/model", None, Settings(max_tokens=16))

        TestMyEngine = machine(MyBackend, recorded).TestCase
    """
    engine = _Engine(
        factory=registry.resolve(backend),
        record=recorded if callable(recorded) else lambda: recorded,
        calibrated=mode == "calibrated",
        max_rows=max_rows,
    )
    room = {"engine": engine, **_rules(engine)}
    made = cast("type[EngineMachine]", type("EngineMachine", (EngineMachine,), room))

    class Closing(made.TestCase):  # type: ignore[misc, name-defined]
        """Runs the machine and closes its engine."""

        @classmethod
        def tearDownClass(cls) -> None:
            made.close()
            super().tearDownClass()

    Closing.__name__ = Closing.__qualname__ = "EngineMachine.TestCase"
    type.__setattr__(made, "TestCase", Closing)
    return made


def _rules(engine: _Engine) -> dict[str, Any]:
    """Return the rules, drawn from prompts that are not known before they are asked for."""

    def submit(self: EngineMachine, prompt_id: str, most: int) -> None:
        prompt, known = engine.prompts()[prompt_id], engine.recorded().traces[prompt_id]
        name = f"m{next(engine.numbers)}"
        whole = len(known.tokens)
        expected = rest(known, 0, min(most or whole, whole))
        self.requests[name] = _Live(prompt=prompt, expected=expected)
        # Of an answer that was cut off the reference's length is the limit; one that stopped
        # has to stop by itself.
        room = len(expected.tokens) + (expected.finish == "stop")
        self.backend.submit(
            Request(
                id=name,
                tokens=prompt.tokens,
                max_tokens=room,
                stop_ids=engine.recorded().model.stop_ids,
            )
        )

    def step(self: EngineMachine) -> None:
        self._advance()

    def cancel(self: EngineMachine, which: int) -> None:
        self._cancel(self.live[which % len(self.live)], "it was cancelled")

    part = st.just(0) | st.integers(1, _MOST)
    # By their ids, which a failure can print.
    ids = st.deferred(lambda: st.sampled_from(list(engine.prompts())))
    submits = rule(prompt_id=ids, most=part)(_watched(submit))
    cancels = rule(which=st.integers(0, engine.max_rows - 1))(_watched(cancel))
    return {
        "submit": precondition(EngineMachine.room)(submits),
        # Twice: an answer is longer than the list of who says it.
        "step": precondition(lambda self: bool(self.live))(rule()(_watched(step))),
        "step_on": precondition(lambda self: bool(self.live))(
            rule()(_watched(step, "step_on"))
        ),
        "cancel": precondition(lambda self: bool(self.live))(cancels),
    }


def _watched(act: Callable[..., None], name: str = "") -> Callable[..., None]:
    """Note that a rule failed, so that the engine is not used again."""

    @functools.wraps(act)
    def watched(self: EngineMachine, **drawn: Any) -> None:
        try:
            act(self, **drawn)
        except BaseException:
            self.failed = True
            raise

    watched.__name__ = name or act.__name__
    return watched
