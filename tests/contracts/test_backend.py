"""`check_backend`: adapters that keep the protocol pass, and each rule is seen to fail."""

from __future__ import annotations

import functools
import gc
import json
import re
import time
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

import mlxcheck
from fixtures.paged import PagedBackend
from mlxcheck import checkpoint, reference
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.backends.mlx_lm_speculative import SpeculativeBackend
from mlxcheck.contracts import ConformanceReport, ContractBroken, check_backend
from mlxcheck.contracts.backend import RULES, conformance
from mlxcheck.errors import BackendError, CannotAsk, ModelError, NotEnoughMemory, UsageError
from tests import engines
from tests.contracts import broken_calls, broken_words
from tests.contracts.adapters import Changes, Refuses, Sound, TextAlone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlxcheck.backends.base import Emission, Request
    from mlxcheck.records import ModelRef

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "fixtures" / "models" / "qwen3-float32"
SOON_S = 0.6
BROKEN = broken_calls.BROKEN | broken_words.BROKEN
PAIRS = [(name, adapter) for name, those in BROKEN.items() for adapter in those]


SILENT = {
    broken_calls.CancelsAll,
    broken_calls.ForgetsTheFormer,
    broken_calls.Hangs,
    broken_calls.HangsInOpen,
    broken_calls.Silent,
    engines.Sleeps,
}
"""Those that are waited for. The others are not, however busy the machine is."""


def broken(adapter: type) -> list[str]:
    """Return the names of the rules that an adapter breaks."""
    report = conformance(adapter, MODEL, limit_s=SOON_S if adapter in SILENT else 60.0)
    return [each.rule for each in report.broken]


def not_asked(report: ConformanceReport) -> dict[str, str]:
    """Return the rules that were not asked, with their reasons."""
    return {each.rule: each.reason for each in report.not_asked}


@pytest.fixture(autouse=True, scope="module")
def _quickly() -> Iterator[None]:
    """Read the tokenizer once, and keep what is there already out of each collection.

    Both take longer than most of these adapters.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "tokenizer_of", functools.cache(reference.tokenizer_of))
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


# --- Adapters that keep the rules -----------------------------------------------------------

UNASKED: dict[type, set[str]] = {
    MlxLmBackend: {"reuses-prefixes"},
    PagedBackend: {"encodes-to-ids", "tells-its-stop-ids"},
    SpeculativeBackend: {
        "answers-several-at-once",
        "cancels-in-prefill",
        "encodes-to-ids",
        "goes-on-from-what-is-forced",
        "is-as-wide-as-max-batch",
        "lets-requests-join",
        "queues-what-does-not-fit",
        "reads-in-chunks",
        "reports-what-its-logits-say",
        "reuses-prefixes",
        "shows-log-probabilities",
        "shows-the-logits-of-its-token",
        "shows-whole-logits",
        "tells-its-stop-ids",
    },
}


@pytest.mark.parametrize("adapter", UNASKED, ids=lambda adapter: adapter.name)
def test_a_shipped_adapter_keeps_every_rule(adapter: type) -> None:
    """Nothing is left out but what its capabilities leave out."""
    report = check_backend(adapter, MODEL)

    assert set(not_asked(report)) == UNASKED[adapter]
    assert set(report.kept) == set(RULES) - UNASKED[adapter]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_factory_may_be_a_function(rows: int) -> None:
    """Such as one that makes an adapter with options: here with a narrow batch."""
    report = check_backend(lambda: PagedBackend(max_batch=rows, prefix_cache=False), MODEL)

    narrow = {"answers-several-at-once", "lets-requests-join", "queues-what-does-not-fit"}
    assert narrow & set(not_asked(report)) == (narrow if rows == 1 else set())


def test_a_factory_may_be_a_name() -> None:
    """A registered one, as on the command line."""
    assert check_backend("mlx-lm", MODEL).backend == "mlx-lm"


def test_an_adapter_can_be_held_to_every_rule() -> None:
    """No rule is out of reach."""
    report = check_backend(Sound, MODEL)

    assert report.kept == tuple(RULES)
    assert report.summary() == (
        f"sound on qwen3-float32: {len(RULES)} rules kept, 0 broken, 0 not asked\n"
        "pass: the adapter keeps every rule that it was held to"
    )


def test_an_adapter_that_shows_text_is_asked_for_text() -> None:
    """What is about ids is left out, with the reason."""
    reasons = not_asked(check_backend(TextAlone, MODEL))

    assert reasons["tokens-are-ids"] == "capabilities.ids is False"
    assert "shows-ids-or-text" not in reasons


# --- Adapters that break one ----------------------------------------------------------------


def test_each_rule_has_an_adapter_that_breaks_it() -> None:
    """A rule that was not seen to fail is none."""
    assert set(BROKEN) == set(RULES)


@pytest.mark.parametrize(("rule", "adapter"), PAIRS, ids=[pair[1].__name__ for pair in PAIRS])
def test_a_broken_rule_is_named(
    rule: str, adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own name, and no other rule is."""
    monkeypatch.setattr(broken_calls.OpensOnce, "opened", False)
    monkeypatch.setattr(broken_calls.KeepsItsWeights, "kept", [])

    assert broken(adapter) == [rule]


@pytest.mark.parametrize(
    ("adapter", "rule"),
    [
        (engines.Misreports, "reports-what-its-logits-say"),
        (engines.IgnoresForcing, "goes-on-from-what-is-forced"),
        (engines.ClosesBadly, "closes"),
        (engines.OpenRaises, "opens"),
        (engines.Sleeps, "answers"),
    ],
)
def test_a_broken_rule_is_named_on_a_real_engine(adapter: type, rule: str) -> None:
    """Faults planted in mlx-lm's adapter, and engines that hang or do not open."""
    assert rule in broken(adapter)


def test_stop_ids_are_those_of_the_request() -> None:
    """An engine that looks for its own alone is found, whatever these are."""

    class KnowsBetter(Sound):
        def submit(self, request: Request) -> None:
            assert self.model is not None
            super().submit(replace(request, stop_ids=self.model.stop_ids))

    assert broken(KnowsBetter) == ["stops-at-its-first-token", "stops-at-a-later-token"]


def test_every_broken_rule_is_in_the_message() -> None:
    """Not the first alone."""

    class Three(broken_words.StopsAtNames, broken_words.CountsAnew):
        def submit(self, request: Request) -> None:
            assert len(request.tokens) > 1, "too short for a window of two"
            super().submit(request)

    with pytest.raises(ContractBroken) as error:
        check_backend(Three, MODEL)

    names = ["answers-a-prompt-of-one-token", "tells-its-stop-ids", "totals-never-fall"]
    assert broken(Three) == names
    assert all(re.search(rf"^{name}  ", str(error.value), re.MULTILINE) for name in names)
    assert str(error.value).endswith(f"fail: {', '.join(names)}")


def test_a_message_names_rule_call_expected_actual_and_what_to_do() -> None:
    """The whole of one."""
    (found,) = conformance(broken_words.EndsEarly, MODEL).broken

    assert found.message == (
        "is-as-long-as-max-tokens  "
        'A finish is "length" at max_tokens tokens, and neither before nor after\n'
        "  call      step(), emission 5 of request 'c0' (prompt of 12 tokens, max_tokens=6)\n"
        "  expected  finish='length' on token 6\n"
        "  actual    finish='length' on token 5\n"
        "  count the tokens that were given; those of the prompt do not count\n"
        f"  the same {found.times - 1} times more"
    )


def test_an_exception_is_told_in_the_adapters_words() -> None:
    """With the place where it was raised, and without a traceback."""
    (found,) = conformance(broken_calls.DoesNotOpen, MODEL).broken

    assert found.call == "open(model)"
    assert found.actual == "RuntimeError: no kernel for qwen3"
    assert re.match(r"it was raised at .*broken_calls\.py:\d+; ", found.advice)
    assert "Traceback" not in found.message


def test_a_hang_is_interrupted_and_the_rest_is_not_asked() -> None:
    """An adapter that hangs twice is given up; the place of the hang is told."""

    class HangsLater(Sound):
        def submit(self, request: Request) -> None:
            super().submit(request)
            if len(request.tokens) == 1 or request.max_tokens == 1:
                time.sleep(60)

    start = time.monotonic()
    report = conformance(HangsLater, MODEL, limit_s=SOON_S)

    assert time.monotonic() - start < 20
    assert [each.rule for each in report.broken] == [
        "answers-a-prompt-of-one-token",
        "gives-one-token",
    ]
    assert 'test_backend.py", line' in report.broken[0].actual
    assert not_asked(report)["takes-any-id"].startswith("the adapter was given up: it hung in ")


# --- What is not the adapter's to answer for ------------------------------------------------


def test_what_an_adapter_cannot_ask_is_not_held_against_it() -> None:
    """It says so with `CannotAsk`, in `submit` or in `step`."""

    class TakesText(Sound):
        def submit(self, request: Request) -> None:
            if len(request.tokens) == 1:
                raise CannotAsk(request.id, "no text has these ids")
            super().submit(request)

    report = check_backend(TakesText, MODEL)

    why = "the adapter says: no text has these ids"
    assert not_asked(report) == {"answers-a-prompt-of-one-token": why}


def test_an_adapter_that_can_be_asked_nothing_does_not_pass() -> None:
    """Nothing that was looked at is no pass."""

    class TakesNothing(Sound):
        def submit(self, request: Request) -> None:
            raise CannotAsk(request.id, "not today")

    with pytest.raises(ContractBroken, match="inconclusive: the adapter gave no answer"):
        check_backend(TakesNothing, MODEL)


class NotInstalledEither(Sound):
    """Says so before it is opened."""

    def __init__(self) -> None:
        msg = "fast-engine is not installed; pip install fast-engine"
        raise BackendError(msg)


@pytest.mark.parametrize("adapter", [engines.NotInstalled, NotInstalledEither])
def test_an_engine_that_is_not_installed_is_said_to_be_so(adapter: type) -> None:
    """The adapter's own error comes through, so that a test can skip on it."""
    with pytest.raises(BackendError, match="fast-engine is not installed"):
        check_backend(adapter, MODEL)


def test_an_engine_elsewhere_is_not_asked_for_its_memory() -> None:
    """MLX held nothing for it."""

    class Elsewhere(Sound):
        def open(self, model: ModelRef) -> None:
            self.model = model

    reasons = not_asked(check_backend(Elsewhere, MODEL))

    why = "MLX held no more while it was open: its engine is not in this process"
    assert reasons == {"frees-its-memory": why}


def test_half_precision_may_round() -> None:
    """Log-probabilities are held to the dtype of the logits."""

    class Half(Changes):
        def changed(self, said: Emission) -> Sequence[Any]:
            logits = said.logits.astype(mx.bfloat16)
            told = (logits - mx.logsumexp(logits))[said.token]
            return [replace(said, logits=logits, logprobs={said.token: float(told.item())})]

    check_backend(Half, MODEL)


# --- The call itself ------------------------------------------------------------------------


def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Answer nothing: it is not called."""
    raise AssertionError(prompts, max_tokens)


@pytest.mark.parametrize(
    ("factory", "match"),
    [
        (generate, r"a function of prompts and max_tokens has no protocol"),
        (Sound(), r"expected a Backend class, a function that makes one"),
        (7, r"check_backend\(7\): expected a Backend class"),
        ("mlx-ln", r"there is no backend 'mlx-ln'. Did you mean mlx-lm"),
    ],
    ids=["function", "ready", "number", "name"],
)
def test_what_is_no_factory_is_refused(factory: object, match: str) -> None:
    """Before anything is loaded, with what to give instead."""
    with pytest.raises(UsageError, match=match):
        check_backend(factory, MODEL)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_that_cannot_be_meant_is_refused(seconds: float) -> None:
    """The value is shown."""
    with pytest.raises(UsageError, match=rf"limit_s={seconds!r}\): expected 0 < seconds"):
        check_backend(Sound, MODEL, limit_s=seconds)


def test_a_model_that_is_not_there_is_told_as_everywhere(tmp_path: Path) -> None:
    """And so is one that would not fit."""
    with pytest.raises(ModelError, match="no such folder"):
        check_backend(Sound, tmp_path / "nowhere")


def test_a_model_that_does_not_fit_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's reason is the text."""
    monkeypatch.setenv("MLXCHECK_MIN_FREE_GB", "1000000")
    with pytest.raises(NotEnoughMemory, match="MLXCHECK_MIN_FREE_GB"):
        check_backend(broken_calls.DoesNotOpen, MODEL)


def test_a_model_may_be_given_as_the_record() -> None:
    """Such as with other stop ids than the tokenizer's."""
    model = replace(checkpoint.inspect(MODEL).model, stop_ids=(5,))

    class Asks(Sound):
        def submit(self, request: Request) -> None:
            assert request.stop_ids == (5,) or len(request.stop_ids) == 1
            super().submit(request)

    assert check_backend(Asks, model).outcome == "pass"


def test_ctrl_c_closes_the_engine() -> None:
    """It is passed on, and nothing stays open."""
    closed = []

    class Interrupted(Refuses):
        def bad(self, request: Request) -> bool:
            del request
            if self.known:
                raise KeyboardInterrupt
            return False

        def close(self) -> None:
            closed.append(len(self.known))
            super().close()

    with pytest.raises(KeyboardInterrupt):
        check_backend(Interrupted, MODEL)

    assert closed[-1] == 1


def test_a_report_is_plain_and_frozen() -> None:
    """It can be written to disk, and not be changed."""
    report = conformance(broken_words.StopsAtNames, MODEL)

    told = json.loads(json.dumps(report.to_dict()))
    assert told["outcome"] == "fail"
    assert told["broken"][0]["rule"] == "tells-its-stop-ids"
    with pytest.raises(FrozenInstanceError):
        report.kept = ()  # type: ignore[misc]


def test_every_rule_is_one_short_sentence() -> None:
    """They are read in a terminal."""
    assert all(sentence and len(sentence) <= 90 for sentence in RULES.values())
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in RULES)


def test_it_is_reached_from_the_top() -> None:
    """Under both names that the documents use."""
    assert mlxcheck.check_backend is check_backend
    assert mlxcheck.ConformanceReport is ConformanceReport


def test_the_documents_list_every_rule_and_their_example_runs() -> None:
    """`docs/backends.md` is held to the code."""
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    section = page.partition("## Test an adapter")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    names: dict[str, Any] = {"MyBackend": Sound}
    code = code.replace("from my_package.engine import MyBackend\n", "")

    exec(code.replace("path/to/model", str(MODEL)), names)  # noqa: S102 - the page's own code

    names["test_my_adapter"]()
    told = dict(re.findall(r"^\| `([a-z-]+)` \| (.*?) \|", section, flags=re.MULTILINE))
    assert told == {name: sentence.replace("|", r"\|") for name, sentence in RULES.items()}
