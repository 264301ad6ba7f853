"""A failure that can be carried away: what drives a replay file again, anywhere.

The file holds no answer of the reference's: that is decoded anew, by the mlx-lm that is
installed where the file is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck import checks
from mlxcheck.backends import registry
from mlxcheck.errors import (
    ModelError,
    ModelUnavailable,
    NotEnoughMemory,
    ReferenceMismatch,
    UsageError,
)
from mlxcheck.precisions import record_passes
from mlxcheck.prompts import as_questions
from mlxcheck.records import FAILING, Comparison, Verdict
from mlxcheck.replay_file import Replay, load
from mlxcheck.run import Drive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mlxcheck.phases import Observer
    from mlxcheck.report import Outcome, Report

__all__ = ["Replayed", "assert_replays", "replay", "shown", "with_command"]

_AGAIN = "  again: "
_AGREES = frozenset({Verdict.EXACT, Verdict.TIE})
_CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay came to.

    Attributes:
        outcome: ``"fail"`` where a row fails, as recorded or otherwise; ``"pass"`` where all
            rows agree; ``"inconclusive"`` where nothing could be said.
        likeness: ``"as recorded"``, ``"fails otherwise than recorded"``, ``"no longer fails"``
            or ``"no verdict"``.
        comparisons: One a row that is judged.
        message: The whole of it, for people.
        report: Everything else that is known.
    """

    outcome: Outcome
    likeness: str
    comparisons: tuple[Comparison, ...]
    message: str
    report: Report


def replay(
    path: str | Path,
    *,
    backend: object = None,
    model: str | Path | None = None,
    observer: Observer | None = None,
) -> Replayed:
    """Decode a file's prompts with the reference, drive its case, and judge it again.

    Args:
        path: Written by ``mlxcheck run --shrink``.
        backend: What to drive; None for the backend that the file names.
        model: The checkpoint; None for the one that the file names.
        observer: Watches.

    Raises:
        UsageError: The file cannot be used as it is; the text says what to give.
        ModelUnavailable: A hub model that is neither cached nor within reach.
        NotEnoughMemory: The memory gate is closed, or the file's pass cannot be made.
        MlxCheckError: All others of `mlxcheck.check`.
    """
    kept = load(path)
    candidate = kept.backend if backend is None else backend
    if candidate is None:
        msg = (
            f"{path}: it names no backend, since what failed had no name on the command line. "
            "Give one: backend=..., or --backend B."
        )
        raise UsageError(msg)
    registry.require_findable(candidate)
    try:
        return _driven(kept, path, candidate, str(model or kept.model), observer)
    except (ModelError, ModelUnavailable) as error:
        if model is not None:
            raise
        msg = f"{path} names a model that cannot be used here: {error} Give another: --model M."
        raise type(error)(msg) from None


def assert_replays(
    path: str | Path, *, backend: object = None, model: str | Path | None = None
) -> Replayed:
    """Replay a file, and raise unless every row of its case agrees with the reference.

    Nothing compared raises too: it is not a pass.

    Args:
        path: A replay file, as ``mlxcheck run --shrink`` writes it.
        backend: What to drive; None for the backend that the file names.
        model: The checkpoint; None for the one that the file names.

    Raises:
        ReferenceMismatch: An ``AssertionError`` that carries the ``report``.
        MlxCheckError: As for `replay`.

    Example::

        def test_what_once_failed():
            mlxcheck.assert_replays("mlxcheck-replay-1.json", backend="mlx-lm")
    """
    __tracebackhide__ = True
    found = replay(path, backend=backend, model=model)
    if found.outcome != "pass":
        raise ReferenceMismatch(found.message, found.report)
    return found


def with_command(found: Comparison, command: str) -> Comparison:
    """Return a comparison whose message names the command that repeats it.

    Args:
        found: Of a case that no plan holds: the command that it names would not find it.
        command: What does.
    """
    lines = [
        f"{_AGAIN}{command}" if line.startswith(_AGAIN) else line
        for line in found.message.split("\n")
    ]
    return replace(found, message="\n".join(lines))


def shown(text: str) -> str:
    """Return a text as a terminal can show it: engines may put anything into a message."""
    return text.translate(_CONTROL)


def _driven(
    kept: Replay, path: str | Path, backend: object, source: str, observer: Observer | None
) -> Replayed:
    """Record, drive, judge."""
    settings = kept.settings()
    prompts = as_questions({each.id: each for each in kept.case.prompts}.values())
    judged = frozenset(kept.judged)
    asked = checks.named([kept.check])
    with record_passes(
        source,
        prompts,
        settings,
        backends=[backend],
        wanted=judged.__contains__,
        observer=observer,
    ) as passes:
        if not passes.recorded:
            why = "; ".join(each.why for each in passes.missed)
            msg = f"{path}: the {kept.precision} pass cannot be made: {why}"
            raise NotEnoughMemory(msg)
        with Drive(passes.recorded[0], backend, asked, settings, cases=()) as drive:
            why = drive.not_run or drive.not_asked.get(kept.check, "")
            found = () if why else drive.compare(asked[0], kept.case)
        report = drive.report()
    if not all(each.trusted for each in report.passes):
        why = "the reference does not agree with itself"
    words = ["mlxcheck", "replay", str(path)]
    words += ["--backend", str(registry.command_name(backend) or "...")]
    words += ["--model", source] if source != kept.model else []
    return _judged(kept, found, report, why, " ".join(words))


def _judged(
    kept: Replay, found: Sequence[Comparison], report: Report, why: str, again: str
) -> Replayed:
    """Say what it came to, and how that compares with what the file says."""
    told = [with_command(each, again) for each in found]
    failing = [each for each in told if each.verdict in FAILING]
    failing.sort(key=lambda each: (each.row != kept.row, each.row))
    agrees = bool(told) and all(each.verdict in _AGREES for each in told)
    outcome: Outcome = "inconclusive"
    likeness = "no verdict"
    if why:
        text = why
    elif failing:
        first = failing[0]
        same = (first.row, first.verdict, first.step, first.expected, first.actual) == (
            kept.row,
            kept.verdict,
            kept.step,
            kept.expected,
            kept.actual,
        )
        outcome = "fail"
        likeness = "as recorded" if same else "fails otherwise than recorded"
        text = f"{first.verdict}  {first.message}"
    elif agrees:
        outcome, likeness = "pass", "no longer fails"
        text = "; ".join(f"{each.verdict}  {each.prompt_id}, row {each.row}" for each in told)
    else:
        text = "\n".join(each.message for each in told) or "nothing was compared"
    return Replayed(
        outcome=outcome,
        likeness=likeness,
        comparisons=tuple(told),
        message=f"{text}\n{likeness}: {_recorded(kept)}",
        report=report,
    )


def _recorded(kept: Replay) -> str:
    """Say in a line what the file says."""
    row = f"row {kept.row} of {len(kept.case.prompts)}"
    step = "" if kept.step is None else f" at step {kept.step}"
    text = f"recorded was {kept.verdict} in {row}{step}, check {kept.check}"
    text += f", {kept.backend or 'a backend without a name'} on {kept.model}"
    return text if kept.stable else f"{text}; it was unstable when it was recorded"
