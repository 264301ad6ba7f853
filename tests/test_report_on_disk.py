"""Reports on disk: written whole or not at all, and read back as they were."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck import report as reports
from mlxcheck.errors import ReportError
from mlxcheck.noise import Arm, Noise, Probe
from mlxcheck.passes import Control, PassSummary
from mlxcheck.records import Comparison, Phase, Verdict
from mlxcheck.report import Report, load, require_writable, save
from tests.support.drawing import unhurried
from tests.support.reported import comparison, report

if TYPE_CHECKING:
    from pathlib import Path

SHORT = st.floats(allow_nan=False, allow_infinity=False).map(lambda n: float(f"{n:.6g}"))
"""Numbers that six digits hold, which is how many are written."""

NUMBERS = st.none() | SHORT
PRECISIONS = st.sampled_from(("float32", "native"))
ROWS = st.lists(SHORT | st.just(math.nan), max_size=3).map(tuple)
BEST = st.lists(st.tuples(st.integers(0), SHORT), max_size=2).map(tuple)
STEPS = st.lists(st.integers(0), max_size=3).map(tuple)

Fields = dict[str, st.SearchStrategy[Any]]
TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates too: file names hold them


def names(folder: Path) -> list[str]:
    """List a folder."""
    return sorted(path.name for path in folder.iterdir())


def comparison_fields() -> Fields:
    """Draw every field of a comparison."""
    return {
        "check": TEXTS,
        "prompt_id": TEXTS,
        "verdict": st.sampled_from(Verdict),
        "step": st.none() | st.integers(0),
        "expected": st.none() | st.integers(0),
        "actual": st.none() | st.integers(0),
        "margin": NUMBERS,
        "regret": NUMBERS,
        "noise": NUMBERS,
        "ulps": NUMBERS,
        "top_expected": BEST,
        "top_actual": BEST,
        "ties": st.integers(0),
        "worst_tie": SHORT,
        "near": st.integers(0),
        "errors": ROWS,
        "divergences": ROWS,
        "flips": STEPS,
        "precision": PRECISIONS,
        "message": TEXTS,
        "case": TEXTS,
        "batch": st.integers(1),
        "row": st.integers(0),
        "neighbours": st.lists(TEXTS, max_size=3).map(tuple),
        "steps": st.integers(0),
        "skipped": st.integers(0),
    }


def pass_fields() -> Fields:
    """Draw every field of what may be known of a pass."""
    finite = st.lists(SHORT, max_size=2).map(tuple)
    words = {"arm": TEXTS, "what": TEXTS, "prompt_id": TEXTS, "flips": STEPS, "change": SHORT}
    arms, probes = (
        st.builds(kind, **{each.name: words.get(each.name, finite) for each in fields(kind)})
        for kind in (Arm, Probe)
    )
    noise = st.builds(
        Noise,
        dtype=st.sampled_from(("float32", "bfloat16")),
        exact=st.booleans(),
        arms=st.lists(arms, max_size=2).map(tuple),
        probes=st.lists(probes, max_size=2).map(tuple),
        repeated=st.integers(0),
        repeats=st.booleans(),
    )
    controls = st.builds(Control, name=TEXTS, passed=st.booleans(), text=TEXTS)
    tests = st.tuples(TEXTS, TEXTS, st.booleans(), TEXTS)
    return {
        "precision": PRECISIONS,
        "ran": st.booleans(),
        "why": TEXTS,
        "dtype": TEXTS,
        "exact": st.booleans(),
        "noise": st.none() | noise,
        "band": NUMBERS,
        "smallest_band": NUMBERS,
        "raw_rate": NUMBERS,
        "adjusted_rate": NUMBERS,
        "margins": st.lists(st.tuples(NUMBERS, st.integers(0)), max_size=2).map(tuple),
        "controls": st.lists(controls, max_size=2).map(tuple),
        "tests": st.lists(tests, max_size=2).map(tuple),
        "limit": st.lists(TEXTS, max_size=2).map(tuple),
        "text_alone": st.booleans(),
    }


def report_fields() -> Fields:
    """Draw every field of a report."""
    comparisons = st.builds(Comparison, **comparison_fields())
    seconds = st.integers(0, 999_999).map(float)
    phases = st.builds(
        Phase,
        name=TEXTS,
        seconds=seconds,
        active=st.integers(0),
        cached=st.integers(0),
        peak=st.integers(0),
        rss=st.integers(0),
    )
    return {
        "model": TEXTS,
        "model_type": TEXTS,
        "reference": TEXTS,
        "backend": TEXTS,
        "comparisons": st.lists(comparisons, max_size=3).map(tuple),
        "not_asked": st.lists(st.tuples(TEXTS, TEXTS), max_size=2).map(tuple),
        "phases": st.lists(phases, max_size=2).map(tuple),
        "gate": st.lists(TEXTS, max_size=2).map(tuple),
        "passes": st.lists(st.builds(PassSummary, **pass_fields()), max_size=2).map(tuple),
        "versions": st.dictionaries(TEXTS, TEXTS, max_size=2),
        "settings": st.dictionaries(TEXTS, st.integers() | TEXTS, max_size=2),
        "complete": st.booleans(),
    }


@unhurried
@given(st.lists(st.builds(Report, **report_fields()), max_size=2))
def test_what_was_saved_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, expected: list[Report]
) -> None:
    """Any reports come back equal, with every field, and the file is plain JSON."""
    path = tmp_path_factory.getbasetemp() / "round-trip.json"

    save(expected, path)

    assert load(path) == tuple(expected)
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == reports.SCHEMA


def test_the_file_answers_without_mlxcheck(tmp_path: Path) -> None:
    """Outcome and steps stand in the file for whoever reads it with other tools."""
    made = report(comparison(Verdict.WRONG, 2, step=2), versions={"python": "3"})
    made.save(tmp_path / "out.json")

    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))

    (raw,) = content["reports"]
    assert (raw["outcome"], raw["steps"], raw["versions"]) == ("fail", 3, {"python": "3"})
    assert set(raw) == {field.name for field in fields(Report)} | {"outcome", "steps"}
    assert raw["comparisons"][0]["verdict"] == "WRONG"


def test_every_field_is_drawn_and_so_comes_back() -> None:
    """A field that is added to a record has to be written, and read back, as it was."""
    assert set(comparison_fields()) == {field.name for field in fields(Comparison)}
    assert set(pass_fields()) == {field.name for field in fields(PassSummary)}
    assert set(report_fields()) == {field.name for field in fields(Report)}


def test_measured_numbers_are_written_short(tmp_path: Path) -> None:
    """Six digits are more than any of them is worth, and a report has thousands."""
    made = report(comparison(margin=1 / 3, errors=(2e-7 / 3, 1234567.0)))

    made.save(tmp_path / "out.json")

    (loaded,) = load(tmp_path / "out.json")
    (found,) = loaded.comparisons
    assert (found.margin, found.errors) == (0.333333, (6.66667e-08, 1234570.0))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_infinite_margins_do_not_lose_the_report(tmp_path: Path, number: float) -> None:
    """A masked token is infinitely unlikely; JSON has no such number, and null is written."""
    made = report(comparison(Verdict.WRONG, margin=number, regret=number, noise=0.5))

    made.save(tmp_path / "out.json")

    (loaded,) = load(tmp_path / "out.json")
    (found,) = loaded.comparisons
    assert (found.margin, found.regret, found.noise) == (None, None, 0.5)
    assert "NaN" not in (tmp_path / "out.json").read_text(encoding="utf-8")


def test_a_saved_report_may_be_read_by_others(tmp_path: Path) -> None:
    """The file is not private to the user, as temporary files are."""
    report().save(tmp_path / "out.json")

    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o644


def test_a_saved_report_replaces_the_last_one(tmp_path: Path) -> None:
    """The same path may be used run after run."""
    report(comparison(Verdict.WRONG)).save(tmp_path / "out.json")
    report(comparison()).save(tmp_path / "out.json")

    assert [made.outcome for made in load(tmp_path / "out.json")] == ["pass"]
    assert names(tmp_path) == ["out.json"]


@pytest.mark.parametrize("step", ["write", "chmod", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_last_report_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    """A full disk, or Ctrl-C, at any step: the old report stays, and nothing beside it."""
    path = tmp_path / "out.json"
    report(comparison()).save(path)
    before = path.read_bytes()

    def fail(*_args: object, **_options: object) -> None:
        raise error

    if step == "write":
        real = os.fdopen

        def half(handle: int, *args: Any, **options: Any) -> Any:
            stream = real(handle, *args, **options)
            stream.write("{")
            return _Failing(stream, error)

        monkeypatch.setattr(os, "fdopen", half)
    else:
        monkeypatch.setattr(f"pathlib.Path.{step}", fail)

    with pytest.raises((ReportError, KeyboardInterrupt)) as caught:
        report(comparison(Verdict.WRONG)).save(path)

    monkeypatch.undo()
    assert path.read_bytes() == before
    assert names(tmp_path) == ["out.json"]
    if isinstance(error, OSError):
        assert "cannot write the report: No space left on device." in str(caught.value)


class _Failing:
    """A stream whose second write fails."""

    def __init__(self, stream: Any, error: BaseException) -> None:
        self._stream, self._error = stream, error

    def __enter__(self) -> _Failing:  # noqa: PYI034 - private
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, _text: str) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("out.html", "cannot tell the form of the report from '.html'; use .json."),
        ("out", "cannot tell the form of the report from ''; use .json."),
        ("none/out.json", "cannot write the report: No such file or directory. Give a path in"),
        ("file/out.json", "cannot write the report: Not a directory."),
        ("folder.json", "cannot write the report: it is a folder."),
    ],
)
def test_paths_that_cannot_be_written(tmp_path: Path, name: str, expected: str) -> None:
    """What is wrong with a path is known before the run, and left behind is nothing."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "folder.json").mkdir()
    before = sorted(tmp_path.iterdir())

    with pytest.raises(ReportError) as early:
        require_writable(tmp_path / name)
    with pytest.raises(ReportError):
        report().save(tmp_path / name)

    assert expected in str(early.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_home_that_nobody_has() -> None:
    """A path under an unknown user's home is refused in a sentence."""
    with pytest.raises(ReportError, match=r"^~nosuchuser/out\.json: cannot write"):
        require_writable("~nosuchuser/out.json")


def test_a_path_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    """Asking first neither makes nor changes the file."""
    require_writable(tmp_path / "out.json")
    assert names(tmp_path) == []

    (tmp_path / "out.json").write_text("old", encoding="utf-8")
    require_writable(tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"schema": 1, "reports": []}', "report of schema 1; this release reads 2."),
        ('{"schema": "2", "reports": []}', "report of schema 2; this release reads 2."),
        ("{", "not a report of mlxcheck: JSONDecodeError"),
        ("[]", "not a report of mlxcheck: TypeError"),
        ("{}", "not a report of mlxcheck: KeyError: 'schema'"),
        ('{"schema": 2}', "not a report of mlxcheck: KeyError: 'reports'"),
        ('{"schema": 2, "reports": [3]}', "not a report of mlxcheck: AttributeError"),
        ('{"schema": 2, "reports": [{}]}', "not a report of mlxcheck: KeyError: 'comparisons'"),
        (None, "cannot read the report: No such file or directory."),
    ],
)
def test_files_that_are_no_report(tmp_path: Path, content: str | None, expected: str) -> None:
    """Another schema, another file and no file are told apart, and are no traceback."""
    path = tmp_path / "in.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")

    with pytest.raises(ReportError) as caught:
        load(path)

    assert str(caught.value).startswith(f"{path}: {expected}")


@pytest.mark.parametrize(
    "changed",
    [
        {"verdict": "MAYBE"},
        {"extra": 1},
        {"neighbours": None},
        {"flips": 3},
        {"errors": None},
    ],
)
def test_comparisons_that_this_release_cannot_read(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    """An unknown verdict or field is refused, and never dropped in silence."""
    path = tmp_path / "in.json"
    report(comparison()).save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["reports"][0]["comparisons"][0].update(changed)
    path.write_text(json.dumps(content), encoding="utf-8")

    with pytest.raises(ReportError, match="not a report of mlxcheck"):
        load(path)
