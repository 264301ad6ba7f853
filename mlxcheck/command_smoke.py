"""``mlxcheck smoke``: does a server do what is asked of it."""

from __future__ import annotations

import math
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from mlxcheck.errors import MlxCheckError, UsageError
from mlxcheck.policy import LONGEST_S, Policy
from mlxcheck.report import require_writable
from mlxcheck.smoke.records import SmokeResult

if TYPE_CHECKING:
    import argparse

    from mlxcheck.report import Outcome
    from mlxcheck.serving.launch import Launch
    from mlxcheck.smoke import Asking

__all__ = ["SMOKE_CODES", "add_smoke_options", "run_smoke"]

_STATUS = {"pass": 0, "fail": 1, "inconclusive": 3}
"""Those of ``mlxcheck run``."""

SMOKE_CODES = """\
exit status:
  0    pass: the server does what was asked of it
  1    fail: a check failed, or a server that was started never became ready
  2    usage error: no such command, check or model, or no server at the URL
  3    inconclusive: nothing failed, but not all could be asked, or told
  130  interrupted by Ctrl-C; a server that was started is ended
"""
"""What the exit status of the command means, for its help."""

_LEAST_TOKENS = 16


def add_smoke_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--url", metavar="U", help="a server that runs, as http://HOST:PORT")
    which.add_argument(
        "--serve",
        metavar="COMMAND",
        help="start one, and end it: its command, with {port} where a free port is to go",
    )
    which.add_argument(
        "--preset", metavar="NAME", help="start one of mlx-lm, sglang, vllm-mlx, and end it"
    )
    _add_server(parser)
    _add_asking(parser)


def _add_server(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        metavar="M",
        help="folder or hub id: served by a preset, compared with, and counted with",
    )
    add("--server-args", metavar="ARGS", default="", help="more arguments for a preset")
    add(
        "--ready",
        metavar="PATH",
        default="/health",
        help="answers 2xx once the server can be asked; looked at after a failure too; "
        "default: %(default)s",
    )
    add(
        "--wait",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="for a server to become ready; default: %(default)g",
    )
    add("--trust-remote-code", action="store_true", help="run code that a checkpoint brings")


def _add_asking(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--served-model",
        metavar="NAME",
        help="what requests call the model; default: the first of /v1/models",
    )
    add("--only", action="append", metavar="CHECK", help="only this check; may be repeated")
    add(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="for one request, to the end of its answer; default: %(default)g",
    )
    add(
        "--max-tokens",
        type=int,
        default=256,
        metavar="N",
        help="of one answer; models that think need more; default: %(default)d",
    )
    add("--json", metavar="FILE", help="write the report here")


def run_smoke(options: argparse.Namespace) -> int:
    """Ask the server, show what came of it, and return the exit status.

    Raises:
        MlxCheckError: What was asked for cannot be.
    """
    from mlxcheck import smoke
    from mlxcheck.render.smoke import SmokeLines, show_smoke
    from mlxcheck.serving.process import ends_in_order

    target, asking = _plan(options)
    if options.json is not None:
        require_writable(options.json)
    lines = SmokeLines()
    with ends_in_order():
        report = smoke.run(target, asking, tell=lines.tell, found=lines.found)
    if options.json is not None:
        report.save(options.json)
    try:
        show_smoke(report, sys.stdout)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _STATUS[report.outcome]


def _plan(options: argparse.Namespace) -> tuple[str | Launch, Asking]:
    """Settle all that can be settled before anything is started."""
    from mlxcheck import smoke
    from mlxcheck.smoke.counting import counter_for

    for name in ("wait", "timeout"):
        seconds = getattr(options, name)
        if not (math.isfinite(seconds) and 0 < seconds <= LONGEST_S):
            msg = f"--{name} {seconds:g}: expected 0 < SECONDS <= {LONGEST_S}."
            raise UsageError(msg)
    if options.max_tokens < _LEAST_TOKENS:
        msg = f"--max-tokens {options.max_tokens}: expected at least {_LEAST_TOKENS}."
        raise UsageError(msg)
    if not options.ready.startswith("/"):
        msg = f"--ready {options.ready}: expected a path, such as /health."
        raise UsageError(msg)
    checks, compares = _checks(options)
    target, served = _target(options)
    counter = None
    if options.model is not None:
        counter = counter_for(options.model, trust_remote_code=options.trust_remote_code)
    asking = smoke.Asking(
        checks=checks,
        served_model=options.served_model or served,
        counter=counter,
        reference=partial(_against_mlx_lm, options) if compares else None,
        max_tokens=options.max_tokens,
        timeout_s=options.timeout,
        wait_s=options.wait,
        health=options.ready,
    )
    return target, asking


def _checks(options: argparse.Namespace) -> tuple[tuple[str, ...], bool]:
    """Return the checks, and whether the answers are compared with mlx-lm's too."""
    from mlxcheck import smoke

    only = list(options.only or ())
    if smoke.REFERENCE not in only:
        return smoke.named(only), not only and options.model is not None
    if options.model is None:
        msg = "--only reference needs --model M: the checkpoint that the server has loaded."
        raise UsageError(msg)
    others = [name for name in only if name != smoke.REFERENCE]
    return smoke.named(others) if others else (), True


def _against_mlx_lm(options: argparse.Namespace, url: str, served: str) -> SmokeResult:
    """Compare the answers of a running server with mlx-lm's greedy ones, token for token."""
    from mlxcheck import smoke
    from mlxcheck.assertions import check
    from mlxcheck.backends.server import ServerBackend

    def server() -> ServerBackend:
        return ServerBackend(url, model=served, timeout_s=options.timeout)

    began = time.monotonic()
    # A server holds its own weights, so there is the pass in their own dtype alone.
    policy = Policy(precision=("native",), watchdog_s=options.timeout)
    outcome: Outcome = "inconclusive"
    try:
        report = check(
            options.model,
            server,
            effort="quick",
            policy=policy,
            trust_remote_code=options.trust_remote_code,
        )
    except MlxCheckError as error:
        message = f"not compared: {error}"
    else:
        outcome = report.outcome
        message = report.summary() if outcome == "pass" else report.explain()
    seconds = time.monotonic() - began
    return SmokeResult(name=smoke.REFERENCE, outcome=outcome, message=message, seconds=seconds)


def _target(options: argparse.Namespace) -> tuple[str | Launch, str | None]:
    """Return the server, and what its requests call the model where that is known."""
    from mlxcheck.serving.launch import parse_command
    from mlxcheck.serving.presets import PRESETS

    if options.server_args and options.preset is None:
        msg = "--server-args goes with --preset; with --serve, put them into the command."
        raise UsageError(msg)
    if options.url is not None:
        return options.url, None
    if options.serve is not None:
        return parse_command(options.serve, options.ready), None
    if options.preset not in PRESETS:
        msg = f"unknown preset {options.preset!r}. Choose from: {', '.join(PRESETS)}."
        raise UsageError(msg)
    if options.model is None:
        msg = f"--preset {options.preset} needs --model M: what it is to serve."
        raise UsageError(msg)
    preset = PRESETS[options.preset]
    return preset.launch(options.model, options.server_args), preset.served_model
