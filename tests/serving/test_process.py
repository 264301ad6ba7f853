"""Servers are started, waited for and ended, whatever they do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from mlxcheck.errors import ServerError, UsageError
from mlxcheck.memory import processes_marked
from mlxcheck.serving import process
from mlxcheck.serving.client import Client
from mlxcheck.serving.launch import Launch, parse_command
from mlxcheck.serving.presets import PRESETS
from mlxcheck.serving.process import ServerProcess, ends_in_order
from tests.support.smoking import left, nothing_left, small

if TYPE_CHECKING:
    from pathlib import Path


def python(code: str, tag: str = "") -> Launch:
    """Return what runs a line of Python as a server."""
    return Launch(command=(sys.executable, "-c", code, "{port}", tag))


def test_a_server_is_there_and_then_gone() -> None:
    """It answers within the block, and nowhere after it."""
    with nothing_left() as tag:
        with ServerProcess(small(tag=tag)) as server:
            assert Client(server.url).get("/health").ok
            assert server.ended is None
            assert server.tail() == "The end of its log:\n  | small server: none"
        with pytest.raises(ServerError):
            Client(server.url).get("/health")


def test_children_that_left_the_group_are_ended() -> None:
    """They are known by their environment."""
    with nothing_left() as tag, ServerProcess(small("has-children-and-none", tag)):
        assert len(left(tag)) == 2


def test_a_server_is_asked_to_end(tmp_path: Path) -> None:
    """By SIGTERM, and has the time to do it in order."""
    file = tmp_path / "goodbye"
    began = time.monotonic()
    with ServerProcess(small("says-goodbye", str(file))):
        pass

    assert file.read_text(encoding="utf-8") == str(int(signal.SIGTERM))
    assert time.monotonic() - began < process._GRACE_S


def test_a_server_that_does_not_want_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed."""
    monkeypatch.setattr(process, "_GRACE_S", 0.3)
    with nothing_left() as tag, ServerProcess(small("outlives", tag)):
        pass


def test_a_server_that_ends_at_once() -> None:
    """It is not waited for; status and log are told."""
    code = "print('\\n'.join(map(str, range(50)))); raise SystemExit(4)"
    began = time.monotonic()
    with pytest.raises(ServerError) as raised, ServerProcess(python(code)):
        pass

    lines = str(raised.value).splitlines()
    assert lines[0] == (
        "the server ended with status 4 before it was ready. The end of its log:"
    )
    assert lines[1:] == [f"  | {n}" for n in range(38, 50)]
    assert time.monotonic() - began < 10


def test_a_server_that_is_never_ready() -> None:
    """The last answer is told, and lines on the way."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch, nothing_left() as tag:
        patch.setattr(process, "_TOLD_EVERY_S", 0.2)
        with pytest.raises(ServerError) as raised:
            ServerProcess(small("never-ready", tag), wait_s=1, tell=told.append).__enter__()

    assert str(raised.value).startswith(
        "the server was not ready within 1 s: GET /health: status 503. The end of its log:"
    )
    assert told[-1].endswith("s; small server: never-ready")


def test_a_server_that_says_nothing() -> None:
    """There is no log to tell of."""
    with pytest.raises(ServerError, match=r"not ready within 0\.3 s.*It wrote nothing\."):
        ServerProcess(python("import time; time.sleep(60)"), wait_s=0.3).__enter__()


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    """It is there, and no program."""
    file = tmp_path / "server"
    file.write_text("nothing", encoding="utf-8")
    file.chmod(0o755)

    with pytest.raises(UsageError, match=r"server cannot be run: "):
        ServerProcess(Launch(command=(str(file),))).__enter__()


def test_an_error_within_the_block_ends_the_server() -> None:
    """Whatever it is."""
    with nothing_left() as tag, pytest.raises(KeyError), ServerProcess(small(tag=tag)):
        raise KeyError


def test_ending_twice_does_no_harm() -> None:
    """Nor does ending what was never started."""
    server = ServerProcess(small())
    server.stop()
    server.stop()


def test_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even while it runs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ServerProcess(small()):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_in_order(number: signal.Signals) -> None:
    """They go through every ``finally``; afterwards they mean what they did."""
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as raised, ends_in_order():
        signal.raise_signal(number)

    assert raised.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_what_is_left_is_seen() -> None:
    """The tests' own look for leftovers can fail; it ends what it finds."""
    with pytest.raises(AssertionError), nothing_left(0.1) as tag:
        leftover = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", tag])

    assert leftover.wait(10) == -signal.SIGKILL


def test_processes_are_known_by_their_environment() -> None:
    """By name and value, and only theirs."""
    launch = Launch(command=small().command, env={"MLXCHECK_TEST": "one"})
    with ServerProcess(launch):
        assert len(processes_marked("MLXCHECK_TEST", "one")) == 1
        assert processes_marked("MLXCHECK_TEST", "two") == []


def test_a_command_line() -> None:
    """Variables, words and quotes, as a shell would read them."""
    launch = parse_command("A=1 B='2 3' python x.py --at :{port} -n 'a b'", "/up")

    assert launch.command == ("python", "x.py", "--at", ":{port}", "-n", "a b")
    assert (dict(launch.env), launch.ready) == ({"A": "1", "B": "2 3"}, "/up")


def test_the_presets() -> None:
    """Each says where its model and port go, and what is peculiar to it."""
    assert sorted(PRESETS) == ["mlx-lm", "sglang", "vllm-mlx"]
    for preset in PRESETS.values():
        assert "{model}" in preset.command
        assert "{port}" in preset.command
        assert preset.differs


def test_a_preset_is_filled_in() -> None:
    """The model, this interpreter, and what the user adds."""
    launch = PRESETS["sglang"].launch("some/model", "--log-level 'error'")

    assert launch.command[:5] == (
        *(sys.executable, "-m", "sglang.launch_server"),
        *("--model-path", "some/model"),
    )
    assert launch.command[-4:] == (
        *("--disable-radix-cache", "--disable-cuda-graph"),
        *("--log-level", "error"),
    )
    assert launch.env == {"SGLANG_USE_MLX": "1"}


def test_a_preset_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told before anything is started."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(UsageError, match=r"^vllm-mlx: command not found"):
        PRESETS["vllm-mlx"].launch("some/model")
