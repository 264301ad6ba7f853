"""The `server` backend against scripted servers: each way in, and what goes wrong in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends.base import Backend, Capabilities, Request
from mlxcheck.backends.registry import known, resolve
from mlxcheck.backends.server import MODEL_VARIABLE, URL_VARIABLE, ServerBackend
from mlxcheck.checks.batch import Batch
from mlxcheck.compare import compare_end, compare_tokens
from mlxcheck.errors import BackendError, CannotAsk
from mlxcheck.messages import Place
from mlxcheck.policy import Policy
from mlxcheck.records import Case, ModelRef, Moment, Prompt, Schedule, Scores, Trace, Verdict
from mlxcheck.session import Answers, Session
from tests.support.made import measured, place
from tests.support.scripted_server import Script, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

WIRES = {
    "generate": {"generate"},
    "ids": {"ids"},
    "logprobs": {"logprobs"},
    "text": {"text"},
    "whole": {"whole"},
}
"""One server for each way in, and one whose text does not come in a stream."""

ASKED = "What is the capital of France?"
SAID = "The capital of France is Paris."
OTHER = "What is the capital of Peru?"
OTHER_SAID = "The capital of Peru is Lima."

PATIENT = Policy(watchdog_s=20, grace_s=2)


@dataclass
class World:
    """A model, its words, and a script of what is said."""

    tokenizer: Any
    model: ModelRef

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text."""
        return tuple(int(token) for token in self.tokenizer.encode(text))

    def said(self, text: str) -> tuple[int, ...]:
        """Return the ids of an answer, its stop id included."""
        return (*self.ids(text), self.stop)

    @property
    def stop(self) -> int:
        """The stop id of all answers."""
        return self.model.stop_ids[-1]

    def script(self, wire: str, **options: Any) -> Script:
        """Return a server that has one way in, and says what is right."""
        answers = {self.ids(ASKED): self.said(SAID), self.ids(OTHER): self.said(OTHER_SAID)}
        return Script(
            tokenizer=self.tokenizer,
            stops=self.model.stop_ids,
            wires=frozenset(WIRES[wire]),
            answers=answers | options.pop("answers", {}),
            otherwise=self.said(" Paris and some more."),
            alternatives=self.ids("!")[0],
            **options,
        )

    def expected(self, prompt_id: str, text: str) -> Trace:
        """Return the reference's answer, of which it is sure at every step."""
        tokens = self.said(text)
        scores = tuple(
            Scores(ids=(token, self.ids("!")[0]), logprobs=(-0.01, -5.0), logsumexp=9.0)
            for token in tokens
        )
        return Trace(prompt_id=prompt_id, tokens=tokens, finish="stop", scores=scores)

    def prompt(self, name: str, text: str) -> Prompt:
        """Return a prompt."""
        return Prompt(id=name, tokens=self.ids(text))

    def one(self) -> Case:
        """Return a case of one prompt."""
        return Case(id="alone/france", prompts=(self.prompt("france", ASKED),), alone=True)

    def two(self) -> Case:
        """Return a case of two."""
        prompts = (self.prompt("france", ASKED), self.prompt("peru", OTHER))
        return Case(id="batch-2/0", prompts=prompts)

    def both(self) -> dict[str, Trace]:
        """Return what the reference says to the two."""
        return {
            "france": self.expected("france", SAID),
            "peru": self.expected("peru", OTHER_SAID),
        }

    def place(self, case: Case, row: int = 0, **fields: Any) -> Place:
        """Return the place of a row."""
        made = place("tokens", case, row)
        return Place(
            check=made.check,
            case=case,
            row=row,
            reference=made.reference,
            candidate="server",
            again=made.again,
            text_of=lambda token: str(self.tokenizer.decode([token])),
            **fields,
        )


@pytest.fixture
def world(tokenizer: Any, model: ModelRef) -> World:
    """Return what the tests are about."""
    return World(tokenizer, model)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Every thread of a request ends with the backend."""
    yield
    left = [each.name for each in threading.enumerate() if each.name.startswith("server r")]
    assert left == []


def drive(
    script: Script, world: World, case: Case, max_tokens: int = 32
) -> tuple[Answers, Capabilities]:
    """Run one case on a scripted server."""
    with (
        serving(script) as url,
        Session(lambda: ServerBackend(url), world.model, PATIENT) as session,
    ):
        return session.run(
            case, max_tokens=max_tokens, expected=world.both()
        ), session.capabilities


# --- What a server can do ---------------------------------------------------------------------


def test_it_is_a_backend() -> None:
    """It has all that a backend has, by the name under which it is registered."""
    assert "server" in known()
    backend = resolve("server")()

    assert isinstance(backend, Backend)
    assert (backend.name, backend.capabilities.casts) == ("server", False)


@pytest.mark.parametrize(
    ("wire", "numbers", "shows"),
    [
        ("generate", True, {"ids", "logprobs", "joins"}),
        ("generate", False, {"ids", "joins"}),
        ("ids", True, {"ids", "logprobs", "joins"}),
        ("ids", False, {"ids", "joins"}),
        ("logprobs", True, {"ids", "logprobs"}),
        ("text", False, {"joins"}),
        ("whole", False, set()),
    ],
)
def test_each_server_is_asked_for_what_it_has(
    world: World, wire: str, *, numbers: bool, shows: set[str]
) -> None:
    """Ids, log-probabilities, joining: found out by asking, and no more than that."""
    answers, can = drive(world.script(wire, numbers=numbers), world, world.one())

    assert {name for name in ("ids", "logprobs", "joins") if getattr(can, name)} == shows
    assert (can.batch, can.stop, can.casts, can.logits) == (True, True, False, False)
    (trace,) = answers.traces
    assert trace.fault is None
    assert (trace.tokens, trace.finish) == (world.said(SAID), "stop")
    assert (trace.text is None) == ("ids" in shows)
    assert bool(trace.scores) == ("logprobs" in shows)


def test_the_best_way_in_is_taken(world: World) -> None:
    """A server with all of them is asked for the one that shows most."""
    script = world.script("generate", numbers=True)
    script.wires = frozenset({"text", "logprobs", "ids", "generate"})

    drive(script, world, world.one())

    last = [
        asked for asked in script.asked if asked["path"] in {"/generate", "/v1/completions"}
    ]
    assert last[-1]["path"] == "/generate"
    assert last[-1]["input_ids"] == list(world.ids(ASKED))
    assert last[-1]["sampling_params"] == {"temperature": 0, "max_new_tokens": 32}


def test_log_probabilities_are_not_asked_of_a_server_that_ends_over_them(world: World) -> None:
    """SGLang's MLX backend does, where it was started without sampling."""
    info = {"mlx_enable_sampling": False, "device": "cpu"}
    script = world.script("generate", numbers=True, info=info)
    _, can = drive(script, world, world.one())
    assert not can.logprobs
    assert not any(asked.get("return_logprob") for asked in script.asked)

    _, can = drive(
        world.script("generate", numbers=True, info=info | {"device": "cuda"}),
        world,
        world.one(),
    )
    assert can.logprobs


def test_a_cache_is_found_out_and_emptied(world: World) -> None:
    """What was asked to find out is told to be forgotten; what is reused is counted."""
    script = world.script("generate")
    again = Case(
        id="prefix/x",
        prompts=(world.prompt("france", ASKED),) * 2,
        schedule=Schedule(joins=(None, Moment(row=0)), leaves=(None, None)),
    )

    answers, can = drive(script, world, again)

    assert can.prefix_cache
    assert [asked["path"] for asked in script.asked].count("/flush_cache") == 1
    assert answers.cached == len(world.ids(ASKED)) - 1


def test_chats_are_encoded_where_the_server_says_how(world: World) -> None:
    """Its own template, BOS and thinking default can then be compared."""
    turns = [{"role": "user", "content": ASKED}]
    with serving(world.script("text", chats=True)) as url:
        backend = ServerBackend(url)
        backend.open(world.model)
        assert backend.capabilities.encode
        wanted = world.tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        assert backend.encode(turns) == list(wanted)
        backend.close()
    with serving(world.script("text")) as url:
        backend = ServerBackend(url)
        backend.open(world.model)
        assert not backend.capabilities.encode
        backend.close()


@pytest.mark.parametrize(
    ("models", "asked"),
    [
        (("tiny",), "tiny"),
        ((), None),
        (("other", "somebody/qwen3-float32"), "somebody/qwen3-float32"),
    ],
)
def test_the_model_is_called_what_the_server_calls_it(
    world: World, models: tuple[str, ...], asked: str | None
) -> None:
    """The only one, or the one of the checkpoint's name."""
    script = world.script("text", models=models)

    drive(script, world, world.one())

    assert script.asked[-1].get("model") == asked


def test_the_model_s_name_may_be_given(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By environment variable, as the URL may."""
    script = world.script("text", models=("one", "two"))
    with serving(script) as url:
        monkeypatch.setenv(URL_VARIABLE, url)
        with pytest.raises(BackendError, match="serves one, two, and none is called qwen3"):
            ServerBackend().open(world.model)
        monkeypatch.setenv(MODEL_VARIABLE, "two")
        backend = ServerBackend()
        backend.open(world.model)
        backend.close()

    assert script.asked[-1]["model"] == "two"


# --- A user's mistakes ------------------------------------------------------------------------


def test_no_server_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to name one."""
    monkeypatch.delenv(URL_VARIABLE, raising=False)

    with pytest.raises(BackendError, match=f"no server is named. Set {URL_VARIABLE}"):
        ServerBackend().open(world.model)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nonsense", "no URL of a server: 'nonsense'"),
        ("http://127.0.0.1:9", "no server at http://127.0.0.1:9: .* Start the server first"),
    ],
)
def test_no_server_is_there(world: World, url: str, told: str) -> None:
    """One line says what was asked, and what to do."""
    with pytest.raises(BackendError, match=told):
        ServerBackend(url).open(world.model)


def test_a_server_that_cannot_be_asked(world: World) -> None:
    """All ways in were tried, and each is told with what came of it."""
    script = world.script("text")
    script.wires = frozenset()

    with (
        serving(script) as url,
        pytest.raises(BackendError, match="cannot be asked for the answer to a prompt") as told,
    ):
        ServerBackend(url).open(world.model)

    assert "/v1/completions with token ids: " in str(told.value)
    assert "/v1/completions with text: " in str(told.value)
    assert "status 400" in str(told.value)


# --- Planted faults ---------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
def test_a_wrong_word(world: World, wire: str) -> None:
    """It is WRONG at its step, whatever shows it; the reference's own best does not fit it."""
    wrong = {world.ids(ASKED): world.said("The capital of France is Lima.")}
    answers, can = drive(world.script(wire, answers=wrong), world, world.one())

    where = world.place(world.one(), text_alone=not can.ids)
    found = compare_tokens(where, world.expected("france", SAID), answers.traces[0])

    agreed = len(world.ids("The capital of France is"))
    assert (found.verdict, found.step) == (Verdict.WRONG, agreed)
    assert ("text alone" in found.message) == (wire in {"text", "whole"})


@pytest.mark.parametrize("wire", WIRES)
def test_a_near_tie(world: World, wire: str) -> None:
    """A word that the reference had nearly chosen is weighed, in text too."""
    said = "The capital of France is Lima."
    step = len(world.ids("The capital of France is"))
    expected = world.expected("france", SAID)
    other = world.ids(" Lima")[0]
    scores = list(expected.scores)
    scores[step] = Scores(
        ids=(expected.tokens[step], other), logprobs=(-0.70, -0.71), logsumexp=9.0
    )
    expected = Trace(
        prompt_id="france", tokens=expected.tokens, finish="stop", scores=tuple(scores)
    )
    script = world.script(wire, answers={world.ids(ASKED): world.said(said)})
    with serving(script) as url, Session(lambda: ServerBackend(url), world.model, PATIENT) as s:
        answers = s.run(world.one(), max_tokens=32, expected={"france": expected})

    found = compare_tokens(
        world.place(world.one(), noise=measured(0.1)), expected, answers.traces[0]
    )

    assert (found.verdict, found.step, found.actual) == (Verdict.TIE, step, other)


@pytest.mark.parametrize("wire", WIRES)
def test_answers_that_are_mixed_up(world: World, wire: str) -> None:
    """Two at once get each other's: both rows are WRONG, and alone all is well."""
    answers, _ = drive(world.script(wire, swaps=True), world, world.two())

    found = Batch().judge(
        world.two(), world.both(), answers, lambda row: world.place(world.two(), row)
    )

    assert [each.verdict for each in found] == [Verdict.WRONG] * 2


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_that_breaks_off(world: World, wire: str) -> None:
    """It is an ERROR in the server's words, and its neighbour is answered."""
    script = world.script(wire)
    script.cuts = {world.ids(ASKED)}
    answers, _ = drive(script, world, world.two())

    where = world.place(world.two())
    found = compare_tokens(where, world.both()["france"], answers.traces[0])
    assert found.verdict is Verdict.ERROR
    assert "no answer from server: POST /" in found.message
    assert answers.traces[1].tokens == world.said(OTHER_SAID)


@pytest.mark.parametrize("wire", WIRES)
def test_a_prompt_that_is_read_as_another(world: World, wire: str) -> None:
    """Nothing can be held against the answer: no verdict, and never WRONG."""
    wrong = {world.ids(ASKED): world.said("No.")}
    script = world.script(wire, answers=wrong)
    script.miscounts = {world.ids(ASKED)}

    answers, _ = drive(script, world, world.two())

    given = len(world.ids(ASKED))
    for compare in (compare_tokens, compare_end):
        found = compare(world.place(world.two()), world.both()["france"], answers.traces[0])
        assert found.verdict is Verdict.INCONCLUSIVE
        assert f"read a prompt of {given + 1} tokens where one of {given}" in found.message
    assert answers.traces[1].fault is None


@pytest.mark.parametrize("wire", ["logprobs", "text"])
def test_ids_that_no_text_asks_for(world: World, wire: str) -> None:
    """A server that takes text cannot be given them; its neighbour is not judged in company."""
    broken = (*world.ids(" "), *world.ids("is"))  # which the tokenizer reads as one word
    assert world.ids(world.tokenizer.decode(list(broken))) != broken
    case = Case(
        id="batch-2/1",
        prompts=(Prompt(id="france", tokens=broken), world.prompt("peru", OTHER)),
    )

    answers, _ = drive(world.script(wire), world, case)

    found = Batch().judge(case, world.both(), answers, lambda row: world.place(case, row))
    assert [each.verdict for each in found] == [Verdict.INCONCLUSIVE] * 2
    assert "the text of these ids is read as others" in found[0].message
    assert "row 0 of 2 was not asked" in found[1].message


def test_a_server_that_takes_ids_is_given_any(world: World) -> None:
    """Through the ways in that take ids, nothing is read twice."""
    broken = (*world.ids(" "), *world.ids("is"))
    case = Case(id="alone/france", prompts=(Prompt(id="france", tokens=broken),))

    answers, _ = drive(world.script("ids"), world, case)

    assert answers.traces[0].fault is None


@pytest.mark.parametrize("wire", ["generate", "ids", "text"])
def test_a_stop_id_that_is_not_shown(world: World, wire: str) -> None:
    """Where the server says that it stopped, a stop id is taken to be said."""
    answers, _ = drive(world.script(wire, names_stops=False), world, world.one())

    assert answers.traces[0].tokens == world.said(SAID)


def test_an_answer_that_is_too_long(world: World) -> None:
    """A server that forgets the budget is cut off, and does not end as it should."""
    script = world.script("generate", forgets_budget=True)

    answers, _ = drive(script, world, world.one(), max_tokens=3)

    (trace,) = answers.traces
    assert (trace.tokens, trace.finish) == (world.said(SAID)[:3], None)


def test_an_endless_text_ends(world: World) -> None:
    """Pieces of text are counted too, so that no answer goes on for ever."""
    long = {world.ids(ASKED): world.ids("and so the story goes on " * 40)}
    script = world.script("text", forgets_budget=True, answers=long)

    answers, _ = drive(script, world, world.one(), max_tokens=2)

    assert answers.traces[0].finish is None
    assert len(answers.traces[0].text or "") < len("and so the story goes on " * 10)


def test_an_answer_that_never_comes(world: World) -> None:
    """The watchdog ends the wait, and the engine is opened again for what comes next."""
    script = world.script("text")
    script.hangs = {world.ids(ASKED)}
    other = Case(id="alone/peru", prompts=(world.prompt("peru", OTHER),), alone=True)
    hasty = Policy(watchdog_s=0.5, grace_s=1)

    class Hasty(ServerBackend):
        """Gives up on requests soon, so that their threads end with the test."""

        def __init__(self) -> None:
            super().__init__(url, timeout_s=1)

    with serving(script) as url, Session(Hasty, world.model, hasty) as session:
        first = session.run(world.one(), max_tokens=8).traces[0]
        second = session.run(other, max_tokens=32, expected=world.both()).traces[0]

    assert first.fault is not None
    assert "no token within 0.5 s for france" in first.fault.summary
    assert second.tokens == world.said(OTHER_SAID)


# --- Joining and leaving ----------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["generate", "text"])
def test_joining_and_leaving_while_another_is_answered(world: World, wire: str) -> None:
    """Moments are those of the answers as they come, and who leaves closes its stream."""
    script = world.script(wire, pause_s=0.03)
    case = Case(
        id="schedule/x",
        prompts=(world.prompt("france", ASKED), world.prompt("peru", OTHER)),
        schedule=Schedule(
            joins=(None, Moment(row=0, tokens=2)), leaves=(None, Moment(row=1, tokens=2))
        ),
    )

    answers, _ = drive(script, world, case)

    assert answers.missed == ()
    assert answers.width == 2
    stayed, left = answers.traces
    assert stayed.tokens == world.said(SAID)
    assert left.left
    assert left.tokens == world.said(OTHER_SAID)[: len(left.tokens)]
    assert 0 < len(left.tokens) < len(world.said(OTHER_SAID))


def test_answers_one_after_the_other_are_no_batch(world: World) -> None:
    """Of a server that answers so, no width of two is told; of whole answers, none at all."""
    one, two = world.one(), world.two()
    after = Schedule(joins=(None, Moment(row=0)), leaves=(None, None))
    apart = Case(id="batch-2/apart", prompts=two.prompts, schedule=after)

    assert drive(world.script("generate"), world, apart)[0].width == 1
    assert drive(world.script("generate", pause_s=0.02), world, two)[0].width == 2
    assert drive(world.script("whole"), world, one)[0].width is None


def test_what_is_cancelled_says_nothing_more(world: World) -> None:
    """Nor does its end, or what went wrong in it."""
    script = world.script("generate", pause_s=0.02)
    request = Request(id="r0", tokens=world.ids(ASKED), max_tokens=32, stop_ids=(world.stop,))
    with serving(script) as url:
        backend = ServerBackend(url)
        backend.open(world.model)
        backend.submit(request)
        while not (said := backend.step()):
            pass
        backend.cancel("r0")
        later = [emission for _ in range(10) for emission in backend.step()]
        backend.close()

    assert [getattr(emission, "token", None) for emission in said] == [world.said(SAID)[0]]
    assert later == []


def test_other_stop_ids_than_the_server_s_are_refused_at_once(world: World) -> None:
    """It ends answers by itself, and is not told where to."""
    request = Request(id="r0", tokens=world.ids(ASKED), max_tokens=8, stop_ids=(3,))
    with serving(world.script("generate")) as url:
        backend = ServerBackend(url)
        backend.open(world.model)
        with pytest.raises(CannotAsk, match="takes no other ids"):
            backend.submit(request)
        backend.close()


def test_text_that_cannot_ask_is_refused_at_once(world: World) -> None:
    """A request is refused before anything is sent."""
    script = world.script("text")
    broken = (*world.ids(" "), *world.ids("is"))
    with serving(script) as url:
        backend = ServerBackend(url)
        backend.open(world.model)
        sent = len(script.asked)
        with pytest.raises(CannotAsk, match="no text can ask for them") as told:
            backend.submit(Request(id="r7", tokens=broken, max_tokens=4))
        backend.close()

    assert told.value.request_id == "r7"
    assert len(script.asked) == sent
