"""Signatures from sources are Python's own, and what is not narrower takes every call."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxcheck.contracts.signatures import bind_error, narrower, shown, signature_of

NAMES = ("a", "b", "c")


def read(text: str) -> inspect.Signature:
    """Return the signature of ``def f(text)`` from its source."""
    (node,) = ast.parse(f"def f({text}): ...").body
    assert isinstance(node, ast.FunctionDef)
    return signature_of(node.args)


def compiled(text: str) -> inspect.Signature:
    """Return what Python itself makes of it."""
    names: dict[str, Any] = {}
    exec(f"def f({text}): ...", names)  # noqa: S102 - a signature of our own making
    return inspect.signature(names["f"])


@st.composite
def parameters(draw: st.DrawFn) -> str:
    """Draw the text between the brackets of a method."""
    count = draw(st.integers(0, 3))
    names = list(draw(st.permutations(NAMES)))[:count]
    split = draw(st.integers(0, count))
    first_default = draw(st.integers(0, split))
    parts = ["self"]
    parts += [n if i < first_default else f"{n}=1" for i, n in enumerate(names[:split])]
    slash = draw(st.integers(0, split))
    if slash:
        parts.insert(slash + 1, "/")
    star = draw(st.sampled_from(("", "*args")))
    late = names[split:]
    if star or late:
        parts.append(star or "*")
    parts += [draw(st.sampled_from((n, f"{n}=1"))) for n in late]
    if draw(st.booleans()):
        parts.append("**kwargs")
    return ", ".join(parts)


calls = st.tuples(st.integers(0, 4), st.sets(st.sampled_from((*NAMES, "d"))))


@given(parameters(), calls)
def test_a_signature_from_source_binds_as_pythons_own(text: str, call: Any) -> None:
    """The same calls, for the same reasons."""
    positional, keywords = call

    found = bind_error(read(text), positional + 1, tuple(keywords))

    assert found == bind_error(compiled(text), positional + 1, tuple(keywords))
    assert shown("f", read(text)) == shown("f", compiled(text))


@given(parameters(), parameters(), calls)
@example("self, a", "self, b", (1, set()))
@example("self, a=1, **kwargs", "self, a, **kwargs", (1, set()))
def test_an_override_that_is_not_narrower_takes_every_call(
    override: str, base: str, call: Any
) -> None:
    """Whatever binds to the base binds to it."""
    own, theirs = read(override), read(base)
    positional, keywords = call
    binds = not bind_error(theirs, positional + 1, tuple(keywords))

    if binds and not narrower(own, theirs):
        assert bind_error(own, positional + 1, tuple(keywords)) == ""


@given(parameters())
def test_no_signature_is_narrower_than_itself(text: str) -> None:
    """An override that is the same is sound."""
    assert narrower(read(text), read(text)) == []


NARROWER = {
    ("self", "self, a"): ["takes no a by position", "takes no a by name"],
    ("self, a", "self, a=1"): ["requires a, which may be left out of the base"],
    ("self, b", "self, a"): ["has b in the place of a", "takes no a by name"],
    ("self, *, a", "self, a"): ["takes no a by position"],
    ("self, a, /", "self, a"): ["takes no a by name"],
    ("self, a", "self"): ["requires a, which the base does not have"],
    ("self, *, a", "self"): ["requires a, which the base does not have"],
    ("self", "self, *args, **kwargs"): ["takes no *args", "takes no **kwargs"],
    ("self", "self, *, a=1"): ["takes no a by name"],
    ("self, *args, b", "self, b=1, /"): [
        "refuses a call that the base takes: missing a required argument: 'b'"
    ],
    ("self, *, a", "self, *, a=1"): ["requires a, which may be left out of the base"],
}


@pytest.mark.parametrize("pair", NARROWER)
def test_what_is_narrower_is_told(pair: tuple[str, str]) -> None:
    """In words that name the argument."""
    assert narrower(read(pair[0]), read(pair[1])) == NARROWER[pair]


def test_a_call_with_a_star_is_bound_as_far_as_it_is_written() -> None:
    """What is written has to fit; what is not may be given by the star."""
    signature = read("self, a, b")

    assert bind_error(signature, 1, (), whole=False) == ""
    assert (
        bind_error(signature, 1, ("d",), whole=False)
        == "got an unexpected keyword argument 'd'"
    )
    assert bind_error(signature, 4, (), whole=False) == "too many positional arguments"
