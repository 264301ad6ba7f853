"""What a case asks, spelled out: prompts that end in a part of their answer, shorter answers.

The reference's answer to a prompt is also its answer to the prompt with the beginning of that
answer at its end; so lengths between the two need no decoding of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mlxcheck.records import Case, Comparison, Prompt, Trace

__all__ = ["Asked", "ask", "rest", "under_own_ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A case as the engine gets it.

    Attributes:
        case: Its prompts hold what is given of their answers; ids of rows that ask for a part
            of an answer are their own.
        expected: The reference's traces by these ids: of company none.
        budgets: The most tokens of each row's answer.
    """

    case: Case
    expected: Mapping[str, Trace]
    budgets: tuple[int, ...]


def ask(case: Case, expected: Mapping[str, Trace], max_tokens: int) -> Asked:
    """Spell a case out.

    Args:
        case: As planned.
        expected: The reference's traces by prompt id.
        max_tokens: The most tokens of each answer.
    """
    if not case.given and not case.most:
        return Asked(case=case, expected=expected, budgets=(max_tokens,) * len(case.prompts))
    prompts: list[Prompt] = []
    budgets: list[int] = []
    traces = dict(expected)
    for row, prompt in enumerate(case.prompts):
        trace = expected.get(prompt.id)
        given = case.given[row] if case.given and trace else 0
        budget = max_tokens - given
        most = min(budget, case.most[row] or budget) if case.most else budget
        budgets.append(most)
        if trace is None or (not given and most == budget):
            prompts.append(prompt)
            continue
        name = f"{prompt.id}+{given}" + (f"[:{most}]" if most < budget else "")
        said = trace.tokens[:given]
        prompts.append(replace(prompt, id=name, tokens=prompt.tokens + said))
        traces[name] = replace(rest(trace, given, most), prompt_id=name)
    spelled = replace(case, prompts=tuple(prompts), given=(), most=())
    return Asked(case=spelled, expected=traces, budgets=tuple(budgets))


def rest(trace: Trace, given: int, most: int) -> Trace:
    """Return so many tokens of an answer from its *given*-th on.

    Args:
        trace: The reference's.
        given: Fewer than it has.
        most: As many as `Request.max_tokens` would allow.
    """
    end = given + most
    cut = end < len(trace.tokens)
    return replace(
        trace,
        tokens=trace.tokens[given:end],
        scores=trace.scores[given:end],
        finish="length" if cut else trace.finish,
    )


def under_own_ids(found: Iterable[Comparison], case: Case) -> tuple[Comparison, ...]:
    """Return comparisons of a spelled-out case under the ids of the prompts it was made of."""
    names = [prompt.id for prompt in case.prompts]
    return tuple(
        replace(
            each,
            prompt_id=names[each.row],
            neighbours=tuple(name for row, name in enumerate(names) if row != each.row),
        )
        for each in found
    )
