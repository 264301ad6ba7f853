"""``--mlx-model``: which items there are, and how they are chosen. Nothing is loaded here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.support import ALONE, MODELS

if TYPE_CHECKING:
    from collections.abc import Callable

    Listed = Callable[..., list[str]]

ONE = "mlxcheck::one::mlx-lm::"


@pytest.fixture(autouse=True)
def _one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the shortest names; `test_passes` is about several passes."""
    monkeypatch.setenv("MLXCHECK_PRECISION", "native")


def test_one_item_a_model_check_and_prompt(listed: Listed) -> None:
    """Ids name model, backend, check and prompt, in the order in which they run."""
    ids = listed("--mlx-model=a/one", "--mlx-model=two", "--mlx-check=tokens")

    assert ids[0] == "mlxcheck::one::mlx-lm::tokens[sum-2-2]"
    assert ids[-1] == "mlxcheck::two::mlx-lm::tokens[all-prompts]"
    assert len(ids) == 2 * (33 + 1)


def test_models_of_the_same_name_are_told_apart(listed: Listed) -> None:
    """Where the last part is not enough, more of the source is shown; repetitions drop."""
    options = [f"--mlx-model={source}" for source in ("a/x/one", "b/x/one", "a/x/one")]

    ids = listed(*options, "-k", "sum-2-2 and tokens")

    assert ids == [
        "mlxcheck::a/x/one::mlx-lm::tokens[sum-2-2]",
        "mlxcheck::b/x/one::mlx-lm::tokens[sum-2-2]",
    ]


def test_no_model_says_where_to_give_one(pytester: pytest.Pytester) -> None:
    """Without any model nothing is made, and the header tells the three ways."""
    result = pytester.runpytest_inprocess("--mlx-reference")

    result.stdout.fnmatch_lines(["mlxcheck: no model is given (--mlx-model, MLXCHECK_MODEL*"])
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_tree_has_sensible_parents(pytester: pytest.Pytester) -> None:
    """``--collect-only`` shows model, backend and item under one root."""
    options = ["--mlx-model=one", "-k", "sum-2-2 and tokens"]

    result = pytester.runpytest_inprocess("--mlx-reference", "--collect-only", *options)

    result.stdout.fnmatch_lines(
        [
            "collected 358 items / 357 deselected / 1 selected",
            "<Root mlxcheck>",
            "  <Model one>",
            "    <Backend mlx-lm>",
            "      <Comparison tokens[[]sum-2-2[]]>",
        ]
    )


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["-k", "capital-france"], 11),
        (["-k", "capital-france and not batch"], 10),
        (["-k", "mlx-lm and stop"], 34),
        (["-k", "all-prompts"], 3),
        (["-m", "mlx_reference"], 358),
        (["-m", "not mlx_reference"], 0),
        (["--deselect", "mlxcheck::one::mlx-lm::tokens"], 324),
        (["--deselect", "mlxcheck::one::mlx-lm::tokens[sum-2-2]"], 357),
        (["mlxcheck::one::mlx-lm::stop"], 33),
        (["mlxcheck::one::mlx-lm::stop[sum-2-2]", "mlxcheck::one::mlx-lm::tokens"], 35),
        (["../mlxcheck::one::mlx-lm::stop[sum-2-2]"], 1),
    ],
)
def test_items_are_selected_as_others_are(
    listed: Listed, options: list[str], count: int
) -> None:
    """Keywords, marker, deselection, and the ids that pytest shows."""
    assert len(listed("--mlx-model=one", *options)) == count


def test_an_id_that_is_none_is_an_error(pytester: pytest.Pytester) -> None:
    """A node id that no item has ends the run, with the nearest that is one."""
    options = ["--mlx-model=one", "mlxcheck::one::mlx-lm::tokens[sum-2-3]"]

    result = pytester.runpytest_inprocess("--mlx-reference", *options)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *sum-2-3]: *this id. Did you mean *[[]sum-*"])


def test_command_line_before_environment_before_ini(
    listed: Listed, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place is asked only where the one before it says nothing."""
    only = ["-k", "sum-2-2 and tokens"]
    pytester.makeini("[pytest]\nmlx_model =\n    of-ini\n    also-ini\n")

    from_ini = listed(*only)
    monkeypatch.setenv("MLXCHECK_MODEL", "of-env, also-env")
    from_environment = listed(*only)
    from_command_line = listed(*only, "--mlx-model=of-line")

    end = "::mlx-lm::tokens[sum-2-2]"
    assert from_ini == [f"mlxcheck::of-ini{end}", f"mlxcheck::also-ini{end}"]
    assert from_environment == [f"mlxcheck::of-env{end}", f"mlxcheck::also-env{end}"]
    assert from_command_line == [f"mlxcheck::of-line{end}"]


def test_items_come_in_addition_to_tests(listed: Listed, pytester: pytest.Pytester) -> None:
    """They come first: a test after them may hold a model, or patch mlx-lm."""
    pytester.makepyfile(test_mine="def test_mine():\n    pass\n")

    ids = listed("--mlx-model=one", "-k", "mine or sum-2-2 and tokens")

    assert ids == [f"{ONE}tokens[sum-2-2]", "test_mine.py::test_mine"]


def test_naming_a_file_wants_that_file_alone(listed: Listed, pytester: pytest.Pytester) -> None:
    """A file or a test on the command line adds no items; a folder does."""
    pytester.makepyfile(test_mine="def test_mine():\n    pass\n")

    assert listed("--mlx-model=one", "test_mine.py") == ["test_mine.py::test_mine"]
    assert listed("--mlx-model=one", "test_mine.py::test_mine") == ["test_mine.py::test_mine"]
    assert len(listed("--mlx-model=one", ".")) == 359


def test_collecting_imports_no_engine(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, passes and prompt ids are known without mlx, mlx_lm or a tokenizer."""
    monkeypatch.delenv("MLXCHECK_PRECISION")
    for name in ALONE:  # the plugin's own entry point is put to use here
        monkeypatch.delenv(name)
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            heavy = {"mlx", "mlx_lm", "transformers", "tokenizers", "torch", "rich"}
            print("HEAVY", sorted(heavy & set(sys.modules)))
        """
    )

    result = pytester.runpytest_subprocess(
        "--mlx-reference", f"--mlx-model={MODELS / 'qwen3-8bit'}", "--co", "-q", "-s"
    )

    result.stdout.fnmatch_lines(["*716 tests collected*", "HEAVY [[][]]"])
