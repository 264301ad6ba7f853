"""Modes and precision passes, end to end: what is asked, what is not, and why."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mlxcheck
from fixtures.random_models import RandomModel, build
from mlxcheck import Policy, reference
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.records import ALL_PROMPTS, ModelRef, Verdict
from tests import engines

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcheck.records import Precision
    from mlxcheck.report import Report

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
FLOAT32, QUANTISED = MODELS / "qwen3-float32", MODELS / "qwen3-8bit"
PROMPTS = ["What is 2+2?", [9, 8, 7, 6]]

NATIVE: tuple[Precision, ...] = ("native",)
MICROSCOPE: tuple[Precision, ...] = ("float32",)

NOT_OF_MLX_LM = {"prefix", "long", "speculative", "soak"}
"""Checks that are not asked of mlx-lm's batched engine with short prompts and little effort."""

CAST = "a function holds its own engine"


def run(model: Path, backend: object, policy: Policy | None = None, **more: Any) -> Report:
    """Check an engine with few prompts."""
    options = {"prompts": PROMPTS, "max_tokens": 6, "effort": "quick", **more}
    return mlxcheck.check(model, backend, policy=policy, **options)


def served(model: Path) -> Callable[[list[list[int]], int], list[list[int]]]:
    """Return a function over mlx-lm's own loop, which loads its model when it is called."""
    loaded: list[Any] = []

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        import mlx.core as mx
        from mlx_lm.generate import generate_step

        if not loaded:
            loaded.append(reference.load_model(str(model)))
        return [
            [int(t) for t, _ in generate_step(mx.array(p), loaded[0], max_tokens=max_tokens)]
            for p in prompts
        ]

    return generate


def copies() -> list[Path]:
    """Return the float32 copies that this process has made and not removed."""
    return list(Path(tempfile.gettempdir()).glob(f"mlxcheck-float32-{os.getpid()}-*"))


# --- Strict mode ------------------------------------------------------------------------------


def test_strict_mode_asks_for_tokens_and_not_for_numbers() -> None:
    """There is no noise that they could be held against, and the reason is told."""
    report = run(FLOAT32, "mlx-lm", Policy(mode="strict"))

    assert report.outcome == "pass", report.explain()
    reasons = dict(report.not_asked)
    assert "no noise that numbers could be held against" in reasons["logits"]
    assert reasons["chunks"].startswith("strict mode wants equal prefill chunks: this check")
    assert reasons["prefix"].startswith("strict mode wants equal prefill chunks: after a")
    assert {each.check for each in report.comparisons} == {
        "prompts",
        "tokens",
        "stop",
        "batch",
        "schedule",
    }
    assert set(report.counts) == {Verdict.EXACT}
    assert all(each.noise is None for each in report.comparisons)
    (one,) = report.passes
    assert (one.noise, one.band, one.tests) == (None, None, ())
    assert all(control.passed for control in one.controls), "the repeat is made all the same"


def test_strict_mode_has_no_ties(tmp_path: Path) -> None:
    """What is a tie otherwise is WRONG, and what repeats it is strict too."""
    model = unsure(tmp_path)

    class Shaken(MlxLmBackend):
        """Has a head that is a little off."""

        def load(self, model: ModelRef) -> Any:
            import mlx.core as mx

            loaded = super().load(model)
            weight = loaded.lm_head.weight
            noise = 0.04 * mx.random.normal(weight.shape, key=mx.random.key(3))
            loaded.lm_head.weight = weight + noise.astype(weight.dtype)
            return loaded

    given = [[5, 6, 7], [8, 9], [10, 11, 12, 13], [14]]
    more: dict[str, Any] = {"prompts": given, "checks": ["tokens"], "max_tokens": 12}
    strict = run(model, Shaken, Policy(mode="strict", precision=NATIVE), **more)
    calibrated = run(model, Shaken, Policy(precision=NATIVE), **more)

    assert Verdict.WRONG in strict.counts
    assert Verdict.WRONG not in calibrated.counts
    assert calibrated.counts[Verdict.TIE], calibrated.explain()
    assert "mode='strict'" in strict.failures[0].message


@pytest.mark.parametrize(
    ("chunk", "prompt", "asked"),
    [(4, 9, False), (8, 9, True), (4, 4, True), (16, 9, False), (16, 8, True)],
)
def test_strict_mode_wants_equal_prefill_chunks(chunk: int, prompt: int, asked: bool) -> None:  # noqa: FBT001 - a row of the table
    """Another chunk is another shape, unless no prompt is longer than either."""
    policy = Policy(mode="strict", prefill_chunk=8)
    given = [[5, 6, 7], list(range(10, 10 + prompt))]

    report = run(FLOAT32, lambda: MlxLmBackend(prefill_step_size=chunk), policy, prompts=given)

    reasons = dict(report.not_asked)
    assert ("tokens" not in reasons) == asked
    assert report.outcome == ("pass" if asked else "inconclusive"), report.explain()
    if not asked:
        assert reasons["batch"] == reasons["tokens"]
        assert f"the backend's are of {chunk} tokens, the reference's of 8" in reasons["batch"]
        assert f"Policy(prefill_chunk={chunk})" in reasons["batch"]


def test_chats_that_are_encoded_alike_are_no_pass_where_no_token_was_compared() -> None:
    """The `prompts` check agrees, and nothing came of the tokens that were to be compared."""
    policy = Policy(mode="strict", prefill_chunk=8)

    report = run(FLOAT32, lambda: MlxLmBackend(prefill_step_size=4), policy)

    assert {each.check for each in report.comparisons} == {"prompts"}
    assert set(report.counts) == {Verdict.EXACT}
    assert report.outcome == "inconclusive"


# --- Precision passes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "dtypes"),
    [
        (("float32", "native"), ("float32", "bfloat16")),
        (("native", "float32"), ("bfloat16", "float32")),
        ("float32", ("float32",)),
        (("native",), ("bfloat16",)),
    ],
)
def test_passes_of_a_16_bit_model(precision: Any, dtypes: tuple[str, ...]) -> None:
    """Each in the order of the policy, with comparisons, controls and noise of its own."""
    policy = Policy(precision=precision)

    report = run(QUANTISED, "mlx-lm", policy)

    assert report.outcome == "pass", report.explain()
    assert [each.precision for each in report.passes] == list(policy.precision)
    assert tuple(each.dtype for each in report.passes) == dtypes
    for each in report.passes:
        assert each.ran
        assert each.exact == (each.precision == "float32")
        assert each.noise is not None
        assert each.noise.dtype == each.dtype
        assert all(control.passed for control in each.controls)
        checks = {c.check for c in report.comparisons if c.precision == each.precision}
        usual = {"prompts", "tokens", "stop", "batch", "logits", "schedule", "chunks"}
        assert checks == usual
    assert copies() == []


def test_the_candidate_gets_the_copy_in_the_float32_pass() -> None:
    """And the checkpoint itself in the native one; the copy is gone when the run is over."""
    opened: list[tuple[str, bool, str]] = []

    class Noting(MlxLmBackend):
        def open(self, model: ModelRef) -> None:
            super().open(model)
            kind = str(self._model.model.norm.weight.dtype).removeprefix("mlx.core.")
            opened.append((model.source, Path(model.path) == QUANTISED, kind))

    report = run(QUANTISED, Noting, checks=["tokens"])

    assert report.outcome == "pass", report.explain()
    source = str(QUANTISED)
    assert opened == [(source, False, "float32"), (source, True, "bfloat16")]
    assert copies() == []


def test_the_copy_goes_when_a_candidate_fails_too() -> None:
    """An exception out of the run is no reason to leave gigabytes behind."""
    with pytest.raises(mlxcheck.MlxCheckError, match="fast-engine is not installed"):
        run(QUANTISED, engines.NotInstalled)

    assert copies() == []


def test_a_float32_model_has_one_pass() -> None:
    """Its native pass would be the same, so it is made once, and called float32."""
    report = run(FLOAT32, "mlx-lm", checks=["tokens"])

    (one,) = report.passes
    assert (one.precision, one.dtype, one.exact) == ("float32", "float32", True)
    assert {each.precision for each in report.comparisons} == {"float32"}
    (native,) = run(FLOAT32, "mlx-lm", Policy(precision=NATIVE), checks=["tokens"]).passes
    assert (native.precision, native.dtype) == ("native", "float32")


def test_a_function_is_judged_by_the_native_pass_alone() -> None:
    """No copy can be given to what loads its own model: so it is told, and none is made."""
    report = run(QUANTISED, served(QUANTISED))

    assert report.outcome == "pass", report.explain()
    assert {each.precision for each in report.comparisons} == {"native"}
    ran = {each.precision: each.ran for each in report.passes}
    assert ran == {"float32": False, "native": True}
    assert f"float32 pass not run: {CAST}" in report.summary()


def test_a_function_that_is_asked_for_float32_alone_is_not_compared() -> None:
    """Nothing compared is never a pass."""
    report = run(QUANTISED, served(QUANTISED), Policy(precision=MICROSCOPE))

    assert (report.outcome, report.comparisons) == ("inconclusive", ())
    (one,) = report.passes
    assert (one.precision, one.ran) == ("float32", False)
    assert "float32 pass not run: " in report.summary()
    assert run(FLOAT32, served(FLOAT32), Policy(precision=MICROSCOPE)).outcome == "pass"


class HoldsItsOwn(MlxLmBackend):
    """A backend that says of itself that no copy can be given to it."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, casts=False)

    def open(self, model: ModelRef) -> None:
        super().open(replace(model, path=str(QUANTISED)))


@pytest.mark.parametrize("cases", [None, ["alone/p1"]])
def test_a_backend_that_loads_what_it_likes_is_judged_by_the_native_pass_alone(
    cases: list[str] | None,
) -> None:
    """That is known once it is open only; a case that is named is one of the other pass."""
    report = run(QUANTISED, HoldsItsOwn, cases=cases)

    assert report.outcome == "pass", report.explain()
    assert {(each.precision, each.ran) for each in report.passes} == {
        ("float32", False),
        ("native", True),
    }
    assert {each.precision for each in report.comparisons} == {"native"}
    assert {check for check, _ in report.not_asked} <= NOT_OF_MLX_LM
    assert "float32 pass not run: the backend holds its own engine" in report.summary()
    only = run(QUANTISED, HoldsItsOwn, Policy(precision=MICROSCOPE), cases=cases)
    assert (only.outcome, only.comparisons) == ("inconclusive", ())


# --- Models that are never sure ---------------------------------------------------------------


def unsure(folder: Path) -> Path:
    """Build a random bfloat16 model that is never sure: its logits lie about -100.

    A unit in the last place is half a nat there, and so is the margin of its best two tokens.
    """
    spec = RandomModel(family="qwen3", dtype="bfloat16", below_zero=100.0)
    return build(spec, folder / "unsure")


def test_tokens_alone_cannot_judge_a_model_that_is_never_sure(tmp_path: Path) -> None:
    """A fault's flips would look like rounding's: no verdict, and what to do instead."""
    model = unsure(tmp_path)
    more: dict[str, Any] = {"prompts": [[5, 6, 7], [8, 9, 10, 11]], "max_tokens": 12}

    alone = run(model, served(model), Policy(precision=NATIVE), **more)

    assert alone.outcome == "inconclusive", alone.explain()
    found = [each for each in alone.comparisons if each.prompt_id == ALL_PROMPTS]
    assert {each.verdict for each in found} == {Verdict.INCONCLUSIVE}
    message = found[0].message
    assert "no verdict: tokens alone cannot tell here" in message
    assert 'Use the float32 pass (Policy(precision=("float32", "native")))' in message
    assert "a trained model, or an engine that shows logits" in message

    shown = run(model, "mlx-lm", Policy(precision=NATIVE), **more)
    assert shown.outcome == "pass", shown.explain()
