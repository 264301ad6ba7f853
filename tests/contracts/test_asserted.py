"""Overrides and calls of live classes: what is accepted, what is not, and the words for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import mlxcheck
from mlxcheck.contracts import ContractBroken, assert_binds, assert_overrides
from mlxcheck.errors import UsageError
from tests.contracts.miniature.runner import Runner
from tests.contracts.miniature.stub import StubRunner


class Between(StubRunner):
    """Inherits from a stub."""


class Tools:
    """Every kind of method."""

    def plain(self, a: int, b: int = 1) -> None:
        """Take self."""

    @classmethod
    def of_class(cls, a: int) -> None:
        """Take the class."""

    @staticmethod
    def static(a: int) -> None:
        """Take nothing."""


def test_an_override_is_the_stubs_own() -> None:
    """Methods and class attributes, one name or several."""
    assert_overrides(StubRunner, Runner, "allocate")
    assert_overrides(StubRunner, Runner, ["allocate", "attach", "watch", "__init__"])
    mlxcheck.assert_overrides(StubRunner, Runner, ["allocate"])


def test_a_class_between_counts_as_the_stubs() -> None:
    """What matters is that the base's own does not run."""
    assert_overrides(Between, Runner, "allocate")
    with pytest.raises(ContractBroken, match=r"Between.allocate is inherited from StubRunner"):
        assert_overrides(Between, StubRunner, "allocate")


def test_what_is_inherited_is_named_with_what_would_run() -> None:
    """Every name, and the base's signature."""
    with pytest.raises(ContractBroken) as error:
        assert_overrides(StubRunner, Runner, ["attach", "step", "limit", "stepp"])

    assert str(error.value) == (
        "StubRunner.step is inherited from Runner, not overridden\n"
        "  runs   Runner.step(self, batch, sample=True)\n"
        "  define step in StubRunner\n"
        "StubRunner.limit is inherited from Runner, not overridden\n"
        "  runs   Runner.limit\n"
        "  define limit in StubRunner\n"
        "StubRunner has no stepp, and no base of it has\n"
        "  correct the name, or define it"
    )
    assert isinstance(error.value, AssertionError)


def test_overrides_of_what_is_no_base() -> None:
    """The order of the arguments, and nothing to look for."""
    with pytest.raises(
        UsageError, match=r"Runner does not derive from StubRunner. Give the cl"
    ):
        assert_overrides(Runner, StubRunner, "allocate")
    with pytest.raises(UsageError, match="Runner does not derive from Runner"):
        assert_overrides(Runner, Runner, "allocate")
    with pytest.raises(UsageError, match=r"no name to look for in StubRunner. Give at least"):
        assert_overrides(StubRunner, Runner, [])


def test_a_call_that_binds() -> None:
    """Methods of a class are given their self; others are called as they are."""
    assert_binds(StubRunner.allocate)
    assert_binds(StubRunner.allocate, {"slots": 1})
    assert_binds(StubRunner.allocate, layout="rows")
    assert_binds(Tools().plain, 1)
    assert_binds(Tools.of_class, 1)
    assert_binds(Tools.static, 1)
    assert_binds(Tools().static, a=1)
    assert_binds(partial(Tools().plain, 1))
    assert_binds(lambda a: a, 1)
    assert_binds(Tools)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "got an unexpected keyword argument 'rows'": (StubRunner.allocate, (), {"rows": 1}),
    "too many positional arguments": (StubRunner.allocate, (1, 2), {}),
    "missing a required argument: 'a'": (Tools.plain, (), {}),
    "missing a required argument: 'batch'": (StubRunner.step, (), {"sample": True}),
    "multiple values for argument 'a'": (Tools().plain, (1,), {"a": 2}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_call_that_does_not_bind(why: str) -> None:
    """Python's own reason is given."""
    method, args, kwargs = REFUSED[why]

    with pytest.raises(ContractBroken, match=why):
        assert_binds(method, *args, **kwargs)


def test_the_call_and_the_signature_are_shown() -> None:
    """One above the other."""
    with pytest.raises(ContractBroken) as error:
        mlxcheck.assert_binds(StubRunner.allocate, 1, rows="x")

    assert str(error.value) == (
        "StubRunner.allocate does not bind: got an unexpected keyword argument 'rows'\n"
        "  call   StubRunner.allocate(1, rows='x')\n"
        "  takes  StubRunner.allocate(self, plan=None, *, layout=None)\n"
        "  take these arguments, or change the call"
    )


def test_what_has_no_signature() -> None:
    """No method at all, and one of which Python knows nothing."""
    with pytest.raises(UsageError, match=r"7 has no signature: 7 is not a callable object."):
        assert_binds(7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no signature: no signature found for builtin"):
        assert_binds(iter)
