"""`mlxcheck.purity`: each way to patch mlx-lm is found and named, and nothing else is."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any
from unittest import mock

import mlx.core as mx
import mlx_lm
import pytest
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.models import activations, base, cache, qwen3, switch_layers

from mlxcheck import pristine
from mlxcheck.errors import ReferenceTampered
from mlxcheck.purity import prove_pure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Patch = Callable[[pytest.MonkeyPatch], None]

generation = sys.modules["mlx_lm.generate"]
"""The module: the package has a function of the same name."""


def mine(*_args: object, **_kwargs: object) -> None:
    """Stand in for an engine's fast path."""


class Mine(cache.KVCache):
    """Stand in for an engine's own cache."""

    def trim(self, n: int) -> int:
        """Trim less than asked."""
        return n - 1


class Runner:
    """Stand in for an engine's compiled runner: an object that can be called."""

    def __call__(self) -> None:
        """Do nothing."""


def wrapping(original: object) -> Callable[..., object]:
    """Wrap as decorators do: the copy has the name and module of the original."""

    @functools.wraps(original)  # type: ignore[arg-type]
    def fast(*args: object, **kwargs: object) -> object:
        return original(*args, **kwargs)  # type: ignore[operator]

    return fast


def put(owner: object, name: str, make: Callable[[Any], object]) -> Patch:
    """Patch *name* of *owner* by what *make* makes of the original."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original = vars(owner).get(name)
        monkeypatch.setattr(owner, name, make(original), raising=False)

    return patch


def recode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the function in its place and give it another body."""
    monkeypatch.setattr(base.create_causal_mask, "__code__", mine.__code__)


HERE = rf"{__name__}\.{{}}` \({__file__}:\d+\)"
MINE = HERE.format("mine")
FAST = HERE.format(r"wrapping\.<locals>\.fast")
ATTENTION = "scaled_dot_product_attention"

PATCHES: dict[str, tuple[Patch, str, str]] = {
    "function": (
        put(base, "create_attention_mask", lambda _: mine),
        "mlx_lm.models.base.create_attention_mask",
        MINE,
    ),
    "imported name": (
        put(qwen3, ATTENTION, lambda _: mine),
        f"mlx_lm.models.qwen3.{ATTENTION}",
        MINE,
    ),
    "imported name, by mlx_lm's own": (
        put(qwen3, ATTENTION, lambda _: base.quantized_scaled_dot_product_attention),
        f"mlx_lm.models.qwen3.{ATTENTION}",
        r"mlx_lm\.models\.base\.quantized_scaled_dot_product_attention",
    ),
    "generate_step": (
        put(generation, "generate_step", lambda _: mine),
        "mlx_lm.generate.generate_step",
        MINE,
    ),
    "functools.wraps": (
        put(base, ATTENTION, wrapping),
        f"mlx_lm.models.base.{ATTENTION}",
        FAST,
    ),
    "lambda": (
        put(base, "create_ssm_mask", lambda _: lambda *_: None),
        "mlx_lm.models.base.create_ssm_mask",
        HERE.format(r"<lambda>\.<locals>\.<lambda>"),
    ),
    "partial of the original": (
        put(base, "create_causal_mask", lambda old: functools.partial(old, window_size=8)),
        "mlx_lm.models.base.create_causal_mask",
        r"a partial of `mlx_lm\.models\.base\.create_causal_mask`",
    ),
    "compiled original": (
        put(base, "create_causal_mask", mx.compile),
        "mlx_lm.models.base.create_causal_mask",
        r"a compiled function of `mlx_lm\.models\.base\.create_causal_mask`",
    ),
    "callable object": (
        put(base, "create_causal_mask", lambda _: Runner()),
        "mlx_lm.models.base.create_causal_mask",
        rf"an instance of class `{__name__}\.Runner` \({__file__}:\d+\)",
    ),
    "mock": (
        put(base, "create_causal_mask", lambda _: mock.MagicMock()),
        "mlx_lm.models.base.create_causal_mask",
        r"an instance of class `unittest\.mock\.MagicMock`",
    ),
    "None": (
        put(base, "create_causal_mask", lambda _: None),
        "mlx_lm.models.base.create_causal_mask",
        "replaced by None",
    ),
    "same code, other globals": (
        put(base, "create_causal_mask", lambda old: types.FunctionType(old.__code__, {})),
        "mlx_lm.models.base.create_causal_mask",
        r"\.create_causal_mask` \(",
    ),
    "body of a function": (recode, "mlx_lm.models.base.create_causal_mask", r"test_purity\.py"),
    "default arguments": (
        put(base.create_causal_mask, "__defaults__", lambda _: (1, 8, None, None)),
        "default arguments of `mlx_lm.models.base.create_causal_mask`",
        r"changed to \(1, 8, None, None\)",
    ),
    "keyword defaults": (
        lambda patch: patch.setitem(
            generation.generate_step.__kwdefaults__, "prefill_step_size", 7
        ),
        "default arguments of `mlx_lm.generate.generate_step`",
        "'prefill_step_size': 7",
    ),
    "method": (
        put(qwen3.Attention, "__call__", lambda _: mine),
        "mlx_lm.models.qwen3.Attention.__call__",
        MINE,
    ),
    "method, functools.wraps": (
        put(qwen3.MLP, "__call__", wrapping),
        "mlx_lm.models.qwen3.MLP.__call__",
        FAST,
    ),
    "cache method": (
        put(cache.KVCache, "update_and_fetch", lambda _: mine),
        "mlx_lm.models.cache.KVCache.update_and_fetch",
        MINE,
    ),
    "static method": (
        put(cache.KVCache, "trim", lambda _: staticmethod(mine)),
        "mlx_lm.models.cache.KVCache.trim",
        f"a staticmethod of `{MINE}",
    ),
    "class method": (
        put(cache.KVCache, "merge", lambda _: classmethod(mine)),
        "mlx_lm.models.cache.KVCache.merge",
        MINE,
    ),
    "getter of a property": (
        put(cache.KVCache, "state", lambda old: property(mine, old.fset)),
        "mlx_lm.models.cache.KVCache.state",
        MINE,
    ),
    "setter of a property": (
        put(cache.KVCache, "state", lambda old: property(old.fget, mine)),
        "mlx_lm.models.cache.KVCache.state",
        MINE,
    ),
    "removed method": (
        lambda patch: patch.delattr(cache.RotatingKVCache, "size"),
        "mlx_lm.models.cache.RotatingKVCache.size",
        "was removed",
    ),
    "added method": (
        put(qwen3.Model, "__getattr__", lambda _: mine),
        "mlx_lm.models.qwen3.Model.__getattr__",
        f"which its file does not define, was set to `{MINE}",
    ),
    "added property": (
        put(qwen3.Model, "cast_predicate", lambda _: property(mine)),
        "mlx_lm.models.qwen3.Model.cast_predicate",
        f"a property of `{MINE}",
    ),
    "added method of mlx_lm's own": (
        put(cache.KVCache, "__len__", lambda _: cache.RotatingKVCache.size),
        "mlx_lm.models.cache.KVCache.__len__",
        r"RotatingKVCache\.size`",
    ),
    "dataclass's own method": (
        put(qwen3.ModelArgs, "__init__", wrapping),
        "mlx_lm.models.qwen3.ModelArgs.__init__",
        FAST,
    ),
    "class": (
        put(cache, "KVCache", lambda _: Mine),
        "mlx_lm.models.cache.KVCache",
        rf"class `{__name__}\.Mine` \({__file__}:\d+\)",
    ),
    "imported class": (
        put(generation, "QuantizedKVCache", lambda _: Mine),
        "mlx_lm.generate.QuantizedKVCache",
        rf"class `{__name__}\.Mine`",
    ),
    "compiled function": (
        put(activations, "swiglu", lambda _: mx.compile(mine)),
        "mlx_lm.models.activations.swiglu",
        MINE,
    ),
    "compiled function, plain": (
        put(switch_layers, "swiglu", lambda _: mine),
        "mlx_lm.models.switch_layers.swiglu",
        MINE,
    ),
    "context manager": (
        put(generation, "wired_limit", lambda _: contextlib.contextmanager(mine)),  # type: ignore[arg-type]
        "mlx_lm.generate.wired_limit",
        MINE,
    ),
    "context manager, functools.wraps": (
        put(generation, "wired_limit", wrapping),
        "mlx_lm.generate.wired_limit",
        FAST,
    ),
    "layer": (
        put(nn.Linear, "__call__", lambda _: mine),
        "mlx.nn.layers.linear.Linear.__call__",
        MINE,
    ),
    "base of all layers": (
        put(nn.Module, "__getattr__", wrapping),
        "mlx.nn.layers.base.Module.__getattr__",
        FAST,
    ),
    "layer, by star import": (put(nn, "Linear", lambda _: Mine), "mlx.nn.Linear", "Mine`"),
    "kernel": (
        put(mx.fast, "rms_norm", lambda _: mine),
        "mlx.core.fast.rms_norm",
        MINE,
    ),
    "kernel, compiled": (
        put(mx.fast, ATTENTION, mx.compile),
        f"mlx.core.fast.{ATTENTION}",
        "replaced by ",
    ),
    "operation": (put(mx, "softmax", wrapping), "mlx.core.softmax", FAST),
    "operator": (
        put(mx.array, "__matmul__", lambda _: mine),
        "mlx.core.array.__matmul__",
        MINE,
    ),
    "native namespace": (
        put(mx, "fast", lambda old: types.SimpleNamespace(**vars(old))),
        "mlx.core.fast",
        "SimpleNamespace",
    ),
    "mx of one module": (
        put(base, "mx", lambda old: types.SimpleNamespace(**vars(old))),
        "mlx_lm.models.base.mx",
        "SimpleNamespace",
    ),
    "submodule": (
        put(mlx_lm.models, "cache", lambda _: types.ModuleType("cache")),
        "mlx_lm.models.cache",
        r"module `cache` \(no file\)",
    ),
    "loaded module": (
        lambda patch: patch.setitem(
            sys.modules, "mlx_lm.models.base", types.ModuleType("mlx_lm.models.base")
        ),
        "mlx_lm.models.base",
        "is not the one in ",
    ),
    "hidden builtin": (
        put(base, "hasattr", lambda _: mine),
        "mlx_lm.models.base.hasattr",
        MINE,
    ),
    "foreign function": (
        put(sys.modules["mlx_lm.utils"], "snapshot_download", lambda _: mine),
        "mlx_lm.utils.snapshot_download",
        MINE,
    ),
}


@pytest.fixture(scope="module")
def clean() -> Iterator[int]:
    """Prove that all is pure before and after, and give how many functions that is."""
    count = prove_pure().functions
    yield count
    assert prove_pure().functions == count


@pytest.mark.parametrize("way", PATCHES)
def test_patch_is_found(way: str, clean: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what was replaced, and by what from where; undone, the proof passes."""
    assert clean > 0
    patch, name, culprit = PATCHES[way]
    with monkeypatch.context() as patching:
        patch(patching)
        with pytest.raises(ReferenceTampered) as caught:
            prove_pure()
    text = str(caught.value)
    assert f"{name}`" in text or name.endswith("`")
    assert name in text
    assert re.search(culprit, text), text


def test_patch_of_the_source_is_told_once() -> None:
    """Who imported the original before the patch still has the original: one finding."""
    with mock.patch.object(base, ATTENTION, mine), pytest.raises(ReferenceTampered) as caught:
        prove_pure()
    assert str(caught.value).count("was replaced by") == 1


def test_many_findings_are_counted() -> None:
    """The message stays readable: five findings are spelled out, the rest counted."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in list(vars(cache.KVCache).items()):
            if callable(value):
                patch.setattr(cache.KVCache, name, mine)
        with pytest.raises(ReferenceTampered) as caught:
            prove_pure()
    text = str(caught.value)
    assert text.count("was replaced by") == 5
    assert re.search(r"; and \d more\. ", text)
    assert "\n" not in text


def test_counts_what_was_verified() -> None:
    """The proof covers over a thousand functions of the modules that are loaded."""
    purity = prove_pure()
    loaded = [name for name in sys.modules if name.partition(".")[0] in {"mlx", "mlx_lm"}]
    assert purity.modules == len(loaded)
    assert purity.functions > 1000
    assert purity.unverifiable == 0
    assert prove_pure(["mlx_lm"]).functions < purity.functions


def test_only_the_named_packages() -> None:
    """A package that was not asked for may be patched as it likes."""
    with mock.patch.object(nn.Linear, "__call__", mine):
        prove_pure(["mlx_lm"])
        with pytest.raises(ReferenceTampered, match="Linear"):
            prove_pure(["mlx"])


def test_pure_after_a_generation() -> None:
    """Running the model specialises bytecode and fills caches; it changes no function."""
    args = qwen3.ModelArgs(
        model_type="qwen3",
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=4,
        rms_norm_eps=1e-6,
        vocab_size=128,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_theta=10000.0,
        head_dim=8,
        tie_word_embeddings=False,
    )
    model = qwen3.Model(args)
    tokens = [token for token, _ in generate_step(mx.array([1, 2, 3]), model, max_tokens=64)]
    assert len(tokens) == 64
    prove_pure()


EVERYTHING = """
import importlib, pkgutil, mlx_lm, mlx.optimizers
from mlxcheck.purity import prove_pure
for found in pkgutil.walk_packages(mlx_lm.__path__, "mlx_lm."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except (ImportError, SystemExit):
            pass  # a model that needs a package of its own
purity = prove_pure()
print(purity.modules, purity.functions, purity.unverifiable)
"""


def test_every_module_of_mlx_lm_is_pure() -> None:
    """Nothing in any module of mlx_lm that can be imported looks like a patch."""
    run = subprocess.run(
        [sys.executable, "-c", EVERYTHING], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    modules, functions, unverifiable = map(int, run.stdout.split()[-3:])
    assert modules > 150
    assert functions > 3000
    assert unverifiable == 0


def test_reloaded_module_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reload the importers hold the older copy of the same code: no patch."""
    for name, value in vars(base).items():
        monkeypatch.setattr(base, name, value)
    importlib.reload(base)
    assert base.scaled_dot_product_attention is not qwen3.scaled_dot_product_attention
    prove_pure()


def test_module_without_a_file_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An architecture that was added under mlx_lm's name cannot be verified, and is told."""
    before = prove_pure()
    monkeypatch.setitem(sys.modules, "mlx_lm.models.added", types.ModuleType("added"))
    after = prove_pure()
    assert after.unverifiable == before.unverifiable + 1
    assert after.modules == before.modules + 1


def test_module_whose_loader_has_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that cannot give the code makes a module unverifiable, not impure."""
    spec = base.__spec__
    assert spec is not None
    monkeypatch.setattr(spec, "loader", object())
    assert prove_pure().unverifiable == 1


def test_foreign_package_may_be_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm's own copy of a name of another package is the original: no matter."""
    transformers = sys.modules["transformers"]
    monkeypatch.setattr(transformers, "PreTrainedTokenizer", Runner)
    prove_pure()


SOURCE = """
from __future__ import annotations
import functools, os.path as path, contextlib
from collections import *
try:
    import no_such_module as fast
except ImportError:
    fast = None
if fast is None:
    def either(x=(1, 2)): return x
else:
    def either(x=3): return -x
LIMIT = 3
def plain(a, b=1, *, k=2, j=LIMIT): return a
def computed(a=LIMIT, b=(1, 2) if LIMIT else 0): return a
def tuples(a=(1, 2), b=LIMIT): return a
def functions(key=lambda a=1: a): return key
@functools.lru_cache(maxsize=None)
def cached(a=1): return a
@contextlib.contextmanager
def managed():
    yield
counter = None
def count():
    global counter
    counter = plain
class Outer:
    size = 3
    class Inner:
        def method(self): return 1
    def __private(self): return 2
    @property
    def value(self): return 3
    @value.setter
    def value(self, new): pass
    @staticmethod
    def static(a=1): return a
    def __init_subclass__(cls): pass
    alias = static
    gone = None
    del gone
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Import a package with one of each statement that binds a name."""
    folder = tmp_path / "shapes_of_names"
    folder.mkdir()
    folder.joinpath("__init__.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shapes_of_names")
    del sys.modules["shapes_of_names"]


def test_every_shape_of_statement_is_pure(package: types.ModuleType) -> None:
    """None of the ways to bind a name is taken for a patch, before and after a run."""
    for _ in range(2):
        assert prove_pure(["shapes_of_names"]).functions >= 13
        package.count()
        package.cached()
        assert package.counter is package.plain


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("plain", "__defaults__", (2,)),
        ("plain", "__defaults__", (True,)),
        ("plain", "__defaults__", None),
        ("plain", "__kwdefaults__", {"k": 3, "j": 3}),
        ("plain", "__kwdefaults__", None),
        ("tuples", "__defaults__", ((2, 1), 3)),
        ("count", "__defaults__", (1,)),
        ("count", "__kwdefaults__", {"k": 1}),
    ],
)
def test_changed_default_is_found(
    package: types.ModuleType, name: str, attribute: str, value: object
) -> None:
    """Every default that the file writes as a constant is known, type included."""
    setattr(getattr(package, name), attribute, value)
    with pytest.raises(
        ReferenceTampered, match=f"default arguments of `.*{name}` were changed"
    ):
        prove_pure(["shapes_of_names"])


def test_either_branch_counts(package: types.ModuleType) -> None:
    """Of two definitions under one name any is the file's own; a third is not."""
    code = next(
        found
        for found in pristine.nested(compile(SOURCE, package.__file__ or "", "exec"))
        if found.co_name == "either" and found != package.either.__code__
    )
    package.either.__code__ = code
    prove_pure(["shapes_of_names"])
    package.either.__code__ = mine.__code__
    with pytest.raises(ReferenceTampered, match="either"):
        prove_pure(["shapes_of_names"])


def test_cached_function_is_opened(package: types.ModuleType) -> None:
    """Under a wrapper that the file asked for, another function is found."""
    vars(package)["cached"] = functools.lru_cache(mine)
    with pytest.raises(ReferenceTampered, match=rf"shapes_of_names\.cached`.* `{MINE}"):
        prove_pure(["shapes_of_names"])


def test_nested_class_is_checked(package: types.ModuleType) -> None:
    """A method of a class in a class is a function like any other."""
    package.Outer.Inner.method = mine
    with pytest.raises(ReferenceTampered, match=r"Outer\.Inner\.method` was replaced"):
        prove_pure(["shapes_of_names"])
