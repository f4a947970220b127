"""Claim: a memory store is the medium of its sessions: it keeps them over close and kill, and shares nothing live."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import Address, AppendElement, InsertEntry, InsertUsage, SetValue, Write
from agentlane.errors import InvalidWrite, OwnershipLost, SessionClosed, SessionFaulted, SessionOwned, WrongLoop
from agentlane.storage.contract import Commit
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import CountingIds, ManualClock

AT = Address("app.test", "value")


def make_store() -> MemoryStore:
    return MemoryStore(clock=ManualClock(), ids=CountingIds())


def commit(number: int) -> list[Write]:
    row = UsageRow(id=f"u{number}", kind="attempt", usage=Usage(input_tokens=1, output_tokens=number))
    return [InsertEntry(f"e{number}", None, "message", b"%d" % number), InsertUsage(row), SetValue(AT, b"%d" % number)]


@pytest.mark.parametrize("how", ["close", "kill"])
async def test_a_session_is_opened_again_with_all_it_held(how: str) -> None:
    store = make_store()
    await store.create("s")
    first = await store.open("s")
    first.submit(commit(0))
    if how == "close":
        await first.close()
    else:
        first.kill()

    again = await store.open("s")

    assert [row.payload for row in await again.scan()] == [b"0"]
    assert [row.row.id for row in await again.usage()] == ["u0"]
    assert (await again.value(AT), again.stats().entries) == (b"0", 1)
    assert (first.epoch, again.epoch) == (1, 2)
    assert again.submit(commit(1)).result().first_seq == 4
    with pytest.raises(SessionClosed):
        first.submit(commit(2))


async def test_the_epoch_is_that_of_the_last_owner_that_committed() -> None:
    store = make_store()
    await store.create("s")
    epochs = []
    for number in range(4):
        storage = await store.open("s")
        epochs.append(storage.epoch)
        if number % 2:
            storage.submit(commit(number))
        await storage.close()

    assert epochs == [1, 1, 2, 2]


async def test_an_owner_that_was_replaced_cannot_write() -> None:
    store = make_store()
    await store.create("s")
    old = await store.open("s")
    old.submit(commit(0))
    store._media["s"].owner = None
    new = await store.open("s")
    new.submit(commit(1))
    told: list[BaseException] = []
    old.on_fault = told.append

    with pytest.raises(OwnershipLost):
        await old.submit(commit(2))

    assert [type(error) for error in told] == [OwnershipLost]
    with pytest.raises(SessionFaulted):
        old.submit(commit(2))
    await old.close()
    with pytest.raises(SessionOwned):  # closing the old one must not end the new one's ownership
        await store.open("s")
    assert [row.id for row in await new.scan()] == ["e0", "e1"]


async def test_commits_are_published_and_done_inside_submit() -> None:
    store = make_store()
    await store.create("s")
    storage = await store.open("s")
    published: list[Commit] = []

    pending = storage.submit(commit(0), publish=published.append)

    assert pending.done() and published == [pending.result()]


async def test_nothing_live_is_shared() -> None:
    store = make_store()
    metadata: dict[str, Any] = {"list": [1]}
    info = await store.create("s", metadata=metadata)
    metadata["list"].append(2)
    info.metadata["list"].append(3)
    storage = await store.open("s")
    storage.info.metadata["list"].append(4)
    writes = commit(0)
    row = writes[1].row  # type: ignore[union-attr]
    storage.submit(writes)
    writes.clear()

    assert (await store.list())[0].metadata == {"list": [1]}
    assert (await storage.usage())[0].row == row
    assert (await storage.usage())[0].row is not row
    values = await storage.values("app.test")
    values.clear()
    assert await storage.values("app.test") == {"value": b"0"}


async def test_a_refused_commit_leaves_no_trace() -> None:
    store = make_store()
    await store.create("s")
    storage = await store.open("s")
    storage.submit(commit(0))
    bad: list[list[Any]] = [
        [],
        [SetValue(AT, b"1"), InsertEntry("e0", None, "m", b"1")],
        [SetValue(AT, b"1"), InsertEntry("u0", None, "m", b"1")],
        [SetValue(AT, b"1"), InsertEntry("e1", "u0", "m", b"1")],
        [InsertEntry("e1", "e2", "m", b"1"), InsertEntry("e2", None, "m", b"1")],
        [SetValue(AT, b"1\n2")],
        [AppendElement(AT, b"1\n2")],
        [SetValue(Address("op.meta", "o"), b'{"lane":"a"}')],
        [SetValue(AT, b"1"), ("not", "a write")],
        [SetValue(AT, b"1"), SetValue(Address("app.test", "\ud800"), b"1")],
        [SetValue(AT, b"1"), InsertEntry("\ud800", None, "m", b"1")],
        [SetValue(AT, b"1"), InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(), note="\ud800"))],
        [SetValue(AT, b"1"), InsertUsage(UsageRow(id="u9", kind="refund", usage=Usage()))],  # type: ignore[arg-type]
        [SetValue(AT, b"1"), InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(input_tokens=2**63)))],
        [
            SetValue(AT, b"1"),
            InsertUsage(UsageRow(id="u9", kind="attempt", usage=Usage(input_tokens="7"))),  # type: ignore[arg-type]
        ],
    ]

    for writes in bad:
        with pytest.raises(InvalidWrite):
            storage.submit(writes)

    assert await storage.value(AT) == b"0"
    assert await storage.elements(AT) == []
    assert storage.submit(commit(1)).result().first_seq == 4


async def test_a_publication_that_raises_faults_the_session() -> None:
    store = make_store()
    await store.create("s")
    storage = await store.open("s")
    told: list[BaseException] = []
    storage.on_fault = told.append
    error = ValueError("a bug")

    def publish(commit: Commit) -> None:
        raise error

    pending = storage.submit(commit(0), publish=publish)

    with pytest.raises(SessionFaulted) as failed:
        pending.result()
    assert failed.value.__cause__ is error
    assert told == [error]
    assert await storage.value(AT) == b"0"
    with pytest.raises(SessionFaulted):
        storage.submit(commit(1))


def test_a_session_is_used_on_its_own_loop_alone_and_taken_over_once_that_is_closed() -> None:
    store = make_store()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(store.create("s"))
    old = loop.run_until_complete(store.open("s"))

    async def elsewhere() -> None:
        with pytest.raises(WrongLoop):
            old.submit(commit(0))
        for act in (old.scan, old.close):
            with pytest.raises(WrongLoop):
                await act()
        for owned in (store.open, store.delete):
            with pytest.raises(SessionOwned):
                await owned("s")

    asyncio.run(elsewhere())
    loop.close()

    async def later() -> None:
        new = await store.open("s")
        new.submit(commit(0))
        with pytest.raises(SessionClosed):
            old.submit(commit(1))
        await old.close()
        with pytest.raises(SessionOwned):
            await store.open("s")

    asyncio.run(later())
    asyncio.run(store.delete("s"))


async def test_a_forgotten_session_is_kept_by_the_store_alone() -> None:
    store = make_store()
    await store.create("s")
    storage = await store.open("s")
    await storage.close()
    reference = weakref.ref(storage)
    del storage
    gc.collect()

    assert reference() is None


async def test_a_closed_store_refuses() -> None:
    store = make_store()
    await store.create("s")
    storage = await store.open("s")
    await store.close()

    with pytest.raises(SessionClosed):
        storage.stats()
    for act in (store.list, store.create, store.open_operations, lambda: store.open("s"), lambda: store.delete("s")):
        with pytest.raises(SessionClosed):
            await act()
