"""``--mlx-require``: what is skipped or has no verdict fails, and so does a run of nothing."""

from __future__ import annotations

import pytest

from tests.plugin.support import MODELS, Folder, Result

TESTS = """
import sys

import pytest


class Lost:
    pass


@pytest.mark.mlx_reference(prompts=[[7, 8, 9]], max_tokens=4)
def test_absent(mlx_reference):
    mlx_reference.check("engines:Absent")


@pytest.mark.mlx_reference(prompts=[[7, 8, 9]], max_tokens=4)
def test_no_verdict(mlx_reference):
    report = mlx_reference.check("engines:Single", checks=["batch"])
    assert report.outcome == "inconclusive"


@pytest.mark.mlx_reference
@pytest.mark.skipif(sys.version_info > (3,), reason="only there")
def test_skips_itself():
    pass


@pytest.mark.mlx_reference
@pytest.mark.xfail(reason="known", strict=True)
def test_known_fault():
    assert False


@pytest.mark.skip(reason="not ours")
def test_of_other_things():
    pass
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Run what would skip, with the flag; and what would pass."""
    folder = Folder(tmp_path_factory.mktemp("require"))
    folder.write("test_own.py", TESTS)
    options = ["--mlx-require", f"--mlx-model={MODELS / 'qwen3-float32'}"]
    options += [f"--mlx-backend=engines:{name}" for name in ("Single", "Absent")]
    return folder.run(*options, "--mlx-check=tokens", "--mlx-check=batch")


def test_generated_items_fail(story: Result) -> None:
    """A check that is not asked, and an engine that is not there; the rest still passes."""
    pair = "qwen3-float32::engines:Single"
    failed = story.outcome("FAILED")

    assert f"{pair}::tokens[sum]" in story.outcome("PASSED")
    assert f"{pair}::batch[sum]" in failed
    assert "qwen3-float32::engines:Absent::tokens[sum]" in failed
    assert "\nbatch not asked: the backend takes one request at a time\n" in story.out


@pytest.mark.parametrize("name", ["test_absent", "test_no_verdict"])
def test_marked_tests_fail(story: Result, name: str) -> None:
    """Whether they skip, or look away from a report without a verdict."""
    assert name in story.outcome("FAILED")
    assert "--mlx-require takes this for a failure." in story.out


def test_a_marked_test_that_skips_before_it_starts_is_an_error(story: Result) -> None:
    """As everything is that fails in a test's setup."""
    assert story.outcome("ERROR") == ["test_skips_itself"]


def test_other_tests_do_as_they_like(story: Result) -> None:
    """An expected failure is none, and a skip without the marker is not looked at."""
    assert story.outcome("XFAIL") == ["test_known_fault"]
    assert story.outcome("SKIPPED") == ["test_of_other_things"]


def test_a_run_of_nothing_fails(pytester: pytest.Pytester) -> None:
    """Every test passed and none compared: the exit status and the summary say so."""
    pytester.makepyfile("def test_mine():\n    pass\n")

    result = pytester.runpytest_inprocess("--mlx-reference", "--mlx-require")

    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["mlxcheck: nothing was compared, and --mlx-require was given."]
    )


def test_collecting_requires_nothing(pytester: pytest.Pytester) -> None:
    """Nothing is compared on purpose there."""
    result = pytester.runpytest_inprocess(
        "--mlx-reference", "--mlx-require", "--mlx-model=one", "--collect-only"
    )

    assert result.ret == pytest.ExitCode.OK


def test_it_may_be_set_for_good(pytester: pytest.Pytester) -> None:
    """In the ini file, where it has no say without ``--mlx-reference``."""
    pytester.makeini("[pytest]\nmlx_require = true\n")
    pytester.makepyfile("def test_mine():\n    pass\n")

    idle = pytester.runpytest_inprocess()
    comparing = pytester.runpytest_inprocess("--mlx-reference")

    assert idle.ret == pytest.ExitCode.OK
    assert comparing.ret == pytest.ExitCode.TESTS_FAILED
