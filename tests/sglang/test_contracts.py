"""The stub that SGLang's MLX backend keeps in place of its runner, held against who uses it."""

from __future__ import annotations

import importlib
import time
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mlxcheck.contracts import (
    ContractBroken,
    assert_binds,
    assert_counts,
    assert_overrides,
    check_double,
    check_stub,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.contracts import ContractReport

# Importing the runner in torch imports parts of torch that warn of themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

STUB = "sglang.srt.hardware_backend.mlx.model_runner_stub"
BASE = "sglang.srt.model_executor.model_runner"
MIXIN = "sglang.srt.hardware_backend.mlx.scheduler_mixin"

NO_SWA = "asked for where is_hybrid_swa is true, which the stub sets to False"
NO_GRAPHS = "graphs are captured on CUDA and on the CPU, for a model in torch"
NO_TORCH = "the MLX worker runs its passes without it"
NOT_RUN = {
    "full_max_total_num_tokens": NO_SWA,
    "swa_max_total_num_tokens": NO_SWA,
    "kv_cache_configurator": "asked of pools with post_capture_active, which the dummy has not",
    "eplb_manager": "read once an elastic scale-up is accepted, and nothing is elastic here",
    "init_cuda_graphs": "where no graph is captured, it sets the same None again",
    "start_startup_weight_load": "the stub refuses the mode in which it is called",
    "finalize_startup_weight_load": "the stub refuses the mode in which it is called",
    "decode_attn_backend": "read with enable_pdmux, which wants CUDA",
    "decode_attn_backend_group": "read with enable_pdmux, which wants CUDA",
    "decode_attention_backend_str": NO_GRAPHS,
    "attention_backend_setup.py": "called by init_attention_backends, which the stub overrides",
    "cpu_graph_runner.py": NO_GRAPHS,
    "runner/*": NO_GRAPHS,
    "managers/tp_worker.py": NO_TORCH,
}
"""Each finding on SGLang 0.5.23 that cannot come about, with the reason; see the sources."""


@cache
def stub() -> Any:
    """Return the stub's class."""
    return importlib.import_module(STUB).MlxModelRunnerStub


@cache
def base() -> Any:
    """Return the class that it stands for."""
    return importlib.import_module(BASE).ModelRunner


def checked(ignore: Mapping[str, str] | None = None) -> ContractReport:
    """Hold the stub against its callers; nothing of SGLang is imported for it."""
    folder = importlib.import_module("sglang").__path__[0] + "/srt"
    callers = [
        f"{folder}/hardware_backend/mlx/tp_worker.py",
        f"{folder}/managers/scheduler.py",
        f"{folder}/managers/tp_worker.py",
        f"{folder}/model_executor",
    ]
    return check_stub(
        f"{STUB}:MlxModelRunnerStub", f"{BASE}:ModelRunner", callers, ignore=ignore
    )


def test_the_stub_allocates_no_pool_of_the_bases() -> None:
    """Overridden on the stub itself; it binds with no argument and with one config."""
    assert_overrides(stub(), base(), ["alloc_memory_pool", "initialize", "load_model"])
    assert_binds(stub().alloc_memory_pool)
    assert_binds(stub().alloc_memory_pool, None)
    assert_binds(stub().alloc_memory_pool, memory_pool_config=None)


def test_what_is_not_so_is_told() -> None:
    """The same contracts fail on what the stub inherits and on what it does not take."""
    with pytest.raises(ContractBroken, match=r"MlxModelRunnerStub.forward is inherited from"):
        assert_overrides(stub(), base(), "forward")
    with pytest.raises(ContractBroken, match="got an unexpected keyword argument 'slots'"):
        assert_binds(stub().alloc_memory_pool, slots=1)


def test_every_use_of_the_runner_is_looked_at_in_seconds() -> None:
    """Hundreds of them; few stay open, and each of those with its reason."""
    start = time.monotonic()
    report = checked()

    assert time.monotonic() - start < 60
    assert report.reads > 400
    assert report.calls > 50
    assert report.files > 50
    assert len(report.unresolved) < 0.1 * (report.reads + report.calls)


def test_every_finding_is_known() -> None:
    """Those that cannot come about have a reason that is still used; one is a defect."""
    report = checked(NOT_RUN)

    assert {found.name for found in report.findings} == {
        "kv_index_translator",
        "prefill_attention_backend_str",
    }
    assert {found.at.rpartition(":")[0] for found in report.findings} == {
        "sglang/srt/model_executor/forward_batch_info.py"
    }
    assert [item.name for item in report.ignored if not item.findings] == []


@pytest.mark.xfail(
    strict=True,
    raises=ContractBroken,
    reason="SGLang 0.5.23: docs/findings/sglang-runner-stub.md",
)
def test_a_stub_can_be_embedded_with() -> None:
    """Passes once SGLang is mended; then this mark and the page go."""
    checked(NOT_RUN).require()


class FakeScheduler:
    """What a test of the overlap loop passes as the scheduler, without the counter."""

    def __init__(self) -> None:
        self._sched_idled = False
        self.profiler_manager = SimpleNamespace(_profile_batch_predicate=lambda _batch: None)


class CountingScheduler(FakeScheduler):
    """The same with it."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_ct = 0


def test_a_scheduler_double_that_cannot_count_is_told() -> None:
    """By name, from the step of the mixin that counts; with it, one step counts one."""
    step = importlib.import_module(MIXIN).SchedulerMlxOverlapMixin._prepare_mlx_launch
    (found,) = check_double(FakeScheduler(), step).findings
    assert (found.kind, found.name) == ("missing-attribute", "forward_ct")

    double = CountingScheduler()
    check_double(double, step).require()
    assert_counts(double, lambda: step(double, SimpleNamespace()), "forward_ct")
    assert double.forward_ct == 1
