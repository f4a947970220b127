"""Claim: stored data is read for ever, names nothing of the program that wrote it, and has one shape in one file."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentlane import Agent, Prompt, Session, UserMessage, ValueAddress, open_session
from agentlane.errors import CorruptSession, InvalidMessage, UnsupportedFormat
from agentlane.storage import JsonlStore
from agentlane.testing.matrix.lives import bury
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.compat.samples import SAMPLES
from tests.session.copies import rows_of
from tests.session.places import Place, agent_of


def left_out_or_null(record: Any, stored: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Where a field could be missing or null in what an older or another program has written, and how it then is."""
    if isinstance(record, msgspec.Struct) and isinstance(stored, dict):
        hints = msgspec.inspect.type_info(type(record)).fields  # type: ignore[union-attr]
        for field in hints:
            if field.encode_name not in stored:
                continue
            here = f"{path}.{field.encode_name}"
            if not field.required:
                yield f"{here} left out", {k: v for k, v in stored.items() if k != field.encode_name}
            if _takes_null(field.type):
                yield f"{here} null", {**stored, field.encode_name: None}
            for place, inner in left_out_or_null(getattr(record, field.name), stored[field.encode_name], here):
                yield place, {**stored, field.encode_name: inner}
    elif isinstance(record, tuple | list) and isinstance(stored, list) and not isinstance(record, msgspec.Struct):
        for index, (each, kept) in enumerate(zip(record, stored, strict=False)):
            for place, inner in left_out_or_null(each, kept, f"{path}[{index}]"):
                yield place, [*stored[:index], inner, *stored[index + 1 :]]


def _takes_null(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(isinstance(each, msgspec.inspect.NoneType) for each in kind.types)
    return isinstance(kind, msgspec.inspect.NoneType)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_record_with_a_field_left_out_or_null_is_read(name: str) -> None:
    sample = SAMPLES[name]
    stored = msgspec.json.decode(msgspec.json.encode(sample.record))
    for place, changed in left_out_or_null(sample.record, stored):
        read = sample.kind.decode(json.dumps(changed).encode(), f"{name}{place}")
        written = msgspec.json.encode(read)
        assert sample.kind.decode(written, place) == read, "what is written of it reads back"
        again = msgspec.json.decode(written)
        if isinstance(stored, dict):
            differs = {key for key in {*stored, *again} if again.get(key, key) != stored.get(key, key)}
            assert differs <= {re.split(r"[.\[ ]", place)[1]}, "and the rest of it is as it was"


def test_the_walk_finds_places_in_what_is_nested() -> None:
    found = {
        place
        for sample in SAMPLES.values()
        for place, _ in left_out_or_null(sample.record, msgspec.json.decode(msgspec.json.encode(sample.record)))
    }
    assert len(found) > 100
    assert {".usage.cost_nanos null", ".error.retry_after_ms left out", ".content[0].signature null"} <= found


BEFORE = """
from agentlane import Agent, ToolContext, tool
from agentlane.testing.models import ScriptedModel
from msgspec import Struct
import asyncio

class FirstNote(Struct):
    text: str
    n: int = 0

class FirstDeps:
    token = "first-secret"

@tool(name="fetch", replay="safe")
async def first_fetch(page: int, ctx: ToolContext[FirstDeps]) -> str:
    await ctx.set_memo("note", {"text": "half", "n": 1})
    await ctx.progress("half a page")
    begun.set()
    await asyncio.Event().wait()
    return ""

tools, Note, deps = [first_fetch], FirstNote, FirstDeps()
"""
AFTER = """
from agentlane import Agent, ToolContext, tool
from msgspec import Struct

class Second(Struct):
    text: str
    n: int = 0
    more: str = "new"

class Holder:
    @staticmethod
    @tool(name="fetch", replay="safe")
    def another(page: int, ctx: ToolContext) -> str:
        return f"page {page}"

tools, Note, deps = [Holder.another], Second, object()
"""


def module(name: str, text: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    sys.modules[name] = made
    exec(compile(text, f"{name}.py", "exec"), made.__dict__)
    return made


async def test_modules_classes_and_functions_may_have_other_names_after_a_deploy(place: Place) -> None:
    """In the middle of a call: the tool is found by its name, values by their fields, and no stored byte knows more."""
    begun = asyncio.Event()
    first = module("first_application", BEFORE, begun=begun)
    agent = Agent(model=ScriptedModel([[call("fetch", page=7)]]), tools=first.tools)
    session = await place.open()
    lane = await session.lane("main", agent)
    await session.set_value(ValueAddress("app.notes", "a", first.Note), first.Note(text="kept", n=3))
    driving = asyncio.ensure_future(lane.run("go", deps=first.deps))
    await begun.wait()
    await bury(session, driving)

    rows = await rows_of(place.store, "s")
    payloads = [*(each.payload for each in rows.entries), *rows.values.values()]
    kept = b"\n".join(payloads) + b"".join(f"{a}|{b}".encode() for a, b in rows.values)
    assert b"page" in kept and b"half a page" in kept
    words = (b"first_", b"First", b"agentlane", b"msgspec", b"Struct", b"py/", b"__", b"secret")
    assert [word for word in words if word in kept] == []

    second = module("second_application.elsewhere", AFTER)
    session = await place.open()
    lane = await session.lane("main", Agent(model=ScriptedModel([[call("fetch", page=7)], "done"]), tools=second.tools))
    note = await session.value(ValueAddress("app.notes", "a", second.Note))
    assert (note.text, note.n, note.more) == ("kept", 3, "new")
    result = await lane.resume()
    assert result.status == "completed"
    assert [each.content[0].text for each in (await lane.messages())[2:3]] == ["page 7"]  # type: ignore[union-attr]


async def _plain_and_based(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """The lines of one session as every commit wrote them, and as a cleanup and two commits left them."""
    store = JsonlStore(folder, durability="process")
    await store.create("s")
    async with open_session(store, session_id="s") as session:
        lane = await session.lane("main", agent_of("one", "two"))
        await lane.run("hi")
        plain = (folder / "s.jsonl").read_bytes().splitlines(keepends=True)
        await session.compact_storage()
        await lane.run("again")
    await store.close()
    return plain, (folder / "s.jsonl").read_bytes().splitlines(keepends=True)


async def test_a_file_says_its_version_once_and_keeps_it(tmp_path: Path) -> None:
    """Whoever appends: the first line alone says the format, and each line behind it is of that."""
    plain, based = await _plain_and_based(tmp_path)
    assert [b'"agentlane":' in line[:30] for line in plain] == [True] + [False] * (len(plain) - 1)
    assert [b'"agentlane":' in line[:30] for line in based] == [True] + [False] * (len(based) - 1)
    assert all(b'"c":[' in line[:24] for line in plain[1:])
    commits = [b'"c":[' in line[:24] for line in based[1:]]
    assert commits == sorted(commits) and 0 < sum(commits) < len(commits), "a base, then commits"


async def test_a_file_of_two_shapes_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Each line whole and by its checksum right: a base behind commits, in a file that announces none, or missing."""
    plain, based = await _plain_and_based(tmp_path / "made")
    base = [line for line in based[1:] if b'"b":[' in line[:24]]
    commits = [line for line in based[1:] if b'"c":[' in line[:24]]
    mixed = {
        "a base behind commits": plain + base,
        "a base where none is announced": [plain[0], *base, *commits],
        "commits where a base is announced": [based[0], *plain[1:]],
        "two headers": [plain[0], *based],
        "a base twice": [based[0], *base, *base, *commits],
        "a commit within the base": [based[0], *commits[:1], *base, *commits[1:]],
    }
    for what, lines in mixed.items():
        folder = tmp_path / what.replace(" ", "-")
        folder.mkdir()
        path = folder / "s.jsonl"
        path.write_bytes(b"".join(lines))
        store = JsonlStore(folder)
        with pytest.raises((CorruptSession, UnsupportedFormat)):
            await store.open("s")
        assert path.read_bytes() == b"".join(lines), what
        await store.close()


class Other:
    """No message of ours."""


@pytest.mark.parametrize(
    "given",
    [{"role": "user", "content": "hi"}, ("user", "hi"), [{"text": "hi"}], 5, b"hi", Other()],
    ids=lambda value: type(value).__name__,
)
async def test_what_only_looks_like_a_message_is_refused_where_it_is_given(place: Place, given: Any) -> None:
    """By every call that takes one, with where it stands; nothing is committed, and nothing is taken in part."""
    session = await place.open()
    lane = await session.lane("main", agent_of("never asked"))
    branch = await session.create_branch("side")
    before = session.stats()
    calls = [
        lane.accept(given),
        lane.accept(Prompt(messages=(UserMessage(content=()), given))),
        lane.accept(Prompt("look", images=(given,))),
        lane.append_message(given),
        branch.append_message(given),
        session.import_messages("old", [{"role": "user", "content": "hi"}, [given]], format="openai"),
    ]
    if not isinstance(given, list):
        calls += [lane.steer(given), lane.follow_up(given), lane.next_run(given), lane.submit(given)]
    for asked in calls:
        with pytest.raises(InvalidMessage) as caught:
            await asked
        assert str(caught.value)
    assert session.stats() == before and lane.queued() == [] and session.open_operations() == []


async def test_reads_that_need_no_disk_need_no_await(place: Place) -> None:
    """What is in memory is told at once; what is not awaited is no session, and says so by doing nothing."""
    session = await place.open()
    lane = await session.lane("main", agent_of("hello"))
    now = [session.branches(), session.lanes(), session.open_operations(), session.approvals(), session.stats()]
    now += [session.name, session.findings, lane.tip(), lane.queued(), lane.inspect()]
    assert not [each for each in now if asyncio.iscoroutine(each) or asyncio.isfuture(each)]

    opener = open_session(place.store, session_id="s")
    assert not isinstance(opener, Session)
    with pytest.raises(AttributeError, match="lane"):
        opener.lane("main", agent_of("x"))  # type: ignore[attr-defined]
    forgotten = lane.accept(Prompt("hi"), operation_id="op")
    with pytest.warns(RuntimeWarning, match="never awaited"):
        del forgotten
    assert session.open_operations() == []
