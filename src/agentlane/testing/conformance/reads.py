"""Checks of reads by id and by seq, beside a writer, and of everything after reopening (S15, S17, S18)."""

from __future__ import annotations

import asyncio

from agentlane.data.writes import DeleteList, DeleteValue, InsertEntry
from agentlane.storage.contract import EntryRow
from agentlane.testing.conformance.bench import Bench, append, at, check, commit, equal, put, same_as
from agentlane.testing.conformance.model import ReferenceSession
from agentlane.testing.conformance.pages import path_pages, scan_pages

MANY_IDS = 40_000
"""More than a statement of SQLite takes as parameters."""


@check("S15")
async def s15_entries_come_in_the_order_asked(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    row = bench.usage()
    made = [bench.entry(kind=kind, payload=b'"%s"' % kind.encode()) for kind in ("user", "assistant", "custom")]
    await commit(storage, model, *made, row)
    a, b, c = (each.id for each in made)
    unknown = bench.ids.new()
    for ids in (
        [],
        [a],
        [c, a, b],
        [b, unknown, a],
        [unknown],
        [a, a, b, a],
        [unknown, unknown, c],
        [row.row.id, a],
        [""],
    ):
        equal(await storage.entries(ids), model.entries(ids), "S15", f"entries({ids})")
    many = [bench.ids.new() for _ in range(MANY_IDS)]
    many[7], many[-1] = c, a
    equal(await storage.entries(many), model.entries(many), "S15", f"{MANY_IDS} ids at once")


@check("S17")
async def s17_scan_pages_through_everything(bench: Bench) -> None:
    """Every cursor and page size, over entries between which seqs were spent on other things."""
    storage, model = await bench.session(), ReferenceSession()
    equal(await storage.scan(), [], "S17", "scan of an empty session")
    equal(await storage.usage(), [], "S17", "usage of an empty session")
    parent: InsertEntry | None = None
    for number in range(8):
        first, second = bench.entry(parent), bench.entry()
        await commit(storage, model, put("a"), first, bench.usage(), second, *(append("l") for _ in range(number % 3)))
        parent = first if number % 2 else second
    for _ in range(2):
        for after_seq in range(model.next_seq + 2):
            for limit in (None, 0, 1, 2, 16, 17):
                got = await storage.scan(after_seq=after_seq, limit=limit)
                equal(got, model.scan(after_seq=after_seq, limit=limit), "S17", f"scan({after_seq=}, {limit=})")
        for size in range(1, 18):
            rows = [row async for page in scan_pages(storage, limit=size) for row in page]
            equal(rows, model.scan(), "S17", f"scan by pages of {size}")
        storage = await bench.reopen(storage)


@check("S18", "S6")
async def s18_reads_do_not_hold_up_the_writer(bench: Bench) -> None:
    """Pages with commits between them, reads given up half way, 200 at once: both sides go on where they were."""
    storage, model = await bench.session(), ReferenceSession()
    parent = bench.entry()
    await commit(storage, model, parent)
    for number in range(30):
        child = bench.entry(parent, "user" if number % 2 else "assistant")
        await commit(storage, model, child, append("l"))
        parent = child
    tip, walked = parent, list(model.walk(parent.id))
    rows: list[EntryRow] = []
    async for page in path_pages(storage, tip.id, limit=4):
        rows += page
        child = bench.entry(parent)
        await commit(storage, model, child, bench.entry(page[-1].id))  # beyond the tip, and where the page ended
        parent = child
    equal(rows, walked, "S18", "a path by pages, with commits between them")

    given_up = [asyncio.ensure_future(storage.path(parent.id)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    await commit(storage, model, put("after"))
    await asyncio.wait(given_up)
    reads = [asyncio.ensure_future(storage.path(tip.id, limit=n % 40)) for n in range(200)]
    await asyncio.gather(*(storage.submit([append("m")]) for _ in range(20)))
    for number, task in enumerate(reads):
        equal(await task, walked[: number % 40], "S18", f"path with limit {number % 40} beside commits")
    equal(len(await storage.elements(at("m"))), 20, "S18", "elements of commits beside reads")


@check("S1", "S11", "S12", "S13", "S14", "S16", "S17", "S21")
async def s1_everything_is_the_same_after_reopening(bench: Bench) -> None:
    """A session with some of everything, dumped after each of a few commits and reopenings."""
    storage, model = await bench.session(), ReferenceSession()
    tips: list[InsertEntry] = []
    for number in range(25):
        parent = tips[-(number % 4 + 1)] if number % 5 and len(tips) > 3 else None
        tips.append(bench.entry(parent, ("user", "assistant", "custom")[number % 3], b'{"n":%d}' % number))
        await commit(
            storage,
            model,
            *(tips[-1], put(f"k{number % 7}", b"%d" % number), append(f"l{number % 3}", b"%d" % number)),
            *([bench.usage(number)] if number % 2 else []),
            *([DeleteValue(at(f"k{number % 5}"))] if number % 4 == 0 else []),
            *([DeleteList(at(f"l{number % 2}"))] if number % 6 == 0 else []),
        )
        await same_as(storage, model, "S1", f"after commit {number}")
        if number % 6 == 5:
            storage = await bench.reopen(storage)
            await same_as(storage, model, "S1", f"after commit {number} and reopening")
    read_only = await bench.store.open(storage.info.id, read_only=True)
    await same_as(read_only, model, "S21", "read-only")
    await read_only.close()
