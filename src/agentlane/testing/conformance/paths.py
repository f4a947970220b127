"""Checks of paths: from any entry to its root, both ways, every page size, stop and filter, in a branchy tree (S16)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from agentlane.data.writes import InsertEntry, Write
from agentlane.errors import UnknownEntry
from agentlane.storage.contract import EntryRow, SessionStorage
from agentlane.testing.conformance.bench import Bench, append, check, commit, equal, put, raises, read_and_compare
from agentlane.testing.conformance.model import ReferenceSession
from agentlane.testing.conformance.pages import path_pages

DEEP = 5_000

# Commits of the tree: names of entries with their parents. A name's first letter says which branch it is on, so that
# each place where a branch can begin is there: in the middle of another (m, from t3), on a branch of a branch (n), at
# the very end of one that goes on later (f and t8, both from t7), at the first entry of the tree (s) and of a branch
# (x), beside another root (r), twice at one place (p and q), and one that grows on after everything else (n3).
TREE: tuple[str, ...] = (
    "t1",
    "t2<t1 t3<t2 t4<t3",
    "t5<t4",
    "m1<t3 t6<t5 m2<m1",
    "s1<t1 s2<s1",
    "r1 r2<r1",
    "n1<m2 m3<m2 n2<n1",
    "t7<t6",
    "t8<t7 f1<t7 f2<f1",
    "x1<m1 x2<x1 y1<x1",
    "p1<t4 q1<t4 p2<p1 q2<q1",
    "n3<n2 r3<r2 u1<r1 t9<t8",
)
KINDS = ("user", "assistant", "tool_result", "compaction", "user")


@check("S16")
async def s16_paths_follow_parents_at_every_page_size(bench: Bench) -> None:
    """From every entry, both ways, by pages of every size; as written, and after reopening."""
    storage, model, _ = await _tree(bench)
    for when in ("", " after reopening"):
        for start in model.rows:
            for newest_first in (True, False):
                want = model.path(start, newest_first=newest_first)
                what = f"path({_name(model, start)}, newest_first={newest_first}){when}"
                equal(_names(await storage.path(start, newest_first=newest_first)), _names(want), "S16", what)
                equal(await storage.path(start, newest_first=newest_first), want, "S16", what)
                for size in range(1, len(want) + 2):
                    got: list[EntryRow] = []
                    async for page in path_pages(storage, start, newest_first=newest_first, limit=size):
                        equal(
                            page, want[len(got) : len(got) + size], "S16", f"{what}, a page of {size} after {len(got)}"
                        )
                        got += page
                    equal(_names(got), _names(want), "S16", f"{what} by pages of {size}")
        storage = await bench.reopen(storage)


@check("S16")
async def s16_paths_stop_and_filter_as_asked(bench: Bench) -> None:
    """Stops, filters, limits, cursors and payloads in every combination, against a walk that is plain to see."""
    storage, model, ids = await _tree(bench)
    asked = [
        (ids[start], options, model.path(ids[start], **options), f"path({start}, {_in_words(model, options)})")
        for start in ("t1", "t9", "f2", "n3")
        for options in _combinations(model, ids, start)
    ]
    for when in ("", " after reopening"):
        reads = [(partial(storage.path, start, **options), want, what + when) for start, options, want, what in asked]
        await read_and_compare(reads, "S16")
        storage = await bench.reopen(storage)


@check("S16")
async def s16_pages_keep_the_stop_and_the_filter(bench: Bench) -> None:
    """Paging with a filter and a stop gives what one read of all of it gives."""
    storage, model, ids = await _tree(bench)
    for start, newest_first, kinds, stop in itertools.product(
        ("t9", "n3", "p2", "y1"),
        (True, False),
        (None, {"user"}, {"assistant", "compaction"}),
        ((None, None), (None, "compaction"), (ids["t2"], None), (ids["f1"], "tool_result")),
    ):
        stop_at, stop_kind = stop
        want = model.path(ids[start], newest_first=newest_first, kinds=kinds, stop_at=stop_at, stop_kind=stop_kind)
        for size in range(1, 5):
            options = {"newest_first": newest_first, "kinds": kinds, "stop_at": stop_at, "stop_kind": stop_kind}
            got = [row async for page in path_pages(storage, ids[start], limit=size, **options) for row in page]
            what = f"path({start}, {newest_first=}, {kinds=}, {stop=}) by pages of {size}"
            equal(_names(got), _names(want), "S16", what)


# Compactions (C) on branches of branches, and where the newest one of each path is: not one that is newer elsewhere.
COMPACTED = (
    ("a1", "a2<a1", "C1<a2", "a3<C1", "C2<a3", "a4<C2", "b1<a2", "C3<b1", "b2<C3", "c1<a3", "c2<c1", "d1<C2"),
    ("e1<a2", "e2<e1", "f1<c2", "C4<a4", "a5<C4", "g1<b2", "r1", "r2<r1"),
)
SINCE: dict[str, str] = {
    "a4": "C2 a4",
    "b2": "C3 b2",
    "c2": "C1 a3 c1 c2",
    "d1": "C2 d1",
    "e2": "a1 a2 e1 e2",
    "f1": "C1 a3 c1 c2 f1",
    "a5": "C4 a5",
    "C4": "C4",
    "g1": "C3 b2 g1",
    "a3": "C1 a3",
    "r2": "r1 r2",
}


@check("S16")
async def s16_a_path_stops_at_the_newest_compaction_on_it(bench: Bench) -> None:
    """However many branches it leads through, and whatever was compacted since on others."""
    storage, ids = await bench.session(), dict[str, str]()
    for lines in COMPACTED:
        for name, _, parent in (line.partition("<") for line in lines):
            kind = "compaction" if name[0] == "C" else KINDS[len(ids) % 3]
            entry = bench.entry(ids[parent] if parent else None, kind, b'"%s"' % name.encode())
            ids[name] = entry.id
            await storage.submit([entry, put("beside")])
        storage = await bench.reopen(storage)
    for start, since in SINCE.items():
        want, what = since.split(), f"path({start}, stop_kind='compaction'"
        for payloads in (True, False):
            got = await storage.path(ids[start], stop_kind="compaction", payloads=payloads)
            equal([row.id for row in got], [ids[name] for name in reversed(want)], "S16", f"{what}, {payloads=})")
        got = await storage.path(ids[start], stop_kind="compaction", newest_first=False)
        equal(_names(got), want, "S16", f"{what}, newest_first=False)")
        got = await storage.path(ids[start], stop_kind="compaction", kinds={"compaction"}, limit=1)
        equal(_names(got), want[:1] if want[0][0] == "C" else [], "S16", f"{what}, kinds, limit=1)")


@check("S16", "S15")
async def s16_unknown_starts_and_cursors_are_refused(bench: Bench) -> None:
    storage, _, ids = await _tree(bench)
    row = bench.usage()
    await storage.submit([row, put("value")])
    for what, unknown in (("an unknown id", bench.ids.new()), ("a usage row", row.row.id), ("nothing", "")):
        for newest_first in (True, False):
            with raises(UnknownEntry, "S16", f"path from {what}"):
                await storage.path(unknown, newest_first=newest_first)
            with raises(UnknownEntry, "S16", f"path after {what}"):
                await storage.path(ids["t4"], newest_first=newest_first, after=unknown)
            with raises(UnknownEntry, "S16", f"path from {what}, limited and filtered"):
                await storage.path(unknown, newest_first=newest_first, limit=1, kinds={"user"}, payloads=False)


@check("S16")
async def s16_a_cursor_beside_the_path_is_refused(bench: Bench) -> None:
    """An entry of another branch, a child of the start, and another root are no places to go on from."""
    storage, _, ids = await _tree(bench)
    for start, after in (("n3", "m3"), ("t3", "t4"), ("t9", "r1"), ("t4", "m1"), ("r2", "t1")):
        for newest_first, limit in itertools.product((True, False), (None, 0, 1)):
            with raises(UnknownEntry, "S16", f"path({start}, after={after}), {newest_first=}, {limit=}"):
                await storage.path(ids[start], after=ids[after], newest_first=newest_first, limit=limit)


@check("S16")
async def s16_a_path_grows_while_it_is_paged(bench: Bench) -> None:
    """A cursor is an entry, not a count: what is appended beyond the start or beside the path changes no page."""
    storage, model, ids = await _tree(bench)
    for newest_first in (True, False):
        want = model.path(ids["n3"], newest_first=newest_first)
        got: list[EntryRow] = []
        async for page in path_pages(storage, ids["n3"], newest_first=newest_first, limit=2):
            got += page
            await storage.submit([bench.entry(ids["n3"]), bench.entry(page[-1].id), bench.entry(page[0].id)])
        equal(
            _names(got),
            _names(want),
            "S16",
            f"path(n3, newest_first={newest_first}) by pages of 2, with appends between",
        )


@check("S16", "S17")
async def s16_paths_of_any_length_are_walked(bench: Bench) -> None:
    """5,000 entries deep, on a branch of a branch of each thousand; a recursive walk falls over."""
    storage, model = await bench.session(), ReferenceSession()
    parent: InsertEntry | None = None
    forks: list[InsertEntry] = []
    pending = []
    for block in range(DEEP // 100):
        writes: list[Write] = []
        for number in range(100):
            parent = bench.entry(parent, "compaction" if (block, number) == (11, 7) else KINDS[number % 3])
            writes.append(parent)
        if block % 10 == 9:  # go on beside the newest entry, so that the chain of branches grows too
            forks.append(parent if parent is not None else writes[-1])  # type: ignore[arg-type]
            beside = bench.entry(forks[-1].parent_id)
            writes.append(beside)
            parent = beside
        pending.append((writes, storage.submit(writes)))
    for writes, each in pending:
        model.commit(writes, await each)
    assert parent is not None
    for when in ("", " after reopening"):
        for newest_first in (True, False):
            got = await storage.path(parent.id, newest_first=newest_first, payloads=False)
            want = model.path(parent.id, newest_first=newest_first, payloads=False)
            equal(_names(got), _names(want), "S16", f"the whole path, newest_first={newest_first}{when}")
            equal(got, want, "S16", f"the whole path, newest_first={newest_first}{when}")
            pages = path_pages(storage, parent.id, newest_first=newest_first, limit=999, payloads=False)
            rows = [row async for page in pages for row in page]
            equal(
                _names(rows), _names(want), "S16", f"the whole path by pages of 999, newest_first={newest_first}{when}"
            )
        got = await storage.path(parent.id, stop_kind="compaction")
        equal(got, model.path(parent.id, stop_kind="compaction"), "S16", f"back to the compaction{when}")
        equal(len(await storage.scan()), len(model.rows), "S17", f"entries by scan{when}")
        storage = await bench.reopen(storage)


async def _tree(bench: Bench) -> tuple[SessionStorage, ReferenceSession, dict[str, str]]:
    """A session with ``TREE`` in it, other things between; the ids of its entries by name."""
    storage, model = await bench.session(), ReferenceSession()
    ids: dict[str, str] = {}
    for line in TREE:
        writes: list[Write] = [put("beside")]
        for each in line.split():
            name, _, parent = each.partition("<")
            kind = KINDS[len(ids) % len(KINDS)]
            entry = bench.entry(ids[parent] if parent else None, kind, b'"%s"' % name.encode())
            ids[name] = entry.id
            writes += [entry, append("beside")]
        await commit(storage, model, *writes)
    return storage, model, ids


def _combinations(model: ReferenceSession, ids: dict[str, str], start: str) -> Iterator[dict[str, Any]]:
    walked = [row.id for row in model.walk(ids[start])]
    off_path = [each for each in model.rows if each not in walked]
    stops = [None, walked[0], walked[len(walked) // 2], walked[-1], off_path[len(off_path) // 2], "unknown"]
    for newest_first, stop_at, stop_kind, kinds, limit in itertools.product(
        (True, False),
        dict.fromkeys(stops),
        (None, "user", "compaction", "no_such_kind"),
        (None, ("user",), {"assistant", "tool_result"}, ()),
        (None, 0, 1, 3),
    ):
        options = {"newest_first": newest_first, "stop_at": stop_at, "stop_kind": stop_kind, "kinds": kinds}
        whole = model.walk(ids[start], stop_at=stop_at, stop_kind=stop_kind)
        yield options | {"limit": limit}
        yield options | {"limit": limit, "after": whole[len(whole) // 2].id, "payloads": False}


def _names(rows: list[EntryRow]) -> list[str]:
    """Payloads are names here; without payloads, ids."""
    return [row.payload.decode().strip('"') if row.payload else row.id for row in rows]


def _name(model: ReferenceSession, entry_id: str | None) -> str:
    return _names([model.rows[entry_id]])[0] if entry_id in model.rows else repr(entry_id)


def _in_words(model: ReferenceSession, options: dict[str, Any]) -> str:
    named = {key: _name(model, value) if key in ("stop_at", "after") else value for key, value in options.items()}
    return ", ".join(f"{key}={value}" for key, value in named.items() if value is not None)
