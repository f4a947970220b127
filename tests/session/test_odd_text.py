"""Claim: whatever text is in a session, copies of every kind hold it as it was, and all stores tell the same of it."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentlane import Agent, ListAddress, Session, TextPart, Tool, ToolContext, ToolResult, UserMessage, ValueAddress
from agentlane.data.border import clean_text
from agentlane.storage import JsonlStore
from agentlane.testing import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, say
from tests.session.copies import Rows, rows_of
from tests.session.places import KINDS, Place

NASTY = (
    "\x00",
    "\ud99c",
    "a\udc00b",
    "\ud83d\ude00",
    "\u2028\u2029\x85\x0b\x0c",
    "\r\n\r",
    "e\u0301 \u1100\u1161\u11a8 \U0001f469\u200d\U0001f680",
    '"}],"p":[\\u0000\\',
    "```\n~~~\n# no heading\n<!-- -->",
    "\ufeff\ufffe\uffff\U0010ffff",
    "word " * 40,
    "",
)
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=()), max_size=30))
DATA = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
LIVES = st.tuples(st.lists(TEXTS, min_size=6, max_size=6), st.lists(DATA, min_size=4, max_size=4))


async def live(session: Session, texts: list[str], data: list[Any]) -> None:
    """These texts and data in every place that takes any."""

    async def speak(arguments: dict[str, Any], ctx: ToolContext[Any]) -> ToolResult:
        await ctx.progress(texts[1] or "-")
        return ToolResult(content=texts[2], details=data[0])

    agent = Agent(
        model=ScriptedModel(
            [[say(f"it {texts[3]}"), call("speak", {"given": data[1], "text": texts[4]})], f"said {texts[5]}"]
        ),
        tools=[Tool("speak", speak)],
        instructions=texts[0],
    )
    lane = await session.lane("main", agent)
    await lane.append_message(UserMessage(content=(TextPart(text=texts[0] or "-"),)))
    await lane.run(f"go {texts[1]}")
    tip = (await lane.append_custom("note", {"data": data[2], texts[3]: texts[4]})).id
    await session.set_label(tip, texts[5] or None)
    await session.set_name(texts[4] or None)
    await session.set_value(ValueAddress("app.odd", "v", Any), data[3])  # type: ignore[arg-type]
    for text in texts:
        await session.append(ListAddress("app.odd", "l", str), text)


def judge_bytes(rows: Rows) -> None:
    for payload in [*(row.payload for row in rows.entries), *rows.values.values(), *(e.payload for e in rows.elements)]:
        text = payload.decode("utf-8")
        assert b"\n" not in payload
        json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8")


async def tell_alike(folder: Path, texts: list[str], data: list[Any]) -> None:
    files: dict[str, bytes] = {}
    told: dict[str, Any] = {}
    for kind in KINDS:
        (folder / kind).mkdir()
        place = Place(kind, folder / kind)
        session = await place.open()
        await live(session, list(texts), list(data))
        assert await check_invariants(session) == []
        wanted = await rows_of(place.store, "s")
        judge_bytes(wanted)
        assert [json.loads(each.payload) for each in wanted.elements] == [clean_text(each) for each in texts]
        exported = io.BytesIO()
        await session.export(exported)
        files[kind] = exported.getvalue()
        lane = await session.lane("main", Agent(model=ScriptedModel([])))
        messages, markdown = await lane.messages(), await lane.export_markdown()
        found = [
            [(hit.entry.id, hit.snippet) for hit in await session.search("it said word", scan=scan, limit=50)]
            for scan in (False, True)
        ]
        assert found[0] == found[1], kind
        told[kind] = [messages, markdown, found, wanted]
        for text in texts[2:4]:
            assert clean_text(text) in markdown
        await session.compact_storage()
        assert await rows_of(place.store, "s") == wanted
        await session.fork(session_id="fork")
        assert (await rows_of(place.store, "fork")).entries == wanted.entries
        assert (await rows_of(place.store, "fork")).elements == wanted.elements
        await place.end()
    assert told["memory"] == told["jsonl"] == told["sqlite"]
    assert files["memory"] == files["jsonl"] == files["sqlite"]
    for kind in KINDS:
        (folder / f"to-{kind}").mkdir()
        place = Place(kind, folder / f"to-{kind}")
        store: Any = place.store
        await store.import_session(io.BytesIO(files["memory"]))
        assert await rows_of(store, "s") == told["memory"][3]
        again = io.BytesIO()
        await store.export("s", again)
        assert again.getvalue() == files["memory"], "exported, imported, exported: the same bytes"
        session = await place.open()
        lane = await session.lane("main", Agent(model=ScriptedModel([])))
        assert [await lane.messages(), await lane.export_markdown()] == told["memory"][:2]
        await place.end()


PLAIN: list[Any] = [None, 1, {"a": [0.5]}, "x"]


@settings(max_examples=3)
@given(LIVES)
@example((list(NASTY[:6]), [{"\x00": "\ud99c"}, NASTY[6], {"k": list(NASTY)}, "\u2028"]))
@example((list(NASTY[6:]), PLAIN))
def test_copies_of_every_kind_are_the_same_in_every_store(life: tuple[list[str], list[Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tell_alike(Path(folder), *life))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_line_of_megabytes_is_a_line(kind: str, tmp_path: Path) -> None:
    """Written, read back, cleaned up, exported and imported; nothing is cut, and no line end is made of it."""
    text = "\u2028\x85\r" + "x" * 3_000_000
    place = Place(kind, tmp_path)
    session = await place.open()
    branch = await session.create_branch("main")
    entry = await branch.append_custom("note", text)
    await session.close()
    session = await place.open()
    assert (await session.entry(entry.id)).body == entry.body
    await session.compact_storage()
    await session.export(tmp_path / "file")
    store = JsonlStore(tmp_path / "other", durability="process")
    await store.import_session(tmp_path / "file")
    lines = (tmp_path / "other" / "s.jsonl").read_bytes().split(b"\n")
    assert [len(each) > 3_000_000 for each in lines].count(True) == 1
    assert (await rows_of(store, "s")).entries == (await rows_of(place.store, "s")).entries
    assert text in await session.branch("main").export_markdown() or json.dumps(text, ensure_ascii=False)[1:-1] in (
        await session.branch("main").export_markdown()
    )
    await store.close()
    await place.end()
