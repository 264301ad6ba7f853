"""Values that cannot be meant: one paragraph, before anything is collected or loaded."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--mlx-check=tokns", "there is no check 'tokns'. Did you mean tokens?"),
        ("--mlx-effort=hard", "effort='hard': expected 'quick', 'standard' or 'thorough'."),
        ("--mlx-max-tokens=0", "max_tokens=0: expected a whole number above 0."),
        ("--mlx-max-tokens=ten", "--mlx-max-tokens='ten': expected a whole number."),
        ("--mlx-seed=x", "--mlx-seed='x': expected a whole number."),
        ("--mlx-precision=half", "--mlx-precision='half': expected float32 or native."),
        ("--mlx-precision=native,", "--mlx-precision='': expected float32 or native."),
        ("--mlx-mode=loose", "--mlx-mode='loose': expected calibrated or strict."),
        ("--mlx-prefill-chunk=0", "--mlx-prefill-chunk='0': expected at least 1 token."),
        ("--mlx-prefill-chunk=x", "--mlx-prefill-chunk='x': expected a whole number."),
        ("--mlx-watchdog=0", "--mlx-watchdog='0': expected a number of seconds above 0."),
        ("--mlx-watchdog=nan", "--mlx-watchdog='nan': expected a number of seconds above 0."),
        ("--mlx-prompts=no.json", "*no.json: the prompt file cannot be read: No such file*"),
        ("--mlx-report=no/where.json", "*where.json: cannot write the report: No such file*"),
        ("--mlx-report=report.txt", "*report.txt: cannot tell the form of the report*"),
    ],
)
def test_a_bad_value_is_a_usage_error(
    pytester: pytest.Pytester, option: str, says: str
) -> None:
    """Also where tests are only collected."""
    result = pytester.runpytest_inprocess(
        "--mlx-reference", "--collect-only", "--mlx-model=one", option
    )

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {says}*"])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_a_bad_prompt_file_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """The entry that is wrong is shown."""
    path = pytester.path / "prompts.json"
    path.write_text('[{"id": "a", "user": "x"}, {"id": "a", "user": "y"}]', encoding="utf-8")

    result = pytester.runpytest_inprocess(
        "--mlx-reference", "--mlx-prompts=prompts.json", "--co"
    )

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *prompts.json: the prompt id 'a' is used twice.*"])


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("MLXCHECK_MAX_TOKENS", "many", "MLXCHECK_MAX_TOKENS='many': expected a whole number."),
        ("MLXCHECK_PRECISION", "x", "MLXCHECK_PRECISION='x': expected float32 or native."),
        ("MLXCHECK_REQUIRE", "maybe", "MLXCHECK_REQUIRE='maybe': expected 1 or 0."),
    ],
)
def test_the_message_names_the_variable(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    says: str,
) -> None:
    """A bad value from the environment is not blamed on the command line."""
    monkeypatch.setenv(variable, value)

    result = pytester.runpytest_inprocess("--mlx-reference", "--co")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {says}"])


def test_a_bad_ini_value_names_its_key(pytester: pytest.Pytester) -> None:
    """So with the ini file."""
    pytester.makeini("[pytest]\nmlx_max_tokens = many\n")

    result = pytester.runpytest_inprocess("--mlx-reference", "--co")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: mlx_max_tokens='many': expected a whole number."])


def test_requiring_without_comparing_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """``--mlx-require`` alone would require nothing and pass."""
    result = pytester.runpytest_inprocess("--mlx-require")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --mlx-require was given without --mlx-reference*"])


def test_every_option_is_in_the_help(pytester: pytest.Pytester) -> None:
    """Each with its ini key and its variable, but for the switch, which is a flag alone."""
    result = pytester.runpytest_inprocess("--help")

    text = " ".join(result.stdout.str().split())
    assert "--mlx-max-tokens=N" in text
    assert "[ini: mlx_max_tokens, environment: MLXCHECK_MAX_TOKENS]" in text
    assert "MLXCHECK_REFERENCE" not in text
    assert "[ini: mlx_prefill_chunk, environment: MLXCHECK_PREFILL_CHUNK]" in text
