"""The examples of `docs/contracts.md` run, and print what is printed there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mlxcheck.cli import main
from mlxcheck.contracts import ContractBroken, check_double
from tests.contracts.support import checked, copied

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
REST = re.sub(r"```python\n.*?```", "", PAGE, flags=re.DOTALL)
PLAIN = re.findall(r"```\n(.*?)```", REST, flags=re.DOTALL)


def test_the_command_prints_what_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word, from the root of a clone."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(PLAIN[0])

    assert words[0] == "mlxcheck"
    assert main(words[1:]) == 0
    assert capsys.readouterr().out == PLAIN[1]


def test_the_finding_that_is_shown_is_found(tmp_path: Path) -> None:
    """Without the override."""
    where = copied(tmp_path, {"stub.py": ("def allocate(", "def allocated(")})

    assert PLAIN[2].rstrip() in [found.message for found in checked(where).findings]


@pytest.mark.parametrize("number", range(len(CODE)))
def test_the_code_runs(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every block, and every test in it."""
    monkeypatch.chdir(tmp_path if number == 2 else ROOT)
    (tmp_path / "docs_example.py").write_text(CODE[number], encoding="utf-8")
    names: dict[str, object] = {"__name__": "docs_example"}

    exec(CODE[number], names)  # noqa: S102 - the page's own code

    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == (3, 0, 2)[number]
    for test in tests:
        assert callable(test)
        test()


def test_the_double_without_a_counter_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the page's last block shows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs_example.py").write_text(CODE[2], encoding="utf-8")
    bare = type("FakeLoop", (), {})()

    with pytest.raises(ContractBroken) as error:
        check_double(bare, "docs_example.py:Loop.launch").require()

    assert str(error.value).startswith(PLAIN[-1].rstrip())
