"""The pytest doorway: options, a marker, a fixture; and nothing else until it is asked for.

Every pytest run of everyone who has mlxcheck installed imports this module. So it knows
pytest alone, and hands over to `mlxcheck.pytest_doorway` when ``--mlx-reference`` is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlxcheck.pytest_doorway.user import MlxReference

__all__ = ["DOORWAY", "MARKER", "MARKER_KEYWORDS", "OPTIONS", "Option", "mlx_reference"]

MARKER = "mlx_reference"
"""The name of the marker, and of the fixture."""

MARKER_KEYWORDS = ("backend", "max_tokens", "model", "policy", "precision", "prompts")
"""What the marker may set for the fixture in its test."""

DOORWAY = "mlxcheck-doorway"
"""The name under which the working half is registered with pytest."""

_SKIPPED = "compares with the reference: give --mlx-reference"


class Option(NamedTuple):
    """One setting; its three spellings are made from its name.

    Attributes:
        name: ``max-tokens`` is ``--mlx-max-tokens`` on the command line, ``mlx_max_tokens``
            in the ini file and ``MLXCHECK_MAX_TOKENS`` in the environment.
        kind: ``"flag"``, ``"word"`` or ``"words"`` (repeatable; commas in the environment,
            lines in the ini file).
        help: What it does.
        metavar: What its value is called in the help.
        everywhere: Whether it can be set in the ini file and the environment too.
    """

    name: str
    kind: str
    help: str
    metavar: str | None = None
    everywhere: bool = True

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return f"--mlx-{self.name}"

    @property
    def key(self) -> str:
        """The spelling in the ini file, which is also argparse's."""
        return f"mlx_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        """The spelling in the environment."""
        return f"MLXCHECK_{self.name.replace('-', '_').upper()}"


OPTIONS = (
    Option(
        "reference",
        "flag",
        "compare engines with plain mlx-lm, token for token",
        everywhere=False,
    ),
    Option("model", "words", "a folder or a hub id; repeatable", "M"),
    Option("backend", "words", "a name or package.module:attribute; repeatable (mlx-lm)", "B"),
    Option("require", "flag", "let what is skipped or has no verdict fail"),
    Option("check", "words", "a check by name; repeatable (all)", "NAME"),
    Option("effort", "word", "quick, standard or thorough (standard)", "E"),
    Option("max-tokens", "word", "the most tokens of each answer (64)", "N"),
    Option("seed", "word", "deals the prompts into batches (0)", "N"),
    Option(
        "examples",
        "word",
        "cases that a search draws for each backend and pass, with hypothesis (0: no search)",
        "N",
    ),
    Option("revision", "word", "the hub revision of the models", "R"),
    Option("trust-remote-code", "flag", "let code in a checkpoint be run"),
    Option("prompts", "word", "a JSON file of prompts (the packaged set)", "FILE"),
    Option(
        "precision",
        "words",
        "a pass over each checkpoint, float32 or native; repeatable (both: float32, with TF32 "
        "off, sees small faults, and native is what ships)",
        "PASS",
    ),
    Option(
        "mode",
        "word",
        "calibrated or strict (calibrated: kernels are chosen by shape, so at near ties honest "
        "engines say other tokens; strict allows no difference)",
        "MODE",
    ),
    Option(
        "prefill-chunk",
        "word",
        "prompt tokens of one prefill step of the reference (2048: mlx-lm's own default)",
        "N",
    ),
    Option("watchdog", "word", "seconds of silence after which an engine hangs", "SECONDS"),
    Option("report", "word", "write all results to a .json file", "FILE"),
)
"""Every option, in the order of the help; parser, ini file and environment follow it."""

_INI_TYPES = {"flag": "bool", "word": "string", "words": "linelist"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add each option to the command line, and all but the switch to the ini file."""
    group = parser.getgroup("mlxcheck", "comparison with the mlx-lm reference (mlxcheck)")
    for option in OPTIONS:
        if option.everywhere:
            text = f"{option.help} [ini: {option.key}, environment: {option.variable}]"
            kind = _INI_TYPES[option.kind]
            parser.addini(option.key, option.help, type=kind, default=None)  # type: ignore[arg-type]
        else:
            text = option.help
        if option.kind == "flag":
            group.addoption(option.flag, action="store_true", dest=option.key, help=text)
        else:
            action = "append" if option.kind == "words" else "store"
            group.addoption(
                option.flag,
                action=action,
                dest=option.key,
                default=None,
                metavar=option.metavar,
                help=text,
            )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and the working half where it is asked for."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(model, backend, prompts, max_tokens, precision, policy): compares an engine "
        "with plain mlx-lm; runs with --mlx-reference only. The keywords are defaults for its "
        "fixture.",
    )
    if config.getoption(MARKER):
        from mlxcheck.pytest_doorway import enter

        enter(config)
    elif config.getoption("mlx_require"):
        msg = (
            "--mlx-require was given without --mlx-reference, so there would be nothing to "
            "require: no comparison runs. Give both, or set mlx_require in the ini file."
        )
        raise pytest.UsageError(msg)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that take the fixture, and skip all marked ones without the flag."""
    idle = not config.getoption(MARKER)
    for item in items:
        marked = item.get_closest_marker(MARKER) is not None
        if not marked and MARKER in getattr(item, "fixturenames", ()):
            item.add_marker(MARKER)
            marked = True
        if marked and idle:
            item.add_marker(pytest.mark.skip(reason=_SKIPPED))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose marker says what nobody would read."""
    for marker in item.iter_markers(MARKER):
        wrong = [repr(value) for value in marker.args]
        wrong += [name for name in marker.kwargs if name not in MARKER_KEYWORDS]
        if wrong:
            msg = (
                f"@pytest.mark.{MARKER} of {item.name} does not take {', '.join(wrong)}; its "
                f"keywords are {', '.join(MARKER_KEYWORDS)}."
            )
            pytest.fail(msg, pytrace=False)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests did not compare for want of the flag."""
    if config.getoption(MARKER):
        return
    count = sum(1 for _ in _idle_reports(terminalreporter))
    if count:
        tests = "1 test that compares" if count == 1 else f"{count} tests that compare"
        terminalreporter.write_line(
            f"mlxcheck: {tests} with the reference did not run: give --mlx-reference"
        )


def _idle_reports(terminalreporter: pytest.TerminalReporter) -> Iterator[pytest.TestReport]:
    for report in terminalreporter.stats.get("skipped", ()):
        where = getattr(report, "longrepr", None)
        if isinstance(where, tuple) and where[-1].endswith(_SKIPPED):
            yield report


@pytest.fixture
def mlx_reference(request: pytest.FixtureRequest) -> MlxReference:
    """Compare engines with plain mlx-lm: ``.check()``, ``.assert_equal()``, ``.traces()``."""
    doorway = request.config.pluginmanager.get_plugin(DOORWAY)
    if doorway is None:
        pytest.skip(_SKIPPED)
    found: MlxReference = doorway.reference_for(request.node)
    return found
