"""What simpler practice would have caught of the same runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from mlxcheck.records import FAILING, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.recording import Recorded
    from mlxcheck.records import Comparison
    from mlxcheck.run import Drive

__all__ = ["PARIS", "Practice", "practice"]

PARIS = "capital-france"


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """Whether each simpler practice would have failed.

    Attributes:
        paris: The answer to one question does not contain the one word.
        alone: A token of an answer, each prompt alone, is another.
        three: The same, or one of one batch of three that start together.
        top5: As `three`, if the token is also not among the reference's best five.
    """

    paris: bool
    alone: bool
    three: bool
    top5: bool

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the practices, from the weakest on."""
        return tuple(each.name for each in fields(cls))


def practice(found: Sequence[Comparison], recorded: Recorded, drive: Drive) -> Practice:
    """Look at a run as somebody would who has less than mlxcheck."""
    alone = [each for each in found if each.check == "tokens"]
    of_three = [each for each in found if each.check == "batch" and each.case[:8] == "batch-3/"]
    one = [each for each in of_three if each.case == of_three[0].case]
    differ = [each for each in (*alone, *one) if each.verdict in FAILING]
    return Practice(
        paris=_lacks_paris(recorded, drive),
        alone=any(each.verdict in FAILING for each in alone),
        three=bool(differ),
        top5=any(not _close(each) for each in differ),
    )


def _close(found: Comparison) -> bool:
    """Tell whether a differing token is one of the reference's best five."""
    best = {token for token, _ in found.top_expected}
    return found.verdict is not Verdict.ERROR and found.actual in best


def _lacks_paris(recorded: Recorded, drive: Drive) -> bool:
    answers = drive._answers.get(f"alone/{PARIS}")
    expected = recorded.traces.get(PARIS)
    if answers is None or expected is None:
        return False  # this model was never taught it

    def text(tokens: Sequence[int]) -> str:
        return "".join(map(recorded.text_of, tokens))

    if "Paris" not in text(expected.tokens):
        return False
    return "Paris" not in text(answers.traces[0].tokens)
