"""Releases of SGLang: each one's stub held against its own base and the next one's.

    python tests/contracts/history.py [FOLDER]

Wheels are fetched with pip into the folder (a temporary one by default), and their sources are
read: nothing in them is imported. A table is printed, and the drifts that are known have to be
in the rows where they belong, and in no other.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcheck.contracts import ContractReport

ROOT = Path(__file__).resolve().parents[2]
RELEASES = (
    "0.5.12",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
SRT = Path("sglang", "srt")
STUB = "hardware_backend/mlx/model_runner_stub.py"
BASE = "model_executor/model_runner.py"
CALLERS = (
    "hardware_backend/mlx/tp_worker.py",
    "managers/scheduler.py",
    "managers/tp_worker.py",
)

KNOWN: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("assertion", "alloc_memory_pool"): (
        ("0.5.14", "0.5.14"),
        ("0.5.13.post1", "0.5.14"),
    ),
    ("must-override", "init_attention_backends"): (
        *((release, release) for release in ("0.5.14", "0.5.15", "0.5.16", "0.5.17")),
        ("0.5.13.post1", "0.5.14"),
        ("0.5.14", "0.5.15"),
        ("0.5.15", "0.5.16"),
        ("0.5.16", "0.5.17"),
        ("0.5.17", "0.5.18"),
    ),
    ("narrower-override", "initialize"): (("0.5.13.post1", "0.5.14"),),
    ("call-does-not-bind", "initialize"): (("0.5.13.post1", "0.5.14"),),
    ("missing-attribute", "canary_manager"): (("0.5.12", "0.5.13.post1"),),
    ("missing-attribute", "prefill_aware_swa"): (("0.5.14", "0.5.15"),),
    ("call-does-not-bind", "alloc_memory_pool"): (("0.5.22", "0.5.23"),),
    ("must-override", "logical_max_total_num_tokens"): (
        ("0.5.21", "0.5.21"),
        ("0.5.20", "0.5.21"),
        ("0.5.21", "0.5.22"),
    ),
}
"""Drifts, and the rows (stub of, base and callers of) in which they are."""


def fetch(release: str, folder: Path) -> Path:
    """Return the sources of a release, fetched once."""
    where = folder / release
    if not (where / SRT / BASE).is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), f"sglang=={release}"]
        subprocess.run(command, check=True)
        (wheel,) = folder.glob(f"sglang-{release}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(where, members)
        wheel.unlink()
    return where / SRT


def checked(stub: Path, base: Path) -> ContractReport:
    """Hold one release's stub against another one's base and callers."""
    from mlxcheck.contracts import check_stub

    return check_stub(
        f"{stub / STUB}:MlxModelRunnerStub",
        f"{base / BASE}:ModelRunner",
        [base / name for name in CALLERS],
    )


def main(folder: Path) -> int:
    """Print the table and return how many known drifts are not where they belong."""
    bad = 0
    pairs = [(one, one) for one in RELEASES]
    pairs += list(pairwise(RELEASES))
    for stub, base in pairs:
        report = checked(fetch(stub, folder), fetch(base, folder))
        found = {(each.kind, each.name) for each in report.findings}
        _say(f"| {stub} | {base} | {len(report.unresolved)} | {_cells(report)} |")
        for drift, rows in KNOWN.items():
            if (drift in found) != ((stub, base) in rows):
                bad += 1
                what = "is not found" if (stub, base) in rows else "should not be found"
                _say(f"  {drift[0]} {drift[1]} {what}")
    _say(f"{bad} of the known drifts are not where they belong")
    return bad


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _cells(report: ContractReport) -> str:
    kinds: dict[str, list[str]] = {}
    for each in report.findings:
        star = "*" if each.when else ""
        kinds.setdefault(each.kind, []).append(each.name + star)
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        sys.exit(bool(main(Path(sys.argv[1]))))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(bool(main(Path(temporary))))
