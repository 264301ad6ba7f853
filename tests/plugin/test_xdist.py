"""Several processes, each with a copy of the model: refused, never in silence."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("options", [["-n", "2"], ["-n", "1"], ["--dist=load", "--tx=popen"]])
def test_workers_are_refused(pytester: pytest.Pytester, options: list[str]) -> None:
    """The message says why, and what to do."""
    result = pytester.runpytest_inprocess(
        "--mlx-reference", "--mlx-model=one", "-p", "xdist", *options
    )

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --mlx-reference does not run under pytest-xdist: *Give -n 0, or -p no:xdist."]
    )


def test_no_worker_is_no_obstacle(pytester: pytest.Pytester) -> None:
    """``-n 0`` is xdist's own way to run in this process."""
    options = ["--mlx-model=one", "--co", "-p", "xdist", "-n", "0"]

    result = pytester.runpytest_inprocess("--mlx-reference", *options)

    assert result.ret == pytest.ExitCode.OK


def test_idle_workers_skip_and_the_summary_counts_them(pytester: pytest.Pytester) -> None:
    """Without the flag xdist is welcome, and no worker compares anything."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_mine(mlx_reference, n):
            assert False
        """
    )

    result = pytester.runpytest_subprocess("-p", "xdist", "-n", "2")

    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(
        ["mlxcheck: 3 tests that compare with the reference did not run: give --mlx-reference"]
    )
