"""The prompts check: an engine that is given other ids than mlx-lm is told so, and why."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fixtures.faults.prompts import (
    FAULTS,
    BosTwice,
    CutOnTheLeft,
    DictKeys,
    OtherThinkingDefault,
    StopSetOfOne,
)
from mlxcheck import checkpoint, reference
from mlxcheck.backends.base import Capabilities
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.checks.base import Check, Inspects
from mlxcheck.checks.prompts import Prompts
from mlxcheck.checks.tokens import Tokens
from mlxcheck.errors import PromptError
from mlxcheck.prompts import Question, default_ids, encode, packaged
from mlxcheck.records import Verdict
from tests.support.driven import Engine
from tests.support.made import case_of, grounds, place, prompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fixtures.faults.mlx_lm import Faulty
    from mlxcheck.backends.base import Backend
    from mlxcheck.messages import Place
    from mlxcheck.records import Case, Comparison, ModelRef, Prompt

    Turns = Sequence[Mapping[str, str]]

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
ASKED = ("sum-2-2", "capital-peru", "filler-capital-kenya", "complete-sum-6-3", "len-8")
"""Two short chats and a long one; raw text; ids cut out of a chat."""


class Known(NamedTuple):
    """A checkpoint without its weights."""

    model: ModelRef
    tokenizer: Any
    prompts: tuple[Prompt, ...]


@cache
def known(folder: Path) -> Known:
    """Read a checkpoint's tokenizer, as the reference does, and encode some prompts."""
    found = checkpoint.inspect(folder)
    tokenizer = reference.read_tokenizer(found)
    model = replace(found.model, stop_ids=reference.stop_set(tokenizer))
    questions = {question.id: question for question in packaged()}
    asked = [questions[name] for name in ASKED if name != "len-8"]
    asked.append(Question(id="len-8", length=8, of="sum-2-2"))
    return Known(model, tokenizer, encode(asked, tokenizer))


def inspect(folder: Path, backend: Backend) -> dict[str, Comparison]:
    """Ask an open backend, and return its comparisons by prompt id."""
    with_ids = known(folder)

    def place_for(case: Case) -> Place:
        text_of = with_ids.tokenizer.decode
        return replace(
            place("prompts", case), text_of=lambda token: str(text_of([token])), row=0
        )

    found = Prompts().inspect(
        with_ids.prompts,
        with_ids.model,
        backend,
        lambda turns: default_ids(turns, with_ids.tokenizer),
        place_for,
    )
    by_id = {each.prompt_id: each for each in found}
    assert len(by_id) == len(found)
    return by_id


def unloaded(kind: type[MlxLmBackend], folder: Path) -> MlxLmBackend:
    """Return mlx-lm's backend as it is when open, but for the weights."""
    backend = kind()
    backend._ref = known(folder).model
    return backend


QWEN3, QWEN2 = MODELS / "qwen3_moe-float32", MODELS / "qwen2_moe-float32"


# --- mlx-lm itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [QWEN3, QWEN2], ids=lambda folder: folder.name)
def test_the_honest_backend_is_exact(folder: Path) -> None:
    """Every prompt that was a chat is compared, the stop set too, and all of them agree."""
    backend = MlxLmBackend()
    backend.open(known(folder).model)
    try:
        found = inspect(folder, backend)
    finally:
        backend.close()

    assert list(found) == [*ASKED[:3], "stop-set"]
    assert {each.verdict for each in found.values()} == {Verdict.EXACT}
    assert [each.case for each in found.values()] == [
        *(f"ids/{name}" for name in ASKED[:3]),
        "stop-set",
    ]
    assert all(each.steps == 1 and not each.message for each in found.values())


def test_a_closed_backend_has_let_go_of_its_tokenizer() -> None:
    """What `encode` loaded does not outlive `close`."""
    backend = unloaded(MlxLmBackend, QWEN3)
    backend.stop_set()
    assert backend._tokenizer is not None

    backend.close()

    assert backend._tokenizer is None


SWITCH = (
    "{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
"""What templates of the Qwen3 kind end with: thinking is on unless it is turned off."""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint whose template thinks by default, BOS in front of its text."""
    folder = tmp_path_factory.mktemp("models") / "thinker"
    shutil.copytree(QWEN3, folder)
    words = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    for number, text in enumerate(("<think>", "</think>"), start=683):
        added = {"id": number, "content": text, "special": True, "single_word": False}
        added |= {"lstrip": False, "rstrip": False, "normalized": False}
        words["added_tokens"].append(added)
    (folder / "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = "{{- bos_token }}" + settings["chat_template"] + SWITCH
    settings |= {"bos_token": "<|endoftext|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


class ThinkingOff(MlxLmBackend):
    """Turns thinking off where mlx-lm's own default is on."""

    def encode(self, messages: Turns) -> list[int]:
        turns = [dict(turn) for turn in messages]
        ids = self.tokenizer().apply_chat_template(
            turns, add_generation_prompt=True, enable_thinking=False
        )
        return list(ids)


def test_an_engine_that_thinks_by_default_as_mlx_lm_does_is_exact(thinker: Path) -> None:
    """Defaults are held against mlx-lm's, not against the ids that the other checks use."""
    asked = known(thinker).prompts[0]
    backend = unloaded(MlxLmBackend, thinker)

    found = inspect(thinker, backend)

    assert asked.messages is not None
    given = backend.encode([{"role": role, "content": text} for role, text in asked.messages])
    assert tuple(given) == asked.tokens[: len(given)], "the switch does something here"
    assert len(given) < len(asked.tokens), "the switch does something here"
    assert {each.verdict for each in found.values()} == {Verdict.EXACT}


def test_another_thinking_default_is_wrong(thinker: Path) -> None:
    """Row 41, with a template that has the switch."""
    found = inspect(thinker, unloaded(ThinkingOff, thinker))

    assert found["stop-set"].verdict is Verdict.EXACT
    for name in ASKED[:3]:
        assert found[name].verdict is Verdict.WRONG
        assert "the thinking default differs: a think block is added" in found[name].message
        assert "683 '<think>'" in found[name].message


class RendersThenEncodes(MlxLmBackend):
    """Encodes the template's text as if it were a user's, which adds BOS again."""

    def encode(self, messages: Turns) -> list[int]:
        words = self.tokenizer()
        text = words.apply_chat_template(
            [dict(turn) for turn in messages], add_generation_prompt=True, tokenize=False
        )
        return [680, *words.encode(text, add_special_tokens=False)]


@pytest.mark.parametrize("name", ["thinker", "qwen3_moe-float32"])
def test_bos_that_is_added_is_told_from_bos_that_is_added_again(
    name: str, thinker: Path
) -> None:
    """Row 40: the message says whether the template had a BOS already."""
    folder = thinker if name == "thinker" else QWEN3
    backend = unloaded(RendersThenEncodes, folder)

    found = inspect(folder, backend)["sum-2-2"]

    cause = "a BOS that the template does not have"
    if folder == thinker:
        cause = "the reference's first id comes twice: BOS is added"
    assert cause in found.message
    assert (found.verdict, found.actual) == (Verdict.WRONG, 680)


# --- Faults ----------------------------------------------------------------------------------

CAUSES = {
    BosTwice: "comes twice: BOS is added to ids that have it (position 1)\n",
    OtherThinkingDefault: "the thinking default differs: a think block is added (position",
    DictKeys: "it gave 'input_ids' where a token id was due: the keys of the tokenizer's dict",
    CutOnTheLeft: "cut on the left: only the last 64 of 512 ids are given (position 0)\n",
    StopSetOfOne: "the stop set lacks 680 '<|endoftext|>'\n",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"S{fault.row}-{fault.__name__}")
def test_fault_is_seen_with_its_cause_and_nothing_else_is(fault: type[Faulty]) -> None:
    """What the fault touches is WRONG and names the cause; all else stays EXACT."""
    found = inspect(QWEN3, unloaded(fault, QWEN3)).values()

    red = [each for each in found if re.match(fault.red.case, each.case)]
    assert red
    for each in red:
        assert each.verdict is Verdict.WRONG
        assert CAUSES[fault] in each.message
        assert each.message.splitlines()[-1].startswith("  again: ")
    (green,) = [expect for expect in fault.green if expect.check == "prompts"]
    chosen = green.select(list(found))
    assert len(chosen) + len(red) == len(found) - (fault is CutOnTheLeft)  # capital-peru
    assert {each.verdict for each in chosen} == {Verdict.EXACT}


# --- Any engine ------------------------------------------------------------------------------


class Encodes(Engine):
    """An engine that gives whatever it is told to."""

    capabilities = Capabilities(encode=True)

    def __init__(self, given: Any = (), stops: Any = (680, 682)) -> None:
        """Give these, or raise them."""
        super().__init__()
        self.given, self.stops = given, stops
        self.turns: list[Any] = []

    def encode(self, messages: Any) -> Any:
        self.turns.append([dict(turn) for turn in messages])
        messages.clear()
        return self._or_raise(self.given)

    def stop_set(self) -> Any:
        return self._or_raise(self.stops)

    def _or_raise(self, thing: Any) -> Any:
        if isinstance(thing, BaseException):
            raise thing
        return thing


def broken() -> Any:
    """Yield an id and then raise, as a lazy encoder might."""
    yield 681
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ValueError("no template\nhere"), "encode() raised ValueError: no template\n"),
        (SystemExit(0), "encode() raised SystemExit: 0\n"),
        (broken(), "encode() raised ZeroDivisionError: \n"),
    ],
)
def test_an_engine_whose_encode_raises_is_an_error(given: Any, expected: str) -> None:
    """ERROR with the exception and its traceback; the stop set is compared none the less."""
    found = inspect(QWEN3, Encodes(given))

    first = found["sum-2-2"]
    assert first.verdict is Verdict.ERROR
    assert f"no answer from mine: {expected}" in first.message
    assert "    Traceback (most recent call last):" in first.message
    assert found["stop-set"].verdict is Verdict.EXACT


def test_an_engine_whose_stop_set_raises_is_an_error() -> None:
    """The prompts are compared none the less."""
    found = inspect(QWEN3, Encodes([5], KeyError("eos")))

    assert found["stop-set"].verdict is Verdict.ERROR
    assert "no answer from mine: stop_set() raised KeyError: 'eos'" in found["stop-set"].message
    assert found["sum-2-2"].verdict is Verdict.WRONG


def test_control_c_is_no_finding() -> None:
    """Whoever interrupts a run wants it to end."""
    with pytest.raises(KeyboardInterrupt):
        inspect(QWEN3, Encodes(KeyboardInterrupt()))


@pytest.mark.parametrize("given", ["text", b"bytes", None, 7])
def test_an_engine_that_gives_no_ids_is_wrong(given: Any) -> None:
    """Text is not taken letter by letter, and nothing is not taken for no ids."""
    found = inspect(QWEN3, Encodes(given, given))

    assert {each.verdict for each in found.values()} == {Verdict.WRONG}
    for each in found.values():
        assert f"it gave {given!r} ({type(given).__name__}), not a list" in each.message


def test_an_engine_gets_its_own_turns() -> None:
    """Roles and contents arrive whole; an engine that empties them changes no expectation."""
    engine = Encodes(())

    found = inspect(QWEN3, engine)

    assert engine.turns[0] == [{"role": "user", "content": "What is 2+2?"}]
    assert found["sum-2-2"].expected == known(QWEN3).prompts[0].tokens[0]


class OnlyStops(Engine):
    """Knows its stop set alone."""

    capabilities = Capabilities(encode=True)

    def stop_set(self) -> list[int]:
        return [682, 680]


class OnlyEncodes(Engine):
    """Knows its ids alone."""

    capabilities = Capabilities(encode=True)

    def encode(self, messages: Turns) -> tuple[int, ...]:
        return default_ids(messages, known(QWEN3).tokenizer)


class Neither(Engine):
    """Says that it can be asked, and cannot."""

    capabilities = Capabilities(encode=True)


def test_half_of_the_question_may_be_asked() -> None:
    """A backend may have either method without the other."""
    stops, ids = inspect(QWEN3, OnlyStops()), inspect(QWEN3, OnlyEncodes())

    assert {name: each.verdict for name, each in stops.items()} == {"stop-set": Verdict.EXACT}
    assert {name: each.verdict for name, each in ids.items()} == dict.fromkeys(
        ASKED[:3], Verdict.EXACT
    )


def test_a_promise_that_is_not_kept_is_an_error() -> None:
    """A backend that promises ids and has no way to ask for them has not passed."""
    (found,) = inspect(QWEN3, Neither()).values()

    assert found.verdict is Verdict.ERROR
    assert "it has no encode() and no stop_set()" in found.message


def test_nothing_to_ask_is_nothing_found() -> None:
    """Prompts that were no chat leave an engine without stop set nothing to be asked."""
    found = Prompts().inspect(
        [prompt()], known(QWEN3).model, OnlyEncodes(), never, lambda case: place(case=case)
    )

    assert found == ()


def never(turns: Turns) -> tuple[int, ...]:
    """Refuse, as a template may."""
    msg = f"the chat template refuses the turns: {len(turns)}."
    raise PromptError(msg)


def test_what_mlx_lm_cannot_encode_is_no_verdict() -> None:
    """Where the reference has no ids, no engine's can be judged."""
    ask = known(QWEN3)

    found = Prompts().inspect(
        ask.prompts[:1], ask.model, OnlyEncodes(), never, lambda case: place(case=case)
    )

    assert [each.verdict for each in found] == [Verdict.INCONCLUSIVE]
    assert "mlx-lm itself cannot encode it: the chat template refuses" in found[0].message


def test_it_is_a_check_that_drives_nothing() -> None:
    """It has no case to drive and none to judge; other checks inspect nothing."""
    check: Check = Prompts()
    case = case_of("sum")
    answers: Any = None

    assert isinstance(check, Inspects)
    assert not isinstance(Tokens(), Inspects)
    assert check.plan(grounds([prompt()], Capabilities(encode=True), "thorough", 0)) == ()
    assert check.judge(case, {}, answers, lambda row: place(row=row)) == ()


@pytest.mark.parametrize(
    ("can", "expected"),
    [
        (Capabilities(), "the backend takes token ids only"),
        (Capabilities(encode=True), None),
        (MlxLmBackend().capabilities, None),
    ],
)
def test_what_a_backend_cannot_say_is_not_asked(
    can: Capabilities, expected: str | None
) -> None:
    """Most engines are driven by ids and never see a chat; mlx-lm's server does."""
    assert Prompts().refuse(can) == expected
