"""Noise that was measured before: under what it is kept, and that it can only save time."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mlxcheck
from mlxcheck import Policy, checkpoint, noise_cache
from mlxcheck.noise import Arm, Noise, Probe
from mlxcheck.reference import Reference
from tests.support.checkpoints import configure, written
from tests.support.made import prompt, trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcheck.report import Report

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
PAIRS = [(prompt("sum"), trace(5, 6, 2)), (prompt("count"), trace(7, 2, prompt_id="count"))]
FACTS = {"device": "cpu", "dtype": "float32", "exact": True, "chunk": 2048, "path": "original"}
KEPT = Noise(
    dtype="bfloat16",
    exact=False,
    arms=(
        Arm(
            arm="one shot",
            prompt_id="0",
            errors=(0.1, 0.0),
            divergences=(1e-9, 0.0),
            swings=(1 / 3, 0.0),
            spans=(0.5, 0.0),
            flips=(1,),
        ),
    ),
    probes=(Probe(what="of a knob", change=0.02, prompt_id="0", errors=(0.2,), spans=(0.3,)),),
    repeated=6,
)


# --- Where ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MLXCHECK_CACHE": "/some/where"}, Path("/some/where")),
        ({"MLXCHECK_CACHE": "~/x"}, Path.home() / "x"),
        ({"MLXCHECK_CACHE": ""}, None),
        ({"MLXCHECK_CACHE": "", "XDG_CACHE_HOME": "/cache"}, None),
    ],
)
def test_the_folder(environment: dict[str, str], expected: Path | None) -> None:
    """What the environment names; nowhere where it names nothing."""
    assert noise_cache.folder(environment) == expected


def test_the_folder_is_the_platforms_own_where_none_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``~/Library/Caches`` on a Mac, and what XDG says elsewhere."""
    monkeypatch.setattr("mlxcheck.noise_cache.sys.platform", "darwin")
    assert noise_cache.folder({}) == Path.home() / "Library" / "Caches" / "mlxcheck"
    monkeypatch.setattr("mlxcheck.noise_cache.sys.platform", "linux")
    assert noise_cache.folder({}) == Path.home() / ".cache" / "mlxcheck"
    assert noise_cache.folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/mlxcheck")


def test_these_tests_leave_the_users_cache_alone() -> None:
    """All of them, and the processes that they start, have a folder of their own."""
    own = noise_cache.folder(os.environ)

    assert own is not None
    assert own != noise_cache.folder({})
    assert "pytest-" in str(own)


# --- Under what -------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Callable[..., str]:
    """Return a function that makes the key of a checkpoint on disk."""
    folder = tmp_path / "model"
    folder.mkdir()
    written(folder)

    def make(pairs: Any = PAIRS, **facts: object) -> str:
        return noise_cache.key(checkpoint.inspect(folder), pairs, {**FACTS, **facts})

    return make


def test_the_same_measurement_has_the_same_key(key: Callable[..., str]) -> None:
    """It is a digest that fits into a file's name."""
    assert key() == key()
    assert len(key()) == 64
    assert key().isalnum()


@pytest.mark.parametrize(
    "changed",
    [
        {"device": "gpu"},
        {"dtype": "bfloat16"},
        {"exact": False},
        {"chunk": 512},
        {"path": "copy"},
        {"pairs": PAIRS[:1]},
        {"pairs": PAIRS[::-1]},
        {"pairs": [(PAIRS[0][0], trace(5, 7, 2)), PAIRS[1]]},
        {"pairs": [(prompt("sum", length=4), PAIRS[0][1]), PAIRS[1]]},
        {"pairs": [(replace(PAIRS[0][0], id="other"), PAIRS[0][1]), PAIRS[1]]},
    ],
)
def test_every_fact_changes_the_key(key: Callable[..., str], changed: dict[str, Any]) -> None:
    """Device, pass, TF32, chunks; prompts, their ids, order and answers."""
    assert key(**changed) != key()


@pytest.mark.parametrize("package", ["mlxcheck", "mlx", "mlx-lm", "transformers"])
def test_every_version_changes_the_key(
    key: Callable[..., str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Another release may have other kernels."""
    before = key()
    version = metadata.version
    monkeypatch.setattr(
        "mlxcheck.noise_cache.metadata.version",
        lambda name: "99.9" if name == package else version(name),
    )

    assert key() != before


def test_every_change_of_the_files_changes_the_key(
    key: Callable[..., str], tmp_path: Path
) -> None:
    """Size, time, name and place of each; quantised anew, a model is another one."""
    folder = tmp_path / "model"
    seen = [key()]
    configure(folder, rope_theta=5.0)
    seen.append(key())
    later = (folder / "model.safetensors").stat().st_mtime_ns + 10**9
    os.utime(folder / "model.safetensors", ns=(later, later))
    seen.append(key())
    (folder / "adapter.json").write_text("{}", encoding="utf-8")
    seen.append(key())
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder, elsewhere)
    seen.append(noise_cache.key(checkpoint.inspect(elsewhere), PAIRS, FACTS))

    assert len(set(seen)) == len(seen)


# --- On disk ----------------------------------------------------------------------------------


def test_what_was_kept_comes_back_whole(tmp_path: Path) -> None:
    """Every digit, since a band is made of it; and nothing else is in the folder."""
    where = tmp_path / "not" / "there"

    noise_cache.save(where, "a", KEPT)

    assert noise_cache.load(where, "a") == KEPT
    assert noise_cache.load(where, "b") is None
    assert [file.name for file in where.iterdir()] == ["noise-a.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"{}",
        b"\xff\xfe",
        b'{"arms": 3, "probes": []}',
        b'{"arms": [], "probes": []}',
        b'{"arms": [{}], "probes": [], "dtype": "float32", "exact": true}',
        b'{"arms": [], "probes": [], "dtype": "float32", "exact": true, "more": 1}',
    ],
)
def test_a_file_that_is_no_noise_is_not_there(tmp_path: Path, content: bytes) -> None:
    """Cut short, of another release, of somebody else: it costs a measurement."""
    (tmp_path / "noise-a.json").write_bytes(content)

    assert noise_cache.load(tmp_path, "a") is None


def test_what_cannot_be_read_or_written_is_not_missed(tmp_path: Path) -> None:
    """A folder for a file, and a file for a folder."""
    (tmp_path / "noise-a.json").mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")

    assert noise_cache.load(tmp_path, "a") is None
    noise_cache.save(tmp_path, "a", KEPT)
    noise_cache.save(tmp_path / "file", "a", KEPT)
    noise_cache.save(tmp_path / "file" / "in it", "a", KEPT)

    assert noise_cache.load(tmp_path / "file", "a") is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "noise-a.json"]


def test_nowhere_is_nowhere() -> None:
    """Neither asked nor written to."""
    noise_cache.save(None, "a", KEPT)

    assert noise_cache.load(None, "a") is None


def test_the_oldest_files_go(tmp_path: Path) -> None:
    """So many stay, the new one among them; files of others are left alone."""
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    for number in range(noise_cache.KEPT + 3):
        file = tmp_path / f"noise-{number}.json"
        file.write_text("{}", encoding="utf-8")
        os.utime(file, (1000 + number, 1000 + number))

    noise_cache.save(tmp_path, "new", KEPT)

    left = {file.name for file in tmp_path.glob("noise-*.json")}
    assert len(left) == noise_cache.KEPT
    assert "noise-new.json" in left
    assert not left & {f"noise-{number}.json" for number in range(4)}
    assert (tmp_path / "other.json").exists()


# --- In a run ---------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a cache that nothing has been put into."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MLXCHECK_CACHE", str(folder))
    return folder


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets an entry a measurement: whether arms were scored."""
    calls: list[bool] = []
    noise = Reference.noise

    def noted(self: Reference, *args: Any, arms: bool = True, **options: Any) -> Noise:
        calls.append(arms)
        return noise(self, *args, arms=arms, **options)

    monkeypatch.setattr(Reference, "noise", noted)
    return calls


def run(model: str = "qwen3-float32", **policy: Any) -> Report:
    """Check mlx-lm with few prompts."""
    return mlxcheck.check(
        MODELS / model,
        "mlx-lm",
        prompts=[[5, 6, 7], [8, 9]],
        max_tokens=4,
        checks=["tokens"],
        policy=Policy(**policy),
    )


def test_the_second_run_measures_nothing_but_that_the_reference_repeats(
    cache: Path, measured: list[bool]
) -> None:
    """The noise is the same to the last digit; the control is never taken from a file."""
    (first,) = run().passes
    (second,) = run().passes

    assert measured == [True, False]
    assert len(list(cache.iterdir())) == 1
    assert first.noise is not None
    assert second.noise is not None
    assert second.noise.arms == first.noise.arms
    assert second.noise.probes == first.noise.probes
    assert second.noise.repeated > 0
    assert second.controls[0] == replace(first.controls[0], text=second.controls[0].text), (
        "the repeat was made again, and held"
    )


def test_a_reference_that_does_not_repeat_is_found_out_beside_a_kept_noise(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file says what rounding did once, and nothing of this process."""
    run()
    noise = Reference.noise

    def unsteady(self: Reference, *args: Any, **options: Any) -> Noise:
        return replace(noise(self, *args, **options), repeats=False)

    monkeypatch.setattr(Reference, "noise", unsteady)
    report = run()

    assert len(list(cache.iterdir())) == 1
    assert report.outcome == "inconclusive"
    assert "control failed: reference equals itself" in report.summary()


def test_float32_copies_share_what_was_measured_on_the_last_one(
    cache: Path, measured: list[bool]
) -> None:
    """A copy has another path and other times in every run; what counts is the original."""
    for _ in range(2):
        passes = run("qwen3-8bit").passes
        assert [each.dtype for each in passes] == ["float32", "bfloat16"]

    assert measured == [True, True, False, False]
    assert len(list(cache.iterdir())) == 2


def test_another_chunk_is_another_measurement(cache: Path, measured: list[bool]) -> None:
    """The reference itself is decoded in another shape then."""
    run()
    run(prefill_chunk=2)

    assert measured == [True, True]
    assert len(list(cache.iterdir())) == 2


def test_strict_mode_neither_asks_nor_writes(cache: Path, measured: list[bool]) -> None:
    """It has no use for a noise."""
    run(mode="strict")

    assert measured == [False]
    assert not cache.exists()


def test_an_empty_name_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[bool]
) -> None:
    """Nor does it read: each run measures, and the home stays as it is."""
    monkeypatch.setenv("MLXCHECK_CACHE", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    run()
    run()

    assert measured == [True, True]
    assert not list(tmp_path.iterdir())


def test_a_corrupt_file_costs_a_measurement_and_is_replaced(
    cache: Path, measured: list[bool]
) -> None:
    """And the run is what it would have been."""
    (first,) = run().passes
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])

    report = run()

    assert report.outcome == "pass"
    assert measured == [True, True]
    assert noise_cache.load(cache, file.stem.removeprefix("noise-")) is not None
    assert first.noise is not None


def test_a_cache_that_cannot_be_written_costs_nothing(
    cache: Path, measured: list[bool]
) -> None:
    """No word of it, and the outcome is the same."""
    cache.write_text("a file", encoding="utf-8")

    assert run().outcome == "pass"
    assert run().outcome == "pass"
    assert measured == [True, True]
    assert cache.read_text(encoding="utf-8") == "a file"
