"""The fixture and the marker in users' own tests: one run, looked at from many sides."""

from __future__ import annotations

import re

import pytest

from tests.plugin.support import MODELS, Folder, Result

TESTS = f"""
import engines
import pytest
from mlxcheck import ReferenceMismatch
from mlxcheck.errors import BackendError, UsageError

OTHER = {str(MODELS / "qwen3-8bit")!r}
declared = pytest.mark.mlx_reference(prompts=["What is 2+2?", [7, 8, 9]], max_tokens=5)


@declared
def test_equal(mlx_reference):
    report = mlx_reference.assert_equal(engines.Good)
    assert report.outcome == "pass"
    about = {{found.prompt_id for found in report.comparisons}}
    assert about == {{"p0-what-is-2-2", "p1", "stop-set"}}
    assert report.settings["max_tokens"] == 5


@declared
def test_traces(mlx_reference):
    sums, ids = mlx_reference.traces()
    assert 0 < len(ids.tokens) == len(ids.scores) <= 5
    assert (ids.finish == "length") is (len(ids.tokens) == 5)
    assert sums.prompt_id == "p0-what-is-2-2"


@declared
def test_different(mlx_reference):
    mlx_reference.assert_equal("engines:Swap", checks=["tokens"])


@declared
def test_report_without_raising(mlx_reference):
    report = mlx_reference.check(engines.constant, checks=["tokens"], prompts=[[7, 8]])
    assert report.outcome == "fail"


@pytest.mark.mlx_reference(model=OTHER, prompts=["Hello"], backend="engines:Good")
class TestClass:
    @pytest.mark.mlx_reference(max_tokens=3)
    def test_marks_add_up(self, mlx_reference):
        report = mlx_reference.assert_equal(checks=["tokens"])
        assert report.model == OTHER
        assert [each.precision for each in report.passes] == ["float32", "native"]
        assert report.backend == "engines:Good"
        assert report.settings["max_tokens"] == 3


def test_late_prompts(mlx_reference):
    assert mlx_reference.traces(["Late"], max_tokens=2)[0].tokens
    assert mlx_reference.traces(["Late"], max_tokens=2)[0].tokens


@declared
def test_absent(mlx_reference):
    mlx_reference.assert_equal("engines:Absent")


@declared
def test_wrong_name(mlx_reference):
    with pytest.raises(BackendError, match="Did you mean sglang"):
        mlx_reference.check("qlang")


def test_too_long(mlx_reference):
    mlx_reference.check("engines:Good", prompts=[[7] * 5000])


@pytest.mark.mlx_reference
def test_marked_without_fixture():
    pass
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Run the tests above beside one generated item."""
    folder = Folder(tmp_path_factory.mktemp("own"))
    folder.write("test_own.py", TESTS)
    model = MODELS / "qwen3-float32"
    keep = "test_own or (capital and tokens)"
    return folder.run(f"--mlx-model={model}", "--mlx-backend=engines:Good", "-k", keep)


@pytest.mark.parametrize(
    "name",
    [
        "test_equal",
        "test_traces",
        "test_report_without_raising",
        "TestClass::test_marks_add_up",
        "test_late_prompts",
        "test_wrong_name",
        "test_marked_without_fixture",
    ],
)
def test_these_pass(story: Result, name: str) -> None:
    """What they assert about reports and traces holds."""
    assert name in story.outcome("PASSED")


def test_a_difference_points_at_the_users_line(story: Result) -> None:
    """The traceback shows the test, not the plugin's own frames."""
    text = story.out.partition("test_different ___")[2].partition("test_too_long ___")[0]

    assert "test_different" in story.outcome("FAILED")
    assert re.search(r'^> +mlx_reference.assert_equal\("engines:Swap"', text, re.MULTILINE)
    assert "ReferenceMismatch: fail: engines:Swap against mlx-lm" in text
    assert "check tokens: token 2 of 5 differs (step 1)" in text
    assert "user.py" not in text


def test_a_prompt_that_does_not_fit_fails_with_a_paragraph(story: Result) -> None:
    """The error is mlxcheck's own, raised at the user's line."""
    assert "test_too_long" in story.outcome("FAILED")
    assert "PromptError: prompt 'p0': 5000 tokens and 6 to decode are more than" in story.out


def test_an_engine_that_is_not_installed_skips(story: Result) -> None:
    """As in generated items."""
    assert story.outcome("SKIPPED") == ["test_absent"]


def test_each_model_is_loaded_once_for_all_that_is_declared(story: Result) -> None:
    """Items and markers share a load of each pass; what no marker declares costs its own.

    Those are the prompts of `test_report_without_raising` and `test_late_prompts`.
    """
    loads = [line for line in story.log if line.startswith("reference")]

    assert loads == [
        "reference qwen3-float32",
        "reference float32 copy",
        "reference qwen3-8bit",
        "reference qwen3-float32",
        "reference qwen3-float32",
    ]
    assert story.log[:3] == tuple(loads[:3])


def test_engines_of_tests_are_closed_too(story: Result) -> None:
    """Whatever the test came to."""
    opened = [line.split()[1] for line in story.log if line.startswith("open")]
    closed = [line.split()[1] for line in story.log if line.startswith("close")]

    assert opened == ["Good", "Good", "Swap", "Good", "Good"]
    assert [name for name in closed if name != "Absent"] == opened


def test_the_summary_counts_them(story: Result) -> None:
    """Comparisons of tests count as generated ones do, and answers handed out are told."""
    assert story.reports is not None
    compared = sum(len(report.comparisons) for report in story.reports)

    assert compared > 1
    assert f"mlxcheck: {compared} comparisons, " in story.summary()
    assert ", 4 expected answers handed to tests; 2 did not happen:" in story.summary()


def test_no_model_is_an_error_that_says_where_to_name_one(pytester: pytest.Pytester) -> None:
    """Of the test that needs one, and of none else."""
    pytester.makepyfile(
        """
        def test_needs(mlx_reference):
            mlx_reference.check("mlx-lm")

        def test_other():
            pass
        """
    )

    result = pytester.runpytest_inprocess("--mlx-reference")

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*UsageError: no model is given: name one in the call or*"])


def test_several_models_or_backends_have_to_be_chosen_from(pytester: pytest.Pytester) -> None:
    """Neither is guessed."""
    path = pytester.makepyfile(
        """
        def test_model(mlx_reference):
            mlx_reference.check("mlx-lm")

        def test_backend(mlx_reference):
            mlx_reference.check(model="one")
        """
    )
    options = ["--mlx-model=one", "--mlx-model=two", "--mlx-backend=a:b", "--mlx-backend=c:d"]

    result = pytester.runpytest_inprocess("--mlx-reference", *options, str(path))

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "*UsageError: several models are given: one, two. Name one: model=...",
            "*UsageError: several backends are given: a:b, c:d. Name one: backend=...",
        ]
    )
