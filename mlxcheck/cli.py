"""The doorway for people: ``mlxcheck run MODEL --backend B``."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from mlxcheck import checks, memory, prompts, reference, report
from mlxcheck.backends import registry
from mlxcheck.command import INTERRUPTED, PASS, USAGE, Command, Plan, status_of, tell
from mlxcheck.command_contract import add_contract_options, run_contract
from mlxcheck.command_replay import add_replay_options, run_replay
from mlxcheck.command_smoke import SMOKE_CODES, add_smoke_options, run_smoke
from mlxcheck.errors import MlxCheckError, UsageError
from mlxcheck.policy import LONGEST_S, MODES, PRECISIONS, Policy
from mlxcheck.repro import Shrinking
from mlxcheck.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

_EXIT_CODES = """\
exit status:
  0    pass: every token that was compared is the reference's, or a tie
  1    fail: a candidate differs by more than rounding does, raised, died or hung
  2    usage error: an argument, model, prompt, backend or report path cannot be
  3    inconclusive: not asked, too little memory, model not here and no network, or the
       reference could not be trusted
  130  interrupted by Ctrl-C; what had been found is shown and saved as partial

What can be known to be wrong before anything is loaded ends the command at once. After that
a model or backend that cannot be used is told and the others go on; of several outcomes a
fail counts first, then 2, then 3.
"""

_CONTRACT_CODES = """\
exit status:
  0    pass: every read and every call of the callers fits the stub
  1    fail: one does not, or inherited code cannot work on the stub
  2    usage error: a class or module has no source, or an argument cannot be
  3    inconclusive: the callers use nothing of the stub that could be looked at
"""

_DESCRIPTION = """\
Compare MLX inference engines with plain mlx-lm, token for token, alone and in batches.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: The arguments after the program's name; None for the process's own.
    """
    _never_fail_to_print()
    try:
        options = _parser().parse_args(argv)
        status: int = options.action(options)
    except SystemExit as done:  # argparse has printed help, a version or an error
        return done.code if isinstance(done.code, int) else USAGE
    except KeyboardInterrupt:
        tell("interrupted")
        return INTERRUPTED
    except MlxCheckError as error:
        tell(str(error))
        return status_of(error)
    return status


def _never_fail_to_print() -> None:
    """Escape what the streams' encoding does not know: tokens may hold any character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mlxcheck",
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("backends", help="list the registered backends")
    listing.set_defaults(action=_list_backends)
    comparing = "compare backends with mlx-lm on models"
    _add(commands, "run", _run, _add_run_options, comparing, _EXIT_CODES, _DESCRIPTION)
    repeating = "drive a failure again that `run --shrink` has kept"
    _add(commands, "replay", run_replay, add_replay_options, repeating, _EXIT_CODES)
    holding = "hold a stub against the class that it stands for, from sources"
    _add(commands, "contract", run_contract, add_contract_options, holding, _CONTRACT_CODES)
    asking = "ask a running server, or start one, and see what it does"
    _add(commands, "smoke", run_smoke, add_smoke_options, asking, SMOKE_CODES)
    return parser


def _add(  # noqa: PLR0913, PLR0917 - a row of a table
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    action: Callable[[argparse.Namespace], int],
    options: Callable[[argparse.ArgumentParser], None],
    what: str,
    codes: str,
    description: str | None = None,
) -> None:
    """Add a command with its options."""
    parser = commands.add_parser(
        name,
        help=what,
        description=description,
        epilog=codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(action=action)
    options(parser)


def _add_run_options(run: argparse.ArgumentParser) -> None:
    default = Settings()
    add = run.add_argument
    add(
        "models",
        nargs="*",
        metavar="MODEL",
        help="folder of an MLX checkpoint, or hub id; default: MLXCHECK_MODEL, comma separated",
    )
    add(
        "--backend",
        action="append",
        metavar="B",
        help="registered name or package.module:attribute; may be repeated; default: "
        "MLXCHECK_BACKEND, else mlx-lm",
    )
    add("--check", action="append", metavar="NAME", help="only this check; may be repeated")
    add("--case", action="append", metavar="ID", help="only this case; may be repeated")
    add("--effort", choices=("quick", "standard", "thorough"), default=default.effort)
    add("--max-tokens", type=int, default=default.max_tokens, metavar="N")
    add("--seed", type=int, default=default.seed, help="deals the prompts into batches")
    add("--prompts", metavar="FILE", help="JSON file of prompts; default: the packaged set")
    _add_rules(run)
    add("--revision", help="revision of the models on the hub")
    add("--trust-remote-code", action="store_true", help="run code that a checkpoint brings")
    add("--json", metavar="FILE", help="write the report here")
    _add_shrinking(run)


def _add_shrinking(run: argparse.ArgumentParser) -> None:
    default, add = Shrinking(), run.add_argument
    add(
        "--shrink",
        action="store_true",
        help="shrink the first failure of each check, and write replay files",
    )
    add(
        "--shrink-budget",
        type=float,
        default=default.budget_s,
        metavar="SECONDS",
        help="for each failure that is shrunk; default: %(default)g",
    )
    add(
        "--shrink-to",
        default=default.folder,
        metavar="FOLDER",
        help="where replay files go; default: the working folder",
    )


def _add_rules(run: argparse.ArgumentParser) -> None:
    """Add what goes into the policy."""
    default, add = Policy(), run.add_argument
    add(
        "--precision",
        action="append",
        choices=PRECISIONS,
        help="only this pass over a 16-bit checkpoint; may be repeated; default: float32 (the "
        "microscope, TF32 off), then native (what ships)",
    )
    add(
        "--mode",
        choices=MODES,
        default=default.mode,
        help="calibrated (default): differences within the measured noise are ties; strict: "
        "there are no ties",
    )
    add(
        "--prefill-chunk",
        type=int,
        default=default.prefill_chunk,
        metavar="N",
        help="prompt tokens of one prefill step of the reference; default: %(default)d",
    )
    add(
        "--watchdog",
        type=float,
        default=default.watchdog_s,
        metavar="SECONDS",
        help="longest silence of a candidate; default: %(default)g",
    )


def _version() -> str:
    return f"mlxcheck {metadata.version('mlxcheck')} ({reference.version()})"


def _list_backends(_options: argparse.Namespace) -> int:
    targets = registry.targets()
    wide = max(map(len, targets))
    for name, target in sorted(targets.items()):
        sys.stdout.write(f"{name:<{wide}}  {target}\n")
    return PASS


def _run(options: argparse.Namespace) -> int:
    plan = _plan(options)
    with registry.working_folder_on_path():
        return Command(plan).run()


def _plan(options: argparse.Namespace) -> Plan:
    """Settle all that can be settled before anything is loaded.

    Raises:
        MlxCheckError: What was asked for cannot be.
    """
    models = _several(options.models, "MLXCHECK_MODEL")
    if not models:
        msg = "no model. Name a folder or a hub id, or set MLXCHECK_MODEL."
        raise UsageError(msg)
    settings = Settings(
        max_tokens=options.max_tokens,
        effort=options.effort,
        seed=options.seed,
        policy=_policy(options),
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
        prompts_from=options.prompts or None,
    )
    if options.json is not None:
        report.require_writable(options.json)
    memory.floor_bytes(os.environ)
    backends = _several(options.backend, "MLXCHECK_BACKEND") or ("mlx-lm",)
    with registry.working_folder_on_path():
        for backend in backends:
            registry.require_findable(backend)
    return Plan(
        models=models,
        backends=backends,
        checks=checks.named(options.check),
        cases=tuple(options.case) if options.case else None,
        questions=prompts.read_file(options.prompts) if options.prompts else None,
        settings=settings,
        json=options.json,
        shrinking=_shrinking(options),
    )


def _shrinking(options: argparse.Namespace) -> Shrinking | None:
    if not options.shrink:
        return None
    budget, folder = options.shrink_budget, options.shrink_to
    if not (math.isfinite(budget) and 0 < budget <= LONGEST_S):
        msg = f"--shrink-budget {budget:g}: expected 0 < SECONDS <= {LONGEST_S}."
        raise UsageError(msg)
    report.require_writable(Path(folder, "mlxcheck-replay-1.json"))
    return Shrinking(budget_s=budget, folder=folder)


def _several(given: Sequence[str] | None, variable: str) -> tuple[str, ...]:
    """Return what was given, else what the environment holds, each once."""
    words = given or os.environ.get(variable, "").split(",")
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))


def _policy(options: argparse.Namespace) -> Policy:
    watchdog = options.watchdog
    if not (math.isfinite(watchdog) and 0 < watchdog <= LONGEST_S):
        msg = f"--watchdog {watchdog:g}: expected 0 < SECONDS <= {LONGEST_S}."
        raise UsageError(msg)
    if options.prefill_chunk < 1:
        msg = f"--prefill-chunk {options.prefill_chunk}: expected at least 1 token."
        raise UsageError(msg)
    return Policy(
        precision=options.precision or PRECISIONS,
        mode=options.mode,
        prefill_chunk=options.prefill_chunk,
        watchdog_s=watchdog,
        # Who waits one second for an answer does not want to wait ten for its end.
        grace_s=min(watchdog, Policy().grace_s),
    )
