"""Every check on servers that are honest but for one fault, over real HTTP."""

from __future__ import annotations

import time

import pytest

from mlxcheck.smoke import CHECKS
from tests.support.smoking import by_name, failing, of_small

LIMIT_S = 30.0
"""For all checks on one server, on a busy machine; the small server needs about a second."""

FAULTS = [
    ("never-ready", {"starts"}, "the server was not ready within 1 s: GET /health: status 503"),
    ("dies", {"answers"}, "closed the connection without an answer"),
    ("empty", {"answers", "again", "sum", "capital", "stream"}, "came     an empty answer"),
    ("mixes", {"eight"}, "which is the answer to 'What is"),
    ("ignores-max-tokens", {"max-tokens"}, "expected a beginning, 8 tokens long, of"),
    ("closes-mid-stream", {"stream", "cancelled"}, "ended without [DONE] after 2 events"),
    ("hangs", {"answers"}, "no whole answer within 1 s"),
    ("wrong-content-type", {"content-type"}, "came     Content-Type 'text/html'"),
    ("repeats-first", {"again", "sum"}, "another answer than the one to 'What is the capital"),
    ("loses-stop", {"stop"}, "the answer up to the stop text"),
    ("leaks-thinking", {"thinking"}, "no <think> in the answer"),
    ("wrong-total", {"usage"}, "total_tokens the sum of the two others"),
    ("prompt-not-counted", {"usage"}, "total_tokens the sum of the two others"),
    # Beyond the twelve: each check is seen to fail.
    ("no-models", {"models"}, "name the model with --served-model"),
    ("dies-second", {"again"}, "afterwards GET /health: status 200"),
    ("wrong-sum", {"sum"}, "expected an answer with '4'"),
    ("wrong-capital", {"capital"}, "expected an answer with 'Paris'"),
    ("loses-piece", {"stream", "cancelled"}, "the answer that came without streaming"),
    ("no-finish", {"finish", "max-tokens", "stop"}, "finish_reason one of stop, length"),
    ("wrong-finish", {"max-tokens"}, "expected finish_reason 'length'"),
    ("draws", {"repeatable"}, "at temperature 0 the same answer as the time before"),
    ("garbles", {"eight"}, "came     ' What?', finish_reason 'stop'"),
    ("disturbed", {"cancelled"}, "beside a stream that was left in the middle"),
    ("any-model", {"unknown-model"}, "asked model 'mlxcheck/no-such-model'"),
    ("clamps", {"huge-max-tokens"}, "asked max_tokens 1,000,000,000"),
    ("no-messages", {"empty-messages"}, "expected a 4xx status"),
    ("fails-on-json", {"broken-json"}, "came     status 500"),
    ("crashes-on-json", {"broken-json"}, "the server has ended with status 7. The end of its"),
]


def test_an_honest_server_passes_everything() -> None:
    """No check cries wolf."""
    report = of_small("none")

    assert {name: result.outcome for name, result in by_name(report).items()} == dict.fromkeys(
        ["starts", *CHECKS], "pass"
    )
    assert (report.outcome, report.served_model) == ("pass", "small")


@pytest.mark.parametrize(("fault", "expected", "evidence"), FAULTS)
def test_a_broken_server_is_named_rightly(
    fault: str, expected: set[str], evidence: str
) -> None:
    """The checks that look for the fault fail, with what was seen; nothing hangs or stays."""
    began = time.monotonic()
    limits = {"timeout_s": 1.0} if fault == "hangs" else {}
    report = of_small(fault, wait_s=1.0 if fault == "never-ready" else 30.0, **limits)

    assert failing(report) == expected
    assert evidence in report.failures[0].message
    assert report.outcome == "fail"
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("fault", ["dies", "dies-second", "hangs", "never-ready", "no-models"])
def test_a_server_that_is_gone_is_asked_no_more(fault: str) -> None:
    """What comes after is inconclusive, with the reason, and never a pass."""
    report = of_small(fault, timeout_s=1.0, wait_s=1.0 if fault == "never-ready" else 30.0)
    (failed,) = report.failures
    after = report.results[report.results.index(failed) + 1 :]

    assert after
    assert {result.outcome for result in after} == {"inconclusive"}
    assert all(result.message.startswith("not asked: ") for result in after)
    assert after[-1].name == "broken-json"


def test_a_name_that_is_given_needs_no_list() -> None:
    """The list is missed all the same, and the rest is asked."""
    report = of_small("no-models", served_model="small")

    assert failing(report) == {"models"}
    assert {result.outcome for result in report.results[2:]} == {"pass"}


def test_another_answer_in_company_may_be_rounding() -> None:
    """Where both are right, text alone cannot tell, and says what can."""
    result = by_name(of_small("rounds", "eight"))["eight"]

    assert result.outcome == "inconclusive"
    assert "4. Indeed.', finish_reason 'stop'; alone: '" in result.message.replace("7", "4")
    assert "more differ likewise" in result.message
    assert "`mlxcheck run MODEL --backend server` measures it" in result.message


def test_a_first_answer_that_differs_may_be_the_cache() -> None:
    """The first of five found no prefix in a KV cache; the four others agree."""
    result = by_name(of_small("first-differs", "repeatable"))["repeatable"]

    assert result.outcome == "inconclusive"
    assert "the first answer, 'The river ran to the sea.', is not the others'" in result.message


def test_an_answer_too_short_to_be_cut_decides_nothing() -> None:
    """A server that says little is not accused of ignoring ``max_tokens``."""
    results = by_name(of_small("repeats-first", "answers", "max-tokens", "eight"))

    outcomes = {name: results[name].outcome for name in ("max-tokens", "eight")}
    assert outcomes == {"max-tokens": "inconclusive", "eight": "inconclusive"}
    assert "which is too short to be cut" in results["max-tokens"].message
    assert "not all of eight questions have answers of their own" in results["eight"].message
