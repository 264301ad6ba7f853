"""A call into the engine: watched, and whatever it raises turned into a fault."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Self

from mlxcheck.errors import EngineCrashed, EngineFault

if TYPE_CHECKING:
    from types import TracebackType

    from mlxcheck.watchdog import Watchdog

__all__ = ["Calling"]


class Calling:
    """The watchdog's guard, with the engine's exceptions turned into faults.

    Args:
        watchdog: Running.
        what: The method.
    """

    def __init__(self, watchdog: Watchdog, what: str) -> None:
        self.what = what
        self._guard = watchdog.guard(f"{what}()")

    def __enter__(self) -> Self:
        self._guard.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Leave the guard; raise `EngineCrashed` for what the engine raised."""
        self._guard.__exit__(kind, error, where)
        # SystemExit too: an engine's sys.exit(0) must not end the run as a pass.
        if isinstance(error, EngineFault) or not isinstance(error, Exception | SystemExit):
            return
        text = "".join(traceback.format_exception(error))
        msg = f"{self.what}() raised {type(error).__name__}: {error}\n{text}"
        raise EngineCrashed(msg) from error
