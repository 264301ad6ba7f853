"""Passes that cannot be made, all prompts together, what is left, and what a verdict needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.support import HALF, MODELS, WHOLE

if TYPE_CHECKING:
    from tests.plugin.support import Folder

# --- Passes that cannot be made ---------------------------------------------------------------

NO_ROOM = """
import mlxcheck.precisions

mlxcheck.precisions.precision.room_for_copy = lambda found: "there is no room for a copy"
"""


@pytest.mark.parametrize("only", [False, True])
def test_no_room_for_a_copy(folder: Folder, *, only: bool) -> None:
    """A skip that ``--mlx-require`` takes for a failure where no other pass speaks."""
    folder.write("no_room.py", NO_ROOM)
    options = ["-p", "no_room", "--mlx-require", "-k", "sum and tokens"]
    options += ["--mlx-precision=float32"] if only else []

    result = folder.run(HALF, *options)

    if only:
        assert result.outcome("FAILED") == ["qwen3-8bit::mlx-lm::tokens[sum]"]
        assert result.status == pytest.ExitCode.TESTS_FAILED
    else:
        assert result.outcome("SKIPPED") == ["qwen3-8bit::mlx-lm-float32::tokens[sum]"]
        assert result.outcome("PASSED") == ["qwen3-8bit::mlx-lm-native::tokens[sum]"]
        assert result.status == pytest.ExitCode.OK
    assert "there is no room for a copy" in result.out
    assert result.reports is not None
    assert [each.why for each in result.reports[0].passes if not each.ran] in (
        ["there is no room for a copy"],
        [],
    )


def test_no_pass_at_all_fails_where_a_verdict_is_required(folder: Folder) -> None:
    """The last pass cannot point at another one."""
    result = folder.run(
        HALF,
        "--mlx-require",
        *("-k", "sum and tokens"),
        env={"MLXCHECK_MIN_FREE_GB": "1000000"},
    )

    assert result.outcome("FAILED") == ["qwen3-8bit::mlx-lm-native::tokens[sum]"]
    assert result.status == pytest.ExitCode.TESTS_FAILED


def test_a_pass_that_was_not_selected_excuses_nothing(faulty: Folder) -> None:
    """An engine that takes no copy, asked for its float32 pass alone."""
    options = ["--mlx-require", "--mlx-backend=faults:Holds", "-k", "sum and tokens"]

    both = faulty.run(HALF, *options)
    one = faulty.run(HALF, *options[:-1], "sum and tokens and float32")

    assert both.outcome("SKIPPED") == ["qwen3-8bit::faults:Holds-float32::tokens[sum]"]
    assert both.status == pytest.ExitCode.OK
    assert one.outcome("FAILED") == ["qwen3-8bit::faults:Holds-float32::tokens[sum]"]


HUB = """
import mlxcheck.checkpoint
from pathlib import Path

real = mlxcheck.checkpoint.locate
mlxcheck.checkpoint.locate = lambda source, **options: (
    Path({model!r}) if source == "some/hub-id" else real(source, **options)
)
"""


def test_a_hub_model_that_turns_out_to_be_float32(folder: Folder) -> None:
    """Its native items are left out, whatever is required; it is loaded once."""
    folder.write("hub.py", HUB.format(model=str(MODELS / "qwen3-float32")))
    options = ["-p", "hub", "--mlx-require", "-k", "sum and tokens"]

    result = folder.run("--mlx-model=some/hub-id", *options)

    assert result.outcome("PASSED") == ["hub-id::mlx-lm-float32::tokens[sum]"]
    assert result.outcome("SKIPPED") == ["hub-id::mlx-lm-native::tokens[sum]"]
    assert "the model is in float32: its float32 pass is the native one" in result.summary()
    assert result.status == pytest.ExitCode.OK
    assert result.log == ("reference qwen3-float32",)
    assert result.reports is not None
    assert [each.precision for each in result.reports[0].passes] == ["float32"]


# --- All prompts together, and the copies' end ------------------------------------------------


def test_all_prompts_alone_asks_every_prompt(faulty: Folder) -> None:
    """As after ``--lf``: what nothing was compared for must not pass."""
    item = "mlxcheck::qwen3-8bit::faults:{}::logits[all-prompts]"
    options = ["--mlx-precision=float32", "--mlx-backend=faults:Drifting"]

    result = faulty.run(HALF, *options, item.format("Drifting"))
    mute = faulty.run(
        HALF, "--mlx-precision=float32", "--mlx-backend=faults:Mute", item.format("Mute")
    )

    assert result.outcome("FAILED") == ["qwen3-8bit::faults:Drifting::logits[all-prompts]"]
    assert "3 prompts together differ by more than rounding does" in result.out
    assert mute.outcome("SKIPPED") == ["qwen3-8bit::faults:Mute::logits[all-prompts]"]
    assert "logits: no step was compared" in mute.summary()


def test_an_engine_that_does_not_open_passes_nothing(faulty: Folder) -> None:
    """The prompts check drives nothing, so that no case could say it; it is not excused."""
    options = ["--mlx-precision=native", "--mlx-backend=faults:Broken", "--mlx-check=prompts"]

    result = faulty.run(HALF, *options, "--mlx-require")

    assert result.outcome("PASSED") == []
    assert len(result.outcome("FAILED")) == 3


def test_strict_mode_compares_and_has_no_ties(folder: Folder) -> None:
    """An equal engine passes; numbers are held against nothing."""
    options = ["--mlx-mode=strict", "--mlx-check=tokens", "--mlx-check=logits"]

    result = folder.run(WHOLE, *options, "--mlx-prefill-chunk=512")

    assert len(result.outcome("PASSED")) == 3
    assert len(result.outcome("SKIPPED")) == 3
    assert "logits not asked: strict mode measures no noise" in result.summary()
    assert result.reports is not None
    policy = result.reports[0].settings["policy"]
    assert (policy["mode"], policy["prefill_chunk"]) == ("strict", 512)
    assert "limit of detection" not in result.summary()


@pytest.mark.parametrize(
    ("engine", "options"),
    [("Swap", ["-x"]), ("Interrupted", []), ("Deaf", ["--mlx-watchdog=1"])],
)
def test_no_copy_is_left(folder: Folder, engine: str, options: list[str]) -> None:
    """Not after the first failure, Ctrl-C, or an engine that the process has to end for."""
    result = folder.run(HALF, f"--mlx-backend=engines:{engine}", "--mlx-check=tokens", *options)

    assert result.log[:2] == ("reference float32 copy", "reference qwen3-8bit")
    assert result.status != pytest.ExitCode.OK
    assert folder.copies() == []


def test_a_quiet_run_says_one_line(faulty: Folder) -> None:
    """Limits are for those who ask for more."""
    result = faulty.run(HALF, "-qq", "-k", "sum and tokens")

    assert result.summary().startswith("mlxcheck: 2 comparisons, ")
    assert "limit of detection" not in result.out


# --- What else a verdict depends on -----------------------------------------------------------

SPY = """
import mlxcheck.pytest_doorway.candidates as candidates
from engines import log

real = candidates.Drive


class Spy(real):
    def __init__(self, recorded, backend, *args, **options):
        log("backed", str(backend).rpartition(":")[2], recorded.precision, recorded.backed)
        super().__init__(recorded, backend, *args, **options)


candidates.Drive = Spy
"""

OWN = f"""
import engines
import pytest

MODEL = {str(MODELS / "qwen3-8bit")!r}


@pytest.mark.mlx_reference(model=MODEL, prompts=[[7, 8]], max_tokens=2)
@pytest.mark.parametrize("precision", [None, "native"])
def test_own(mlx_reference, precision):
    mlx_reference.check("engines:Good", checks=["tokens"], precision=precision)
"""


def test_the_float32_pass_backs_the_native_one(faulty: Folder) -> None:
    """Tokens alone may then be enough there; not where no float32 pass was made or driven."""
    faulty.write("spy.py", SPY)
    faulty.write("test_own.py", OWN)
    options = ["-p", "spy", HALF, "--mlx-backend=faults:Good", "--mlx-backend=faults:constant"]

    both = faulty.run(*options, "-k", "sum and tokens")
    lines = [line for line in both.log if line.startswith("backed")]
    (faulty.path / "log.txt").unlink()
    native = faulty.run(*options[:-1], "-k", "sum and tokens and native or test_own")
    after = [line for line in native.log if line.startswith("backed")]

    assert lines == [
        "backed Good float32 True",
        "backed Good native True",
        "backed constant float32 True",
        "backed constant native False",
    ]
    assert after == [
        "backed Good native False",
        "backed Good float32 True",
        "backed Good native True",
        "backed Good native False",
    ]


RESTLESS = """
from dataclasses import replace

from mlxcheck.reference import Reference

real = Reference.noise
Reference.noise = lambda *args, **options: replace(real(*args, **options), repeats=False)
"""

BLIND = """
import mlxcheck.run
from mlxcheck.passes import Control

mlxcheck.run.planted_faults = lambda *args: Control(name="plant", passed=False, text="unseen")
"""


def test_a_reference_that_does_not_repeat_judges_nothing(folder: Folder) -> None:
    """Each item skips with the reason, or fails where a verdict is required."""
    folder.write("restless.py", RESTLESS)
    options = ["-p", "restless", WHOLE, "-k", "sum and tokens"]

    idle, strict = folder.run(*options), folder.run(*options, "--mlx-require")

    assert idle.outcome("SKIPPED") == ["qwen3-float32::mlx-lm::tokens[sum]"]
    assert strict.outcome("FAILED") == ["qwen3-float32::mlx-lm::tokens[sum]"]
    assert "the reference does not agree with itself: " in idle.summary()


@pytest.mark.parametrize("require", [False, True])
def test_a_control_that_does_not_hold(folder: Folder, *, require: bool) -> None:
    """It is told; where verdicts are required, it fails the session."""
    folder.write("blind.py", BLIND)
    options = ["-p", "blind", WHOLE, "-k", "sum and tokens"]

    result = folder.run(*options, *(["--mlx-require"] if require else []))

    assert result.outcome("PASSED") == ["qwen3-float32::mlx-lm::tokens[sum]"]
    assert "float32 pass: control failed: plant: unseen" in result.summary()
    assert result.status == (pytest.ExitCode.TESTS_FAILED if require else pytest.ExitCode.OK)
