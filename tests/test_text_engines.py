"""Engines that show text alone, and requests that fail by themselves, through a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mlxcheck
from mlxcheck.backends.base import Capabilities, Emission, Request, TextEmission
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.compare import compare_tokens
from mlxcheck.drift import compare_numbers
from mlxcheck.errors import CannotAsk, RequestFailed
from mlxcheck.policy import Policy
from mlxcheck.records import Trace, Verdict
from mlxcheck.session import Session
from mlxcheck.texts import Spelling
from tests.support.driven import ONE, PATIENT, TWO, Engine, Maker, drive, fault_of
from tests.support.made import STOPS, model, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.session import Answers

MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3-float32"

LETTERS = Spelling(
    decode=lambda ids: "".join(chr(60 + token) for token in ids),
    encode=lambda text: [ord(letter) - 60 for letter in text],
)
"""Token 5 is "A", 6 is "B", and so on."""

EXPECTED = Trace(prompt_id="sum", tokens=(5, 6, 2), finish="stop")


class Words(Engine):
    """Says its answer as text."""

    capabilities = Capabilities(ids=False)
    answer: tuple[str, ...] = ("A", "B", "")

    def emit(self, name: str) -> Any:
        """Give the next piece of a request."""
        left = self.live[name]
        text = left.pop(0)
        if not left:
            del self.live[name]
        return TextEmission(request_id=name, text=text, finish=None if left else self.end)


def run(kind: type[Engine], max_tokens: int = 8) -> tuple[Answers, Maker]:
    """Run one case, with a tokenizer of letters."""
    maker = Maker(kind)
    with Session(maker, model(), PATIENT) as session:
        session._spelling = LETTERS  # the model here is nowhere on disk
        answers = session.run(ONE, max_tokens=max_tokens, expected={"sum": EXPECTED})
    return answers, maker


def test_text_is_read_as_tokens() -> None:
    """What was said is kept beside what it was read as."""
    answers, _ = run(Words)

    (trace,) = answers.traces
    assert (trace.tokens, trace.text, trace.finish) == ((5, 6, 2), "AB", "stop")
    assert trace.scores == ()


def test_another_text_is_another_token() -> None:
    """The first letter that differs is the step."""

    class Other(Words):
        answer = ("A", "D", "")

    answers, _ = run(Other)

    found = compare_tokens(place(), EXPECTED, answers.traces[0])
    assert (found.verdict, found.step, found.actual) == (Verdict.WRONG, 1, 8)


def test_text_without_end_is_cut_off() -> None:
    """The engine is told to stop, some pieces past what it was allowed."""

    class Endless(Words):
        answer = ("A",) * 999

    answers, maker = run(Endless, max_tokens=2)

    assert answers.traces[0].finish is None
    assert answers.traces[0].text == "A" * 16
    assert maker.log.count("cancel r0") == 1


@pytest.mark.parametrize("said", ["Z", ""])
def test_text_of_an_engine_that_shows_ids(said: str) -> None:
    """Text is for engines that say so; what an id was due for is not guessed."""

    class Mixed(Words):
        capabilities = Capabilities()
        answer = (said,)
        end = "length"

    summary = fault_of(run(Mixed)[0]).summary

    assert summary == f"it gave text, {said!r} for 'length', where a token id was due"


def test_an_id_of_an_engine_that_shows_none() -> None:
    """An engine is what it says that it is."""

    class Mixed(Engine):
        capabilities = Capabilities(ids=False)

    assert fault_of(run(Mixed)[0]).summary == (
        "step 0: it gave a token id, and its capabilities say that it shows none"
    )


def test_a_stop_without_a_name() -> None:
    """An engine that says that it stopped, and not at which id, is taken at its word."""

    class Stops(Engine):
        answer = (5, 6, None)

        def emit(self, name: str) -> Any:
            """Name every token but the stop."""
            if self.live[name] == [None]:
                del self.live[name]
                return TextEmission(request_id=name, finish="stop")
            return Emission(request_id=name, token=self.live[name].pop(0))

    assert run(Stops)[0].traces[0].tokens == (5, 6, 2)
    assert drive(Stops, ONE)[0].traces[0].tokens == (5, 6, STOPS[0])


def test_more_text_after_the_end() -> None:
    """What comes after the finish is a fault, as with tokens."""

    class Talkative(Words):
        def step(self) -> Sequence[Any]:
            said = super().step()
            return [*said, *said]

    assert fault_of(run(Talkative)[0]).summary == "it gave text for sum after its finish"


# --- Requests that fail by themselves ---------------------------------------------------------


def one_fails(error: type[CannotAsk | RequestFailed], method: str) -> type[Engine]:
    """Return an engine that fails its first request in a method, and answers the others."""

    class Failing(Engine):
        left = 1

        def submit(self, request: Request) -> None:
            super().submit(request)
            if method == "submit" and self.left:
                self.left -= 1
                del self.live[request.id]
                raise error(request.id, "it is a long story\nas told below")

        def step(self) -> Sequence[Emission]:
            if method == "step" and self.left:
                self.left -= 1
                first = next(iter(self.live))
                del self.live[first]
                raise error(first, "it is a long story\nas told below")
            return super().step()

    return Failing


@pytest.mark.parametrize("method", ["submit", "step"])
@pytest.mark.parametrize(
    ("error", "verdict"),
    [(CannotAsk, Verdict.INCONCLUSIVE), (RequestFailed, Verdict.ERROR)],
)
def test_one_request_fails(
    error: type[CannotAsk | RequestFailed], verdict: Verdict, method: str
) -> None:
    """Its row has no answer, for the reason that was told; the other one has, and goes on."""
    maker = Maker(one_fails(error, method))
    with Session(maker, model(), PATIENT) as session:
        answers = session.run(TWO, max_tokens=8)

    assert fault_of(answers, 0).summary == "it is a long story"
    assert fault_of(answers, 0).detail == "as told below"
    assert answers.traces[1].tokens == (5, 6, 2)
    assert len(maker.made) == 1
    for compare in (compare_tokens, compare_numbers):
        found = compare(place(), EXPECTED, answers.traces[0])
        assert found.verdict is verdict
        assert "it is a long story" in found.message


def test_a_request_that_is_not_there_fails() -> None:
    """An engine that fails what it was not given is itself at fault."""

    class Confused(Engine):
        def step(self) -> Sequence[Emission]:
            request_id, what = "r9", "no such thing"
            raise RequestFailed(request_id, what)

    summary = fault_of(drive(Confused, ONE)[0]).summary

    assert summary == "it failed request 'r9', which is not in flight: no such thing"


# --- A whole run ------------------------------------------------------------------------------


class TextOfMlxLm(MlxLmBackend):
    """mlx-lm's engine, of which only text is seen."""

    name = "text-of-mlx-lm"
    wrong = False

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = Capabilities(max_batch=32, ids=False)

    def step(self) -> Sequence[Any]:
        """Give the text of each token, which for these models is that of the whole."""
        return [
            TextEmission(
                request_id=each.request_id,
                text="" if each.finish == "stop" else self.spell(each.token),
                finish=each.finish,
            )
            for each in super().step()
        ]

    def spell(self, token: int) -> str:
        """Return a token's text, or another one's."""
        text = str(self.tokenizer().decode([token]))
        return text.replace("Paris", "Rome").replace("4", "5") if self.wrong else text


def test_a_report_says_that_text_alone_was_compared() -> None:
    """Every check that can be asked is, and the control says by what."""
    report = mlxcheck.check(
        str(MODEL), TextOfMlxLm, effort="quick", checks=["tokens", "stop", "batch", "logits"]
    )

    assert report.outcome == "pass"
    assert ("logits", "the backend shows neither logits nor log-probabilities") in (
        report.not_asked
    )
    (engaged,) = (each for each in report.passes[0].controls if each.name == "engagement")
    assert engaged.text.endswith("answers were read from it")
    assert "text alone is shown: " in engaged.text
    assert "; text alone was compared: the candidate shows no token ids" in report.summary()


def test_a_fault_in_text_is_told_as_one_of_text() -> None:
    """The message says what the token was read from."""

    class Wrong(TextOfMlxLm):
        wrong = True

    report = mlxcheck.check(
        str(MODEL), Wrong, prompts=["What is 2+2?"], checks=["tokens"], policy=Policy()
    )

    (found,) = report.failures
    assert found.verdict is Verdict.WRONG
    assert "  the candidate shows text alone: its tokens are read from that\n" in found.message


def test_pytest_says_so_too(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its summary has a line of its own for it."""
    monkeypatch.setenv("PYTHONPATH", str(MODEL.parents[2]))
    backend = "--mlx-backend=tests.test_text_engines:TextOfMlxLm"
    options = ("--mlx-reference", f"--mlx-model={MODEL}", backend, "-k", "tokens and sum")

    result = pytester.runpytest_subprocess(*options, "-q")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["mlxcheck: *TextOfMlxLm on *: text alone was compared"])
