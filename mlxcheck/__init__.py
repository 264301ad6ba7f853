"""Does an MLX inference engine say what plain mlx-lm says, token for token?

General layout, in the order in which a run goes through it: `prompts`, `checkpoint`,
`memory`, `reference` (with `purity` and `release`), then `backends` behind `session`, then
`checks` over `compare`; `recording` and `run` tell it in order. The doorways are
`assertions`, `plugin` and `cli`; `render` paints. `records`, `errors` and `policy` are what
all of them speak in.

Importing this module costs nothing: each name is fetched when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxcheck.assertions import assert_reference_equal, check
    from mlxcheck.backends.base import Backend, Capabilities, Emission, Request
    from mlxcheck.contracts import (
        ConformanceReport,
        ContractBroken,
        ContractReport,
        assert_binds,
        assert_counts,
        assert_overrides,
        check_backend,
        check_double,
        check_stub,
    )
    from mlxcheck.errors import MlxCheckError, ReferenceMismatch
    from mlxcheck.policy import Policy
    from mlxcheck.records import Comparison, ModelRef, Prompt, Trace, Verdict
    from mlxcheck.replay import assert_replays
    from mlxcheck.report import Report

__all__ = [
    "Backend",
    "Capabilities",
    "Comparison",
    "ConformanceReport",
    "ContractBroken",
    "ContractReport",
    "Emission",
    "MlxCheckError",
    "ModelRef",
    "Policy",
    "Prompt",
    "ReferenceMismatch",
    "Report",
    "Request",
    "Trace",
    "Verdict",
    "__version__",
    "assert_binds",
    "assert_counts",
    "assert_overrides",
    "assert_reference_equal",
    "assert_replays",
    "check",
    "check_backend",
    "check_double",
    "check_stub",
]

_HOMES = {
    "Backend": "backends.base",
    "Capabilities": "backends.base",
    "Comparison": "records",
    "ConformanceReport": "contracts",
    "ContractBroken": "contracts",
    "ContractReport": "contracts",
    "Emission": "backends.base",
    "MlxCheckError": "errors",
    "ModelRef": "records",
    "Policy": "policy",
    "Prompt": "records",
    "ReferenceMismatch": "errors",
    "Report": "report",
    "Request": "backends.base",
    "Trace": "records",
    "Verdict": "records",
    "assert_binds": "contracts",
    "assert_counts": "contracts",
    "assert_overrides": "contracts",
    "assert_reference_equal": "assertions",
    "assert_replays": "replay",
    "check": "assertions",
    "check_backend": "contracts",
    "check_double": "contracts",
    "check_stub": "contracts",
}

__version__: str


def __getattr__(name: str) -> object:
    """Fetch a public name from its home, once."""
    import importlib

    if name == "__version__":
        from importlib import metadata

        return metadata.version("mlxcheck")
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"mlxcheck.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
