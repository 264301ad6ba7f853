"""From what a user names to a backend, and what is said where there is none."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.backends import registry
from mlxcheck.backends.base import Backend
from mlxcheck.backends.function import FunctionBackend
from mlxcheck.backends.mlx_lm import MlxLmBackend
from mlxcheck.errors import BackendError
from tests.support.driven import Engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODULE = """
from tests.support.driven import Engine

def generate(prompts, max_tokens):
    return [[1] for _ in prompts]

class Runner(Engine):
    name = "runner"

class Box:
    class Inner(Runner):
        pass

NUMBER = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes an importable module and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    names = iter(range(100))

    def write(source: str) -> str:
        name = f"planted_{tmp_path.name}_{next(names)}"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        return name

    return write


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that feigns entry points of installed packages."""

    def install(**targets: str) -> None:
        group = "mlxcheck.backends"
        found = [metadata.EntryPoint(name, value, group) for name, value in targets.items()]
        asked: dict[str, list[metadata.EntryPoint]] = {group: found}
        monkeypatch.setattr(metadata, "entry_points", lambda *, group: asked[group])

    return install


def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Answer nothing in particular."""
    return [[max_tokens] for _ in prompts]


def said(backend: object) -> str:
    """Return what is said of a backend that cannot be had."""
    with pytest.raises(BackendError) as caught:
        registry.resolve(backend)()
    assert "\n" not in str(caught.value), "an error is one paragraph"
    return str(caught.value)


# --- Names ----------------------------------------------------------------------------------


def test_built_in_names() -> None:
    """The default resolves to its class, made fresh each time, and nothing is opened."""
    factory = registry.resolve("mlx-lm")

    one, other = factory(), factory()

    assert isinstance(one, MlxLmBackend)
    assert one is not other
    assert isinstance(one, Backend)


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_every_built_in_name_has_a_class(name: str) -> None:
    """No line of the table points nowhere; the engine itself need not be installed."""
    assert isinstance(registry.resolve(name)(), Backend)


def test_an_unknown_name_with_its_nearest() -> None:
    """A misspelt name gets the nearest ones, all names, and the way to name one's own."""
    text = said("sglan")

    assert text.startswith("there is no backend 'sglan'. Did you mean sglang or ")
    assert ", ".join(registry.known()) in text
    assert "package.module:attribute" in text


def test_an_unknown_name_like_no_other() -> None:
    """Nothing is guessed where nothing is near."""
    assert "Did you mean" not in said("zzz")


def test_entry_points_are_names(
    installed: Callable[..., None], module: Callable[[str], str]
) -> None:
    """An installed package's backend is known, resolved and suggested by its name."""
    target = module(MODULE)
    installed(fast=f"{target}:Runner", rows=f"{target}:generate")

    assert registry.known() == tuple(sorted([*registry.BUILT_IN, "fast", "rows"]))
    assert registry.resolve("fast")().name == "runner"
    assert registry.resolve("rows")().name == "rows"
    assert "Did you mean fast?" in said("fsat")


def test_an_entry_point_that_does_not_import_names_itself(
    installed: Callable[..., None],
) -> None:
    """The error of a broken package has the name that the user gave."""
    installed(fast="no_such_package_here:Runner")

    assert said("fast").startswith("backend 'fast': importing no_such_package_here failed")


# --- Dotted names ---------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["Runner", "Box.Inner"])
def test_dotted_names(module: Callable[[str], str], attribute: str) -> None:
    """A class is found by module and attribute, also inside another one."""
    backend = registry.resolve(f"{module(MODULE)}:{attribute}")()

    assert backend.name == "runner"


def test_a_dotted_function(module: Callable[[str], str]) -> None:
    """A function is driven as an engine, called what the user called it."""
    name = f"{module(MODULE)}:generate"

    backend = registry.resolve(name)()

    assert isinstance(backend, FunctionBackend)
    assert backend.name == name


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("Runnner", "has no 'Runnner'. Did you mean Runner?"),
        ("Box.Iner", "has no 'Box.Iner'. Did you mean Inner?"),
        ("qqqq", "has no 'qqqq'."),
        ("", "has no ''."),
    ],
)
def test_a_missing_attribute(
    module: Callable[[str], str], attribute: str, expected: str
) -> None:
    """What the module does not have is named, with the nearest that it has."""
    target = module(MODULE)

    assert said(f"{target}:{attribute}").endswith(f"{target} {expected}")


def test_a_module_that_is_not_there() -> None:
    """A missing package is named as what to install."""
    text = said("no_such_package_here.engine:Runner")

    assert "importing no_such_package_here.engine failed" in text
    assert "Install what provides 'no_such_package_here'" in text


def test_a_module_whose_own_import_fails(module: Callable[[str], str]) -> None:
    """The package that is missing is named, not the module that wanted it."""
    target = module("import no_such_kernel_here\n")

    assert "Install what provides 'no_such_kernel_here'" in said(f"{target}:Runner")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 / 0\n", "raised ZeroDivisionError: division by zero"),
        ("def broken(:\n", "raised SyntaxError: invalid syntax"),
        ("raise SystemExit(0)\n", "raised SystemExit: 0"),
    ],
)
def test_a_module_that_raises(module: Callable[[str], str], source: str, expected: str) -> None:
    """Whatever a module raises is told in a sentence: even its exit must not be ours."""
    target = module(source)

    text = said(f"{target}:Runner")

    assert text.startswith(f"backend '{target}:Runner': importing {target} {expected}")
    assert text.endswith("The module has to import before it can be driven.")


# --- Objects --------------------------------------------------------------------------------


class NotEngine:
    """Has some of what a backend has."""

    name = "half"

    def open(self, model: object) -> None: ...

    def step(self) -> None: ...


class Method:
    """Holds a function as a method, and is callable itself."""

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        return generate(prompts, max_tokens)

    def __call__(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Answer."""
        return generate(prompts, max_tokens)


def factory() -> Engine:
    """Make an engine."""
    return Engine()


def factory_with_defaults(rows: int = 4, chunk: int = 512) -> Engine:
    """Make an engine, with things that may be set."""
    del rows, chunk
    return Engine()


def with_default(prompts: list[list[int]], max_tokens: int = 64) -> list[list[int]]:
    """Answer."""
    return generate(prompts, max_tokens)


@pytest.mark.parametrize(
    "backend", [Engine, factory, factory_with_defaults, functools.partial(Engine)]
)
def test_classes_and_factories_make_a_fresh_engine_each_time(backend: object) -> None:
    """A class, and a function that needs no argument, are called for each engine."""
    made = registry.resolve(backend)

    one, other = made(), made()

    assert isinstance(one, Engine)
    assert isinstance(other, Engine)
    assert one is not other


def test_a_ready_backend_is_itself() -> None:
    """An instance is used as it is."""
    engine = Engine()

    assert registry.resolve(engine)() is engine


@pytest.mark.parametrize(
    "backend",
    [
        generate,
        with_default,
        lambda rows, most: generate(rows, most + 1),
        functools.partial(generate),
        Method().generate,
        Method(),
    ],
)
def test_functions_of_two_arguments_are_engines(backend: object) -> None:
    """Whatever is called with prompts and max_tokens is driven as an engine."""
    assert isinstance(registry.resolve(backend)(), FunctionBackend)


def test_a_function_is_not_called_before_it_is_driven() -> None:
    """Neither resolving nor making a function's backend runs it."""

    def explode(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        raise AssertionError(prompts, max_tokens)

    assert registry.resolve(explode)().name == "explode"


@pytest.mark.parametrize("backend", [7, None, ["mlx-lm"], {"name": "x"}])
def test_what_is_no_backend_at_all(backend: object) -> None:
    """Things that cannot be called are refused when they are resolved, with their value."""
    with pytest.raises(BackendError, match="expected a Backend, a class or factory") as caught:
        registry.resolve(backend)

    assert repr(backend) in str(caught.value)


def test_a_class_that_lacks_something() -> None:
    """What a class lacks is listed, attributes last, and where to read about it."""
    text = said(NotEngine)

    assert "NotEngine lacks submit, cancel, stats, close, capabilities;" in text
    assert "mlxcheck.backends.base.Backend" in text


def test_an_instance_that_lacks_something() -> None:
    """A ready object with every method and no capabilities is no backend either."""

    class Bare(Engine):
        @property
        def capabilities(self) -> Any:  # type: ignore[override]
            raise AttributeError

    assert "Bare lacks capabilities;" in said(Bare())


def test_a_class_that_needs_arguments() -> None:
    """A class that cannot be made without arguments says which ones."""

    class Needs(Engine):
        def __init__(self, server: str) -> None:
            super().__init__()
            self.server = server

    text = said(Needs)

    assert text.startswith("backend 'engine': making it without arguments failed: ")
    assert "'server'" in text


def test_a_function_of_one_argument_is_refused() -> None:
    """A function that does not take max_tokens cannot be driven."""

    def lonely(prompts: list[list[int]]) -> list[list[int]]:
        return prompts

    assert said(lonely).startswith("backend 'lonely': making it without arguments failed")


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("mlx-lm", "mlx-lm"),
        ("a.b:c", "a.b:c"),
        (Engine, "engine"),
        (Engine(), "engine"),
        (generate, "generate"),
    ],
)
def test_describe(backend: object, expected: str) -> None:
    """A backend has a short name before it has been made."""
    assert registry.describe(backend) == expected
