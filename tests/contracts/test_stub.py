"""What `check_stub` sees, what it leaves open, and how it says so."""

# ruff: noqa: E501 - tables of code, one case a line

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.contracts import ContractBroken, check_stub
from mlxcheck.errors import UsageError
from tests.contracts.miniature import runner, scheduler, stub, worker
from tests.contracts.support import MINIATURE, checked, copied, told

if TYPE_CHECKING:
    from pathlib import Path

    from mlxcheck.contracts import ContractReport

BASE = """
class Base:
    def __init__(self):
        self.prepare()

    def prepare(self):
        self.a = 1
        self.b = 2

    def go(self, x, y=1): ...


class Stub(Base):
    def prepare(self):
        self.a = 1
"""


def check(folder: Path, code: str, classes: str = BASE, **options: Any) -> ContractReport:
    """Hold a stub against a base in one file, with callers in another."""
    (folder / "classes.py").write_text(classes, encoding="utf-8")
    head = "from classes import Base, Stub\n"
    (folder / "use.py").write_text(head + textwrap.dedent(code), encoding="utf-8")
    where = folder / "classes.py"
    return check_stub(f"{where}:Stub", f"{where}:Base", [folder / "use.py"], **options)


# --- Who holds the object -------------------------------------------------------------------

HOLDERS = {
    "a parameter": "def f(r: Base): r.b",
    "a parameter in quotes": "def f(r: 'Base | None'): r.b",
    "an optional parameter": "def f(r: Optional[Base] = None): r.b",
    "the stub's own name": "def f(r: Stub): r.b",
    "a variable": "def f(x):\n    r: Base = x\n    r.b",
    "a class attribute": "class H:\n    r: Base\ndef f(h): h.r.b",
    "what is made": "def f():\n    r = Stub()\n    r.b",
    "an attribute of what is made": "class H:\n    def __init__(self): self.r = Base()\ndef f(h): h.r.b",
    "an attribute of an attribute": "class H:\n    def __init__(self, r: Base): self.r = r\ndef f(o): o.inner.r.b",
    "a property": "class H:\n    @property\n    def r(self) -> Base: ...\ndef f(h): h.r.b",
    "a method's value": "class H:\n    def get(self) -> Base: ...\ndef f(h): h.get().b",
    "an alias": "def f(r: Base):\n    other = r\n    other.b",
    "a walrus": "def f(r: Base):\n    if (q := r) is not None:\n        q.b",
    "a choice": "def f(r: Base, s: Base):\n    q = r or s\n    q.b",
    "a list": "def f(rs: list[Base]):\n    for r in rs[1:]:\n        r.b",
    "an item": "def f(rs: list[Base]): rs[0].b",
    "a comprehension": "def f(rs: list[Base]): return [r.b for r in rs]",
    "an enumeration": "def f(rs: list[Base]):\n    for n, r in enumerate(rs):\n        r.b",
    "a parameter that it is handed to": "def g(x): x.b\ndef f(r: Base): g(r)",
    "a keyword that it is handed to": "def g(*, x): x.b\ndef f(r: Base): g(x=r)",
    "a method that it is handed to": "class H:\n    def g(self, x): x.b\n    def f(self, r: Base): self.g(r)",
    "a constructor that it is handed to": "class G:\n    def __init__(self, x): x.b\ndef f(r: Base): G(r)",
    "a cast": "def f(x):\n    r = cast(Base, x)\n    r.b",
    "a nested function": "def f(r: Base):\n    def g(): return r.b\n    return g",
    "a lambda": "def f(r: Base): return lambda: r.b",
    "an await": "async def f(r: Base): await r.b",
    "a getattr without a default": "def f(r: Base): getattr(r, 'b')",
    "an augmented assignment's value": "def f(r: Base, x):\n    x += r.b",
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_object_is_followed(holder: str, tmp_path: Path) -> None:
    """By annotation, by what holds it, and by where it is handed on."""
    report = check(tmp_path, HOLDERS[holder])

    assert told(report) == [("missing-attribute", "b")]


OTHERS = {
    "another class": "class Other: ...\ndef f(r: Other): r.b",
    "another class of the name": "class Base: ...\ndef f(r: Base): r.b",
    "no annotation": "def f(r): r.b",
    "a name that is given something else": "def f(r: Base):\n    r = 1\n    r.b",
    "a container of pairs": "def f(rs: list[tuple[str, Base]]): rs[0].b",
    "a type": "def f(r: type[Base]): r.b",
    "what is there": "def f(r: Base): r.a",
    "a guard": "def f(r: Base):\n    if hasattr(r, 'b') and r.b: r.b",
    "a handler": "def f(r: Base):\n    try:\n        r.b\n    except AttributeError: ...",
    "a bare handler": "def f(r: Base):\n    try:\n        r.b\n    except: ...",
    "a default": "def f(r: Base): getattr(r, 'b', 1)",
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_nothing_else_is_taken_for_it(other: str, tmp_path: Path) -> None:
    """Other objects may do as they like, and a guarded read asks for nothing."""
    assert told(check(tmp_path, OTHERS[other])) == []


def test_names_can_be_given(tmp_path: Path) -> None:
    """What nobody has annotated is followed when it is named: as a parameter or an attribute."""
    for code in ("def f(r): r.b", "def f(h): h.r.b"):
        assert check(tmp_path, code).outcome == "inconclusive"
        assert told(check(tmp_path, code, role_names=["r"])) == [("missing-attribute", "b")]


# --- What the stub runs ---------------------------------------------------------------------

CLASSES = {
    "set by a method that the stub replaces": (
        "    def prepare(self): pass", [("missing-attribute", "b")]
    ),
    "set by a method that the replaced one calls": (
        "    def prepare(self):\n        super().prepare()", []
    ),
    "set by the base under its own name": ("    def prepare(self):\n        Base.prepare(self)", []),
    "set by setattr": ("    def prepare(self):\n        setattr(self, 'b', 1)", []),
    "set in a branch": ("    def prepare(self):\n        if x: self.b = 1", []),
    "set in a loop": ("    def prepare(self):\n        for self.b in range(3): pass", []),
    "set by unpacking": ("    def prepare(self):\n        self.a, self.b = 1, 2", []),
    "set beside a set": ("    def prepare(self):\n        self.a = {1}\n        self.b = {2}", []),
    "set by with": ("    def prepare(self):\n        with open(x) as self.b: pass", []),
    "set in a branch that is never taken": (
        "    def prepare(self):\n        self.flag = False\n        if self.flag: self.b = 1",
        [("missing-attribute", "b")],
    ),
    "set after a return": (
        "    def prepare(self):\n        return\n        self.b = 1", [("missing-attribute", "b")]
    ),
    "annotated only": ("    b: int\n    def prepare(self): pass", [("missing-attribute", "b")]),
    "set by a method that nobody calls": (
        "    def prepare(self): pass\n    def later(self):\n        self.b = 1",
        [("missing-attribute", "b")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", CLASSES)
def test_an_attribute_counts_where_the_stub_sets_it(way: str, tmp_path: Path) -> None:
    """Code that the base would run and the stub does not sets nothing on the stub."""
    body, expected = CLASSES[way]
    classes = f"{BASE.rsplit('class Stub', 1)[0]}class Stub(Base):\n{body}"

    assert told(check(tmp_path, "def f(r: Base): r.b", classes)) == expected


def test_a_method_that_callers_call_sets_its_attributes(tmp_path: Path) -> None:
    """What is set past construction is there too; when, is not asked."""
    classes = BASE.replace("def go(self, x, y=1): ...", "def go(self):\n        self.b = 1")

    assert told(check(tmp_path, "def f(r: Base):\n    r.go()\n    r.b", classes)) == []


def test_an_inherited_method_that_reads_what_the_stub_lacks(tmp_path: Path) -> None:
    """It has to be overridden; under a condition that is not known that stays open."""
    whole = BASE.replace("def go(self, x, y=1): ...", "def go(self):\n        return self.b")
    branch = BASE.replace("def go(self, x, y=1): ...", "def go(self):\n        if x: self.b")
    code = "def f(r: Base): r.go()"

    assert told(check(tmp_path, code, whole)) == [("must-override", "go")]
    (open_one,) = check(tmp_path, code, branch).unresolved
    assert open_one.reason == "Base.go reads it under a condition that is not known: x"
    assert open_one.name == "b"


def test_an_assertion_that_the_base_runs_into_as_well_is_none_of_the_stubs(
    tmp_path: Path,
) -> None:
    """Only what the stub has changed is held against it."""
    classes = BASE.replace(
        "def go(self, x, y=1): ...", "def go(self):\n        assert self.a == 2"
    )

    assert told(check(tmp_path, "def f(r: Base): r.go()", classes)) == []


OPEN = {
    "attributes are set under computed names at classes.py:15": (
        "class Stub(Base):", "class Stub(Base):\n    def __init__(self):\n        setattr(self, x(), 1)\n        super().__init__()\n",
    ),
    "Stub has __getattr__": ("class Stub(Base):", "class Stub(Base):\n    def __getattr__(self, name): ...\n"),
    "the base Elsewhere has no source here": ("class Stub(Base):", "class Stub(Base, Elsewhere):"),
    "Base has no such attribute": ("        self.b = 2\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("reason", OPEN)
def test_what_cannot_be_told_is_counted(reason: str, tmp_path: Path) -> None:
    """No finding, and the reason is given."""
    report = check(tmp_path, "def f(r: Base): r.b", BASE.replace(*OPEN[reason]))

    assert told(report) == []
    assert [(item.name, item.reason) for item in report.unresolved] == [("b", reason)]
    assert f"not resolved, 1 time: {reason}" in report.explain()


LOOSE = {
    "set from outside, and when is not known": "def f(r: Base):\n    r.b = 1\n    r.b",
    "getattr with a computed name": "def f(r: Base): getattr(r, name())",
    "handed to elsewhere, which is not among the callers": "def f(r: Base): elsewhere(r)",
    "called with * or **, so that only what is written out was bound": "def f(r: Base): r.go(*a)",
    "r holds Other at use.py:4 too": (
        "class H:\n    r: Base\n    def put(self): self.r = Other()\ndef f(h): h.r.b"
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", LOOSE)
def test_where_the_object_gets_out_of_sight_is_counted(reason: str, tmp_path: Path) -> None:
    """No finding, and the reason is given."""
    report = check(tmp_path, LOOSE[reason])

    assert told(report) == []
    assert [item.reason for item in report.unresolved] == [reason]


def test_a_decorator_that_is_not_known_leaves_calls_open(tmp_path: Path) -> None:
    """It may change how a method is called; those that do not are known."""
    own = "        self.a = 1\n        self.b = 2\n\n    @{}\n    def go(self): ...\n"
    body = BASE.rsplit("        self.a = 1\n", 1)[0]
    code = "def f(r: Base): r.go(1)"

    assert {i.reason for i in check(tmp_path, code, body + own.format("twice")).unresolved} == {
        "decorated with twice"
    }
    known = check(tmp_path, code, body + own.format("torch.no_grad()"))
    assert ("call-does-not-bind", "go") in told(known)


# --- What can be left out -------------------------------------------------------------------


def test_a_method_that_the_holder_replaces_is_no_caller() -> None:
    """`Worker.forward` reads `layout`, and whoever makes the stub has its own."""
    assert checked().replaced == 2
    alone = check_stub(stub.StubRunner, runner.Runner, [MINIATURE / "worker.py"])
    assert alone.outcome == "pass"


def test_a_method_that_calls_the_replaced_one_is(tmp_path: Path) -> None:
    """With `super()` it runs after all."""
    new = "return super().forward(batch)"
    where = copied(tmp_path, {"worker.py": ("        return batch\n", f"        {new}\n")})

    report = checked(where)

    assert told(report) == [("missing-attribute", "layout")]


def test_names_are_ignored_with_a_reason(tmp_path: Path) -> None:
    """They are counted, with their reason; an unused one shows as nothing."""
    why = {"b": "it has none", "c": "nor this"}

    report = check(tmp_path, "def f(r: Base): r.b", ignore=why)

    assert report.outcome == "pass"
    assert "  ignored, 1 finding: b: it has none" in report.explain()
    assert "  ignored, 0 findings: c: nor this" in report.explain()
    with pytest.raises(UsageError, match=r"ignore: b has no reason. Say why"):
        check(tmp_path, "", ignore={"b": " "})


def test_code_that_does_not_run_is_ignored_by_its_path(tmp_path: Path) -> None:
    """The end of a path, and only that file's."""
    code = "def f(r: Base): r.b"
    assert check(tmp_path, code, ignore={"use.py": "not here"}).outcome == "pass"
    assert check(tmp_path, code, ignore={"us*": "not here"}).outcome == "pass"
    assert check(tmp_path, code, ignore={"other.py": "not here"}).outcome == "fail"


# --- Classes and modules, however they are given --------------------------------------------


def test_classes_and_modules_may_be_given_as_they_are() -> None:
    """Objects, dotted names and paths come to the same report."""
    paths = checked()
    objects = check_stub(stub.StubRunner, runner.Runner, [worker, scheduler])
    package = "tests.contracts.miniature"
    names = check_stub(
        f"{package}.stub:StubRunner",
        f"{package}.runner:Runner",
        [f"{package}.worker", f"{package}.scheduler"],
    )
    assert objects == paths == names


def test_a_class_inside_a_function() -> None:
    """A test's own double is found where it is written."""

    class Near(runner.Runner):
        def initialize(self) -> None:
            self.layers = 1

    report = check_stub(
        Near, runner.Runner, [MINIATURE / "scheduler.py"], role_names=["runner"]
    )

    assert ("missing-attribute", "experts") in told(report)


def test_another_releases_base(tmp_path: Path) -> None:
    """A stub may be held against a base that it does not import."""
    new = copied(
        tmp_path, {"runner.py": ("def initialize(self)", "def initialize(self, memory)")}
    )

    report = check_stub(stub.StubRunner, f"{new / 'runner.py'}:Runner", [new / "worker.py"])

    assert told(report) == [("narrower-override", "initialize")]


def test_nothing_used_is_inconclusive(tmp_path: Path) -> None:
    """Callers that use nothing of the object compare nothing."""
    classes = "class Base: ...\nclass Stub(Base): ...\n"
    report = check(tmp_path, "x = 1", classes)

    assert report.outcome == "inconclusive"
    assert report.explain().endswith("inconclusive: nothing was found that reads or calls it")
    with pytest.raises(ContractBroken, match="inconclusive: nothing was found"):
        report.require()


WRONG = {
    "StubRunner": "'StubRunner': expected a class or function, or text such as",
    "no.such.module:Stub": "'no.such.module': no source. Name a module that is installed",
    f"{MINIATURE / 'stub.py'}:Stubb": "stub.py: there is no Stubb. It defines StubRunner.",
    f"{MINIATURE / 'scheduler.py'}:fits": "fits is a function. Name a class.",
    f"{MINIATURE / 'none.py'}:Stub": "none.py': no source.",
    "builtins:dict": "'builtins': no source.",
}


@pytest.mark.parametrize("given", WRONG)
def test_what_has_no_source(given: str) -> None:
    """One error that says what to give instead."""
    with pytest.raises(UsageError) as error:
        check_stub(given, runner.Runner)

    assert WRONG[given] in str(error.value)


def test_a_class_without_python_source() -> None:
    """A built-in class has none."""
    with pytest.raises(UsageError, match=r"builtins.dict: its source is not there."):
        check_stub(dict, runner.Runner)


def test_a_file_that_is_no_python(tmp_path: Path) -> None:
    """Named, with the line."""
    (tmp_path / "bad.py").write_text("class :", encoding="utf-8")
    with pytest.raises(UsageError, match=r"bad.py: this is no Python that .* reads: invalid"):
        check_stub(f"{tmp_path / 'bad.py'}:A", runner.Runner)


# --- The words ------------------------------------------------------------------------------

SHOWN = {
    "missing-attribute": (
        {"stub.py": ("    watch = None\n", "")},
        """\
        missing-attribute  StubRunner.watch: tests/contracts/miniature/scheduler.py:18 reads it
          Runner.allocate sets it at tests/contracts/miniature/runner.py:44, which StubRunner does not run
          set watch in StubRunner, or give it as a class attribute""",
    ),
    "narrower-override": (
        {"stub.py": ("plan: int | None = None, *, layout: str | None = None", "layout=None")},
        """\
        narrower-override  StubRunner.allocate: the override has layout in the place of plan, takes no plan by name
          stub  StubRunner.allocate(self, layout=None)  at tests/contracts/miniature/stub.py:31
          base  Runner.allocate(self, plan=None, *, layout=None)  at tests/contracts/miniature/runner.py:40
          take in StubRunner.allocate whatever the base takes""",
    ),
    "call-does-not-bind": (
        {"worker.py": ('allocate(layout="rows")', "allocate(1, rows=2)")},
        """\
        call-does-not-bind  StubRunner.allocate: tests/contracts/miniature/worker.py:27 calls it with 1 by position, rows=: got an unexpected keyword argument 'rows'
          stub  StubRunner.allocate(self, plan=None, *, layout=None)  at tests/contracts/miniature/stub.py:31
          base  Runner.allocate(self, plan=None, *, layout=None)  at tests/contracts/miniature/runner.py:40
          take these in StubRunner.allocate, or change the call""",
    ),
    "must-override": (
        {"stub.py": ("def attach(", "def attached(")},
        """\
        must-override  StubRunner.attach: tests/contracts/miniature/worker.py:28 calls it, and it sets attention again at tests/contracts/miniature/runner.py:48, which StubRunner has set in its own way at tests/contracts/miniature/stub.py:29
          override attach in StubRunner""",
    ),
    "assertion": (
        {"stub.py": ("def allocate(", "def allocated(")},
        """\
        assertion  StubRunner.allocate: calling allocate on one that is made with defaults runs into `assert self.draft` in Runner._make_pools (tests/contracts/miniature/runner.py:68)
          called at tests/contracts/miniature/worker.py:27
          since there `self.pool is None` is False
          override allocate in StubRunner, or make that hold""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SHOWN)
def test_a_message_shows_both_sides_and_what_to_do(kind: str, tmp_path: Path) -> None:
    """Word for word, and `require` raises it."""
    changes, expected = SHOWN[kind]

    report = checked(copied(tmp_path, changes))

    messages = [found.message for found in report.findings if found.kind == kind]
    assert messages == [textwrap.dedent(expected)]
    with pytest.raises(ContractBroken) as error:
        report.require()
    assert messages[0] in str(error.value)


def test_findings_of_a_name_are_one_with_every_place(tmp_path: Path) -> None:
    """The first is one that nothing has to hold for; its caller's file and line are given."""
    code = "def f(r: Base):\n    if x:\n        r.b\n    r.b\n    r.b"

    (found,) = check(tmp_path, code).findings

    assert (found.file, found.line) == (str(tmp_path / "use.py"), 5)
    assert (found.at, found.when) == ("use.py:5", ())
    assert found.others == ("use.py:6", "use.py:4")
    assert "  and at 2 more: use.py:6, use.py:4" in check(tmp_path, code).explain()


def test_conditions_are_told(tmp_path: Path) -> None:
    """Those around a read, and those that an early return leaves behind."""
    code = "def f(r: Base):\n    if x:\n        return\n    if y:\n        r.b"

    (found,) = check(tmp_path, code).findings

    assert found.when == ("not (x)", "y")
    assert "  where not (x) and y\n" in found.message


def test_many_and_long_conditions_are_cut_short(tmp_path: Path) -> None:
    """The innermost three are told, and no more of each than a line holds."""
    tests = ["a", "b", "c", "d", f"e == '{'x' * 200}'"]
    code = "def f(r: Base):\n" + "".join(
        f"{'  ' * (n + 1)}if {t}:\n" for n, t in enumerate(tests)
    )

    (found,) = check(tmp_path, f"{code}{'  ' * 6}r.b").findings

    assert found.when == tuple(tests)
    assert f"  where c and d and e == '{'x' * 94}... and 2 more\n" in found.message


def test_a_report_can_be_written_as_json(tmp_path: Path) -> None:
    """Everything is a plain value."""
    plain = check(tmp_path, "def f(r: Base): r.b").to_dict()

    assert plain["outcome"] == "fail"
    assert plain["findings"][0]["kind"] == "missing-attribute"
