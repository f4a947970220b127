"""Claim: what is checked at each checkpoint can fail: a library with one of these mistakes seeded in it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentlane import AgentLaneError, Session, Settled, SystemClock, ValueAddress, Waiting
from agentlane.data import addresses, codec
from agentlane.data.writes import DeleteValue, SetValue
from agentlane.driver.drive import Pass
from agentlane.driver.runtime import Runtime
from agentlane.opening import _Open
from agentlane.session_data import SessionData
from agentlane.storage import Store
from tests.cancellation.kinds import KINDS
from tests.cancellation.points import Played, Stage, sweep, sweep_later
from tests.cancellation.recipes import Recipe, all_recipes
from tests.cancellation.world import Backend

BY_NAME = {kind.name: kind for kind in KINDS}


def named(name: str) -> Recipe:
    return next(each for each in all_recipes() if each.name == name)


def caught(played: Iterable[Played]) -> str:
    """What playing them all fails with."""
    with pytest.raises((AssertionError, AgentLaneError)) as failure:
        list(played)
    return str(failure.value)


def swept(folder: Path, name: str, backend: Backend = "gated", kind: str = "task") -> str:
    return caught(sweep(Stage(backend, folder), named(name), BY_NAME[kind]))


async def set_name_by_waiter(self: SessionData, name: str | None) -> None:
    """What is committed is published by whoever waits for the commit, if somebody does."""
    await self._commit([SetValue(addresses.SESSION_NAME_ADDRESS, codec.encode(name))], "name")
    self._name = name


@pytest.mark.parametrize("backend", ["gated", "jsonl"])
def test_a_publication_that_a_cancelled_waiter_takes_along(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionData, "set_name", set_name_by_waiter)

    assert "memory:\nname 'name'" in swept(tmp_path, "Session.set_name", backend)


def test_a_change_in_two_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionData, "set_value", set_value_in_two)

    assert "neither all nor nothing" in swept(tmp_path, "Session.set_value")


async def set_value_in_two(self: SessionData, address: ValueAddress[Any], value: Any) -> None:
    await self._commit([DeleteValue(address.address)], "value")
    await self._commit([SetValue(address.address, codec.encode(value))], "value")


def test_a_swallowed_cancellation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    intact = SessionData.append

    async def append(self: SessionData, address: Any, value: Any) -> int:
        try:
            return await intact(self, address, value)
        except asyncio.CancelledError:
            return 0

    monkeypatch.setattr(SessionData, "append", append)

    assert "returned although it was cancelled" in swept(tmp_path, "Session.append")


def test_a_task_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[asyncio.Task[Any]] = []

    async def set_value(self: SessionData, address: ValueAddress[Any], value: Any) -> None:
        task = asyncio.ensure_future(SystemClock().sleep_until(SystemClock().now_ms() + 3_600_000))
        kept.append(task)
        await self._commit([SetValue(address.address, codec.encode(value))], "value")
        task.cancel()

    monkeypatch.setattr(SessionData, "set_value", set_value)

    assert "a task was left behind" in swept(tmp_path, "Session.set_value")


def test_an_error_that_nobody_hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise OSError("nobody hears")

    async def set_value(self: SessionData, address: ValueAddress[Any], value: Any) -> None:
        task = asyncio.ensure_future(fails())
        await self._commit([SetValue(address.address, codec.encode(value))], "value")
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(SessionData, "set_value", set_value)

    assert "exception was never retrieved" in swept(tmp_path, "Session.set_value")


def test_a_wait_that_spins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting on without a shield, it is cancelled again by an anyio scope in each turn of the loop."""

    async def finish(future: asyncio.Future[Any]) -> Any:
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return future.result()

    monkeypatch.setattr("agentlane.session.finish", finish)

    assert "times that it is cancelled" in swept(tmp_path, "Session.close, while a model answers", kind="scope")


def test_an_owner_left_by_a_cancelled_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_in(self: _Open, store: Store, owned: bool, ids: Any) -> Session:
        storage = await store.open(await self._choose(store))
        runtime = Runtime(storage, clock=self._clock, ids=ids, probe=None, rng=Random(1))
        session = Session(runtime, store, owns_store=owned)
        await session.load()
        return session

    monkeypatch.setattr(_Open, "_open_in", open_in)

    assert "is open for writing in this process" in swept(tmp_path, "open_session, by a store", "sqlite")


def test_a_pass_that_ends_with_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def observe(self: Pass, **options: bool) -> Settled | Waiting:
        try:
            return await self._observers.observe(**options)
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
            raise

    monkeypatch.setattr(Pass, "observe", observe)

    found = caught(sweep_later(Stage("gated", tmp_path), named("AgentLane.drive, a call")))
    assert "neither all nor nothing" in found
