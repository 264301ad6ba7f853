"""Where a result comes from: the command that repeats it, and the versions that made it."""

from __future__ import annotations

import platform
import shlex
from importlib import metadata
from typing import TYPE_CHECKING

from mlxcheck import reference
from mlxcheck.backends import registry
from mlxcheck.records import ALL_PROMPTS
from mlxcheck.settings import Settings

if TYPE_CHECKING:
    from mlxcheck.recording import Recorded
    from mlxcheck.records import Case

__all__ = ["again", "versions"]


def again(
    recorded: Recorded, backend: object, settings: Settings, check: str, case: Case
) -> str:
    """Return the command, or where there is none for it the call, that repeats a case.

    Args:
        recorded: The model, in the pass at hand.
        backend: The candidate, as it was given.
        settings: What the run depends on.
        check: The check's name.
        case: The case; one that is not driven is repeated with its whole check.
    """
    model, policy = recorded.model, settings.policy
    whole = case.id == ALL_PROMPTS or not all(prompt.tokens for prompt in case.prompts)
    named = registry.command_name(backend)
    if named is None or settings.prompts_from == "":
        prompts = "" if settings.prompts_from is None else " prompts=...,"
        rules = f"precision={(recorded.precision,)!r}"
        rules += f", mode={policy.mode!r}" if policy.mode != "calibrated" else ""
        cases = "" if whole else f", cases=[{case.id!r}]"
        return (
            f"mlxcheck.check({model.source!r}, {registry.describe(backend)},{prompts} "
            f"max_tokens={settings.max_tokens}, checks=[{check!r}], "
            f"effort={settings.effort!r}, policy=mlxcheck.Policy({rules}), "
            f"seed={settings.seed}{cases})"
        )
    defaults = Settings()
    words = ["mlxcheck", "run", model.source, "--backend", named, "--check", check]
    words += [] if whole else ["--case", case.id]
    words += ["--precision", recorded.precision]
    words += ["--mode", policy.mode] if policy.mode != "calibrated" else []
    if policy.prefill_chunk != defaults.policy.prefill_chunk:
        words += ["--prefill-chunk", str(policy.prefill_chunk)]
    for name in ("max_tokens", "effort", "seed", "revision", "prompts_from"):
        value = getattr(settings, name)
        if value != getattr(defaults, name):
            option = "prompts" if name == "prompts_from" else name.replace("_", "-")
            words += [f"--{option}", str(value)]
    if settings.trust_remote_code:
        words.append("--trust-remote-code")
    return shlex.join(words)


def versions() -> dict[str, str]:
    """Return what a result depends on besides its inputs."""
    return {
        "mlxcheck": metadata.version("mlxcheck"),
        "mlx": metadata.version("mlx"),
        "mlx-lm": metadata.version("mlx-lm"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": reference.device(),
    }
