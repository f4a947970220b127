"""Checks of faults: a medium that fails, an owner that was replaced, damaged and newer data (S9, S10, S22, S24)."""

from __future__ import annotations

import asyncio

from agentlane.data.writes import Address, SetValue, Write
from agentlane.errors import CorruptSession, OwnershipLost, SessionFaulted, UnsupportedFormat
from agentlane.storage.contract import Commit, Pending
from agentlane.testing.conformance.bench import (
    NAMESPACE,
    Bench,
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
from agentlane.testing.conformance.model import ReferenceSession, dump


@check("S9", "S10", "S6", "S14", "S3", needs=["break_medium"])
async def s9_a_failing_medium_faults_the_session(bench: Bench) -> None:
    """Commits in flight fail in order, unpublished, then one report; reads go on; reopened, the session is whole."""
    assert bench.harness.break_medium is not None
    storage, model = await bench.session(), ReferenceSession()
    root = bench.entry()
    await commit(storage, model, root, bench.usage(), put("a", b"0"), put("b", b"0"), append("l"))
    published: list[Commit] = []
    reports: list[BaseException] = []
    early: list[int] = []
    failures: list[tuple[int, BaseException | None]] = []
    pending: list[Pending] = []

    def on_fault(error: BaseException) -> None:
        reports.append(error)
        early.extend(number for number, each in enumerate(pending) if not each.done())

    async def wait(number: int, each: Pending) -> None:
        try:
            await each
            failures.append((number, None))
        except Exception as error:
            failures.append((number, error))

    storage.on_fault = on_fault
    new = [bench.entry(root) for _ in range(3)]
    in_flight: list[list[Write]] = [
        [each, put("a", b"%d" % number), bench.usage(), append("l"), put("b", b"%d" % number)]
        for number, each in enumerate(new, start=1)
    ]
    waiters = []
    with bench.harness.break_medium(storage.info.id):
        for number, writes in enumerate(in_flight):
            try:
                pending.append(storage.submit(writes, publish=published.append))
            except SessionFaulted:
                true(number > 0, "S9", "the failing commit itself must be a pending one, not raised by submit")
                break
            waiters.append(asyncio.ensure_future(wait(number, pending[-1])))
        await asyncio.gather(*waiters)
        await same_as(storage, model, "S9", "reads of a faulted session")

    equal([number for number, _ in failures], list(range(len(pending))), "S9", "order in which pending commits failed")
    causes = [error.__cause__ for _, error in failures if isinstance(error, SessionFaulted)]
    true(len(causes) == len(pending) and None not in causes, "S9", f"not SessionFaulted with a cause each: {failures}")
    equal(len(published), 0, "S9", "publications of commits that failed")
    equal(len(reports), 1, "S9", "calls of on_fault")
    equal(early, [], "S9", "commits that had not failed yet when on_fault was called")
    for _ in range(2):  # the medium works again, but nobody knows what it holds
        try:
            storage.submit([put("a", b"9")])
        except SessionFaulted as error:
            equal(str(error.__cause__), str(causes[0]), "S9", "cause that a later submit names")
        else:
            true(False, "S9", "submit of a faulted session did not raise SessionFaulted")
    equal(len(reports), 1, "S9", "calls of on_fault")
    await same_as(storage, model, "S9", "reads of a faulted session")

    after = await bench.reopen(storage)
    rows = await after.scan()
    there = len(rows) - 1
    equal([row.id for row in rows], [root.id, *(each.id for each in new[:there])], "S10", "entries")
    text = b"%d" % there
    equal((await after.values(NAMESPACE)), {"a": text, "b": text}, "S10", "values, of the last commit that is there")
    equal(len(await after.elements(at("l"))), 1 + there, "S10", "elements, one of each commit that is there")
    equal(after.stats().usage.rows, 1 + there, "S10", "usage rows, one of each commit that is there")
    done = await after.submit([bench.entry(root), put("a", b"8")])
    true(done.first_seq > rows[-1].seq, "S3", f"seq {done.first_seq} is used")
    equal(done.stats.entries, 2 + there, "S14", "entries after a fault, reopening and another commit")


@check("S5", "S9", "S10")
async def s9_a_publication_that_raises_faults_the_session(bench: Bench) -> None:
    """Its commit is on the medium, and fails for whoever waits: nobody knows what they did not learn of it."""
    storage = await bench.session()
    reports: list[BaseException] = []
    published: list[Commit] = []
    storage.on_fault = reports.append
    mistake = ValueError("a mistake in publish")

    def publish(done: Commit) -> None:
        raise mistake

    pending = [storage.submit([put("a", b"1")], publish=publish)]
    try:
        pending.append(storage.submit([put("a", b"2")], publish=published.append))
    except SessionFaulted:
        pass  # it was reported inside submit
    for number, each in enumerate(pending):
        try:
            await each
        except SessionFaulted as error:
            true(error.__cause__ is mistake, "S9", f"commit {number} failed because of {error.__cause__!r}")
        else:
            true(False, "S9", f"commit {number} succeeded although its publication, or one before it, raised")
    equal(reports, [mistake], "S9", "calls of on_fault")
    equal(published, [], "S9", "publications behind the one that raised")
    with raises(SessionFaulted, "S9", "submit after a publication that raised"):
        storage.submit([put("a", b"3")])
    after = await bench.reopen(storage)
    found = (await after.values(NAMESPACE)).get("a")
    true(found in (b"1", b"2"), "S10", f"the published commit is not there after opening again: {found!r}")


@check("S22", "S9", needs=["take_over"])
async def s22_a_replaced_owner_cannot_write(bench: Bench) -> None:
    assert bench.harness.take_over is not None
    storage, model = await bench.session(), ReferenceSession()
    await commit(storage, model, bench.entry(), put("a", b"0"))
    await bench.harness.take_over(storage.info.id)
    reports: list[BaseException] = []
    published: list[Commit] = []
    storage.on_fault = reports.append
    try:
        await storage.submit([bench.entry(), put("a", b"1")], publish=published.append)
    except (OwnershipLost, SessionFaulted) as error:
        lost = isinstance(error, OwnershipLost) or isinstance(error.__cause__, OwnershipLost)
        true(lost, "S22", f"the commit failed with {error!r} caused by {error.__cause__!r}, not by OwnershipLost")
    else:
        true(False, "S22", "a commit under an epoch that is not the newest went through")
    equal((len(published), len(reports)), (0, 1), "S22", "publications, and calls of on_fault")
    with raises(SessionFaulted, "S22", "submit of an owner that was replaced"):
        storage.submit([put("a", b"2")])
    await same_as(storage, model, "S9", "reads of an owner that was replaced")
    await storage.close()


@check("S24", "S16", needs=["damages"])
async def s24_damage_is_found_and_left_as_it_is(bench: Bench) -> None:
    for what in list(bench.harness.damages):
        session_id = await _stored_session(bench)
        await bench.store.close()
        bench.harness.damages[what](session_id)
        before = bench.harness.content() if bench.harness.content else None
        bench.store = bench.another_store()
        with raises(CorruptSession, "S24", f"opening and reading a session with {what}"):
            storage = await bench.store.open(session_id)
            try:
                await dump(storage, [NAMESPACE])
            finally:
                await storage.close()
        await bench.store.close()
        if before is not None and bench.harness.content:
            equal(bench.harness.content(), before, "S24", f"bytes after {what} was found")
        await bench.another_place()


@check("S24", needs=["make_newer"])
async def s24_a_newer_format_is_refused_and_left_as_it_is(bench: Bench) -> None:
    assert bench.harness.make_newer is not None
    session_id = await _stored_session(bench)
    await bench.store.close()
    bench.harness.make_newer(session_id)
    before = bench.harness.content() if bench.harness.content else None
    for read_only in (False, True):
        bench.store = bench.another_store()
        with raises(UnsupportedFormat, "S24", "opening a session of a newer format"):
            await bench.store.open(session_id, read_only=read_only)
        await bench.store.close()
        if before is not None and bench.harness.content:
            equal(bench.harness.content(), before, "S24", "bytes after a newer format was refused")


@check("S30", needs=["make_older"])
async def s30_an_older_format_is_read_as_it_is_and_migrated_by_its_first_owner(bench: Bench) -> None:
    assert bench.harness.make_older is not None
    session_id = await _stored_session(bench)
    storage = await bench.store.open(session_id)
    await storage.submit([SetValue(Address("op.meta", "op-a"), b'{"lane":"main","started_at":1}')])
    wanted, operations = await dump(storage, [NAMESPACE, "op.meta"]), await bench.store.open_operations()
    await bench.store.close()
    bench.harness.make_older(session_id)
    before = bench.harness.content() if bench.harness.content else None
    for what in ("read as it is", "migrated", "opened once more"):
        bench.store = bench.another_store()
        equal(await bench.store.open_operations(), operations, "S30", f"open operations, before it is {what}")
        storage = await bench.store.open(session_id, read_only=what == "read as it is")
        equal(await dump(storage, [NAMESPACE, "op.meta"]), wanted, "S30", f"a session of an older format, {what}")
        await bench.store.close()
        if before is not None and bench.harness.content and what == "read as it is":
            equal(bench.harness.content(), before, "S30", "bytes after an older format was read")
    bench.store = bench.another_store()
    storage = await bench.store.open(session_id)
    commit = await storage.submit([bench.entry()])
    equal(commit.stats.entries, wanted["stats"].entries + 1, "S30", "entries behind a migration")
    await storage.close()


async def _stored_session(bench: Bench) -> str:
    """A closed session of ten commits, to be damaged."""
    storage = await bench.session()
    parent = None
    for number in range(10):
        parent = bench.entry(parent)
        writes: list[Write] = [parent, bench.usage(), put("n", b"%d" % number), append("l")]
        await storage.submit(writes)
    await storage.close()
    return storage.info.id
