"""``mlxcheck contract``: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from mlxcheck.cli import main
from tests.contracts.support import CALLERS, MINIATURE, copied

if TYPE_CHECKING:
    from pathlib import Path

PASS, FAIL, USAGE, INCONCLUSIVE = 0, 1, 2, 3


def arguments(where: Path = MINIATURE) -> list[str]:
    """Return a command line over a miniature engine."""
    classes = [f"{where / 'stub.py'}:StubRunner", f"{where / 'runner.py'}:Runner"]
    return ["contract", *classes, "--callers", *(str(where / name) for name in CALLERS)]


@pytest.fixture
def drifted(tmp_path: Path) -> list[str]:
    """Return a command line over a stub that lacks an attribute."""
    return arguments(copied(tmp_path, {"stub.py": ("    watch = None\n", "")}))


def test_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """What was looked at, and the outcome in the last line."""
    assert main(arguments()) == PASS

    out = capsys.readouterr().out
    assert out.startswith("StubRunner for Runner: 6 reads and 3 calls in 2 files;")
    assert out.endswith("\npass: every read and every call fits\n")


def test_a_fail(drifted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The finding, and everything as JSON."""
    path = tmp_path / "report.json"

    assert main([*drifted, "--json", str(path)]) == FAIL

    out = capsys.readouterr().out
    assert out.startswith("missing-attribute  StubRunner.watch: ")
    assert out.endswith("\nfail: 1 finding\n")
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["outcome"] == "fail"
    assert [found["name"] for found in report["findings"]] == ["watch"]


def test_a_name_is_ignored_with_its_reason(
    drifted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And told."""
    assert main([*drifted, "--ignore", "watch=nobody is watched"]) == PASS
    assert "  ignored, 1 finding: watch: nobody is watched\n" in capsys.readouterr().out


def test_a_role_is_named(tmp_path: Path) -> None:
    """Of callers that annotate nothing."""
    (tmp_path / "bare.py").write_text("def f(engine): engine.layout", encoding="utf-8")
    command = [*arguments()[:3], "--callers", str(tmp_path)]

    assert main(command) == INCONCLUSIVE
    assert main([*command, "--role-name", "engine"]) == FAIL


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--callers", "no.such.module"], "'no.such.module': no source."),
        (["--ignore", "watch"], "--ignore watch: expected NAME=REASON, such as"),
        (["--ignore", "watch="], "--ignore watch=: expected NAME=REASON, such as"),
        (["--json", "no/such/folder.json"], "no/such/folder.json: cannot write the report"),
    ],
)
def test_a_usage_error(more: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One paragraph, on standard error."""
    assert main([*arguments(), *more]) == USAGE

    out, err = capsys.readouterr()
    assert out == ""
    assert told in err


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of this command."""
    assert main(["contract", "--help"]) == PASS
    assert "fits the stub" in capsys.readouterr().out
