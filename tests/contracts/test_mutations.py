"""Drifts of a stub, its base and its callers are caught; edits that mean nothing are not."""

# ruff: noqa: E501 - tables of code, one case a line

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contracts.support import checked, copied, told

if TYPE_CHECKING:
    from pathlib import Path

ALLOCATE = "def allocate(self, plan: int | None = None, *, layout: str | None = None) -> None:"
NO_ALLOCATE = f'''
    {ALLOCATE}
        """Do nothing: the pools are there."""
'''
NO_ATTACH = '''
    def attach(self) -> None:
        """Do nothing: there is no attention."""
'''
ATTACH = "def attach(self) -> None:"

DRIFTS = {
    "an argument is dropped": (
        {"stub.py": (ALLOCATE, "def allocate(self, plan=None):")},
        [("narrower-override", "allocate"), ("call-does-not-bind", "allocate")],
    ),
    "an argument is renamed": (
        {"stub.py": (ALLOCATE, "def allocate(self, plan=None, *, shape=None):")},
        [("narrower-override", "allocate"), ("call-does-not-bind", "allocate")],
    ),
    "an argument is made required": (
        {"stub.py": (ALLOCATE, "def allocate(self, plan, *, layout=None):")},
        [("narrower-override", "allocate"), ("call-does-not-bind", "allocate")],
    ),
    "an argument is made keyword-only": (
        {"stub.py": (ALLOCATE, "def allocate(self, *, plan=None, layout=None):")},
        [("narrower-override", "allocate")],
    ),
    "an argument is made positional-only": (
        {"stub.py": (ALLOCATE, "def allocate(self, plan=None, layout=None, /):")},
        [("narrower-override", "allocate"), ("call-does-not-bind", "allocate")],
    ),
    "an argument is added and required": (
        {"stub.py": ("def initialize(self) -> None:", "def initialize(self, memory) -> None:")},
        [("narrower-override", "initialize"), ("call-does-not-bind", "initialize")],
    ),
    "a class attribute is removed": (
        {"stub.py": ("    watch = None\n", "")},
        [("missing-attribute", "watch")],
    ),
    "an attribute is no longer set": (
        {"stub.py": ("        self.capacity = self._slots\n", "")},
        [
            ("missing-attribute", "capacity"),
            ("must-override", "limit"),
        ],
    ),
    "an override with an assertion under it is removed": (
        {"stub.py": (NO_ALLOCATE, "")},
        [("assertion", "allocate")],
    ),
    "an override that kept a value is removed": (
        {"stub.py": (NO_ATTACH, "")},
        [("must-override", "attach")],
    ),
    "an override becomes a property": (
        {"stub.py": (ATTACH, "@property\n    def attach(self) -> None:")},
        [("call-does-not-bind", "attach")],
    ),
    "the constructor loses an argument": (
        {"stub.py": ("*args: Any, slots: int = 8, **kwargs: Any", "config, slotz: int = 8")},
        [("call-does-not-bind", "StubRunner")],
    ),
    "the base calls its own method in another way": (
        {"runner.py": ("self.initialize()", "self.initialize(memory=1)")},
        [("call-does-not-bind", "initialize")],
    ),
    "the base gains an argument": (
        {"runner.py": ("layout: str | None = None", "layout=None, rows=None")},
        [("narrower-override", "allocate")],
    ),
    "the base's constructor gains an assertion": (
        {"runner.py": ("        self.initialize()\n", "        self.initialize()\n        assert self.weights is not None\n")},
        [("assertion", "__init__")],
    ),
    "a caller reads something more": (
        {"scheduler.py": ("worker.start()", "worker.start()\n        print(worker.runner.layout)")},
        [("missing-attribute", "layout")],
    ),
    "a caller gives something more": (
        {"worker.py": ('allocate(layout="rows")', 'allocate(layout="rows", rows=1)')},
        [("call-does-not-bind", "allocate")],
    ),
    "a caller calls what is abstract": (
        {
            "worker.py": ("self.runner.attach()", "self.runner.attach()\n        self.runner.warm()"),
            "runner.py": ("    def load(self)", "    def warm(self) -> None:\n        raise NotImplementedError\n\n    def load(self)"),
        },
        [("must-override", "warm")],
    ),
}  # fmt: skip

HARMLESS = {
    "an argument with a default is added": {"stub.py": (ALLOCATE, "def allocate(self, plan=None, *, layout=None, mine=1):")},
    "all arguments are taken": {"stub.py": (ALLOCATE, "def allocate(self, *args, **kwargs):")},
    "another default": {"stub.py": (ALLOCATE, "def allocate(self, plan=7, *, layout='x'):")},
    "annotations are dropped": {"stub.py": (ALLOCATE, "def allocate(self, plan=None, *, layout=None):")},
    "a keyword may be given by position": {"stub.py": (ALLOCATE, "def allocate(self, plan=None, layout=None):")},
    "a private method is added": {"stub.py": (ATTACH, "def _mine(self, a): return a\n\n    def attach(self) -> None:")},
    "an attribute is set in the constructor instead": {"stub.py": ("        self._slots = slots\n", "        self._slots = slots\n        self.watch = None\n")},
    "a class attribute becomes a property": {"stub.py": ("    watch = None\n", "    @property\n    def watch(self): return None\n")},
    "an attribute is set by a helper": {"stub.py": ("        self.capacity = self._slots\n", "        self._fill()\n\n    def _fill(self):\n        self.capacity = self._slots\n\n    def _rest(self):\n")},
    "an override is inherited from a class between": {"stub.py": ("class StubRunner(Runner):", "class _Between(Runner):\n    spare = 1\n\n\nclass StubRunner(_Between):")},
    "an override is static": {"stub.py": (ATTACH, "@staticmethod\n    def attach() -> None:")},
    "a comment": {"stub.py": (ATTACH, "# Nothing.\n    def attach(self) -> None:")},
    "a caller asks before it reads": {"scheduler.py": ("worker.start()", "worker.start()\n        if hasattr(worker.runner, 'layout'):\n            print(worker.runner.layout)")},
    "a caller gives a default": {"scheduler.py": ("worker.start()", "worker.start()\n        print(getattr(worker.runner, 'layout', None))")},
}  # fmt: skip


def test_the_stub_as_it_is_passes() -> None:
    """What is changed below is sound before."""
    report = checked()

    assert report.outcome == "pass"
    assert (report.reads, report.calls, report.files) == (6, 3, 2)
    assert report.unresolved == ()


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_drift_is_caught(drift: str, tmp_path: Path) -> None:
    """Each of them is named, and nothing else is."""
    changes, expected = DRIFTS[drift]

    report = checked(copied(tmp_path, changes))

    assert set(told(report)) == set(expected)
    assert report.outcome == "fail"


@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_is_not(edit: str, tmp_path: Path) -> None:
    """None of them is reported."""
    report = checked(copied(tmp_path, HARMLESS[edit]))

    assert told(report) == []
    assert report.outcome == "pass"
