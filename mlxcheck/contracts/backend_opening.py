"""Rules on what an adapter states, and on opening and closing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck.contracts.backend_bench import active_memory, misstated
from mlxcheck.contracts.backend_rules import Breach, NotAsked, Rule, rule
from mlxcheck.memory import human
from mlxcheck.release import TOLERANCE

if TYPE_CHECKING:
    from mlxcheck.contracts.backend_bench import Bench

__all__ = [
    "CLOSING",
    "OPENING",
    "STATING",
    "closes",
    "frees_its_memory",
    "gives_nothing_when_idle",
]

_METHODS = ("open", "submit", "step", "cancel", "stats", "close")
_SHORT = 5
_LONG_ANSWER = 32


# --- Before it is opened --------------------------------------------------------------------


@rule
def is_made_without_arguments(bench: Bench) -> None:
    """The factory makes a backend without arguments."""
    bench.make()


@rule
def has_its_methods(bench: Bench) -> None:
    """It has the six methods, and those that its capabilities name."""
    backend = bench.make()
    said = getattr(backend, "capabilities", None)
    wanted = [(name,) for name in _METHODS]
    if getattr(said, "sets_prefill_chunk", False):
        wanted.append(("set_prefill_chunk",))
    choices: list[tuple[str, ...]] = list(wanted)
    if getattr(said, "encode", False):
        choices.append(("encode", "stop_set"))
    missing = [
        " or ".join(names)
        for names in choices
        if not any(callable(getattr(backend, name, None)) for name in names)
    ]
    if missing:
        raise Breach(
            call="factory()",
            expected=f"methods {', '.join(' or '.join(names) for names in choices)}",
            actual=f"{type(backend).__name__} lacks {', '.join(missing)}",
            advice="see mlxcheck.Backend for what each must do",
        )


@rule
def has_a_name(bench: Bench) -> None:
    """A backend has a name, a text, before open()."""
    name = getattr(bench.make(), "name", None)
    if not isinstance(name, str) or not name.strip():
        raise Breach(
            call="factory()",
            expected="name as a text of at least one letter",
            actual=f"name={name!r:.60} ({type(name).__name__})",
            advice="set name on the class: reports call the engine so",
        )


@rule
def states_its_capabilities(bench: Bench) -> None:
    """A backend has a Capabilities, each field of its own type, before open()."""
    if problem := misstated(bench.make()):
        raise _incapable(problem, call="factory()")


@rule
def closes_unopened(bench: Bench) -> None:
    """A backend that was never opened can be closed."""
    backend = bench.make()
    bench.call("close() of a backend that was never opened", backend.close)


STATING = (
    is_made_without_arguments,
    has_its_methods,
    has_a_name,
    states_its_capabilities,
    closes_unopened,
)
"""Asked first, on backends that are not opened."""


# --- Open, with nothing in flight -----------------------------------------------------------


@rule
def opens(bench: Bench) -> None:
    """A backend opens on the checkpoint that it is given."""
    bench.open(bench.make())


@rule
def states_the_same_when_open(bench: Bench) -> None:
    """After open() the name is what it was, and the capabilities are right."""
    backend, fresh = bench.backend, bench.make()
    problem = misstated(backend)
    if problem and not misstated(fresh):
        raise _incapable(problem, call="open(model)")
    before, now = getattr(fresh, "name", None), getattr(backend, "name", None)
    if now != before:
        raise Breach(
            call="open(model)",
            expected=f"name={before!r}, as before it",
            actual=f"name={now!r}",
            advice="settle capabilities in open(), if need be, but not the name",
        )


@rule
def gives_nothing_when_idle(bench: Bench) -> None:
    """With nothing in flight step() gives nothing, and does not raise."""
    backend = bench.backend
    call = "step() with no request in flight"
    for _ in range(2):
        given = bench.call(call, lambda: tuple(backend.step() or ()))
        if given:
            raise Breach(
                call=call,
                expected="[]",
                actual=f"{given!r:.100}",
                advice="give an empty list where there is nothing to do",
            )


OPENING = (opens, states_the_same_when_open, gives_nothing_when_idle)
"""Asked next: without them there is nothing to drive."""


# --- Closing --------------------------------------------------------------------------------


@rule
def closes(bench: Bench) -> None:
    """A backend that is open can be closed."""
    _ = bench.backend
    bench.close()


@rule
def opens_a_fresh_one(bench: Bench) -> None:
    """After one backend was closed, a fresh one opens in the same process, and answers."""
    bench.open(bench.make())
    bench.answer(bench.prompt(_SHORT))
    bench.close()


@rule
def opens_again(bench: Bench) -> None:
    """A backend that was closed can itself be opened again, and answers.

    Who hands a ready one to `mlxcheck.check` has it opened again where a case broke it.
    """
    backend = bench.make()
    for _ in range(2):
        bench.open(backend)
        bench.answer(bench.prompt(_SHORT))
        bench.close()


@rule
def closes_in_flight(bench: Bench) -> None:
    """A backend can be closed while a request is in flight."""
    bench.open(bench.make())
    row = bench.submit(bench.prompt(_SHORT), max_tokens=_LONG_ANSWER)
    bench.until(lambda: row.said > 0 or row.state != "live", [row])
    bench.close()


CLOSING = (closes, opens_a_fresh_one, opens_again, closes_in_flight)
"""Asked last."""


def frees_its_memory(before: int) -> Rule:
    """Return the rule on memory.

    Args:
        before: Bytes that MLX held before anything was opened.
    """

    @rule
    def frees_its_memory(bench: Bench) -> None:
        """After close() MLX holds no more than before open()."""
        if bench.peak - before <= TOLERANCE:
            reason = "MLX held no more while it was open: its engine is not in this process"
            raise NotAsked(reason)
        now = active_memory(before + TOLERANCE)
        if now - before > TOLERANCE:
            raise Breach(
                call="close()",
                expected=f"{human(before)} of active memory, as before open()",
                actual=f"{human(now)}; {human(bench.peak)} while it was open",
                advice="let go of model, caches and generators, and of what refers to them",
            )

    return frees_its_memory


def _incapable(problem: str, *, call: str) -> Breach:
    return Breach(
        call=call,
        expected="a mlxcheck.Capabilities: bools, and sizes that are None or at least 1",
        actual=problem,
        advice="set capabilities on the class or in __init__; open() may settle them",
    )
