"""The adapters of SGLang's engine keep the rules of the backend protocol."""

from __future__ import annotations

import pytest

from mlxcheck.backends.sglang import SglangBackend, SglangRadixBackend
from mlxcheck.contracts import check_backend
from mlxcheck.contracts.backend import RULES
from tests.sglang.driving import MODELS

UNASKED = {
    "encodes-to-ids": "capabilities.encode is False",
    "stops-at-a-later-token": "capabilities.stop is False: whoever drives it ends an answer",
    "stops-at-its-first-token": "capabilities.stop is False: whoever drives it ends an answer",
    "tells-its-stop-ids": "capabilities.encode is False",
}


@pytest.mark.parametrize("adapter", [SglangBackend, SglangRadixBackend])
def test_an_adapter_keeps_every_rule(adapter: type[SglangBackend]) -> None:
    """Nothing is left out but what its capabilities leave out."""
    report = check_backend(adapter, MODELS / "qwen3-float32")

    reasons = {each.rule: each.reason for each in report.not_asked}
    cached = {"reuses-prefixes": "capabilities.prefix_cache is False"}
    assert reasons == (UNASKED if adapter is SglangRadixBackend else UNASKED | cached)
    assert set(report.kept) == set(RULES) - set(reasons)
