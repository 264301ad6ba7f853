"""All comparisons of one candidate on one model, and how they are written to disk."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlxcheck.errors import ReportError
from mlxcheck.messages import counted
from mlxcheck.noise import from_plain
from mlxcheck.passes import Control, PassSummary
from mlxcheck.records import FAILING, Comparison, Phase, Verdict
from mlxcheck.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "SCHEMA",
    "Outcome",
    "Report",
    "load",
    "merged",
    "require_writable",
    "save",
    "worst",
]

SCHEMA = 2
"""Version of the JSON layout; raised when a reader of the last one would misread it."""

Outcome = Literal["pass", "fail", "inconclusive"]
"""What a run comes to; there is no fourth, and no truth value stands for one of them."""

_EXPLAINED = 10
_ASKING = "prompts"
"""The check of what an engine is asked, which compares nothing that it answers."""

_ORDER = (
    Verdict.WRONG,
    Verdict.DRIFT,
    Verdict.ERROR,
    Verdict.INCONCLUSIVE,
    Verdict.TIE,
    Verdict.EXACT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run found, kept with everything that it depends on.

    Attributes:
        model: The model's source, as it was given.
        model_type: Its architecture.
        reference: Name and version of the reference engine.
        backend: Name of the candidate.
        comparisons: One a row and check, in the order of the run.
        not_asked: Check and reason, for each check that was left out.
        phases: Time and memory, phase by phase.
        gate: The memory gate's terms, a line each.
        passes: The precision passes: what each was judged by, and those that did not run.
        versions: Versions of Python, mlx, mlx-lm and mlxcheck, the device, the platform.
        settings: ``max_tokens``, ``effort``, ``seed`` and the policy.
        complete: False where the run was cut short; what is here is then a part.
    """

    model: str
    model_type: str
    reference: str
    backend: str
    comparisons: tuple[Comparison, ...]
    not_asked: tuple[tuple[str, str], ...] = ()
    phases: tuple[Phase, ...] = ()
    gate: tuple[str, ...] = ()
    passes: tuple[PassSummary, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    complete: bool = True

    @property
    def outcome(self) -> Outcome:
        """``"fail"`` on any WRONG, DRIFT or ERROR; ``"pass"`` if all that was asked agrees.

        A run that compared no step, was cut short, holds an INCONCLUSIVE comparison, or had
        a control that did not hold, is ``"inconclusive"`` unless something failed in it.
        So is one whose engine was to answer, and of whose answers nothing was compared.
        Where the reference does not agree with itself, nothing else counts.
        """
        if not all(each.trusted for each in self.passes):
            return "inconclusive"
        if self.failures:
            return "fail"
        compared = self.steps and self._answers_compared
        if not self.complete or not compared or self.counts.get(Verdict.INCONCLUSIVE):
            return "inconclusive"
        held = all(control.passed for each in self.passes for control in each.controls)
        return "pass" if held else "inconclusive"

    @property
    def failures(self) -> tuple[Comparison, ...]:
        """The comparisons that make the run fail."""
        return tuple(found for found in self.comparisons if found.verdict in FAILING)

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """How many comparisons came to each verdict."""
        return Counter(found.verdict for found in self.comparisons)

    @property
    def steps(self) -> int:
        """Steps that were compared: those that agreed and those that differed."""
        return sum(map(_steps, self.comparisons))

    @property
    def _answers_compared(self) -> bool:
        """Whether steps of answers were compared, or none were to be."""
        answers = [found for found in self.comparisons if found.check != _ASKING]
        left_out = any(check != _ASKING for check, _ in self.not_asked)
        return any(map(_steps, answers)) or not (answers or left_out)

    def with_fault(self, what: str, text: str) -> Report:
        """Return the report with an ERROR for what an engine did wrong outside of all cases.

        Args:
            what: The method of the backend, such as ``"close"``.
            text: What happened; where it is empty, the report is returned as it is.
        """
        if not text:
            return self
        message = f"{what}, check {what}: {self.backend} failed in {what}(): {text}"
        fault = Comparison(
            check=what,
            prompt_id=what,
            verdict=Verdict.ERROR,
            precision=self.passes[-1].precision if self.passes else "native",
            message=message,
        )
        return dataclasses.replace(self, comparisons=(*self.comparisons, fault))

    def summary(self) -> str:
        """Return one line: outcome, what was compared, and what was not."""
        counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(self.counts.items()))
        text = (
            f"{self.outcome}: {self.backend} against {self.reference} on {self.model}: "
            f"{counted(len(self.comparisons), 'comparison')}, "
            f"{counted(self.steps, 'step')} compared"
        )
        text += f" ({counts})" if counts else ""
        if not self.complete:
            text += "; partial: the run was cut short"
        for check, reason in self.not_asked:
            text += f"; {check} not asked: {reason}"
        if any(each.text_alone for each in self.passes):
            text += "; text alone was compared: the candidate shows no token ids"
        for each in self.passes:
            text += "" if each.ran else f"; {each.precision} pass not run: {each.why}"
            for control in each.controls:
                text += "" if control.passed else f"; control failed: {control.name}: "
                text += "" if control.passed else control.text
        return text

    def explain(self) -> str:
        """Return the summary and every message that is not EXACT, the first ones whole.

        Comparisons with the same failure in other rows are counted, not repeated.
        """
        told = [f for f in self.comparisons if f.message and f.verdict is not Verdict.EXACT]
        told.sort(key=lambda found: _ORDER.index(found.verdict))
        parts = [self.summary(), *(found.message for found in told[:_EXPLAINED])]
        if len(told) > _EXPLAINED:
            parts.append(f"and {counted(len(told) - _EXPLAINED, 'comparison')} more like these")
        parts += ["\n".join(each.lines()) for each in self.passes]
        return "\n\n".join(parts)

    def save(self, path: str | Path) -> None:
        """Write the report; the suffix chooses the form (``.json``).

        Raises:
            ReportError: Another suffix, or the path cannot be written.
        """
        save([self], path)


def merged(reports: Sequence[Report], missed: Sequence[PassSummary] = ()) -> Report:
    """Return one report of several passes over one model with one candidate.

    Args:
        reports: At least one.
        missed: The passes that were not even recorded.
    """
    first = reports[0]
    return dataclasses.replace(
        first,
        comparisons=tuple(found for each in reports for found in each.comparisons),
        not_asked=tuple(dict.fromkeys(pair for each in reports for pair in each.not_asked)),
        phases=tuple(phase for each in reports for phase in each.phases),
        passes=(*(one for each in reports for one in each.passes), *missed),
        complete=all(each.complete for each in reports),
    )


def worst(reports: Iterable[Report]) -> Outcome:
    """Return the outcome of several runs together; none at all is inconclusive."""
    outcomes = {report.outcome for report in reports}
    if "fail" in outcomes:
        return "fail"
    return "pass" if outcomes == {"pass"} else "inconclusive"


def require_writable(path: str | Path) -> None:
    """Find out before a long run, not after it, that a report cannot be written.

    Raises:
        ReportError: As for `save`.
    """
    target = _target(path)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".mlxcheck-"):
            pass
    except OSError as error:
        raise _unwritable(target, error) from None
    if target.is_dir():
        msg = f"{target}: cannot write the report: it is a folder. Give a file name."
        raise ReportError(msg)


def save(reports: Sequence[Report], path: str | Path) -> None:
    """Write reports as one JSON file, whole or not at all.

    Raises:
        ReportError: A suffix other than ``.json``, or the path cannot be written.
    """
    target = _target(path)
    content = {"schema": SCHEMA, "reports": [_plain(report) for report in reports]}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        write_whole(target, text)
    except OSError as error:
        raise _unwritable(target, error) from None


def load(path: str | Path) -> tuple[Report, ...]:
    """Read reports that `save` wrote.

    Raises:
        ReportError: The file cannot be read or is not such a report.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            msg = f"{path}: report of schema {content['schema']}; this release reads {SCHEMA}."
            raise ReportError(msg)
        return tuple(_report(raw) for raw in content["reports"])
    except OSError as error:
        msg = f"{path}: cannot read the report: {error.strerror}."
        raise ReportError(msg) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path}: not a report of mlxcheck: {type(error).__name__}: {error}."
        raise ReportError(msg) from None


def _steps(found: Comparison) -> int:
    """Count what was compared: a step that differs was, too."""
    return found.steps + (found.step is not None)


def _plain(report: Report) -> dict[str, Any]:
    raw: dict[str, Any] = _finite(dataclasses.asdict(report))
    raw["outcome"] = report.outcome
    raw["steps"] = report.steps
    return raw


def _finite(value: Any) -> Any:
    """Replace what JSON has no word for, and write the many measured numbers short.

    A masked token has log-probability -inf, and what could not be compared is NaN: both
    become None.
    """
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _report(raw: dict[str, Any]) -> Report:
    known = {field.name for field in dataclasses.fields(Report)}
    fields = {name: value for name, value in raw.items() if name in known}
    fields["comparisons"] = tuple(_comparison(entry) for entry in raw["comparisons"])
    fields["phases"] = tuple(Phase(**entry) for entry in raw["phases"])
    fields["passes"] = tuple(_pass(entry) for entry in raw["passes"])
    fields["not_asked"] = tuple((check, reason) for check, reason in raw["not_asked"])
    fields["gate"] = tuple(raw["gate"])
    return Report(**fields)


def _comparison(raw: dict[str, Any]) -> Comparison:
    fields = {**_tuples(raw), "verdict": Verdict(raw["verdict"])}
    for each in dataclasses.fields(Comparison):
        if each.default == () and not isinstance(fields.get(each.name, ()), tuple):
            msg = f"{each.name} is no list"
            raise TypeError(msg)
    for name in ("errors", "divergences"):
        fields[name] = tuple(math.nan if value is None else value for value in raw[name])
    return Comparison(**fields)


def _pass(raw: dict[str, Any]) -> PassSummary:
    fields = _tuples(raw)
    fields["controls"] = tuple(Control(**entry) for entry in raw["controls"])
    if raw["noise"] is not None:
        fields["noise"] = from_plain(raw["noise"])
    return PassSummary(**fields)


def _tuples(raw: dict[str, Any]) -> dict[str, Any]:
    """Turn lists, and lists of lists, into the tuples that records hold."""
    return {name: _tuple(value) for name, value in raw.items()}


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value


def _target(path: str | Path) -> Path:
    try:
        target = Path(path).expanduser()
    except RuntimeError as error:
        msg = f"{path}: cannot write the report: {error}. Give a path without ~."
        raise ReportError(msg) from None
    if target.suffix != ".json":
        msg = f"{path}: cannot tell the form of the report from {target.suffix!r}; use .json."
        raise ReportError(msg)
    return target


def _unwritable(target: Path, error: OSError) -> ReportError:
    return ReportError(
        f"{target}: cannot write the report: {error.strerror}. Give a path in a folder that "
        "exists and that you may write to."
    )
