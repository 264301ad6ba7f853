"""One run of generated items over good, bad and missing models and engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.support import MODELS, PROMPTS, Folder, Result

if TYPE_CHECKING:
    from pathlib import Path

IDS = [str(prompt["id"]) for prompt in PROMPTS]
PAIR = ("-float32", "-native")


PASSES = {"qwen3-float32": ("",), "qwen3-8bit": PAIR, "lost": PAIR}


def each(model: str, backend: str, *checks: str) -> list[str]:
    """Return the ids of a pair's items, in the order in which they run."""
    return [
        f"{model}::{backend}{name}::{check}[{prompt}]"
        for name in PASSES[model]
        for check in checks
        for prompt in [*IDS, "all-prompts"]
    ]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Run two good models and a missing one on engines of every sort."""
    folder = Folder(tmp_path_factory.mktemp("story"))
    options = [f"--mlx-model={MODELS / name}" for name in ("qwen3-float32", "qwen3-8bit")]
    options += ["--mlx-model=./no/where/lost", "--mlx-check=tokens", "--mlx-check=batch"]
    for name in ("Good", "Swap", "Single", "Absent", "Misshapen", "Jammed"):
        options.append(f"--mlx-backend=engines:{name}")
    return folder.run(*options, "--mlx-backend=qlang")


@pytest.mark.parametrize("model", ["qwen3-float32", "qwen3-8bit"])
def test_an_honest_engine_passes(story: Result, model: str) -> None:
    """Each prompt passes each check on the engine that is mlx-lm's own."""
    passed = story.outcome("PASSED")

    assert set(each(model, "engines:Good", "tokens", "batch")) <= set(passed)


def test_references_are_all_made_before_the_first_candidate(story: Result) -> None:
    """Each is loaded once in each pass, and all before any engine, which may patch."""
    assert story.log[:3] == (
        "reference qwen3-float32",
        "reference float32 copy",
        "reference qwen3-8bit",
    )
    assert sum(line.startswith("reference") for line in story.log) == 3


def test_a_candidate_is_opened_once_and_closed_before_the_next(story: Result) -> None:
    """Opens and closes alternate: one copy of a model at a time, one open a pair and pass."""
    expected = []
    for model, copies in (("qwen3-float32", [""]), ("qwen3-8bit", [" float32", ""])):
        for name in ("Good", "Swap", "Single"):
            for copy in copies:
                expected += [f"open {name} {model}{copy}", f"close {name}"]
        expected += ["close Absent" for _ in copies]
        for copy in copies:
            expected += [f"open Jammed {model}{copy}", "close Jammed"]

    assert list(story.log[3:]) == expected


def test_a_wrong_token_fails_with_the_message_alone(story: Result) -> None:
    """The failure says prompt, check, step and how to repeat it, and shows no traceback."""
    failed = story.outcome("FAILED")
    place = story.out.index("qwen3-float32 engines:Swap tokens[sum]")
    text = story.out[place : story.out.index("engines:Swap tokens[capital]", place)]

    assert "qwen3-float32::engines:Swap::tokens[sum]" in failed
    assert "sum, check tokens: token 2 of" in text
    assert "again: mlxcheck run" in text
    assert "Traceback" not in text
    assert "nodes.py" not in text


def test_a_check_that_the_engine_cannot_be_asked_skips(story: Result) -> None:
    """The batch check skips on an engine for one request, and says why."""
    assert set(each("qwen3-8bit", "engines:Single", "batch")) <= set(story.outcome("SKIPPED"))
    assert "batch not asked: the backend takes one request at a time" in story.out


def test_an_engine_that_is_not_installed_skips(story: Result) -> None:
    """What the adapter says on opening is the reason."""
    mine = set(each("qwen3-float32", "engines:Absent", "tokens", "batch"))

    assert mine <= set(story.outcome("SKIPPED"))
    assert "absent: the engine is not installed. Run pip install absent." in story.out


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("qlang", "there is no backend 'qlang'. Did you mean sglang"),
        ("engines:Misshapen", "backend 'engines:Misshapen': Misshapen lacks open, submit"),
    ],
)
def test_a_wrong_backend_fails(story: Result, backend: str, says: str) -> None:
    """A name that is none, or a class that is no backend, is a mistake: one paragraph."""
    mine = set(each("qwen3-float32", backend, "tokens", "batch"))

    assert mine <= set(story.outcome("FAILED"))
    assert f"\n{says}" in story.out


def test_a_missing_model_fails_and_stops_no_other(story: Result) -> None:
    """All items of the missing model fail with one paragraph; the others' results stand."""
    mine = set(each("lost", "engines:Good", "tokens", "batch"))

    assert mine <= set(story.outcome("FAILED"))
    assert "\n./no/where/lost: " in story.out
    assert "Traceback" not in story.out.partition("./no/where/lost: ")[2].partition("____")[0]


def test_an_engine_that_cannot_be_closed_is_an_error(story: Result) -> None:
    """Its comparisons stand, and the last item's teardown fails with what was raised."""
    assert set(each("qwen3-8bit", "engines:Jammed", "tokens")) <= set(story.outcome("PASSED"))
    assert story.outcome("ERROR") == [
        "qwen3-float32::engines:Jammed::batch[all-prompts]",
        "qwen3-8bit::engines:Jammed-float32::batch[all-prompts]",
        "qwen3-8bit::engines:Jammed-native::batch[all-prompts]",
    ]
    assert (
        "engines:Jammed failed in close(): close() raised RuntimeError: the door" in story.out
    )


def test_the_summary_counts_what_happened_and_what_did_not(story: Result) -> None:
    """Comparisons, steps and failures first, then each reason with its count."""
    assert story.reports is not None
    compared = sum(len(report.comparisons) for report in story.reports)
    steps = sum(report.steps for report in story.reports)
    failed = sum(len(report.failures) for report in story.reports)
    head, *reasons = story.summary().splitlines()

    assert head == (
        f"mlxcheck: {compared:,} comparisons, {steps:,} steps compared, {failed:,} failed; "
        "196 did not happen:"
    )
    assert "  12 x batch not asked: the backend takes one request at a time" in reasons
    assert any(line.startswith("  96 x ./no/where/lost: ") for line in reasons)


def test_the_report_holds_every_pair(story: Result) -> None:
    """Each model and backend has a report, also those that were not compared, with why."""
    assert story.reports is not None
    found = {
        (report.model.rsplit("/", 1)[-1], report.backend): report for report in story.reports
    }

    assert len(found) == len(story.reports) == 21
    assert found["qwen3-8bit", "engines:Good"].outcome == "pass"
    assert found["qwen3-8bit", "engines:Swap"].outcome == "fail"
    assert found["lost", "engines:Good"].outcome == "inconclusive"
    assert "./no/where/lost" in dict(found["lost", "engines:Good"].not_asked)["tokens"]
    assert all(report.complete for report in story.reports)


def test_failures_fail_the_session(story: Result) -> None:
    """The exit status is pytest's own for failed tests."""
    assert story.status == pytest.ExitCode.TESTS_FAILED


def test_shuffled_items_are_put_together_again(
    folder: Folder, model: str, tmp_path: Path
) -> None:
    """A plugin that shuffles does not make candidates open and close for each item."""
    shuffle = """
        import random
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            random.Random(3).shuffle(items)
    """
    (tmp_path / "shuffle.py").write_text("\n".join(line[8:] for line in shuffle.splitlines()))
    options = ["-p", "shuffle", f"--mlx-model={model}", "--mlx-check=tokens"]

    result = folder.run(*options, "--mlx-backend=engines:Good", "--mlx-backend=engines:Single")

    opens = [line for line in result.log if line.startswith("open")]
    assert sorted(opens) == ["open Good qwen3-float32", "open Single qwen3-float32"]
    assert len(result.outcome("PASSED")) == 8
    assert result.outcome("PASSED") != sorted(result.outcome("PASSED"))
