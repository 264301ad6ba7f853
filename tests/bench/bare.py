"""The calls to mlx-lm that a run makes, and nothing else: what the harness is held against.

python bare.py MODEL PLAN.json
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any


def lone(model: Any, tokens: list[int], max_tokens: int, stop: set[int]) -> int:
    """Decode one prompt with generate_step and count its tokens."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    given = 0
    steps = generate_step(mx.array(tokens), model, max_tokens=max_tokens)
    for token, _ in steps:
        given += 1
        if token in stop:
            break
    steps.close()
    return given


def together(generator: Any, rows: list[list[int]], max_tokens: int) -> int:
    """Decode rows with one BatchGenerator and count their tokens."""
    left = set(generator.insert(rows, max_tokens=[max_tokens] * len(rows)))
    given = 0
    while left:
        _, responses = generator.next()
        given += len(responses)
        left -= {response.uid for response in responses if response.finish_reason}
    return given


def main() -> None:
    """Run the plan: the reference's prompts, then the candidate's cases."""
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.generate import BatchGenerator

    plan = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    prompts, most = plan["prompts"], plan["max_tokens"]
    model, tokenizer = load(sys.argv[1])
    stop = set(tokenizer.eos_token_ids)
    given = sum(lone(model, tokens, most, stop) for tokens in prompts.values())
    del model
    gc.collect()
    mx.clear_cache()
    model, _ = load(sys.argv[1])
    generator = BatchGenerator(model, stop_tokens=[[token] for token in sorted(stop)])
    for case in plan["cases"]:
        rows = [prompts[name] for name in case["prompts"]]
        if case["alone"]:
            given += lone(model, rows[0], most, stop)
        else:
            given += together(generator, rows, most)
    generator.close()
    print(f"{given} tokens")


if __name__ == "__main__":
    main()
