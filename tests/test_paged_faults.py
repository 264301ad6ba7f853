"""Each fault planted in the paged runner shows in what it says, and is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from fixtures.faults.paged import FAULTS
from fixtures.paged import PagedBackend
from tests.support.paged import BAND, BASE, RAGGED, Driven, Models, Opener, Wave, nonsense, wave

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fixtures.faults.paged_planted import FaultyPaged
    from mlxcheck.backends.base import Emission

STOPS: Wave = {"stops": (BASE, 12), "goes on": (RAGGED[4], 12)}
REPEATED: list[Wave] = [
    {"once": (BASE, 4)},
    {"other": (BASE[:20] + (400,) * 9, 4)},
    {"twice": (BASE, 4), "later": (BASE[:8] + RAGGED[1], 4)},
]
SHOWS: dict[int, list[Wave]] = {
    **{row: [wave(RAGGED, 6)] for row in (3, 4, 5, 25, 26)},
    **{row: [{"long": (RAGGED[4], 24)}] for row in (9, 10, 12, 14, 28, 30, 31)},
    22: [{"one": (BASE, 4)}, {"two": (RAGGED[1], 6)}],
    24: [wave(nonsense(24, 24, 9, 17, 17, seed=n), 8, f"{n}/") for n in range(3)],
    39: [STOPS],
}
"""What shows a fault, by its row: `REPEATED` where there is nothing else."""
UNHEARD = {47, 53}
"""Rows of faults that change no answer."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return the models that this file uses, each built and decoded once."""
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def opened(models: Models) -> Iterator[Opener]:
    """Return what opens a backend."""
    opener = Opener(models)
    yield opener
    opener.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"S{fault.row}-{fault.__name__}")
def test_each_fault_shows_and_is_undone(opened: Opener, fault: type[FaultyPaged]) -> None:
    """It changes an answer, or what was said not to change one; and ends with its backend."""
    whole = [(owner, name, vars(owner)[name]) for owner, name, _ in fault().patches()]
    sizes = {**fault.options, **({"blocks": 20} if fault.row == 24 else {})}
    heard, cached = [], []
    for kind in (fault, PagedBackend):
        engine = opened(fault.family, kind, **sizes)
        stop = [one_of_two(engine)] if fault.row == 39 else []
        for group in SHOWS.get(fault.row, REPEATED):
            engine.run(group, stop=stop)
        heard.append(engine.said)
        cached.append(engine.backend.stats()["cached_tokens"])
        engine.backend.close()
        assert all(vars(owner)[name] is original for owner, name, original in whole)
        kept = vars(engine.backend).get("kept", ())
        said = sum(len(each) for each in engine.said.values())
        assert len(kept) == (said if fault.row == 47 and kind is fault else 0)

    off = {name for name in heard[1] if not same(heard[0][name], heard[1][name])}
    assert bool(off) == (fault.row not in UNHEARD)
    assert fault.row != 53 or (cached[0] == 0 < cached[1])


def one_of_two(engine: Driven) -> int:
    """Return an id that ends one of the answers of `STOPS` and not the other."""
    stops, goes_on = (engine.model.answer(*asked)[0] for asked in STOPS.values())
    return next(token for token in stops if token not in goes_on)


def same(one: Sequence[Emission], other: Sequence[Emission]) -> bool:
    """Tell whether two answers are equal: tokens, ends and logits."""
    if [(e.token, e.finish) for e in one] != [(e.token, e.finish) for e in other]:
        return False
    pairs = zip(one, other, strict=True)
    return all(float(mx.abs(a.logits - b.logits).max()) < BAND for a, b in pairs)
