"""How many examples a search without hints needs for each seeded fault, and what it shrinks to.

    python tests/search/found.py [examples] [seed ...]

Ends with 1 where an honest engine was blamed, or where fewer faults than five were found with
a seed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fixtures.faults import mlx_lm as batched
from mlxcheck.recording import record
from mlxcheck.run import Drive
from mlxcheck.search import Search, search, told
from mlxcheck.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.recording import Recorded

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SETTINGS = Settings(max_tokens=16)
BATCHED = (1, 2, 3, 4, 25, 26, 39)
PAGED = (17, 19, 21, 22)
ENOUGH = 5


def engines() -> Iterator[tuple[str, str, Any]]:
    """Yield the row or ``honest``, the model's name, and the backend."""
    yield "honest mlx-lm", "qwen3-float32", "mlx-lm"
    for fault in batched.FAULTS:
        if fault.row in BATCHED:
            yield f"S{fault.row} {fault.__name__}", "qwen3-float32", fault
    try:
        from fixtures.faults import paged
        from fixtures.paged.backend import PagedBackend
    except ImportError:
        return
    yield "honest paged", "qwen3_moe-float32", PagedBackend
    for other in paged.FAULTS:
        if other.row in PAGED:
            yield f"S{other.row} paged {other.__name__}", "qwen3_moe-float32", other


def say(line: str) -> None:
    """Print a line at once: a search takes its time."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def report(name: str, recorded: Recorded, backend: Any, look: Search) -> bool:
    """Search one engine, and print what came of it; tell whether anything was found."""
    started = time.perf_counter()
    with Drive(recorded, backend, [look], SETTINGS) as drive:
        found = search(drive, look)
    seconds = time.perf_counter() - started
    cost = f"{found.driven} driven, {seconds:.1f} s"
    if found.case is None:
        say(f"{name:32} nothing in {found.examples} examples ({cost})")
        return False
    rows = len(found.case.prompts)
    events = found.case.schedule.events if found.case.schedule else 0
    stable = "" if found.stable else "; unstable"
    say(
        f"{name:32} example {found.examples} ({cost}{stable}); "
        f"{rows} rows, {events} events: {told(found.case)}"
    )
    return True


def main() -> int:
    """Search every engine with every seed."""
    numbers = [int(word) for word in sys.argv[1:]] or [200]
    examples, seeds = numbers[0], numbers[1:] or [0]
    known: dict[str, Recorded] = {}
    bad = 0
    for seed in seeds:
        say(f"seed {seed}, at most {examples} examples")
        count = 0
        for name, model, backend in engines():
            if model not in known:
                known[model] = record(str(MODELS / model), None, SETTINGS)
            seen = report(name, known[model], backend, Search(examples, seed))
            count += seen
            bad += seen and name.startswith("honest")
        say(f"{count} found")
        bad += count < ENOUGH
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
