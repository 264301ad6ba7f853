"""What counts as equal, and how long to wait: every default beside its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from mlxcheck.errors import UsageError
from mlxcheck.records import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LONGEST_S", "MODES", "PRECISIONS", "Mode", "Policy"]

LONGEST_S = 86_400
"""The longest that a watchdog waits: a day. The system's timers do not take any number."""

Mode = Literal["calibrated", "strict"]
"""Differences are held against the measured noise; or none is allowed."""

_TESTS = 6
"""Tests of one pass: the flips of three checks, and three ratios of errors."""

MODES: tuple[Mode, ...] = get_args(Mode)
"""All modes, the default first."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""All passes, in the order in which they are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of judgement of one run.

    Attributes:
        precision: The passes over each checkpoint, in this order. Both, since each sees
            what the other cannot: in ``"float32"``, with TF32 off, honest engines agree to
            rounding, and a fault stands three to four orders of magnitude above it;
            ``"native"`` runs the kernels that ship. A float32 checkpoint has one pass.
        mode: ``"calibrated"``: a difference within what rounding was measured to do is a
            TIE, and log-probabilities beyond it are DRIFT. The default, since kernels are
            chosen by shape, and on a GPU an honest batch says other tokens at near ties.
            ``"strict"``: every difference is WRONG, and log-probabilities are not held
            against anything; for two builds of one engine, or float32 on one device.
        prefill_chunk: Prompt tokens of one prefill step of the reference. 2048: mlx-lm's
            own default. In strict mode it has to be the candidate's too wherever a prompt
            is longer, since another chunk is another shape.
        alpha: How likely all tests of a run together are to call an honest engine DRIFT.
            0.001: a nightly job of three models and two passes is then wrong about once in
            half a year, and what is lost is little, since faults stand far out.
        watchdog_s: Seconds without a token or a finished prefill after which the
            candidate counts as hung. 120 s: the longest honest silence is the prefill of
            one long prompt on a large model, tens of seconds on a small Mac.
        grace_s: Seconds past the watchdog that a hung candidate gets to let itself be
            interrupted before the process is ended. 10 s: one kernel that is already
            running may finish.
    """

    precision: Sequence[Precision] = PRECISIONS
    mode: Mode = "calibrated"
    prefill_chunk: int = 2048
    alpha: float = 0.001
    watchdog_s: float = 120.0
    grace_s: float = 10.0

    @property
    def tests(self) -> int:
        """How many tests of a run `alpha` is shared by."""
        return _TESTS * len(self.precision)

    def __post_init__(self) -> None:
        """Refuse what could not be meant."""
        for name in ("watchdog_s", "grace_s"):
            value = getattr(self, name)
            if not 0 < value <= LONGEST_S:
                msg = f"Policy({name}={value!r}): expected 0 < seconds <= {LONGEST_S}."
                raise UsageError(msg)
        # One name may be given as it is; what is kept is a tuple, each pass once.
        given = (self.precision,) if isinstance(self.precision, str) else self.precision
        passes = tuple(dict.fromkeys(given))
        if not passes or not set(passes) <= set(PRECISIONS):
            msg = f"Policy(precision={self.precision!r}): expected some of {PRECISIONS}."
            raise UsageError(msg)
        object.__setattr__(self, "precision", passes)
        if self.mode not in MODES:
            msg = f"Policy(mode={self.mode!r}): expected one of {MODES}."
            raise UsageError(msg)
        if isinstance(self.prefill_chunk, bool) or self.prefill_chunk < 1:
            msg = f"Policy(prefill_chunk={self.prefill_chunk!r}): expected at least 1 token."
            raise UsageError(msg)
        if not 0 < self.alpha < 1:
            msg = f"Policy(alpha={self.alpha!r}): expected a probability between 0 and 1."
            raise UsageError(msg)
