"""Claim: the pages on the formats are enough to read every file that the library writes, and are true of it."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentlane import ListAddress, Prompt, Usage, ValueAddress, open_session
from agentlane.storage import JsonlStore, SqliteStore, framing, schema
from tests.docs import jsonl_page
from tests.docs.pages import ROOT, blocks
from tests.session.copies import Rows, play, rows_of, speaker

JSONL = ROOT / "docs" / "reference" / "jsonl-format.md"
SQLITE = ROOT / "docs" / "reference" / "sqlite-schema.md"


def in_plain(rows: Rows) -> dict[str, Any]:
    """All that a session has, payloads as what they say."""
    lists: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for row in rows.elements:
        lists.setdefault(tuple(row.address), []).append((row.seq, json.loads(row.payload)))
    return {
        "entries": [(*each[:5], json.loads(each.payload)) for each in rows.entries],
        "usage": [(each.seq, each.at, each.row.id, each.row.kind, each.row.usage.cost_nanos) for each in rows.ledger],
        "values": {address: json.loads(payload) for address, payload in rows.values.items()},
        "lists": lists,
        "last_seq": rows.last_seq,
    }


def told(read: jsonl_page.Read) -> dict[str, Any]:
    usage = [(seq, at, row["id"], row["kind"], row.get("usage", {}).get("cost_nanos")) for seq, at, row in read.usage]
    return {
        "entries": read.entries,
        "usage": usage,
        "values": read.values,
        "lists": read.lists,
        "last_seq": read.last_seq,
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", ["as it was written", "cleaned up", "exported", "imported"])
async def test_a_reader_made_of_the_page_alone_reads_all_of_a_session(tmp_path: Path, how: str, seed: int) -> None:
    """Entries, usage, values, lists, numbers and what is open: of a random life, in every way that a file is made."""
    store = JsonlStore(tmp_path / "sessions", durability="process" if seed % 2 else "disk", compact_share=None)
    await store.create("s", metadata={"title": "\u2028 é"})
    async with open_session(store, session_id="s") as session:
        await play(session, seed, steps=25)
        name = "s"
        if how == "cleaned up":
            await session.compact_storage()
            branch = await session.create_branch("later", (await session.entries())[0].id)
            for number in range(3):
                await branch.append_custom("note", {"n": number})
                await session.append(ListAddress("app.notes", "b", int), number)
            await session.delete_list(ListAddress("app.notes", "a", int))
            await session.set_value(ValueAddress("app.notes", "later", int), seed)
            await session.record_usage(Usage(cost_nanos=seed))
            await (await session.lane("new", speaker())).accept(Prompt("waits"))
        elif how == "exported":
            await session.export(tmp_path / "sessions" / "out.jsonl")
            shutil.move(tmp_path / "sessions" / "out.jsonl", tmp_path / "s.jsonl")
        elif how == "imported":
            await session.export(tmp_path / "x")
            name = (await store.import_session(tmp_path / "x", session_id="other")).id
    rows = await rows_of(store, name)
    file = tmp_path / "s.jsonl" if how == "exported" else tmp_path / "sessions" / f"{name}.jsonl"
    read = jsonl_page.read(file)

    assert told(read) == in_plain(rows)
    assert (read.session_id, read.metadata) == (name, {"title": "\u2028 é"})
    open_now = {each.operation_id: (each.lane, each.started_at) for each in await store.open_operations()}
    if how not in ("exported", "imported"):
        assert {each[0]: (each[1], each[2]) for each in read.operations} == open_now
    await store.close()


def test_the_reader_refuses_a_changed_byte(tmp_path: Path) -> None:
    example = next(block.text for block in blocks(JSONL) if block.language == "jsonl")
    (tmp_path / "demo.jsonl").write_text(example)
    read = jsonl_page.read(tmp_path / "demo.jsonl")
    assert [each[0][-8:] for each in read.entries] == ["099a0000", "099b0000", "099b0002"]
    assert [each[1] for each in read.entries] == [None, read.entries[0][0], read.entries[1][0]]
    assert (read.last_seq, read.epoch, read.operations, read.usage[0][2]["kind"]) == (7, 1, [], "attempt")
    (tmp_path / "demo.jsonl").write_text(example.replace('"lane":"main"', '"lane":"pain"'))
    with pytest.raises(AssertionError):
        jsonl_page.read(tmp_path / "demo.jsonl")


def test_every_tag_and_limit_of_the_code_is_on_the_page() -> None:
    page = JSONL.read_text()
    frames = [each for each in vars(framing).values() if isinstance(each, type) and each.__name__.endswith("Frame")]
    tags = {each.__struct_config__.tag for each in frames}
    assert tags == set(re.findall(r'^\| `\["(\w)"', page, re.MULTILINE)) == {"e", "u", "s", "d", "a", "x", "g"}
    header = {field.encode_name for field in framing.msgspec.structs.fields(framing.Header)}
    section = page[page.index("## The first line") : page.index("## A base")]
    assert header == set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert f"{framing.TAIL_BYTES_MAX >> 20} MiB, else `PayloadTooLarge`" in page


async def played(path: Path) -> SqliteStore:
    store = SqliteStore(path, durability="process")
    for name, seed in (("demo", 1), ("other", 2)):
        await store.create(name, metadata={"title": name})
        async with open_session(store, session_id=name) as session:
            await play(session, seed, steps=25)
            tips = [session.branch(each).tip() for each in session.branches()]
            at = next((each for each in tips if each is not None), None)
            for number in range(3):  # each from the middle of the one before: segments on segments
                grown = await session.create_branch(f"part-{number}", at)
                inner = [(await grown.append_custom("note", {"n": n})).id for n in range(3)]  # type: ignore[union-attr]
                at = inner[1]
            await session.create_branch("main", at)
            await session.set_value(ValueAddress("app.notes", "text", str), "\u2028 'quoted'")
            await session.append(ListAddress("app.notes", "l", int), 1)
            await session.search("said")
    return store


async def test_the_tables_columns_and_marks_are_those_of_the_page(tmp_path: Path) -> None:
    store = await played(tmp_path / "work.db")
    page = SQLITE.read_text()
    database = sqlite3.connect(tmp_path / "work.db")
    for table in ("session", "segment", "entry", "value", "usage"):
        section = page[re.search(rf"^`{table}`.*:|^`{table}` ", page, re.MULTILINE).start() :]  # type: ignore[union-attr]
        lines = section[: section.index("\n\n", section.index("\n| `") + 1)].splitlines()
        named = {
            name for line in lines if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
        }
        columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        keyed = set(re.findall(r"`(\w+)`", lines[0]))
        assert columns <= named | keyed, (table, columns - named)
        assert named <= columns, (table, named - columns)
    marks = dict(re.findall(r"^\| `PRAGMA (\w+)` \| `?(\w+)`?", page, re.MULTILINE))
    for mark, value in marks.items():
        (found,) = database.execute(f"PRAGMA {mark}").fetchone()
        assert str(found) == value or found == int(value, 16), mark
    assert marks["user_version"] == str(schema.FORMAT_VERSION)
    names = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    assert {name for name in names if f"`{name}`" not in page and not name.startswith("search_text_")} == set()
    database.close()
    await store.close()


async def test_the_statements_of_the_page_answer_what_it_says(tmp_path: Path) -> None:
    """Each runs on a real file, and answers as the library does."""
    store = await played(tmp_path / "work.db")
    statements = [block.text for block in blocks(SQLITE) if block.language == "sql"]
    database = sqlite3.connect(f"file:{tmp_path / 'work.db'}?mode=ro", uri=True)
    sessions, path, operations, costs, values, elements = (database.execute(each).fetchall() for each in statements)
    database.close()

    assert [row[0] for row in sessions] == [each.id for each in await store.list()]
    async with open_session(store, session_id="demo", read_only=True) as session:
        entries = await session.branch("main").entries(newest_first=False)
        assert [row[0] for row in path] == [each.id for each in entries] and len(entries) > 6
        total = session.stats().usage
        (costs_of_demo,) = [row for row in costs if row[0] == "demo"]
        assert costs_of_demo == ("demo", total.rows, total.input_tokens, total.output_tokens, total.cost_nanos / 1e9)
    assert [(row[0], row[1], row[2]) for row in operations] == [
        (each.session_id, each.operation_id, each.lane) for each in await store.open_operations()
    ]
    rows = await rows_of(store, "demo")
    assert {(row[0], row[1]): row[2].encode() for row in values} == {
        address: payload for address, payload in rows.values.items() if address[0].startswith("app.")
    }
    assert [(row[0], row[1], row[2].encode()) for row in elements] == [
        (each.address.namespace, each.address.key, each.payload)
        for each in rows.elements
        if each.address.namespace.startswith("app.")
    ]
    assert values and elements
    await store.close()
