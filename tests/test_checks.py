"""The checks: what they plan, and how they judge what came back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcheck import checks
from mlxcheck.backends.base import Capabilities
from mlxcheck.checks.batch import Batch
from mlxcheck.checks.stop import Stop
from mlxcheck.checks.tokens import Tokens
from mlxcheck.errors import UsageError
from mlxcheck.records import Fault, Prompt, Verdict
from mlxcheck.session import Answers
from tests.support.drawing import unhurried
from tests.support.made import case_of, grounds, place, prompt, trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlxcheck.checks import Effort
    from mlxcheck.messages import Place
    from mlxcheck.records import Case, Comparison, Trace

EFFORTS: tuple[Effort, ...] = ("quick", "standard", "thorough")
LENGTHS = (1, 2, 8, 9, 31, 32, 33, 40, 40, 40, 17, 5, 5, 21, 300, 12, 13, 14, 15, 16)
MANY = tuple(prompt(f"p{n}", length) for n, length in enumerate(LENGTHS))
MLX_LM = Capabilities(max_batch=32)


def sets() -> st.SearchStrategy[tuple[Prompt, ...]]:
    """Draw one to thirty prompts of any lengths."""
    lengths = st.lists(st.integers(1, 60), min_size=1, max_size=30)
    return lengths.map(lambda found: tuple(prompt(f"p{n}", m) for n, m in enumerate(found)))


def plan(prompts: Sequence[Prompt], effort: Effort = "standard", seed: int = 0) -> list[Case]:
    """Plan the batch check for an engine like mlx-lm's."""
    return list(Batch().plan(grounds(prompts, MLX_LM, effort, seed)))


def ids_of(case: Case) -> list[str]:
    """Return the prompt ids of a case, in row order."""
    return [prompt.id for prompt in case.prompts]


def lengths_of(case: Case) -> list[int]:
    """Return the prompt lengths of a case, in row order."""
    return [len(prompt.tokens) for prompt in case.prompts]


# --- Plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["standard", "thorough"])
@unhurried
@given(prompts=sets())
def test_every_size_is_planned_however_few_prompts(
    effort: Effort, prompts: tuple[Prompt, ...]
) -> None:
    """Sizes 1, 2, 3, 5, 8 and one more than the engine's limit are in every full plan."""
    actual = {len(case.prompts) for case in plan(prompts, effort)}

    assert actual >= {1, 2, 3, 5, 8, 33}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, [2]), (4, [5]), (63, [64]), (64, []), (None, [len(MANY)])],
)
def test_one_row_more_than_the_engine_takes(limit: int | None, expected: list[int]) -> None:
    """The limit is exceeded by one row, unless that is too many; without one all go in."""
    cases = Batch().plan(grounds(MANY, Capabilities(max_batch=limit), "standard", 0))

    assert [len(case.prompts) for case in cases if case.id.endswith("/over")] == expected


@unhurried
@given(prompts=sets())
def test_every_prompt_is_on_the_batch_path_and_in_company(prompts: tuple[Prompt, ...]) -> None:
    """A standard plan holds each prompt as a batch of one and in a batch of several."""
    cases = plan(prompts)

    single = [ids_of(case)[0] for case in cases if len(case.prompts) == 1]
    company = {name for case in cases if len(case.prompts) > 1 for name in ids_of(case)}
    assert sorted(single) == sorted(item.id for item in prompts)
    assert company == {item.id for item in prompts}


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_each_size_is_run_in_two_orders(size: int) -> None:
    """For each size one group comes in both orders, its rows otherwise the same."""
    by_id = {case.id: case for case in plan(MANY)}
    turned = [name for name in by_id if name.startswith(f"batch-{size}/") and "rever" in name]

    assert len(turned) == 1
    forward = by_id[turned[0].removesuffix("-reversed")]
    assert ids_of(by_id[turned[0]]) == ids_of(forward)[::-1]


def test_neighbours_are_shorter_longer_and_equal() -> None:
    """The longest prompt meets the shortest, on either side, and equal lengths meet."""
    by_id = {case.id: case for case in plan(MANY)}

    assert lengths_of(by_id["batch-2/short-long"]) == [1, 300]
    assert lengths_of(by_id["batch-2/long-short"]) == [300, 1]
    assert lengths_of(by_id["batch-3/equal-length"]) == [40, 40, 40]
    assert len(set(ids_of(by_id["batch-3/equal-length"]))) == 3


@unhurried
@given(prompts=sets(), effort=st.sampled_from(EFFORTS))
def test_equal_prompts_share_a_batch(prompts: tuple[Prompt, ...], effort: Effort) -> None:
    """Every plan has a batch of one prompt in all rows, the longest among them."""
    same = [
        case
        for case in plan(prompts, effort)
        if len(case.prompts) > 1 and len(set(ids_of(case))) == 1
    ]

    assert same
    assert max(map(len, map(ids_of, same))) >= 5
    assert max(len(item.tokens) for item in prompts) in {lengths_of(case)[0] for case in same}


@unhurried
@given(prompts=sets(), effort=st.sampled_from(EFFORTS), limit=st.none() | st.integers(1, 80))
def test_case_ids_are_unique(
    prompts: tuple[Prompt, ...], effort: Effort, limit: int | None
) -> None:
    """An id names one case, and its number is the number of its rows."""
    cases = Batch().plan(grounds(prompts, Capabilities(max_batch=limit), effort, 0))

    assert [name for name, n in Counter(case.id for case in cases).items() if n > 1] == []
    for case in cases:
        assert case.id.startswith(f"batch-{len(case.prompts)}/")
        assert not case.alone


@unhurried
@given(prompts=sets(), effort=st.sampled_from(EFFORTS), seed=st.integers(), data=st.data())
def test_a_plan_depends_on_prompts_effort_and_seed_alone(
    prompts: tuple[Prompt, ...], effort: Effort, seed: int, data: st.DataObject
) -> None:
    """A second plan is the first one, in whatever order the prompts were given."""
    expected = plan(prompts, effort, seed)

    shuffled = data.draw(st.permutations(prompts))

    assert plan(shuffled, effort, seed) == expected


def test_another_seed_deals_otherwise() -> None:
    """The seed changes groups, and neither their ids nor their sizes."""
    one, other = plan(MANY, seed=0), plan(MANY, seed=1)

    assert one != other
    assert [case.id for case in one] == [case.id for case in other]


@unhurried
@given(prompts=sets())
def test_more_effort_asks_more(prompts: tuple[Prompt, ...]) -> None:
    """Quick is smaller than standard, and standard than thorough, counted in rows.

    One or two prompts leave a thorough plan nothing to add.
    """
    quick, standard, thorough = (
        sum(len(case.prompts) for case in plan(prompts, effort)) for effort in EFFORTS
    )

    assert quick < standard
    assert standard < thorough or (len(prompts) < 3 and standard == thorough)


def test_a_quick_plan_has_each_small_size_once_and_no_crowd() -> None:
    """Quick deals one group a size, and leaves the engine's limit alone."""
    dealt = [case for case in plan(MANY, "quick") if case.id.split("/")[1].isdecimal()]

    assert [len(case.prompts) for case in dealt] == [8, 5, 3, 2]
    assert not any("over" in case.id for case in plan(MANY, "quick"))


def test_a_thorough_plan_has_every_prompt_in_every_size_and_order() -> None:
    """Thorough deals all prompts into each size, and turns each first group round."""
    cases = plan(MANY, "thorough")

    for size in (2, 3, 5, 8):
        dealt = [case for case in cases if case.id.startswith(f"batch-{size}/")]
        assert {name for case in dealt for name in ids_of(case)} == {p.id for p in MANY}
        assert [case for case in dealt if case.id.endswith("-reversed")]


def test_one_prompt_is_enough() -> None:
    """A single prompt makes a plan of its own copies; nothing shorter or longer is feigned."""
    cases = plan([prompt("only", 7)])

    assert {name for case in cases for name in ids_of(case)} == {"only"}
    assert not [case for case in cases if "short" in case.id or "equal" in case.id]


def test_tokens_are_asked_of_each_prompt_alone() -> None:
    """One lone case a prompt, in the order of the prompts, for every engine."""
    cases = Tokens().plan(grounds(MANY, Capabilities(batch=False), "quick", 0))

    assert [(case.id, case.alone) for case in cases] == [(f"alone/{p.id}", True) for p in MANY]
    assert Tokens().refuse(Capabilities(batch=False, stop=False)) is None


@pytest.mark.parametrize(("batch", "other"), [(True, Batch()), (False, Tokens())])
def test_the_stop_check_costs_no_case_of_its_own(batch: bool, other: checks.Check) -> None:  # noqa: FBT001 - a parameter
    """Its cases are ones that another check drives anyway, one for each prompt."""
    can = Capabilities(batch=batch)
    cases = Stop().plan(grounds(MANY, can, "standard", 0))

    assert [ids_of(case) for case in cases] == [[item.id] for item in MANY]
    assert set(cases) <= set(other.plan(grounds(MANY, can, "standard", 0)))


@pytest.mark.parametrize(
    ("check", "can", "expected"),
    [
        (Batch(), Capabilities(batch=False), "the backend takes one request at a time"),
        (Batch(), Capabilities(), None),
        (Stop(), Capabilities(stop=False), "the backend leaves stopping to its caller"),
        (Stop(), Capabilities(), None),
    ],
)
def test_what_an_engine_cannot_do_is_not_asked(
    check: checks.Check, can: Capabilities, expected: str | None
) -> None:
    """A check says why it cannot be asked, or None."""
    assert check.refuse(can) == expected


def test_checks_by_name() -> None:
    """None is all of them; names come in the order of the run, each once."""
    everything = ["prompts", "chunks", "prefix", "tokens", "stop", "batch", "logits"]
    everything += ["schedule", "long", "speculative", "soak"]
    assert [check.name for check in checks.named(None)] == everything
    assert [check.name for check in checks.named(["batch", "tokens", "batch"])] == [
        "tokens",
        "batch",
    ]
    assert [check.name for check in checks.named("stop")] == ["stop"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["token"],
            r"no check 'token'. Did you mean tokens\? The checks are prompts, chunks, pre",
        ),
        (["zzz"], r"no check 'zzz'. The checks are"),
        ([], r"checks=\[\]: no check at all"),
    ],
)
def test_unknown_checks(names: list[str], expected: str) -> None:
    """A name that is no check is a usage error, with the nearest one."""
    with pytest.raises(UsageError, match=expected):
        checks.named(names)


# --- Judging --------------------------------------------------------------------------------


def judge(
    case: Case, expected: Sequence[Trace], actual: Sequence[Trace], width: int | None = 2
) -> tuple[Comparison, ...]:
    """Judge a case with the batch check."""

    def place_of(row: int) -> Place:
        return place("batch", case, row)

    answers = Answers(tuple(actual), width)
    return Batch().judge(case, {t.prompt_id: t for t in expected}, answers, place_of)


LONG = tuple(range(10, 18))  # long enough for its row to have met a neighbour's


def test_each_row_is_judged_by_itself() -> None:
    """A wrong row is WRONG and its neighbour stays EXACT, in row order."""
    case = case_of("sum", "count")
    expected = [trace(5, 6, 2, prompt_id="sum"), trace(7, 8, 2, prompt_id="count")]

    found = judge(case, expected, [trace(5, 6, 2), trace(7, 9, 2)])

    assert [(f.prompt_id, f.row, f.verdict) for f in found] == [
        ("sum", 0, Verdict.EXACT),
        ("count", 1, Verdict.WRONG),
    ]


def test_company_without_a_reference_is_not_judged() -> None:
    """A row whose prompt the reference did not decode is company, and no comparison."""
    found = judge(case_of("sum", "count"), [trace(5, 2, prompt_id="sum")], [trace(5, 2)] * 2)

    assert [f.prompt_id for f in found] == ["sum"]


def test_rows_of_one_prompt_that_differ_are_named_to_each_other() -> None:
    """A wrong twin says which row of its batch holds the same prompt and says otherwise."""
    case = case_of("sum", "sum", "sum")

    found = judge(case, [trace(5, 6, 2)], [trace(5, 6, 2), trace(5, 9, 2), trace(5, 6, 2)])

    assert [f.verdict for f in found] == [Verdict.EXACT, Verdict.WRONG, Verdict.EXACT]
    line = "  row 0 of the same batch holds the same prompt and says something else"
    assert found[1].message.splitlines()[1] == line
    assert found[1].message.splitlines()[0].endswith("token 2 of 3 differs (step 1)")


def test_twins_that_are_wrong_alike_are_not_said_to_differ() -> None:
    """Rows that make the same mistake are both WRONG, and agree with each other."""
    found = judge(case_of("sum", "sum"), [trace(5, 6, 2)], [trace(5, 9, 2)] * 2)

    assert [f.verdict for f in found] == [Verdict.WRONG, Verdict.WRONG]
    assert "the same prompt" not in found[1].message


@pytest.mark.parametrize(
    ("width", "answer", "expected"),
    [
        (1, LONG, Verdict.INCONCLUSIVE),
        (0, LONG, Verdict.INCONCLUSIVE),
        (2, LONG, Verdict.EXACT),
        (None, LONG, Verdict.EXACT),
        (1, LONG[:7], Verdict.EXACT),
    ],
    ids=["never met", "no decode step", "met", "engine does not say", "too short to meet"],
)
def test_a_batch_that_never_formed_is_no_verdict(
    width: int | None, answer: tuple[int, ...], expected: Verdict
) -> None:
    """Rows that an engine decoded one after the other prove nothing about batching."""
    traces = [trace(*answer, prompt_id=name, finish="length") for name in ("sum", "count")]

    found = judge(case_of("sum", "count"), traces, traces, width)

    assert [f.verdict for f in found] == [expected, expected]
    if expected is Verdict.INCONCLUSIVE:
        assert "2 requests were submitted, but no decode step had two rows" in found[0].message


def test_a_wrong_row_is_wrong_even_where_no_batch_formed() -> None:
    """That the rows never met excuses no wrong token, and no crash."""
    traces = [trace(*LONG, prompt_id=name) for name in ("sum", "count")]
    broken = trace(finish=None, fault=Fault(summary="it raised"))

    found = judge(case_of("sum", "count"), traces, [trace(99, *LONG), broken], width=1)

    assert [f.verdict for f in found] == [Verdict.WRONG, Verdict.ERROR]


def test_one_row_needs_no_company() -> None:
    """A batch of one is judged at width one."""
    traces = [trace(*LONG)]

    assert [f.verdict for f in judge(case_of("sum"), traces, traces, 1)] == [Verdict.EXACT]


def test_a_row_that_does_not_stop_in_company_is_wrong() -> None:
    """All tokens right and then no end is WRONG in a batch, with the steps still counted."""
    case = case_of("sum", "count")
    expected = [trace(5, 6, 2, prompt_id="sum"), trace(7, 2, prompt_id="count")]

    found = judge(case, expected, [trace(5, 6, 2, 9, 9, finish=None), trace(7, 2)])

    assert [f.verdict for f in found] == [Verdict.WRONG, Verdict.EXACT]
    assert (found[0].step, found[0].actual, found[0].steps) == (3, 9, 3)
    assert "goes on past its stop id" in found[0].message
    assert "steps 0-2 agree" in found[0].message


def test_a_row_that_leaves_its_stop_id_out_is_exact_in_company() -> None:
    """Whether the stop id itself is given is the stop check's question, not this one's."""
    found = judge(case_of("sum"), [trace(5, 6, 2)], [trace(5, 6)])

    assert [f.verdict for f in found] == [Verdict.EXACT]


@pytest.mark.parametrize(
    ("check", "verdict"), [(Tokens(), Verdict.EXACT), (Stop(), Verdict.WRONG)]
)
def test_tokens_and_stop_fail_apart(check: checks.Check, verdict: Verdict) -> None:
    """An engine that says every token and then does not stop fails one of the two."""
    case = case_of("sum", alone=True)
    answers = Answers((trace(5, 6, 2, 8, finish="length"),), None)

    found = check.judge(
        case, {"sum": trace(5, 6, 2)}, answers, lambda row: place(check.name, case, row)
    )

    assert [(f.check, f.verdict) for f in found] == [(check.name, verdict)]
    assert check.judge(case, {}, answers, lambda row: place(check.name, case, row)) == ()
