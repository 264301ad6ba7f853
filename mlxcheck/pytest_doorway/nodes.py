"""The generated tree: models, backends in each pass, and one item a check and prompt.

The items of one model, backend and pass have one parent, and pytest tears a parent down when
the next item has another: so the candidate is opened by its first item and closed after its
last, also on ``-x``, on errors and on Ctrl-C, and two copies of a model are never loaded.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pytest

from mlxcheck.checks.base import Inspects
from mlxcheck.passes import COUNTED
from mlxcheck.pytest_doorway.outcomes import Failed, Refusal
from mlxcheck.pytest_doorway.references import foreseen
from mlxcheck.records import ALL_PROMPTS, STOP_SET

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from mlxcheck.checks import Check
    from mlxcheck.pytest_doorway.hooks import Doorway
    from mlxcheck.pytest_doorway.options import Wishes
    from mlxcheck.records import Comparison as Found
    from mlxcheck.records import Precision
    from mlxcheck.run import Drive

__all__ = ["Backend", "Comparison", "Model", "Root", "Searches"]


@runtime_checkable
class Searches(Protocol):
    """What a check is too that draws its cases while it drives them."""

    examples: int

    def run(self, drive: Drive) -> tuple[Found, ...]:
        """Search, and return the comparisons of what was found."""


class Root(pytest.Collector):
    """All generated items."""

    doorway: Doorway

    @classmethod
    def of(cls, session: pytest.Session, doorway: Doorway) -> Root:
        """Make the root of a session."""
        root: Root = cls.from_parent(session, name="mlxcheck", nodeid="mlxcheck")
        root.doorway = doorway
        return root

    def collect(self) -> Iterator[Model]:
        """Make a node a model."""
        for name, source in self.doorway.wishes.models.items():
            model: Model = Model.from_parent(self, name=name)
            model.doorway, model.source = self.doorway, source
            yield model


class Model(pytest.Collector):
    """One model's items."""

    doorway: Doorway
    source: str

    def collect(self) -> Iterator[Backend]:
        """Make a node a backend, or where the model has several passes a backend and pass."""
        passes = foreseen(self.source, self.doorway.wishes.settings.policy)
        for engine in self.doorway.wishes.backends:
            for precision in passes:
                name = engine if len(passes) == 1 else f"{engine}-{precision}"
                backend: Backend = Backend.from_parent(self, name=name)
                backend.doorway, backend.source = self.doorway, self.source
                backend.engine, backend.precision = engine, precision
                backend.drive, backend.ran, backend.checks = None, None, []
                backend.owed, backend.asked = set(), {}
                backend.prompt_ids = frozenset()
                yield backend


class Backend(pytest.Collector):
    """One backend on one model in one pass: what is opened once.

    Attributes:
        engine: The backend's own name.
        precision: The pass.
        drive: The open candidate, from its first item to its last; or why there is none.
        ran: Whether it was compared in this pass; None as long as nobody knows.
        owed: The node ids of selected items that have not run yet.
        checks: Those of the selected items.
        asked: The prompts of the selected items by check.
        prompt_ids: Of the prompts that fit the model, once they are known.
    """

    doorway: Doorway
    source: str
    engine: str
    precision: Precision
    drive: Drive | Refusal | None
    ran: bool | None
    owed: set[str]
    checks: list[Check]
    asked: dict[str, list[str]]
    prompt_ids: frozenset[str]

    def collect(self) -> Iterator[Comparison]:
        """Make an item for each check and prompt, and for what is about all of them."""
        for check in (*self.doorway.wishes.checks, *self._searches()):
            for prompt_id in _subjects(check, self.doorway.wishes):
                name = f"{check.name}[{prompt_id}]"
                # As text, so that pytest reads the brackets as it will in its cache (--lf).
                nodeid = f"{self.nodeid}::{name}"
                item: Comparison = Comparison.from_parent(self, name=name, nodeid=nodeid)
                item.check, item.prompt_id = check, prompt_id
                item.add_marker("mlx_reference")
                words = (self.parent.name if self.parent else "", self.name, self.precision)
                item.extra_keyword_matches.update((*words, check.name, prompt_id))
                if self.doorway.chose(item.nodeid):
                    yield item

    def _searches(self) -> Iterator[Check]:
        """Make the search, where one is asked for; nothing else imports hypothesis."""
        wishes = self.doorway.wishes
        if wishes.examples:
            from mlxcheck.search import Search

            yield Search(wishes.examples, wishes.settings.seed, again=_again(self, wishes))

    def teardown(self) -> None:
        """Close the candidate."""
        drive, self.drive = self.drive, None
        if drive is None or isinstance(drive, Refusal):
            return
        drive.__exit__(None, None, None)
        for found in drive.report().comparisons:
            if found.check == "close":  # what it did wrong after all that was asked
                self.doorway.closing_failed(found.message)


class Comparison(pytest.Item):
    """One prompt under one check."""

    parent: Backend
    check: Check
    prompt_id: str

    def runtest(self) -> None:
        """Compare; the first item of a session records the references."""
        __tracebackhide__ = True
        self.parent.doorway.compare(self)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> Any:
        """Show a verdict's text alone, and a traceback for what nobody expected."""
        if isinstance(excinfo.value, Failed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Say where the item is: nowhere in a file, so what it compares."""
        model = self.parent.parent.name if self.parent.parent else ""
        return self.path / "mlxcheck", None, f"{model} {self.parent.name} {self.name}"


def _subjects(check: Check, wishes: Wishes) -> Iterator[str]:
    """Name what a check has comparisons of, as `Comparison.prompt_id` does."""
    if isinstance(check, Searches):
        yield ALL_PROMPTS
        return
    if isinstance(check, Inspects):
        yield from (each.id for each in wishes.questions if each.messages is not None)
        yield STOP_SET
        return
    yield from (each.id for each in wishes.questions)
    if check.name in COUNTED and wishes.settings.policy.mode == "calibrated":
        yield ALL_PROMPTS


def _again(backend: Backend, wishes: Wishes) -> str:
    """Return the command that repeats a search: what it found is in no plan."""
    settings = wishes.settings
    options = {
        "model": backend.source,
        "backend": backend.engine,
        "precision": backend.precision,
        "mode": settings.policy.mode,
        "prompts": settings.prompts_from,
        "max-tokens": settings.max_tokens,
        "seed": settings.seed,
        "examples": wishes.examples,
    }
    given = [f"--mlx-{name}={value}" for name, value in options.items() if value is not None]
    return shlex.join(["pytest", "--mlx-reference", "-k", "search", *given])
