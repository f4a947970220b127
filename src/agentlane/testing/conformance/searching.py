"""Checks of search: filters before the limit, order, what is committed beside it, and whole stores (S26)."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import msgspec

from agentlane.data.addresses import branch_tip
from agentlane.data.entries import BranchSummary, Compaction, Custom, EntryBody, kind_of
from agentlane.data.messages import AssistantMessage, TextPart, ToolResultMessage, user
from agentlane.data.search import Search, SearchHit, checked_search, hit_of, score_of, total_of
from agentlane.data.writes import InsertEntry, SetValue
from agentlane.errors import UnknownEntry, UnknownSession
from agentlane.storage.contract import Found, SessionStorage
from agentlane.testing.conformance.bench import Bench, append, check, commit, equal, put, raises, true
from agentlane.testing.conformance.model import ReferenceSession

_encode = msgspec.json.Encoder().encode

TEXTS = (
    "the red fox jumps over the lazy dog",
    "Red apples, red pears: red everything",
    "nothing to see here",
    "fox",
    "a red fox and a Café in Paris, and much more text behind it, so that a word counts for less",
    "東京都の赤い狐 red_fox",
)
MANY = 700
"""Entries, more than any backend should take at once."""
ODD_TEXTS = (
    *("", " ", "?!", '"', "'", "*", "-", "red*", '"red fox', "red AND fox", "red OR pears", "NOT red", "NEAR(red fox)"),
    *("words:red", "^red", "red + fox", "(red", "red)", "\0", "red\0fox", "%", "r_d", "\ud800", "red \udfff fox", "{}"),
    *(
        "CAFE",
        "cafe\u0301",
        "ＲＥＤ",
        "東京",
        "狐",
        "京都の",
        "🦊",
        "red " * 500,
        "x" * 10_000,
        "; DROP TABLE entry; --",
    ),
)


def wanted(
    text: str,
    *,
    types: tuple[str, ...] | None = None,
    since: int | None = None,
    until: int | None = None,
    limit: int = 20,
) -> Search:
    """A search as a session asks for it."""
    return checked_search(text, types=types, since=since, until=until, limit=limit)


def spoken(bench: Bench, text: str, parent: InsertEntry | None, number: int) -> InsertEntry:
    """An entry that says ``text``, of a kind that changes with ``number``."""
    part = TextPart(text=text)
    bodies: tuple[EntryBody, ...] = (
        user(text),
        AssistantMessage(content=(part,), stop_reason="stop"),
        ToolResultMessage(call_id="c", name="t", content=(part,)),
        Custom(type="note", data={"deep": [1, {"text": text}]}),
        Compaction(summary=text, kept_from=None, tokens_before=1),
        BranchSummary(summary=text, left="e"),
    )
    body = bodies[number % len(bodies)]
    return bench.entry(parent, kind_of(body), _encode(body))


def reference(model: ReferenceSession, search: Search, start: str | None = None) -> list[Found]:
    """What must be found: every entry looked at, in the plainest way."""
    rows = model.scan() if start is None else model.walk(start)
    let_through = [row for row in rows if search.lets_through(row.kind, row.at)]
    found = [Found(row._replace(payload=b""), total_of(search, row.payload)) for row in let_through]
    found = [each for each in found if each.total]
    return sorted(found, key=lambda each: (-each.total, -each.row.at, -each.row.seq))[: search.limit]


async def same_found(
    storage: SessionStorage, model: ReferenceSession, search: Search, start: str | None, when: str
) -> None:
    """Check one search, with and without an index."""
    want = reference(model, search, start)
    for scan in (False, True):
        got = await storage.search(search, start=start, scan=scan)
        equal(got, want, "S26", f"search({search}, {start=}, {scan=}) {when}")


@check("S26")
async def s26_filters_come_before_the_limit(bench: Bench) -> None:
    """Each filter with each other, on the paths of a tree whose other branches hold better hits."""
    storage, model = await bench.session(), ReferenceSession()
    made: list[InsertEntry] = []
    for number in range(36):
        parent = None if number % 12 == 0 else made[-1 if number % 5 else -min(len(made), 4)]
        made.append(spoken(bench, TEXTS[number % len(TEXTS)], parent, number * 7 // 3))
        await commit(storage, model, put("between"), made[-1])
    times = [row.at for row in model.scan()]
    starts = (None, made[-1].id, made[17].id)
    bounds = ((None, None), (times[9], None), (None, times[20]), (times[5], times[30]))
    for start, types, (since, until), limit in product(
        starts, (None, ("user",), ("assistant", "custom")), bounds, (1, 20)
    ):
        for text in ("red", "fox red", "paris cafe"):
            search = wanted(text, types=types, since=since, until=until, limit=limit)
            await same_found(storage, model, search, start, "in a tree")
    with raises(UnknownEntry, "S26", "a search from an unknown entry"):
        await storage.search(wanted("red"), start=bench.ids.new())
    with raises(UnknownEntry, "S26", "a scan from an unknown entry"):
        await storage.search(wanted("red"), start=bench.ids.new(), scan=True)


@check("S26")
async def s26_any_text_is_words_and_nothing_else(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    parent: InsertEntry | None = None
    for number, text in enumerate((*TEXTS, "", *(each for each in ODD_TEXTS if each.isprintable()))):
        parent = spoken(bench, text, parent, number)
        await commit(storage, model, parent)
    await commit(storage, model, bench.entry(parent, payload=b'"red fox, but no entry of ours"'))
    for text in ODD_TEXTS:
        await same_found(storage, model, wanted(text), None, f"for {text[:40]!r}")


@check("S26", "S6")
async def s26_what_was_published_is_found(bench: Bench) -> None:
    """Searches between commits, beside them, given up half way, and after reopening."""
    storage, model = await bench.session(), ReferenceSession()
    search, parent = wanted("red fox", limit=MANY), None
    await same_found(storage, model, search, None, "in an empty session")
    for number in range(12):
        parent = spoken(bench, TEXTS[number % len(TEXTS)], parent, number)
        await commit(storage, model, append("l"), parent)
        await same_found(storage, model, search, None, f"after commit {number}")
        await commit(storage, model, put("only a value"))
        await same_found(storage, model, search, parent.id, f"after commit {number} and one without an entry")
        if number % 5 == 4:
            storage = await bench.reopen(storage)
            await same_found(storage, model, search, None, f"after commit {number} and reopening")
    writes: list[InsertEntry] = []
    for number in range(MANY):
        parent = spoken(bench, f"{TEXTS[number % len(TEXTS)]} {number}", parent, number)
        writes.append(parent)
    await commit(storage, model, *writes)
    given_up = [asyncio.ensure_future(storage.search(search)) for _ in range(3)]
    await asyncio.sleep(0)
    given_up[0].cancel()
    beside = spoken(bench, "a red fox beside the search", parent, 0)
    pending = storage.submit([beside])
    model.commit([beside], await pending)
    await asyncio.wait(given_up)
    await same_found(storage, model, search, None, "after searches beside a commit")
    await same_found(storage, model, wanted(f"{MANY - 1}"), parent.id if parent else None, "for one of many")
    storage = await bench.reopen(storage)
    await same_found(storage, model, search, None, "after reopening")


@check("S26", "S21")
async def s26_a_read_only_open_finds_what_was_there(bench: Bench) -> None:
    storage, model = await bench.session(), ReferenceSession()
    first = spoken(bench, TEXTS[0], None, 0)
    await commit(storage, model, first)
    unindexed = await bench.store.open(storage.info.id, read_only=True)
    await same_found(unindexed, model, wanted("red"), None, "read-only, before the owner searched")
    await same_found(storage, model, wanted("red"), None, "by the owner")
    reader = await bench.store.open(storage.info.id, read_only=True)
    later = ReferenceSession()
    later.rows.update(model.rows)
    second = spoken(bench, TEXTS[1], first, 1)
    await commit(storage, later, second)
    for when in ("before the owner searched again", "after it"):
        for each in (unindexed, reader):
            await same_found(each, model, wanted("red"), None, f"read-only, {when}")
            with raises(UnknownEntry, "S26", "a read-only search from an entry that was not there"):
                await each.search(wanted("red"), start=second.id)
        await same_found(storage, later, wanted("red"), second.id, "by the owner")
    for each in (unindexed, reader):
        await each.close()


@check("S26")
async def s26_a_store_is_searched_as_one(bench: Bench) -> None:
    """The best of all sessions, or of one, on branches of a name; not what was deleted; open sessions included."""
    models: dict[str, ReferenceSession] = {}
    storages: dict[str, SessionStorage] = {}
    for name in ("a", "b", "c"):
        storage, model = await bench.session(name), ReferenceSession()
        models[name], storages[name] = model, storage
        parent: InsertEntry | None = None
        for number in range(8):
            parent = spoken(bench, TEXTS[(number + len(models)) % len(TEXTS)], parent, number)
            await commit(storage, model, parent)
            if number == 4 and name != "b":
                await commit(storage, model, SetValue(branch_tip("side"), _encode(parent.id)))
    await storages["b"].close()

    async def same(when: str, search_text: str = "red", branch: str | None = None, **options: Any) -> None:
        search = wanted(search_text, **options)
        for scan in (False, True):
            got = await bench.store.search(search_text, branch=branch, scan=scan, **options)
            want = _over_all(models, search, branch)
            equal(list(got), want, "S26", f"store.search({search_text!r}, {branch=}, {options}, {scan=}) {when}")
        for name, model in models.items():
            got = await bench.store.search(search_text, session_id=name, branch=branch, **options)
            want = _over_all({name: model}, search, branch)
            equal(list(got), want, "S26", f"store.search({search_text!r}, session_id={name!r}, {branch=}) {when}")

    for limit in (1, 4, 100):
        await same("of three sessions", limit=limit)
        await same("of three sessions", "red fox", "side", limit=limit)
    await same("on a branch that is nowhere", branch="nowhere")
    await storages["a"].close()
    await bench.store.delete("a")
    del models["a"]
    await same("after one was deleted", limit=100)
    for name in models:
        await storages[name].close()
    await bench.renew_store()
    await same("after reopening", limit=100)
    with raises(UnknownSession, "S26", "a search of a session that was deleted"):
        await bench.store.search("red", session_id="a")


def _over_all(models: dict[str, ReferenceSession], search: Search, branch: str | None) -> list[SearchHit]:
    hits: list[SearchHit] = []
    for name, model in models.items():
        start = None
        if branch is not None:
            tip = model.value(branch_tip(branch))
            if tip is None:
                continue
            start = str(msgspec.json.decode(tip))
        for row, total in reference(model, search, start):
            payload = model.rows[row.id].payload
            hit = hit_of(
                search, session_id=name, entry_id=row.id, kind=row.kind, at=row.at, payload=payload, total=total
            )
            true(hit.score == score_of(search, total), "S26", f"a hit of total {total} has score {hit.score}")
            hits.append(hit)
    return sorted(hits, key=lambda hit: (-hit.score, -hit.at, hit.session_id))[: search.limit]
