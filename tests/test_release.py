"""`mlxcheck.release` and `mlxcheck.holders`: each way to keep a model is found and named."""

from __future__ import annotations

import functools
import gc
import re
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import pytest
from mlx import nn

from mlxcheck import release
from mlxcheck.errors import MemoryNotReleased
from mlxcheck.holders import holders
from mlxcheck.release import Baseline, prove_released, take_baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH = 512
LAYERS = 4
ONE = WIDTH * WIDTH * 4
"""Bytes of one weight, 1 MB; the model has four of them, and four small biases."""

KEPT: Any = None
"""A module global that keeps what a test puts there."""


class Engine:
    """A user's engine that keeps its model."""

    shared: Any = None

    def __init__(self, model: object) -> None:
        self.model = model


class Slotted:
    """An engine without a dict."""

    __slots__ = ("model", "other")

    def __init__(self, model: object) -> None:
        self.model = model


class Stack(nn.Module):
    """Four linear layers, about 4 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]

    def __call__(self, x: mx.array) -> mx.array:
        """Apply the layers in order."""
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what a test kept, and make failing proofs quick: there is no GPU to wait for."""
    global KEPT  # noqa: PLW0603 - a global is what is tested
    monkeypatch.setattr(release, "WAITS", (0.0, 0.0))
    yield
    KEPT = Engine.shared = None
    gc.collect()


def made() -> Stack:
    """Make the model with its weights in memory."""
    model = Stack()
    mx.eval(model.parameters())
    return model


def leak(keep: Callable[[Stack], object]) -> str:
    """Load, leak by *keep*, release, and give the message of the proof that failed."""
    baseline = take_baseline()
    model = made()
    ref = weakref.ref(cast("object", model))
    held = keep(model)
    del model
    with pytest.raises(MemoryNotReleased) as caught:
        prove_released(baseline, what="the reference model", ref=ref)
    del held
    return str(caught.value)


def keep_global(model: object) -> None:
    """Bind *model* to this module's global."""
    global KEPT  # noqa: PLW0603 - a global is what is tested
    KEPT = model


def test_released_model_passes() -> None:
    """A model that was used and dropped is proven gone, and its memory was really there."""
    baseline = take_baseline()
    model = made()
    mx.eval(model(mx.ones((2, WIDTH))))
    assert mx.get_active_memory() >= baseline.active + LAYERS * ONE
    ref = weakref.ref(cast("object", model))
    del model
    prove_released(baseline, what="the reference model", ref=ref)
    assert mx.get_active_memory() < baseline.active + release.TOLERANCE


def test_reference_cycle_is_collected() -> None:
    """A cycle is garbage, not a leak: the proof collects it."""
    baseline = take_baseline()
    model = made()
    model.itself = [model]
    ref = weakref.ref(cast("object", model))
    del model
    prove_released(baseline, what="the reference model", ref=ref)


def test_module_global_is_named() -> None:
    """A global is named by its module and name."""
    text = leak(keep_global)
    assert f"held by module global `{__name__}.KEPT`" in text
    assert text.startswith("the reference model is still alive after its release")
    assert "4.2 MB active" in text


def test_instance_attribute_is_named() -> None:
    """An attribute is named with its class and with what holds the instance."""
    text = leak(lambda model: keep_global(Engine(model)))
    assert (
        f"attribute `.model` of a `Engine`, itself held by module global `{__name__}.KEPT`"
        in text
    )


def test_instance_dict_that_was_read_is_named() -> None:
    """An instance whose ``__dict__`` was asked for holds by it; the words are the same."""

    def keep(model: Stack) -> None:
        engine = Engine(model)
        vars(engine)["again"] = 1
        keep_global(engine)

    assert "attribute `.model` of a `Engine`, itself held by module global" in leak(keep)


def test_slot_is_named() -> None:
    """An attribute in a slot is found; an empty slot does no harm."""
    text = leak(lambda model: keep_global(Slotted(model)))
    assert "attribute `.model` of a `Slotted`, itself held by module global" in text


def test_class_attribute_is_named() -> None:
    """A class attribute is a name of its own."""

    def keep(model: Stack) -> None:
        Engine.shared = model

    assert f"held by class attribute `{__name__}.Engine.shared`" in leak(keep)


def test_list_is_named() -> None:
    """A list is named with the index, its length and what holds it."""
    text = leak(lambda model: keep_global([0, model, 2]))
    assert f"item 1 of a list of 3, itself held by module global `{__name__}.KEPT`" in text


def test_dict_key_is_named() -> None:
    """A dict is named by its key."""
    text = leak(lambda model: keep_global({"qwen3": model}))
    assert f"key 'qwen3' of a dict, itself held by module global `{__name__}.KEPT`" in text


def test_closure_is_named() -> None:
    """A closure is named by variable and function, with its place."""

    def keep(model: Stack) -> None:
        def patched_forward() -> Stack:
            return model

        keep_global(patched_forward)

    text = leak(keep)
    assert "closure variable `model` of `" in text
    assert f"patched_forward` ({__file__}:" in text
    assert f"itself held by module global `{__name__}.KEPT`" in text


def test_default_argument_is_named() -> None:
    """A default argument keeps its value as long as the function lives."""

    def keep(model: Stack) -> None:
        def forward(x: int, kept: Stack = model) -> tuple[int, Stack]:
            return x, kept

        keep_global(forward)

    assert "a default argument of `" in leak(keep)


def test_bound_method_is_named() -> None:
    """A bound method keeps its object."""
    text = leak(lambda model: keep_global(model.parameters))
    assert "bound method `Module.parameters`, itself held by module global" in text


def test_partial_is_named() -> None:
    """A partial keeps its arguments."""
    text = leak(lambda model: keep_global(functools.partial(print, model)))
    assert "partial of `print`" in text


def test_lru_cache_is_named() -> None:
    """A cached function keeps its arguments and results."""

    def keep(model: Stack) -> None:
        waiting = [model]

        @functools.lru_cache
        def load(_path: str) -> Stack:
            return waiting.pop()

        load("qwen3")
        keep_global(load)

    text = leak(keep)
    assert "the cache of `" in text
    assert f"load`, itself held by module global `{__name__}.KEPT`" in text


def test_caller_local_is_named() -> None:
    """A local of a call that is still running is named with file and line."""
    baseline = take_baseline()
    still_here = made()
    ref = weakref.ref(cast("object", still_here))
    with pytest.raises(MemoryNotReleased) as caught:
        prove_released(baseline, what="the reference model", ref=ref)
    assert "local variable `still_here` of `test_caller_local_is_named`" in str(caught.value)
    assert f"({__file__}:" in str(caught.value)


def test_local_of_another_thread_is_named() -> None:
    """A thread that still works on the model is found by its stack."""
    go, ready = threading.Event(), threading.Event()

    def serve(borrowed: list[Stack]) -> None:
        mine = borrowed.pop()
        ready.set()
        go.wait(30)
        del mine

    def keep(model: Stack) -> None:
        threading.Thread(target=serve, args=([model],), daemon=True).start()
        assert ready.wait(30)

    try:
        text = leak(keep)
    finally:
        go.set()
    assert "local variable `mine` of `" in text
    assert "serve` (" in text


def test_suspended_generator_is_named() -> None:
    """A generator that was not run to its end keeps its locals."""

    def decode(model: Stack) -> Iterator[Stack]:
        yield model

    def keep(model: Stack) -> None:
        stream = decode(model)
        next(stream)
        keep_global(stream)

    text = leak(keep)
    assert "suspended generator `" in text
    assert "decode` (" in text
    assert f"itself held by module global `{__name__}.KEPT`" in text


def test_traceback_is_named() -> None:
    """A kept exception keeps the locals of the calls that it passed through."""

    def forward(broken: Stack) -> None:
        msg = f"no such shape in {type(broken).__name__}"
        raise ValueError(msg)

    def keep(model: Stack) -> None:
        try:
            forward(model)
        except ValueError as error:
            keep_global(error)

    text = leak(keep)
    assert re.search(r"local variable `(broken|model)` of `test_traceback_is_named", text)
    assert "a call that ended" in text
    assert "the traceback of ValueError('no such shape in Stack')" in text


def test_one_weight_is_named() -> None:
    """With the model gone, one kept weight is found, with its size and holder."""
    text = leak(lambda model: keep_global({"w": model.layers[2].weight}))
    assert text.startswith("the reference model is gone, but not its memory")
    assert f"float32 ({WIDTH}, {WIDTH}) of 1.0 MB is held by key 'w' of a dict" in text
    assert f"itself held by module global `{__name__}.KEPT`" in text
    assert "1 arrays made since the baseline" in text


def test_weight_in_a_layer_is_named() -> None:
    """A kept layer is named as the attribute that it is, not as an item of a dict."""
    text = leak(lambda model: keep_global(model.layers[0]))
    assert "held by attribute `.weight` of a `Linear`, itself held by module global" in text


def test_unevaluated_array_is_explained() -> None:
    """A lazy result keeps all the weights where Python sees none of them."""
    text = leak(lambda model: keep_global(model(mx.ones((1, WIDTH)))))
    assert "float32 (1, 512) of 2.0 kB is held by module global" in text
    assert "never evaluated keeps its inputs" in text


def test_array_from_before_is_not_blamed() -> None:
    """An array that was alive before the load is not part of the model, however large."""
    before = mx.ones((4 * WIDTH, WIDTH))
    mx.eval(before)
    text = leak(lambda model: keep_global(model.layers[0].weight))
    assert str(before.shape) not in text
    assert f"({WIDTH}, {WIDTH})" in text


def test_pool_counts() -> None:
    """Memory that only moved to MLX's pool was not given back."""
    with pytest.MonkeyPatch.context() as patch:
        baseline = take_baseline()
        ref = weakref.ref(cast("object", made()))
        patch.setattr(mx, "get_cache_memory", lambda: baseline.cached + LAYERS * ONE)
        with pytest.raises(MemoryNotReleased, match=r"4\.2 MB cached"):
            prove_released(baseline, what="the reference model", ref=ref)


def test_tolerance_is_a_limit() -> None:
    """As much as the tolerance passes; a byte more does not."""
    ref = weakref.ref(cast("object", made()))
    now = take_baseline()
    for slack in (0, 1):
        low = Baseline(active=now.active - 100 - slack, cached=now.cached)
        if slack:
            with pytest.raises(MemoryNotReleased):
                prove_released(low, what="it", ref=ref, tolerance=100)
        else:
            prove_released(low, what="it", ref=ref, tolerance=100)


def test_failing_proof_keeps_nothing() -> None:
    """The error itself does not keep the model: drop the leak, and the proof passes."""
    baseline = take_baseline()
    model = made()
    ref = weakref.ref(cast("object", model))
    keep_global(model)
    del model
    with pytest.raises(MemoryNotReleased) as caught:
        prove_released(baseline, what="the reference model", ref=ref)
    keep_global(None)
    prove_released(baseline, what="the reference model", ref=ref)
    assert "KEPT" in str(caught.value)


def test_waits_for_what_frees_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that lets go while the proof waits is no leak."""
    monkeypatch.setattr(release, "WAITS", (0.0, 0.0, 2.0))
    baseline = take_baseline()
    model = made()
    ref = weakref.ref(cast("object", model))
    keep_global(model)
    del model
    timer = threading.Timer(0.5, keep_global, (None,))
    timer.start()
    prove_released(baseline, what="the reference model", ref=ref)
    timer.join()


def test_holders_of_nothing() -> None:
    """An object that only native code or nobody holds has no holder to name."""
    found = holders(object())
    assert found == []


def test_holders_are_few_and_told_apart() -> None:
    """At most three holders are named, none twice."""
    model = object()
    one, two, six = [Engine(model)], [model], {6: model}
    found = holders(model)
    assert len(found) == len(set(found)) == 3
    assert f"local variable `model` of `{sys._getframe().f_code.co_qualname}`" in found[0]
    assert all((one, two, six))
