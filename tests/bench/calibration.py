"""What calibration adds to the reference phase: the noise's time over that of decoding.

Measured within one process, load after load, on the fixtures with the packaged prompts and on
a model of random weights with longer answers; nothing is taken from the cache.

    python tests/bench/calibration.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

# Run as a script, this finds its own folder but not the root that the folder is in.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fixtures.random_models import RandomModel, build
from mlxcheck.precisions import record_passes
from mlxcheck.prompts import Question
from mlxcheck.settings import Settings

MODELS = Path(__file__).resolve().parents[2] / "fixtures" / "models"
LIMIT = 0.15
LONG = 192
ROUNDS = 5


def shares(model: Path, questions: list[Question] | None, max_tokens: int) -> dict[str, float]:
    """Return, by pass, the seconds of the noise over those of the reference."""
    settings = Settings(max_tokens=max_tokens)
    with record_passes(str(model), questions, settings) as passes:
        return {
            recorded.precision: seconds["noise"] / seconds["reference"]
            for recorded in passes.recorded
            if (seconds := {phase.name: phase.seconds for phase in recorded.phases})
        }


def random_questions(vocab: int) -> list[Question]:
    """Return as many prompts as are packaged, about, of 8 to 78 random ids."""
    draw = random.Random(0)  # noqa: S311 - no secret
    rows = [tuple(draw.randrange(260, vocab) for _ in range(8 + 2 * n)) for n in range(36)]
    return [Question(id=f"random-{len(row)}", tokens=row) for row in rows]


def main() -> int:
    """Print medians; 1 where one is over the limit, or that of long answers is the largest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    os.environ["MLXCHECK_CACHE"] = ""
    shares_by_run: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        spec = RandomModel(family="qwen3", dtype="float32")
        long = build(spec, Path(folder) / "random")
        asked = [(path, None, 64) for path in sorted(MODELS.glob("*-*"))]
        asked_long = (long, random_questions(spec.vocab), LONG)
        for path, questions, max_tokens in (*asked, asked_long):
            rounds = [shares(path, questions, max_tokens) for _ in range(options.rounds + 1)][
                1:
            ]
            for name in rounds[0]:
                share = statistics.median(each[name] for each in rounds)
                shares_by_run[f"{path.name}, {name}"] = share
                spread = ", ".join(f"{each[name]:.3f}" for each in rounds)
                print(f"{path.name}, {max_tokens} tokens, {name}: {share:.3f} ({spread})")
    worst, least = max(shares_by_run.values()), min(shares_by_run.values())
    of_long = shares_by_run[f"{long.name}, float32"]
    print(f"largest median share {worst:.3f} (limit {LIMIT}), of long answers {of_long:.3f}")
    return int(worst > LIMIT or of_long > least)


if __name__ == "__main__":
    raise SystemExit(main())
