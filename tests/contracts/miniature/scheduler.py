"""Who uses the runner through who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.contracts.miniature.worker import Worker


class Scheduler:
    """Admits requests."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        worker.start()
        self.room = worker.runner.pool.slots
        if (watch := self.worker.runner.watch) is not None:
            watch.begin()

    def admit(self, tokens: int) -> bool:
        """Say whether a request fits."""
        runner = self.worker.runner
        if runner.experts:
            runner.experts.prepare(tokens)
        return tokens < runner.limit and fits(tokens, runner)


def fits(tokens, owner) -> bool:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Say whether tokens fit; nothing here says what `owner` is."""
    return bool(tokens < owner.capacity and getattr(owner, "budget", 1))
