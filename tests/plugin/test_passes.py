"""Precision passes: their items, one candidate at a time, and copies that are not left."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from mlxcheck.records import FAILING
from tests.plugin.support import FAULTS, HALF, MODELS, PROMPTS, WHOLE, Folder, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Listed = Callable[..., list[str]]


# --- What is collected ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "nodes"),
    [
        (HALF, [], ["mlx-lm-float32", "mlx-lm-native"]),
        (HALF, ["--mlx-precision=native"], ["mlx-lm"]),
        (HALF, ["--mlx-precision=float32"], ["mlx-lm"]),
        (HALF, ["--mlx-precision=native,float32"], ["mlx-lm-float32", "mlx-lm-native"]),
        (WHOLE, [], ["mlx-lm"]),
        ("--mlx-model=some/hub-id", [], ["mlx-lm-float32", "mlx-lm-native"]),
        ("--mlx-model=./no/where", [], ["mlx-lm-float32", "mlx-lm-native"]),
    ],
)
def test_a_node_a_pass(
    listed: Listed, model: str, options: list[str], nodes: list[str]
) -> None:
    """Named by the pass where there are two; a float32 checkpoint is known by its headers."""
    ids = listed(model, *options, "-k", "sum-2-2 and tokens")

    assert [nodeid.split("::")[2] for nodeid in ids] == nodes


def test_weights_that_cannot_be_read_are_no_obstacle(listed: Listed, folder: Folder) -> None:
    """Collection goes on with both passes; the items will say what is wrong."""
    (folder.path / "model").mkdir()
    (folder.path / "model" / "model.safetensors").write_bytes(b"no")

    ids = listed(f"--mlx-model={folder.path / 'model'}", "-k", "sum-2-2 and tokens")

    assert len(ids) == 2


def test_float32_selects_every_float32_pass(listed: Listed, tmp_path: Path) -> None:
    """Also that of a model with one pass, where no name says so."""
    shutil.copytree(MODELS / "qwen3-float32", tmp_path / "whole")

    ids = listed(
        HALF, f"--mlx-model={tmp_path / 'whole'}", "-k", "float32 and sum-2-2 and tokens"
    )

    assert ids == [
        "mlxcheck::qwen3-8bit::mlx-lm-float32::tokens[sum-2-2]",
        "mlxcheck::whole::mlx-lm::tokens[sum-2-2]",
    ]


def test_options_of_the_ini_file_and_the_environment(
    listed: Listed, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines or commas, and the nearer place counts."""
    pytester.makeini("[pytest]\nmlx_precision =\n    float32\n    native\nmlx_mode = strict\n")
    only = [HALF, "--mlx-check=tokens", "-k", "sum-2-2 or all-prompts"]

    from_ini = listed(*only)
    monkeypatch.setenv("MLXCHECK_PRECISION", "native")
    monkeypatch.setenv("MLXCHECK_MODE", "calibrated")
    from_environment = listed(*only)

    start = "mlxcheck::qwen3-8bit::mlx-lm"
    assert from_ini == [
        f"{start}-float32::tokens[sum-2-2]",
        f"{start}-native::tokens[sum-2-2]",
    ]
    assert from_environment == [f"{start}::tokens[sum-2-2]", f"{start}::tokens[all-prompts]"]


@pytest.mark.parametrize(
    ("check", "last"),
    [
        ("tokens", "tokens[all-prompts]"),
        ("batch", "batch[all-prompts]"),
        ("logits", "logits[all-prompts]"),
        ("stop", "stop[len-33]"),
        ("prompts", "prompts[stop-set]"),
    ],
)
def test_what_is_about_all_prompts_comes_last(listed: Listed, check: str, last: str) -> None:
    """For the checks that are judged together, and in calibrated mode alone."""
    calibrated = listed(WHOLE, f"--mlx-check={check}")
    strict = listed(WHOLE, f"--mlx-check={check}", "--mlx-mode=strict")

    assert calibrated[-1].endswith(f"::{last}")
    assert not any("all-prompts" in nodeid for nodeid in (*strict, *calibrated[:-1]))


def test_the_prompts_check_asks_of_chats_only(listed: Listed) -> None:
    """Raw text, ids and lengths have no template."""
    ids = [nodeid.rpartition("::")[2] for nodeid in listed(WHOLE, "--mlx-check=prompts")]

    assert len(ids) == 24 + 1
    assert "prompts[sum-2-2]" in ids
    assert not {"prompts[len-8]", "prompts[complete-sum-6-3]"} & set(ids)


# --- One run over a small fault ---------------------------------------------------------------


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Run an honest engine, one with a small fault, and those that take no copy."""
    folder = Folder(tmp_path_factory.mktemp("passes"))
    folder.write("faults.py", FAULTS)
    names = ("Good", "Drifting", "constant", "Silent")
    backends = [f"--mlx-backend=faults:{name}" for name in names]
    result = folder.run(HALF, *backends, "-k", "not stop or prompts", "-rs")
    assert folder.copies() == []
    return result


def test_a_small_fault_fails_in_the_float32_pass_alone(story: Result) -> None:
    """Native rounding hides it; every prompt fails in logits, and no token differs."""
    failed = [name for name in story.outcome("FAILED") if "Drifting" in name]
    assert all("Drifting-float32::" in name for name in failed)
    failed = [name for name in failed if "::logits" in name]

    ids = [*(str(prompt["id"]) for prompt in PROMPTS), "all-prompts"]
    start = "qwen3-8bit::faults:Drifting-float32"
    assert failed == [f"{start}::logits[{name}]" for name in ids]


def test_a_drift_is_told_in_full(story: Result) -> None:
    """The message is the comparison's, with its pass in the command that repeats it."""
    place = story.out.index("qwen3-8bit faults:Drifting-float32 logits[sum]")
    text = story.out[place : story.out.index("Drifting-float32 logits[capital]", place)]

    assert "sum, check logits: the log-probabilities of step" in text
    assert "are off by more than rounding" in text
    assert "nat are rounding's" in text
    assert "--precision float32" in text
    assert "Traceback" not in text


def test_drift_over_all_prompts_is_told_too(story: Result) -> None:
    """The item about all prompts says what the numbers come to together."""
    text = story.out.partition("Drifting-float32 logits[all-prompts]")[2].partition("\n___")[0]

    assert "all-prompts, check logits: 3 prompts together differ by more" in text


def test_a_pair_has_one_report_of_both_passes(story: Result) -> None:
    """Passes and comparisons of both; what failed is of the float32 pass."""
    assert story.reports is not None
    found = {report.backend.partition(":")[2]: report for report in story.reports}

    assert list(found) == ["Good", "Drifting", "constant", "Silent"]
    for name in ("Good", "Drifting"):
        assert [each.precision for each in found[name].passes] == ["float32", "native"]
        seen = {one.precision for one in found[name].comparisons}
        assert seen == {"float32", "native"}
    assert found["Good"].outcome == "pass"
    assert found["Good"].complete
    assert {one.precision for one in found["Drifting"].failures} == {"float32"}
    assert {one.verdict for one in found["Drifting"].failures} <= FAILING


def test_the_summary_tells_the_limit_of_each_pass(story: Result) -> None:
    """What it could have seen stands below the report's line, under ``-v``."""
    lines = story.summary().splitlines()
    place = next(n for n, line in enumerate(lines) if "faults:Good against" in line)

    assert lines[place + 1].startswith("    float32 pass, limit of detection: with these 3")
    assert lines[place + 2].startswith("    native pass, limit of detection: with these 3")


def test_an_engine_that_takes_no_copy_is_compared_as_it_is(story: Result) -> None:
    """Its float32 items skip with the reason; the native ones are compared."""
    skipped = [name for name in story.outcome("SKIPPED") if "constant-float32" in name]

    assert "qwen3-8bit::faults:constant-float32::tokens[sum]" in skipped
    assert "qwen3-8bit::faults:constant-native::tokens[sum]" in story.outcome("FAILED")
    assert "the backend holds its own engine, which no float32 copy is given to" in story.out
    assert story.reports is not None
    missed = [each for each in story.reports[2].passes if not each.ran]
    assert [each.precision for each in missed] == ["float32"]


def test_what_a_backend_does_not_say_is_left_out(story: Result) -> None:
    """The prompts check compares what there is, and says of the rest why not."""
    start = "qwen3-8bit::faults:Silent-native::prompts"

    assert f"{start}[stop-set]" in story.outcome("PASSED")
    assert f"{start}[sum]" in story.outcome("SKIPPED")
    assert "the backend does not say what its engine makes of a chat" in story.out


def test_one_candidate_at_a_time(story: Result) -> None:
    """All references first; then every engine is closed before the next one is opened."""
    assert story.log[:2] == ("reference float32 copy", "reference qwen3-8bit")
    words = [line.split()[0] for line in story.log[2:]]

    assert words == ["open", "close"] * (len(words) // 2)
    assert "open Good qwen3-8bit float32" in story.log
