"""Opens a candidate, or says why not and whose fault that is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck.backends import registry
from mlxcheck.errors import BackendError
from mlxcheck.pytest_doorway.outcomes import Refusal
from mlxcheck.run import Drive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcheck.checks import Check
    from mlxcheck.recording import Recorded
    from mlxcheck.settings import Settings

__all__ = ["open_candidate", "require_known"]


def require_known(backend: object) -> None:
    """Find a typing mistake before it costs a load, without running an engine's code.

    An engine may patch mlx-lm when it is imported; that waits until the references are made.

    Raises:
        BackendError: It cannot be a backend.
    """
    named = isinstance(backend, str) and (":" in backend or backend in registry.known())
    if not named:
        registry.resolve(backend)


def open_candidate(
    recorded: Recorded,
    backend: object,
    checks: Sequence[Check],
    settings: Settings,
    last_words: Callable[[str], None],
) -> Drive | Refusal:
    """Open a candidate; the caller closes it with ``__exit__``.

    A wrong name, or a class that is no backend, is the user's mistake and fails. An engine
    that says on opening that it is not installed here is not, and skips.

    Args:
        recorded: Of the model; nothing of the reference is loaded.
        backend: Anything that `registry.resolve` takes.
        checks: What it will be asked.
        settings: As for `Drive`.
        last_words: As for `Drive`.
    """
    try:
        with registry.working_folder_on_path():
            drive = Drive(recorded, backend, checks, settings, last_words=last_words)
    except Exception as error:  # noqa: BLE001 - as above
        return Refusal.of(error)
    try:
        drive.__enter__()
    except BackendError as error:
        refusal = Refusal.of(error)
    except Exception as error:  # noqa: BLE001 - as above
        return Refusal.of(error)
    else:
        return drive
    return replace(refusal, skips=_can_be_made(backend))


def _can_be_made(backend: object) -> bool:
    """Tell an engine that is not installed from a class that is not a backend."""
    try:
        registry.resolve(backend)()
    except BackendError:
        return False
    return True
