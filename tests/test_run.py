"""The story in order: one load, freed before the candidate; what is asked and what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mlxcheck
from mlxcheck import memory, reference
from mlxcheck.backends.base import Capabilities, Emission
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.errors import MemoryNotReleased, PromptError, UsageError
from mlxcheck.records import ModelRef, Prompt, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
MODEL = MODELS / "qwen3-float32"
WEIGHTS = (MODEL / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    "name", ["qwen2_moe-float32", "qwen3_moe-float32", "qwen3-float32", "qwen3_moe-8bit"]
)
def test_mlx_lm_says_what_mlx_lm_says(name: str) -> None:
    """The batched engine passes, with hundreds of steps compared."""
    report = mlxcheck.check(MODELS / name, "mlx-lm", effort="quick", max_tokens=24)

    assert report.outcome == "pass", report.explain()
    assert report.steps > 500
    everything = {"prompts", "chunks", "tokens", "stop", "batch", "logits", "schedule"}
    passes = {"float32"} if name.endswith("float32") else {"float32", "native"}
    assert {(found.precision, found.check) for found in report.comparisons} == {
        (precision, check) for precision in passes for check in everything
    }
    assert set(report.counts) <= {Verdict.EXACT, Verdict.TIE}


def test_one_load_each_and_never_two_copies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is loaded once and gone before the candidate loads, once."""
    active: list[int] = []
    load = reference.load_model

    def counted(path: str, *, trust_remote_code: bool = False) -> object:
        active.append(memory.usage().active)
        return load(path, trust_remote_code=trust_remote_code)

    monkeypatch.setattr(reference, "load_model", counted)
    report = mlxcheck.check(MODEL, "mlx-lm", effort="quick", max_tokens=8)

    assert report.outcome == "pass"
    assert len(active) == 2
    assert active[1] < active[0] + WEIGHTS // 20


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def heavy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dense fixture with so many wide layers that its weights outweigh every cache."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import qwen3

    folder = tmp_path_factory.mktemp(f"heavy-{request.param}")
    for file in MODEL.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"intermediate_size": 16384, "num_hidden_layers": 12}
    config["torch_dtype"] = request.param
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(7)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    model.set_dtype(getattr(mx, request.param))
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        dict(tree_flatten(model.parameters())),
        metadata={"format": "mlx"},
    )
    del model
    mx.clear_cache()
    return folder


def test_peak_is_one_copy_of_the_weights_and_its_cache(heavy: Path) -> None:
    """MLX's peak is one copy in every phase, and the process never holds a second one.

    The float32 pass over 16-bit weights holds one copy of its own weights, which are twice
    as large, and nothing of the other pass. While its noise is measured, the native pass
    holds one copy too, which is cast in place.
    """
    weights = (heavy / "model.safetensors").stat().st_size
    before = memory.usage().rss
    prompts = [Prompt(id="p", tokens=(5, 6, 7, 8, 9))]
    cases = ["alone/p", "batch-5/same-p", "forced-alone/p", "forced-batch-1/p"]

    report = mlxcheck.check(heavy, "mlx-lm", prompts=prompts, cases=cases, max_tokens=3)

    assert report.outcome == "pass", report.explain()
    sizes = {"float32": weights}
    if heavy.name.startswith("heavy-bfloat16"):
        sizes = {"float32": 2 * weights, "native": weights}
    assert [each.precision for each in report.passes] == list(sizes)
    names = ["load", "reference", "noise", "release", "open", "candidate"]
    assert [phase.name for phase in report.phases] == names * len(sizes)
    largest = max(sizes.values())
    for number, copy in enumerate(sizes.values()):
        phases = report.phases[number * len(names) : (number + 1) * len(names)]
        peaks = {phase.name: phase.peak for phase in phases}
        assert peaks.pop("noise") < largest * 1.25
        assert copy * 0.99 < max(peaks.values()) < copy * 1.25
        assert peaks["release"] < copy * 0.05
    highest = max(phase.rss for phase in report.phases)
    assert highest > largest * 0.5  # what an earlier test has freed may be taken again
    grown = highest - before
    assert grown < largest * 1.75, f"{grown / largest:.2f} copies"


def test_a_leaked_reference_ends_the_run_and_names_the_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever keeps the model is told by name, and no candidate is opened beside it."""
    load = reference.load_model

    def leak(path: str, *, trust_remote_code: bool = False) -> object:
        KEPT.append(load(path, trust_remote_code=trust_remote_code))
        return KEPT[-1]

    monkeypatch.setattr(reference, "load_model", leak)
    opened: list[str] = []

    class Candidate(MlxLmBackend):
        def open(self, model: ModelRef) -> None:
            opened.append(model.name)

    try:
        with pytest.raises(MemoryNotReleased, match="KEPT"):
            mlxcheck.check(MODEL, Candidate, prompts=[[5, 6, 7]], max_tokens=2)
    finally:
        KEPT.clear()
    assert opened == []


KEPT: list[object] = []


def test_a_function_is_an_engine() -> None:
    """A plain function over mlx-lm's own loop passes what it can be asked."""
    from mlx_lm.generate import BatchGenerator

    model: list[object] = []

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        if not model:
            model.append(reference.load_model(str(MODEL)))
        generator = BatchGenerator(model[0])
        uids = generator.insert(prompts, max_tokens=[max_tokens] * len(prompts))
        answers: dict[int, list[int]] = {uid: [] for uid in uids}
        while any(len(answer) < max_tokens for answer in answers.values()):
            for response in generator.next()[1]:
                answers[response.uid].append(response.token)
        generator.close()
        return list(answers.values())

    report = mlxcheck.check(MODEL, generate, effort="quick", max_tokens=12)

    assert report.outcome == "pass", report.explain()
    assert dict(report.not_asked)["stop"] == "the backend leaves stopping to its caller"


def test_one_swapped_token_is_one_wrong_row() -> None:
    """An engine that is wrong at one step of one prompt is told so, there and only there."""

    class Swap(MlxLmBackend):
        def step(self) -> Sequence[Emission]:
            return [self.swapped(emission) for emission in super().step()]

        def swapped(self, emission: Emission) -> Emission:
            self.count = getattr(self, "count", 0) + 1
            if self.count != 3:
                return emission
            return Emission(request_id=emission.request_id, token=1, finish=emission.finish)

    with pytest.raises(mlxcheck.ReferenceMismatch, match=r"token 3 of \d+ differs") as caught:
        mlxcheck.assert_reference_equal(MODEL, Swap, checks=["tokens"])
    (found,) = caught.value.report.failures
    assert (found.step, found.actual, found.steps) == (2, 1, 2)
    assert found.margin is not None
    assert "again: mlxcheck" in found.message


def test_a_case_can_be_repeated_by_its_id() -> None:
    """Only the named case is driven, and a name that is none is refused."""
    report = mlxcheck.check(
        MODEL, "mlx-lm", checks=["batch"], cases=["batch-8/0"], max_tokens=4
    )

    assert {found.case for found in report.comparisons} == {"batch-8/0"}
    assert len(report.comparisons) == 8
    with pytest.raises(UsageError, match="no case batch-9/0"):
        mlxcheck.check(MODEL, "mlx-lm", checks=["batch"], cases=["batch-9/0"], max_tokens=4)


def test_an_engine_without_batches_is_not_asked_for_them() -> None:
    """What is not asked is named with its reason, and is no failure."""

    class Lone(MlxLmBackend):
        def __init__(self) -> None:
            super().__init__()
            self.capabilities = Capabilities(batch=False)

    report = mlxcheck.check(MODEL, Lone, prompts=["What is 2+2?"], max_tokens=8)

    assert report.outcome == "pass"
    told = dict(report.not_asked)
    assert told["prompts"] == "the backend takes token ids only"
    assert told["batch"] == told["schedule"] == "the backend takes one request at a time"
    assert told["logits"] == "the backend shows neither logits nor log-probabilities"
    assert told["prefix"] == "the backend reuses no KV cache of earlier requests"
    assert told["speculative"] == "the backend drafts no tokens"


def test_asking_only_what_cannot_be_asked_is_no_pass() -> None:
    """Nothing compared is inconclusive."""

    class Lone(MlxLmBackend):
        def __init__(self) -> None:
            super().__init__()
            self.capabilities = Capabilities(batch=False)

    report = mlxcheck.check(MODEL, Lone, checks=["batch"], prompts=["Hi"], max_tokens=2)

    assert (report.outcome, report.comparisons) == ("inconclusive", ())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompts": [[]]}, "is empty"),
        ({"prompts": [[9999]]}, "token id 9999 at position 0"),
        ({"prompts": [[5] * 4000]}, "positions"),
        ({"prompts": []}, "no prompt at all"),
    ],
)
def test_prompts_that_cannot_be_asked_are_refused(
    options: dict[str, list[object]], words: str
) -> None:
    """Each is told before the model is loaded."""
    with pytest.raises(PromptError, match=words):
        mlxcheck.check(MODEL, "mlx-lm", prompts=options["prompts"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"effort": "huge"}, "effort='huge'"),
        ({"checks": ["token"]}, "Did you mean tokens"),
        ({"checks": []}, "no check at all"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    options: dict[str, object], words: str
) -> None:
    """Each names the value and what is expected."""
    with pytest.raises(UsageError, match=words):
        mlxcheck.check(MODEL, "mlx-lm", **options)  # type: ignore[arg-type]
