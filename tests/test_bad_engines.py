"""Engines that fail, hang or are interrupted: a verdict, what is known, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mlxcheck import command
from mlxcheck import report as reports
from mlxcheck.cli import main
from mlxcheck.passes import PassSummary
from mlxcheck.records import Case, Comparison, Prompt, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcheck.report import Report
    from mlxcheck.run import Drive

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "fixtures" / "models" / "qwen3-float32"
PROMPTS = [
    {"id": "one", "user": "What is 2+2?"},
    {"id": "two", "tokens": [7, 8]},
    {"id": "three", "tokens": [7, 8, 9]},
]
FAIL, INTERRUPTED = 1, 130


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Write three short prompts to a file."""
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(PROMPTS), encoding="utf-8")
    return str(path)


@pytest.fixture
def found(
    prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Report]:
    """Return a runner of a bad engine on the tiny model; it gives back the saved report."""

    def run(engine: str, *arguments: str, status: int = FAIL) -> Report:
        path = tmp_path / "report.json"
        options = ["--backend", f"tests.engines:{engine}", "--prompts", prompts]
        options += ["--max-tokens", "4", "--json", str(path), *arguments]
        assert main(["run", str(MODEL), *options]) == status
        assert "Traceback" not in capsys.readouterr().err
        (report,) = reports.load(path)
        return report

    return run


def test_an_engine_that_raises_in_open(found: Callable[..., Report]) -> None:
    """Every case is an ERROR with the traceback."""
    report = found("OpenRaises")
    assert set(report.counts) == {Verdict.ERROR}
    message = report.comparisons[0].message
    assert "open() raised RuntimeError: no kernel for qwen3" in message
    assert "Traceback" in message
    assert 'msg = f"no kernel' not in message.splitlines()[0]


def test_an_engine_that_raises_in_one_case(found: Callable[..., Report]) -> None:
    """The other cases still go on: the engine is opened again for them."""
    report = found("OneRaises", "--check", "tokens")
    verdicts = {comparison.prompt_id: comparison.verdict for comparison in report.comparisons}
    assert verdicts == {"one": Verdict.EXACT, "two": Verdict.ERROR, "three": Verdict.EXACT}
    message = report.failures[0].message
    assert "step() raised IndexError: index 2 is out of bounds" in message
    assert "Traceback" in message
    assert "engines.py" in message


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        ("too_few_rows", "returned 0 rows for 1 prompts"),
        ("no_tokens", "no token at all"),
        ("one_for_all", "returned 1; expected a list of lists"),
        ("text_for_ids", "returned 'Paris'; expected a list of ids"),
        ("UnknownIds", "a token for request 'nobody', which is not in flight"),
        ("Floats", "3.0 (float) where an int token id was due"),
        ("OutOfVocabulary", "1000000, outside the vocabulary"),
    ],
)
def test_an_engine_that_breaks_the_protocol(
    found: Callable[..., Report], engine: str, word: str
) -> None:
    """Each way is an ERROR that says what came and what was due."""
    report = found(engine, "--check", "tokens", "--check", "batch")
    assert set(report.counts) == {Verdict.ERROR}
    assert word in report.failures[0].message
    assert {comparison.check for comparison in report.failures} == {"tokens", "batch"}


def test_a_function_that_forgets_a_row_of_a_batch(found: Callable[..., Report]) -> None:
    """Both rows of a batch of two are without an answer."""
    report = found("too_few_rows", "--check", "batch", "--case", "batch-2/short-long")
    assert [comparison.verdict for comparison in report.comparisons] == [Verdict.ERROR] * 2
    assert "returned 1 rows for 2 prompts" in report.comparisons[0].message


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("Loops", ("no progress within 1 s in step()", "engines.py", "while True")),
        ("Sleeps", ("no progress within 1 s in step()", "time.sleep(3600)")),
        ("SleepsInOpen", ("no progress within 1 s in open()", "time.sleep(3600)")),
        ("Silent", ("no token within 1 s for one", "step() returns, and gives nothing")),
    ],
)
def test_an_engine_that_hangs_and_can_be_interrupted(
    found: Callable[..., Report], engine: str, words: tuple[str, ...]
) -> None:
    """An ERROR with the stack, after the watchdog's time and not much more."""
    start = time.monotonic()
    report = found(engine, "--watchdog", "1", "--check", "tokens", "--case", "alone/one")
    assert time.monotonic() - start < 15
    (comparison,) = report.comparisons
    assert comparison.verdict is Verdict.ERROR
    for word in words:
        assert word in comparison.message


def test_an_engine_that_breaks_often_is_given_up(found: Callable[..., Report]) -> None:
    """A hang in every case does not cost the watchdog's time in every case."""
    start = time.monotonic()
    report = found("Sleeps", "--watchdog", "1")
    assert time.monotonic() - start < 20
    assert len(report.comparisons) > 10
    assert "was given up" in report.comparisons[-1].message


# The ends that need a process of their own.


class Child:
    """A command in a process group of its own; its output goes to files."""

    def __init__(
        self,
        tmp_path: Path,
        prompts: str,
        engine: str,
        *arguments: str,
        model: Path = MODEL,
    ) -> None:
        self.json = tmp_path / "report.json"
        self.out, self.err = tmp_path / "out", tmp_path / "err"
        command = [sys.executable, "-c", _RUN, "run", str(model), "--prompts", prompts]
        command += ["--backend", f"tests.engines:{engine}", "--max-tokens", "4"]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, "--json", str(self.json), *arguments],
                cwd=ROOT,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def interrupt_at(self, line: str) -> None:
        """Press Ctrl-C when standard error says *line*."""
        while line not in self.err.read_text(encoding="utf-8"):
            assert self.process.poll() is None, self.err.read_text(encoding="utf-8")
            time.sleep(0.01)
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        """Wait; return status and output. Nothing of the group may be left."""
        status = self.process.wait(timeout=60)
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        return (
            status,
            self.out.read_text(encoding="utf-8"),
            self.err.read_text(encoding="utf-8"),
        )

    @property
    def report(self) -> Report:
        """What was saved."""
        (report,) = reports.load(self.json)
        return report


_RUN = """
import signal, sys, time
from mlxcheck import reference
from mlxcheck.cli import main

if "--slow-reference" in sys.argv:
    sys.argv.remove("--slow-reference")
    decode = reference.Reference.decode

    def slowly(*args, **kwargs):
        print("decoding", file=sys.stderr, flush=True)
        time.sleep(0.5)
        return decode(*args, **kwargs)

    reference.Reference.decode = slowly
# Whoever runs the tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""


def test_a_hang_in_native_code_ends_the_process_with_what_is_known(
    tmp_path: Path, prompts: str
) -> None:
    """The report so far is saved as partial, the case at hand is an ERROR, status 1."""
    child = Child(tmp_path, prompts, "Locks", "--watchdog", "1", "--check", "tokens")
    status, _, err = child.end()
    assert status == FAIL
    assert "no progress within 1 s in submit()" in err
    assert "_deadlock" in err
    assert "partial results:" in err
    assert f"saved as partial in {child.json}" in err
    report = child.report
    assert not report.complete
    assert report.outcome == "fail"
    verdicts = {comparison.prompt_id: comparison.verdict for comparison in report.comparisons}
    assert verdicts == {"one": Verdict.EXACT, "two": Verdict.ERROR}
    assert "could not be interrupted" in report.failures[0].message


def test_a_hang_in_the_second_pass_keeps_what_the_first_found(
    tmp_path: Path, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the float32 pass found is saved too, and the hang is one of the native pass."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the process is ended and cannot tidy up
    model = MODEL.with_name("qwen3-8bit")
    options = ("--watchdog", "2", "--check", "tokens")
    child = Child(tmp_path, prompts, "LocksNatively", *options, model=model)
    status, _, _ = child.end()
    assert status == FAIL
    report = child.report
    assert not report.complete
    found = [(each.precision, each.prompt_id, each.verdict) for each in report.comparisons]
    right = [("float32", name, Verdict.EXACT) for name in ("one", "two", "three")]
    assert found == [*right, ("native", "one", Verdict.ERROR)]
    assert [each.precision for each in report.passes] == ["float32", "native"]


def test_a_hang_that_holds_the_interpreter_ends_the_process(
    tmp_path: Path, prompts: str
) -> None:
    """No Python code can run, so nothing is saved; the stack is shown, soon, all the same."""
    start = time.monotonic()
    child = Child(tmp_path, prompts, "HoldsTheInterpreter", "--watchdog", "1")
    status, _, err = child.end()
    assert status == FAIL
    assert time.monotonic() - start < 25
    assert "Timeout" in err
    assert "_deadlock" in err
    assert not child.json.exists()


def test_ctrl_c_while_the_reference_decodes(tmp_path: Path, prompts: str) -> None:
    """Status 130, partial and empty results that say so, no traceback, nothing running."""
    child = Child(tmp_path, prompts, "Slow", "--slow-reference")
    child.interrupt_at("decoding")
    status, out, err = child.end()
    assert status == INTERRUPTED
    assert "partial results: the run was cut short by Ctrl-C" in out
    assert "Traceback" not in err
    assert "engine opened" not in err
    assert not child.report.complete
    assert child.report.comparisons == ()


def test_ctrl_c_while_the_candidate_runs(tmp_path: Path, prompts: str) -> None:
    """The candidate is closed, what it had said is kept."""
    child = Child(tmp_path, prompts, "Slow")
    child.interrupt_at("engine opened")
    status, out, err = child.end()
    assert status == INTERRUPTED
    assert "partial results: the run was cut short by Ctrl-C" in out
    assert "Traceback" not in err
    assert "engine closed" in err
    assert not child.report.complete


def test_ctrl_c_while_the_candidate_opens(
    found: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open half way is closed too."""
    closed: list[object] = []

    def close(self: object) -> None:
        closed.append(self)

    monkeypatch.setattr("tests.engines.Slow.close", close)
    report = found("ControlCInOpen", status=INTERRUPTED)
    assert len(closed) == 1
    assert not report.complete
    assert report.comparisons == ()


@pytest.mark.parametrize(
    ("planned", "judged", "check", "prompt_id"),
    [
        ((), 0, "open", "open"),
        (("alone/a", "alone/b"), 1, "tokens", "b"),
        (("alone/a", "alone/b"), 2, "close", "close"),
    ],
)
def test_a_hang_is_an_error_of_what_was_being_done(
    planned: tuple[str, ...], judged: int, check: str, prompt_id: str
) -> None:
    """Opening, the first case that has no verdict yet, or closing."""
    cases = tuple(
        Case(id=name, prompts=(Prompt(id=name[-1], tokens=(1,)),)) for name in planned
    )
    drive = SimpleNamespace(plan={"tokens": cases} if cases else {})
    done = tuple(
        Comparison(check="tokens", prompt_id=case.id[-1], verdict=Verdict.EXACT, case=case.id)
        for case in cases[:judged]
    )
    report = reports.Report(
        model="m",
        model_type="",
        reference="r",
        backend="b",
        comparisons=done,
        passes=(PassSummary(precision="float32"),),
        complete=False,
    )
    hung = command._hung(report, cast("Drive", drive), "no progress")
    (error,) = hung.failures
    assert (error.check, error.prompt_id) == (check, prompt_id)
    assert error.precision == "float32"
    assert "no progress" in error.message
    assert hung.outcome == "fail"
