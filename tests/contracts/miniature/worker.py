"""Who holds a runner."""

from __future__ import annotations

from tests.contracts.miniature.runner import Runner
from tests.contracts.miniature.stub import StubRunner


class Worker:
    """Holds a runner."""

    def __init__(self, config: dict[str, int]) -> None:
        self.config = config
        self._runner = self.make()

    def make(self) -> Runner:
        """Make the runner."""
        return Runner(self.config)

    @property
    def runner(self) -> Runner:
        """The runner."""
        return self._runner

    def start(self) -> None:
        """Bring it up."""
        self.runner.allocate(layout="rows")
        self.runner.attach()

    def forward(self, batch: list[int]) -> list[int]:
        """Run a pass."""
        return self.runner.step(batch, sample=self.runner.layout is None)


class StubWorker(Worker):
    """Holds a stub, and does the passes itself."""

    def make(self) -> Runner:
        """Make the stub."""
        return StubRunner(self.config, slots=4)

    def forward(self, batch: list[int]) -> list[int]:
        """Run a pass without the runner."""
        return batch
