"""Checks of sessions in a store and of who may write them: create, open, delete, epochs, close, kill (S19-S23)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec

from agentlane.data.writes import Address, DeleteValue, SetValue, Write
from agentlane.errors import InvalidWrite, ReadOnlySession, SessionClosed, SessionOwned, StoreOwned, UnknownSession
from agentlane.storage.contract import OpenOperation, SessionInfo, SessionStorage
from agentlane.testing.conformance.bench import (
    Bench,
    append,
    at,
    check,
    commit,
    equal,
    put,
    raises,
    refused,
    same_as,
    true,
)
from agentlane.testing.conformance.model import ReferenceSession

OWNED = (SessionOwned, StoreOwned)


@check("S19")
async def s19_sessions_are_created_once(bench: Bench) -> None:
    """Given and fresh ids, metadata, order of the list, an id that exists; and all of it after reopening the store."""
    equal(list(await bench.store.list()), [], "S19", "sessions of a new store")
    metadata = {"title": "ünïcode \u2028 | %", "n": [1, 2.5, None, True], "deep": {"a": {"b": {}}}}
    made = [await bench.store.create("given.id-1", metadata=metadata)]
    made += [await bench.store.create() for _ in range(3)]
    made += [await bench.store.create("0-sorts-first")]
    equal(made[0].id, "given.id-1", "S19", "id of a session with a given id")
    equal(made[0].metadata, metadata, "S19", "metadata as returned")
    equal(made[1].metadata, {}, "S19", "metadata of a session that was given none")
    equal(len({each.id for each in made}), 5, "S19", "different ids")
    for _ in range(2):
        for each in made:
            with raises(InvalidWrite, "S19", f"creating {each.id} again"):
                await bench.store.create(each.id, metadata={"other": True})
        listed = list(await bench.store.list())
        equal(listed, sorted(made, key=_age), "S19", "the list of sessions, oldest first, then by id")
        storage = await bench.store.open("given.id-1")
        equal(storage.info, made[0], "S19", "info of the open session")
        equal(
            (await storage.scan(), await storage.usage(), storage.stats().entries), ([], [], 0), "S19", "a new session"
        )
        with raises(InvalidWrite, "S19", "creating a session that is open"):
            await bench.store.create("given.id-1")
        await storage.close()
        await bench.renew_store()


@check("S19")
async def s19_open_never_creates(bench: Bench) -> None:
    made = await bench.store.create()
    for read_only in (False, True):
        with raises(UnknownSession, "S19", f"open of an unknown session, {read_only=}"):
            await bench.store.open("nobody", read_only=read_only)
    with raises(UnknownSession, "S19", "delete of an unknown session"):
        await bench.store.delete("nobody")
    equal(list(await bench.store.list()), [made], "S19", "sessions after opening one that is not there")
    await bench.renew_store()
    equal(list(await bench.store.list()), [made], "S19", "sessions after opening one that is not there, and reopening")
    info = await bench.store.create("nobody")
    equal((await bench.store.open("nobody")).info, info, "S19", "info of a session created after an open in vain")


@check("S19")
async def s19_sessions_do_not_mix(bench: Bench) -> None:
    """Two sessions with commits by turns; the same ids and addresses may be in both."""
    one, two = await bench.session("one"), await bench.session("two")
    models = {"one": ReferenceSession(), "two": ReferenceSession()}
    shared, row = bench.entry(), bench.usage()
    await commit(one, models["one"], shared, row, put("a", b"1"), append("l", b"1"))
    await commit(two, models["two"], put("a", b"2"))
    for number in range(5):
        await commit(two, models["two"], bench.entry(), append("l", b"2"), bench.usage(number))
    await commit(two, models["two"], shared, row)
    await commit(one, models["one"], put("b", b"1"), bench.entry(shared))
    await commit(two, models["two"], put("b", b"2"), put("c", b"2"))
    await commit(one, models["one"], put("c", b"1"), DeleteValue(at("b")))
    for storage in (one, two):
        await same_as(storage, models[storage.info.id], "S19", f"session {storage.info.id}")
        await storage.close()
    await bench.renew_store()
    for name, model in models.items():
        await same_as(await bench.store.open(name), model, "S19", f"session {name} after reopening")


@check("S19", "S22", needs=["content"])
async def s19_opening_writes_nothing(bench: Bench) -> None:
    """Opened, read and closed, for writing and read-only: not a byte is different."""
    assert bench.harness.content is not None
    storage, model = await bench.session(), ReferenceSession()
    for number in range(3):
        await commit(storage, model, bench.entry(), bench.usage(), put("a", b"%d" % number))
    await storage.close()
    await bench.renew_store()  # whatever a store does when it closes is done
    await bench.store.close()
    before = bench.harness.content()
    for read_only in (False, True, False):
        bench.store = bench.another_store()
        storage = await bench.store.open(storage.info.id, read_only=read_only)
        await same_as(storage, model, "S19", f"opened with {read_only=}")
        await storage.close()
        await bench.store.open_operations()
        await bench.store.list()
        await bench.store.close()
        equal(bench.harness.content(), before, "S19", f"bytes after opening with {read_only=} and closing")


@check("S19", "S21", "S3", "S20")
async def s21_delete_removes_what_nobody_has_open(bench: Bench) -> None:
    storage, model = await bench.session("doomed"), ReferenceSession()
    kept = await bench.session("kept")
    entry = bench.entry()
    await commit(storage, model, entry, bench.usage(), put("a"), append("l"), _meta("op", "main", 1))
    await kept.submit([bench.entry()])
    with raises(OWNED, "S21", "delete of a session that is open"):
        await bench.store.delete("doomed")
    await same_as(storage, model, "S21", "after a delete that was refused")
    await commit(storage, model, bench.entry(entry))
    await storage.close()
    await bench.store.delete("doomed")
    for _ in range(2):
        equal([each.id for each in await bench.store.list()], ["kept"], "S19", "sessions after delete")
        equal(list(await bench.store.open_operations()), [], "S20", "open operations after delete")
        with raises(UnknownSession, "S19", "open of a deleted session"):
            await bench.store.open("doomed")
        with raises(UnknownSession, "S19", "delete of a deleted session"):
            await bench.store.delete("doomed")
        await kept.close()
        await bench.renew_store()
    again = await bench.session("doomed")
    await same_as(again, ReferenceSession(), "S19", "a session with the id of a deleted one")
    done = await again.submit([entry])
    equal(done.first_seq, 1, "S3", "first_seq of a session with the id of a deleted one")


@check("S20")
async def s20_open_operations_of_all_sessions(bench: Bench) -> None:
    """Oldest first over all sessions, open and closed ones; changed, ended and started ones; opening nothing."""

    async def listed(want: list[OpenOperation], when: str) -> None:
        equal(list(await bench.store.open_operations()), want, "S20", f"open operations {when}")

    await listed([], "of a new store")
    one, two = await bench.session("one"), await bench.session("two")
    await bench.store.create("three")
    await two.submit([_meta("op-b", "main", 20), SetValue(Address("op.state", "op-b"), b"{}")])
    await one.submit([_meta("op-d", "side/lane", 40), _meta("op-a", "main", 10), bench.entry()])
    await two.submit(
        [_meta("op-c", "ünïcode", 30), SetValue(Address("op.metadata", "no"), b'{"lane":"x","started_at":1}')]
    )
    a, d = OpenOperation("one", "op-a", "main", 10), OpenOperation("one", "op-d", "side/lane", 40)
    b, c = OpenOperation("two", "op-b", "main", 20), OpenOperation("two", "op-c", "ünïcode", 30)
    await listed([a, b, c, d], "of two open sessions")
    await one.submit([_meta("op-a", "main", 10, more="x" * 5_000)])
    for number in range(50):
        await one.submit([put("a", b"%d" % number), bench.entry()])  # far behind the line that said what is open
    await listed([a, b, c, d], "after one was set again")
    for storage in (one, two):
        await storage.close()
    await bench.renew_store()
    await listed([a, b, c, d], "of closed sessions")
    one = await bench.store.open("one")
    await one.submit([DeleteValue(Address("op.meta", "op-a")), put("a")])
    await listed([b, c, d], "after one ended")
    await one.submit([_meta("op-e", "main", 5), DeleteValue(Address("op.meta", "op-e"))])
    await one.submit([DeleteValue(Address("op.meta", "op-d")), _meta("op-d", "main", 15)])
    d = OpenOperation("one", "op-d", "main", 15)
    await listed([d, b, c], "after one was replaced")
    one.kill()
    await bench.renew_store()
    await listed([d, b, c], "after a kill")
    two = await bench.store.open("two")
    await two.submit([DeleteValue(Address("op.meta", "op-b")), DeleteValue(Address("op.meta", "op-c"))])
    await two.close()
    await listed([d], "after all of a session ended")


@check("S20", "S2")
async def s20_metas_that_cannot_be_listed_are_refused(bench: Bench) -> None:
    """One of them would hide the open operations of every other session."""
    one, two = await bench.session("one"), await bench.session("two")
    await two.submit([_meta("op-b", "main", 20)])
    for payload in (
        *(b"1", b"null", b"[]", b"{}", b'{"lane":"main"}', b'{"started_at":1}', b'{"lane":1,"started_at":1}'),
        *(b'{"lane":"main","started_at":"1"}', b'{"lane":"main","started_at":1.5}', b'{"lane":"main"', b""),
    ):
        meta = SetValue(Address("op.meta", "op-a"), payload)
        await refused(one, [put("a"), meta], f"op.meta {payload!r}")
        await refused(one, [meta, DeleteValue(meta.address)], f"op.meta {payload!r}, deleted by the same commit")
    want = [OpenOperation("two", "op-b", "main", 20)]
    equal(list(await bench.store.open_operations()), want, "S20", "open operations after bad ones were refused")
    equal(await one.value(at("a")), None, "S2", "a value that was set along with a refused op.meta")


@check("S21")
async def s21_one_owner_writes(bench: Bench) -> None:
    """A second opener is refused at once, by the same store object and by another; the first is not disturbed."""
    storage, model = await bench.session("owned"), ReferenceSession()
    root = bench.entry()
    await commit(storage, model, root)
    stores = [bench.store, *([bench.another_store()] if bench.store.capabilities.persistent else [])]
    for _ in range(2):
        for store in stores:
            with raises(OWNED, "S21", "a second open for writing"):
                await store.open("owned")
            reader = await store.open("owned", read_only=True)
            await reader.close()
        if bench.harness.open_elsewhere is not None:
            code = await bench.harness.open_elsewhere("owned")
            true(
                code in ("session_owned", "store_owned"),
                "S21",
                f"opening in another process while it is open gave {code}",
            )
        await commit(storage, model, bench.entry(root), put("a"))
        await same_as(storage, model, "S21", "after others tried to open it")
    for store in stores[1:]:
        await store.close()
    with raises(OWNED, "S21", "a second open for writing, after another store object was closed"):
        await bench.store.open("owned")
    await commit(storage, model, bench.entry(root))
    storage = await bench.reopen(storage)
    await same_as(storage, model, "S21", "opened again after close")
    storage.kill()
    storage = await bench.open_again("owned")
    await commit(storage, model, bench.entry(root))
    await same_as(storage, model, "S21", "opened again after a kill")


@check("S21", needs=["cross_process", "open_elsewhere"])
async def s21_ownership_ends_with_close_and_with_death(bench: Bench) -> None:
    """Between processes: free again after close, and after a kill; what the other did is there."""
    assert bench.harness.open_elsewhere is not None
    storage = await bench.session("owned")
    await storage.submit([bench.entry()])
    await storage.close()
    await bench.store.close()
    equal(await bench.harness.open_elsewhere("owned"), None, "S21", "opening in another process after close")
    bench.store = bench.another_store()
    storage = await bench.store.open("owned")
    await storage.submit([bench.entry()])
    storage.kill()
    await bench.store.close()
    equal(await bench.harness.open_elsewhere("owned"), None, "S21", "opening in another process after a kill")
    bench.store = bench.another_store()
    equal(len(await (await bench.store.open("owned")).scan()), 2, "S21", "entries after all of this")


@check("S21")
async def s21_read_only_sessions_refuse_to_write(bench: Bench) -> None:
    storage, model = await bench.session("read"), ReferenceSession()
    await commit(storage, model, bench.entry(), bench.usage(), put("a"), append("l"))
    true(not storage.read_only, "S21", "a session opened for writing calls itself read-only")
    beside = await bench.store.open("read", read_only=True)
    for when in ("beside the owner", "alone"):
        true(beside.read_only, "S21", f"a session opened read-only {when} does not say so")
        await same_as(beside, model, "S21", f"read-only, {when}")
        for writes in ([put("a", b"1")], [bench.entry()], []):
            with raises((ReadOnlySession, InvalidWrite) if not writes else ReadOnlySession, "S21", f"submit, {when}"):
                beside.submit(writes)
        await same_as(beside, model, "S21", f"read-only, {when}, after refusing to write")
        await beside.close()
        await storage.close()
        await bench.renew_store()
        beside = await bench.store.open("read", read_only=True)
    storage = await bench.store.open("read")  # a reader is no owner
    await commit(storage, model, bench.entry())
    await same_as(storage, model, "S21", "opened for writing beside a reader")
    await beside.close()


@check("S22", "S19", "S2")
async def s22_epochs_count_owners_that_wrote(bench: Bench) -> None:
    """One more for each owner that committed; none for those that only looked, or whose commits were refused."""
    storage = await bench.session("epochs")
    epoch = storage.epoch
    for _ in range(2):  # opened and closed without a commit
        storage = await bench.reopen(storage)
        equal(storage.epoch, epoch, "S22", "epoch after an owner that wrote nothing")
    for owner in range(3):
        await storage.submit([bench.entry()])
        await storage.submit([put("a")])
        equal(storage.epoch, epoch, "S22", f"epoch of owner {owner} after its commits")
        if owner == 1:
            storage.kill()
            storage = await bench.open_again("epochs")
        else:
            storage = await bench.reopen(storage)
        epoch += 1
        equal(storage.epoch, epoch, "S22", f"epoch after owner {owner} had written")
    with raises(InvalidWrite, "S2", "a commit without writes"):
        storage.submit([])
    storage = await bench.reopen(storage)
    equal(storage.epoch, epoch, "S22", "epoch after an owner whose only commit was refused")


@check("S23")
async def s23_close_waits_for_commits(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    writes: list[list[Write]] = [[bench.entry(), append("l", b"%d" % number)] for number in range(50)]
    published: list[int] = []
    pending = [storage.submit(each, publish=lambda done: published.append(done.first_seq)) for each in writes]
    await storage.close()
    true(all(each.done() for each in pending), "S23", "close returned with commits that are not done")
    equal(len(published), 50, "S23", "publications when close returns")
    for each, done in zip(writes, pending, strict=True):
        model.commit(each, done.result())
    await same_as(await bench.open_again(storage.info.id), model, "S23", "after close with 50 commits in flight")


@check("S23", "S21")
async def s23_a_closed_session_says_so(bench: Bench) -> None:
    """Closing again does nothing, from many tasks too; everything else raises SessionClosed."""
    storage, model = await bench.session("closed"), ReferenceSession()
    entry = bench.entry()
    await commit(storage, model, entry, put("a"))
    await asyncio.gather(*(storage.close() for _ in range(5)))
    await storage.close()
    await _all_closed(storage, entry.id)
    again = await bench.store.open("closed")
    await storage.close()  # must not take the new owner's place away
    await commit(again, model, bench.entry(entry))
    with raises(OWNED, "S21", "a second open, after the former owner closed once more"):
        await bench.store.open("closed")
    await same_as(again, model, "S23", "opened again")
    await bench.store.close()
    await bench.store.close()
    await _all_closed(again, entry.id)
    if bench.store.capabilities.persistent:
        bench.store = bench.another_store()
        await same_as(
            await bench.store.open("closed"), model, "S23", "after the store was closed with the session open"
        )


@check("S23", "S8")
async def s23_a_cancelled_close_cleans_up(bench: Bench) -> None:
    """Natively and by anyio, with commits in flight; the session can be opened again at once and has them all."""
    storage, model = await bench.session("cancelled"), ReferenceSession()

    async def natively(storage: SessionStorage) -> None:
        task = asyncio.ensure_future(storage.close())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    async def by_anyio(storage: SessionStorage) -> None:
        with anyio.move_on_after(0):
            await storage.close()

    async def twice(storage: SessionStorage) -> None:
        task = asyncio.ensure_future(storage.close())
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])

    ways: tuple[Callable[[SessionStorage], Awaitable[None]], ...] = (natively, by_anyio, twice)
    for way in ways:
        writes: list[list[Write]] = [[bench.entry(), append("l")] for _ in range(10)]
        pending = [storage.submit(each) for each in writes]
        await way(storage)
        with raises(SessionClosed, "S23", f"submit after a close that was cancelled {way.__name__}"):
            storage.submit([put("a")])
        storage = await bench.store.open("cancelled")
        for each, done in zip(writes, pending, strict=True):
            model.commit(each, await done)
        await same_as(storage, model, "S23", f"after a close that was cancelled {way.__name__}")
    await same_as(await bench.reopen(storage), model, "S23", "after cancelled closes and reopening")


@check("S23", "S7")
async def s23_a_killed_session_can_be_opened_again(bench: Bench) -> None:
    """In the same process and by the same store object: no lock, thread or file of the dead owner is in the way."""
    storage, model = await bench.session("killed"), ReferenceSession()
    other, other_model = await bench.session("other"), ReferenceSession()
    for _ in range(3):
        await commit(storage, model, bench.entry(), put("a"))
        await commit(other, other_model, bench.entry())
        storage.kill()
        storage.kill()
        await storage.close()
        await _all_closed(storage, next(iter(model.rows)))
        storage = await bench.store.open("killed")
        await same_as(storage, model, "S7", "opened again after a kill")
        await other.close()  # whose owner may have died with the other: it was one process
        other = await bench.store.open("other")
        await same_as(other, other_model, "S7", "another session of the store, opened again after a kill")


def _age(info: SessionInfo) -> tuple[int, str]:
    return info.created_at, info.id


async def _all_closed(storage: SessionStorage, entry_id: str) -> None:
    reads: dict[str, Callable[[], Awaitable[Any]]] = {
        "entries": lambda: storage.entries([entry_id]),
        "path": lambda: storage.path(entry_id),
        "scan": storage.scan,
        "usage": storage.usage,
        "value": lambda: storage.value(at("a")),
        "values": lambda: storage.values("app.check"),
        "elements": lambda: storage.elements(at("a")),
        "lists": lambda: storage.lists("app.check"),
    }
    for name, read in reads.items():
        with raises(SessionClosed, "S23", f"{name} of a closed session"):
            await read()
    with raises(SessionClosed, "S23", "stats of a closed session"):
        storage.stats()
    with raises(SessionClosed, "S23", "submit to a closed session"):
        storage.submit([put("a")])


def _meta(operation_id: str, lane: str, started_at: int, **more: str) -> SetValue:
    payload = msgspec.json.encode({"request": {"nested": [1]}, **more, "lane": lane, "started_at": started_at})
    return SetValue(Address("op.meta", operation_id), payload)
