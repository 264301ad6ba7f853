"""What is painted: numbers from the report, texts as they are, plain where it has to be."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from mlxcheck.records import Comparison, Phase, Verdict
from mlxcheck.render import progress, terminal
from mlxcheck.render.progress import ProgressLines
from mlxcheck.report import Report

MB = 10**6


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def comparison(
    prompt_id: str = "sum", verdict: Verdict = Verdict.EXACT, **more: object
) -> Comparison:
    """Make a comparison of the `tokens` check, of four steps unless said otherwise."""
    fields: dict[str, object] = {
        "check": "tokens",
        "prompt_id": prompt_id,
        "verdict": verdict,
        "steps": 4,
        "case": f"alone/{prompt_id}",
    }
    if verdict is not Verdict.EXACT:
        fields["message"] = f"{prompt_id}, check tokens: token 2 of 4 differs (step 1)\n  more"
    return Comparison(**{**fields, **more})  # type: ignore[arg-type]


def report(*comparisons: Comparison, **more: object) -> Report:
    """Make a report with memory in it."""
    phases = [
        Phase(name=name, seconds=1.0, active=0, cached=0, peak=peak * MB, rss=100 * MB)
        for name, peak in {"load": 2, "reference": 9, "open": 3, "candidate": 7}.items()
    ]
    fields: dict[str, object] = {
        "model": "models/tiny",
        "model_type": "qwen3",
        "reference": "mlx-lm 0",
        "backend": "mine",
        "comparisons": comparisons,
        "phases": tuple(phases),
        "gate": ("weights 1.5 MB", "KV cache 1.0 MB"),
    }
    return Report(**{**fields, **more})  # type: ignore[arg-type]


def paint(*reports: Report, width: int = 120) -> str:
    """Paint reports on a console in memory."""
    stream = io.StringIO()
    terminal.show(reports, Console(file=stream, width=width, markup=False, highlight=False))
    return stream.getvalue()


def rows(text: str) -> list[list[str]]:
    """Return the words of the table's rows."""
    return [line.split() for line in text.splitlines() if line.lstrip().startswith("tiny ")]


def test_the_table_holds_the_numbers_of_each_check() -> None:
    """A row a pass and check: comparisons, steps compared, and a count for each verdict."""
    wrong = comparison("b", Verdict.WRONG, step=1, steps=1)
    batch = comparison("a", check="batch", steps=1_200)
    text = paint(report(comparison("a"), wrong, batch))
    assert rows(text) == [
        ["tiny", "mine", "native", "tokens", "2", "6", "1", "0", "0", "1", "0", "0"],
        ["tiny", "mine", "native", "batch", "1", "1,200", "1", "0", "0", "0", "0", "0"],
    ]
    for verdict in Verdict:
        assert verdict in text


def test_the_total_line_says_what_was_compared_and_the_outcome_in_words() -> None:
    """Steps, comparisons, models and backends over all reports, then pass or fail."""
    text = paint(report(comparison("a")), report(comparison("a"), backend="theirs"))
    assert "8 steps compared in 2 comparisons (1 model, 2 backends): 2 EXACT\n" in text
    assert "\npass: every token" in text
    bad = paint(report(comparison("a")), report(comparison("b", Verdict.ERROR)))
    assert "1 EXACT, 1 ERROR\nfail: " in bad


@pytest.mark.parametrize(
    "nothing",
    [
        report(),
        report(comparison("a", Verdict.INCONCLUSIVE)),
        report(not_asked=(("tokens", "no"),)),
    ],
)
def test_nothing_compared_is_inconclusive_in_words(nothing: Report) -> None:
    """A green line needs something that was compared."""
    text = paint(nothing)
    assert "inconclusive: " in text
    assert "pass:" not in text
    assert "every token" not in text


def test_what_was_not_asked_is_told_once_a_reason() -> None:
    """Checks that share a reason share a line, and have a row of zeros in the table."""
    text = paint(report(not_asked=(("batch", "one at a time"), ("stop", "one at a time"))))
    assert "batch, stop not asked of mine on tiny: one at a time\n" in text
    assert ["tiny", "mine", "-", "batch", *["0"] * 8] in rows(text)


def test_what_was_not_asked_of_several_models_is_told_once_and_has_no_row() -> None:
    """Where anything was compared, the table is of that."""
    why = (("batch", "one at a time"),)
    text = paint(
        report(comparison("a"), model="m/tiny", not_asked=why),
        report(comparison("a"), model="m/small", not_asked=why),
    )
    assert text.count("not asked") == 1
    assert "batch not asked of mine on tiny, small: one at a time\n" in text
    assert not [row for row in rows(text) if "batch" in row]


def test_the_same_finding_of_many_prompts_is_told_once_with_a_count() -> None:
    """The first in full, the others by name; other numbers in the headline do not matter."""
    message = "p{0}, check tokens: token {0} of 1{0} differs\n  more"
    group = [
        comparison(f"p{n}", Verdict.WRONG, step=n, message=message.format(n)) for n in range(10)
    ]
    text = paint(report(*group))
    assert text.count("differs") == 1
    assert "p0, check tokens: token 0 of 10 differs\n  more\n" in text
    assert "the same 9 times more: tokens alone/p1 step 1, tokens alone/p2 step 2" in text
    assert "alone/p6 step 6 and 3 more\n" in text


def test_an_error_seen_by_two_checks_is_one_finding_and_two_wrongs_are_two() -> None:
    """One exception under `tokens` and `stop` is told once."""
    text = "a, check {}: no answer from mine: step() raised KeyError: 'r17'"
    errors = [
        comparison("a", Verdict.ERROR, check=check, message=text.format(check))
        for check in ("tokens", "stop")
    ]
    assert paint(report(*errors)).count("raised KeyError") == 1
    wrongs = [replace(found, verdict=Verdict.WRONG) for found in errors]
    assert paint(report(*wrongs)).count("raised KeyError") == 2


def test_failures_come_before_what_could_not_be_decided() -> None:
    """An INCONCLUSIVE comparison that came first is told after a WRONG one."""
    unsure = comparison(
        "a", Verdict.INCONCLUSIVE, message="a, check tokens: no verdict: unsure"
    )
    text = paint(report(unsure, comparison("b", Verdict.WRONG)))
    assert text.index("b, check tokens") < text.index("no verdict")


def test_only_the_first_findings_are_told_and_the_rest_is_counted() -> None:
    """Five kinds in full, then a number."""
    kinds = [
        comparison("p", Verdict.ERROR, message=f"p, check tokens: kind {'x' * n}")
        for n in range(1, 8)
    ]
    text = paint(report(*kinds, kinds[-1]))
    assert text.count("kind x") == 5
    assert "3 comparisons more did not agree in mine on tiny" in text


def test_memory_is_told_by_phase_beside_one_copy() -> None:
    """The peak of each half counts its load, and the reference's what scores it again.

    One copy is the gate's own number.
    """
    made = report(comparison())
    text = paint(made)
    assert (
        "memory mine on tiny: one copy of the weights 1.5 MB, reference peak 9.0 MB, "
        "candidate peak 7.0 MB, process 100.0 MB\n"
    ) in text
    noise = replace(made.phases[0], name="noise", peak=11 * MB)
    text = paint(replace(made, phases=(*made.phases, noise)))
    assert "reference peak 11.0 MB, candidate peak 7.0 MB" in text


def test_models_of_the_same_name_are_told_apart() -> None:
    """The last part of the path, unless two share it."""
    text = paint(report(model="v1/tiny"), report(model="v2/tiny/"))
    assert " v1/tiny " in text
    assert " v2/tiny/ " in text
    assert "v1" not in paint(report(model="v1/tiny"), report(model="v2/small"))


def test_text_from_models_is_neither_markup_nor_control_codes() -> None:
    """Brackets stay, and an escape that an engine printed into its error is made visible."""
    text = "[red]a[/red], check tokens: \x1b[2J\x07 [bold]x :smile: http://x"
    found = comparison("[red]a[/red]", Verdict.ERROR, message=text, case="alone/[red]a[/red]")
    named = report(found, found, backend="[b]mine", not_asked=(("batch", "[i]no \x9b"),))
    stream = io.StringIO()
    terminal.show([named], Console(file=stream, width=200, force_terminal=False))
    out = stream.getvalue()
    assert r"[red]a[/red], check tokens: \x1b[2J\x07 [bold]x :smile: http://x" in out
    assert r"batch not asked of [b]mine on tiny: [i]no \x9b" in out
    assert "\x1b" not in out
    assert "\x9b" not in out


def test_a_narrow_console_keeps_every_number_and_folds_names_only() -> None:
    """At 80 columns nothing is cut: headers take two lines, verdicts that none has go."""
    model = "m/qwen3_moe-float32"
    text = paint(report(comparison(precision="float32"), model=model), width=80)
    table = text.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    assert " 4 " in table
    assert "qwen3_moe-float32" in table
    assert "WRONG" not in table
    every = [comparison(str(verdict), verdict, check="prompts") for verdict in Verdict]
    crowded = paint(report(*every, model=model), width=80)
    table = crowded.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    assert all(verdict in table for verdict in Verdict if verdict != "INCONCLUSIVE")
    assert "prompts" in table


def test_long_paragraphs_are_not_broken() -> None:
    """The command that repeats a case can be copied from a narrow terminal."""
    again = "again: mlxcheck run " + "x" * 200
    found = comparison("a", Verdict.WRONG, message=f"a, check tokens: wrong\n  {again}")
    assert f"  {again}\n" in paint(report(found), width=60)


def test_partial_results_say_so_first_and_last() -> None:
    """What was cut short cannot be read as a whole run."""
    stream = io.StringIO()
    console = Console(file=stream, width=120)
    terminal.show_partial([report(comparison(), complete=False)], console, "Ctrl-C")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "partial results: the run was cut short by Ctrl-C"
    assert lines[-2].endswith("partial: the run was cut short")
    assert lines[-1].startswith("inconclusive: ")


def test_the_console_is_plain_and_wide_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """No control codes go into a file, and no number is folded there."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    stream = io.StringIO()
    console = terminal.console_on(stream)
    terminal.show([report(comparison("b", Verdict.WRONG))], console)
    assert console.width == 160
    assert "\x1b" not in stream.getvalue()


def test_colours_on_a_terminal_and_none_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """``NO_COLOR`` takes away bold and dim too."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colourful, plain = Terminal(), Terminal()
    terminal.show([report(comparison())], terminal.console_on(colourful))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.show([report(comparison())], terminal.console_on(plain))
    assert "\x1b[" in colourful.getvalue()
    assert "\x1b" not in plain.getvalue()
    assert "4 steps compared" in plain.getvalue()


def drive(lines: ProgressLines, done: int, total: int) -> None:
    """Go through a phase."""
    lines.label = "[red]tiny"
    lines.begin("reference", total)
    for _ in range(done):
        lines.advance()
    lines.end()


def test_progress_in_a_pipe_is_one_line_a_phase_at_its_end() -> None:
    """Nothing before the end, no control codes, a rate."""
    stream = io.StringIO()
    lines = ProgressLines(stream)
    lines.label = "tiny"
    lines.begin("load", 1)
    lines.advance()
    assert stream.getvalue() == ""
    lines.end()
    assert stream.getvalue() == "load tiny: 1 model in 0.0 s\n"
    drive(lines, 3, 3)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("reference [red]tiny: 3 prompts in 0.0 s, ")
    assert last.endswith("/s")
    assert "\x1b" not in stream.getvalue()


def test_a_phase_that_was_cut_short_says_how_far_it_got() -> None:
    """Two of five prompts are not five prompts."""
    stream = io.StringIO()
    drive(ProgressLines(stream), 2, 5)
    assert stream.getvalue().startswith("reference [red]tiny: 2 of 5 prompts in ")


def test_a_terminal_gets_a_bar_that_leaves_the_cursor_visible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The label is no markup, the count is right at the end, the cursor stays visible."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    lines = ProgressLines(stream)
    lines.label = "[red]tiny"
    lines.begin("reference", 40)
    begun = stream.getvalue()
    assert begun.rindex("\x1b[?25h") > begun.rindex("\x1b[?25l")
    for _ in range(40):
        lines.advance()
    lines.end()
    assert "reference [red]tiny" in stream.getvalue()
    assert "40/40" in stream.getvalue()


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_a_terminal_that_was_asked_to_be_plain_gets_lines(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """``NO_COLOR``, or a terminal that cannot redraw."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert progress.can_redraw(Terminal())
    monkeypatch.setenv(variable, "dumb")
    assert not progress.can_redraw(Terminal())
    stream = Terminal()
    drive(ProgressLines(stream), 1, 1)
    assert "\x1b" not in stream.getvalue()


def test_advancing_paints_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand fast cases cost one painting at the start and one at the end."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    lines = ProgressLines(stream)
    now = 0.0
    monkeypatch.setattr("mlxcheck.render.progress.time.monotonic", lambda: now)
    lines.begin("candidate", 1000)
    before = len(stream.getvalue())
    for _ in range(500):
        lines.advance()
    assert len(stream.getvalue()) == before
    now = 0.6
    lines.advance()
    assert "501/1000" in stream.getvalue()[before:]
    lines.end()
