"""Precision passes and policies in users' own tests: one run, looked at from many sides."""

from __future__ import annotations

import pytest

from tests.plugin.support import MODELS, Folder, Result

TESTS = f"""
import os

import engines
import pytest
from fixtures.faults.small import scaled_attention
from mlxcheck import Policy, ReferenceMismatch
from mlxcheck.errors import UsageError

AT_IMPORT = os.environ.get("MLX_ENABLE_TF32")
MODEL = {str(MODELS / "qwen3-8bit")!r}
declared = pytest.mark.mlx_reference(model=MODEL, prompts=[[7, 8, 9]], max_tokens=4)
native = pytest.mark.mlx_reference(precision="native")
float32 = pytest.mark.mlx_reference(precision=["float32"])
SCORES = []


def passes(report):
    return [(each.precision, each.ran) for each in report.passes]


def test_tf32_is_off_before_anything_computes():
    assert AT_IMPORT == "0"


@declared
def test_both(mlx_reference):
    report = mlx_reference.assert_equal("engines:Good")
    assert passes(report) == [("float32", True), ("native", True)]
    assert {{found.precision for found in report.comparisons}} == {{"float32", "native"}}


@declared
def test_a_drift(mlx_reference):
    with pytest.raises(ReferenceMismatch, match="off by more than rounding") as caught:
        mlx_reference.assert_equal(scaled_attention(1.001), checks=["logits"])
    assert {{each.precision for each in caught.value.report.failures}} == {{"float32"}}


@declared
@native
def test_the_marker_names_a_pass(mlx_reference):
    report = mlx_reference.check(scaled_attention(1.001), checks=["logits"])
    assert passes(report) == [("native", True)]
    assert report.outcome == "pass"


@declared
@native
def test_the_call_comes_before_the_marker(mlx_reference):
    report = mlx_reference.check("engines:Good", precision="float32", checks=["tokens"])
    assert passes(report) == [("float32", True)]
    policy = Policy(precision=("float32",), alpha=0.01)
    report = mlx_reference.check("engines:Good", policy=policy, checks=["tokens"])
    assert passes(report) == [("float32", True)]
    assert report.settings["policy"]["alpha"] == 0.01


@declared
def test_a_function_takes_no_copy(mlx_reference):
    report = mlx_reference.check(engines.constant, checks=["tokens"])
    assert sorted(passes(report)) == [("float32", False), ("native", True)]
    assert report.outcome == "fail"


@declared
def test_a_function_has_no_other_pass(mlx_reference):
    report = mlx_reference.check(engines.constant, checks=["tokens"], precision="float32")
    assert passes(report) == [("float32", False)]
    assert report.outcome == "inconclusive"


@declared
def test_another_policy_is_another_reference(mlx_reference):
    policy = Policy(mode="strict", precision="native", prefill_chunk=2)
    report = mlx_reference.check("engines:Good", policy=policy, checks=["stop"])
    assert report.settings["policy"]["mode"] == "strict"
    assert report.passes[0].noise is None


@declared
@pytest.mark.parametrize("n", [0, pytest.param(1, marks=[float32])])
def test_traces(mlx_reference, n):
    SCORES.append(mlx_reference.traces()[0].scores[0].logprobs)


def test_traces_are_those_of_the_pass():
    assert SCORES[0] != SCORES[1]


@declared
def test_a_bad_pass(mlx_reference):
    with pytest.raises(UsageError, match="precision='half'"):
        mlx_reference.check("engines:Good", precision="half")
"""

NAMES = [
    "test_tf32_is_off_before_anything_computes",
    "test_both",
    "test_a_drift",
    "test_the_marker_names_a_pass",
    "test_the_call_comes_before_the_marker",
    "test_a_function_takes_no_copy",
    "test_a_function_has_no_other_pass",
    "test_another_policy_is_another_reference",
    "test_traces[0]",
    "test_traces[1]",
    "test_traces_are_those_of_the_pass",
    "test_a_bad_pass",
]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Run the tests above, and no generated item."""
    folder = Folder(tmp_path_factory.mktemp("own-passes"))
    folder.write("test_own.py", TESTS)
    result = folder.run("test_own.py")
    assert folder.copies() == []
    return result


@pytest.mark.parametrize("name", NAMES)
def test_these_pass(story: Result, name: str) -> None:
    """What they assert about passes and policies holds."""
    assert name in story.outcome("PASSED")


def test_a_reference_is_made_once_a_pass_and_policy(story: Result) -> None:
    """What all tests declare shares one load of each pass; the strict policy has its own."""
    loads = [line for line in story.log if line.startswith("reference")]

    assert loads == [
        "reference float32 copy",
        "reference qwen3-8bit",
        "reference qwen3-8bit",
    ]
    assert story.log[:2] == tuple(loads[:2])


def test_every_engine_is_closed_before_the_next(story: Result) -> None:
    """Also between the passes of one call."""
    words = [line.split()[0] for line in story.log if "reference" not in line]

    assert words == ["open", "close"] * (len(words) // 2)
    assert len(words) >= 8


@pytest.mark.parametrize(
    ("marked", "called"),
    [
        ('prompts=[[7, 8]], precision="native"', ""),
        ("", "prompts=[[7, 8]], "),
    ],
)
def test_a_function_may_cost_one_load(folder: Folder, marked: str, called: str) -> None:
    """No float32 copy is made for nothing, unless a marker declares prompts for both."""
    folder.write(
        "test_one.py",
        f"""
import engines
import pytest


@pytest.mark.mlx_reference(model={str(MODELS / "qwen3-8bit")!r}, {marked})
def test_mine(mlx_reference):
    report = mlx_reference.check(engines.constant, {called}checks=["tokens"])
    assert report.outcome == "fail"
""",
    )

    result = folder.run("test_one.py")

    assert result.outcome("PASSED") == ["test_mine"]
    assert result.log == ("reference qwen3-8bit",)
