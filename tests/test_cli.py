"""The command: what it prints, what it saves, and how it ends."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck import command
from mlxcheck import report as reports
from mlxcheck.cli import main
from mlxcheck.errors import (
    MemoryNotReleased,
    ModelUnavailable,
    ReferenceBroken,
    ReferenceTampered,
    ReportError,
)
from mlxcheck.precisions import record_passes
from mlxcheck.records import Verdict
from mlxcheck.run import Drive

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcheck.errors import MlxCheckError

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "fixtures" / "models"
MODEL = str(MODELS / "qwen3-float32")
PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

Saved = tuple[reports.Report, ...]


@pytest.fixture
def few(tmp_path: Path) -> list[str]:
    """Return the options of a small run: three prompts, six tokens."""
    path = tmp_path / "prompts.json"
    entries = [
        {"id": "one", "user": "What is 2+2?"},
        {"id": "two", "tokens": [7, 8]},
        {"id": "[red]three", "tokens": [7, 8, 9]},
    ]
    path.write_text(json.dumps(entries), encoding="utf-8")
    return ["--prompts", str(path), "--max-tokens", "6"]


@pytest.fixture
def run(few: list[str], tmp_path: Path) -> Callable[..., tuple[int, Saved]]:
    """Return a runner of the command that gives back status and saved reports."""

    def start(*arguments: str) -> tuple[int, Saved]:
        path = tmp_path / "report.json"
        status = main(["run", *arguments, *few, "--json", str(path)])
        return status, reports.load(path)

    return start


def engine(name: str) -> list[str]:
    """Return the option for one of the engines in tests."""
    return ["--backend", f"tests.engines:{name}"]


def failing(error: MlxCheckError, for_model: str) -> Callable[..., Any]:
    """Return a `record_passes` that raises for one model."""

    def instead(model: str, *args: Any, **kwargs: Any) -> Any:
        if model == for_model:
            raise error
        return record_passes(model, *args, **kwargs)

    return instead


def test_a_pass(run: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Table, total and report agree; progress goes to standard error, and is plain there."""
    status, (report,) = run(MODEL)
    out, err = capsys.readouterr()
    assert status == PASS
    assert report.outcome == "pass"
    assert report.complete
    assert {found.check for found in report.comparisons} >= {"tokens", "batch"}
    assert f"{report.steps:,} steps compared in {len(report.comparisons)} comparisons" in out
    assert "pass: every token" in out
    assert [line.split()[0] for line in err.splitlines()] == ["load", "reference", "candidate"]
    assert "\x1b" not in out + err


def test_a_fail_shows_the_command_that_repeats_it(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Run as printed, it finds the same thing, and only that."""
    status, (report,) = run(MODEL, *engine("AlwaysWrong"), "--check", "batch")
    out = capsys.readouterr().out
    assert status == FAIL
    first = report.failures[0]
    assert first.message in out
    again = next(line for line in first.message.splitlines() if "again: " in line)
    words = shlex.split(again.split("again: ")[1])
    assert words[0] == "mlxcheck"
    status, (repeated,) = run(*words[2:])
    assert status == FAIL
    assert repeated.failures[0] == first
    assert {found.case for found in repeated.comparisons} == {first.case}


def test_text_of_users_is_shown_as_it_is(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt named like markup, and an engine that raises control codes."""
    status, _ = run(MODEL, *engine("FloodsMarkup"), "--case", "alone/[red]three")
    out = capsys.readouterr().out
    assert status == FAIL
    assert "[red]three, check tokens" in out
    assert r"raised ValueError: [red]not markup[/red] \x1b[2Jnot an escape" in out
    assert "\x1b" not in out


def test_every_reference_is_made_before_the_first_candidate(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate may patch mlx-lm; two models and two backends are four reports."""
    events: list[str] = []
    drive_enter = Drive.__enter__

    def enter(self: Drive) -> Drive:
        events.append("candidate")
        return drive_enter(self)

    def recording(*args: Any, **kwargs: Any) -> Any:
        events.append("reference")
        return record_passes(*args, **kwargs)

    monkeypatch.setattr(Drive, "__enter__", enter)
    monkeypatch.setattr(command, "record_passes", recording)
    other = str(MODELS / "qwen3_moe-float32")
    backends = ["--backend", "mlx-lm", *engine("Slow")]
    status, saved = run(MODEL, other, *backends, "--check", "tokens")
    assert status == PASS
    assert events == ["reference"] * 2 + ["candidate"] * 4
    pairs = [(report.model, report.backend) for report in saved]
    assert pairs == [(m, b) for m in (MODEL, other) for b in ("mlx-lm", "tests.engines:Slow")]


def test_a_candidate_that_patches_mlx_lm_when_imported_does_not_taint_the_reference(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is imported after the references, although its name is checked before."""
    code = """
        import importlib
        from mlxcheck.backends.mlx_lm import MlxLmBackend as Engine
        generate = importlib.import_module("mlx_lm.generate")
        real = generate.generate_step
        generate.generate_step = lambda *args, **kwargs: real(*args, **kwargs)
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    (tmp_path / "patches_much.py").write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # So that the patch goes away with the test.
    generate = importlib.import_module("mlx_lm.generate")
    monkeypatch.setattr(generate, "generate_step", generate.generate_step)
    path = list(sys.path)
    status, (report,) = run(MODEL, "--backend", "patches_much:Engine")
    assert (status, report.outcome) == (PASS, "pass")
    assert sys.path == path, "the current directory is on the path for the run only"
    assert run(MODEL)[0] == INCONCLUSIVE, "now it is patched, and the reference says so"


def test_models_and_backends_from_the_environment(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comma separated; what is given on the command line comes first."""
    monkeypatch.setenv("MLXCHECK_MODEL", f"{MODEL}, {MODEL},")
    monkeypatch.setenv("MLXCHECK_BACKEND", "mlx-lm,tests.engines:Slow")
    status, saved = run("--check", "tokens")
    assert status == PASS
    assert [report.backend for report in saved] == ["mlx-lm", "tests.engines:Slow"]
    _, (report,) = run("--check", "tokens", *engine("Slow"))
    assert report.backend == "tests.engines:Slow"


@pytest.mark.parametrize(
    ("backend", "status", "outcome"), [("mlx-lm", USAGE, "pass"), ("AlwaysWrong", FAIL, "fail")]
)
def test_a_model_that_cannot_be_used_does_not_lose_the_others(
    run: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    backend: str,
    status: int,
    outcome: str,
) -> None:
    """It is told and among the reports; a fail counts before it, a pass does not."""
    option = ["--backend", backend] if backend == "mlx-lm" else engine(backend)
    code, saved = run("no/such/folder/here", MODEL, *option)
    out, err = capsys.readouterr()
    assert code == status
    assert "mlxcheck: no/such/folder/here: there is no such folder" in err
    assert [report.outcome for report in saved] == ["inconclusive", outcome]
    assert "there is no such folder" in saved[0].not_asked[0][1]
    assert "prompts, chunks, prefix, tokens, stop, batch, logits, schedule, long, " in out
    assert "pass: every" not in out


@pytest.mark.parametrize("kind", [ModelUnavailable, ReferenceBroken])
def test_a_model_without_a_verdict_makes_a_pass_inconclusive(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: type[MlxCheckError]
) -> None:
    """The other model is still compared."""
    monkeypatch.setattr(command, "record_passes", failing(kind("it is so"), "other"))
    status, saved = run("other", MODEL)
    assert status == INCONCLUSIVE
    assert [report.outcome for report in saved] == ["inconclusive", "pass"]


@pytest.mark.parametrize("kind", [MemoryNotReleased, ReferenceTampered])
def test_a_process_that_cannot_be_trusted_stops(
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[MlxCheckError],
) -> None:
    """Nothing more is loaded, no table is shown, and every pair is saved as not asked."""
    monkeypatch.setattr(command, "record_passes", failing(kind("held by x"), "other"))
    monkeypatch.setattr("mlxcheck.command.Drive", None)
    status, saved = run(MODEL, "other", MODEL + "/")
    out, err = capsys.readouterr()
    assert status == INCONCLUSIVE
    assert out == ""
    assert err.endswith("mlxcheck: held by x\n")
    assert {report.model for report in saved} == {MODEL, "other", MODEL + "/"}
    assert {report.outcome for report in saved} == {"inconclusive"}


def test_what_could_be_asked_nothing_is_shown_with_its_reason(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """An inconclusive end is never silent."""
    status, (report,) = run(MODEL, *engine("no_tokens"), "--check", "stop")
    out = capsys.readouterr().out
    assert (status, report.comparisons) == (INCONCLUSIVE, ())
    assert "stop not asked of tests.engines:no_tokens on" in out
    assert "inconclusive: nothing failed, but not all was decided" in out


def test_ctrl_c_shows_and_saves_what_was_found(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Partial in the table's first line and in the file; the engine is closed."""
    status, saved = run(MODEL, *engine("ControlC"), *engine("Slow"), "--check", "tokens")
    out, err = capsys.readouterr()
    assert status == INTERRUPTED
    assert out.startswith("partial results: the run was cut short by Ctrl-C\n")
    assert "partial: the run was cut short\n" in out
    assert "Traceback" not in err
    assert err.count("engine closed") == err.count("engine opened") == 1
    assert [report.complete for report in saved] == [False, False]
    assert [len(report.comparisons) for report in saved] == [1, 0]
    assert saved[0].comparisons[0].verdict is Verdict.EXACT


def test_ctrl_c_before_anything_ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback there either."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mlxcheck.memory.floor_bytes", interrupt)
    assert main(["run", MODEL]) == INTERRUPTED
    assert capsys.readouterr() == ("", "mlxcheck: interrupted\n")


def test_an_engine_that_breaks_in_closing_keeps_its_report(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """All its tokens were right; the end is an ERROR all the same."""
    status, (report,) = run(MODEL, *engine("ClosesBadly"), "--check", "tokens")
    assert status == FAIL
    assert report.counts == {Verdict.EXACT: 3, Verdict.ERROR: 1}
    assert "close() raised RuntimeError: the pool is not empty" in report.failures[0].message
    assert "the pool is not empty" in capsys.readouterr().out


def test_a_bug_of_ours_does_not_lose_what_was_found(
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A traceback, since somebody has to mend it; partial results; no verdict."""
    drive_run = Drive.run

    def once(self: Drive) -> None:
        drive_run(self)
        monkeypatch.setattr(Drive, "run", lambda _: 1 / 0)

    monkeypatch.setattr(Drive, "run", once)
    status, saved = run(MODEL, "--backend", "mlx-lm", *engine("Slow"), "--check", "tokens")
    out, err = capsys.readouterr()
    assert status == INCONCLUSIVE
    assert "ZeroDivisionError" in err
    assert "partial results: the run was cut short by an error inside mlxcheck" in out
    assert [report.outcome for report in saved] == ["pass", "inconclusive"]


def test_a_report_that_cannot_be_written_in_the_end_is_told_after_all_that_was_found(
    few: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk may fill up meanwhile: the table is shown, the status is that of an error."""

    def full(*_: object) -> None:
        msg = "r.json: no space left"
        raise ReportError(msg)

    monkeypatch.setattr(reports, "save", full)
    monkeypatch.chdir(few[1].rsplit("/", 1)[0])
    assert main(["run", MODEL, *few, "--json", "r.json", "--check", "tokens"]) == USAGE
    out, err = capsys.readouterr()
    assert "mlxcheck: r.json: no space left\n" in err
    assert "pass: every token" in out


def test_a_reader_that_goes_away_is_no_error(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``mlxcheck run ... | head -1``: the status stays that of the run."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        status, (report,) = run(MODEL, "--check", "tokens")
        monkeypatch.undo()
    assert (status, report.outcome) == (PASS, "pass")


def test_text_that_the_terminal_cannot_show_is_escaped(few: list[str]) -> None:
    """With an ASCII terminal nothing is lost and nothing raises."""
    Path(few[1]).write_text('[{"id": "größe", "user": "What is 2+2?"}]', encoding="utf-8")
    arguments = ["run", MODEL, *few, *engine("AlwaysWrong"), "--check", "tokens"]
    done = subprocess.run(
        [sys.executable, "-m", "mlxcheck", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == FAIL
    assert rb"gr\xf6\xdfe, check tokens" in done.stdout
    assert b"Traceback" not in done.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Both versions that a result depends on first."""
    assert main(["--version"]) == PASS
    assert capsys.readouterr().out.startswith("mlxcheck ")


def test_help_documents_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Also that of the subcommand, which people ask."""
    for arguments in (["--help"], ["run", "--help"]):
        assert main(arguments) == PASS
        out = capsys.readouterr().out
        for status in (PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED):
            assert f"\n  {status} " in out


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser says what there is."""
    assert main([]) == USAGE
    assert "COMMAND" in capsys.readouterr().err


def test_backends_are_listed_with_their_targets(capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, in order, nothing imported."""
    assert main(["backends"]) == PASS
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["mlx-lm", "mlxcheck.backends.mlx_lm:MlxLmBackend"] in lines
    assert lines == sorted(lines)
    assert "sglang" not in sys.modules
