"""Checks of ``verify``: a good session has no findings, a damaged one has, and looking changes nothing (S29)."""

from __future__ import annotations

import asyncio

from agentlane.data.findings import VerifyReport
from agentlane.data.writes import DeleteList, DeleteValue, InsertEntry
from agentlane.errors import UnknownSession
from agentlane.storage.contract import SessionStorage
from agentlane.testing.conformance.bench import (
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
from agentlane.testing.conformance.model import ReferenceSession

MESSAGE = b'{"role":"user","content":[{"type":"text","text":"hello"}]}'
"""A message as the library stores it: a store's ``verify`` may look into it."""
ROUNDS = 8


async def _fill(
    bench: Bench, storage: SessionStorage, model: ReferenceSession, tip: InsertEntry | None = None
) -> InsertEntry:
    """A tree with branches, a ledger, values and lists that come, change and go; the newest tip."""
    fork = tip
    for number in range(ROUNDS):
        entry = bench.entry(fork if number % 3 == 2 else tip, payload=MESSAGE)
        await commit(storage, model, entry, bench.usage(), put(f"v{number % 3}"), append(f"l{number % 2}"))
        if number % 4 == 3:
            await commit(storage, model, DeleteValue(at("v1")), DeleteList(at("l0")))
        fork, tip = tip, entry
    assert tip is not None
    return tip


def _no_findings(report: VerifyReport, model: ReferenceSession, when: str) -> None:
    found = [f"{each.code} at {each}" for each in report.findings]
    true(not found and not report.more, "S29", f"{when}: a session with nothing wrong has findings: {found}")
    stats = model.stats()
    want = (stats.entries, stats.usage.rows, sum(map(len, model.lists_at.values())), len(model.values_at))
    got = (report.entries, report.usage_rows, report.elements, report.values)
    equal(got, want, "S29", f"{when}: entries, usage rows, elements and values that can be read")
    true(report.last_seq >= model.next_seq - 1, "S29", f"{when}: last_seq is {report.last_seq}")


@check("S29", needs=["verifies"])
async def s29_a_good_session_has_no_findings(bench: Bench) -> None:
    """New, at each commit, beside its owner, closed, opened for reading, killed, cleaned up, loaded elsewhere."""
    storage, model = await bench.session(), ReferenceSession()
    name = storage.info.id
    _no_findings(await bench.store.verify(name), model, "new")
    tip = await _fill(bench, storage, model)
    _no_findings(await bench.store.verify(name), model, "beside its owner")
    for number in range(3):
        await commit(storage, model, tip := bench.entry(tip, payload=MESSAGE), put("v0", b'"%d"' % number))
        _no_findings(await bench.store.verify(name), model, "behind a commit")
    equal((await bench.store.verify(name)).session_id, name, "S29", "the report's session_id")
    await storage.compact()
    _no_findings(await bench.store.verify(name), model, "cleaned up")
    snapshot = await storage.snapshot()
    await bench.store.load(snapshot.pages(), last_seq=snapshot.last_seq, session_id="loaded")
    await snapshot.close()
    _no_findings(await bench.store.verify("loaded"), model, "loaded")
    storage.kill()
    losses = (await bench.store.verify(name)).losses
    true(not losses, "S29", f"a session whose owner was killed has losses: {losses}")
    storage = await bench.open_again(name)
    await _fill(bench, storage, model, tip)
    await storage.close()
    _no_findings(await bench.store.verify(name), model, "closed")
    reader = await bench.store.open(name, read_only=True)
    _no_findings(await bench.store.verify(name), model, "open for reading")
    await reader.close()


@check("S29", needs=["verifies"])
async def s29_an_owner_goes_on_meanwhile(bench: Bench) -> None:
    """Commits are made and reported while a look is under way; it sees the session at one commit."""
    storage, model = await bench.session(), ReferenceSession()
    tip = await _fill(bench, storage, model)
    before = model.next_seq - 1
    looking = asyncio.ensure_future(bench.store.verify(storage.info.id))
    while not looking.done():
        await commit(storage, model, tip := bench.entry(tip, payload=MESSAGE), append("l1"))
        await asyncio.sleep(0)
    report = await looking
    true(not report.findings, "S29", f"beside commits a good session has findings: {report.findings}")
    entries = [row for row in model.scan() if row.seq <= report.last_seq]
    true(before <= report.last_seq < model.next_seq, "S29", f"last_seq is {report.last_seq}")
    equal(report.entries, len(entries), "S29", "entries at the commit that was looked at")
    await commit(storage, model, put("v9"))
    await same_as(storage, model, "S29", "the session after a look")


@check("S29", needs=["verifies"])
async def s29_a_session_that_is_not_there(bench: Bench) -> None:
    await bench.session()
    with raises(UnknownSession, "S29", "verifying a session that is not there"):
        await bench.store.verify("nobody")


@check("S29", needs=["verifies", "content"])
async def s29_a_look_changes_nothing(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    await _fill(bench, storage, model)
    await storage.close()
    await bench.renew_store()
    assert bench.harness.content is not None
    before = bench.harness.content()
    _no_findings(await bench.store.verify(storage.info.id), model, "closed")
    equal(bench.harness.content(), before, "S29", "bytes after a look")


@check("S29", "S24", needs=["verifies", "damages"])
async def s29_damage_has_findings_and_stays_as_it_is(bench: Bench) -> None:
    for what in bench.harness.damages:
        storage, tip, entries = await bench.session(), None, 10
        for _ in range(entries):
            tip = bench.entry(tip, payload=MESSAGE)
            await storage.submit([tip])
        await storage.close()
        await bench.renew_store()
        bench.harness.damages[what](storage.info.id)
        before = None if bench.harness.content is None else bench.harness.content()
        report = await bench.store.verify(storage.info.id)
        true(len(report.findings) > 0, "S29", f"a session with {what} has no findings")
        true(report.entries <= entries, "S29", f"of a session with {what} {report.entries} entries can be read")
        for finding in report.findings:
            true(bool(finding.place and finding.text and finding.advice), "S29", f"{finding!r} leaves something out")
        if bench.harness.content is not None:
            equal(bench.harness.content(), before, "S29", f"bytes after a look at {what}")
        await bench.another_place()


@check("S29", "S24", needs=["verifies", "make_newer"])
async def s29_a_newer_format_is_a_finding(bench: Bench) -> None:
    storage = await bench.session()
    await storage.submit([bench.entry(payload=MESSAGE)])
    await storage.close()
    await bench.renew_store()
    assert bench.harness.make_newer is not None
    bench.harness.make_newer(storage.info.id)
    report = await bench.store.verify(storage.info.id)
    equal([each.code for each in report.findings], ["newer_format"], "S29", "findings of a newer format")
    true(not report.losses, "S29", "a newer format is no loss")
