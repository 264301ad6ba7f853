"""How a server is started: a command line that makes sense, before anything runs."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlxcheck.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PORT", "Launch", "Preset", "parse_command"]

PORT = "{port}"
"""Stands in a command for the port that is found for it."""

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server to start.

    Attributes:
        command: Words; `PORT` in them stands for the port.
        env: What is added to the environment.
        ready: The path that answers 2xx once the server can be asked.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A real server: how it is started, and what is peculiar to it.

    Attributes:
        name: What ``--preset`` calls it.
        command: Words; ``{python}`` stands for this interpreter, ``{model}`` for the model.
        env: What is added to the environment.
        ready: The path that answers 2xx once the server can be asked.
        served_model: What its requests call the model; None: what ``/v1/models`` lists.
        differs: Where it is known not to do as OpenAI's server does, a sentence each.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"
    served_model: str | None = None
    differs: tuple[str, ...] = ()

    def launch(self, model: str, more: str = "") -> Launch:
        """Return what starts it on *model*, with *more* arguments behind its own.

        Raises:
            UsageError: If *more* cannot be split into words, or the program is not there.
        """
        holes = {"{python}": sys.executable, "{model}": model}
        words = tuple(holes.get(word, word) for word in self.command)
        _require_program(words[0])
        return Launch(command=(*words, *_split(more)), env=self.env, ready=self.ready)


def parse_command(text: str, ready: str) -> Launch:
    """Return what a command line says: ``VARIABLE=VALUE`` words first, then the program.

    No shell reads it: for pipes and ``&&``, start one with ``sh -c '...'``.

    Args:
        text: The command, with ``{port}`` where the port goes.
        ready: The path that answers 2xx once the server can be asked.

    Raises:
        UsageError: If it cannot be split into words, has no ``{port}``, or names a program
            that is not there.
    """
    env: dict[str, str] = {}
    words = _split(text)
    while words and _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    if not words:
        msg = f"--serve {text!r}: no command. Expected 'COMMAND ... {PORT}'."
        raise UsageError(msg)
    if not any(PORT in word for word in words):
        msg = (
            f"--serve {text!r}: the command has no {PORT}. Put it where the command takes its "
            f"port, as in '--port {PORT}': a free one goes there."
        )
        raise UsageError(msg)
    _require_program(words[0])
    return Launch(command=tuple(words), env=env, ready=ready)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        msg = f"{text!r} cannot be split into words: {error}."
        raise UsageError(msg) from None


def _require_program(name: str) -> None:
    if shutil.which(name) is None:
        msg = f"{name}: command not found, or not executable. Install it, or give its path."
        raise UsageError(msg)
