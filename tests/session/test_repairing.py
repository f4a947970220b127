"""Claim: of a damaged session everything that can be read becomes a session that holds together and goes on; what is
lost is reported, the damaged one is left alone, and no call runs again whose intent may be lost."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, Prompt, agent_tool, open_session
from agentlane.data.records.standing_in import LOST, RESULT_LOST, SET_ASIDE
from agentlane.errors import (
    AgentLaneError,
    CorruptSession,
    InvalidDefinition,
    InvalidMessage,
    InvalidName,
    InvalidWrite,
    UnknownSession,
    UnsupportedFormat,
)
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore
from agentlane.storage.contract import EntryRow, LedgerRow, Store
from agentlane.storage.schema import PAGE_BYTES
from agentlane.testing import ManualClock, ScriptedModel, call, hang
from agentlane.testing.clock import CountingIds
from tests.session.damaged import NUMBERS, OPEN, SETTING, Started, check_copy, make, rows_of, store_at
from tests.storage.verified import left_alone

KINDS = ("memory", "jsonl", "sqlite")


class Sample:
    """The lines of the session's file, to be damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[bytes] = []
        self.place = folder
        """The folder that was filled last."""
        self._numbers = iter(range(1_000_000))

    async def make(self) -> Sample:
        await make(
            JsonlStore(self.folder / "made", clock=ManualClock(), ids=CountingIds(series=5), durability="process")
        )
        self.lines = (self.folder / "made" / "s.jsonl").read_bytes().splitlines(keepends=True)
        return self

    def put(self, content: bytes) -> JsonlStore:
        """A store whose session ``s`` has this file."""
        folder = self.place = self.folder / str(next(self._numbers))
        folder.mkdir(mode=0o700)
        (folder / "s.jsonl").write_bytes(content)
        return JsonlStore(folder, clock=ManualClock(), ids=CountingIds(series=6), durability="process")

    def without(self, first: int, count: int = 1) -> bytes:
        """The file with so many lines spoilt."""
        return b"".join([*self.lines[:first], *[b"spoilt\n"] * count, *self.lines[first + count :]])

    def line_of(self, word: bytes, nth: int = 0) -> int:
        """The number of the ``nth`` line that holds this."""
        return [number for number, line in enumerate(self.lines) if word in line][nth]


@pytest.fixture
async def sample(tmp_path: Path) -> Sample:
    return await Sample(tmp_path).make()


async def test_every_run_of_lost_lines(sample: Sample, whole: bool) -> None:
    """Any one, two or three commits lost, wherever: all that is left is there, sound, and goes on."""
    damages = [(first, count) for count in (1, 2, 3) for first in range(1, len(sample.lines))]
    seen = 0
    for first, count in damages[::2] if whole else damages[::9]:
        store = sample.put(sample.without(first, count))
        target = MemoryStore(clock=ManualClock())
        with left_alone(sample.place):
            source = await rows_of(store)
            report = await store.repair("s", target)
        if first + count < len(sample.lines):  # else it is a torn tail, and nothing was lost
            assert any(f"line {first + 1} " in each.place for each in report.losses), report.source
        await check_copy(report, source, target)
        seen += bool(report.ended)
    assert seen


async def test_random_cuts_and_flips(sample: Sample, whole: bool) -> None:
    content = b"".join(sample.lines)
    for seed in range(60 if whole else 8):
        chance = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(damaged))
            match chance.choice(("flip", "cut", "nul", "double")):
                case "flip":
                    damaged[at] ^= 1 << chance.randrange(8)
                case "cut":
                    del damaged[at : at + chance.randrange(1, 400)]
                case "nul":
                    damaged[at : at + 40] = bytes(40)
                case _:
                    damaged[at:at] = damaged[max(0, at - 300) : at]
        store, target = sample.put(bytes(damaged)), MemoryStore(clock=ManualClock())
        with left_alone(sample.place):
            source = await rows_of(store)
            try:
                report = await store.repair("s", target)
            except (CorruptSession, UnsupportedFormat):
                assert await target.list() == []
                continue
        await check_copy(report, source, target)


async def test_random_bytes_of_a_database(tmp_path: Path, whole: bool) -> None:
    """Bits, runs of zeros and whole pages, anywhere behind the header; the end cut off."""
    (tmp_path / "made").mkdir()
    await make(store_at("sqlite", tmp_path / "made"))
    with closing(sqlite3.connect(tmp_path / "made" / "s.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = (tmp_path / "made" / "s.db").read_bytes()
    copies = 0
    for seed in range(40 if whole else 6):
        chance = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 3, 20))):
            at = chance.randrange(100, len(damaged))
            match chance.choice(("flip", "flip", "zeros", "page", "cut")):
                case "flip":
                    damaged[at] ^= 1 << chance.randrange(8)
                case "zeros":
                    damaged[at : at + 16] = bytes(len(damaged[at : at + 16]))
                case "page":
                    page = at // PAGE_BYTES * PAGE_BYTES
                    damaged[page : page + PAGE_BYTES] = bytes(PAGE_BYTES)
                case _ if seed % 4 == 0:
                    del damaged[max(2 * PAGE_BYTES, at) :]
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "s.db").write_bytes(damaged)
        store, target = store_at("sqlite", folder), MemoryStore(clock=ManualClock())
        try:
            report = await store.repair("s", target)
        except (CorruptSession, UnknownSession, UnsupportedFormat):
            assert await target.list() == []
            continue
        finally:
            assert (folder / "s.db").read_bytes() == damaged
        await check_copy(report, await rows_of(store), target)
        await store.close()
        copies += 1
    assert copies


@pytest.mark.parametrize("kind", KINDS)
async def test_a_whole_session_is_copied_as_it_is_and_its_operation_stays_open(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    if kind == "memory":
        whole = store_at("jsonl", tmp_path)
        await make(whole)
        whole = store_at("jsonl", tmp_path)
        store: Store = MemoryStore(clock=ManualClock())
        await whole.repair("s", store)
        await whole.close()
    else:
        await make(store_at(kind, tmp_path))
        store = store_at(kind, tmp_path)

    target = MemoryStore(clock=ManualClock())
    report = await store.repair("s", target)

    assert (report.notes, report.ended, report.branches, report.left, report.source.findings) == ((), (), (), (), ())
    assert await rows_of(target) == await rows_of(store)
    started = Started(["hello", [], "fine", [], "done", "and then done"])
    async with open_session(target, session_id="s", clock=ManualClock(), ids=CountingIds(series=8)) as session:
        assert session.metadata["repaired_from"] == {"session": "s", "seq": report.source.last_seq}
        assert session.metadata["for"] == "tests"
        assert [value for _, value in await session.elements(NUMBERS)] == [4, 5]
        assert await session.value(SETTING) == {"a": 1}
        lane = await session.lane("main", started.agent)
        await lane.drive()
        await lane.decide(session.approvals()[0].approval_id, allow=True)
        outcome = await lane.drive()
        assert outcome.result.operation_id == OPEN
        assert len(started.calls) == 2  # the one that ran, which is safe, and the one that was allowed
    await store.close()


@pytest.mark.parametrize(("path", "id"), [("mended.db", "s"), ("folder", "s"), ("mended.jsonl", "mended")])
async def test_a_path_is_a_target_as_it_is_for_opening(path: str, id: str, sample: Sample, tmp_path: Path) -> None:
    store = sample.put(b"".join(sample.lines))

    report = await store.repair("s", tmp_path / path)

    assert report.session_id == id
    async with open_session(tmp_path / path, session_id=id) as session:
        assert await session.value(SETTING) == {"a": 1}
        assert (await session.verify()).findings == ()


@pytest.mark.parametrize("source_kind", ["jsonl", "sqlite"])
async def test_the_copy_is_the_same_in_every_store(source_kind: str, sample: Sample, tmp_path: Path) -> None:
    """And so is what is in it of a session whose lost part is the same."""
    if source_kind == "jsonl":
        store: Store = sample.put(sample.without(sample.line_of(b'"tool_result"', 1)))
    else:
        await make(store_at("sqlite", tmp_path))
        with closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
            database.execute("DELETE FROM entry WHERE kind = 'tool_result' AND seq < 70 AND seq > 50")
        store = store_at("sqlite", tmp_path)
    copies = []
    for number, kind in enumerate(KINDS):
        folder = tmp_path / f"to{number}"
        folder.mkdir(mode=0o700)
        target = store_at(kind, folder)
        report = await store.repair("s", target)
        copies.append((await rows_of(target), report.notes, report.ended))
        await check_copy(report, await rows_of(store), target)
        await target.close()
    assert copies[0] == copies[1] == copies[2]
    again = await store.repair("s", session_id="t")
    assert (again.session_id, again.notes) == ("t", copies[0][1])
    fresh = await store.repair("s", store)
    assert {info.id for info in await store.list()} >= {"t", fresh.session_id}
    assert fresh.session_id not in ("s", "t")
    await store.close()


# What becomes of each thing that is lost.


async def test_results_that_are_lost_are_said_to_be(sample: Sample) -> None:
    store = sample.put(sample.without(sample.line_of(b'"tool_result"', 1)))
    target = MemoryStore(clock=ManualClock())

    report = await store.repair("s", target)

    assert [note.code for note in report.notes] == ["lost_result", "lost_result"]
    async with open_session(target, session_id="s") as session:
        texts = [getattr(entry.body, "text", "") for entry in await session.branch("main").entries(newest_first=False)]
    assert texts[:6] == ["", "hello", "", "", RESULT_LOST, RESULT_LOST] or texts.count(RESULT_LOST) == 2


async def test_what_was_said_before_a_lost_entry_is_on_a_branch_of_its_own(sample: Sample) -> None:
    store = sample.put(sample.without(sample.line_of(b'"more"')))
    target = MemoryStore(clock=ManualClock())

    report = await store.repair("s", target)

    assert report.branches == ("recovered/1",)
    async with open_session(target, session_id="s") as session:
        main = await session.branch("main").entries(newest_first=False)
        before = await session.branch("recovered/1").entries(newest_first=False)
    assert (main[0].parent_id, main[0].body.type) == (None, LOST)  # type: ignore[union-attr]
    assert [getattr(entry.body, "role", None) or type(entry.body).__name__ for entry in before] == [
        "UserMessage",
        "AssistantMessage",
    ]


async def test_an_operation_across_a_lost_line_is_ended_and_what_it_had_done_is_kept(sample: Sample) -> None:
    store = sample.put(sample.without(sample.line_of(b"op.memo")))
    target = MemoryStore(clock=ManualClock())

    report = await store.repair("s", target)

    assert report.ended == (OPEN,)
    started = Started(["and on"] * 9)
    async with open_session(target, session_id="s", clock=ManualClock(), ids=CountingIds(series=9)) as session:
        lane = await session.lane("main", started.agent)
        result = await lane.result(OPEN)
        assert result is not None
        assert (result.status, result.code, result.to_tip) == ("failed", "uncertain", lane.tip())
        texts = [getattr(entry.body, "text", "") for entry in await session.branch("main").entries(limit=4)][::-1]
        # Placed before; running; staged, which is kept; not started, as far as is known.
        assert texts[0] == texts[2] == "quick"
        assert texts[3] == RESULT_LOST
        assert texts[1].endswith(RESULT_LOST)
        assert "half" in texts[1]
        kept = await session.branch("recovered/records").entries()
        assert {entry.body.type for entry in kept} == {SET_ASIDE}  # type: ignore[union-attr]
        assert (await lane.run("next")).status == "completed"
    assert started.calls == []


Sql = Callable[[sqlite3.Connection], object]


def _sql(text: str) -> Sql:
    return lambda database: database.execute(text)


ROWS: dict[str, tuple[Sql, set[str], bool]] = {
    "an entry in the middle": (
        _sql("DELETE FROM entry WHERE payload LIKE '%more%'"),
        {"lost_entry", "new_branch"},
        False,
    ),
    "the entry at a lane's end": (
        _sql(
            "DELETE FROM entry WHERE id = (SELECT json_extract(payload, '$') FROM value "
            "WHERE namespace = 'branch.tip' AND key = 'side')"
        ),
        {"lost_entry"},
        False,
    ),
    "the parent of an entry, which no text is now": (
        _sql("UPDATE entry SET parent_id = CAST(x'ff' AS TEXT) WHERE seq IN (20, 21, 22, 23, 24, 25, 26, 27, 28)"),
        set(),
        False,
    ),
    "times and a number that nobody can have written": (
        lambda database: database.executescript(
            f"UPDATE entry SET at = at + {1 << 62} WHERE seq < 20; UPDATE usage SET at = -{1 << 62} - at;"
            f"UPDATE session SET seq = seq + {1 << 62}"
        ),
        set(),
        False,
    ),
    "the number of the session": (_sql("UPDATE session SET key = 3"), set(), False),
    "a text that is no JSON any more": (
        _sql(
            "UPDATE entry SET payload = substr(payload, 2) "
            "WHERE seq = (SELECT max(seq) FROM entry WHERE kind = 'user' AND seq < 40)"
        ),
        {"unreadable_entry"},
        False,
    ),
    "a tag that is none": (
        _sql("UPDATE entry SET payload = replace(payload, 'assistant', 'assistamt') WHERE seq < 30"),
        {"unreadable_entry"},
        False,
    ),
    "a result that is no JSON any more": (
        _sql("UPDATE entry SET payload = '{' WHERE kind = 'tool_result' AND seq < 50"),
        {"unreadable_entry"},
        False,
    ),
    "a parent that comes behind its entry": (
        _sql(
            "UPDATE entry SET parent_id = (SELECT id FROM entry WHERE kind = 'user' ORDER BY seq DESC LIMIT 1) "
            "WHERE seq = (SELECT min(seq) FROM entry WHERE kind = 'assistant')"
        ),
        {"new_root", "new_branch"},
        False,
    ),
    "the kind of an entry": (_sql("UPDATE entry SET kind = 'usir' WHERE seq < 9"), {"wrong_kind"}, False),
    "the tip of a branch": (_sql("DELETE FROM value WHERE namespace = 'branch.tip' AND key = 'side'"), {"lane"}, False),
    "the state of a lane": (_sql("DELETE FROM value WHERE namespace = 'lane.state' AND key = 'main'"), {"lane"}, False),
    "the configuration of a lane": (
        _sql("UPDATE value SET payload = '[]' WHERE namespace = 'lane.config' AND key = 'main'"),
        {"lane", "set_aside"},
        False,
    ),
    "what an operation is": (
        _sql("DELETE FROM value WHERE namespace = 'op.meta'"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "the state of an operation": (
        _sql("UPDATE value SET payload = '{\"at\":\"tools\"}' WHERE namespace = 'op.state'"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "the configuration of an operation": (
        _sql("DELETE FROM value WHERE namespace = 'op.config'"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "a staged result": (
        _sql("DELETE FROM value WHERE namespace = 'pending.entry'"),
        {"ended", "set_aside", "lost_result", "lane"},
        True,
    ),
    "a question": (
        _sql("DELETE FROM value WHERE namespace = 'pending.approval'"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "the prompt of an operation": (
        _sql("DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry WHERE kind = 'user')"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "a prompt that cannot be read": (
        _sql("UPDATE entry SET payload = '{' WHERE seq = (SELECT max(seq) FROM entry WHERE kind = 'user')"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry", "unreadable_entry"},
        True,
    ),
    "what waits": (_sql("DELETE FROM value WHERE namespace = 'inbox'"), {"set_aside"}, False),
    "the receipt of what waits": (_sql("DELETE FROM value WHERE namespace = 'receipt'"), {"receipt"}, False),
    "a receipt that says something else": (
        _sql("UPDATE value SET payload = replace(payload, 'follow_up', 'steer') WHERE namespace = 'receipt'"),
        {"receipt", "set_aside"},
        False,
    ),
    "a branch that nobody runs on": (
        _sql("UPDATE value SET payload = '0' WHERE namespace = 'branch.tip' AND key = 'b'"),
        {"set_aside", "new_branch", "lane"},
        False,
    ),
    "the tip of the lane that works": (
        _sql("DELETE FROM value WHERE namespace = 'branch.tip' AND key = 'main'"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "a memo that the reader of the file has to leave": (
        _sql("UPDATE value SET payload = CAST(x'22ff22' AS TEXT) WHERE namespace = 'op.memo'"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "the name of a question": (
        _sql("UPDATE value SET payload = json_set(payload, '$.approval_id', 'x') WHERE namespace = 'pending.approval'"),
        {"ended", "set_aside", "lost_result", "lane", "lost_entry"},
        True,
    ),
    "a terminal record": (
        _sql("UPDATE value SET payload = 'null' WHERE namespace = 'result'"),
        {"unreadable_record", "set_aside"},
        False,
    ),
    "an application's value": (
        _sql("UPDATE value SET payload = '{\"a\":' WHERE namespace = 'app.settings'"),
        {"set_aside"},
        False,
    ),
    "a label": (_sql("UPDATE value SET key = 'gone' WHERE namespace = 'label'"), {"set_aside"}, False),
    "the state and the configuration of a lane": (
        _sql("DELETE FROM value WHERE namespace IN ('lane.state', 'lane.config') AND key = 'main'"),
        {"lane"},
        False,
    ),
    "arguments by another name": (
        _sql("UPDATE entry SET payload = replace(payload, 'arguments', 'argumenus') WHERE seq < 50"),
        {"unreadable_entry"},
        False,
    ),
    "the name of a lane": (
        _sql("UPDATE value SET key = 'maim' WHERE namespace = 'lane.state' AND key = 'main'"),
        {"lane"},
        False,
    ),
    "the state of another lane": (
        _sql(
            "UPDATE value SET payload = (SELECT payload FROM value WHERE namespace = 'lane.state' AND key = 'main') "
            "WHERE namespace = 'lane.state' AND key = 'side'"
        ),
        {"lane"},
        False,
    ),
    "the row of the session, of which an element is the newest": (
        lambda database: database.executescript(
            "UPDATE element SET seq = 1000 + seq WHERE seq = (SELECT max(seq) FROM element); DELETE FROM session"
        ),
        set(),
        False,
    ),
}


@pytest.mark.parametrize("name", ROWS)
async def test_each_row_that_is_lost_or_spoilt(name: str, tmp_path: Path) -> None:
    damage, codes, ended = ROWS[name]
    await make(store_at("sqlite", tmp_path))
    with closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
        damage(database)
    store, target = store_at("sqlite", tmp_path), MemoryStore(clock=ManualClock())

    source = await rows_of(store)
    report = await store.repair("s", target)

    assert {note.code for note in report.notes} == codes, report.notes
    assert report.ended == ((OPEN,) if ended else ())
    await check_copy(report, source, target)
    await store.close()


async def test_with_an_operation_the_runs_of_its_calls_end(tmp_path: Path) -> None:
    """A run of an agent that is a tool: its own records are whole, but whoever waits for it is ended."""
    model = ScriptedModel([hang()])
    scout: Agent[Any, Any] = Agent(name="scout", model=model)
    tools = [agent_tool(scout, description="Look.")]
    chief: Agent[Any, Any] = Agent(
        name="chief", model=ScriptedModel([[call("scout", prompt="look")], "done"]), tools=tools
    )
    store = store_at("sqlite", tmp_path)
    await store.create("s")
    async with open_session(store, session_id="s", clock=ManualClock()) as session:
        lane = await session.lane("main", chief)
        await lane.accept(Prompt("go"), operation_id=OPEN)
        driving = asyncio.ensure_future(lane.drive())
        await model.hanging()
    await asyncio.gather(driving, return_exceptions=True)
    target = MemoryStore(clock=ManualClock())
    assert (await store.repair("s", target)).ended == ()
    with closing(sqlite3.connect(tmp_path / "s.db")) as database, database:
        database.execute("DELETE FROM value WHERE namespace = 'op.config' AND key = 'open'")

    report = await store.repair("s", target, session_id="t")

    assert OPEN in report.ended
    assert len(report.ended) == 2
    assert await target.open_operations() == [each for each in await target.open_operations() if each.session_id == "s"]
    async with open_session(target, session_id="t", clock=ManualClock()) as session:
        assert session.open_operations() == []
        assert (await (await session.lane("main", chief)).run("next")).status == "completed"
    await store.close()


@pytest.mark.parametrize(("damaged", "whole_one"), [("running-1", "barrier-1"), ("retrying-1", "resumed-1")])
async def test_an_operation_with_the_state_of_another_takes_nothing_from_it(
    damaged: str, whole_one: str, tmp_path: Path
) -> None:
    path = tmp_path / "states.db"
    path.write_bytes((Path(__file__).parents[1] / "compat" / "golden_files" / "states-2.db").read_bytes())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "UPDATE value SET payload = (SELECT payload FROM value WHERE namespace = 'op.state' AND key = ?) "
            "WHERE namespace = 'op.state' AND key = ?",
            (whole_one, damaged),
        )
    store, target = SqliteStore(path, clock=ManualClock()), MemoryStore(clock=ManualClock())

    report = await store.repair("states", target)

    assert report.ended == (damaged,)
    assert [each for each in report.left if each.loses] == []
    await store.close()


# Refusals.


async def test_what_cannot_be_repaired_is_refused_and_leaves_nothing(sample: Sample, tmp_path: Path) -> None:
    target = MemoryStore(clock=ManualClock())
    good = sample.put(b"".join(sample.lines))

    with pytest.raises(UnknownSession):
        await good.repair("t", target)
    with pytest.raises(CorruptSession, match="nothing of it can be read"):
        await sample.put(b"no session\n" * 9).repair("s", target)
    rest = sample.lines[0].partition(b",")[2].replace(b'"agentlane":1', b'"agentlane":9')
    newer = b'{"k":"%08x",%s' % (zlib.crc32(rest[:-1]), rest)
    with pytest.raises(UnsupportedFormat, match="newer"):
        await sample.put(newer + b"".join(sample.lines[1:])).repair("s", target)
    with pytest.raises(InvalidName):
        await good.repair("s", target, session_id="a/b")
    with pytest.raises(InvalidMessage, match="target"):
        await good.repair("s", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinition, match="memory"):
        await good.repair("s", ":memory:")
    with pytest.raises(InvalidWrite, match="exists already"):
        await good.repair("s", good, session_id="s")
    assert await target.list() == []
    assert [info.id for info in await good.list()] == ["s"]


async def test_one_that_fails_half_way_leaves_nothing(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentlane.storage import mended

    count = iter(range(99))

    def entry(self: object, row: EntryRow) -> EntryRow:
        if next(count) == 5:
            raise OSError("the source is gone")
        return row

    monkeypatch.setattr(mended.Mended, "entry", entry)
    for kind in KINDS:
        count = iter(range(99))
        folder = sample.folder / f"half-{kind}"
        folder.mkdir(mode=0o700)
        target = store_at(kind, folder)
        with pytest.raises((OSError, AgentLaneError), match="the source is gone"):
            await sample.put(b"".join(sample.lines)).repair("s", target)
        assert await target.list() == []
        await target.close()


async def test_the_ledger_is_copied_and_its_sums_are_made_again(sample: Sample) -> None:
    store, target = sample.put(sample.without(sample.line_of(b'"more"'))), MemoryStore(clock=ManualClock())
    wanted = [row for row in await rows_of(store) if isinstance(row, LedgerRow)]

    await store.repair("s", target)

    assert [row for row in await rows_of(target) if isinstance(row, LedgerRow)] == wanted
    async with open_session(target, session_id="s") as session:
        assert session.stats().usage.rows == len(wanted)


def test_stores_that_repair_are_the_ones_that_keep() -> None:
    assert all(hasattr(each, "repair") for each in (JsonlStore, MemoryStore, SqliteStore))
