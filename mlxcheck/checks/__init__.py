"""The checks, one file each; to add one, write it and name it here."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from mlxcheck.checks.base import Check, Effort
from mlxcheck.checks.batch import Batch
from mlxcheck.checks.chunks import Chunks
from mlxcheck.checks.logits import Logits
from mlxcheck.checks.long import Long
from mlxcheck.checks.prefix import Prefix
from mlxcheck.checks.prompts import Prompts
from mlxcheck.checks.schedule import Schedules
from mlxcheck.checks.soak import Soak
from mlxcheck.checks.speculative import Speculative
from mlxcheck.checks.stop import Stop
from mlxcheck.checks.tokens import Tokens
from mlxcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ALL", "Check", "Effort", "named"]

ALL: tuple[Check, ...] = (
    Prompts(),
    # These two before the others, chunks first: a prompt is new only once to an engine that
    # keeps prefixes, and what is in its KV cache is not read in chunks again.
    Chunks(),
    Prefix(),
    Tokens(),
    Stop(),
    Batch(),
    Logits(),
    Schedules(),
    Long(),
    Speculative(),
    Soak(),
)
"""Every check, in the order in which they are run."""


def named(names: Iterable[str] | None) -> tuple[Check, ...]:
    """Return the checks of these names, in the order in which they are run.

    Raises:
        UsageError: There is no check of that name, or none was named.
    """
    if names is None:
        return ALL
    wanted = [names] if isinstance(names, str) else list(names)
    have = [check.name for check in ALL]
    for name in wanted:
        if name not in have:
            close = difflib.get_close_matches(name, have, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            msg = f"there is no check {name!r}.{hint} The checks are {', '.join(have)}."
            raise UsageError(msg)
    if not wanted:
        msg = f"checks=[]: no check at all. Name some of {', '.join(have)}, or leave it out."
        raise UsageError(msg)
    return tuple(check for check in ALL if check.name in wanted)
