"""What the smoke checks found out, as plain values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlxcheck.errors import ReportError
from mlxcheck.report import require_writable
from mlxcheck.whole import write_whole

if TYPE_CHECKING:
    from mlxcheck.report import Outcome

__all__ = ["SCHEMA", "SmokeReport", "SmokeResult"]

SCHEMA = 1
"""Of the JSON file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """What one check came to.

    Attributes:
        name: The check.
        outcome: ``"pass"``, ``"fail"`` or ``"inconclusive"``.
        message: The evidence: what was asked, what came, and what was expected.
        seconds: How long it took.
    """

    name: str
    outcome: Outcome
    message: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeReport:
    """All that one server was asked.

    Attributes:
        server: Its URL, or the command that started it.
        served_model: What the requests called the model; empty where no name was found.
        results: One for each check, in the order in which they were asked.
    """

    server: str
    served_model: str
    results: tuple[SmokeResult, ...]

    @property
    def outcome(self) -> Outcome:
        """``"fail"`` if a check failed, ``"pass"`` if all passed and there was one."""
        outcomes: set[Literal["pass", "fail", "inconclusive"]]
        outcomes = {result.outcome for result in self.results}
        if "fail" in outcomes:
            return "fail"
        return "pass" if outcomes == {"pass"} else "inconclusive"

    @property
    def failures(self) -> tuple[SmokeResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.outcome == "fail")

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        return {"schema": SCHEMA, "outcome": self.outcome, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write the report as JSON.

        Raises:
            ReportError: A suffix other than ``.json``, or the path cannot be written.
        """
        require_writable(path)
        text = json.dumps(self.to_dict(), indent=1)
        try:
            write_whole(Path(path).expanduser(), text)
        except OSError as error:
            msg = f"{path}: cannot write the report: {error.strerror}."
            raise ReportError(msg) from None
