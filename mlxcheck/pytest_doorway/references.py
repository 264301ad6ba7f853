"""The references of a session: one load a model and pass, for all items and tests together."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlxcheck import checkpoint, precision, release
from mlxcheck.errors import MlxCheckError, PromptError
from mlxcheck.precisions import memo_of, passes_of
from mlxcheck.pytest_doorway.outcomes import Refusal
from mlxcheck.recording import Memo, Recorded, Want, read, record_each
from mlxcheck.records import ModelRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.policy import Mode, Policy
    from mlxcheck.records import Precision
    from mlxcheck.settings import Settings

__all__ = ["References", "foreseen"]


class _Key(NamedTuple):
    """What traces and noise of one pass depend on besides the prompts."""

    source: str
    precision: Precision
    mode: Mode
    chunk: int

    @classmethod
    def of(cls, source: str, name: Precision, policy: Policy) -> _Key:
        return cls(source, name, policy.mode, policy.prefill_chunk)


class _Planned(NamedTuple):
    source: str
    want: Want
    policy: Policy
    only: Precision | None


def foreseen(source: str, policy: Policy) -> tuple[Precision, ...]:
    """Return a model's passes, as far as can be told while tests are collected.

    The headers of a folder's weight files say it without mlx-lm being imported; what is
    on the hub, or broken, is taken to have every pass.
    """
    names = tuple(policy.precision)
    try:
        folder = Path(source).expanduser()
        if len(names) == 1 or not folder.is_dir():
            return names
        tensors = [each for part in checkpoint.shards(folder) for each in part.tensors]
    except (MlxCheckError, OSError, RuntimeError):
        return names
    found = checkpoint.Checkpoint(
        model=ModelRef(source=source, path=str(folder)),
        config={},
        weight_bytes=0,
        largest_tensor=0,
        dtypes=tuple({each.dtype for each in tensors}),
    )
    return passes_of(found, policy)


class References:
    """Records references, keeps what they said, and never a model.

    Every set of prompts that is known to be wanted is planned before the first is asked
    for: then all models are loaded and freed in turn, each once a pass, before any
    candidate. The float32 copies that this takes last until `close`, for the candidates.

    Args:
        settings: What every comparison depends on.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._planned: list[_Planned] = []
        self._files: dict[str, Memo | Refusal] = {}
        self._copies: dict[str, Memo] = {}
        self._memos: dict[_Key, Memo] = {}
        self._refused: dict[_Key, Refusal] = {}
        self._stack = ExitStack()

    def close(self) -> None:
        """Remove the float32 copies."""
        self._stack.close()

    def plan(
        self, source: str, want: Want, policy: Policy, only: Precision | None = None
    ) -> None:
        """Have a set decoded in the first load of each pass, or of *only* one of them."""
        self._planned.append(_Planned(source, want, policy, only))

    def passes(self, source: str, policy: Policy) -> tuple[Precision, ...] | Refusal:
        """Return the passes that a model has, or why it cannot be read."""
        files = self._read(source)
        return files if isinstance(files, Refusal) else passes_of(files.files[0], policy)

    def is_cast(self, source: str, name: Precision) -> bool:
        """Tell whether a pass of a model that has been read needs a copy of it."""
        files = self._read(source)
        if isinstance(files, Refusal) or name == "native":
            return False
        return precision.native_dtype(files.files[0]) != "float32"

    def recorded(
        self, source: str, name: Precision, want: Want, policy: Policy
    ) -> Recorded | Refusal:
        """Return what the reference says to a set, recorded now where it was not planned.

        No candidate may be open.

        Args:
            source: The model.
            name: One of its passes.
            want: The set.
            policy: Of the comparison.
        """
        if self._planned:
            self.plan(source, want, policy, name)
            self._record_planned()
        found = self._record(_Key.of(source, name, policy), [want], policy)
        return found if isinstance(found, Refusal) else found[0]

    def has(self, source: str, name: Precision, policy: Policy) -> bool:
        """Tell whether a pass of a model has been recorded."""
        key = _Key.of(source, name, policy)
        return key in self._memos and key not in self._refused

    def _record_planned(self) -> None:
        """Record all that is planned, model by model, and each in its passes' order."""
        planned, self._planned = self._planned, []
        wants: dict[_Key, tuple[list[Want], Policy]] = {}
        for source in dict.fromkeys(each.source for each in planned):
            for each in planned:
                if each.source == source:
                    names = self.passes(source, each.policy)
                    for name in () if isinstance(names, Refusal) else names:
                        if each.only in {None, name}:
                            key = _Key.of(source, name, each.policy)
                            wants.setdefault(key, ([], each.policy))[0].append(each.want)
        for key, (sets, policy) in wants.items():
            self._record(key, sets, policy)

    def _record(
        self, key: _Key, wants: Sequence[Want], policy: Policy
    ) -> Refusal | tuple[Recorded | Refusal, ...]:
        files = self._read(key.source)
        if isinstance(files, Refusal):
            return files
        if key not in self._refused:
            settings = replace(self._settings, policy=policy)
            try:
                found = record_each(wants, settings, self._memo(key, files))
            except Exception as error:  # noqa: BLE001 - told by every item that needed it
                self._refused[key] = Refusal.of(error)
            else:
                return tuple(
                    Refusal.of(each) if isinstance(each, PromptError) else each
                    for each in found
                )
            # The traceback is gone, and with it what it held: the next load starts clean.
            release.take_baseline()
        return self._refused[key]

    def _memo(self, key: _Key, files: Memo) -> Memo:
        """Return what a pass is recorded with; a copy is made once, whatever the policies."""
        if key not in self._memos:
            # A fresh one each: `memo_of` may hand back the one that it is given.
            given = self._copies.get(key.source, Memo(files=files.files))
            if key.precision == "float32":
                precision.turn_tf32_off()  # a call may want this pass where no option does
            if key.precision == "float32" and given.original is not None:
                memo = replace(given, traces={}, noises=[], phases=[])
            else:
                memo = memo_of(Memo(files=files.files), key.precision, self._stack)
            if memo.original is not None:
                self._copies[key.source] = memo
            self._memos[key] = memo
        return self._memos[key]

    def _read(self, source: str) -> Memo | Refusal:
        if source not in self._files:
            try:
                self._files[source] = Memo(files=read(source, self._settings))
            except Exception as error:  # noqa: BLE001 - as above
                self._files[source] = Refusal.of(error)
        return self._files[source]
