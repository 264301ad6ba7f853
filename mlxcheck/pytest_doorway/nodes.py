"""The generated tree: models, backends, and one item a check and prompt.

The items of one model and backend have one parent, and pytest tears a parent down when the
next item has another: so the candidate is opened by its first item and closed after its
last, also on ``-x``, on errors and on Ctrl-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.pytest_doorway.outcomes import Failed, Refusal

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from mlxcheck.checks import Check
    from mlxcheck.pytest_doorway.hooks import Doorway
    from mlxcheck.run import Drive

__all__ = ["Backend", "Comparison", "Model", "Root"]


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
        """Make a node a backend."""
        for name in self.doorway.wishes.backends:
            backend: Backend = Backend.from_parent(self, name=name)
            backend.doorway, backend.source = self.doorway, self.source
            backend.drive, backend.owed, backend.checks = None, set(), []
            backend.prompt_ids = frozenset()
            yield backend


class Backend(pytest.Collector):
    """One backend on one model: what is opened once.

    Attributes:
        drive: The open candidate, from its first item to its last; or why there is none.
        owed: The node ids of selected items that have not run yet.
        checks: Those of the selected items.
        prompt_ids: Of the prompts that fit the model, once they are known.
    """

    doorway: Doorway
    source: str
    drive: Drive | Refusal | None
    owed: set[str]
    checks: list[Check]
    prompt_ids: frozenset[str]

    def collect(self) -> Iterator[Comparison]:
        """Make an item for each check and prompt."""
        for check in self.doorway.wishes.checks:
            for question in self.doorway.wishes.questions:
                name = f"{check.name}[{question.id}]"
                # As text, so that pytest reads the brackets as it will in its cache (--lf).
                nodeid = f"{self.nodeid}::{name}"
                item: Comparison = Comparison.from_parent(self, name=name, nodeid=nodeid)
                item.check, item.prompt_id = check, question.id
                item.add_marker("mlx_reference")
                words = (self.parent.name if self.parent else "", self.name)
                item.extra_keyword_matches.update((*words, check.name, question.id))
                if self.doorway.chose(item.nodeid):
                    yield item

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
