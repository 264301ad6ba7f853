"""Runs of pytest in a folder of their own, for the tests of the plugin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcheck import report as reports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.report import Report

__all__ = [
    "ALONE",
    "ENGINES",
    "FAULTS",
    "HALF",
    "MODELS",
    "PROMPTS",
    "WHOLE",
    "Folder",
    "Result",
]

MODELS = Path(__file__).resolve().parents[2] / "fixtures" / "models"

HALF = f"--mlx-model={MODELS / 'qwen3-8bit'}"
WHOLE = f"--mlx-model={MODELS / 'qwen3-float32'}"
"""Models of two passes and of one, as options."""

ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "mlxcheck.plugin"}
"""Leave other plugins out: some cost more than all of a small run."""

PROMPTS: list[dict[str, object]] = [
    {"id": "sum", "user": "What is 2+2?"},
    {"id": "capital", "user": "What is the capital of Peru?"},
    {"id": "ids", "tokens": [7, 8, 9, 10, 11]},
]

ENGINES = '''
"""Engines that a user might have; each writes to log.txt when it opens and closes."""

import ctypes
import hashlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from mlxcheck.backends.base import Capabilities
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.errors import BackendError

LOG = Path(__file__).with_name("log.txt")


def log(*words):
    with LOG.open("a") as stream:
        print(*words, file=stream)


class Good(MlxLmBackend):
    name = "good"

    def open(self, model):
        copy = ["float32"] if "mlxcheck-float32-" in model.path else []
        log("open", type(self).__name__, model.name, *copy)
        super().open(model)

    def close(self):
        log("close", type(self).__name__)
        super().close()


class Swap(Good):
    """Gives another second token."""

    def __init__(self):
        super().__init__()
        self.given = {}

    def step(self):
        out = []
        for emission in super().step():
            count = self.given[emission.request_id] = self.given.get(emission.request_id, 0) + 1
            out.append(replace(emission, token=emission.token ^ 1) if count == 2 else emission)
        return out


class Single(Good):
    """Takes one request at a time."""

    def __init__(self):
        super().__init__()
        self.capabilities = Capabilities(batch=False)


class Absent(Good):
    def open(self, model):
        raise BackendError("absent: the engine is not installed. Run pip install absent.")


class Misshapen:
    """Is no backend."""


class Jammed(Good):
    """Opens, answers one prompt, and cannot be closed."""

    def close(self):
        super().close()
        raise RuntimeError("the door is jammed")


class Interrupted(Good):
    """Gets Ctrl-C in its third request."""

    count = 0

    def submit(self, request):
        Interrupted.count += 1
        if Interrupted.count == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        super().submit(request)


class Deaf(Good):
    """Hangs in native code in its second request, and lets other threads run."""

    count = 0

    def submit(self, request):
        Deaf.count += 1
        if Deaf.count == 2:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
        super().submit(request)


class Frozen(Good):
    """Hangs in native code in its second request, and holds the interpreter."""

    count = 0

    def submit(self, request):
        Frozen.count += 1
        if Frozen.count == 2:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            ctypes.PyDLL(None).sleep(600)
        super().submit(request)


def constant(prompts, max_tokens):
    return [[5] * max_tokens for _ in prompts]
'''

FAULTS = """
from dataclasses import replace

from engines import Good, constant
from fixtures.faults.small import scaled_attention

Drifting = scaled_attention(1.001)


class Holds(Good):
    \"\"\"Holds its own weights.\"\"\"

    def __init__(self):
        super().__init__()
        self.capabilities = replace(self.capabilities, casts=False)


class Silent(Good):
    \"\"\"Says what ends an answer, and not what it makes of a chat.\"\"\"

    encode = None


class Mute(Good):
    def submit(self, request):
        raise RuntimeError("it answers nothing")


class Broken(Good):
    def open(self, model):
        raise RuntimeError("it does not start")
"""
"""Written beside them as ``faults.py``: engines with small faults, or that lack something."""

_LOADS = """
import os

import mlxcheck.reference
from engines import log

KEPT = []
real = mlxcheck.reference.load_model


def load_model(path, **options):
    import sys

    caller = sys._getframe(1).f_globals["__name__"]
    if caller == "mlxcheck.reference":
        name = path.rsplit("/", 1)[-1]
        log("reference", "float32 copy" if "mlxcheck-float32-" in name else name)
    model = real(path, **options)
    if path.endswith(os.environ.get("LEAK", "nothing")):
        KEPT.append(model)
    return model


def pytest_configure(config):
    mlxcheck.reference.load_model = load_model
"""


@dataclass(frozen=True)
class Result:
    """What one run of pytest left."""

    status: int
    out: str
    err: str
    log: tuple[str, ...]
    reports: tuple[Report, ...] | None

    def outcome(self, word: str) -> list[str]:
        """Return the last parts of the ids that ``-v`` shows with this outcome, in order."""
        return re.findall(rf"^(?:mlxcheck|test_\w+\.py)::(\S+) {word}", self.out, re.MULTILINE)

    def summary(self) -> str:
        """Return the summary from its first line to the end of its last."""
        lines = self.out.splitlines()
        start = next(n for n, line in enumerate(lines) if re.match(r"mlxcheck: .*compar", line))
        kept = [lines[start]]
        for line in lines[start + 1 :]:
            if not line.startswith(("  ", "mlxcheck: ")):
                break
            kept.append(line)
        return "\n".join(kept)


class Folder:
    """A folder with a user's engines, prompts and tests.

    Attributes:
        path: Where.
        temporary: What its runs take for temporary files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path / "temporary"
        self.temporary.mkdir()
        self.write("engines.py", ENGINES)
        self.write("conftest.py", _LOADS)
        self.write("prompts.json", json.dumps(PROMPTS))
        self.write("pytest.ini", "[pytest]\naddopts = -p no:cacheprovider\n")

    def write(self, name: str, text: str) -> None:
        """Put a file into the folder."""
        (self.path / name).write_text(text, encoding="utf-8")

    def copies(self) -> list[str]:
        """Return the float32 copies that runs have left."""
        return [path.name for path in self.temporary.glob("mlxcheck-float32-*")]

    def run(self, *options: str, env: Mapping[str, str] | None = None) -> Result:
        """Run ``pytest --mlx-reference -v`` on small prompts, in a process of its own."""
        report = self.path / "report.json"
        command = [sys.executable, "-m", "pytest", "--mlx-reference", "-v"]
        command += ["--mlx-prompts=prompts.json", "--mlx-max-tokens=6", "--mlx-effort=quick"]
        command += ["--mlx-report=report.json", *options]
        # The outer run's own variables would change what the inner one shows, or computes.
        outer = ("PYTEST", "MLX_ENABLE_TF32", "MLXCHECK")
        clean = {
            key: value
            for key, value in os.environ.items()
            if not any(word in key for word in outer)
        }
        # What was measured in another run, or left in the folder for copies, is not theirs.
        clean |= {**ALONE, "MLXCHECK_CACHE": "", "TMPDIR": str(self.temporary)}
        done = subprocess.run(
            command,
            cwd=self.path,
            env={**clean, "COLUMNS": "200", **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        log = self.path / "log.txt"
        return Result(
            status=done.returncode,
            out=done.stdout,
            err=done.stderr,
            log=tuple(log.read_text().splitlines()) if log.exists() else (),
            reports=reports.load(report) if report.exists() else None,
        )
