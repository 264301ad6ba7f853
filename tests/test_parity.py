"""Parity of prompt ids and stop sets: which verdict, where, and with which likely cause."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck.parity import compare_ids, compare_stops, no_answer, no_verdict
from mlxcheck.records import Case, Fault, Prompt, Verdict
from tests.support.drawing import unhurried
from tests.support.made import case_of, place

if TYPE_CHECKING:
    from mlxcheck.messages import Place
    from mlxcheck.records import Comparison

WORDS = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "\n",
    "user",
    "assistant",
    "<think>",
    "</think>",
    "Hello",
    " world",
    "system",
    "Be brief.",
    "<end_of_turn>",
    "<start_of_turn>model",
]
IDS = st.lists(st.integers(4, 60), min_size=1, max_size=12).map(tuple)


def said(token: int) -> str:
    """Return the text of a word, or a number's own; none for what no tokenizer knows."""
    if token < 0:
        raise OverflowError(token)
    return WORDS[token] if token < len(WORDS) else f" {token}"


def ids(*words: str) -> tuple[int, ...]:
    """Return the ids of words."""
    return tuple(WORDS.index(word) for word in words)


def here(name: str = "sum") -> Place:
    """Return the place of a prompt, or of the stop set."""
    case = case_of(name, case_id=f"ids/{name}")
    if name == "stop-set":
        case = Case(id=name, prompts=(Prompt(id=name, tokens=()),))
    return replace(place("prompts", case), text_of=said)


def judge(expected: tuple[int, ...], actual: object) -> Comparison:
    """Compare ids."""
    return compare_ids(here(), expected, actual)


def head(found: Comparison) -> str:
    """Return what a WRONG comparison's first line says after prompt and check."""
    assert found.verdict is Verdict.WRONG
    start = f"{found.prompt_id}, check prompts: "
    first = found.message.partition("\n")[0]
    assert first.startswith(start)
    return first.removeprefix(start)


def check_text(found: Comparison, expected: str) -> None:
    """Compare a whole message with what was written down."""
    assert found.message == textwrap.dedent(expected).strip("\n")


TURN = ids("<|im_start|>", "user", "\n", "Hello", " world", "<|im_end|>", "\n")
ASKED = (*TURN, *ids("<|im_start|>", "assistant", "\n"))
CHAT = (*ids("<s>"), *ASKED)
THINK = ids("<think>", "\n", "</think>", "\n")


# --- Prompt ids ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda given: (Index(n) for n in given)])
def test_equal_ids_are_exact(kind: Any) -> None:
    """The same ids are EXACT in any container, and count as one step that was compared."""
    found = judge(CHAT, kind(CHAT))

    assert (found.verdict, found.step, found.message) == (Verdict.EXACT, None, "")
    assert (found.check, found.prompt_id, found.case) == ("prompts", "sum", "ids/sum")
    assert (found.steps, found.batch, found.neighbours) == (1, 1, ())


class Index:
    """An integer of some library's."""

    def __init__(self, value: int) -> None:
        """Have a value."""
        self.value = value

    def __index__(self) -> int:
        return self.value


@unhurried
@given(expected=IDS, actual=st.lists(st.integers(4, 60), max_size=12).map(tuple))
def test_any_other_ids_are_wrong_at_the_first_that_differs(
    expected: tuple[int, ...], actual: tuple[int, ...]
) -> None:
    """WRONG has the first differing position, and the id of either side there, if any."""
    found = judge(expected, actual)

    if expected == actual:
        assert found.verdict is Verdict.EXACT
        return
    assert found.verdict is Verdict.WRONG
    step = found.step
    assert step is not None
    assert expected[:step] == actual[:step]
    assert expected[step : step + 1] != actual[step : step + 1]
    assert found.expected == (expected[step] if step < len(expected) else None)
    assert found.actual == (actual[step] if step < len(actual) else None)
    assert found.steps == 0
    assert head(found).endswith(f"(position {step})")


TWICE = "the reference's first id comes twice: BOS is added to ids that have it (position 1)"
DEFAULT = "the thinking default differs: "


@pytest.mark.parametrize(
    ("expected", "actual", "cause"),
    [
        (CHAT, (*ids("<s>"), *CHAT), TWICE),
        (CHAT, (*ids("<s>"), *CHAT, *THINK), TWICE),
        (CHAT, (*ids("<s>"), *CHAT[:3]), TWICE),
        (
            ASKED,
            (*ids("<s>"), *ASKED),
            "one id too many at the front: a BOS that the template does not have (position 0)",
        ),
        (CHAT, ASKED, "the reference's first id is missing: no BOS, it seems (position 0)"),
        (CHAT, CHAT[-4:], "cut on the left: only the last 4 of 11 ids are given (position 0)"),
        (CHAT, CHAT[:5], "cut on the right: only the first 5 of 11 ids are given (position 5)"),
        (
            CHAT,
            CHAT[:-1],
            "cut on the right: only the first 10 of 11 ids are given (position 10)",
        ),
        (CHAT, CHAT[:-3], "the generation prompt is missing at the end (position 8)"),
        (
            (*CHAT, *THINK),
            CHAT[:-3],
            "the generation prompt is missing at the end (position 8)",
        ),
        (
            ids("<s>", "Hello", "<end_of_turn>", "<start_of_turn>model", "\n"),
            ids("<s>", "Hello", "<end_of_turn>"),
            "the generation prompt is missing at the end (position 3)",
        ),
        (CHAT, (*CHAT, *THINK), f"{DEFAULT}a think block is added (position 11)"),
        (
            (*CHAT, *THINK),
            CHAT,
            f"{DEFAULT}the reference's think block is missing (position 11)",
        ),
        (
            (*CHAT, *THINK),
            (*CHAT, *THINK[:2]),
            f"{DEFAULT}the reference's think block is missing (position 13)",
        ),
        (
            (*CHAT, *ids("<think>")),
            (*CHAT, *ids("</think>")),
            f"{DEFAULT}the think blocks are not the same (position 11)",
        ),
        (CHAT, (*CHAT, *ids("</s>")), "1 id too many at the end (position 11)"),
        (
            CHAT,
            (*ids("<s>", "<|im_start|>", "system", "\n", "Be brief."), *ASKED),
            "the ids differ (position 2)",
        ),
        (CHAT, (*CHAT[:9], *ids("user", "\n")), "the ids differ (position 9)"),
        (
            (*ids("<s>", "Hello"), *THINK),
            (*ids("<s>", " world", " world"), *THINK),
            "the ids differ (position 1)",
        ),
        (CHAT, [], "no id at all was given (position 0)"),
        (CHAT, (*CHAT[:-1], -5), "the ids differ (position 10)"),
        ((0, 0, 9), (0, 0, 0, 9), "one id too many at the front: a BOS that the template does"),
        ((9,), (9, 9), "the reference's first id comes twice: BOS is added to ids that have"),
    ],
)
def test_the_likely_cause_is_named(
    expected: tuple[int, ...], actual: tuple[int, ...], cause: str
) -> None:
    """Each usual mistake is recognised by its ids and their text; others are only placed."""
    assert head(judge(expected, actual)).startswith(cause)


def test_what_a_stranger_reads_of_bos_twice() -> None:
    """The whole text: cause, both ids, the words around them, lengths, and the command."""
    check_text(
        judge(CHAT, (*ids("<s>"), *CHAT)),
        """
        sum, check prompts: the reference's first id comes twice: BOS is added to ids that have it (position 1)
          expected       2 '<|im_start|>'   reference  mlx-lm 0.0
          actual         0 '<s>'            candidate  mine
          around it the reference's ids read '<s><|im_start|>user\\nHello world<|im_end|>', the candidate's '<s><s><|im_start|>user\\nHello world'
          11 ids expected, 12 given; position 0 agrees
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own lines
    )


def test_what_a_stranger_reads_of_ids_that_end_early() -> None:
    """A side that has ended says so, and several positions that agree are a range."""
    check_text(
        judge(CHAT, CHAT[:-3]),
        """
        sum, check prompts: the generation prompt is missing at the end (position 8)
          expected       2 '<|im_start|>'        reference  mlx-lm 0.0
          actual         - (the ids had ended)   candidate  mine
          around it the reference's ids read '<|im_end|>\\n<|im_start|>assistant\\n', the candidate's '<|im_end|>\\n'
          11 ids expected, 8 given; positions 0-7 agree
          again: mlxcheck run M --backend mine
        """,  # noqa: E501 - the message's own lines
    )


def test_an_id_that_no_tokenizer_knows_has_no_text() -> None:
    """A candidate's id may be any number; what cannot be decoded is shown without text."""
    found = judge((9,), (-5,))

    assert found.actual == -5
    assert "actual        -5 '\N{REPLACEMENT CHARACTER}'" in found.message
    assert "none agrees" in found.message


DICT = {"input_ids": [5, 6], "attention_mask": [1, 1]}
DUE = "where a token id was due"


@pytest.mark.parametrize(
    ("actual", "problem", "step"),
    [
        (DICT, f"it gave 'input_ids' {DUE}: the keys of the tokenizer's dict, not", 0),
        (list(DICT), f"it gave 'input_ids' {DUE}: the keys of the tokenizer's dict", 0),
        (["Hello"], f"it gave 'Hello' {DUE} (position 0)", 0),
        ([0, 2, 5.0], f"it gave 5.0 (float) {DUE} (position 2)", 2),
        ([0, True], f"it gave True (bool) {DUE} (position 1)", 1),
        ([0, None], f"it gave None (NoneType) {DUE} (position 1)", 1),
        ([list(CHAT[:2])], f"it gave [0, 2] (list) {DUE} (position 0)", 0),
        ("<s>", "it gave '<s>' (str), not a list of token ids (position 0)", 0),
        (b"<s>", "it gave b'<s>' (bytes), not a list of token ids", 0),
        (None, "it gave None (NoneType), not a list of token ids", 0),
        (7, "it gave 7 (int), not a list of token ids", 0),
        ([*CHAT, "x"], f"it gave 'x' {DUE} (position 11)", 11),
    ],
)
def test_what_is_no_list_of_ids_is_wrong(actual: object, problem: str, step: int) -> None:
    """Whatever stands where ids should is shown, with its kind and place."""
    found = judge(CHAT, actual)

    assert head(found).startswith(problem)
    assert (found.step, found.actual) == (step, None)
    assert found.expected == (CHAT[step] if step < len(CHAT) else None)
    assert found.message.splitlines()[-1] == "  again: mlxcheck run M --backend mine"


# --- Stop sets -------------------------------------------------------------------------------


@unhurried
@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.randoms())
def test_stop_sets_are_compared_as_sets(one: set[int], other: set[int], deal: Any) -> None:
    """Order and repetition are nothing; any id missing or too many is WRONG."""
    actual = [*other, *other]
    deal.shuffle(actual)

    found = compare_stops(here("stop-set"), list(one), actual)

    assert (found.verdict is Verdict.EXACT) == (one == other)
    assert found.expected == min(one - other, default=None)
    assert found.actual == min(other - one, default=None)
    assert (found.prompt_id, found.case) == ("stop-set", "stop-set")
    assert found.steps == (one == other)
    for token in one ^ other if len(one | other) <= 8 else ():
        assert f"{token} {said(token)!r}" in head(found)


def test_what_a_stranger_reads_of_a_missing_stop_id() -> None:
    """The whole text: what is missing, both sets, and what comes of it."""
    check_text(
        compare_stops(here("stop-set"), ids("</s>", "<|im_end|>"), ids("</s>")),
        """
        stop-set, check prompts: the stop set lacks 3 '<|im_end|>'
          expected 1 '</s>', 3 '<|im_end|>'   reference  mlx-lm 0.0
          actual   1 '</s>'                   candidate  mine
          an answer goes on past a missing stop id
          again: mlxcheck run M --backend mine
        """,
    )


def test_what_a_stranger_reads_of_a_stop_set_that_is_another() -> None:
    """Missing and extra ids are told in one sentence, each with what comes of it."""
    check_text(
        compare_stops(here("stop-set"), ids("<|im_end|>"), [3, 1, 0]),
        """
        stop-set, check prompts: the stop set has 0 '<s>', 1 '</s>' too many
          expected 3 '<|im_end|>'                      reference  mlx-lm 0.0
          actual   0 '<s>', 1 '</s>', 3 '<|im_end|>'   candidate  mine
          an answer is cut short at an id too many
          again: mlxcheck run M --backend mine
        """,
    )
    both = compare_stops(here("stop-set"), ids("<|im_end|>"), ids("</s>"))
    assert head(both) == "the stop set lacks 3 '<|im_end|>' and has 1 '</s>' too many"
    assert "past a missing stop id; an answer is cut short at an id too many" in both.message


def test_a_long_stop_set_is_cut_short() -> None:
    """A message does not list a whole vocabulary."""
    found = compare_stops(here("stop-set"), [3], range(200))

    assert head(found).startswith("the stop set has 0 '<s>', 1 '</s>', 2 '<|im_start|>', 4 ")
    assert head(found).endswith(", 8 '</think>' and 191 more too many")
    assert "7 '<think>' and 192 more   candidate" in found.message


def test_an_empty_stop_set_is_wrong() -> None:
    """No stop id at all lacks every one, and is shown as nothing."""
    found = compare_stops(here("stop-set"), [3], [])

    assert head(found) == "the stop set lacks 3 '<|im_end|>'"
    assert "  actual   nothing  " in found.message


@pytest.mark.parametrize("actual", [None, "</s>", [None], ["</s>"], 3])
def test_what_is_no_stop_set_is_wrong(actual: object) -> None:
    """Texts and nothing are no ids."""
    found = compare_stops(here("stop-set"), [1, 3], actual)

    assert head(found).startswith("it gave ")


# --- No answer -------------------------------------------------------------------------------


def test_what_a_stranger_reads_of_a_backend_that_raises() -> None:
    """An ERROR has the exception, the command, and the end of the traceback."""
    detail = "\n".join(f"frame {n}" for n in range(42)) + "\n"

    found = no_answer(here(), Fault(summary="encode() raised KeyError: 'x'", detail=detail))

    lines = found.message.splitlines()
    assert (found.verdict, found.steps) == (Verdict.ERROR, 0)
    assert lines[:4] == [
        "sum, check prompts: no answer from mine: encode() raised KeyError: 'x'",
        "  again: mlxcheck run M --backend mine",
        "    ... 2 lines before",
        "    frame 2",
    ]
    assert lines[-1] == "    frame 41"


def test_without_a_traceback_there_is_none() -> None:
    """A fault without detail is told in two lines, and so is the lack of a verdict."""
    broken = no_answer(here(), Fault(summary="it has no encode()"))
    unknown = no_verdict(here(), "mlx-lm itself cannot encode it")

    assert len(broken.message.splitlines()) == len(unknown.message.splitlines()) == 2
    assert (unknown.verdict, unknown.steps) == (Verdict.INCONCLUSIVE, 0)
    assert unknown.message.startswith("sum, check prompts: no verdict: mlx-lm itself")
