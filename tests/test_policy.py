"""The rules of judgement: what they are when nothing is said, and what could not be meant."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlxcheck.errors import UsageError
from mlxcheck.policy import LONGEST_S, MODES, PRECISIONS, Policy


def test_defaults() -> None:
    """Both passes, the microscope first, against measured noise."""
    policy = Policy()

    assert policy.precision == ("float32", "native")
    assert (policy.mode, policy.alpha, policy.prefill_chunk) == ("calibrated", 0.001, 2048)
    assert (policy.watchdog_s, policy.grace_s) == (120.0, 10.0)
    assert (MODES, PRECISIONS) == (("calibrated", "strict"), ("float32", "native"))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("native", ("native",)),
        ("float32", ("float32",)),
        (["native", "float32"], ("native", "float32")),
        (("native", "native"), ("native",)),
        (("native", "float32", "native"), ("native", "float32")),
    ],
)
def test_passes_are_kept_once_and_in_their_order(given: Any, kept: tuple[str, ...]) -> None:
    """One name or several; alpha is shared by the tests of as many passes as there are."""
    policy = Policy(precision=given)

    assert policy.precision == kept
    assert policy.tests == 6 * len(kept)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("precision", (), "expected some of ('float32', 'native')"),
        ("precision", "", "expected some of"),
        ("precision", "float16", "expected some of"),
        ("precision", ("native", "bfloat16"), "expected some of"),
        ("mode", "loose", "expected one of ('calibrated', 'strict')"),
        ("mode", "", "expected one of"),
        ("prefill_chunk", 0, "expected at least 1 token"),
        ("prefill_chunk", -1, "expected at least 1 token"),
        ("prefill_chunk", True, "expected at least 1 token"),
        ("alpha", 0, "expected a probability between 0 and 1"),
        ("alpha", 1, "expected a probability"),
        ("alpha", math.nan, "expected a probability"),
        ("watchdog_s", 0, "expected 0 < seconds <= 86400"),
        ("watchdog_s", LONGEST_S + 1, "expected 0 < seconds"),
        ("watchdog_s", math.nan, "expected 0 < seconds"),
        ("grace_s", -1.0, "expected 0 < seconds"),
        ("grace_s", math.inf, "expected 0 < seconds"),
    ],
)
def test_what_could_not_be_meant_is_refused(field: str, value: Any, told: str) -> None:
    """One sentence: the field, the value, and what was expected."""
    options: dict[str, Any] = {field: value}

    with pytest.raises(UsageError) as caught:
        Policy(**options)

    assert str(caught.value).startswith(f"Policy({field}={value!r}): ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefill_chunk", 1),
        ("alpha", 1e-12),
        ("alpha", 0.999),
        ("watchdog_s", LONGEST_S),
        ("grace_s", 1e-3),
        ("mode", "strict"),
    ],
)
def test_what_can_be_meant_is_kept(field: str, value: Any) -> None:
    """The ends of every range are inside it."""
    options: dict[str, Any] = {field: value}

    assert getattr(Policy(**options), field) == value
