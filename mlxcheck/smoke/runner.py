"""Ask a server everything, in order, whatever it does, until it is gone."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck.errors import ServerError, UsageError
from mlxcheck.serving.address import shown_url
from mlxcheck.serving.client import Client
from mlxcheck.serving.process import ServerProcess
from mlxcheck.smoke import answers, company, limits, refusals
from mlxcheck.smoke.asking import Asker, CheckFailed, Undecided, listed
from mlxcheck.smoke.records import SmokeReport, SmokeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlxcheck.report import Outcome
    from mlxcheck.serving.launch import Launch
    from mlxcheck.smoke.counting import Counter

__all__ = ["CHECKS", "MODELS", "REFERENCE", "STARTS", "Asking", "named", "run"]

STARTS = "starts"
"""The result of starting a server; asked where one is started."""

REFERENCE = "reference"
"""The comparison with mlx-lm, which comes last; asked where `Asking.reference` is given."""

MODELS = "models"
"""The check that is asked in any case where no name of a model is given."""

CHECKS: dict[str, Callable[[Asker], str]] = {
    MODELS: answers.models,
    "answers": answers.answers,
    "again": answers.again,
    "sum": answers.two,
    "capital": answers.capital,
    "content-type": answers.content_type,
    "finish": answers.finish,
    "thinking": answers.thinking,
    "stream": answers.stream,
    "max-tokens": limits.max_tokens,
    "stop": limits.stop,
    "usage": limits.usage,
    "repeatable": company.repeatable,
    "eight": company.eight,
    "cancelled": company.cancelled,
    "unknown-model": refusals.unknown_model,
    "huge-max-tokens": refusals.huge_max_tokens,
    "empty-messages": refusals.empty_messages,
    "broken-json": refusals.broken_json,
}
"""By name, in the order in which they are asked: what others rest on comes first.

Each takes the `Asker` and returns its evidence, or raises `CheckFailed`, `Undecided` or
`ServerError`.
"""


_HEALTH_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a server is asked.

    Attributes:
        checks: Names of `CHECKS`.
        served_model: What requests call the model; None: the first that the server lists.
        counter: Counts tokens as the model's tokenizer does; None without one.
        reference: Compares the server at a URL, which calls the model so, with mlx-lm: called
            ``reference(url, served_model)`` when all else is asked; None: it is left out.
        max_tokens: Of one answer.
        timeout_s: For one request, to the last byte of its answer.
        wait_s: For a server that is started to become ready.
        health: The path that is looked at when a check has failed.
    """

    checks: tuple[str, ...] = tuple(CHECKS)
    served_model: str | None = None
    counter: Counter | None = None
    reference: Callable[[str, str], SmokeResult] | None = None
    max_tokens: int = 256
    timeout_s: float = 120.0
    wait_s: float = 600.0
    health: str = "/health"


def named(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of checks in their order; all without any.

    Raises:
        UsageError: If there is none of such a name.
    """
    for name in names or ():
        if name not in CHECKS:
            msg = f"unknown smoke check {name!r}. Choose from: {', '.join(CHECKS)}."
            raise UsageError(msg)
    return tuple(name for name in CHECKS if not names or name in names)


def run(
    target: str | Launch,
    asking: Asking | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
    found: Callable[[SmokeResult], None] = lambda _: None,
) -> SmokeReport:
    """Ask a server all checks.

    Args:
        target: The URL of one that runs, or how to start one; it is ended in any case.
        asking: What to ask, and how.
        tell: Called with a line now and then while a server is waited for.
        found: Called with each result as it comes.

    Raises:
        UsageError: If the URL or the command cannot be, or no server is at the URL.
    """
    story = _Story(target, asking or Asking(), found)
    if isinstance(target, str):
        story.ask_all(Client(target, timeout_s=story.asking.timeout_s))
    else:
        story.serve(target, tell)
    return story.report()


class _Story:
    """What has been found so far.

    Args:
        target: As for `run`.
        asking: Likewise.
        found: Likewise.
    """

    def __init__(
        self, target: str | Launch, asking: Asking, found: Callable[[SmokeResult], None]
    ) -> None:
        if isinstance(target, str):
            self.asking, self._server = asking, shown_url(target)
        else:
            self.asking = replace(asking, health=target.ready)
            self._server = " ".join(target.command)
        self._found = found
        self._model = asking.served_model or ""
        self._results: list[SmokeResult] = []
        self._process: ServerProcess | None = None

    def report(self) -> SmokeReport:
        """Return all of it."""
        results = tuple(self._results)
        return SmokeReport(server=self._server, served_model=self._model, results=results)

    def serve(self, launch: Launch, tell: Callable[[str], None]) -> None:
        """Start a server, ask it everything, and end it."""
        began = time.monotonic()
        with ExitStack() as stack:
            server = ServerProcess(launch, wait_s=self.asking.wait_s, tell=tell)
            try:
                self._process = stack.enter_context(server)
            except ServerError as error:
                self._add(STARTS, "fail", str(error), began)
                self._leave_out("the server did not start")
                return
            self._add(STARTS, "pass", f"GET {launch.ready} gives 2xx", began)
            self.ask_all(Client(server.url, timeout_s=self.asking.timeout_s))

    def ask_all(self, client: Client) -> None:
        """Ask a running server everything."""
        self._model = self._model or self._find_model(client)
        if not self._model:
            self._leave_out("no name of a model to ask for")
            return
        asking = self.asking
        asker = Asker(client, self._model, max_tokens=asking.max_tokens, counter=asking.counter)
        gone = ""
        for name in asking.checks:
            if gone:
                self._add(name, "inconclusive", f"not asked: {gone}")
            elif not any(result.name == name for result in self._results):
                gone = self._ask(name, asker)
        if asking.reference is not None and gone:
            self._add(REFERENCE, "inconclusive", f"not asked: {gone}")
        elif asking.reference is not None:
            result = asking.reference(client.url, self._model)
            self._results.append(result)
            self._found(result)

    def _find_model(self, client: Client) -> str:
        """Return the first model that the server lists, or nothing."""
        began = time.monotonic()
        try:
            name, *_ = listed(client)
        except (CheckFailed, ServerError) as fault:
            absent = isinstance(fault, ServerError) and fault.kind == "refused"
            if absent and self._process is None:
                msg = f"{fault}. Is it running, and is this its URL?"
                raise UsageError(msg) from None
            self._add(MODELS, "fail", f"{fault}{self._afterwards(client)}", began)
            return ""
        self._add(MODELS, "pass", f"the first that is listed: {name}", began)
        return name

    def _ask(self, name: str, asker: Asker) -> str:
        """Ask one check; return why no other one can be asked, or nothing."""
        began, gone = time.monotonic(), ""
        try:
            self._add(name, "pass", CHECKS[name](asker), began)
        except Undecided as doubt:
            self._add(name, "inconclusive", str(doubt), began)
        except (CheckFailed, ServerError) as fault:
            if isinstance(fault, ServerError) or fault.silent:
                gone = asker.lives()
            message = f"{fault}{self._afterwards(asker.client)}"
            self._add(name, "fail", message, began)
        return gone and f"the server answers no more ({gone})"

    def _afterwards(self, client: Client) -> str:
        """Say how the server is, behind a failure: health may be green over a dead worker."""
        path, limit = self.asking.health, min(_HEALTH_S, self.asking.timeout_s)
        try:
            health = f"status {client.get(path, timeout_s=limit).status}"
        except ServerError as error:
            health = str(error).removeprefix(f"GET {path}: ")
        text = f"\n  afterwards GET {path}: {health}"
        ended = None if self._process is None else self._process.ended
        if self._process is not None and ended is not None:
            text += f"\n  the server has ended with status {ended}. {self._process.tail()}"
        return text

    def _leave_out(self, why: str) -> None:
        asked = {result.name for result in self._results}
        more = () if self.asking.reference is None else (REFERENCE,)
        for name in (*self.asking.checks, *more):
            if name not in asked:
                self._add(name, "inconclusive", f"not asked: {why}")

    def _add(
        self, name: str, outcome: Outcome, message: str, began: float | None = None
    ) -> None:
        seconds = 0.0 if began is None else time.monotonic() - began
        result = SmokeResult(name=name, outcome=outcome, message=message, seconds=seconds)
        self._results.append(result)
        self._found(result)
