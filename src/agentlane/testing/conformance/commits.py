"""Checks of commits: all or nothing, refusals, sequence numbers, publication, durability, cancelled waiters (S1-S8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import anyio

from agentlane.data.usage import Stats
from agentlane.data.writes import DeleteList, DeleteValue, InsertEntry, Write
from agentlane.storage.contract import Commit, Pending, SessionStorage
from agentlane.testing.conformance.bench import (
    NAMESPACE,
    Bench,
    append,
    at,
    check,
    commit,
    equal,
    put,
    refused,
    same_as,
    true,
)
from agentlane.testing.conformance.model import ReferenceSession, dump

IN_FLIGHT = 100


@check("S1", "S6", "S18", "S14")
async def s1_reads_beside_commits_see_each_whole(bench: Bench) -> None:
    """Each commit writes everything twice: a read that finds an odd number has seen half a commit."""
    storage = await bench.session()
    pending = []
    for number in range(30):
        first = bench.entry()
        twice = str(number).encode()
        pending.append(
            storage.submit(
                [
                    *(first, bench.usage(), put("a", twice), append("list", twice)),
                    *(bench.entry(first), bench.usage(), put("b", twice), append("list", twice)),
                ]
            )
        )

    async def read() -> None:
        rows, ledger, values, elements = await asyncio.gather(
            storage.scan(), storage.usage(), storage.values(NAMESPACE), storage.elements(at("list"))
        )
        true(len(rows) % 2 == 0, "S1", f"scan sees {len(rows)} entries of commits that insert two each")
        true(len(ledger) % 2 == 0, "S1", f"usage sees {len(ledger)} rows of commits that insert two each")
        true(values.get("a") == values.get("b"), "S1", f"values sees a and b, always set together, as {values}")
        true(len(elements) % 2 == 0, "S1", f"elements sees {len(elements)} of commits that append two each")

    while not all(each.done() for each in pending):
        await read()
        await asyncio.sleep(0)
    await read()
    equal(
        [(await each).stats.entries for each in pending], [2 * i for i in range(1, 31)], "S14", "stats of the commits"
    )
    equal(len(await storage.scan()), 60, "S1", "entries after 30 commits of two")


@check("S2", "S1")
async def s2_refused_commits_change_nothing(bench: Bench) -> None:
    """Every refusable commit, each behind writes that are good, beside a twin to which nothing was refused."""
    storage, model = await bench.session(), ReferenceSession()
    twin = await bench.session()
    root, row = bench.entry(), bench.usage()
    first: list[Write] = [root, row, put("kept"), append("list"), put("doomed")]
    await commit(storage, model, *first)
    await twin.submit(first)
    good: list[Write] = [bench.entry(root), bench.usage(), put("kept", b"1"), append("list"), DeleteValue(at("doomed"))]
    by_submit = await _refuse_all(bench, storage, root.id, row.row.id, good)

    # What a refused commit brought may come in a good one.
    after, twin_after = await storage.submit(good), await twin.submit(good)
    equal(
        after.stats, twin_after.stats, "S2", "stats of the next commit, against a session to which nothing was refused"
    )
    if by_submit:
        equal(after.first_seq, twin_after.first_seq, "S2", "first_seq after refusals, against the same session")
    model.commit(good, after)
    await same_as(storage, model, "S2", "after a good commit behind refused ones")

    storage = await bench.reopen(storage)
    await same_as(storage, model, "S2", "after refused commits and reopening")
    await _refuse_all(bench, storage, root.id, row.row.id, [bench.entry(root), bench.usage(), put("kept", b"2")])


@check("S2")
async def s2_what_is_in_flight_counts(bench: Bench) -> None:
    """An id that was submitted is used, and a parent that was submitted is there, before the medium has reported."""
    storage, model = await bench.session(), ReferenceSession()
    writes: list[list[Write]] = []
    pending = []
    parent: InsertEntry | None = None
    for _ in range(20):
        parent = bench.entry(parent)
        writes.append([parent, bench.usage()])
        pending.append(storage.submit(writes[-1]))
        await refused(storage, [put("a"), bench.entry(parent)._replace(id=parent.id)], "the id of an entry in flight")
    later = bench.entry(parent)
    await refused(storage, [bench.entry(later), later], "a parent that comes later in the commit")
    for done, each in zip(pending, writes, strict=True):
        model.commit(each, await done)
    await same_as(storage, model, "S2", "after commits whose parents were in flight")


@check("S3", "S12", "S13")
async def s3_seqs_count_the_writes_of_a_commit(bench: Bench) -> None:
    storage = await bench.session()
    first = bench.entry()
    usage = bench.usage()
    writes: list[Write] = [put("v"), first, DeleteValue(at("v")), usage, append("l"), bench.entry(first), append("l")]
    done = await storage.submit(writes)
    equal(done.first_seq, 1, "S3", "first_seq of a new session's first commit")
    equal([row.seq for row in await storage.scan()], [2, 6], "S3", "seqs of the entries, writes 1 and 5")
    equal([row.seq for row in await storage.usage()], [4], "S3", "seq of the usage row, write 3")
    equal([each.seq for each in await storage.elements(at("l"))], [5, 7], "S3", "seqs of the elements, writes 4 and 6")
    after = await storage.submit([append("l")])
    true(after.first_seq >= 8, "S3", f"seqs to 7 are used, but the next commit has {after.first_seq}")


@check("S3")
async def s3_seqs_grow_across_reopening(bench: Bench) -> None:
    """Also behind writes that leave no trace: a deleted value, a deleted list, a value written over."""
    storage = await bench.session()
    highest = 0
    tails: list[list[Write]] = [
        [bench.entry()],
        [append("l"), append("l"), append("l")],
        [DeleteList(at("l"))],
        [put("v"), put("v"), put("v")],
        [DeleteValue(at("v")), DeleteValue(at("v"))],
        [bench.usage()],
        [put("w"), DeleteValue(at("w"))],
    ]
    for writes in tails:
        done = await storage.submit(writes)
        true(done.first_seq > highest, "S3", f"seq {done.first_seq} after {highest} had been used, and after reopening")
        highest = done.first_seq + len(writes) - 1
        storage = await bench.reopen(storage)
    done = await storage.submit([append("l")])
    true(done.first_seq > highest, "S3", f"seq {done.first_seq} after {highest} had been used, and after reopening")
    equal([each.seq for each in await storage.elements(at("l"))], [done.first_seq], "S3", "the new list's element")


@check("S3", "S4", "S5", "S14")
async def s5_many_commits_in_flight_are_published_in_order(bench: Bench) -> None:
    """100 submits without waiting: seqs and stats in order of submit, published once each, awaited in any order."""
    storage, model = await bench.session(), ReferenceSession()
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    published: list[tuple[int, Commit]] = []
    wrong: list[str] = []  # an error raised in publish would be the backend's to handle
    pending: list[Pending] = []

    def publisher(number: int) -> Callable[[Commit], None]:
        def publish(done: Commit) -> None:
            if threading.get_ident() != thread or asyncio._get_running_loop() is not loop:
                wrong.append(f"commit {number} was published outside the session's event loop")
            elif number < len(pending) and pending[number].done():
                wrong.append(f"commit {number} was done before it was published")
            elif storage.stats().entries < done.stats.entries:
                wrong.append(f"in the publication of commit {number} stats() is behind: {storage.stats()}")
            published.append((number, done))

        return publish

    writes: list[list[Write]] = []
    parent: InsertEntry | None = None
    for number in range(IN_FLIGHT):
        parent = bench.entry(parent)
        writes.append([parent, *(bench.usage(number) for _ in range(number % 3)), put("n", str(number).encode())])
        pending.append(storage.submit(writes[-1], publish=publisher(number), name=f"n{number}"))
    backwards = [await each for each in reversed(pending)]

    true(not wrong, "S5", "; ".join(wrong[:5]))
    equal([number for number, _ in published], list(range(IN_FLIGHT)), "S5", "order of publication")
    equal([done for _, done in published], backwards[::-1], "S5", "commits as published, against commits as awaited")
    used, stats = 0, Stats()
    for number, (each, done) in enumerate(zip(writes, backwards[::-1], strict=True)):
        true(done.first_seq > used, "S3", f"commit {number} has first_seq {done.first_seq}, but {used} is used")
        used = done.first_seq + len(each) - 1
        model.commit(each, done)
        stats = model.stats()
        equal(done.stats, stats, "S3", f"stats of commit {number}")
    equal(storage.stats(), stats, "S14", "stats() at the end")
    await same_as(storage, model, "S4", "after 100 commits in flight")
    await same_as(await bench.reopen(storage), model, "S4", "after 100 commits in flight and reopening")


@check("S5", "S23")
async def s5_publication_needs_no_waiter(bench: Bench) -> None:
    storage = await bench.session()
    published: list[int] = []

    def publish(done: Commit) -> None:
        published.append(done.first_seq)

    for _ in range(3):
        storage.submit([put("a")], publish=publish)  # the pending commit is dropped
    last = await storage.submit([put("a")])
    equal(len(published), 3, "S5", "publications of commits that nobody waited for, when a later one is done")
    true(
        published == sorted(published) and published[-1] < last.first_seq, "S5", f"published {published} before {last}"
    )
    storage.submit([put("b")], publish=publish)
    await storage.close()
    equal(len(published), 4, "S23", "publications when close returns")


@check("S6", "S15", "S5")
async def s6_what_is_published_is_read(bench: Bench) -> None:
    """Reads that begin in the very step of publication see the commit."""
    storage = await bench.session()
    reads: list[asyncio.Task[tuple[bool, bytes | None, int]]] = []

    def publisher(new: str, payload: bytes) -> Callable[[Commit], None]:
        async def read() -> tuple[bool, bytes | None, int]:
            found = await storage.entries([new])
            return found[0] is not None, await storage.value(at(new)), len(await storage.path(new))

        def publish(done: Commit) -> None:
            reads.append(asyncio.get_running_loop().create_task(read()))

        return publish

    parent: InsertEntry | None = None
    for number in range(20):
        parent = bench.entry(parent)
        payload = str(number).encode()
        storage.submit([parent, put(parent.id, payload)], publish=publisher(parent.id, payload))
    await storage.submit([put("last")])
    for number, task in enumerate(reads):
        equal(
            await task, (True, str(number).encode(), number + 1), "S6", f"reads begun as commit {number} was published"
        )
    equal(len(reads), 20, "S5", "publications")


@check("S7", "S1", "S3", "S4")
async def s7_reported_commits_survive_a_kill(bench: Bench) -> None:
    """Killed with commits in flight: what was reported is there, the others whole or not, none behind a missing one."""
    storage, model = await bench.session(), ReferenceSession()
    published: list[Commit] = []
    parent: InsertEntry | None = None
    for _ in range(5):
        parent = bench.entry(parent)
        await commit(storage, model, parent, put("tip", b'"%s"' % parent.id.encode()), append("l"))
    in_flight: list[str] = []
    for number in range(10):
        new, text = bench.entry(parent), b"%d" % number
        in_flight.append(new.id)
        storage.submit([new, put("a", text), append("l"), put("b", text)], publish=published.append)
    storage.kill()
    at_kill = len(published)

    after = await bench.open_again(storage.info.id)
    rows = await after.scan()
    there = len(rows) - 5
    true(there >= at_kill, "S7", f"{at_kill} commits were published before the kill, {there} of them are there")
    equal([row.id for row in rows], [*model.rows, *in_flight[:there]], "S4", "entries after a kill")
    values = await after.values(NAMESPACE)
    last = b"%d" % (there - 1) if there else None
    equal((values.get("a"), values.get("b")), (last, last), "S1", "values of the last commit that is there")
    elements = await after.elements(at("l"))
    equal(len(elements), 5 + there, "S1", "elements, one of each commit that is there")
    equal(elements[:5], model.elements(at("l")), "S7", "elements reported before the kill")
    equal(rows[:5], model.scan(), "S7", "entries reported before the kill")
    for _ in range(3):
        await asyncio.sleep(0)
    done = await after.submit([bench.entry(parent)])
    true(done.first_seq > max(rows[-1].seq, elements[-1].seq), "S3", f"seq {done.first_seq} is used")
    equal(len(published), at_kill, "S7", "publications of a killed storage after its death")


@check("S8")
async def s8_cancelled_waiters_change_nothing(bench: Bench) -> None:
    """Native and anyio cancellation, before and while waiting, of one waiter and of all; the commits stand."""
    storage, model = await bench.session(), ReferenceSession()
    published: list[int] = []
    writes: list[list[Write]] = []
    pending: list[Pending] = []

    def submit() -> Pending:
        number = len(writes)
        writes.append([bench.entry(), put("n", b"%d" % number)])
        pending.append(storage.submit(writes[-1], publish=lambda done: published.append(number)))
        return pending[-1]

    # natively, before the waiter has begun, and while it waits
    await _cancel(asyncio.ensure_future(_wait(submit())), begun=False)
    await _cancel(asyncio.ensure_future(_wait(submit())), begun=True)
    # natively, one of two
    shared = submit()
    stays = asyncio.ensure_future(_wait(shared))
    await _cancel(asyncio.ensure_future(_wait(shared)), begun=True)
    true((await stays).first_seq > 0, "S8", "the other waiter got no commit")
    # by anyio, before and while waiting
    with anyio.CancelScope() as scope:
        scope.cancel()
        await submit()
    with anyio.move_on_after(0):
        await submit()
    for each, done in zip(writes, pending, strict=True):
        model.commit(each, await done)  # waiting again gives the commit
    equal(published, list(range(5)), "S8", "publications though waiters were cancelled")
    await same_as(storage, model, "S8", "after cancelled waiters")
    await same_as(await bench.reopen(storage), model, "S8", "after cancelled waiters and reopening")


async def _refuse_all(
    bench: Bench,
    storage: SessionStorage,
    root_id: str,
    row_id: str,
    good: list[Write],
) -> bool:
    """Refuse each kind of bad commit, behind good writes; whether all were refused by ``submit`` itself."""
    nowhere = bench.ids.new()
    lone, usage = bench.entry(), bench.usage()
    later = bench.entry()
    bad: dict[str, list[Write]] = {
        "an unknown parent": [bench.entry(nowhere)],
        "itself as parent": [lone._replace(parent_id=lone.id)],
        "a parent that comes later": [bench.entry(later), later],
        "a usage row as parent": [bench.entry(row_id)],
        "a usage row of the same commit as parent": [usage, bench.entry(usage.row.id)],
        "the id of a stored entry": [bench.entry()._replace(id=root_id)],
        "an entry id twice": [lone, bench.entry()._replace(id=lone.id)],
        "an entry with the id of a usage row": [bench.entry()._replace(id=row_id)],
        "a usage row with the id of an entry": [bench.usage(id=root_id)],
        "the id of a stored usage row": [bench.usage(id=row_id)],
        "a usage id twice": [usage, bench.usage(id=usage.row.id)],
        "one new id for an entry and a usage row": [lone, bench.usage(id=lone.id)],
        "one new id for a usage row and an entry": [usage, bench.entry()._replace(id=usage.row.id)],
    }
    by_submit = await refused(storage, [], "no writes")
    before = await dump(storage, [NAMESPACE])
    for what, writes in bad.items():
        by_submit &= await refused(storage, [*good, *writes], what)
        by_submit &= await refused(storage, [*writes, *good], what)
        equal(await dump(storage, [NAMESPACE]), before, "S2", f"the session after a commit with {what} was refused")
    return by_submit


async def _wait(pending: Pending) -> Commit:
    return await pending


async def _cancel(task: asyncio.Task[Commit], *, begun: bool) -> None:
    if begun:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
