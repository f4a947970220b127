"""Running the checks of a model: each with providers of its own, and a report of what was found."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import ModuleType
from typing import get_args

from msgspec import Struct

from agentlane.testing.model_checks import answers, endings
from agentlane.testing.model_checks.bench import Bench, Breach, Feature, Lacking, MakePlace, ModelCheck

MODULES: tuple[ModuleType, ...] = (answers, endings)
HANG_S = 60
"""A check that takes longer hangs. It never decides anything else: no check waits for time to pass."""


class ModelFailure(Struct, frozen=True, kw_only=True):
    """A check that failed: the rule it cites, and what is wrong."""

    check: str
    rule: str
    message: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"


class ModelReport(Struct, frozen=True, kw_only=True):
    """What a run of the checks found; checks by name, ``skipped`` with the reason."""

    passed: tuple[str, ...]
    failed: tuple[ModelFailure, ...]
    skipped: dict[str, str]

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return "\n".join(
            [
                f"model conformance: {counts}",
                *(f"skipped {name}: {reason}" for name, reason in self.skipped.items()),
                *(f"FAILED {failure}" for failure in self.failed),
            ]
        )


class ModelConformanceError(AssertionError):
    """The model breaks rules of the protocol; ``report`` and the message list every failure."""

    def __init__(self, report: ModelReport) -> None:
        super().__init__(str(report))
        self.report = report


def model_conformance_checks() -> list[ModelCheck]:
    """Every check in the order of the rules, for a test runner to make one test of each."""
    return [each for module in MODULES for each in vars(module).values() if isinstance(each, ModelCheck)]


async def check_model(
    make_place: MakePlace, *, without: Collection[Feature] = (), only: Collection[str] | None = None
) -> ModelReport:
    """Run the checks, each with models that ``make_place`` makes for it, and return what was found.

    ``make_place`` is called with the answers that the provider is to give, in order, and gives an async context manager
    of a ``ModelPlace``. ``without`` names what the provider does not have: checks that need it are skipped. ``only``
    names checks, or rules (``M3``) whose checks are to run; an unknown name in either is a ``ValueError``, and so is a
    text in place of a list. Raises ``ModelConformanceError`` after all of them have run when any failed.
    """
    if isinstance(without, str) or isinstance(only, str):
        raise ValueError("without= and only= are lists of names")
    strange = set(without) - set(get_args(Feature))
    if strange:
        raise ValueError(f"no feature is called {sorted(strange)}; there are {', '.join(get_args(Feature))}")
    checks = model_conformance_checks()
    if only is not None:
        unknown = set(only) - {each.name for each in checks} - {rule for each in checks for rule in each.rules}
        if unknown:
            raise ValueError(f"no check and no rule is called {sorted(unknown)}")
        checks = [each for each in checks if {each.name, *each.rules} & set(only)]
    passed: list[str] = []
    failed: list[ModelFailure] = []
    skipped: dict[str, str] = {}
    for each in checks:
        missing = [need for need in each.needs if need in without]
        if missing:
            skipped[each.name] = f"the provider has no {missing[0]}"
            continue
        try:
            async with asyncio.timeout(HANG_S):
                await each.run(Bench(make_place))
        except Lacking as lacking:
            skipped[each.name] = str(lacking)
        except Exception as error:
            failed.append(_failure(each, error))
        else:
            passed.append(each.name)
    report = ModelReport(passed=tuple(passed), failed=tuple(failed), skipped=skipped)
    if failed:
        raise ModelConformanceError(report)
    return report


def _failure(each: ModelCheck, error: Exception) -> ModelFailure:
    rules = ", ".join(each.rules)
    if isinstance(error, Breach):
        return ModelFailure(check=each.name, rule=error.rule, message=str(error), error=error)
    if isinstance(error, TimeoutError):
        return ModelFailure(check=each.name, rule=rules, message=f"{rules}: not done after {HANG_S} s", error=error)
    told = f"{rules}: raised {type(error).__name__}: {error}"
    return ModelFailure(check=each.name, rule=rules, message=told, error=error)
