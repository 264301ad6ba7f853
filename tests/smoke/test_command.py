"""``mlxcheck smoke``: what it prints, what it saves, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcheck.cli import main
from mlxcheck.serving.process import ServerProcess
from tests.support.smoking import SMALL, left, nothing_left, small

if TYPE_CHECKING:
    from collections.abc import Iterator

PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143
MODEL = str(Path(__file__).parents[2] / "fixtures" / "models" / "qwen3-float32")
Captured = pytest.CaptureFixture[str]


def serve(fault: str, tag: str) -> list[str]:
    """Return the options that start the small server."""
    return ["--serve", f"{sys.executable} {SMALL} {{port}} {fault} {tag}"]


def test_a_server_that_is_started(tmp_path: Path, capsys: Captured) -> None:
    """A line as each check is done, a table, the outcome, and a file."""
    path = tmp_path / "smoke.json"
    with nothing_left() as tag:
        status = main(["smoke", *serve("none", tag), "--json", str(path), "--only", "sum"])
    printed = capsys.readouterr()
    saved = json.loads(path.read_text(encoding="utf-8"))

    assert status == PASS
    assert printed.err.splitlines()[-1].startswith("sum: pass in ")
    assert "3 pass\npass: the server does what was asked of it\n" in printed.out
    assert (saved["schema"], saved["outcome"], saved["served_model"]) == (1, "pass", "small")
    assert [result["name"] for result in saved["results"]] == ["starts", "models", "sum"]


def test_a_failure_is_told_with_its_evidence(capsys: Captured) -> None:
    """What was asked, what came, what was expected, and how the server is."""
    with nothing_left() as tag:
        status = main(["smoke", *serve("wrong-sum", tag), "--only", "sum"])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    at = lines.index("FAIL  sum")

    assert status == FAIL
    assert lines[at + 1 : at + 5] == [
        "asked 'What is 2+2?'",
        "  came     '2+2 equals 5.', finish_reason 'stop'",
        "  expected an answer with '4'",
        "  afterwards GET /health: status 200",
    ]
    assert lines[-1] == "fail: the server does not do what was asked of it"


def test_what_is_undecided_is_no_pass(capsys: Captured) -> None:
    """Exit status 3."""
    with nothing_left() as tag:
        status = main(["smoke", *serve("first-differs", tag), "--only", "repeatable"])

    assert status == INCONCLUSIVE
    assert "inconclusive: not all could be asked, or told" in capsys.readouterr().out


def test_a_server_that_runs_goes_on(capsys: Captured) -> None:
    """With --url nothing is started or ended; secrets in the URL are not shown."""
    with ServerProcess(small()) as server:
        url = server.url.replace("http://", "http://me:secret@")
        status = main(["smoke", "--url", f"{url}/v1", "--only", "capital"])
        assert server.ended is None
    printed = capsys.readouterr()

    assert status == PASS
    assert "secret" not in printed.out + printed.err


NOT_HERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--url", "nowhere"], "no URL of a server: 'nowhere'. Expected http://HOST:PORT"),
        (["--url", NOT_HERE], f"no server at {NOT_HERE}: "),
        (["--serve", "python -m http.server"], "the command has no {port}. Put it where"),
        (["--serve", "no-such-program {port}"], "no-such-program: command not found"),
        (["--serve", "python '{port}"], "cannot be split into words: No closing quotation"),
        (["--serve", "A=1"], "no command. Expected 'COMMAND ... {port}'"),
        (
            ["--preset", "nothing"],
            "unknown preset 'nothing'. Choose from: mlx-lm, sglang, vllm",
        ),
        (["--preset", "mlx-lm"], "--preset mlx-lm needs --model M"),
        (["--preset", "mlx-lm", "--model", "no/such/model"], "no/such/model"),
        (["--url", NOT_HERE, "--server-args=-v"], "--server-args goes with --preset"),
        (
            ["--url", NOT_HERE, "--only", "all"],
            "unknown smoke check 'all'. Choose from: models, ans",
        ),
        (["--url", NOT_HERE, "--timeout", "0"], "--timeout 0: expected 0 < SECONDS"),
        (["--url", NOT_HERE, "--wait", "nan"], "--wait nan: expected 0 < SECONDS"),
        (["--url", NOT_HERE, "--max-tokens", "3"], "--max-tokens 3: expected at least 16"),
        (["--url", NOT_HERE, "--ready", "health"], "--ready health: expected a path"),
        (["--url", NOT_HERE, "--json", "report.txt"], "report.txt: cannot tell the form"),
    ],
)
def test_a_mistake_is_one_clear_line(
    options: list[str], expected: str, capsys: Captured
) -> None:
    """And status 2, before anything is asked or started."""
    status = main(["smoke", *options])
    printed = capsys.readouterr()

    assert status == USAGE
    assert printed.out == ""
    assert expected in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_key_that_no_header_may_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """It is not shown."""
    monkeypatch.setenv("MLXCHECK_API_KEY", "se\ncret")

    assert main(["smoke", "--url", NOT_HERE]) == USAGE
    assert capsys.readouterr().err == (
        "mlxcheck: MLXCHECK_API_KEY holds characters that no header may hold.\n"
    )


@contextmanager
def running(fault: str, tag: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command, and wait until its server is there."""
    command = [sys.executable, "-m", "mlxcheck", "smoke", *serve(fault, tag), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        over = time.monotonic() + 30
        while not left(tag) and time.monotonic() < over:
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("fault", ["never-ready", "hangs", "has-children"])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)]
)
def test_a_signal_ends_the_server_too(fault: str, number: int, status: int) -> None:
    """While it is waited for, and while it is asked; its children as well."""
    if fault == "has-children":
        fault += "-and-hangs"
    with nothing_left() as tag, running(fault, tag) as process:
        time.sleep(0.5)
        os.kill(process.pid, number)
        process.communicate(timeout=20)

    assert process.returncode == status


def test_whoever_reads_may_leave() -> None:
    """A pipe that is closed early changes no exit status, and prints no traceback."""
    with nothing_left() as tag:
        command = [sys.executable, "-m", "mlxcheck", "smoke", *serve("none", tag)]
        with subprocess.Popen(
            [*command, "--only", "sum"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            errors = process.stderr.read()

    assert process.returncode == PASS
    assert b"Traceback" not in errors
    assert b"BrokenPipe" not in errors
