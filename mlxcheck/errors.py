"""Every exception that mlxcheck raises, in one file so that no room imports another for it.

::

    MlxCheckError
    ├── UsageError            the caller asked for something that cannot be
    │   ├── ModelError        the checkpoint is missing, broken or unknown
    │   ├── PromptError       a prompt cannot be decoded by this model
    │   └── BackendError      the backend cannot be found, imported or opened
    ├── ModelUnavailable      a hub model that is not here (no network, not cached)
    ├── NotEnoughMemory       the gate is closed
    ├── MemoryNotReleased     the reference is still alive after its release
    ├── ReferenceTampered     mlx-lm is not the code in its own files
    ├── ReferenceBroken       the reference's own logits are not numbers
    ├── ReportError           a report cannot be written or read
    ├── ServerError           a server gave no answer, or one that cannot be read
    ├── CannotAsk             a request cannot be put to the engine as it stands
    └── EngineFault           the candidate broke the protocol
        ├── EngineCrashed     it raised
        ├── EngineHung        it made no progress
        └── RequestFailed     it broke one request, and the others go on
    ReferenceMismatch         an AssertionError: the verdict of a finished run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcheck.report import Report

__all__ = [
    "BackendError",
    "CannotAsk",
    "EngineCrashed",
    "EngineFault",
    "EngineHung",
    "MemoryNotReleased",
    "MlxCheckError",
    "ModelError",
    "ModelUnavailable",
    "NotEnoughMemory",
    "PromptError",
    "ReferenceBroken",
    "ReferenceMismatch",
    "ReferenceTampered",
    "ReportError",
    "RequestFailed",
    "ServerError",
    "UsageError",
]


class MlxCheckError(Exception):
    """Base of every error that mlxcheck raises on purpose.

    Its text is one paragraph for the person at the keyboard: what was wrong, where, and
    what to do about it.
    """


class UsageError(MlxCheckError):
    """What was asked for cannot be; the request has to change."""


class ModelError(UsageError):
    """The checkpoint is missing, broken, or of an architecture that mlx-lm does not know."""


class PromptError(UsageError):
    """A prompt is empty, too long for the model, or holds ids outside its vocabulary."""


class BackendError(UsageError):
    """The backend is unknown, cannot be imported, or has not the shape of a backend."""


class ModelUnavailable(MlxCheckError):  # noqa: N818 - a state of the world, not a mistake
    """A hub model cannot be had: no network and not cached. Tests skip on it."""


class NotEnoughMemory(MlxCheckError):  # noqa: N818 - the gate's answer, not a mistake
    """The memory gate found less room than the run needs. Tests skip on it."""


class MemoryNotReleased(MlxCheckError):  # noqa: N818 - a finding
    """The reference model outlived its release; the text names what still holds it."""


class ReferenceTampered(MlxCheckError):  # noqa: N818 - a finding
    """A function that the reference runs is not the one in mlx-lm's own files."""


class ReferenceBroken(MlxCheckError):  # noqa: N818 - a finding
    """The reference's own logits are NaN or infinite, so nothing can be judged."""


class ReportError(MlxCheckError):
    """A report cannot be written to, or read from, the path that was given."""


class ServerError(MlxCheckError):
    """A server gave no answer, or one that cannot be read; the text says to what.

    Attributes:
        kind: ``"refused"`` (no connection), ``"timeout"``, ``"broken"`` (closed without an
            answer, or in the middle of one), ``"malformed"`` (no JSON, no events) or
            ``"status"`` (an HTTP status of failure where a stream was asked for).
    """

    def __init__(self, message: str, *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class CannotAsk(MlxCheckError):  # noqa: N818 - a limit of what lies between, not a mistake
    """An engine cannot be given a request as it stands, so nothing can be held against it.

    Attributes:
        request_id: Which.
    """

    def __init__(self, request_id: str, why: str) -> None:
        super().__init__(why)
        self.request_id = request_id


class EngineFault(MlxCheckError):  # noqa: N818 - a finding
    """The candidate broke the protocol: unknown id, bad token, wrong number of rows."""


class EngineCrashed(EngineFault):
    """The candidate raised; the text ends with its own traceback."""


class EngineHung(EngineFault):
    """The candidate made no progress within the watchdog's time."""


class RequestFailed(EngineFault):
    """The candidate broke one request; raised by a backend from `step` or `submit`.

    Attributes:
        request_id: Which.
    """

    def __init__(self, request_id: str, what: str) -> None:
        super().__init__(what)
        self.request_id = request_id


class ReferenceMismatch(AssertionError):  # noqa: N818 - reads as the assertion that failed
    """A candidate's tokens are not the reference's.

    Attributes:
        report: The whole `Report`, with every comparison of the run.
    """

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report
