"""From a failing case to the smallest one that fails the same way: every probe is a real run.

A greedy search: each cut of `mlxcheck.smaller` is driven, kept if the same check comes to the
same verdict, and tried again on what is left. Probes share one open engine. What they come to
has to be found again in two engines that were opened for nothing else; where it is not, as
with a fault that earlier requests leave behind, the search is made once more with an engine
of its own for each probe, and then with what the run drove before at the beginning of the case.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from mlxcheck import checkpoint, reference, release
from mlxcheck.errors import MemoryNotReleased, MlxCheckError
from mlxcheck.messages import counted
from mlxcheck.prompts import as_questions
from mlxcheck.recording import Memo, read, record_one
from mlxcheck.records import FAILING, Case, Comparison, Verdict
from mlxcheck.run import Drive
from mlxcheck.smaller import CUTS, Cut, after, parts, prompt_tokens, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from mlxcheck.checks import Check
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Prompt
    from mlxcheck.settings import Settings

__all__ = ["BUDGET_S", "Shrunk", "shrink"]

BUDGET_S = 60.0
"""Seconds for one failure: what somebody waits for who has just seen a run fail."""

_CONFIRMATIONS = 2
_SHARE = 0.5
"""Of the time that is left: the most that another load of the reference may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What a failure was shrunk to.

    Attributes:
        case: The smallest case that was seen to fail.
        comparison: Its failing row.
        judged: The ids of its prompts that are held against the reference; the others are
            only company.
        probes: Cases that were driven.
        seconds: What that took.
        stable: It failed the same way in both of two fresh engines; else it is no repro.
        note: What was left out and why; empty where nothing was.
    """

    case: Case
    comparison: Comparison
    judged: tuple[str, ...]
    probes: int
    seconds: float
    stable: bool
    note: str = ""

    def summary(self) -> str:
        """Return one line: how small, how sure, and what it cost."""
        step = self.comparison.step
        text = counted(len(self.case.prompts), "row")
        text += f", {counted(prompt_tokens(self.case), 'prompt token')}"
        if self.case.schedule:
            text += f", {counted(self.case.schedule.events, 'event')}"
        text += "" if step is None else f", step {step}"
        text += f"; {counted(self.probes, 'probe')} in {self.seconds:.1f} s"
        if not self.stable:
            text += "; unstable: it did not fail the same way in two fresh engines"
        return text + (f"; {self.note}" if self.note else "")


def shrink(  # noqa: PLR0913, PLR0917 - a failure, and all that it depends on
    recorded: Recorded,
    backend: object,
    check: Check,
    case: Case,
    comparison: Comparison,
    settings: Settings,
    *,
    before: Sequence[Case] = (),
    budget_s: float = BUDGET_S,
    last_words: Callable[[str], None] | None = None,
) -> Shrunk:
    """Find the fewest requests, shortest prompts, fewest events and earliest step that fail.

    No engine may be open: one is opened here, closed while the reference decodes prompts
    that are shorter than any that was recorded, and opened again.

    Args:
        recorded: What the failing run was held against.
        backend: As for `Drive`.
        check: Whose comparison failed.
        case: What was driven.
        comparison: Its failing row.
        settings: Of the run.
        before: What the run drove before, in order.
        budget_s: Seconds. It is looked at before each probe; what is under way is ended.
        last_words: See `Watchdog`.

    Raises:
        ValueError: The comparison did not fail.
        BackendError: The engine can be opened no more.
        MemoryNotReleased: The reference did not go away.
    """
    if comparison.verdict not in FAILING:
        msg = f"{comparison.verdict} is no failure: there is nothing to shrink"
        raise ValueError(msg)
    search = _Search(recorded, backend, check, settings, budget_s, last_words)
    with search:
        return search.find(case, comparison, before)


class _Search:
    """One failure's probes."""

    def __init__(  # noqa: PLR0913, PLR0917 - those of `shrink`
        self,
        recorded: Recorded,
        backend: object,
        check: Check,
        settings: Settings,
        budget_s: float,
        last_words: Callable[[str], None] | None,
    ) -> None:
        self._recorded = recorded
        self._backend = backend
        self._check = check
        self._settings = settings
        self._last_words = last_words
        self._started = time.monotonic()
        self._budget = budget_s
        self._cost = 0.0
        self._drive: Drive | None = None
        self._fresh = False
        self._probes = 0
        self._refused: set[Case] = set()
        self._note = ""
        self._best: tuple[Case, Comparison]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._close()

    def find(self, case: Case, comparison: Comparison, before: Sequence[Case]) -> Shrunk:
        """Search with one engine; where that misleads with one a probe, and with a history."""
        self._best = (case, comparison)
        stable = False
        wholes = [(False, case), (True, case), *((True, each) for each in after(case, before))]
        for self._fresh, whole in wholes:
            self._refused.clear()
            self._close()
            if not self._start(whole, comparison):
                continue
            self._descend()
            if self._record_parts():
                self._refused.clear()
                self._descend()
            stable = self._confirm()
            if stable or not self._left():
                break
        smallest, found = self._best
        name = f"shrunk/{self._check.name}/{case.id}"
        traces = self._recorded.traces
        return Shrunk(
            case=replace(smallest, id=name),
            comparison=replace(found, case=name),
            judged=tuple(
                dict.fromkeys(each.id for each in smallest.prompts if each.id in traces)
            ),
            probes=self._probes,
            seconds=time.monotonic() - self._started,
            stable=stable,
            note=self._note,
        )

    def _start(self, case: Case, comparison: Comparison) -> bool:
        """See the whole case fail in an engine that was opened for it."""
        if not self._left():
            return False
        before = time.monotonic()
        found = self._probe(case, comparison)
        self._cost = max(self._cost, time.monotonic() - before)
        if found is not None:
            self._best = (case, found)
        return found is not None

    def _left(self, reserve: float = 0.0) -> float:
        """Return the seconds that are left, not below 0."""
        return max(0.0, self._budget - reserve - (time.monotonic() - self._started))

    def _descend(self) -> None:
        """Cut until no cut is left that still fails, or the time is up."""
        before = None
        while before != self._best[0]:
            before = self._best[0]
            for cut in CUTS:
                while self._one_less(cut):
                    pass

    def _one_less(self, cut: Cut) -> bool:
        """Find the first case of a cut that is smaller and still fails."""
        case, found = self._best
        traces, most = self._recorded.traces, self._settings.max_tokens
        pool = [prompt for prompt in self._recorded.prompts if prompt.id in traces]
        pool.sort(key=lambda prompt: (len(prompt.tokens), prompt.id))
        smallest = size(case, most)
        for each in cut(case, found, pool):
            if each in self._refused or size(each, most) >= smallest:
                continue
            # The end is told by two engines that have yet to be opened.
            if not self._left(min(self._budget / 2, _CONFIRMATIONS * self._cost)):
                return False
            fails = self._probe(each, found)
            if fails is not None:
                self._best = (each, fails)
                return True
            self._refused.add(each)
        return False

    def _probe(self, case: Case, like: Comparison) -> Comparison | None:
        """Drive a case; return what fails in it as the whole one did, if anything."""
        self._probes += 1
        drive = self._opened()
        name = f"shrunk/{self._probes}/{case.id}"
        found = drive.compare(self._check, replace(case, id=name))
        broken = any(each.verdict is Verdict.ERROR for each in found)
        missing = bool(drive.not_run)
        if self._fresh or broken:
            self._close()  # a session gives an engine up that breaks too often
        failing = [each for each in found if each.verdict is like.verdict and not missing]
        failing.sort(key=lambda each: (each.prompt_id != like.prompt_id, each.row != like.row))
        return failing[0] if failing else None

    def _confirm(self) -> bool:
        """See the smallest case fail in fresh engines, as often as it takes."""
        case, found = self._best
        for _ in range(_CONFIRMATIONS):
            self._close()
            if not self._left():
                self._note = self._note or "there was no time to see it fail again"
                return False
            again = self._probe(case, found)
            if again is None or again.row != found.row:
                return False
            self._best = (case, again)
        return True

    def _opened(self) -> Drive:
        if self._drive is None:
            drive = Drive(
                self._recorded,
                self._backend,
                [self._check],
                self._settings,
                last_words=self._last_words,
                cases=(),
            )
            drive.__enter__()
            self._drive = drive
        return self._drive

    def _close(self) -> None:
        drive, self._drive = self._drive, None
        if drive is not None:
            drive.__exit__(None, None, None)
            del drive
            release.take_baseline()  # for what it clears: one model at a time

    # --- Prompts that nobody recorded -----------------------------------------------------

    def _record_parts(self) -> bool:
        """Let the reference answer parts of the failing prompt; tell whether it has."""
        case, found = self._best
        whole = case.prompts[found.row]
        known = {prompt.tokens for prompt in self._recorded.prompts}
        wanted = [part for part in _unique(parts(whole)) if part.tokens not in known]
        phases = self._recorded.phases
        estimate = sum(each.seconds for each in phases if each.name != "release")
        if not wanted or not self._left():
            return False
        if estimate > _SHARE * self._left():
            self._note = "there was no time to record shorter prompts"
            return False
        self._close()
        try:
            more = record_one(as_questions(wanted), self._settings, self._memo())
        except MemoryNotReleased:
            raise  # nothing may be opened any more
        except MlxCheckError as error:
            self._note = f"shorter prompts could not be recorded: {error}"
            return False
        if not more.noise.repeats:
            return False
        self._recorded = replace(
            self._recorded,
            prompts=(*self._recorded.prompts, *more.prompts),
            traces={**self._recorded.traces, **more.traces},
        )
        return True

    def _memo(self) -> Memo:
        """Return what the recorded pass is recorded with: a float32 copy is still there."""
        recorded, model = self._recorded, self._recorded.model
        found = checkpoint.inspect(model.path, trust_remote_code=model.trust_remote_code)
        found = replace(found, model=model)
        original = read(model.source, self._settings)[0] if recorded.cast else None
        return Memo(
            files=(found, reference.read_tokenizer(found)),
            precision=recorded.precision,
            original=original,
        )


def _unique(prompts: tuple[Prompt, ...]) -> list[Prompt]:
    """Keep one prompt of those with equal ids."""
    return list({prompt.tokens: prompt for prompt in prompts}.values())
