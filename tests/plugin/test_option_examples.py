"""``--mlx-examples``: one more item for each model, backend and pass, which searches."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.plugin.support import WHOLE, Folder

if TYPE_CHECKING:
    from collections.abc import Callable

TELL = """
import sys


def pytest_unconfigure(config):
    print("HYPOTHESIS", "hypothesis" in sys.modules)
"""


def test_one_more_item_is_made(listed: Callable[..., list[str]], model: str) -> None:
    """It comes last; without the option, and with 0, there is none."""
    options = (f"--mlx-model={model}", "--mlx-check=stop")

    plain = listed(*options)
    items = listed(*options, "--mlx-examples=20")

    assert items == [*plain, "mlxcheck::qwen3-float32::mlx-lm::search[all-prompts]"]
    assert listed(*options, "--mlx-examples=0") == plain


@pytest.mark.parametrize(("option", "imported"), [((), False), (("--mlx-examples=2",), True)])
def test_hypothesis_is_imported_for_a_search_alone(
    folder: Folder,
    option: tuple[str, ...],
    imported: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Who does not search does not pay for it."""
    folder.write("conftest.py", TELL)

    result = folder.run(WHOLE, "--mlx-check=tokens", "-s", *option)

    assert f"HYPOTHESIS {imported}" in result.out
    assert result.status == pytest.ExitCode.OK


def test_a_search_finds_a_fault_and_says_how_to_find_it_again(folder: Folder) -> None:
    """An honest engine passes; a faulty one fails with the smallest case and the command."""
    engines = ("--mlx-backend=engines:Good", "--mlx-backend=engines:Swap")

    result = folder.run(WHOLE, *engines, "--mlx-examples=10", "--mlx-seed=3", "-k", "search")

    assert result.outcome("PASSED") == ["qwen3-float32::engines:Good::search[all-prompts]"]
    assert result.outcome("FAILED") == ["qwen3-float32::engines:Swap::search[all-prompts]"]
    assert "  the smallest case found that differs: row 0 " in result.out
    assert "  again: pytest --mlx-reference -k search --mlx-model=" in result.out
    assert "--mlx-seed=3 --mlx-examples=10\n" in result.out
    assert result.reports is not None
    checks = {found.check for each in result.reports for found in each.comparisons}
    assert checks == {"search"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("some", "ERROR: --mlx-examples='some': expected a whole number."),
        ("-1", "ERROR: --mlx-examples='-1': expected at least 0 examples."),
    ],
)
def test_bad_numbers(pytester: pytest.Pytester, value: str, text: str) -> None:
    """A number that cannot be meant is a usage error."""
    result = pytester.runpytest_inprocess("--mlx-reference", "--co", f"--mlx-examples={value}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([text])


def test_without_hypothesis_it_is_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One paragraph says what is missing and how to get it; no search, no question."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "hypothesis" else real(name, *rest),
    )

    result = pytester.runpytest_inprocess("--mlx-reference", "--co", "--mlx-examples=5")
    plain = pytester.runpytest_inprocess("--mlx-reference", "--co")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --mlx-examples=5: *Run pip install hypothesis."])
    assert plain.ret == pytest.ExitCode.NO_TESTS_COLLECTED
