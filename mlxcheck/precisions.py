"""The precision passes of one model: what each is recorded on, and which cannot be made."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlxcheck import precision
from mlxcheck.backends import registry
from mlxcheck.errors import NotEnoughMemory
from mlxcheck.passes import PassSummary, missed
from mlxcheck.recording import Memo, Recorded, read, record_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mlxcheck.checkpoint import Checkpoint
    from mlxcheck.phases import Observer
    from mlxcheck.policy import Policy
    from mlxcheck.prompts import Question
    from mlxcheck.records import Precision
    from mlxcheck.settings import Settings

__all__ = ["Passes", "cannot_cast", "memo_of", "passes_of", "record_passes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """What was recorded of a model.

    Attributes:
        recorded: One a pass that can be made, in the order of the policy.
        missed: The others, with the reason.
    """

    recorded: tuple[Recorded, ...]
    missed: tuple[PassSummary, ...] = ()


def passes_of(found: Checkpoint, policy: Policy) -> tuple[Precision, ...]:
    """Return the passes that a checkpoint has: one in float32 has one."""
    if precision.native_dtype(found) == "float32":
        return ("float32",) if "float32" in policy.precision else ("native",)
    return tuple(policy.precision)


def cannot_cast(backend: object) -> str:
    """Return why no copy of the checkpoint can be given to a backend; empty if one can."""
    if registry.is_function(backend):
        return "a function holds its own engine, which no float32 copy can be given to"
    return ""


def memo_of(native: Memo, name: Precision, stack: ExitStack) -> Memo:
    """Return what a pass is recorded with.

    Args:
        native: Of the model.
        name: The pass.
        stack: Removes the float32 copy, where one is made.

    Raises:
        NotEnoughMemory: There is no room for the copy on disk.
        ModelError: It cannot be written.
    """
    found, tokenizer = native.files
    if name == "native" or precision.native_dtype(found) == "float32":
        native.precision = name
        return native
    why = precision.room_for_copy(found)
    if why:
        raise NotEnoughMemory(why)
    copy = stack.enter_context(precision.cast_copy(found))
    return Memo(files=(copy, tokenizer), precision=name, original=found)


@contextmanager
def record_passes(  # noqa: PLR0913 - the arguments of `record`, and the candidates
    source: str,
    questions: Sequence[Question] | None,
    settings: Settings,
    *,
    backends: Sequence[object] = (),
    wanted: Callable[[str], bool] = lambda _: True,
    observer: Observer | None = None,
) -> Iterator[Passes]:
    """Record a model in each of its passes; float32 copies last as long as the block.

    A pass that this machine has no room for, or that no candidate could be given, is left
    out and told, as long as there is another.

    Args:
        source: As for `record`.
        questions: As for `record`.
        settings: As for `record`.
        backends: The candidates.
        wanted: As for `record`.
        observer: As for `record`.

    Raises:
        Exception: All of `record`; `NotEnoughMemory` only where no pass can be made.
    """
    native = Memo(files=read(source, settings))
    names = passes_of(native.files[0], settings.policy)
    casts = precision.native_dtype(native.files[0]) != "float32"
    reasons = [cannot_cast(backend) for backend in backends]
    recorded: list[Recorded] = []
    left_out: list[PassSummary] = []
    refused: NotEnoughMemory | None = None
    with ExitStack() as stack:
        for name in names:
            if name == "float32" and casts and len(names) > 1 and reasons and all(reasons):
                left_out.append(missed(name, reasons[0]))
                continue
            try:
                memo = memo_of(native, name, stack)
                recorded.append(
                    record_one(questions, settings, memo, wanted=wanted, observer=observer)
                )
            except NotEnoughMemory as error:
                left_out.append(missed(name, str(error)))
                refused = refused or error
        if not recorded and refused is not None:
            raise refused
        backed = any(each.precision == "float32" for each in recorded)
        yield Passes(
            recorded=tuple(replace(each, backed=backed) for each in recorded),
            missed=tuple(left_out),
        )
