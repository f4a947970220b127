"""Checks of whole sessions: snapshots beside a writer, sessions loaded of rows, and cleanup (S25, S27, S28)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from agentlane.data.usage import Stats
from agentlane.data.writes import Address, DeleteList, DeleteValue, InsertEntry, SetValue
from agentlane.errors import (
    AgentLaneError,
    InvalidWrite,
    ReadOnlySession,
    SessionClosed,
    SessionOwned,
    UnknownEntry,
    UnknownSession,
)
from agentlane.storage.contract import (
    Compacted,
    ElementRow,
    EntryRow,
    LedgerRow,
    Row,
    SessionInfo,
    SessionStorage,
    Snapshot,
    ValueRow,
)
from agentlane.testing.conformance.bench import (
    NAMESPACE,
    Bench,
    Broken,
    append,
    at,
    check,
    commit,
    equal,
    put,
    raises,
    same_as,
    true,
)
from agentlane.testing.conformance.model import ReferenceSession

LARGE_BYTES = 400_000
PAGE_BYTES_MAX = 4 << 20
"""No page of rows that are small by themselves is larger than this."""


async def _fill(bench: Bench, storage: SessionStorage, model: ReferenceSession, rounds: int = 12) -> InsertEntry:
    """A tree with a branch in each third round, a ledger, values and lists that come, change and go; the newest tip."""
    tip = fork = bench.entry(kind="user")
    await commit(storage, model, tip)
    for number in range(rounds):
        parent = fork if number % 3 == 2 else tip
        first = bench.entry(parent, "assistant" if number % 2 else "user", b'"%d"' % number)
        second = bench.entry(first, "custom", '"é\\u2028 \u2028 %d"'.encode() % number)
        await commit(
            storage,
            model,
            put(f"v{number % 4}", b'"%d"' % number),
            first,
            bench.usage(entry_id=first.id, cost_nanos=number),
            second,
            *(append(f"l{number % 3}", b'"%d.%d"' % (number, each)) for each in range(number % 4)),
        )
        if number % 5 == 4:
            await commit(storage, model, DeleteList(at("l1")), DeleteValue(at("v2")), append("l1", b'"again"'))
        fork, tip = (tip, second) if number % 3 else (fork, second)
    return tip


def _rows(model: ReferenceSession) -> list[Row]:
    """What a snapshot of a session with the model's history gives."""
    return [
        *model.scan(),
        *model.usage(),
        *(
            ElementRow(address, each.seq, each.payload)
            for address in sorted(model.lists_at)
            for each in model.lists_at[address]
        ),
        *(ValueRow(address, model.values_at[address]) for address in sorted(model.values_at)),
    ]


async def _read(snapshot: Snapshot) -> list[Row]:
    return await _all(snapshot.pages())


async def _all(pages: AsyncIterator[Sequence[Row]]) -> list[Row]:
    found: list[Row] = []
    async for page in pages:
        true(len(page) > 0, "S25", "a page without rows")
        found += page
    return found


async def _paged(*pages: Sequence[Row]) -> AsyncIterator[Sequence[Row]]:
    for page in pages:
        yield page


@check("S25")
async def s25_a_snapshot_has_everything(bench: Bench) -> None:
    """Of an empty session, and of one of which much was deleted or replaced; twice from one snapshot."""
    storage, model = await bench.session(), ReferenceSession()
    snapshot = await storage.snapshot()
    equal(await _read(snapshot), [], "S25", "the snapshot of an empty session")
    equal((snapshot.last_seq, snapshot.stats), (0, Stats()), "S25", "last_seq and stats of an empty session")
    await snapshot.close()
    await _fill(bench, storage, model)
    for _ in range(2):
        snapshot = await storage.snapshot()
        equal(snapshot.info, storage.info, "S25", "the snapshot's info")
        equal(snapshot.last_seq, model.next_seq - 1, "S25", "the snapshot's last_seq")
        equal(snapshot.stats, model.stats(), "S25", "the snapshot's stats")
        for time in ("first", "second"):
            equal(await _read(snapshot), _rows(model), "S25", f"the rows of a snapshot, read for the {time} time")
        await snapshot.close()
        await snapshot.close()
        storage = await bench.reopen(storage)


@check("S25")
async def s25_a_snapshot_stays_as_it_was(bench: Bench) -> None:
    """Whatever is written before, between and behind its pages."""
    storage, model = await bench.session(), ReferenceSession()
    tip = await _fill(bench, storage, model, rounds=150)  # more entries than a page has rows
    want = _rows(model)
    snapshot = await storage.snapshot()
    found: list[Row] = []

    async def change(number: int) -> None:
        child = bench.entry(tip)
        await commit(storage, model, child, bench.usage(), put("v0", b'"new %d"' % number), append("l0"))
        await commit(storage, model, DeleteValue(at(f"v{number % 4}")), DeleteList(at(f"l{number % 3}")))

    await change(0)
    number = 1
    async for page in snapshot.pages():
        await change(number)
        found += page
        number += 1
    equal(found, want, "S25", "the rows of a snapshot that was read between commits")
    equal(await _read(snapshot), want, "S25", "its rows once more")
    await same_as(storage, model, "S25", "the session after commits beside a snapshot")
    later = await storage.snapshot()
    equal(await _read(later), _rows(model), "S25", "a snapshot taken later")
    await snapshot.close()
    equal(await _read(later), _rows(model), "S25", "a snapshot when an earlier one is closed")
    await later.close()
    with raises(SessionClosed, "S25", "reading a closed snapshot"):
        await _read(later)


@check("S25")
async def s25_a_path_is_read_by_itself(bench: Bench) -> None:
    """Without what lies beside it, and as it was, whatever is written since."""
    storage, model = await bench.session(), ReferenceSession()
    snapshot = await storage.snapshot()
    equal(await _all(snapshot.branch_pages(None)), [], "S25", "no path of an empty session")
    await snapshot.close()
    first = await _fill(bench, storage, model, rounds=150)
    tips = [first.id, model.scan()[100].id, model.scan()[0].id, None]
    rest = [row for row in _rows(model) if not isinstance(row, EntryRow | LedgerRow)]
    snapshot = await storage.snapshot()
    child = bench.entry(first)
    await commit(storage, model, child, put("v0", b'"later"'), DeleteList(at("l0")))
    for tip in tips:
        path = [] if tip is None else model.path(tip, newest_first=False)
        equal(await _all(snapshot.branch_pages(tip)), [*path, *rest], "S25", "the rows of one path")
    for unknown in (child.id, "nobody"):
        with raises(UnknownEntry, "S25", "the path of an entry that the snapshot has not"):
            await _all(snapshot.branch_pages(unknown))
    await snapshot.close()
    with raises(SessionClosed, "S25", "reading a path of a closed snapshot"):
        await _all(snapshot.branch_pages(first.id))


@check("S25")
async def s25_pages_are_bounded_by_bytes(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    payload = b'"%s"' % (b"x" * LARGE_BYTES)
    count = 2 * PAGE_BYTES_MAX // LARGE_BYTES
    tip = None
    for number in range(count):
        tip = bench.entry(tip, payload=payload)
        await commit(storage, model, tip, put(f"v{number}", payload), append("l", payload))
    snapshot = await storage.snapshot()
    for pages in (snapshot.pages(), snapshot.branch_pages(tip.id if tip else None)):
        found: list[Row] = []
        async for page in pages:
            size = sum(len(row[-1]) for row in page if isinstance(row[-1], bytes))
            true(size <= PAGE_BYTES_MAX, "S25", f"a page of {size} bytes")
            found += page
        equal(found, _rows(model), "S25", "the rows of a snapshot of large payloads")
    await snapshot.close()


@check("S27", "S25")
async def s27_a_loaded_session_is_the_same(bench: Bench) -> None:
    """To every reader, also after a reopen; and work goes on behind its last number."""
    storage, model = await bench.session(), ReferenceSession()
    tip = await _fill(bench, storage, model, rounds=150)
    operation = SetValue(Address("op.meta", "op-1"), b'{"lane":"main","started_at":5}')
    await commit(storage, model, operation, bench.entry(tip), bench.entry(tip))
    snapshot = await storage.snapshot()
    info = await bench.store.load(
        snapshot.pages(), last_seq=snapshot.last_seq, metadata={"of": storage.info.id}, created_at=77
    )
    await snapshot.close()
    equal((info.created_at, info.metadata), (77, {"of": storage.info.id}), "S27", "what is known of a loaded session")
    true(info in await bench.store.list(), "S27", "a loaded session is not listed")
    listed = sorted((each.session_id, each.operation_id) for each in await bench.store.open_operations())
    equal(listed, sorted([(storage.info.id, "op-1"), (info.id, "op-1")]), "S27", "open operations after a load")
    copy = await bench.store.open(info.id)
    await same_as(copy, model, "S27", "a loaded session")
    equal(copy.epoch, 1, "S27", "the epoch of a loaded session's first owner")
    child = bench.entry(tip)
    done = await commit(copy, model, child, bench.entry(child), put("v0", b'"of the copy"'), DeleteList(at("l0")))
    true(done.first_seq > snapshot.last_seq, "S27", f"first_seq {done.first_seq} in a session loaded up to there")
    await commit(copy, model, DeleteValue(operation.address), append("l0"))
    await same_as(copy, model, "S27", "a loaded session after commits")
    copy = await bench.reopen(copy)
    await same_as(copy, model, "S27", "a loaded session after a reopen")
    equal(copy.info, info, "S27", "what is known of it after a reopen")
    again = await copy.snapshot()
    equal(await _read(again), _rows(model), "S25", "the snapshot of a loaded session")
    await again.close()


@check("S27")
async def s27_a_load_of_nothing_keeps_the_number(bench: Bench) -> None:
    info = await bench.store.load(_paged(), last_seq=41, session_id="empty")
    equal(info, SessionInfo(id="empty", created_at=info.created_at), "S27", "what is known of an empty load")
    storage, model = await bench.store.open("empty"), ReferenceSession()
    model.next_seq = 42
    await same_as(storage, model, "S27", "a session loaded of nothing")
    done = await commit(storage, model, bench.entry(), append("l"))
    equal(done.first_seq, 42, "S27", "the first seq behind last_seq=41")
    await same_as(await bench.reopen(storage), model, "S27", "it after a commit and a reopen")


@check("S27")
async def s27_a_refused_load_leaves_nothing(bench: Bench) -> None:
    entry = EntryRow("e1", None, 1, 10, "user", b'"1"')
    child = EntryRow("e2", "e1", 4, 11, "user", b'"2"')
    usage = LedgerRow(2, 10, bench.usage().row)
    element = ElementRow(at("l"), 3, b'"x"')
    value = ValueRow(at("v"), b'"v"')
    wrong: dict[str, Sequence[Sequence[Row]]] = {
        "an id twice": [[entry], [entry._replace(seq=2)]],
        "an entry's id for a usage row": [[entry], [usage, LedgerRow(3, 10, bench.usage(entry_id=None).row)], [entry]],
        "a parent that is not there": [[child]],
        "a parent that comes later": [[child._replace(seq=1), entry._replace(seq=4)]],
        "a seq that does not rise": [[entry, child._replace(seq=1)]],
        "a seq beyond last_seq": [[entry, child._replace(seq=9)]],
        "a seq of zero": [[entry._replace(seq=0)]],
        "a value before an entry": [[value], [entry]],
        "a value twice": [[value, value]],
        "a list in two parts": [[element, element._replace(address=at("m")), element._replace(seq=4)]],
        "an element twice": [[element, element]],
        "a newline in a payload": [[entry._replace(payload=b'"a\nb"')]],
        "a payload that is no UTF-8": [[entry, child._replace(payload=b'"\xff"')]],
        "a half character in an id": [[entry._replace(id="\ud800")]],
        "an operation that cannot be listed": [[ValueRow(Address("op.meta", "op"), b"{}")]],
        "what is no row": [[entry, (1, 2)]],  # type: ignore[list-item]
    }
    for what, pages in wrong.items():
        with raises(InvalidWrite, "S27", f"a load with {what}"):
            await bench.store.load(_paged(*pages), last_seq=8, session_id="new")
        equal(list(await bench.store.list()), [], "S27", f"sessions after a refused load with {what}")
        with raises(UnknownSession, "S27", f"opening what a load with {what} was to make"):
            await bench.store.open("new")
    await bench.store.load(_paged([entry, child], [usage, element, value]), last_seq=8, session_id="new")
    for _ in range(2):
        with raises(InvalidWrite, "S27", "a load with the id of a session that is there"):
            await bench.store.load(_paged([entry]), last_seq=8, session_id="new")
        storage = await bench.store.open("new")
        equal(await storage.scan(), [entry, child], "S27", "a session after a refused load of its id")
        with raises(InvalidWrite, "S27", "a load with the id of a session that is open"):
            await bench.store.load(_paged([entry]), last_seq=8, session_id="new")
        await storage.close()
        await bench.renew_store()


@check("S27")
async def s27_a_load_that_ends_early_leaves_nothing(bench: Bench) -> None:
    """Where the source of the rows fails, and where the caller is cancelled; others are used, and the id is free."""
    rows = [EntryRow(f"e{each}", f"e{each - 1}" if each else None, each + 1, 10, "user", b'"x"') for each in range(600)]
    started, forever = asyncio.Event(), asyncio.Event()

    async def source(end: Callable[[], None] | None) -> AsyncIterator[Sequence[Row]]:
        yield rows[:500]
        started.set()
        if end is not None:
            end()
        await forever.wait()

    def fail() -> None:
        raise _SourceFailed

    other, model = await bench.session("other"), ReferenceSession()
    with raises(_SourceFailed, "S27", "a load whose source fails"):
        await bench.store.load(source(fail), last_seq=600, session_id="new")
    for _ in range(3):
        started.clear()
        loading = asyncio.ensure_future(bench.store.load(source(None), last_seq=600, session_id="new"))
        await started.wait()
        await commit(other, model, bench.entry(), put("v"))
        equal([each.id for each in await bench.store.list()], ["other"], "S27", "sessions while one is loaded")
        with raises((UnknownSession, SessionOwned), "S27", "opening a session that is being loaded"):
            await bench.store.open("new")
        loading.cancel()
        try:
            await loading
        except asyncio.CancelledError:
            pass
        else:
            raise Broken("S27", "a load that was cancelled half-way returned")
    await same_as(other, model, "S27", "another session beside loads")
    equal([each.id for each in await bench.store.list()], ["other"], "S27", "sessions after loads that ended early")
    await bench.store.load(_paged(rows[:300], rows[300:]), last_seq=600, session_id="new")
    storage = await bench.store.open("new")
    equal(await storage.scan(), rows, "S27", "what is loaded at last")
    equal(await storage.lists(NAMESPACE), [], "S27", "lists of what is loaded at last")


@check("S28", "S25")
async def s28_a_cleanup_changes_nothing(bench: Bench) -> None:
    """To reads, cursors, snapshots and what is committed before, beside and after it; also over reopens."""
    storage, model = await bench.session(), ReferenceSession()
    for round_number in range(3):
        await _fill(bench, storage, model, rounds=20)
        operation = SetValue(Address("op.meta", f"op-{round_number}"), b'{"lane":"main","started_at":5}')
        await commit(storage, model, operation)
        open_before = await bench.store.open_operations()
        want, snapshot = _rows(model), await storage.snapshot()
        after = (await storage.scan(limit=5))[-1].seq
        page, cursor = await storage.elements(at("l0"), limit=1), (await storage.elements(at("l0"), limit=1))[0].seq
        sizes = await storage.compact()
        true(0 <= sizes.bytes_after <= sizes.bytes_before, "S28", f"{sizes} of a session with superseded state")
        await same_as(storage, model, "S28", "a session after a cleanup")
        equal(await storage.scan(after_seq=after), model.scan(after_seq=after), "S28", "a scan that goes on")
        rest = [*page, *await storage.elements(at("l0"), after=cursor)]
        equal(rest, model.elements(at("l0")), "S28", "a list read on from a cursor over a cleanup")
        equal(await _read(snapshot), want, "S28", "a snapshot that was taken before a cleanup")
        equal(await bench.store.open_operations(), open_before, "S28", "open operations after a cleanup")
        await snapshot.close()
        await commit(storage, model, bench.entry(), put("v0", b'"after"'), append("l2"), DeleteList(at("l1")))
        await same_as(storage, model, "S28", "a session after a commit behind a cleanup")
        storage = await bench.reopen(storage)
        await same_as(storage, model, "S28", "a session after a cleanup, a commit and a reopen")
        equal(storage.epoch, round_number + 2, "S28", "the epoch after a cleanup and a reopen")
        again = await storage.snapshot()
        equal(await _read(again), _rows(model), "S28", "a snapshot after a cleanup")
        await again.close()


@check("S28")
async def s28_commits_are_taken_beside_a_cleanup(bench: Bench) -> None:
    """Those that are on their way when it begins, and those that come in each turn of the loop while it runs."""
    storage, model = await bench.session(), ReferenceSession()
    tip = await _fill(bench, storage, model, rounds=60)
    for attempt in range(4):
        early = [bench.entry(tip), bench.entry(tip)]
        pendings = [storage.submit([each, put("v0", b'"early"')]) for each in early]
        cleaning = asyncio.ensure_future(storage.compact())
        waiting = asyncio.ensure_future(storage.compact())
        for each, pending in zip(early, pendings, strict=True):
            model.commit([each, put("v0", b'"early"')], await pending)
        number, last = 0, tip
        while not cleaning.done() and number < 200:
            last = child = bench.entry(last)
            await commit(storage, model, child, put("v1", b'"%d"' % number), append("l0", b'"%d"' % attempt))
            await commit(storage, model, DeleteList(at("l2")), bench.usage(), append("l2"))
            number += 1
        await cleaning
        await waiting
        await same_as(storage, model, "S28", "a session with commits beside its cleanup")
        storage = await bench.reopen(storage)
        await same_as(storage, model, "S28", "it after a reopen")


@check("S28")
async def s28_a_cleanup_ends_with_its_session(bench: Bench) -> None:
    """Closed, or killed, while it runs; whoever waits is told, and everything is there."""
    storage, model = await bench.session("s"), ReferenceSession()
    await _fill(bench, storage, model, rounds=60)
    for how in ("close", "kill", "cancel", "close"):
        cleaning = asyncio.ensure_future(storage.compact())
        await asyncio.sleep(0)
        if how == "close":
            await storage.close()
        elif how == "kill":
            storage.kill()
        else:
            cleaning.cancel()
        told = (await asyncio.gather(cleaning, return_exceptions=True))[0]
        true(
            isinstance(told, Compacted | AgentLaneError | asyncio.CancelledError),
            "S28",
            f"{how} beside a cleanup gave {told!r}",
        )
        storage = await bench.reopen(storage)
        await same_as(storage, model, "S28", f"a session after {how} beside its cleanup")
        await commit(storage, model, bench.entry(), put("v3"))
    await storage.close()
    with raises(SessionClosed, "S28", "a cleanup of a closed session"):
        await storage.compact()
    reader = await bench.store.open("s", read_only=True)
    with raises(ReadOnlySession, "S28", "a cleanup of a session that was opened for reading"):
        await reader.compact()


class _SourceFailed(Exception):
    """What the source of a load raises."""
