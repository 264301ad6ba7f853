"""Replay files: what a failing case asked and what it came to, as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mlxcheck import checks
from mlxcheck.backends import registry
from mlxcheck.errors import MlxCheckError, ReportError, UsageError
from mlxcheck.policy import Policy
from mlxcheck.provenance import versions
from mlxcheck.records import FAILING, Case, Moment, Precision, Prompt, Schedule, Verdict
from mlxcheck.settings import Settings
from mlxcheck.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlxcheck.recording import Recorded
    from mlxcheck.shrink import Shrunk

__all__ = ["SCHEMA", "Replay", "load", "replay_of", "save"]

SCHEMA = 1
"""Version of the layout; raised when a reader of the last one would misread it."""

_KIND = "mlxcheck replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Everything that repeats a failure, and what it was.

    Attributes:
        model: The checkpoint's source, as it was given.
        model_type: Its architecture.
        backend: What names the candidate on the command line; None where nothing does.
        check: The question's name.
        case: What was driven.
        judged: The ids of its prompts that are held against the reference.
        row: The failing row.
        verdict: What it came to; `step`, `expected`, `actual` and `message` as in
            `Comparison`.
        stable: It failed the same way in two fresh engines.
        precision: The pass.
        max_tokens: The most tokens of each answer.
        seed: Of the run that found it.
        policy: The rules of judgement, without their passes.
        revision: The hub revision of the model, where one was asked for.
        trust_remote_code: Whether code in the checkpoint may be run.
        versions: Of Python, mlx, mlx-lm and mlxcheck, the device, the platform.
    """

    model: str
    model_type: str
    backend: str | None
    check: str
    case: Case
    judged: tuple[str, ...]
    row: int
    verdict: Verdict
    step: int | None
    expected: int | None
    actual: int | None
    message: str
    stable: bool
    precision: Precision
    max_tokens: int
    seed: int
    policy: Mapping[str, Any]
    revision: str | None = None
    trust_remote_code: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> Settings:
        """Return what its run depends on.

        Raises:
            UsageError: The numbers make no sense.
        """
        return Settings(
            max_tokens=self.max_tokens,
            seed=self.seed,
            policy=Policy(**self.policy, precision=(self.precision,)),
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
            prompts_from="",
        )


def replay_of(
    shrunk: Shrunk, recorded: Recorded, backend: object, settings: Settings
) -> Replay:
    """Return what is to be kept of a failure that was shrunk.

    Args:
        shrunk: From `shrink`.
        recorded: What it was held against.
        backend: The candidate, as it was given.
        settings: Of the run.
    """
    found, policy = shrunk.comparison, asdict(settings.policy)
    del policy["precision"]
    return Replay(
        model=recorded.model.source,
        model_type=recorded.model.model_type,
        backend=registry.command_name(backend),
        check=found.check,
        case=shrunk.case,
        judged=shrunk.judged,
        row=found.row,
        verdict=found.verdict,
        step=found.step,
        expected=found.expected,
        actual=found.actual,
        message=found.message,
        stable=shrunk.stable,
        precision=recorded.precision,
        max_tokens=settings.max_tokens,
        seed=settings.seed,
        policy=policy,
        revision=settings.revision,
        trust_remote_code=settings.trust_remote_code,
        versions=versions(),
    )


def save(replay: Replay, path: str | Path) -> None:
    """Write a replay file, whole or not at all.

    Raises:
        ReportError: The path cannot be written.
    """
    target = Path(path)
    raw = {name: value for name, value in asdict(replay).items() if name != "judged"}
    case = raw.pop("case")
    prompts = {each.id: each for each in replay.case.prompts}
    raw["prompts"] = [
        {"id": each.id, "tokens": list(each.tokens), "judged": each.id in replay.judged}
        for each in prompts.values()
    ]
    raw["case"] = {**case, "prompts": [each.id for each in replay.case.prompts]}
    text = json.dumps({"kind": _KIND, "schema": SCHEMA, **raw}, indent=1, ensure_ascii=False)
    try:
        write_whole(target, text)
    except OSError as error:
        msg = (
            f"{target}: cannot write the replay file: {error.strerror}. Give a folder that "
            "exists and that you may write to."
        )
        raise ReportError(msg) from None


def load(path: str | Path) -> Replay:
    """Read a replay file.

    Raises:
        UsageError: It cannot be read, is none, or is of another schema; or it asks a check
            that this release does not have.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path}: the replay file cannot be read: {error.strerror}."
        raise UsageError(msg) from None
    except ValueError as error:
        msg = f"{path}: the replay file is not JSON: {error}."
        raise UsageError(msg) from None
    if not isinstance(raw, dict) or raw.get("kind") != _KIND:
        msg = f"{path}: this is no replay file. `mlxcheck run --shrink` writes one."
        raise UsageError(msg)
    if raw.get("schema") != SCHEMA:
        msg = f"{path}: replay file of schema {raw.get('schema')}; this release reads {SCHEMA}."
        raise UsageError(msg)
    try:
        found = _replay(raw)
        found.settings()
        checks.named([found.check])
    except MlxCheckError as error:
        msg = f"{path}: {error}"
        raise UsageError(msg) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path}: the replay file is damaged: {type(error).__name__}: {error}."
        raise UsageError(msg) from None
    return found


def _replay(raw: dict[str, Any]) -> Replay:
    known = {each.name for each in dataclasses.fields(Replay)}
    fields = {name: value for name, value in raw.items() if name in known}
    prompts = {each["id"]: _prompt(each) for each in raw["prompts"]}
    case = _case(raw["case"], prompts)
    fields["case"] = case
    fields["judged"] = tuple(each["id"] for each in raw["prompts"] if each["judged"])
    fields["verdict"] = Verdict(raw["verdict"])
    _require(fields["verdict"] in FAILING, f"verdict {raw['verdict']} is no failure")
    _require(raw["precision"] in get_args(Precision), f"precision {raw['precision']!r}")
    for name in ("model", "check", "message"):
        _require(isinstance(raw[name], str), f"{name} is no text")
    _require(raw["backend"] is None or isinstance(raw["backend"], str), "backend is no text")
    _require(raw["row"] in range(len(case.prompts)), f"row {raw['row']!r} of {case.id}")
    return Replay(**fields)


def _prompt(raw: dict[str, Any]) -> Prompt:
    tokens = tuple(raw["tokens"])
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in tokens)
    _require(whole and isinstance(raw["id"], str), f"prompt {raw['id']!r}")
    return Prompt(id=raw["id"], tokens=tokens)


def _case(raw: dict[str, Any], prompts: Mapping[str, Prompt]) -> Case:
    rows = len(raw["prompts"])
    fields = {**raw, "prompts": tuple(prompts[name] for name in raw["prompts"])}
    _require(rows, "a case without prompts")
    for name in ("given", "most"):
        fields[name] = tuple(raw[name])
        _require(len(fields[name]) in {0, rows}, f"{name} of {rows} rows: {raw[name]}")
    if raw["schedule"] is not None:
        joins, leaves = (_moments(raw["schedule"][name], rows) for name in ("joins", "leaves"))
        fields["schedule"] = Schedule(joins=joins, leaves=leaves)
    return Case(**fields)


def _moments(raw: list[dict[str, Any] | None], rows: int) -> tuple[Moment | None, ...]:
    moments = tuple(None if each is None else Moment(**each) for each in raw)
    _require(len(moments) == rows, f"{len(moments)} moments of {rows} rows")
    for each in moments:
        _require(each is None or each.row in range(rows), f"a moment of {each}")
    return moments


def _require(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(what)
