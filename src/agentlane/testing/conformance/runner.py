"""Running the suite: every check on a place of its own, and a report of what passed, failed and was skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from types import ModuleType

from msgspec import Struct

from agentlane.testing.conformance import commits, data, faulting, owners, paths, reads, searching, verifying, wholes
from agentlane.testing.conformance.bench import Bench, Broken, Check
from agentlane.testing.conformance.harness import Harness, HarnessMaker

MODULES: tuple[ModuleType, ...] = (commits, faulting, data, reads, paths, owners, wholes, searching, verifying)
HANG_S = 60
"""A check that takes longer hangs. It never decides anything else: no check waits for time to pass."""


class Failure(Struct, frozen=True, kw_only=True):
    """A check that failed: the rule it cites, what is wrong, and what had been done until then."""

    check: str
    rule: str
    message: str
    history: tuple[str, ...]
    error: Exception

    def __str__(self) -> str:
        lines = "\n".join(f"    {line}" for line in self.history)
        return f"{self.check}: {self.message}\n  history:\n{lines}"


class Report(Struct, frozen=True, kw_only=True):
    """What a run of the suite found; checks by name, ``skipped`` with the reason."""

    passed: tuple[str, ...]
    failed: tuple[Failure, ...]
    skipped: dict[str, str]

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return "\n".join(
            [
                f"storage conformance: {counts}",
                *(f"skipped {name}: {reason}" for name, reason in self.skipped.items()),
                *(f"FAILED {failure}" for failure in self.failed),
            ]
        )


class ConformanceError(AssertionError):
    """The backend breaks rules of the contract; ``report`` and the message list every failure."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def conformance_checks() -> list[Check]:
    """Every check in the order of the rules, for a test runner to make one test of each."""
    return [each for module in MODULES for each in vars(module).values() if isinstance(each, Check)]


async def check_storage(make_harness: HarnessMaker, *, only: Collection[str] | None = None) -> Report:
    """Run the suite, each check on a place that ``make_harness`` makes for it, and return what was found.

    ``only`` names checks, or rules (``S3``) whose checks are to run; an unknown name is a ``ValueError``. Raises
    ``ConformanceError`` after all of them have run when any failed.
    """
    checks = conformance_checks()
    if only is not None:
        unknown = set(only) - {each.name for each in checks} - {rule for each in checks for rule in each.rules}
        if unknown:
            raise ValueError(f"no check and no rule is called {sorted(unknown)}")
        checks = [each for each in checks if {each.name, *each.rules} & set(only)]
    passed: list[str] = []
    failed: list[Failure] = []
    skipped: dict[str, str] = {}
    for each in checks:
        outcome = await _run(each, make_harness)
        if outcome is None:
            passed.append(each.name)
        elif isinstance(outcome, Failure):
            failed.append(outcome)
        else:
            skipped[each.name] = outcome
    report = Report(passed=tuple(passed), failed=tuple(failed), skipped=skipped)
    if failed:
        raise ConformanceError(report)
    return report


async def _run(each: Check, make_harness: HarnessMaker) -> Failure | str | None:
    """None when it passed, a text when it was skipped."""
    async with AsyncExitStack() as places:

        async def another() -> Harness:
            return await places.enter_async_context(make_harness())

        harness = await another()
        bench = Bench(harness, another)
        try:
            reason = _missing(each, harness, bench)
            async with asyncio.timeout(HANG_S):
                if reason is None:
                    await each.run(bench)
                await bench.close()
        except Exception as error:
            failure = _failure(each, bench, error)
            try:
                async with asyncio.timeout(HANG_S):
                    await bench.close()
            except Exception as worse:  # told beside the first
                bench.history.append(f"closing up raised {worse!r}")
            return failure
        return reason


def _missing(each: Check, harness: Harness, bench: Bench) -> str | None:
    for need in each.needs:
        if need in ("persistent", "cross_process", "verifies"):
            if not getattr(bench.store.capabilities, need):
                return f"the store is not {need}"
        elif not getattr(harness, need):
            return f"the harness has no {need}"
    return None


def _failure(each: Check, bench: Bench, error: Exception) -> Failure:
    if isinstance(error, Broken):
        rule, message = error.rule, str(error)
    elif isinstance(error, TimeoutError):
        rule, message = ", ".join(each.rules), f"hung: not done after {HANG_S} s"
    else:
        rule = ", ".join(each.rules)
        message = f"{rule}: raised {type(error).__name__}: {error}"
    return Failure(check=each.name, rule=rule, message=message, history=tuple(bench.history), error=error)
