"""``mlxcheck contract STUB BASE --callers MODULE...``: is a stub what it is taken for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcheck.backends import registry
from mlxcheck.contracts import check_stub
from mlxcheck.errors import ReportError, UsageError
from mlxcheck.report import require_writable
from mlxcheck.whole import write_whole

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from mlxcheck.contracts import ContractReport

__all__ = ["add_contract_options", "run_contract"]

_STATUS = {"pass": 0, "fail": 1, "inconclusive": 3}
"""Those of ``mlxcheck run``."""


def add_contract_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add = parser.add_argument
    add(
        "stub",
        metavar="STUB",
        help="package.module:Class or path.py:Class; nothing is imported",
    )
    add("base", metavar="BASE", help="the class that it stands for, in the same way")
    add(
        "--callers",
        nargs="+",
        action="extend",
        default=[],
        metavar="MODULE",
        help="dotted names, files or folders of the code that uses BASE",
    )
    add(
        "--role-name",
        action="append",
        default=[],
        metavar="NAME",
        help="variable or attribute that holds such an object; may be repeated",
    )
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME=REASON",
        help="attribute, method or end of a path that is not to be judged; may be repeated",
    )
    add("--json", metavar="FILE", help="write the report here")


def run_contract(options: argparse.Namespace) -> int:
    """Check the stub, show what was found, and return the exit status.

    Raises:
        MlxCheckError: As for `check_stub`, or the report cannot be written.
    """
    if options.json is not None:
        require_writable(options.json)
    with registry.working_folder_on_path():
        report = check_stub(
            options.stub,
            options.base,
            options.callers,
            role_names=options.role_name,
            ignore=_ignored(options.ignore),
        )
    if options.json is not None:
        _save(report, options.json)
    sys.stdout.write(f"{report.explain()}\n")
    sys.stdout.flush()
    return _STATUS[report.outcome]


def _ignored(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, reason = text.partition("=")
        if not (name and equals and reason.strip()):
            msg = f"--ignore {text}: expected NAME=REASON, such as experts='it has none'."
            raise UsageError(msg)
        found[name] = reason
    return found


def _save(report: ContractReport, path: str) -> None:
    text = json.dumps(report.to_dict(), indent=1)
    try:
        write_whole(Path(path), text)
    except OSError as error:
        msg = f"{path}: cannot write the report: {error.strerror}."
        raise ReportError(msg) from None
