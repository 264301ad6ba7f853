"""Doubles are held against the code that they are passed to, and counters have to count."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import mlxcheck
from mlxcheck.contracts import ContractBroken, assert_counts, check_double
from mlxcheck.errors import UsageError
from tests.contracts.support import MINIATURE, told

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """A scheduler's loop, of which a test keeps a double."""

    forward_ct: int
    batch: Any

    def step(self) -> None:
        """Run a pass."""
        self.prepare(self.batch, at=1)

    def prepare(self, batch: Any, *, at: int) -> None:
        """Count the pass and stamp the batch."""
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct
        if hasattr(self, "extra"):
            self.extra.note(at)

    def finish(self, result: Any) -> None:
        """Take what a pass gave."""
        self.last = result.tokens


class FakeLoop:
    """A double without the counter."""

    def __init__(self) -> None:
        self.batch = SimpleNamespace()

    def prepare(self, batch: Any, *, at: int) -> None:
        """Do nothing."""


class CountingLoop(FakeLoop):
    """A double with it."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_ct = 0

    def step(self) -> None:
        """Count."""
        Loop.prepare(self, self.batch, at=1)  # type: ignore[arg-type]


def test_a_counter_that_is_forgotten_is_reported_by_name() -> None:
    """With the file and the line of the code that counts."""
    report = check_double(FakeLoop(), Loop.prepare)

    (found,) = report.findings
    assert (found.kind, found.name, found.file) == ("missing-attribute", "forward_ct", __file__)
    assert found.message == (
        f"missing-attribute  FakeLoop.forward_ct: {found.at} writes it\n"
        "  give the double forward_ct, as what it stands for has it"
    )
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[found.line - 1]
    assert "self.forward_ct += 1" in line
    with pytest.raises(ContractBroken, match=r"FakeLoop.forward_ct"):
        report.require()


def test_with_the_counter_one_step_counts_one() -> None:
    """The double is whole, and its step counts."""
    double = CountingLoop()

    assert mlxcheck.check_double(double, Loop.prepare).require().outcome == "pass"
    mlxcheck.assert_counts(double, double.step, "forward_ct")
    assert double.forward_ct == 1


def test_a_class_means_every_method_of_it() -> None:
    """What one of them lacks, another may define: its place is told."""
    report = check_double(FakeLoop(), Loop)

    assert told(report) == [("missing-attribute", "forward_ct"), ("missing-attribute", "last")]
    assert told(check_double(SimpleNamespace(), Loop.step)) == [
        ("missing-attribute", "prepare"),
        ("missing-attribute", "batch"),
    ]
    (first, *_) = check_double(SimpleNamespace(), Loop).findings
    assert first.message.splitlines()[1].startswith("  Loop defines it at ")


def test_a_double_that_is_an_argument() -> None:
    """Named, of a function or of a class; several pieces of code at once."""
    assert told(check_double(SimpleNamespace(), Loop.finish, parameter="result")) == [
        ("missing-attribute", "tokens")
    ]
    both: list[Callable[..., Any] | str] = [
        Loop.finish,
        f"{MINIATURE / 'scheduler.py'}:Scheduler.admit",
    ]
    assert told(check_double(SimpleNamespace(), both)) == [
        ("missing-attribute", "last"),
        ("missing-attribute", "worker"),
    ]
    assert check_double(SimpleNamespace(forward_iter=0), Loop, parameter="batch").reads == 1


def test_a_guarded_attribute_is_not_asked_for() -> None:
    """`hasattr` asks on the code's own account."""
    report = check_double(CountingLoop(), Loop.prepare)

    assert report.guarded == 2
    assert report.outcome == "pass"


class Strict(CountingLoop):
    """A double whose method takes less."""

    def prepare(self, batch: Any) -> None:  # type: ignore[override]
        """Take no `at`."""


def test_a_method_of_the_double_has_to_take_its_call() -> None:
    """It is bound, and something that cannot be called is told."""
    (found,) = check_double(Strict(), Loop.step).findings

    assert found.message == (
        f"call-does-not-bind  Strict.prepare: {found.at} calls it: got an unexpected keyword "
        "argument 'at'\n  double  prepare(batch)\n  let the double take what it is called with"
    )
    (found,) = check_double(SimpleNamespace(prepare=1, batch=2), Loop.step).findings
    assert "calls it: int cannot be called" in found.message


def test_code_that_does_not_touch_the_double_is_inconclusive() -> None:
    """Nothing was compared."""
    assert check_double(FakeLoop(), Loop.finish, parameter="result").outcome == "fail"
    assert check_double(FakeLoop(), told).outcome == "fail"
    assert check_double(FakeLoop(), aloof).outcome == "inconclusive"


def aloof(double: Any) -> Any:
    """Do nothing with it."""
    return double


def test_code_without_the_parameter() -> None:
    """One error that names it."""
    with pytest.raises(UsageError, match=r"finish has no parameter rows, so that no double"):
        check_double(FakeLoop(), Loop.finish, parameter="rows")
    with pytest.raises(UsageError, match=r"nothing has no parameter, so that no double is"):
        check_double(FakeLoop(), nothing)


def nothing() -> None:
    """Take nothing."""


COUNTS: dict[str, Callable[[Any], Any]] = {
    "was 0 and is 0 after one step: raised by 0, expected 1. Count where": lambda _: None,
    "was 0 and is 2 after one step: raised by 2, expected 1.": lambda d: setattr(d, "n", 2),
    "is 'x' after the step, which is no number. Start": lambda d: setattr(d, "n", "x"),
    "is True after the step, which is no number": lambda d: setattr(d, "n", True),
    "SimpleNamespace.n is not there after the step. Give the": lambda d: delattr(d, "n"),
}


@pytest.mark.parametrize("why", COUNTS)
def test_a_step_that_does_not_count(why: str) -> None:
    """What it was, what it is, and what was expected."""
    double = SimpleNamespace(n=0)

    with pytest.raises(ContractBroken, match=why):
        assert_counts(double, lambda: COUNTS[why](double), "n")


def test_a_counter_that_is_not_there() -> None:
    """Before the step."""
    with pytest.raises(ContractBroken, match=r"FakeLoop.forward_ct is not there before the st"):
        assert_counts(FakeLoop(), lambda: None, "forward_ct")


def test_bound_and_wrapped_code_is_found_where_it_is_written() -> None:
    """A method of an object is its function; what `wraps` a function is that function."""

    @functools.wraps(Loop.finish)
    def wrapped(*args: Any) -> None:
        Loop.finish(*args)

    expected = [("missing-attribute", "last")]
    assert told(check_double(FakeLoop(), Loop().finish)) == expected
    assert told(check_double(FakeLoop(), wrapped)) == expected


def test_another_stride() -> None:
    """Any number that is asked for."""
    double = SimpleNamespace(n=0.5)

    assert_counts(double, lambda: setattr(double, "n", 3.0), "n", by=2.5)
