"""Past a tie an answer goes on from the reference's own tokens, so that one flip hides nothing.

The prompt is submitted again with the reference's answer up to the tie at its end, in the
same company, and the engine goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlxcheck.compare import first_tie

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlxcheck.noise import Noise
    from mlxcheck.records import Case, Prompt, Trace
    from mlxcheck.session import Answers, Session

__all__ = ["drive"]

ROUNDS = 8
"""How often a case is asked again: honest 16-bit rows of a model with close calls flip about
once in 30 steps, and what is left after eight flips is told as not compared."""


def drive(
    session: Session,
    case: Case,
    *,
    budgets: Sequence[int],
    expected: Mapping[str, Trace],
    noise: Noise | None,
) -> Answers:
    """Run a case, and past every tie again.

    Args:
        session: Open.
        case: What to run; a forced one has no need to be put back.
        budgets: One a row: the most tokens of its answer.
        expected: The reference's answers by prompt id.
        noise: What makes a tie; None: nothing does.

    Returns:
        The answers, each put together from its pieces: `Trace.anchors` holds the seams.
    """
    answers = session.run(case, max_tokens=budgets, expected=expected)
    if case.forced:
        return answers
    lost: set[int] = set()  # rows that the engine cannot be put back in
    for number in range(1, ROUNDS + 1):
        behind = {
            row: step
            for row, (prompt, trace) in enumerate(
                zip(case.prompts, answers.traces, strict=True)
            )
            if prompt.id in expected
            and row not in lost
            and (step := first_tie(noise, expected[prompt.id], trace)) is not None
        }
        if not behind:
            break
        follow, rests = _follow(case, number, behind, expected, budgets)
        more = session.run(
            follow, max_tokens=rests, expected=_rests(follow, case, behind, expected)
        )
        lost |= {row for row in behind if _not_asked(more.traces[row])}
        traces = tuple(
            _joined(trace, behind[row], more.traces[row])
            if row in behind and row not in lost
            else trace
            for row, trace in enumerate(answers.traces)
        )
        answers = replace(answers, traces=traces)
    return answers


def _follow(
    case: Case,
    number: int,
    behind: Mapping[int, int],
    expected: Mapping[str, Trace],
    budgets: Sequence[int],
) -> tuple[Case, list[int]]:
    """Return the case that goes on, and the budget of each of its rows."""
    prompts: list[Prompt] = []
    rests: list[int] = []
    for row, prompt in enumerate(case.prompts):
        step = behind.get(row)
        said = () if step is None else expected[prompt.id].tokens[: step + 1]
        name = prompt.id if step is None else f"{prompt.id}+{row}"
        prompts.append(replace(prompt, id=name, tokens=prompt.tokens + said))
        rests.append(budgets[row] - len(said))
    return replace(case, id=f"{case.id}+{number}", prompts=tuple(prompts), rounds=1), rests


def _rests(
    follow: Case, case: Case, behind: Mapping[int, int], expected: Mapping[str, Trace]
) -> dict[str, Trace]:
    """Return what the reference says in the rows that were put back, from there on."""
    out: dict[str, Trace] = {}
    for row, step in behind.items():
        trace = expected[case.prompts[row].id]
        rest = replace(trace, tokens=trace.tokens[step + 1 :], scores=trace.scores[step + 1 :])
        out[follow.prompts[row].id] = rest
    return out


def _not_asked(trace: Trace) -> bool:
    return trace.fault is not None and not trace.fault.asked


def _joined(trace: Trace, step: int, rest: Trace) -> Trace:
    """Put the answer up to a tie and what was said after it together."""
    kept = step + 1
    both = len(trace.scores) >= kept and len(rest.scores) == len(rest.tokens)
    return replace(
        trace,
        tokens=trace.tokens[:kept] + rest.tokens,
        scores=trace.scores[:kept] + rest.scores if both else (),
        reported=trace.reported[:kept] + rest.reported if both else (),
        anchors=(*trace.anchors, step),
        finish=rest.finish,
        left=rest.left,
        fault=rest.fault,
    )
