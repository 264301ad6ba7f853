"""The rules by which a stub is followed, each in the smallest classes that need it."""

# ruff: noqa: E501 - tables of code, one case a line

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlxcheck.contracts import check_stub, lifecycle
from tests.contracts.support import told
from tests.contracts.test_stub import check

if TYPE_CHECKING:
    from pathlib import Path

BASE = """
class Base:
    def __init__(self):
        self.prepare()

    def prepare(self):
        self.a = 1

    def later(self):
        self.b = 2
"""
GO = "def f(r: Base): r.go()"
READ = "def f(r: Base): r.b"
MISSING = [("missing-attribute", "b")]


def classes(base: str, stub: str, name: str = "Stub(Base)") -> str:
    """Return the two classes, with more in each."""
    return f"{BASE}{base}\n\nclass {name}:\n{stub or '    pass'}\n"


FOLLOWED = {
    "a condition is turned round": ("    def prepare(self):\n        self.on = False\n        if not self.on: pass\n        else: self.b = 1", MISSING),
    "what is one or the other is not known": ("    def prepare(self):\n        if x: self.on = False\n        else: self.on = True\n        if self.on: self.b = 1", []),
    "an argument is handed on by position": ("    def prepare(self): self.put(False)\n    def put(self, on=True):\n        if on: pass\n        else: self.b = 1", []),
    "an argument is handed on by name": ("    def prepare(self): self.put(on=False)\n    def put(self, on=True):\n        if on: self.b = 1", MISSING),
    "an argument is left out": ("    def prepare(self): self.put()\n    def put(self, on=False):\n        if on: self.b = 1", MISSING),
    "a setter sets it": ("    @property\n    def q(self): ...\n    @q.setter\n    def q(self, value): self.b = value\n    def prepare(self): self.q = 1", []),
    "a property is it": ("    @property\n    def b(self): return self.a", []),
    "a method returns what decides": ("    def on(self): return False\n    def prepare(self):\n        if self.on(): self.b = 1", MISSING),
    "a loop may end early": ("    def prepare(self):\n        for n in range(3):\n            if n: break\n            self.b = n", []),
    "a handler sets it": ("    def prepare(self):\n        try: x()\n        except ValueError: self.b = 1", []),
    "a match sets it": ("    def prepare(self):\n        match x:\n            case 1: self.b = 1", []),
    "a nested function sets it": ("    def prepare(self):\n        def later(): self.b = 1\n        later()", []),
    "a choice reads it": ("    def prepare(self): self.c = self.a if x else 1", MISSING),
}  # fmt: skip


@pytest.mark.parametrize("rule", FOLLOWED)
def test_a_constructor_is_followed(rule: str, tmp_path: Path) -> None:
    """Into helpers, branches and properties, with what is known of their values."""
    body, expected = FOLLOWED[rule]

    assert told(check(tmp_path, READ, classes("", body))) == expected


def test_the_order_of_resolution_is_pythons(tmp_path: Path) -> None:
    """A base that two classes share comes after both."""
    two = "class A(Base): ...\nclass B(Base):\n    def prepare(self):\n        self.b = 1\n"

    report = check(tmp_path, READ, f"{BASE}\n{two}\nclass Stub(A, B): ...\n")

    assert told(report) == []


def test_a_deleter_is_not_the_property(tmp_path: Path) -> None:
    """What the property reads is asked for, whatever stands after it."""
    body = "    def prepare(self): ...\n    @property\n    def b(self): return self.a\n    @b.deleter\n    def b(self): ...\n"

    assert told(check(tmp_path, READ, classes("", body))) == [("missing-attribute", "a")]


def test_an_assertion_in_both_constructors_is_the_bases_own(tmp_path: Path) -> None:
    """The stub has not made it fail."""
    whole = classes("", "").replace(
        "self.prepare()", "self.prepare()\n        assert self.a == 2"
    )

    assert told(check(tmp_path, READ.replace(".b", ".a"), whole)) == []


def test_what_an_assertion_says_is_known_past_it(tmp_path: Path) -> None:
    """So that the branch that it rules out is not followed."""
    go = "    def go(self):\n        self.x = y()\n        assert self.x is not None\n        if self.x is None: self.b"

    assert check(tmp_path, GO, classes(go, "    def prepare(self): ...")).unresolved == ()


ABSTRACT = "    @abstractmethod\n    def go(self): ...\n"


def test_an_abstract_method_that_callers_call_must_be_overridden(tmp_path: Path) -> None:
    """Whatever its body is."""
    (found,) = check(tmp_path, GO, classes(ABSTRACT, "")).findings

    assert (found.kind, found.name) == ("must-override", "go")
    assert "use.py:2 calls it, and it is abstract in Base (classes.py:12)" in found.message


TWICE = {
    "the stub sets it early": ("self.c = 1", "", [("must-override", "go")]),
    "the base sets it early too": ("self.c = 1", "self.c = 0", []),
    "in one branch only": ("if x: self.c = 1", "", []),
    "in both branches": ("if x: self.c = 1\n        else: self.c = 2", "", [("must-override", "go")]),
    "it is added to": ("self.c += 1", "", []),
}  # fmt: skip


@pytest.mark.parametrize("way", TWICE)
def test_an_inherited_method_that_does_again_what_the_stub_has_done(
    way: str, tmp_path: Path
) -> None:
    """Only where it is sure to, and where the base leaves it to that method alone."""
    body, early, expected = TWICE[way]
    base = f"    def go(self):\n        {body}"
    whole = classes(base, "    def prepare(self):\n        self.a = self.c = None")
    whole = whole.replace("self.a = 1", f"self.a = 1\n        {early}")

    assert told(check(tmp_path, GO, whole)) == expected
    assert told(check(tmp_path, "def f(r: Base):\n    if x: r.go()", whole)) == []


def test_which_method_was_called_before_is_not_known(tmp_path: Path) -> None:
    """What another one may have set decides nothing."""
    base = "    def begin(self): self.c = 1\n    def go(self):\n        if self.c is None: return\n        self.b"
    stub = "    def prepare(self): self.c = None"

    report = check(tmp_path, f"{GO}; r.begin()", classes(base, stub))

    assert [item.name for item in report.unresolved] == ["b"]


def test_following_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past it nothing is said to be missing."""
    monkeypatch.setattr(lifecycle, "_MOST", 1)

    report = check(tmp_path, READ, classes("", "    def prepare(self): ..."))

    assert told(report) == []
    (item,) = report.unresolved
    assert item.reason == "the methods call each other too often to be followed"


def test_a_method_that_is_known_by_name_takes_the_object(tmp_path: Path) -> None:
    """Where every method of the name says that it does; harmless functions need not."""
    code = "class T:\n    def take(self, x: Base): x.a\ndef f(o, r: Base):\n    o.take(r)\n    print(r)"

    assert check(tmp_path, code, classes("", "")).unresolved == ()


def test_a_release_in_a_folder_is_not_mixed_with_an_installed_one(tmp_path: Path) -> None:
    """A module that it lacks is not taken from elsewhere."""
    package = tmp_path / "mlxcheck"
    package.mkdir()
    (package / "__init__.py").touch()
    text = (
        "from mlxcheck.errors import UsageError\nclass Base: ...\nclass Stub(UsageError): ...\n"
    )
    (package / "old.py").write_text(f"{text}def f(r: Stub): r.b\n", encoding="utf-8")

    report = check_stub(f"{package / 'old.py'}:Stub", f"{package / 'old.py'}:Base", [package])

    assert [item.reason for item in report.unresolved] == [
        "the base UsageError has no source here"
    ]
