"""``mlxcheck smoke --model M``: the server's answers against mlx-lm's, token for token."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from mlxcheck.cli import main
from tests.support.smoking import SMALL, nothing_left

PASS, FAIL, USAGE, INCONCLUSIVE = 0, 1, 2, 3
ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "fixtures" / "models" / "qwen3-float32")
BIASED = """
import mlx_lm.server as server
server._make_logits_processors = lambda args: [lambda _, logits: logits.at[:, 17].add(9.0)]
server.main()
"""
"""mlx-lm's server with a token that it likes more than the model does: that of "2"."""

Captured = pytest.CaptureFixture[str]


def asked(tmp_path: Path, *options: str) -> tuple[int, dict[str, str], str]:
    """Run the command for the comparison alone: its status, outcomes and the last message."""
    path = tmp_path / "smoke.json"
    model = ["--model", MODEL, "--only", "reference"]
    status = main(["smoke", *options, *model, "--json", str(path)])
    saved = json.loads(path.read_text(encoding="utf-8"))["results"]
    return status, {each["name"]: each["outcome"] for each in saved}, saved[-1]["message"]


def test_a_server_that_says_what_mlx_lm_says(tmp_path: Path) -> None:
    """mlx-lm's own; the numbers of what was compared are the evidence."""
    status, outcomes, message = asked(tmp_path, "--preset", "mlx-lm")

    assert (status, outcomes) == (PASS, {"starts": "pass", "reference": "pass"})
    assert message.startswith("pass: ")
    assert "EXACT" in message


def test_a_server_whose_logits_are_changed(tmp_path: Path) -> None:
    """It answers, and the first other token is told with the reference's margin."""
    script = tmp_path / "biased.py"
    script.write_text(BIASED, encoding="utf-8")
    words = [sys.executable, str(script), "--model", MODEL, "--host", "127.0.0.1", "--port"]
    command = f"{shlex.join(words)} {{port}}"
    named = ("--served-model", "default_model")
    status, outcomes, message = asked(tmp_path, "--serve", command, *named)

    assert (status, outcomes["reference"]) == (FAIL, "fail")
    assert "check tokens: token" in message
    assert "the reference's own margin there is" in message


def test_a_server_that_takes_no_prompts_is_not_compared(tmp_path: Path) -> None:
    """Chat completions alone cannot be given the prompt that the reference had."""
    with nothing_left() as tag:
        command = f"{sys.executable} {SMALL} {{port}} none {tag}"
        status, outcomes, message = asked(tmp_path, "--serve", command)

    assert (status, outcomes["reference"]) == (INCONCLUSIVE, "inconclusive")
    assert message.startswith("not compared: ")


def test_without_a_model_there_is_nothing_to_compare_with(capsys: Captured) -> None:
    """That is known before a server is started."""
    command = f"{sys.executable} {SMALL} {{port}} none x"

    assert main(["smoke", "--serve", command, "--only", "reference"]) == USAGE
    assert "--only reference needs --model M" in capsys.readouterr().err
