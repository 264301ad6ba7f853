"""Memory, before anything is loaded: what a run needs, what there is, and whether it fits.

`estimate` (from `mlxcheck.need`) and `gate` are arithmetic; `probe` and `usage` ask the
machine. Running out of memory on Metal cannot be caught and can restart a Mac, so the gate
speaks first. Whether a model was released afterwards is the business of `mlxcheck.release`.

All sizes are bytes. In text and in ``MLXCHECK_MIN_FREE_GB`` a GB is 10**9 bytes, as in
mlx-lm's own output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcheck.errors import UsageError
from mlxcheck.need import Need, estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FLOOR_VARIABLE",
    "Gate",
    "Need",
    "Room",
    "Usage",
    "estimate",
    "floor_bytes",
    "gate",
    "human",
    "probe",
    "processes_marked",
    "reset_peak",
    "usage",
]

FLOOR_VARIABLE = "MLXCHECK_MIN_FREE_GB"
"""The environment variable that sets, in GB, a floor under free memory."""

MAX_RESERVE = 2**30
"""Bytes left to the operating system on a large machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the machine has, in bytes; None where it does not say.

    Attributes:
        available: RAM that can be had without swapping.
        reserve: What of it is left to everything else on the machine.
        working_set: What the accelerator's driver lets one process use.
        active: What MLX holds of that already.
        max_buffer: The largest single buffer that the accelerator takes.
    """

    available: int | None
    reserve: int | None
    working_set: int | None
    active: int | None
    max_buffer: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Whether a run may start.

    Attributes:
        open: False where too little is known to be there.
        terms: Every term of need and room, one a line.
        reason: One line with the numbers; what to do, where the gate is closed.
    """

    open: bool
    terms: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory of this process at one moment, in bytes.

    Attributes:
        active: What live MLX arrays hold.
        cached: What MLX keeps in its pool for the next arrays.
        peak: The highest `active` since `reset_peak`.
        rss: The resident set.
    """

    active: int
    cached: int
    peak: int
    rss: int


def human(size: int | None) -> str:
    """Write *size* for people, in decimal units: ``1.6 MB``; ``unknown`` for None."""
    if size is None:
        return "unknown"
    value = float(abs(size))
    sign = "-" if size < 0 else ""
    for unit in ("B", "kB", "MB", "GB"):
        # 999.95 would be written as 1000.0, which the next unit says better.
        if value < 999.95:  # noqa: PLR2004
            return f"{sign}{value:.0f} {unit}" if unit == "B" else f"{sign}{value:.1f} {unit}"
        value /= 1000
    return f"{sign}{value:.1f} TB"


def probe() -> Room:
    """Ask the machine what it has.

    To be called before anything is loaded, and before any engine raises the wired limit:
    wired memory makes the free memory read near zero. The reserve is a twentieth of the
    RAM, at most 1 GiB: taking the last page makes the system swap or kill, and a share
    keeps the gate usable on a runner with 7 GB. On CUDA the working set is what the device
    has free plus what MLX's own pool holds of it.

    Returns:
        The terms; None for each that this machine does not have or does not tell.
    """
    import mlx.core as mx

    available, reserve = _ram()
    info = mx.device_info()
    active = int(mx.get_active_memory())
    working_set = max_buffer = None
    if mx.metal.is_available():
        working_set = _positive(info.get("max_recommended_working_set_size"))
        max_buffer = _positive(info.get("max_buffer_length"))
    elif (free := _positive(info.get("free_memory"))) is not None:
        working_set = free + active + int(mx.get_cache_memory())
    return Room(
        available=available,
        reserve=reserve,
        working_set=working_set,
        active=active,
        max_buffer=max_buffer,
    )


def _ram() -> tuple[int | None, int | None]:
    """Available RAM and the reserve, or two None where psutil cannot say."""
    try:
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.available), min(MAX_RESERVE, int(memory.total) // 20)
    except Exception:  # noqa: BLE001 - a machine that cannot be asked must not stop a run
        return None, None


def _positive(value: object) -> int | None:
    """*value* as a size, or None where it is none."""
    return value if isinstance(value, int) and value > 0 else None


def floor_bytes(environ: Mapping[str, str]) -> int | None:
    """Read the floor under free memory that a person set by hand.

    Args:
        environ: The environment, such as ``os.environ``.

    Returns:
        Bytes, or None where ``MLXCHECK_MIN_FREE_GB`` is unset or blank.

    Raises:
        UsageError: If the value is not a number of GB, 0 or more.
    """
    text = environ.get(FLOOR_VARIABLE, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        msg = (
            f"{FLOOR_VARIABLE}={text!r}: expected a number of GB, 0 or more, such as "
            f"{FLOOR_VARIABLE}=12; unset it to have no floor"
        )
        raise UsageError(msg)
    return int(value * 10**9)


def gate(
    need: Need,
    room: Room,
    *,
    floor: int | None = None,
    largest_tensor: int | None = None,
) -> Gate:
    """Compare *need* with *room*. Only known numbers close the gate.

    Args:
        need: From `estimate`.
        room: From `probe`.
        floor: Least available RAM in bytes, from `floor_bytes`.
        largest_tensor: Bytes of the largest weight, which has to fit in one buffer.

    Returns:
        The answer with every term, unknown ones included.
    """
    sizes = [size for size in (need.buffer, largest_tensor) if size is not None]
    buffer = max(sizes) if sizes else None
    terms = _terms(need, room, floor, buffer)
    shut = _below_floor(room, floor) or _too_little(need, room) or _one_buffer(buffer, room)
    limits = _limits(room)
    have = human(min(limits.values())) if limits else "unknown"
    reason = shut or f"memory: needs {human(need.total)}, room {have}"
    return Gate(open=not shut, terms=terms, reason=reason)


def _terms(need: Need, room: Room, floor: int | None, buffer: int | None) -> tuple[str, ...]:
    """Every term as a line of its own."""
    rows = {
        "weights": need.weights,
        "KV cache": need.kv_cache,
        "activations": need.activations,
        "margin": need.margin,
        "need in all": need.total,
        "available RAM": room.available,
        "reserve": room.reserve,
        "working set": room.working_set,
        "active": room.active,
        "largest buffer": buffer,
        "one-buffer limit": room.max_buffer,
    }
    lines = [f"{name} {human(size)}" for name, size in rows.items()]
    lines.append(f"floor {'not set' if floor is None else human(floor)}")
    return tuple(lines)


def _limits(room: Room) -> dict[str, int]:
    """Give the known limits on the whole, in bytes, by how each is made."""
    limits = {}
    if room.available is not None:
        text = f"{human(room.available)} RAM available"
        if room.reserve:
            text += f" less {human(room.reserve)} reserve"
        limits[text] = room.available - (room.reserve or 0)
    if room.working_set is not None:
        text = f"{human(room.working_set)} working set"
        if room.active:
            text += f" less {human(room.active)} active"
        limits[text] = room.working_set - (room.active or 0)
    return limits


def _below_floor(room: Room, floor: int | None) -> str:
    """Why the floor closes the gate; empty where it does not."""
    if floor is None or room.available is None or room.available >= floor:
        return ""
    return (
        f"too little memory: {human(room.available)} RAM available, below the floor of "
        f"{human(floor)} set by {FLOOR_VARIABLE}; close other programs or lower it"
    )


def _too_little(need: Need, room: Room) -> str:
    """Why the whole does not fit; empty where it does, or where nothing is known."""
    limits = _limits(room)
    if not limits:
        return ""
    how, have = min(limits.items(), key=lambda item: item[1])
    if need.total <= have:
        return ""
    return (
        f"too little memory: needs {human(need.total)} (weights {human(need.weights)}, "
        f"KV cache {human(need.kv_cache)}, activations {human(need.activations)}, margin "
        f"{human(need.margin)}), room {human(have)} ({how}); close other programs, or take "
        "a smaller model, shorter prompts, fewer tokens or smaller batches"
    )


def _one_buffer(buffer: int | None, room: Room) -> str:
    """Why one array does not fit in one buffer; empty where it does."""
    if buffer is None or room.max_buffer is None or buffer <= room.max_buffer:
        return ""
    return (
        f"too little memory: one array needs {human(buffer)}, and the device takes at most "
        f"{human(room.max_buffer)} in one buffer; take shorter prompts or a smaller model"
    )


def usage() -> Usage:
    """Measure what this process holds now."""
    import mlx.core as mx
    import psutil

    return Usage(
        active=int(mx.get_active_memory()),
        cached=int(mx.get_cache_memory()),
        peak=int(mx.get_peak_memory()),
        rss=int(psutil.Process().memory_info().rss),
    )


def reset_peak() -> None:
    """Start a new peak: the next `usage` tells the highest active memory from here."""
    import mlx.core as mx

    mx.reset_peak_memory()


def processes_marked(name: str, value: str) -> list[int]:
    """Return the ids of this user's processes that have *name* = *value* in their environment.

    A variable goes on to every child, whichever group or parent that has later. Those that
    have ended and were not waited for have no environment, and are not among them.
    """
    import psutil

    found: list[int] = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(name) == value
        except (psutil.Error, OSError):
            continue
        if marked:
            found.append(process.pid)
    return found
