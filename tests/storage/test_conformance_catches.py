"""Claim: the conformance suite is worth its name: each backend that breaks one rule fails, by a check that cites it."""

from __future__ import annotations

import inspect
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from agentlane.storage.contract import Store
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds
from agentlane.testing.conformance import Check, ConformanceError, Failure, Harness, check_storage, conformance_checks
from agentlane.testing.faults import FailingStore, Where
from agentlane.testing.gates import GatedStore, Hold
from tests.storage import broken
from tests.storage.backends import TickingClock, memory, sqlite

Kind: TypeAlias = type[broken.Broken] | type[broken.BrokenStore]
KINDS: list[Kind] = [*broken.STORAGES, *broken.STORES]


def make(kind: Kind, inner: Store) -> broken.BrokenStore:
    if issubclass(kind, broken.BrokenStore):
        return kind(inner)
    return broken.BrokenStore(inner, kind)


@asynccontextmanager
async def harness_of(wrap: Callable[[Store], Store], *, where: Where = "before") -> AsyncIterator[Harness]:
    """A harness of ``wrap`` around a memory store whose commits can be made to fail."""
    stores: list[MemoryStore] = []
    failing: list[FailingStore] = []

    def store() -> Store:
        stores.append(MemoryStore(clock=TickingClock(), ids=CountingIds(series=len(stores))))
        failing.append(FailingStore(stores[-1], nth=None, where=where))
        return wrap(failing[-1])

    @contextmanager
    def break_medium(session_id: str) -> Iterator[None]:
        failing[-1].fail_next()
        yield

    async def take_over(session_id: str) -> None:
        stores[-1]._media[session_id].owner = None
        stores[-1]._media[session_id].epoch += 1

    yield Harness(store=store, take_over=take_over, break_medium=break_medium)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_broken_backend_is_caught(kind: Kind) -> None:
    rules = re.findall(r"S\d+", kind.__doc__ or "")
    assert rules, f"{kind.__name__} does not say which rule it breaks"

    caught = [failed async for failed in failures(kind, rules)]

    assert any(set(re.findall(r"S\d+", each.rule)) & {*rules} for each in caught), [str(each) for each in caught]


async def failures(kind: Kind, rules: list[str]) -> AsyncIterator[Failure]:
    """Failures of the checks of ``rules``, until one cites one of them; first those named after one."""
    checks = [each for each in conformance_checks() if {*each.rules} & {*rules}]
    for check in sorted(checks, key=lambda each: each.name.partition("_")[0].upper() not in rules):
        try:
            await check_storage(lambda: harness_of(lambda inner: make(kind, inner)), only=[check.name])
        except ConformanceError as error:
            (failed,) = error.report.failed
            yield failed
            if set(re.findall(r"S\d+", failed.rule)) & {*rules}:
                return


async def test_a_migration_that_loses_something_is_caught(tmp_path: Path) -> None:
    @asynccontextmanager
    async def harness() -> AsyncIterator[Harness]:
        async with sqlite("process")(tmp_path) as given:

            def make_older(session_id: str) -> None:
                assert given.make_older is not None
                given.make_older(session_id)
                with closing(sqlite3.connect(tmp_path / "sessions.db")) as connection, connection:
                    connection.execute("DELETE FROM value WHERE namespace = 'op.meta'")

            yield msgspec.structs.replace(given, make_older=make_older)

    name = "s30_an_older_format_is_read_as_it_is_and_migrated_by_its_first_owner"
    with pytest.raises(ConformanceError) as caught:
        await check_storage(harness, only=[name])

    assert [(each.check, each.rule) for each in caught.value.report.failed] == [(name, "S30")]


async def test_all_failures_are_told_together() -> None:
    def make_harness() -> AbstractAsyncContextManager[Harness]:
        return harness_of(lambda inner: make(broken.data.LosesTheTime, inner))

    asked = [
        each.name for each in conformance_checks() if not each.name.startswith("s16_")
    ]  # the longest, and of no times

    with pytest.raises(ConformanceError) as caught:
        await check_storage(make_harness, only=asked)

    report = caught.value.report
    assert len(report.failed) > 1
    assert len(report.passed) + len(report.failed) + len(report.skipped) == len(asked)
    for failed in report.failed:
        assert failed.history
        assert failed.check in str(caught.value) and failed.message in str(caught.value)


def gated(hold: Hold) -> Callable[[Store], Store]:
    def wrap(inner: Store) -> Store:
        store = GatedStore(inner, hold=hold)
        store.gate.open()
        return store

    return wrap


@pytest.mark.parametrize("where", ["before", "half", "after"])
@pytest.mark.parametrize(
    "wrap", [broken.BrokenStore, gated("before_write"), gated("before_report")], ids=["plain", "gated", "held"]
)
async def test_a_store_that_breaks_nothing_passes(wrap: Callable[[Store], Store], where: Where, whole: bool) -> None:
    """The stores of the testing kit that fail and wait on purpose keep every rule themselves.

    The reduced form asks those that wait nothing of paths: they are the longest checks, and reading waits for no gate.
    """
    failing = [each.name for each in conformance_checks() if "break_medium" in each.needs]
    asked = None if where == "before" else failing  # where a commit fails is the same to a check in which none does
    if asked is None and not whole and wrap is not broken.BrokenStore:
        asked = [each.name for each in conformance_checks() if not each.name.startswith("s16_")]

    report = await check_storage(lambda: harness_of(wrap, where=where), only=asked)

    assert not report.failed and len(report.passed) + len(report.skipped) == len(asked or conformance_checks())
    assert {"s9_a_failing_medium_faults_the_session"} <= {*failing} & {*report.passed}
    if where == "before":
        assert "s22_a_replaced_owner_cannot_write" in report.passed
        assert report.skipped["s24_damage_is_found_and_left_as_it_is"] == "the harness has no damages"
        assert "the harness has no damages" in str(report)


async def test_checks_are_chosen_by_name_and_by_rule(tmp_path: Path) -> None:
    by_rule = await check_storage(lambda: memory(tmp_path), only=["S20"])
    by_name = await check_storage(lambda: memory(tmp_path), only=["s20_open_operations_of_all_sessions"])

    assert "s20_open_operations_of_all_sessions" in by_rule.passed
    assert by_name.passed == ("s20_open_operations_of_all_sessions",)
    with pytest.raises(ValueError, match="S99"):
        await check_storage(lambda: memory(tmp_path), only=["S99"])


def test_every_rule_is_cited_by_a_check() -> None:
    cited = {rule for each in conformance_checks() for rule in each.rules}

    assert cited == {f"S{number}" for number in range(1, 31)}
    names = [each.name for each in conformance_checks()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("check", conformance_checks(), ids=str)
def test_a_check_is_found_by_each_rule_that_it_cites(check: Check) -> None:
    cited = set(re.findall(r'"(S\d+)"', inspect.getsource(check.run)))

    assert cited <= set(check.rules), f"{check} does not name {sorted(cited - set(check.rules))}"
    assert check.name.split("_")[0].upper() in check.rules
