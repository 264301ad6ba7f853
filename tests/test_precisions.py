"""The passes of a model: which there are, which cannot be made, and what is left of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck import decoding, precision, precisions
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.checkpoint import inspect
from mlxcheck.errors import NotEnoughMemory
from mlxcheck.memory import Room
from mlxcheck.noise import IN_FLOAT32
from mlxcheck.passes import missed
from mlxcheck.policy import Policy
from mlxcheck.precisions import cannot_cast, memo_of, passes_of, record_passes
from mlxcheck.prompts import Question
from mlxcheck.recording import Memo, Recorded, read
from mlxcheck.settings import Settings
from tests.support.scored import ARMS, noise

if TYPE_CHECKING:
    from mlxcheck.checkpoint import Checkpoint

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
EIGHT = str(MODELS / "qwen3-8bit")
FULL = str(MODELS / "qwen3-float32")
QUESTIONS = [
    Question(id="sum", messages=({"role": "user", "content": "What is 2+2?"},)),
    Question(id="day", messages=({"role": "user", "content": "Which day is it?"},)),
]
NO_ROOM = "a float32 copy needs more than there is"
FUNCTION = "a function holds its own engine, which no float32 copy can be given to"
MAX_TOKENS = 5


def a_function(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Stand in for an engine that is a plain function."""
    return [[*prompt][:max_tokens] for prompt in prompts]


def settings(*passes: Any, **more: Any) -> Settings:
    """Make settings of these passes, or of the default ones."""
    policy = Policy(precision=passes, **more) if passes else Policy(**more)
    return Settings(max_tokens=MAX_TOKENS, policy=policy)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy can be made."""
    monkeypatch.setattr(precision, "room_for_copy", lambda _: NO_ROOM)


# --- Which passes there are ------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3", "qwen3_moe"])
@pytest.mark.parametrize(
    ("asked", "of_eight_bits", "of_float32"),
    [
        (("float32", "native"), ("float32", "native"), ("float32",)),
        (("native", "float32"), ("native", "float32"), ("float32",)),
        (("float32",), ("float32",), ("float32",)),
        (("native",), ("native",), ("native",)),
    ],
)
def test_passes_of_the_fixtures(
    family: str,
    asked: tuple[Any, ...],
    of_eight_bits: tuple[str, ...],
    of_float32: tuple[str, ...],
) -> None:
    """A checkpoint in float32 has one pass, by the name that was asked for."""
    policy = Policy(precision=asked)

    assert passes_of(inspect(MODELS / f"{family}-8bit"), policy) == of_eight_bits
    assert passes_of(inspect(MODELS / f"{family}-float32"), policy) == of_float32


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        (a_function, FUNCTION),
        (lambda prompts, max_tokens: [prompts, max_tokens], FUNCTION),
        ("mlx-lm", ""),
        (MlxLmBackend, ""),
        (MlxLmBackend(), ""),
    ],
)
def test_what_no_copy_can_be_given_to(backend: object, why: str) -> None:
    """A function brings its engine with it; what opens a checkpoint opens a copy too."""
    assert cannot_cast(backend) == why


# --- What a pass is recorded with ------------------------------------------------------------


def test_a_native_pass_is_recorded_with_the_files_as_they_are() -> None:
    """No copy is made, and the pass has its name."""
    native = Memo(files=read(EIGHT, settings()))
    with ExitStack() as stack:
        assert memo_of(native, "native", stack) is native
    assert (native.precision, native.original) == ("native", None)


def test_a_float32_checkpoint_is_its_own_float32_pass() -> None:
    """The same bytes, under the name of the pass; casting would change nothing."""
    native = Memo(files=read(FULL, settings()))
    with ExitStack() as stack:
        assert memo_of(native, "float32", stack) is native
    assert (native.precision, native.original) == ("float32", None)


def test_a_copy_lasts_as_long_as_its_stack() -> None:
    """Its memo is another one, with the same tokenizer; the native one stays as it was."""
    native = Memo(files=read(EIGHT, settings()))
    with ExitStack() as stack:
        memo = memo_of(native, "float32", stack)
        copy, tokenizer = memo.files
        assert (memo.precision, memo.original) == ("float32", native.files[0])
        assert tokenizer is native.files[1]
        assert precision.native_dtype(copy) == "float32"
        assert copy.model.path != native.files[0].model.path
        assert copy.model.stop_ids == native.files[0].model.stop_ids
        assert Path(copy.model.path).is_dir()
        assert native.precision == "native"
    assert not Path(copy.model.path).exists()


@pytest.mark.usefixtures("full_disk")
def test_no_room_for_a_copy_is_no_memory() -> None:
    """The reason is the sentence of `precision.room_for_copy`; other passes need no room."""
    native, full = (Memo(files=read(name, settings())) for name in (EIGHT, FULL))
    with ExitStack() as stack, pytest.raises(NotEnoughMemory, match=NO_ROOM):
        memo_of(native, "float32", stack)
    with ExitStack() as stack:
        assert memo_of(native, "native", stack) is native
        assert memo_of(full, "float32", stack) is full


# --- Recording -------------------------------------------------------------------------------


def _said(recorded: Recorded) -> dict[str, tuple[int, ...]]:
    return {name: trace.tokens for name, trace in recorded.traces.items()}


def test_two_passes_of_one_model() -> None:
    """Both are recorded, in the policy's order; the copy goes when the block ends."""
    with record_passes(EIGHT, QUESTIONS, settings()) as passes:
        copied, native = passes.recorded
        path = Path(copied.model.path)
        assert path.is_dir()
        assert passes.missed == ()

    assert not path.exists()
    assert (copied.precision, native.precision) == ("float32", "native")
    assert (copied.cast, native.cast) == (True, False)
    assert (copied.noise.dtype, native.noise.dtype) == ("float32", "bfloat16")
    assert (copied.noise.exact, native.noise.exact) == (True, False)
    assert (copied.backed, native.backed) == (True, True)
    assert (copied.model.source, native.model.path) == (EIGHT, native.model.path)
    assert native.prompts == copied.prompts
    for each in (copied, native):
        assert set(each.traces) == {"sum", "day"}
        assert each.noise.repeats
        assert {arm.prompt_id for arm in each.noise.arms} == {"sum", "day"}
        assert {phase.name for phase in each.phases} >= {"load", "reference", "release"}


def test_passes_come_in_the_order_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native first where that is asked first, and both know of each other."""
    monkeypatch.setattr(precisions, "record_one", _stub)
    asked = settings("native", "float32")
    with record_passes(EIGHT, QUESTIONS, asked) as passes:
        assert [each.precision for each in passes.recorded] == ["native", "float32"]
        assert [each.backed for each in passes.recorded] == [True, True]


def test_the_copy_goes_also_where_the_block_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C leaves nothing on the disk."""
    monkeypatch.setattr(precisions, "record_one", _stub)
    paths: list[Path] = []

    def interrupted() -> None:
        with record_passes(EIGHT, QUESTIONS, settings("float32")) as passes:
            paths.append(Path(passes.recorded[0].model.path))
            assert paths[0].is_dir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not paths[0].exists()


def test_a_native_pass_alone_is_not_backed() -> None:
    """Its tokens have nothing but themselves to speak for the engine."""
    with record_passes(EIGHT, QUESTIONS, settings("native")) as passes:
        (native,) = passes.recorded
    assert (native.precision, native.backed, passes.missed) == ("native", False, ())


def test_a_float32_checkpoint_has_one_pass_that_backs_itself() -> None:
    """Nothing is copied, and nothing was missed."""
    with record_passes(FULL, QUESTIONS, settings(), backends=[a_function]) as passes:
        (only,) = passes.recorded
    assert (only.precision, only.cast, only.backed) == ("float32", False, True)
    assert only.model.path == str(Path(FULL))
    assert passes.missed == ()


def test_questions_that_are_not_wanted_are_company() -> None:
    """What is asked of `record` is asked of each pass."""
    asked = settings("native", mode="strict")
    with record_passes(EIGHT, QUESTIONS, asked, wanted=lambda name: name == "sum") as passes:
        (native,) = passes.recorded
    assert len(native.prompts) == 2
    assert list(_said(native)) == ["sum"]
    assert native.noise.arms == ()
    assert native.noise.repeats


# --- The arm in float32 ----------------------------------------------------------------------


@pytest.mark.parametrize("room", [True, False])
def test_the_native_pass_is_cast_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, *, room: bool
) -> None:
    """In 16 bits alone is it asked, and without room there is everything but this arm."""
    asked: list[str] = []

    def has_room(found: Checkpoint) -> bool:
        asked.append(found.model.path)
        return room

    monkeypatch.setenv("MLXCHECK_CACHE", "")  # or the second would take it from the first
    monkeypatch.setattr(decoding, "_has_room", has_room)
    with record_passes(EIGHT, QUESTIONS, settings()) as passes:
        copied, native = passes.recorded

    ways = [list(dict.fromkeys(arm.arm for arm in each.noise.arms)) for each in passes.recorded]
    assert ways == [[*ARMS], [*ARMS, IN_FLOAT32] if room else [*ARMS]]
    assert {probe.clean for probe in native.noise.probes} == {room}
    assert {probe.clean for probe in copied.noise.probes} == {copied.noise.exact}
    assert asked == [EIGHT]


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_room_is_for_what_a_cast_adds(
    monkeypatch: pytest.MonkeyPatch, spare: int, *, fits: bool
) -> None:
    """The model is there already: the rest of a float32 copy and 64 MiB, to the byte."""
    found = inspect(EIGHT)
    more = precision.cast_bytes(found) - found.weight_bytes
    free = more + 64 * 2**20 + spare
    room = Room(available=free, reserve=0, working_set=None, active=0, max_buffer=None)
    monkeypatch.setattr("mlxcheck.memory.probe", lambda: room)

    assert more > 0
    assert decoding._has_room(found) is fits


# --- What cannot be made ---------------------------------------------------------------------


@pytest.mark.usefixtures("full_disk")
def test_a_pass_without_room_is_missed() -> None:
    """The other one is recorded, unbacked, and the reason is told."""
    with record_passes(EIGHT, QUESTIONS, settings()) as passes:
        (native,) = passes.recorded
    assert (native.precision, native.backed) == ("native", False)
    assert passes.missed == (missed("float32", NO_ROOM),)


@pytest.mark.usefixtures("full_disk")
def test_without_any_pass_the_reason_is_raised() -> None:
    """Where only float32 was asked for, nothing is left to be judged."""
    with (
        pytest.raises(NotEnoughMemory, match=NO_ROOM),
        record_passes(EIGHT, QUESTIONS, settings("float32")),
    ):
        pytest.fail("there is nothing to run")


def test_a_model_too_large_for_memory_raises_the_first_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both passes are refused, and the first reason is told; no copy is left behind."""
    copies: list[str] = []

    def refuse(_questions: Any, _settings: Any, memo: Memo, **_: Any) -> Recorded:
        copies.append(memo.files[0].model.path)
        message = f"no memory for the {memo.precision} pass"
        raise NotEnoughMemory(message)

    monkeypatch.setattr(precisions, "record_one", refuse)
    with (
        pytest.raises(NotEnoughMemory, match="no memory for the float32 pass"),
        record_passes(EIGHT, QUESTIONS, settings()),
    ):
        pytest.fail("there is nothing to run")
    assert len(copies) == 2
    assert not Path(copies[0]).exists()


def test_other_errors_are_not_a_missed_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that is broken in one pass is told as that."""

    def fail(*_: Any, **__: Any) -> Recorded:
        raise ZeroDivisionError

    monkeypatch.setattr(precisions, "record_one", fail)
    with pytest.raises(ZeroDivisionError), record_passes(EIGHT, QUESTIONS, settings()):
        pytest.fail("there is nothing to run")


@pytest.mark.parametrize(
    ("backends", "made"),
    [
        ([a_function], ["native"]),
        ([a_function, a_function], ["native"]),
        ([a_function, "mlx-lm"], ["float32", "native"]),
        ([], ["float32", "native"]),
    ],
)
def test_no_copy_is_made_that_no_candidate_could_be_given(
    backends: list[object], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One candidate that loads checkpoints is reason enough for the copy."""
    monkeypatch.setattr(precisions, "record_one", _stub)
    with record_passes(EIGHT, QUESTIONS, settings(), backends=backends) as passes:
        assert [each.precision for each in passes.recorded] == made
    left_out = () if "float32" in made else (missed("float32", FUNCTION),)
    assert passes.missed == left_out


def test_the_only_pass_that_was_asked_for_is_made_whoever_can_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run has to have something to say that a function was not asked in float32."""
    monkeypatch.setattr(precisions, "record_one", _stub)
    asked = settings("float32")
    with record_passes(EIGHT, QUESTIONS, asked, backends=[a_function]) as passes:
        assert [(each.precision, each.cast) for each in passes.recorded] == [("float32", True)]
    assert passes.missed == ()


def _stub(_questions: Any, _settings: Any, memo: Memo, **_: Any) -> Recorded:
    """Record nothing."""
    return Recorded(
        model=memo.files[0].model,
        prompts=(),
        traces={},
        noise=noise(),
        precision=memo.precision,
        cast=memo.original is not None,
        encoded={},
        pure=0,
        text_of=str,
        phases=(),
        gate=(),
    )
