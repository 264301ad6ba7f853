"""``--mlx-backend``: which engines, and what a wrong name costs: nothing is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Listed = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the shortest names; `test_passes` is about several passes."""
    monkeypatch.setenv("MLXCHECK_PRECISION", "native")


def test_every_backend_has_its_items(listed: Listed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commas part names in the environment, so that paths may hold spaces."""
    monkeypatch.setenv("MLXCHECK_BACKEND", "mlx-lm, my.engine:Fast")

    ids = listed("--mlx-model=one", "-k", "sum-2-2 and tokens")

    assert ids == [
        "mlxcheck::one::mlx-lm::tokens[sum-2-2]",
        "mlxcheck::one::my.engine:Fast::tokens[sum-2-2]",
    ]


def test_last_failed_finds_its_items(listed: Listed, pytester: pytest.Pytester) -> None:
    """A failed item is known again by its id, and nothing else is selected."""
    options = ["--mlx-model=one", "--mlx-backend=mlxlm"]
    pytester.runpytest_inprocess("--mlx-reference", *options, "-k", "sum-2-2 and tokens")

    ids = listed(*options, "--lf")

    assert ids == ["mlxcheck::one::mlxlm::tokens[sum-2-2]"]


def test_an_unknown_backend_costs_no_load(pytester: pytest.Pytester) -> None:
    """The model is not even looked for, though it does not exist."""
    options = ["--mlx-model=./no/where", "--mlx-backend=mlxlm", "-k", "sum-2-2 and tokens"]

    result = pytester.runpytest_inprocess("--mlx-reference", *options)

    result.stdout.fnmatch_lines(
        [
            "there is no backend 'mlxlm'. Did you mean mlx-lm*",
            "mlxcheck: 0 comparisons, 0 steps compared; 1 did not happen: there is no backend*",
        ]
    )
    result.stdout.no_fnmatch_line("*no/where*no such folder*")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
