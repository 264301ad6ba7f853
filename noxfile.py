"""Every job of the project, the same at home and in CI."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
MODELS = ROOT / "fixtures" / "models"
FLOAT32 = sorted(str(path.relative_to(ROOT)) for path in MODELS.glob("*-float32"))
CPU = "" if sys.platform == "darwin" else "cpu"
"""Where there is no Metal, mlx needs a build named; on a Mac it comes with one."""

PROJECT = nox.project.load_toml("pyproject.toml")

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["tests", "lint", "types", "sglang"]
nox.options.error_on_missing_interpreters = False


def extras(*names: str) -> str:
    """Return ``[name,...]``, with the mlx build of this machine."""
    wanted = [name for name in (CPU, *names) if name]
    return f"[{','.join(wanted)}]" if wanted else ""


def install(session: nox.Session, *what: str) -> None:
    """Install, held to the versions that were last seen to work."""
    session.install("-c", "tests/constraints.txt", *what)


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of a dependency group."""
    return nox.project.dependency_groups(PROJECT, name)


def install_sglang(session: nox.Session) -> None:
    """Install the project, and SGLang as its MLX backend runs on Linux."""
    install(session, "-e", f".{extras('test')}")
    folder = ROOT / "tests" / "sglang"
    install(session, "-r", str(folder / "requirements.txt"))
    session.install("--no-deps", "-r", str(folder / "requirements-no-deps.txt"))


@nox.session
def reference(session: nox.Session) -> None:
    """Run the main job on the float32 fixtures and mlx-lm's batched engine."""
    install(session, f".{extras()}")
    models = [arg for arg in session.posargs if not arg.startswith("-")] or FLOAT32
    options = [arg for arg in session.posargs if arg.startswith("-")]
    session.run("mlxcheck", "run", *models, "--backend", "mlx-lm", *options)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, with mlx-lm for real."""
    install(session, "-e", f".{extras('test')}")
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session
def sglang(session: nox.Session) -> None:
    """Run the main job on SGLang's real MlxModelRunner."""
    if sys.platform == "darwin":
        session.skip("on a Mac, install SGLang as its documentation says, and run pytest there")
    install_sglang(session)
    session.run("pytest", "-n", "2", "tests/sglang", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install(*group("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly, over the package, tests, fixtures and this file."""
    install(session, f".{extras('test')}", *group("types"))
    session.run("mypy", "mlxcheck", "tests", "fixtures", "noxfile.py", *session.posargs)


@nox.session(default=False)
def fixtures(session: nox.Session) -> None:
    """Train the fixture models again from their seeds; minutes on two cores."""
    install(session, "-e", f".{extras()}")
    session.run("python", "fixtures/build.py", *session.posargs)


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    session.install("-e", f".{extras('docs')}")
    session.run("sphinx-build", "-W", "docs", str(Path(session.create_tmp()) / "html"))


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure what the harness costs over bare calls to mlx-lm, and what calibration adds."""
    install(session, f".{extras()}")
    session.run("python", "tests/bench/overhead.py", *session.posargs)
    session.run("python", "tests/bench/calibration.py")


@nox.session(default=False)
def package(session: nox.Session) -> None:
    """Build the wheel, and try it from an empty folder that holds no checkout."""
    session.install("build")
    dist = Path(session.create_tmp()) / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist))
    (wheel,) = dist.glob("*.whl")
    install(session, f"{wheel}{extras('test')}")
    empty = Path(session.create_tmp()) / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    with session.chdir(empty):
        model = str(MODELS / "qwen3-float32")
        session.run("mlxcheck", "run", model, "--effort", "quick", "--json", "report.json")
        options = ("--mlx-reference", f"--mlx-model={model}", "--mlx-require", "-q")
        session.run("pytest", *options, "-k", "tokens and sum")


@nox.session(default=False)
def honesty(session: nox.Session) -> None:
    """Compare honest engines with mlx-lm in thousands of cases: none may fail."""
    install(session, f".{extras()}")
    session.run("python", "tests/honesty/sweep.py", "--least", "3000", *session.posargs)


@nox.session(default=False)
def curve(session: nox.Session) -> None:
    """Measure how large a change has to be to be seen, and hold the stated limit to it."""
    install(session, f".{extras()}")
    session.run("python", "tests/honesty/curve.py", *session.posargs)


@nox.session(default=False)
def small_faults(session: nox.Session) -> None:
    """Plant every small fault in each kind of weights: all have to be seen."""
    install(session, f".{extras()}")
    session.run("python", "tests/honesty/faults.py", *session.posargs)


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Plant every fault in its engine and ask every check; write what each of them catches."""
    if sys.platform == "darwin":
        install(session, "-e", f".{extras('test')}")
    else:
        install_sglang(session)
    page = "docs/explanation/what-it-catches.md"
    session.run("python", "tests/matrix/matrix.py", "--page", page, *session.posargs)


@nox.session(default=False)
def search(session: nox.Session) -> None:
    """Let hypothesis find faults without a hint, and shrink what the checks find."""
    install(session, "-e", f".{extras('test')}")
    session.run("python", "tests/search/found.py", "200", "0", "1")
    session.run("python", "tests/search/shrunk.py")


@nox.session(name="sglang-server", default=False)
def sglang_server(session: nox.Session) -> None:
    """Start SGLang's real server on the trained mixtures, and compare and smoke-test it."""
    if sys.platform == "darwin":
        session.skip("on a Mac, install SGLang as its documentation says, and run pytest there")
    install_sglang(session)
    folder = ROOT / "tests" / "sglang_server"
    install(session, "-r", str(folder / "requirements.txt"))
    session.install("--no-deps", "-r", str(folder / "requirements-no-deps.txt"))
    # One server wants a core, and half a minute to start: no second worker.
    session.run("pytest", "tests/sglang_server", "tests/e2e/sglang", *session.posargs)


@nox.session(name="contracts-history", default=False)
def contracts_history(session: nox.Session) -> None:
    """Check the stubs of old SGLang releases from their sources: known drifts are found."""
    install(session, f".{extras()}")
    session.install("pip")
    session.run("python", "tests/contracts/history.py", *session.posargs)
