"""Replay files: written, read, driven again, and refused where they cannot be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlxcheck
from fixtures.faults.mlx_lm import SharedOffset
from mlxcheck import replay as replays
from mlxcheck import replay_file, repro
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.cli import main
from mlxcheck.errors import ModelError, ReferenceMismatch, ReportError, UsageError
from mlxcheck.policy import Policy
from mlxcheck.records import Case, Moment, Prompt, Schedule, Verdict
from tests.support.reported import comparison

MODEL = Path(__file__).resolve().parent.parent / "fixtures" / "models" / "qwen3_moe-float32"
FAULT = "fixtures.faults.mlx_lm:SharedOffset"
PASS, FAIL, USAGE, INCONCLUSIVE = 0, 1, 2, 3

A, B = Prompt(id="a", tokens=(10, 11)), Prompt(id="b", tokens=(12,))
WHOLE = replay_file.Replay(
    model="a/tiny",
    model_type="qwen3",
    backend="mine:Engine",
    check="batch",
    case=Case(
        id="shrunk/batch/x",
        prompts=(A, B, A),
        schedule=Schedule(
            joins=(None, Moment(row=0, tokens=2, steps=1), None),
            leaves=(None, None, Moment(row=0)),
        ),
        given=(1, 0, 0),
        most=(0, 3, 0),
        chunk=4,
        rounds=2,
    ),
    judged=("a",),
    row=2,
    verdict=Verdict.WRONG,
    step=1,
    expected=5,
    actual=6,
    message="a, check batch: token 2 of 3 differs",
    stable=False,
    precision="float32",
    max_tokens=8,
    seed=3,
    policy={"mode": "strict", "prefill_chunk": 64},
    revision="abc",
    trust_remote_code=True,
    versions={"mlx": "0.32.4"},
)


# --- Files ------------------------------------------------------------------------------------


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    """Every field comes back, and gives the settings of the run."""
    path = tmp_path / "r.json"

    replay_file.save(WHOLE, path)

    assert replay_file.load(path) == WHOLE
    settings = WHOLE.settings()
    assert (settings.max_tokens, settings.seed, settings.revision) == (8, 3, "abc")
    assert settings.policy == Policy(mode="strict", prefill_chunk=64, precision=("float32",))
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """The folder has to be there; a folder of the file's name stays as it is."""
    with pytest.raises(ReportError, match="cannot write the replay file: No such file"):
        replay_file.save(WHOLE, tmp_path / "no" / "r.json")
    (tmp_path / "r.json").mkdir()
    with pytest.raises(ReportError, match=r"Is a directory. Give a folder that exists"):
        replay_file.save(WHOLE, tmp_path / "r.json")
    assert [each.name for each in tmp_path.iterdir()] == ["r.json"]


def _changed(path: Path, **changes: Any) -> None:
    """Write a replay file with other values."""
    replay_file.save(WHOLE, path)
    raw = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        target = raw["case"] if name in {"given", "schedule", "prompts"} else raw
        target[name] = value
    path.write_text(json.dumps(raw), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kind": "a poem"}, "this is no replay file. `mlxcheck run --shrink` writes one."),
        ({"schema": 9}, "replay file of schema 9; this release reads 1."),
        ({"check": "bacth"}, "there is no check 'bacth'. Did you mean batch?"),
        ({"verdict": "EXACT"}, "damaged: ValueError: verdict EXACT is no failure."),
        ({"verdict": "MAYBE"}, "damaged: ValueError: 'MAYBE' is not a valid Verdict."),
        ({"precision": "int4"}, "damaged: ValueError: precision 'int4'."),
        ({"row": 3}, "damaged: ValueError: row 3 of shrunk/batch/x."),
        ({"model": None}, "damaged: ValueError: model is no text."),
        ({"backend": 5}, "damaged: ValueError: backend is no text."),
        ({"max_tokens": 0}, "max_tokens=0: expected a whole number above 0."),
        ({"policy": {"mode": "kind"}}, "Policy(mode='kind'): expected one of"),
        ({"policy": {"mood": "kind"}}, "damaged: TypeError"),
        ({"given": [1]}, "damaged: ValueError: given of 3 rows: [1]."),
        ({"prompts": []}, "damaged: ValueError: a case without prompts."),
        ({"prompts": ["c"]}, "damaged: KeyError: 'c'."),
        ({"schedule": {"joins": [None], "leaves": []}}, "damaged: ValueError: 1 moments of 3"),
        (
            {"schedule": {"joins": [{"row": 7}, None, None], "leaves": [None] * 3}},
            "damaged: ValueError: a moment of Moment(row=7",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_told_in_a_line(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """One error, with the file's name."""
    path = tmp_path / "r.json"
    _changed(path, **changes)

    with pytest.raises(UsageError) as error:
        replay_file.load(path)

    assert str(error.value).startswith(f"{path}: ")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "the replay file cannot be read: No such file or directory."),
        ("{", "the replay file is not JSON: "),
        ("[]", "this is no replay file."),
        ('{"kind": "mlxcheck replay", "schema": 1}', "the replay file is damaged: KeyError"),
    ],
)
def test_what_is_no_replay_file(
    text: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not there, no JSON, no object, empty: a usage error on the command line too."""
    path = tmp_path / "r.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    assert main(["replay", str(path)]) == USAGE
    assert f"mlxcheck: {path}: {told}" in capsys.readouterr().err


def test_a_backend_without_a_name_has_to_be_given(tmp_path: Path) -> None:
    """What was an object cannot be found again."""
    path = tmp_path / "r.json"
    replay_file.save(replace(WHOLE, backend=None), path)

    with pytest.raises(UsageError, match=r"it names no backend.*--backend B"):
        replays.replay(path)
    with pytest.raises(UsageError, match="there is no backend 'mlx-ml'"):
        replays.replay(path, backend="mlx-ml")


def test_the_command_in_a_message_is_the_one_that_finds_the_case() -> None:
    """No plan holds a shrunk case."""
    found = comparison(Verdict.WRONG, message="a\n  again: mlxcheck run x\nb")

    assert replays.with_command(found, "mlxcheck replay r").message == (
        "a\n  again: mlxcheck replay r\nb"
    )


def test_control_codes_are_not_sent_to_a_terminal() -> None:
    """An engine's message may hold any."""
    assert replays.shown("a\x1b[2J\tb\n") == "a\\x1b[2J\tb\n"


# --- From a run to a test ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the command on a fault; return its replay file and what it printed."""
    folder = tmp_path_factory.mktemp("replay")
    prompts = folder / "prompts.json"
    long = {"id": "long", "tokens": [281, 385, 352, 426, 258] * 5}
    entries = [{"id": "sum", "user": "What is 2+2?"}, {"id": "two", "tokens": [7, 8]}, long]
    prompts.write_text(json.dumps(entries), encoding="utf-8")
    (folder / "mlxcheck-replay-1.json").write_text("somebody's", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        out: list[str] = []
        patch.setattr("sys.stdout.write", out.append, raising=False)
        status = main(
            [
                *("run", str(MODEL), "--backend", FAULT, "--prompts", str(prompts)),
                *("--max-tokens", "8", "--check", "batch", "--check", "tokens"),
                *("--shrink", "--shrink-budget", "30", "--shrink-to", str(folder)),
            ]
        )
    assert status == FAIL
    return folder / "mlxcheck-replay-2.json", "".join(out)


def test_a_failing_run_prints_what_is_left_and_a_test_to_paste(told: tuple[Path, str]) -> None:
    """One check failed, so one file; a file of that name is left alone; the test fails."""
    path, out = told

    names = sorted(each.name for each in path.parent.glob("mlxcheck-replay-*"))
    assert names == ["mlxcheck-replay-1.json", path.name]
    assert (path.parent / names[0]).read_text(encoding="utf-8") == "somebody's"
    assert "shrunk batch batch-" in out
    assert f"again: mlxcheck replay {path}" in out
    test = out[out.rindex("    import mlxcheck") :].replace("\n    ", "\n").strip()
    names_here: dict[str, Any] = {}
    exec(test, names_here)  # noqa: S102 - pasted, as a user would
    with pytest.raises(AssertionError, match="as recorded: recorded was WRONG in row"):
        names_here["test_replay_2"]()


def test_the_file_holds_what_was_found(told: tuple[Path, str]) -> None:
    """Two requests, the failing one of the reference's, and where it comes from."""
    kept = replay_file.load(told[0])

    assert (kept.backend, kept.check, kept.verdict) == (FAULT, "batch", Verdict.WRONG)
    assert (kept.model, kept.model_type, kept.precision) == (
        str(MODEL),
        "qwen3_moe",
        "float32",
    )
    assert kept.stable
    assert len(kept.case.prompts) == 2
    assert kept.case.prompts[kept.row].id in kept.judged
    assert {"mlx", "mlx-lm", "mlxcheck", "device"} <= set(kept.versions)
    assert kept.expected != kept.actual


def test_it_still_fails(told: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, the message, and that it is what the file says."""
    assert main(["replay", str(told[0])]) == FAIL
    out, err = capsys.readouterr()
    assert "\nas recorded: recorded was WRONG in row" in out
    assert out.endswith(f"fail: {FAULT}\n")
    assert f"again: mlxcheck replay {told[0]} --backend {FAULT}\n" in out
    assert [line.split()[0] for line in err.splitlines()] == ["load", "reference"]


def test_it_no_longer_fails_on_an_engine_that_is_mended(
    told: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0, also on another copy of the model."""
    shutil.copytree(MODEL, tmp_path / "copy")
    command = ["replay", str(told[0]), "--backend", "mlx-lm", "--model", str(tmp_path / "copy")]

    assert main(command) == PASS
    out = capsys.readouterr().out
    assert "\nno longer fails: recorded was WRONG" in out
    assert out.endswith("pass: mlx-lm\n")
    assert mlxcheck.assert_replays(told[0], backend="mlx-lm").outcome == "pass"


def test_it_fails_otherwise_than_recorded(told: tuple[Path, str]) -> None:
    """Another engine's own fault is a fail, and is not called the file's."""
    with pytest.raises(ReferenceMismatch) as error:
        mlxcheck.assert_replays(told[0], backend="tests.engines:AlwaysWrong")

    assert "fails otherwise than recorded" in str(error.value)
    assert error.value.report.failures


class NoBatch(MlxLmBackend):
    """Takes one request at a time, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, batch=False)


def test_an_engine_that_cannot_be_asked_gives_no_verdict(
    told: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 3, with the reason; the assertion raises: nothing compared is no pass."""
    backend = f"{__name__}:NoBatch"

    assert main(["replay", str(told[0]), "--backend", backend]) == INCONCLUSIVE
    out = capsys.readouterr().out
    assert out.startswith("the backend takes one request at a time\nno verdict: ")
    with pytest.raises(AssertionError, match="takes one request at a time"):
        mlxcheck.assert_replays(told[0], backend=backend)


def test_a_model_that_is_gone(told: tuple[Path, str], tmp_path: Path) -> None:
    """Of the file's own it is said how to name another; of one that is given, what is wrong."""
    path = tmp_path / "r.json"
    replay_file.save(replace(replay_file.load(told[0]), model="no/such/folder/here"), path)

    with pytest.raises(ModelError, match=r"names a model that cannot.*there is no such folder"):
        replays.replay(path)
    with pytest.raises(ModelError, match=r"^no/folder/there/at/all: there is no such folder"):
        replays.replay(path, model="no/folder/there/at/all")
    found = replays.replay(path, model=MODEL, backend=SharedOffset)
    assert found.likeness == "as recorded"


def test_the_first_failure_of_each_check_is_shrunk() -> None:
    """Of those that drove a case; with what was driven before it, each case once."""
    one, two, three = (Case(id=name, prompts=(A,)) for name in ("one", "two", "three"))
    plan = {"tokens": (one, two), "stop": (two,), "batch": (three,)}
    found = [
        comparison(Verdict.WRONG, check="batch", case="three"),
        comparison(Verdict.DRIFT, check="batch", case="three", row=1),
        comparison(Verdict.WRONG, check="stop", case="two"),
        comparison(Verdict.DRIFT, check="tokens", prompt_id="all-prompts"),
        comparison(Verdict.ERROR, check="close", case="two"),
    ]
    recorded: Any = None

    failed = list(repro.failures(recorded, "mine", plan, found))

    assert [each.comparison for each in failed] == [found[0], found[2]]
    assert [each.case for each in failed] == [three, two]
    assert [each.before for each in failed] == [(one, two), (one,)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--shrink-budget", "0"], "--shrink-budget 0: expected 0 < SECONDS"),
        (["--shrink-budget", "nan"], "--shrink-budget nan: expected 0 < SECONDS"),
        (["--shrink-to", "no/such"], "no/such/mlxcheck-replay-1.json: cannot write"),
    ],
)
def test_options_that_cannot_be(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known before anything is loaded."""
    assert main(["run", str(MODEL), "--shrink", *options]) == USAGE
    assert f"mlxcheck: {told}" in capsys.readouterr().err


def test_a_run_that_passes_writes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to shrink."""
    prompts = tmp_path / "prompts.json"
    prompts.write_text('[{"id": "two", "tokens": [7, 8]}]', encoding="utf-8")
    options = ["--prompts", str(prompts), "--max-tokens", "4", "--check", "tokens"]

    assert main(["run", str(MODEL), *options, "--shrink", "--shrink-to", str(tmp_path)]) == PASS
    assert [each.name for each in tmp_path.iterdir()] == ["prompts.json"]
    assert "shrunk" not in capsys.readouterr().out
