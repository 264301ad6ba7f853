"""From command line, environment and ini file to what one session is asked for."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlxcheck import checks as all_checks
from mlxcheck import report as reports
from mlxcheck.errors import MlxCheckError
from mlxcheck.plugin import OPTIONS, Option
from mlxcheck.policy import MODES, PRECISIONS, Policy
from mlxcheck.prompts import Question, packaged, read_file
from mlxcheck.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.checks import Check
    from mlxcheck.records import Precision

__all__ = ["Wishes", "names_of", "refuse_workers", "wishes"]

_TRUTHS = {"1": True, "true": True, "yes": True, "on": True}
_TRUTHS |= {"0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a session is asked for.

    Attributes:
        models: Source by the name that node ids use, in the order given.
        backends: Names, in the order given.
        checks: In the order in which they run.
        settings: What every comparison depends on.
        questions: The prompts of the generated items.
        own_prompts: Whether they come from ``--mlx-prompts``.
        examples: Cases of a search; 0: there is none.
        require: Whether what is skipped or has no verdict fails.
        report: Where to write all results; None for nowhere.
        generate: Whether items are generated at all.
        chosen: Node ids from the command line; empty for all items.
    """

    models: Mapping[str, str]
    backends: tuple[str, ...]
    checks: tuple[Check, ...]
    settings: Settings
    questions: tuple[Question, ...]
    own_prompts: bool
    examples: int
    require: bool
    report: Path | None
    generate: bool
    chosen: tuple[str, ...]

    @property
    def asked(self) -> tuple[Question, ...] | None:
        """The prompts as `mlxcheck.recording.Want` takes them: None for the packaged set."""
        return self.questions if self.own_prompts else None


@dataclass(frozen=True, slots=True)
class _Given:
    """One option's value with where it came from."""

    value: object
    origin: str
    folder: Path

    def word(self) -> str | None:
        return None if self.value is None else str(self.value)

    def words(self) -> list[str]:
        return [str(word) for word in self.value] if isinstance(self.value, list) else []

    def number(self) -> int | None:
        if self.value is None:
            return None
        try:
            return int(str(self.value))
        except ValueError:
            msg = f"{self.origin}={self.value!r}: expected a whole number."
            raise pytest.UsageError(msg) from None

    def seconds(self) -> float | None:
        if self.value is None:
            return None
        try:
            seconds = float(str(self.value))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            msg = f"{self.origin}={self.value!r}: expected a number of seconds above 0."
            raise pytest.UsageError(msg)
        return seconds

    def truth(self) -> bool:
        if not isinstance(self.value, str):
            return bool(self.value)
        truth = _TRUTHS.get(self.value.strip().lower())
        if truth is None:
            msg = f"{self.origin}={self.value!r}: expected 1 or 0."
            raise pytest.UsageError(msg)
        return truth

    def path(self) -> Path | None:
        # Made absolute now: tests may change the working folder.
        word = self.word()
        return None if word is None else self.folder / Path(word).expanduser()


def wishes(config: pytest.Config) -> Wishes:
    """Settle every option: command line before environment, ini file, default.

    Raises:
        UsageError: pytest's own, one paragraph: a value that cannot be meant.
    """
    given = {option.name: _given(config, option) for option in OPTIONS}
    chosen, generate = _arguments(config)
    prompts = given["prompts"].path()
    report = given["report"].path()
    try:
        if report is not None:
            reports.require_writable(report)
        return Wishes(
            models=names_of(_sources(given["model"])),
            backends=tuple(dict.fromkeys(given["backend"].words())) or ("mlx-lm",),
            checks=all_checks.named(given["check"].words() or None),
            settings=_settings(given, prompts),
            questions=packaged() if prompts is None else read_file(prompts),
            own_prompts=prompts is not None,
            examples=_examples(given["examples"]),
            require=given["require"].truth(),
            report=report,
            generate=generate,
            chosen=chosen,
        )
    except MlxCheckError as error:
        raise pytest.UsageError(str(error)) from None


def names_of(sources: Sequence[str]) -> dict[str, str]:
    """Name each model by the last part of its source, and by more where that is not enough.

    Args:
        sources: Folders and hub ids; repetitions are dropped.

    Returns:
        Source by name, in order.
    """
    parts: dict[str, tuple[str, ...]] = {}
    for source in sources:
        folder = Path(source).expanduser()
        parts[source] = folder.resolve().parts if folder.is_dir() else folder.parts
    for length in range(1, max(map(len, parts.values()), default=0) + 1):
        names = {source: "/".join(each[-length:]) for source, each in parts.items()}
        if max(Counter(names.values()).values()) == 1:
            return {name: source for source, name in names.items()}
    return {source: source for source in parts}


def refuse_workers(config: pytest.Config) -> None:
    """Refuse to run where each process would load a model of its own.

    Raises:
        UsageError: pytest's own: pytest-xdist or pytest-forked is at work.
    """
    workers = getattr(config.option, "numprocesses", None)
    spread = getattr(config.option, "dist", "no") != "no" or hasattr(config, "workerinput")
    if workers or spread:
        msg = (
            "--mlx-reference does not run under pytest-xdist: each worker would load its own "
            "copy of the model, where memory is checked for one. Give -n 0, or -p no:xdist."
        )
        raise pytest.UsageError(msg)
    if getattr(config.option, "forked", False):
        msg = (
            "--mlx-reference does not run under --forked: each test's process would load the "
            "model again. Leave --forked out, or give -p no:forked."
        )
        raise pytest.UsageError(msg)


def _given(config: pytest.Config, option: Option) -> _Given:
    here = config.invocation_params.dir
    value = config.getoption(option.key)
    if value:
        return _Given(value, option.flag, here)
    if not option.everywhere:
        return _Given(None, option.flag, here)
    text = os.environ.get(option.variable)
    if text:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return _Given(words if option.kind == "words" else text, option.variable, here)
    folder = config.inipath.parent if config.inipath else here
    return _Given(config.getini(option.key), option.key, folder)


def _sources(given: _Given) -> list[str]:
    """Take a model's folder in the ini file as seen from there, as all paths in it are."""
    sources = []
    for word in given.words():
        beside = given.folder / word
        moved = given.folder != Path.cwd() and beside.is_dir()
        sources.append(str(beside) if moved else word)
    return sources


def _settings(given: Mapping[str, _Given], prompts: Path | None) -> Settings:
    # None means "not said" here; the defaults stand in one place, in Settings and Policy.
    said = {
        "max_tokens": given["max-tokens"].number(),
        "effort": given["effort"].word(),
        "seed": given["seed"].number(),
        "revision": given["revision"].word(),
        "prompts_from": None if prompts is None else str(prompts),
    }
    return Settings(
        policy=_policy(given),
        trust_remote_code=given["trust-remote-code"].truth(),
        **{name: value for name, value in said.items() if value is not None},  # type: ignore[arg-type]
    )


def _examples(given: _Given) -> int:
    examples = given.number() or 0
    if examples < 0:
        msg = f"{given.origin}='{examples}': expected at least 0 examples."
        raise pytest.UsageError(msg)
    # Looked for, not imported: a session that searches nothing pays nothing.
    if examples and importlib.util.find_spec("hypothesis") is None:
        msg = (
            f"{given.origin}={examples}: a search draws its cases with hypothesis, which is "
            "not installed. Run pip install hypothesis."
        )
        raise pytest.UsageError(msg)
    return examples


def _policy(given: Mapping[str, _Given]) -> Policy:
    default, watchdog = Policy(), given["watchdog"].seconds()
    mode = given["mode"].word() or default.mode
    if mode not in MODES:
        msg = f"{given['mode'].origin}={mode!r}: expected {' or '.join(MODES)}."
        raise pytest.UsageError(msg)
    chunk = given["prefill-chunk"].number()
    if chunk is not None and chunk < 1:
        msg = f"{given['prefill-chunk'].origin}='{chunk}': expected at least 1 token."
        raise pytest.UsageError(msg)
    return Policy(
        precision=_precision(given["precision"]) or default.precision,
        mode=mode,
        prefill_chunk=chunk or default.prefill_chunk,
        watchdog_s=watchdog or default.watchdog_s,
        # Who waits one second for an answer does not want to wait ten for its end.
        grace_s=min(watchdog or default.grace_s, default.grace_s),
    )


def _precision(given: _Given) -> tuple[Precision, ...]:
    """Take the names of passes apart at commas, which none of them holds, wherever given."""
    names = [name.strip() for word in given.words() for name in word.split(",")]
    for name in names:
        if name not in PRECISIONS:
            msg = f"{given.origin}={name!r}: expected {' or '.join(PRECISIONS)}."
            raise pytest.UsageError(msg)
    return tuple(name for name in PRECISIONS if name in names)


def _arguments(config: pytest.Config) -> tuple[tuple[str, ...], bool]:
    """Take generated items' ids out of the arguments; say whether items are to be made.

    Who names files or tests on the command line wants those alone.
    """
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return (), True
    mine = {arg: nodeid for arg in config.args if (nodeid := _generated_id(arg))}
    if mine:
        # What is left may be nothing; pytest then collects nothing else.
        config.args[:] = [arg for arg in config.args if arg not in mine]
        return tuple(mine.values()), True
    here = config.invocation_params.dir
    return (), any((here / arg).is_dir() for arg in config.args)


def _generated_id(arg: str) -> str | None:
    """Return the node id that an argument names, where it is a generated item's.

    pytest shows ``../mlxcheck::...`` where it was not started in the root folder.
    """
    head, colons, rest = arg.partition("::")
    return f"mlxcheck::{rest}" if colons and Path(head).name == "mlxcheck" else None
