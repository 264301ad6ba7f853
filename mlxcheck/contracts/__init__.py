"""Contracts of stubs, fakes and adapters that are kept beside somebody else's moving class.

`check_stub` and `check_double` read sources: nothing is imported, so that releases that are
not installed can be looked at. `assert_overrides`, `assert_binds` and `assert_counts` look at
live classes and objects. `check_backend` drives an adapter of an engine.
"""

from __future__ import annotations

from mlxcheck.contracts.asserted import assert_binds, assert_overrides
from mlxcheck.contracts.backend import check_backend
from mlxcheck.contracts.backend_report import BrokenRule, ConformanceReport, UnaskedRule
from mlxcheck.contracts.doubles import assert_counts, check_double
from mlxcheck.contracts.found import ContractBroken, ContractReport, Finding
from mlxcheck.contracts.stub import check_stub

__all__ = [
    "BrokenRule",
    "ConformanceReport",
    "ContractBroken",
    "ContractReport",
    "Finding",
    "UnaskedRule",
    "assert_binds",
    "assert_counts",
    "assert_overrides",
    "check_backend",
    "check_double",
    "check_stub",
]
