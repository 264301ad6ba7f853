"""What a process holds after each of several rounds of the same requests."""

from __future__ import annotations

import gc
import sys
from collections import deque
from dataclasses import dataclass

__all__ = ["Held", "measure"]

_CONTAINERS = frozenset({list, dict, set, deque})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What was held at one moment, with no request in flight.

    Attributes:
        memory: What live MLX arrays hold, bytes.
        objects: Python's small objects, arrays among them.
        items: What lists, dicts, sets and deques hold, all together. Small numbers are no
            objects of their own: a list of them grows by its items alone.
    """

    memory: int
    objects: int
    items: int


def measure() -> Held:
    """Measure, once work has ended and garbage is gone."""
    import mlx.core as mx

    mx.synchronize()
    gc.collect()
    mx.clear_cache()
    items = sum(len(each) for each in gc.get_objects() if type(each) in _CONTAINERS)
    return Held(
        memory=int(mx.get_active_memory()), objects=sys.getallocatedblocks(), items=items
    )
