"""Rules on requests: how they are answered, joined, queued and cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mlxcheck.contracts.backend_rules import Breach, NotAsked, rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.contracts.backend_bench import Bench
    from mlxcheck.contracts.backend_steps import Row

__all__ = ["ANSWERING", "BEGINNING", "set_chunk"]

_WIDEST = 64  # the widest batch that is filled, and overfilled by one

_SHORT, _MEDIUM, _READ = 5, 12, 40
_LONG_ANSWER = 24
_PART = 4  # prompt tokens of a prefill call, so that a prompt of _READ takes several
_IDS = ("a b", "ß/ü:1", 'with "quotes"\nand a line', "0", "c0\t", "x" * 300)


@rule
def answers(bench: Bench) -> None:
    """A request is answered to its end."""
    _whole(bench.answer(bench.prompt(_MEDIUM)))


@rule
def answers_alone(bench: Bench) -> None:
    """A request that is alone is answered like others."""
    _whole(bench.answer(bench.prompt(_MEDIUM), alone=True))


@rule
def answers_a_prompt_of_one_token(bench: Bench) -> None:
    """A prompt of one token is answered."""
    _whole(bench.answer(bench.prompt(1)))


@rule
def gives_one_token(bench: Bench) -> None:
    """A request with max_tokens=1 is answered."""
    _whole(bench.answer(bench.prompt(_MEDIUM), max_tokens=1))


@rule
def stops_at_its_first_token(bench: Bench) -> None:
    """A request whose first token is a stop id ends with it."""
    _stops(bench, place=0)


@rule
def stops_at_a_later_token(bench: Bench) -> None:
    """A request ends with its first stop id, where that comes in the midst of an answer."""
    _stops(bench, place=1)


@rule
def takes_any_id(bench: Bench) -> None:
    """The id of a request may be any text."""
    for number, name in enumerate(_IDS):
        _whole(bench.answer(bench.prompt(_SHORT + number), max_tokens=2, name=name))


@rule
def repeats_itself(bench: Bench) -> None:
    """The same prompt alone gives the same answer again.

    Where the KV cache of an earlier request is used again, the first time is another
    computation: the second and the third are compared.
    """
    prompt = bench.prompt(_MEDIUM)
    if bench.capabilities.prefix_cache:
        bench.answer(prompt, alone=True)
    first, second = (bench.answer(prompt, alone=True) for _ in range(2))
    said = (first.tokens, "".join(first.pieces))
    again = (second.tokens, "".join(second.pieces))
    if said != again:
        shown = (said, again) if not bench.capabilities.ids else (said[0], again[0])
        raise Breach(
            call=f"step() for {second.told}, which was asked before",
            expected=f"{shown[0]!r:.200}, as before",
            actual=f"{shown[1]!r:.200}",
            advice="decode greedily, and leave nothing of one request to the next",
        )


@rule
def answers_several_at_once(bench: Bench) -> None:
    """Several requests that are submitted together are all answered."""
    _require_batch(bench)
    lengths = (_SHORT, _SHORT + 2, _MEDIUM)[: bench.capabilities.max_batch]
    rows = [bench.submit(bench.prompt(length)) for length in lengths]
    bench.finish(*rows)
    for row in rows:
        _whole(row)


@rule
def lets_requests_join(bench: Bench) -> None:
    """A request that is submitted while another one is decoded is answered, as is that."""
    _require_joins(bench)
    first = _decoding(bench, _LONG_ANSWER)
    second = bench.submit(bench.prompt(_SHORT))
    bench.finish(first, second)
    _whole(first)
    _whole(second)


@rule
def queues_what_does_not_fit(bench: Bench) -> None:
    """More requests than capabilities.max_batch are queued, and all are answered."""
    _require_batch(bench)
    most = bench.capabilities.max_batch
    if most is None:
        reason = "capabilities.max_batch is None"
        raise NotAsked(reason)
    if most > _WIDEST:
        reason = f"capabilities.max_batch is {most}, more than the {_WIDEST} that are tried"
        raise NotAsked(reason)
    # Long enough that the first is still there when the last has been read, one a step.
    rows = [bench.submit(bench.prompt(_SHORT), max_tokens=most + 2) for _ in range(most + 1)]
    bench.finish(*rows)
    for row in rows:
        _whole(row)


@rule
def cancels_what_waits(bench: Bench) -> None:
    """A request that no step was made for can be cancelled, and the others go on."""
    others = _company(bench)
    row = bench.submit(bench.prompt(_MEDIUM))
    bench.cancel(row)
    _go_on(bench, others)


@rule
def cancels_in_prefill(bench: Bench) -> None:
    """A request whose prompt is read in part can be cancelled, and the others go on."""
    part = _read_in_parts(bench)
    try:
        others = _company(bench)
        row = bench.submit(bench.prompt(max(_READ, 4 * part)))
        for _ in range(len(others) + 1):  # some engines read one prompt a step
            bench.step()
        if row.said:
            reason = "the prompt was read within one step"
            raise NotAsked(reason)
        bench.cancel(row)
        _go_on(bench, others)
    finally:
        if bench.capabilities.sets_prefill_chunk:
            set_chunk(bench, None)


@rule
def cancels_in_decode(bench: Bench) -> None:
    """A request that is decoded can be cancelled, and the others go on."""
    others = _company(bench)
    row = _decoding(bench, _LONG_ANSWER)
    bench.cancel(row)
    _go_on(bench, others)


@rule
def cancels_what_is_over(bench: Bench) -> None:
    """To cancel a request that has finished, or was never there, does nothing.

    An engine that gives several tokens a step may have finished a request by the time that
    its caller, who leaves at a stop id, has seen that.
    """
    row = bench.answer(bench.prompt(_SHORT), max_tokens=2)
    bench.cancel(row)
    backend = bench.backend
    bench.call("cancel('never-there')", lambda: backend.cancel("never-there"))
    _go_on(bench, [])


BEGINNING = (answers, answers_alone)
"""Asked once the backend is open: without them there is nothing more to ask."""

ANSWERING = (
    answers_a_prompt_of_one_token,
    gives_one_token,
    takes_any_id,
    repeats_itself,
    stops_at_its_first_token,
    stops_at_a_later_token,
    answers_several_at_once,
    lets_requests_join,
    queues_what_does_not_fit,
    cancels_what_waits,
    cancels_in_prefill,
    cancels_in_decode,
    cancels_what_is_over,
)
"""Asked in this order, of a backend that answers."""


def _read_in_parts(bench: Bench) -> int:
    """Have prompts read in several calls, where that can be, and return how long these are.

    Raises:
        NotAsked: The engine reads prompts whole, as far as is known.
    """
    if bench.capabilities.sets_prefill_chunk:
        set_chunk(bench, _PART)
        return _PART
    size = bench.capabilities.prefill_chunk
    longest = bench.model.max_positions or 4 * _WIDEST
    if size is None or 4 * size + _LONG_ANSWER > min(longest, 4 * _WIDEST):
        reason = "no chunk is short enough to have a prompt read in several steps"
        raise NotAsked(reason)
    return size


def set_chunk(bench: Bench, size: int | None) -> None:
    """Set the engine's prefill chunk."""
    backend = bench.backend
    bench.call(f"set_prefill_chunk({size})", lambda: backend.set_prefill_chunk(size))


def _whole(row: Row) -> None:
    """Hold an answer to having begun; the watch sees to its end."""
    if not row.said:
        raise Breach(
            call=f"step() for {row.told}",
            expected="an answer",
            actual="none",
            advice="give at least one emission for each request",
        )


def _require_batch(bench: Bench) -> None:
    if not bench.capabilities.batch:
        reason = "capabilities.batch is False"
        raise NotAsked(reason)


def _require_joins(bench: Bench) -> None:
    _require_batch(bench)
    if not bench.capabilities.joins:
        reason = "capabilities.joins is False"
        raise NotAsked(reason)


def _decoding(bench: Bench, max_tokens: int) -> Row:
    """Return a request that has been given a token and goes on; a few prompts are tried."""
    for length in (_MEDIUM, _SHORT, _MEDIUM + 1, _SHORT + 1):
        row = bench.submit(bench.prompt(length), max_tokens=max_tokens)
        bench.until(lambda row=row: row.said > 0 or row.state != "live", [row])  # type: ignore[misc]
        if row.state == "live":
            return row
    reason = "each answer that was tried ended with its first step"
    raise NotAsked(reason)


def _company(bench: Bench) -> list[Row]:
    """Return a request in decode, where others may join it; none elsewhere."""
    if not (bench.capabilities.batch and bench.capabilities.joins):
        return []
    if bench.capabilities.max_batch == 1:
        return []
    return [_decoding(bench, _LONG_ANSWER)]


def _go_on(bench: Bench, others: Sequence[Row]) -> None:
    """See the others to their ends, and one more that comes after."""
    bench.finish(*others)
    _whole(bench.answer(bench.prompt(_SHORT), max_tokens=2))


def _stops(bench: Bench, *, place: int) -> None:
    """Ask for an answer, then for the same with its token at a place as the only stop id."""
    if not bench.capabilities.stop:
        reason = "capabilities.stop is False: whoever drives it ends an answer"
        raise NotAsked(reason)
    if not bench.capabilities.ids:
        reason = "capabilities.ids is False"
        raise NotAsked(reason)
    prompt, free = _prompt_for(bench, place)
    row = bench.answer(prompt, stop_ids=(free[place],), alone=True)
    end: Literal["stop"] = "stop"
    if row.tokens != free[: place + 1] or row.finish != end:
        raise Breach(
            call=f"step() for {row.told} with stop_ids=({free[place]},)",
            expected=f"tokens {free[: place + 1]}, with finish={end!r} on the last",
            actual=f"tokens {row.tokens}, finish={row.finish!r}",
            advice="look for Request.stop_ids in every token, that of the prefill too",
        )


def _prompt_for(bench: Bench, place: int) -> tuple[tuple[int, ...], list[int]]:
    """Return a prompt and its own answer, whose token at a place is not there before."""
    for length in (_MEDIUM, _SHORT, _MEDIUM + 3, _SHORT + 3, 2 * _MEDIUM, 2 * _MEDIUM + 1):
        prompt = bench.prompt(length)
        free = bench.answer(prompt, alone=True).tokens
        own = {*free[:place], *bench.model.stop_ids}  # it would end there of itself
        if len(free) > place and free[place] not in own:
            if bench.capabilities.prefix_cache:  # as it will be the next time
                free = bench.answer(prompt, alone=True).tokens
            return prompt, free
    reason = f"no answer that was tried has a token of its own at place {place}"
    raise NotAsked(reason)
