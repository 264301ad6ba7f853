"""The working half of the pytest plugin, imported only under ``--mlx-reference``.

In the order of a run: `options` settles what was asked for, `nodes` makes the items,
`references` records the references in one load a model and pass, `generated` opens their
candidates, `tally` counts what was compared and writes the report, `user` is the fixture's
value, `hooks` ties them to pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["enter"]


def enter(config: pytest.Config) -> None:
    """Read the options and register the working half.

    Raises:
        UsageError: pytest's own, one paragraph: a bad value, or pytest-xdist.
    """
    from mlxcheck.plugin import DOORWAY
    from mlxcheck.precision import turn_tf32_off
    from mlxcheck.pytest_doorway.hooks import Doorway
    from mlxcheck.pytest_doorway.options import refuse_workers, wishes

    refuse_workers(config)
    wanted = wishes(config)
    if "float32" in wanted.settings.policy.precision:
        # Before any test module computes something: MLX reads it once.
        turn_tf32_off()
    config.pluginmanager.register(Doorway(config, wanted), DOORWAY)
