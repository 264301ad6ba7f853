"""The doorway for programs: a report, or an assertion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxcheck import checks as all_checks
from mlxcheck.backends import registry
from mlxcheck.errors import ReferenceMismatch
from mlxcheck.policy import Policy
from mlxcheck.precisions import record_passes
from mlxcheck.prompts import as_questions
from mlxcheck.report import merged
from mlxcheck.run import Drive
from mlxcheck.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mlxcheck.checks import Effort
    from mlxcheck.report import Report

__all__ = ["assert_reference_equal", "check"]


def check(  # noqa: PLR0913 - keyword-only, each with its default
    model: str | Path,
    backend: object,
    *,
    prompts: Iterable[object] | None = None,
    max_tokens: int = 64,
    checks: Iterable[str] | None = None,
    effort: Effort = "standard",
    policy: Policy | None = None,
    seed: int = 0,
    cases: Sequence[str] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Report:
    """Compare an engine with plain mlx-lm, token for token, alone and in batches.

    Args:
        model: A folder with an MLX checkpoint, or a hub id.
        backend: A registered name, ``"package.module:attribute"``, a `Backend` class or
            factory, or a function ``generate(prompts: list[list[int]], max_tokens: int)
            -> list[list[int]]``. It is first called after the reference has been freed.
        prompts: Strings (one chat turn each), lists of token ids, lists of messages, or
            `Prompt` objects; None for the packaged set.
        max_tokens: The most tokens of each answer.
        checks: Names of checks; None for every check that the backend can be asked.
        effort: ``"quick"``, ``"standard"`` or ``"thorough"``.
        policy: What counts as equal, and how long to wait.
        seed: Deals the prompts into batches.
        cases: Case ids to keep, as a failure's message names them; None for all.
        revision: A hub revision.
        trust_remote_code: Allow code in the checkpoint to be run.

    Returns:
        The report; its ``outcome`` is ``"pass"``, ``"fail"`` or ``"inconclusive"``.

    Raises:
        UsageError: Bad arguments, a broken checkpoint, an unknown backend.
        ModelUnavailable: A hub model that is neither cached nor within reach.
        NotEnoughMemory: The memory gate is closed.
        ReferenceTampered: mlx-lm has been patched in this process.
        MemoryNotReleased: Something still holds the reference model.

    Example::

        report = mlxcheck.check("fixtures/models/qwen3-float32", "mlx-lm")
        print(report.explain())
    """
    settings = Settings(
        max_tokens=max_tokens,
        effort=effort,
        seed=seed,
        policy=policy or Policy(),
        revision=revision,
        trust_remote_code=trust_remote_code,
        prompts_from=None if prompts is None else "",
    )
    asked = all_checks.named(checks)
    # Both are settled before anything is loaded: a typing mistake must not cost a load.
    registry.require_findable(backend)
    questions = None if prompts is None else as_questions(prompts)
    with record_passes(str(model), questions, settings, backends=[backend]) as passes:
        reports = []
        for recorded in passes.recorded:
            with Drive(recorded, backend, asked, settings, cases=cases) as drive:
                drive.run()
            reports.append(drive.report())
    return merged(reports, passes.missed)


def assert_reference_equal(  # noqa: PLR0913 - the same arguments as check()
    model: str | Path,
    backend: object,
    *,
    prompts: Iterable[object] | None = None,
    max_tokens: int = 64,
    checks: Iterable[str] | None = None,
    effort: Effort = "standard",
    policy: Policy | None = None,
    seed: int = 0,
    cases: Sequence[str] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Report:
    """Do what `check` does, and raise unless every comparison agrees.

    Nothing compared, or no verdict, raises too: it is not a pass.

    Raises:
        ReferenceMismatch: An ``AssertionError`` that carries the ``report``; else as
            `check`.
    """
    __tracebackhide__ = True
    report = check(
        model,
        backend,
        prompts=prompts,
        max_tokens=max_tokens,
        checks=checks,
        effort=effort,
        policy=policy,
        seed=seed,
        cases=cases,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    if report.outcome != "pass":
        raise ReferenceMismatch(report.explain(), report)
    return report
