"""The value of the fixture ``mlx_reference``: comparisons inside users' own tests."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mlxcheck import checks as all_checks
from mlxcheck.backends import registry
from mlxcheck.errors import NotEnoughMemory, ReferenceMismatch, UsageError
from mlxcheck.passes import missed as pass_missed
from mlxcheck.plugin import MARKER
from mlxcheck.precisions import cannot_cast
from mlxcheck.prompts import as_questions
from mlxcheck.pytest_doorway.candidates import open_candidate, require_known
from mlxcheck.pytest_doorway.outcomes import Refusal
from mlxcheck.pytest_doorway.tally import Asking
from mlxcheck.recording import Recorded, Want
from mlxcheck.report import merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pytest

    from mlxcheck.checks import Check, Effort
    from mlxcheck.passes import PassSummary
    from mlxcheck.policy import Policy
    from mlxcheck.pytest_doorway.hooks import Doorway
    from mlxcheck.records import Precision, Trace
    from mlxcheck.report import Report
    from mlxcheck.run import Drive
    from mlxcheck.settings import Settings

__all__ = ["MlxReference", "declared_want", "marker_keywords"]


class MlxReference:
    """Compare engines with plain mlx-lm, with the test's marker as defaults.

    What is not given is taken from the marker, then from the command line, the environment
    and the ini file. What the reference said is kept for the session: a model is loaded
    again only for prompts that no marker of a selected test has declared.

    Example::

        @pytest.mark.mlx_reference(prompts=["What is 2+2?"], max_tokens=16)
        def test_my_engine(mlx_reference):
            mlx_reference.assert_equal(my_generate)
    """

    def __init__(self, doorway: Doorway, item: pytest.Item) -> None:
        """Bind the fixture to one test; pytest does this."""
        self._doorway = doorway
        self._item = item
        self._declared = marker_keywords(item)

    def check(  # noqa: PLR0913 - keyword-only, each with its default
        self,
        backend: object = None,
        *,
        model: str | Path | None = None,
        prompts: Iterable[object] | None = None,
        max_tokens: int | None = None,
        checks: Iterable[str] | None = None,
        effort: Effort | None = None,
        precision: Precision | Sequence[Precision] | None = None,
        policy: Policy | None = None,
    ) -> Report:
        """Compare an engine with the reference, as `mlxcheck.check` does.

        Args:
            backend: Anything that `mlxcheck.check` takes.
            model: A folder, a hub id, or the name of a model given by option.
            prompts: Anything that `mlxcheck.check` takes.
            max_tokens: The most tokens of each answer.
            checks: Names of checks.
            effort: ``"quick"``, ``"standard"`` or ``"thorough"``.
            precision: The passes: ``"float32"``, ``"native"`` or both; before the policy's.
            policy: What counts as equal, and how long to wait.

        Returns:
            One report of all passes. Under ``--mlx-require`` the test fails if it is
            inconclusive.

        Raises:
            UsageError: No model, several to choose from, or a bad argument.
        """
        __tracebackhide__ = True
        asked = self._doorway.wishes.checks if checks is None else all_checks.named(checks)
        candidate = self._backend(backend)
        settings = self._settings(prompts, max_tokens, effort, self._policy(precision, policy))
        source = self._source(model)
        want = self._want(prompts, max_tokens)
        recorded, missed = self._record(source, want, candidate, settings.policy)
        return self._run(recorded, missed, candidate, asked, settings)

    def assert_equal(  # noqa: PLR0913 - the same arguments as check()
        self,
        backend: object = None,
        *,
        model: str | Path | None = None,
        prompts: Iterable[object] | None = None,
        max_tokens: int | None = None,
        checks: Iterable[str] | None = None,
        effort: Effort | None = None,
        precision: Precision | Sequence[Precision] | None = None,
        policy: Policy | None = None,
    ) -> Report:
        """Do what `check` does, and raise unless every comparison agrees.

        Raises:
            ReferenceMismatch: Something differs, or there is no verdict.
        """
        __tracebackhide__ = True
        report = self.check(
            backend,
            model=model,
            prompts=prompts,
            max_tokens=max_tokens,
            checks=checks,
            effort=effort,
            precision=precision,
            policy=policy,
        )
        if report.outcome != "pass":
            raise ReferenceMismatch(report.explain(), report)
        return report

    def traces(
        self,
        prompts: Iterable[object] | None = None,
        *,
        model: str | Path | None = None,
        max_tokens: int | None = None,
    ) -> tuple[Trace, ...]:
        """Return what the reference says, for a test that drives its engine by itself.

        Args:
            prompts: Anything that `mlxcheck.check` takes.
            model: As for `check`.
            max_tokens: The most tokens of each answer.

        Returns:
            One a prompt, in order: ``tokens``, up to and including the stop id; ``finish``;
            ``scores``.
        """
        __tracebackhide__ = True
        source, want = self._source(model), self._want(prompts, max_tokens)
        policy = self._policy(None, None)
        names = self._doorway.references.passes(source, policy)
        if isinstance(names, Refusal):
            self._refuse(names)
        name: Precision = "native" if "native" in names else "float32"
        recorded = self._doorway.references.recorded(source, name, want, policy)
        if isinstance(recorded, Refusal):
            self._refuse(recorded)
        traces = tuple(recorded.traces[prompt.id] for prompt in recorded.prompts)
        self._doorway.tally.traced += len(traces)
        return traces

    def _record(
        self, source: str, want: Want, candidate: object, policy: Policy
    ) -> tuple[list[Recorded], list[PassSummary]]:
        """Record each pass, before the candidate is opened in any.

        A pass that cannot be made is left out and told, as long as there is another.
        """
        __tracebackhide__ = True
        references = self._doorway.references
        names = references.passes(source, policy)
        if isinstance(names, Refusal):
            self._refuse(names)
        recorded: list[Recorded] = []
        left_out: list[PassSummary] = []
        first: Refusal | None = None
        for name in names:
            why = cannot_cast(candidate) if references.is_cast(source, name) else ""
            if why and len(names) > 1:
                left_out.append(pass_missed(name, why))
                continue
            found = references.recorded(source, name, want, policy)
            if isinstance(found, Recorded):
                recorded.append(found)
            elif found.kind is NotEnoughMemory:
                left_out.append(pass_missed(name, found.text))
                first = first or found
            else:
                self._refuse(found)
        if not recorded and first is not None:
            self._refuse(first)
        backed = any(each.precision == "float32" for each in recorded)
        return [replace(each, backed=backed) for each in recorded], left_out

    def _run(
        self,
        recorded: Sequence[Recorded],
        missed: Sequence[PassSummary],
        candidate: object,
        asked: Sequence[Check],
        settings: Settings,
    ) -> Report:
        """Drive a candidate to the end in one pass after another."""
        __tracebackhide__ = True
        doorway = self._doorway
        done: list[Drive] = []
        source, name = recorded[0].model.source, registry.describe(candidate)
        pair = doorway.tally.pair(source, name, lambda: len(done) == len(recorded))
        pair.missed += missed
        for each in recorded:
            doorway.asking = Asking(source, name, each.precision, "tests", self._item.name)
            drive = open_candidate(each, candidate, asked, settings, doorway.last_words)
            if isinstance(drive, Refusal):
                self._refuse(drive)
            pair.drives.append(drive)
            with contextlib.ExitStack() as stack:
                stack.push(drive)
                drive.run()
            done.append(drive)
        report = merged([drive.report() for drive in pair.drives], pair.missed)
        if report.outcome == "inconclusive":
            doorway.unsure(self._item, report)
        return report

    def _source(self, model: str | Path | None) -> str:
        declared = self._declared if model is None else {"model": model}
        return _source(self._doorway, declared)

    def _want(self, prompts: Iterable[object] | None, max_tokens: int | None) -> Want:
        call = {"prompts": prompts, "max_tokens": max_tokens}
        said = {name: value for name, value in call.items() if value is not None}
        return _want(self._doorway, {**self._declared, **said})

    def _policy(
        self, precision: Precision | Sequence[Precision] | None, policy: Policy | None
    ) -> Policy:
        call = {"precision": precision, "policy": policy}
        said = {name: value for name, value in call.items() if value is not None}
        # A policy in the call knows its own passes: the marker's are not put over them.
        declared = self._declared if policy is None else {}
        return _policy(self._doorway, {**declared, **said})

    def _backend(self, backend: object) -> object:
        if backend is None:
            backend = self._declared.get("backend")
        if backend is None:
            backends = self._doorway.wishes.backends
            if len(backends) > 1:
                msg = (
                    f"several backends are given: {', '.join(backends)}. Name one: backend=..."
                )
                raise UsageError(msg)
            backend = backends[0]
        require_known(backend)
        return backend

    def _settings(
        self,
        prompts: object,
        max_tokens: int | None,
        effort: Effort | None,
        policy: Policy,
    ) -> Settings:
        settings = self._doorway.wishes.settings
        own = prompts is not None or "prompts" in self._declared
        declared: int | None = self._declared.get("max_tokens")
        return replace(
            settings,
            max_tokens=max_tokens or declared or settings.max_tokens,
            effort=effort or settings.effort,
            policy=policy,
            prompts_from="" if own else settings.prompts_from,
        )

    def _refuse(self, refusal: Refusal) -> NoReturn:
        __tracebackhide__ = True
        self._doorway.tally.missed[refusal.reason] += 1
        refusal.end_call()


def marker_keywords(item: pytest.Item) -> dict[str, Any]:
    """Return what a test's markers say; the one nearest to the test wins."""
    keywords: dict[str, Any] = {}
    for marker in item.iter_markers(MARKER):
        keywords = {**marker.kwargs, **keywords}
    return keywords


def declared_want(doorway: Doorway, item: pytest.Item) -> tuple[str, Want, Policy] | None:
    """Return the model, prompts and policy that a test's marker declares, where it does.

    Raises:
        UsageError: The test will say so itself.
    """
    keywords = marker_keywords(item)
    if "prompts" not in keywords:
        return None
    return _source(doorway, keywords), _want(doorway, keywords), _policy(doorway, keywords)


def _policy(doorway: Doorway, keywords: dict[str, Any]) -> Policy:
    policy: Policy = keywords.get("policy") or doorway.wishes.settings.policy
    precision = keywords.get("precision")
    return policy if precision is None else replace(policy, precision=precision)


def _want(doorway: Doorway, keywords: dict[str, Any]) -> Want:
    prompts = keywords.get("prompts")
    return Want(
        questions=doorway.wishes.asked if prompts is None else as_questions(prompts),
        max_tokens=keywords.get("max_tokens") or doorway.wishes.settings.max_tokens,
    )


def _source(doorway: Doorway, keywords: dict[str, Any]) -> str:
    models = doorway.wishes.models
    model = keywords.get("model")
    if model is not None:
        source = models.get(str(model), str(model))
        beside = doorway.root / source
        # A marker's path reads from the root of the tests, wherever pytest was started.
        return str(beside) if not Path(source).is_dir() and beside.is_dir() else source
    if len(models) == 1:
        return next(iter(models.values()))
    if models:
        msg = f"several models are given: {', '.join(models)}. Name one: model=..."
        raise UsageError(msg)
    msg = (
        "no model is given: name one in the call or in the marker (model=...), by --mlx-model, "
        "in MLXCHECK_MODEL, or as mlx_model in the ini file."
    )
    raise UsageError(msg)
