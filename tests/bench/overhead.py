"""What the harness costs: ``mlxcheck run`` against a bare script that makes the same calls.

Both are whole processes, run in turn, so that a machine whose speed drifts slows both.
Start-up is measured the same way and taken off each; the ratios are pair by pair. The run is
in strict mode with the checks that only drive: what calibration adds is measured apart, by
`calibration.py`.

    python tests/bench/overhead.py [--rounds 5] [MODEL]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlxcheck import checkpoint, checks, prompts, reference
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.checks.base import Grounds

ROOT = Path(__file__).parents[2]
MAX_TOKENS = 64
CHECKS = ("tokens", "stop", "batch")
LIMIT_RATIO = 1.10
LIMIT_START_S = 0.3
BARE_IMPORT = "import mlx_lm"
RUN_IMPORTS = (
    "import mlxcheck.command, mlxcheck.run, mlxcheck.render.terminal, "
    "mlxcheck.render.progress, mlxcheck.backends.mlx_lm, mlx_lm"
)


def plan(model: str) -> dict[str, object]:
    """Return the prompts and cases of a standard run, as the bare script reads them."""
    found = checkpoint.inspect(model)
    asked = prompts.encode(prompts.packaged(), reference.read_tokenizer(found))
    grounds = Grounds(
        prompts=asked,
        capabilities=MlxLmBackend().capabilities,
        expected={},
        model=found.model,
    )
    cases = {
        case.id: {"alone": case.alone, "prompts": [prompt.id for prompt in case.prompts]}
        for check in checks.named(CHECKS)
        for case in check.plan(grounds)
    }
    return {
        "max_tokens": MAX_TOKENS,
        "prompts": {prompt.id: list(prompt.tokens) for prompt in asked},
        "cases": list(cases.values()),
    }


def timed(command: list[str]) -> float:
    """Return the seconds that a command takes; it has to succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - start


def measure(model: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return the ratios after start-up, and the start-up over a bare import, in seconds."""
    ratios: list[float] = []
    starts: list[float] = []
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(plan(model)), encoding="utf-8")
        bare = [python, str(ROOT / "tests/bench/bare.py"), model, str(file)]
        full = [python, "-m", "mlxcheck", "run", model, "--json", str(Path(folder) / "r.json")]
        full += ["--mode", "strict", *(word for name in CHECKS for word in ("--check", name))]
        for number in range(rounds + 1):
            start_bare = timed([python, "-c", BARE_IMPORT])
            start_full = timed([python, "-c", RUN_IMPORTS])
            bare_s, full_s = timed(bare), timed(full)
            if number == 0:
                continue  # the first round warms the caches of the file system
            ratios.append((full_s - start_full) / (bare_s - start_bare))
            starts.append(start_full - start_bare)
            print(f"bare {bare_s:.2f} s, run {full_s:.2f} s, ratio {ratios[-1]:.3f}, ", end="")
            print(f"start-up {start_bare:.2f} s and {start_full:.2f} s", flush=True)
    return ratios, starts


def main() -> int:
    """Print medians and the limits; 1 where a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="fixtures/models/qwen3_moe-float32")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    ratios, starts = measure(options.model, options.rounds)
    ratio, start = statistics.median(ratios), statistics.median(starts)
    print(f"median ratio after start-up {ratio:.3f} (limit {LIMIT_RATIO})")
    print(f"median start-up over a bare import of mlx_lm {start:.3f} s (limit {LIMIT_START_S})")
    return int(ratio > LIMIT_RATIO or start > LIMIT_START_S)


if __name__ == "__main__":
    raise SystemExit(main())
