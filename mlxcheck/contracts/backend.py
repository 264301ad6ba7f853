"""`check_backend`: is an adapter what the harness takes it for? No token is compared."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlxcheck import checkpoint, memory, reference
from mlxcheck.backends import registry
from mlxcheck.backends.base import ModelRef
from mlxcheck.contracts.backend_answers import ANSWERING, BEGINNING
from mlxcheck.contracts.backend_bench import ANSWER, Bench, active_memory
from mlxcheck.contracts.backend_numbers import LONGEST, NUMBERS, encodes_to_ids
from mlxcheck.contracts.backend_opening import (
    CLOSING,
    OPENING,
    STATING,
    frees_its_memory,
    gives_nothing_when_idle,
)
from mlxcheck.contracts.backend_report import BrokenRule, ConformanceReport, UnaskedRule
from mlxcheck.contracts.backend_rules import Breach, NotAsked, Rule
from mlxcheck.contracts.backend_steps import EMITTED, STATED
from mlxcheck.contracts.backend_watch import broken
from mlxcheck.errors import NotEnoughMemory, UsageError
from mlxcheck.policy import LONGEST_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["RULES", "check_backend", "conformance"]

_HANGS = 2
"""Rules in which an adapter may hang; the others are then not asked, since each could."""

_ROWS = 16
"""So many of the longest requests hold as much KV as the widest batch of short ones."""

_TEXT = (
    "A ferry leaves the old harbour at nine and comes back before dark. On board are two "
    "teachers, a cook with a basket of pears, and a dog that nobody seems to know. The cook "
    "asks how far it is to the island; one of the teachers counts on her fingers and says "
    "that seven miles are left. When the wind turns, the captain lets the sail down, and "
    "they wait. 'What is twelve times three?' asks the other teacher, to pass the time. "
    "The dog barks once, the pears are shared, and by noon the lighthouse is in sight."
)

_COMPANY = ("answers-several-at-once", "lets-requests-join")

_AFTER: dict[str, tuple[str, ...]] = {
    "has-its-methods": ("is-made-without-arguments",),
    "has-a-name": ("is-made-without-arguments",),
    "states-its-capabilities": ("is-made-without-arguments",),
    "closes-unopened": ("is-made-without-arguments", "has-its-methods"),
    "answers-alone": ("answers",),
    "stops-at-its-first-token": ("repeats-itself",),
    "stops-at-a-later-token": ("repeats-itself",),
    "shows-the-logits-of-its-token": ("repeats-itself", "goes-on-from-what-is-forced"),
    "lets-requests-join": _COMPANY[:1],
    "queues-what-does-not-fit": _COMPANY[:1],
    "cancels-what-waits": _COMPANY,
    "cancels-in-prefill": _COMPANY,
    "cancels-in-decode": _COMPANY,
    "opens-again": ("opens-a-fresh-one",),
    "closes-in-flight": ("opens-a-fresh-one",),
}
"""Rules that take others for granted: where those were broken, they would say nothing new."""

RULES: dict[str, str] = {
    each.name: each.sentence
    for each in (
        *STATING,
        *OPENING,
        *BEGINNING,
        *ANSWERING,
        *NUMBERS,
        *CLOSING,
        frees_its_memory(0),
        *EMITTED,
        *STATED,
    )
}
"""Every rule of the protocol, by name, with its sentence."""


def check_backend(
    factory: object,
    model: str | Path | ModelRef,
    *,
    limit_s: float = 120.0,
    trust_remote_code: bool = False,
) -> ConformanceReport:
    """Hold an adapter to the backend protocol, rule by rule.

    It is driven as `mlxcheck.check` would drive it, and its tokens are compared with no
    reference's. That takes a hundred short answers and five openings, more where rules are
    broken.

    Args:
        factory: A `Backend` class, a function that makes an unopened one, or a registered
            name.
        model: A folder or a hub id, as for `mlxcheck.check`; or a `ModelRef`.
        limit_s: Seconds that one call may take, and for which no token may come.
        trust_remote_code: Allow code in the checkpoint to be run.

    Returns:
        Which rules were kept, and which were not asked for and why.

    Raises:
        ContractBroken: Rules were broken; the text names each, with the call, what was
            expected, what came and what to do.
        BackendError: The adapter itself says that its engine is not installed, or does not
            take this model.
        UsageError: What was given is no factory, or no time.
        ModelError: The checkpoint is missing or broken.
        ModelUnavailable: A hub model that is neither cached nor within reach.
        NotEnoughMemory: It would not fit.
    """
    __tracebackhide__ = True
    report = conformance(factory, model, limit_s=limit_s, trust_remote_code=trust_remote_code)
    return report.require()


def conformance(
    factory: object,
    model: str | Path | ModelRef,
    *,
    limit_s: float = 120.0,
    trust_remote_code: bool = False,
) -> ConformanceReport:
    """Do as `check_backend`, and return the report whatever was found.

    Args:
        factory: See there.
        model: See there.
        limit_s: See there.
        trust_remote_code: See there.
    """
    if not 0 < limit_s <= LONGEST_S:
        msg = f"check_backend(limit_s={limit_s!r}): expected 0 < seconds <= {LONGEST_S}."
        raise UsageError(msg)
    make = _factory(factory)
    reference.require_mlx()
    found = _checkpoint(model, trust_remote_code=trust_remote_code)
    tokenizer = reference.tokenizer_of(found)
    if not found.stop_ids:
        found = replace(found, stop_ids=reference.stop_set(tokenizer))
    text = [int(token) for token in tokenizer.encode(_TEXT)]
    usable = [token for token in text if token not in found.stop_ids]
    with Bench(make, found, usable, limit_s) as bench:
        inquiry = _Inquiry(bench, chat=bool(getattr(tokenizer, "chat_template", None)))
        inquiry.run(active_memory())
    return inquiry.report(bench.name or registry.describe(factory))


class _Inquiry:
    """Asks the rules in order, and sorts them."""

    def __init__(self, bench: Bench, *, chat: bool) -> None:
        self._bench = bench
        self._chat = chat
        self._kept: list[str] = []
        self._broken: dict[str, BrokenRule] = {}
        self._unasked: dict[str, str] = {}
        self._hung: list[str] = []

    def run(self, before: int) -> None:
        """Ask for every rule.

        Args:
            before: Bytes that MLX holds.
        """
        self._ask(STATING)
        self._raise_refusal()
        made = [each.name for each in STATING[:2]]
        opened, *looked_at = OPENING
        self._ask([opened], needs=made)
        self._raise_refusal()
        needs = [*made, opened.name]
        self._ask((*looked_at, *BEGINNING), needs=needs)
        begun = [*needs, *(each.name for each in BEGINNING)]
        self._ask((*ANSWERING, *NUMBERS), needs=begun)
        closed, *others = CLOSING
        self._ask([closed], needs=needs)
        self._ask([frees_its_memory(before)], needs=[*needs, closed.name])
        self._ask(others, needs=[*begun, closed.name])
        self._bench.discard()

    def report(self, name: str) -> ConformanceReport:
        """Return where each rule has come to lie, in their order."""
        watch = self._bench.watch
        self._broken |= watch.found
        for each in (*EMITTED, *STATED):
            if why := watch.unasked(each):
                self._unasked[each.name] = why
        left = [each for each in RULES if each not in self._broken]
        return ConformanceReport(
            backend=name,
            model=self._bench.model.name,
            kept=tuple(each for each in left if each not in self._unasked),
            broken=tuple(self._broken[each] for each in RULES if each in self._broken),
            not_asked=tuple(
                UnaskedRule(rule=each, reason=self._unasked[each])
                for each in left
                if each in self._unasked
            ),
        )

    def _raise_refusal(self) -> None:
        """Pass on what an adapter says of itself, that it is not installed, say."""
        if self._bench.refusal is not None:
            raise self._bench.refusal

    def _ask(self, rules: Iterable[Rule], *, needs: Iterable[str] = ()) -> None:
        """Ask for some rules, where those that they need were kept."""
        for each in rules:
            lacking = [name for name in needs if name not in self._kept]
            lacking += [name for name in _AFTER.get(each.name, ()) if name in self._broken]
            why = f"it needs {lacking[0]}, which was not kept" if lacking else ""
            if len(self._hung) >= _HANGS:
                why = f"the adapter was given up: it hung in {' and in '.join(self._hung)}"
            elif each is encodes_to_ids and not self._chat:
                why = "the checkpoint has no chat template"
            if why:
                self._unasked[each.name] = why
            else:
                self._one(each)

    def _one(self, each: Rule) -> None:
        bench, spoilt = self._bench, self._bench.watch.spoilt
        try:
            each.ask(bench)
        except NotAsked as reason:
            self._unasked[each.name] = str(reason)
        except Breach as breach:
            if spoilt:
                self._unasked[each.name] = f"what came for it broke {spoilt[0]}"
            else:
                self._broken[each.name] = broken(each, breach)
            if breach.hung and not spoilt:
                self._hung.append(each.name)
            bench.discard()
        else:
            self._kept.append(each.name)
        trouble = bench.rest()
        if trouble is not None:
            idle = gives_nothing_when_idle
            self._broken.setdefault(idle.name, broken(idle, trouble))


def _factory(factory: object) -> Callable[[], Any]:
    """Return what makes a backend; what that makes is looked at by the rules."""
    if isinstance(factory, str):
        with registry.working_folder_on_path():
            return registry.resolve(factory)
    if registry.is_function(factory):
        msg = (
            f"check_backend({registry.describe(factory)}): a function of prompts and "
            "max_tokens has no protocol to be held to. Give a Backend class, or drive the "
            "function with mlxcheck.check."
        )
        raise UsageError(msg)
    if not callable(factory):
        msg = (
            f"check_backend({factory!r:.80}): expected a Backend class, a function that makes "
            "one, or a registered name. Each rule that needs a fresh backend makes one."
        )
        raise UsageError(msg)
    return factory


def _checkpoint(model: str | Path | ModelRef, *, trust_remote_code: bool) -> ModelRef:
    """Find a checkpoint, and make sure that it would fit."""
    if isinstance(model, ModelRef):
        return model
    found = checkpoint.inspect(model, trust_remote_code=trust_remote_code)
    need = memory.estimate(
        weight_bytes=found.weight_bytes,
        config=found.config,
        longest=LONGEST,
        max_tokens=ANSWER,
        batch=_ROWS,
        chunk=LONGEST,
    )
    gate = memory.gate(
        need,
        memory.probe(),
        floor=memory.floor_bytes(os.environ),
        largest_tensor=found.largest_tensor,
    )
    if not gate.open:
        raise NotEnoughMemory(gate.reason)
    return found.model
