"""What the selected generated items need: references, one candidate at a time, its answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck.checks.base import Inspects
from mlxcheck.errors import MlxCheckError, NotEnoughMemory
from mlxcheck.passes import repeats
from mlxcheck.pytest_doorway.candidates import open_candidate, require_known
from mlxcheck.pytest_doorway.nodes import Searches
from mlxcheck.pytest_doorway.outcomes import Refusal
from mlxcheck.recording import Want
from mlxcheck.records import ALL_PROMPTS, STOP_SET
from mlxcheck.run import Drive

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlxcheck.pytest_doorway.nodes import Backend, Comparison
    from mlxcheck.pytest_doorway.options import Wishes
    from mlxcheck.pytest_doorway.references import References
    from mlxcheck.pytest_doorway.tally import Pair, Tally
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Comparison as Found
    from mlxcheck.records import Precision

__all__ = ["Generated"]

_SAME_PASS = "the model is in float32: its float32 pass is the native one"  # noqa: S105 - no secret


class Generated:
    """The generated items of a session, from their selection to their comparisons.

    Args:
        wishes: What the options say.
        references: Where answers of the reference come from.
        tally: Where findings go.
        last_words: As for `Drive`.
    """

    def __init__(
        self,
        wishes: Wishes,
        references: References,
        tally: Tally,
        last_words: Callable[[str], None],
    ) -> None:
        self._wishes = wishes
        self._references = references
        self._tally = tally
        self._last_words = last_words
        self._backends: list[Backend] = []
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._wanted: dict[tuple[str, Precision], set[str]] = {}

    @property
    def owed(self) -> int:
        """How many selected items have not run yet."""
        return sum(len(backend.owed) for backend in self._backends)

    def expect(self, item: Comparison) -> None:
        """Take note of a selected item."""
        backend, check = item.parent, item.check
        if not backend.owed:
            self._backends.append(backend)
        backend.owed.add(item.nodeid)
        if check not in backend.checks:
            backend.checks.append(check)
        asked = backend.asked.setdefault(check.name, [])
        if item.prompt_id not in {ALL_PROMPTS, STOP_SET}:
            asked.append(item.prompt_id)

    def plan(self) -> None:
        """Plan the references that the selected items need; all are known by now."""
        for backend in self._backends:
            for check in backend.checks:
                asked = backend.asked[check.name]
                if not asked:
                    # Only what is about all prompts was selected, as --lf may do: it asks all,
                    # and where no prompt is driven one is enough for the controls.
                    ids = [each.id for each in self._wishes.questions]
                    asked += ids[:1] if isinstance(check, Inspects) else ids
            wanted = self._wanted.setdefault((backend.source, backend.precision), set())
            wanted.update(*backend.asked.values())
        policy = self._wishes.settings.policy
        for backend in self._backends:
            want = self._want(backend)
            self._references.plan(backend.source, want, policy, backend.precision)

    def candidate(self, backend: Backend) -> Drive | Refusal:
        """Return a backend's candidate, opened by the first item that asks."""
        if backend.drive is None:
            pair = self._pair(backend)
            opened = self._open(backend)
            if isinstance(opened, Drive):
                backend.ran = not opened.not_run
                pair.drives.append(opened)
            else:
                backend.ran = False
                if not opened.excused:
                    names = [check.name for check in backend.checks]
                    pair.refuse(backend.precision, names, opened.reason)
            backend.drive = opened
        drive = backend.drive
        if isinstance(drive, Refusal) and drive.kind is NotEnoughMemory:
            return self._missed_pass(backend, drive.text)
        if isinstance(drive, Drive) and drive.not_run:
            return self._missed_pass(backend, drive.not_run)
        return drive

    def found(self, drive: Drive, item: Comparison) -> tuple[Found, ...] | Refusal:
        """Return the comparisons that an item is about, or why there is none."""
        check, backend = item.check, item.parent
        if check.name in drive.not_asked:
            return _skip(f"{check.name} not asked: {drive.not_asked[check.name]}")
        if isinstance(check, Searches):
            return check.run(drive) or _skip("search: no row said a token to compare")
        if item.prompt_id == ALL_PROMPTS:
            for each in backend.asked[check.name]:
                drive.about(check, each)  # nothing new, unless other items were left out
            return drive.about(check, ALL_PROMPTS) or _skip(
                f"{check.name}: no step was compared, so there is nothing to judge together"
            )
        found = drive.about(check, item.prompt_id)
        if not found and isinstance(check, Inspects):
            return self._inspected(drive, item)
        return found or self._left_out(item)

    # -- the rest -------------------------------------------------------------------------

    def _pair(self, backend: Backend) -> Pair:
        key = backend.source, backend.engine
        if key not in self._pairs:
            nodes = self._passes_of(backend)
            self._pairs[key] = self._tally.pair(
                *key, complete=lambda: not any(node.owed for node in nodes)
            )
        return self._pairs[key]

    def _passes_of(self, backend: Backend) -> list[Backend]:
        return [
            other
            for other in self._backends
            if (other.source, other.engine) == (backend.source, backend.engine)
        ]

    def _missed_pass(self, backend: Backend, why: str) -> Refusal:
        """Skip a pass that cannot be made; another one, run or yet to run, excuses it."""
        others = [other for other in self._passes_of(backend) if other is not backend]
        excused = any(other.ran is not False for other in others)
        return Refusal(why, why, skips=True, kind=NotEnoughMemory, excused=excused)

    def _want(self, backend: Backend) -> Want:
        return Want(
            questions=self._wishes.asked,
            max_tokens=self._wishes.settings.max_tokens,
            wanted=self._wanted[backend.source, backend.precision].__contains__,
        )

    def _open(self, backend: Backend) -> Drive | Refusal:
        try:
            require_known(backend.engine)
        except MlxCheckError as error:
            return Refusal.of(error)
        settings = self._wishes.settings
        names = self._references.passes(backend.source, settings.policy)
        if isinstance(names, Refusal):
            return names
        if backend.precision not in names:
            return Refusal(_SAME_PASS, _SAME_PASS, skips=True, excused=True)
        recorded = self._references.recorded(
            backend.source, backend.precision, self._want(backend), settings.policy
        )
        if isinstance(recorded, Refusal):
            return recorded
        if not recorded.noise.repeats:
            why = f"the reference does not agree with itself: {repeats(recorded.noise).text}"
            return _skip(why)
        backend.prompt_ids = frozenset(prompt.id for prompt in recorded.prompts)
        recorded = replace(recorded, backed=self._is_backed(backend, recorded))
        return open_candidate(
            recorded, backend.engine, backend.checks, settings, self._last_words
        )

    def _is_backed(self, backend: Backend, recorded: Recorded) -> bool:
        """Tell whether a float32 pass speaks for the engine too, as far as is known."""
        policy = self._wishes.settings.policy
        return recorded.precision == "float32" or any(
            other.precision == "float32"
            and other.ran is not False
            and self._references.has(other.source, "float32", policy)
            for other in self._passes_of(backend)
        )

    def _inspected(self, drive: Drive, item: Comparison) -> tuple[Found, ...] | Refusal:
        """Say why a check that asks the backend itself has nothing to say about an item."""
        found = drive.inspect(item.check)
        broken = tuple(each for each in found if each.prompt_id == ALL_PROMPTS)
        if broken:  # the engine raised or hung, whatever it was asked about
            return broken
        if not found:
            return _skip(f"{item.check.name}: the engine did not open, or answers nothing")
        if item.prompt_id == STOP_SET:
            return _by_intent("the backend does not say which ids end an answer")
        if item.prompt_id not in item.parent.prompt_ids:
            return self._left_out(item)
        return _by_intent("the backend does not say what its engine makes of a chat")

    def _left_out(self, item: Comparison) -> Refusal:
        """Tell what was never meant to be compared, also under ``--mlx-require``."""
        if item.prompt_id not in item.parent.prompt_ids:
            return _by_intent("the prompt is longer than this model's positions allow")
        effort = self._wishes.settings.effort
        return _by_intent(f"effort {effort} asks the {item.check.name} check of others only")


def _skip(why: str) -> Refusal:
    return Refusal(why, why, skips=True)


def _by_intent(why: str) -> Refusal:
    return Refusal(why, why, skips=True, excused=True)
