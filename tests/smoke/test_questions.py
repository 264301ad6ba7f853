"""What counts as a right answer."""

from __future__ import annotations

import pytest

from mlxcheck.smoke.questions import COUNTS, EIGHT, FRANCE, TWO


@pytest.mark.parametrize("text", ["2+2 equals 4.", "4", "It is **4**.", "2 + 2 = 4!"])
def test_four_is_found(text: str) -> None:
    """However it is put."""
    assert TWO.answered_by(text)


@pytest.mark.parametrize("text", ["", "2+2 equals 5.", "It is 44.", "40 or 14", "four"])
def test_another_number_is_not_four(text: str) -> None:
    """A digit of a longer number does not count."""
    assert not TWO.answered_by(text)


def test_names_are_found_in_any_case() -> None:
    """And only whole."""
    assert FRANCE.answered_by("It is PARIS, of course.")
    assert not FRANCE.answered_by("A parish.")


def test_counting_is_in_order() -> None:
    """All numbers, one after another."""
    numbers = [str(n) for n in range(5, 21)]

    assert COUNTS[0].answered_by(", ".join(numbers))
    assert not COUNTS[0].answered_by(", ".join(reversed(numbers)))
    assert not COUNTS[0].answered_by(", ".join(numbers[:-1]))


def test_no_answer_of_the_eight_answers_another_one() -> None:
    """Else a mixed-up answer could be taken for a right one."""
    for one in EIGHT:
        for other in EIGHT:
            if other is not one:
                assert not one.answered_by(" ".join(other.expects))
