"""Claim: a session that is opened read-only is seen as it was at the open, whatever its owner writes beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from agentlane.data import addresses
from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.errors import UnknownEntry
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore
from agentlane.storage.contract import SessionStorage, Store
from agentlane.testing.conformance import Harness, dump

HarnessMaker = Callable[[], AbstractAsyncContextManager[Harness]]

KEPT = [*addresses.CURRENT, addresses.RESULT]
MINE, FRAMES = Address("app.mine", "k"), Address(addresses.PENDING_FRAMES, "op|r")
LABEL = addresses.label("e1")


def payload(text: str) -> bytes:
    """A payload that is also one for ``op.meta``."""
    return b'{"lane":"%s","started_at":1}' % text.encode()


def entry(number: int, parent: int | None = None) -> InsertEntry:
    return InsertEntry(f"e{number}", None if parent is None else f"e{parent}", "user", b"%d" % number)


def usage(number: int) -> InsertUsage:
    return InsertUsage(UsageRow(id=f"u{number}", kind="attempt", usage=Usage(input_tokens=number, output_tokens=1)))


def every(key: str, text: str) -> list[Write]:
    """One value at each of the library's namespaces that say how things stand, and a result."""
    return [SetValue(Address(namespace, key), payload(text)) for namespace in KEPT]


BEFORE: Sequence[Sequence[Write]] = [
    [entry(1), entry(2, 1), usage(1), *every("a", "old"), *every("b", "old")],
    [
        entry(3, 1),
        AppendElement(FRAMES, b"1"),
        AppendElement(FRAMES, b"2"),
        SetValue(MINE, b"1"),
        SetValue(LABEL, b"1"),
    ],
]
BESIDE: Sequence[Sequence[Write]] = [
    [entry(4, 3), entry(5, 2)],
    [entry(6, 1), entry(7)],
    [usage(2)],
    [SetValue(Address(namespace, "a"), payload("new")) for namespace in addresses.CURRENT],
    [DeleteValue(Address(namespace, "b")) for namespace in addresses.CURRENT],
    every("c", "new"),
    [AppendElement(FRAMES, b"3"), AppendElement(Address(addresses.PENDING_FRAMES, "other"), b"1")],
]


async def beside(store: Store) -> tuple[SessionStorage, SessionStorage]:
    """A session's owner, and a reader that was opened after ``BEFORE``."""
    await store.create("s")
    owner = await store.open("s")
    for writes in BEFORE:
        await owner.submit(writes)
    return owner, await store.open("s", read_only=True)


async def everything(storage: SessionStorage) -> dict[str, Any]:
    return {
        **await dump(storage, [*KEPT, addresses.PENDING_FRAMES]),
        "one by one": [await storage.value(Address(each, key)) for each in KEPT for key in "abc"],
        "beginning": [await storage.values(each, "b") for each in KEPT],
        "reversed": [
            await storage.elements(FRAMES, reverse=True, limit=limit, after=after)
            for limit in (None, 0, 1)
            for after in (None, 3, 10**6)
        ],
    }


async def test_what_the_owner_writes_beside_it_a_reader_does_not_see(make_harness: HarnessMaker) -> None:
    async with make_harness() as harness:
        store = harness.store()
        owner, reader = await beside(store)
        seen = await everything(reader)
        assert seen == await everything(owner)
        assert reader.stats().entries == 3 and reader.stats().usage.input_tokens == 1

        for number, writes in enumerate(BESIDE):
            await owner.submit(writes)
            assert await everything(reader) == seen, f"after commit {number}: {writes}"

        new = [f"e{number}" for number in range(4, 8)]
        assert await reader.entries(["e3", *new]) == [*await owner.entries(["e3"]), None, None, None, None]
        for id in new:
            with pytest.raises(UnknownEntry):
                await reader.path(id)
            with pytest.raises(UnknownEntry):
                await reader.path("e3", after=id)
            assert [row.id for row in await reader.path("e3", stop_at=id)] == ["e3", "e1"]
        again = await store.open("s", read_only=True)
        assert await everything(again) == await everything(owner) != seen
        await store.close()


async def test_what_is_not_kept_for_a_reader_is_as_it_is_now(make_harness: HarnessMaker) -> None:
    """Labels, the application's values and deleted lists: SQLite keeps no copy of them, the others do."""
    async with make_harness() as harness:
        store = harness.store()
        owner, reader = await beside(store)
        await owner.submit([SetValue(MINE, b"2"), DeleteValue(LABEL), DeleteList(FRAMES)])

        now = await reader.value(MINE), await reader.value(LABEL), len(await reader.elements(FRAMES))

        match store:
            case SqliteStore():
                assert now == (b"2", None, 0)
            case MemoryStore() | JsonlStore():
                assert now == (b"1", b"1", 2)
            case _:
                raise AssertionError(f"{store} is not known here")
        await store.close()


def test_every_namespace_of_the_library_is_kept_or_known_to_be_written_once_or_named_by_people() -> None:
    named = {value for name, value in vars(addresses).items() if name.isupper() and isinstance(value, str)}

    assert named - set(addresses.CURRENT) == {addresses.RESULT, addresses.LABEL, addresses.PENDING_FRAMES}
