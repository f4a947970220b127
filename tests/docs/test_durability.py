"""Claim: the table of the durability page is true: once a call has returned, a kill takes nothing of it.

What a kill leaves is what the operating system has of the files at that moment. So after each call the files are
copied, by another process (closing a descriptor of the database in this one would drop its locks), and the copy opened.
What a loss of power leaves of a JSONL file is what was synced: with ``disk`` the copy is made of that alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    ListAddress,
    Operation,
    PendingResult,
    Prompt,
    Session,
    Settled,
    TextPart,
    ToolContext,
    ToolResultMessage,
    Usage,
    UserMessage,
    ValueAddress,
    Waiting,
    open_session,
    tool,
)
from agentlane.storage import JsonlStore, Row, SqliteStore
from agentlane.storage.files import FileSystem
from agentlane.testing import ScriptedModel, call, fail, hang
from tests.cancellation.surface import surface
from tests.docs.pages import ROOT

VALUE = ValueAddress("app.test", "value", int)
LIST = ListAddress("app.test", "list", int)


class PowerCut(FileSystem):
    """The real disk; ``leave`` makes a folder as it is when the power is lost now: what was synced, by names that were.

    A file that was never synced has no bytes then.
    """

    def __init__(self) -> None:
        self._data: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        size = os.fstat(descriptor).st_size
        copy = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY) if os.path.isdir("/proc/self/fd") else None
        self._data[os.fstat(descriptor).st_ino] = os.pread(descriptor if copy is None else copy, size, 0)
        if copy is not None:
            os.close(copy)

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self._names[str(path)] = {each.name: each.inode() for each in os.scandir(path) if each.is_file()}

    def leave(self, folder: Path, copy: Path) -> None:
        copy.mkdir()
        for name, inode in self._names.get(str(folder), {}).items():
            (copy / name).write_bytes(self._data.get(inode, b""))


class Bench:
    """A store on disk, and copies of it as a kill would leave it; JSONL with ``disk``, as a loss of power would."""

    def __init__(self, folder: Path, kind: str, durability: Any) -> None:
        self.folder = folder
        self._kind = kind
        self._durability = durability
        self._copies = 0
        self.power = PowerCut() if (kind, durability) == ("jsonl", "disk") else None

    def store(self, folder: Path) -> JsonlStore | SqliteStore:
        if self._kind == "sqlite":
            return SqliteStore(folder / "work.db", durability=self._durability)
        return JsonlStore(folder, durability=self._durability, files=self.power if folder == self.folder else None)

    async def after_kill(self, look: Callable[[Session], Awaitable[Any]], session_id: str | None = None) -> Any:
        """What ``look`` sees in the session that a kill would leave now."""
        self._copies += 1
        copy = self.folder.with_name(f"copy-{self._copies}")
        if self.power is None:
            subprocess.run(["cp", "-R", str(self.folder), str(copy)], check=True)
        else:
            self.power.leave(self.folder, copy)
        store = self.store(copy)
        async with open_session(store, session_id=session_id, create=False) as session:
            seen = await look(session)
        await store.close()
        return seen


@pytest.mark.parametrize("durability", ["disk", "process"])
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_what_returned_survives_a_kill(kind: str, durability: str, tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    bench = Bench(tmp_path / "live", kind, durability)
    halted = asyncio.Event()

    @tool(replay="safe")
    async def halt(ctx: ToolContext) -> str:
        """Ask, say how far it is, keep a memo, and never end."""
        await ctx.ask("go", "Go on?")
        await ctx.progress("half way")
        await ctx.set_memo("done", 5)
        halted.set()
        await asyncio.Event().wait()
        return ""

    memos: list[Any] = []

    @tool(name="halt", replay="safe")
    async def read_memo(ctx: ToolContext) -> str:
        """What a replay finds."""
        memos.append(await ctx.memo("done"))
        return ""

    script = [
        "hello",
        fail("overloaded", retryable=True, retry_after_ms=3_600_000),
        [call("halt")],
        hang(),
    ]
    agent = Agent("tester", model=ScriptedModel(script), tools=[halt])

    def looking(look: Callable[[Any], Awaitable[Any]]) -> Callable[[Session], Awaitable[Any]]:
        """A look at the lane, which a copy must hold."""

        async def at_lane(session: Session) -> Any:
            assert session.lanes() == ["main"]
            return await look(
                await session.lane("main", Agent("tester", model=ScriptedModel(script), tools=[read_memo]))
            )

        return at_lane

    async def operation(session: Session) -> Operation:
        (found,) = session.open_operations()
        return found

    live = bench.store(bench.folder)
    info = await live.create("s", metadata={"made": 1})
    store = bench.store(bench.folder)
    assert [each.id for each in await store.list()] == [info.id]

    async with open_session(live) as session:
        # lane, branch
        lane = await session.lane("main", agent)
        assert await bench.after_kill(looking(_tip)) is None
        side = await session.create_branch("side")
        assert await bench.after_kill(_branches) == ["main", "side"]
        aside = await side.append_message(UserMessage(content=(TextPart(text="aside"),)))
        assert await bench.after_kill(lambda s: s.entry(aside.id)) == aside

        await session.rename_branch("side", "aside")
        assert await bench.after_kill(_branches) == ["aside", "main"]
        await session.delete_branch("aside")
        assert await bench.after_kill(_branches) == ["main"]

        report = await session.import_messages("old", [{"role": "user", "content": "hi"}], format="openai")
        assert await bench.after_kill(lambda s: _tip_of(s, "old")) == report.tip
        await session.delete_branch("old")

        # values, lists, names, labels, ledger, entries
        await session.set_value(VALUE, 3)
        assert await bench.after_kill(lambda s: s.value(VALUE)) == 3
        await session.delete_value(VALUE)
        assert await bench.after_kill(lambda s: s.value(VALUE)) is None
        await session.append(LIST, 4)
        assert [each for _, each in await bench.after_kill(lambda s: s.elements(LIST))] == [4]
        await session.delete_list(LIST)
        assert await bench.after_kill(lambda s: s.elements(LIST)) == []
        await session.set_name("a name")
        assert await bench.after_kill(_name) == "a name"
        entry = await lane.append_custom("note", {"x": 1})
        assert await bench.after_kill(looking(_tip)) == entry.id
        await session.set_label(entry.id, "a label")
        assert await bench.after_kill(lambda s: s.label(entry.id)) == "a label"
        await session.record_usage(Usage(cost_nanos=7))
        assert (await bench.after_kill(_stats)).usage.cost_nanos == 7
        forked = await session.fork(session_id="copy")
        assert (await bench.after_kill(lambda s: s.entry(entry.id), forked.id)) == entry
        await live.delete("copy")
        await session.export(bench.folder / "out.export")
        imported = await live.import_session(bench.folder / "out.export", session_id="copy")
        assert (await bench.after_kill(lambda s: s.entry(entry.id), imported.id)) == entry
        await live.delete("copy")
        await lane.configure(settings={"warm": True})
        assert await bench.after_kill(looking(_settings)) == {"warm": True}

        # copies
        await session.backup(live, session_id="backup")
        assert "backup" in [each.id for each in await store.list()]
        await live.delete("backup")
        repaired = await live.repair(session.id, session_id="repaired")
        assert (await bench.after_kill(lambda s: s.entry(entry.id), repaired.session_id)) == entry
        await live.delete("repaired")

        # a cleanup
        before = await session.entries()
        await session.compact_storage()
        assert await bench.after_kill(lambda s: s.entries()) == before != []
        loaded = await (await session._runtime.storage.snapshot()).pages().__anext__()

        async def rows() -> AsyncIterator[Sequence[Row]]:
            yield loaded

        await live.load(rows(), last_seq=1_000, session_id="copy")
        assert "copy" in [each.id for each in await store.list()]
        await live.delete("copy")

        # accept, drive to the end
        await lane.accept(Prompt("one"), operation_id="op-1")
        assert (await bench.after_kill(operation)).operation_id == "op-1"
        settled = await lane.drive("op-1")
        assert isinstance(settled, Settled)
        assert await bench.after_kill(looking(lambda lane: lane.result("op-1"))) == settled.result
        assert await bench.after_kill(looking(_texts)) == ["one", "hello"]

        # its record is of no use any more
        await session.drop_results(before=settled.result.ended_at + 1)
        assert await bench.after_kill(lambda s: s.operations()) == []

        # back, and there again
        there = lane.tip()
        await lane.navigate(None, label="left")
        assert await bench.after_kill(looking(_tip)) is None
        assert await bench.after_kill(lambda s: s.label(there or "")) == "left"
        await lane.navigate(there)
        assert await bench.after_kill(looking(_tip)) == there

        # drive to a wait, abort
        await lane.accept(Prompt("two"), operation_id="op-2")
        waiting = await lane.drive("op-2", wait_for_retry=False)
        assert isinstance(waiting, Waiting)
        assert (await bench.after_kill(operation)).not_before == waiting.wake_at
        said = await lane.steer("wait", request_id="r-1")
        assert await bench.after_kill(looking(_waiting)) == ["wait"]
        assert (await lane.submit("and more", request_id="r-2")).state == "queued"
        assert await bench.after_kill(looking(_waiting)) == ["wait", "and more"]
        await lane.cancel_queued(said.id)
        assert await bench.after_kill(looking(_waiting)) == ["and more"]
        await lane.request_abort("op-2")
        assert (await bench.after_kill(operation)).cancel_requested_at is not None
        await lane.drive("op-2")
        await lane.retry("op-2", operation_id="op-2-again")
        assert (await bench.after_kill(operation)).operation_id == "op-2-again"
        await lane.request_abort("op-2-again")
        await lane.drive("op-2-again")

        # the answer to a tool's question; progress and memo of a running one
        await lane.accept(Prompt("three"), operation_id="op-3")
        assert isinstance(await lane.drive("op-3"), Waiting)
        (asked,) = await bench.after_kill(_asked)
        await lane.answer(asked, "yes")
        assert [each.status for each in (await bench.after_kill(operation)).calls] == ["answered"]
        driving = asyncio.create_task(lane.drive("op-3"))
        await halted.wait()

        async def resumed(lane: Any) -> Any:
            running = asyncio.create_task(lane.drive("op-3"))
            await lane.agent.model.hanging()
            running.cancel()
            return memos[-1]

        assert await bench.after_kill(looking(resumed)) == 5

        async def aborted(lane: Any) -> Any:
            await lane.request_abort("op-3")
            await lane.drive("op-3")
            return (await _texts(lane))[-1]

        assert (await bench.after_kill(looking(aborted))).startswith("Last progress that was saved before")
    with pytest.raises(Exception, match="closed"):
        await driving
    assert (await bench.after_kill(operation)).operation_id == "op-3"
    await live.close()
    await store.close()


async def _asked(session: Session) -> list[str]:
    return [each.approval_id for each in session.approvals()]


@pytest.mark.parametrize("durability", ["disk", "process"])
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_what_people_give_survives_a_kill(kind: str, durability: str, tmp_path: Path) -> None:
    """Decisions, results that are delivered, what is queued, ends and moves; a first session, and upkeep."""
    (tmp_path / "live").mkdir()
    bench = Bench(tmp_path / "live", kind, durability)

    @tool(approval=True)
    async def pay(n: int) -> str:
        """Pay, if a person says yes."""
        return f"paid {n}"

    @tool
    async def order(n: int) -> PendingResult:
        """Order; the goods come later."""
        return PendingResult()

    script = [[call("pay", n=1), call("order", n=2)], "done", "again", hang(), "after all"]
    agent = Agent("tester", model=ScriptedModel(script), tools=[pay, order])
    live = bench.store(bench.folder)
    info = await live.create_first(metadata={"made": 1})
    assert await bench.after_kill(_id) == info.id

    def looking(look: Callable[[Any], Awaitable[Any]]) -> Callable[[Session], Awaitable[Any]]:
        async def at_lane(session: Session) -> Any:
            return await look(await session.lane("main", agent))

        return at_lane

    async with open_session(live) as session:
        lane = await session.lane("main", agent)
        await lane.accept(Prompt("one"), operation_id="op-1")
        waiting = await lane.drive("op-1")
        assert isinstance(waiting, Waiting) and len(waiting.reasons) == 2
        (asked,) = await bench.after_kill(_asked)
        await lane.decide(asked, allow=True, by="ann")
        assert await bench.after_kill(_statuses) == ["approved", "waiting_external"]
        await lane.deliver(session.open_operations()[0].calls[1].call_id, "goods")
        assert await bench.after_kill(_statuses) == ["approved", "outcome_ready"]
        first = await lane.resume()
        assert first is not None and await bench.after_kill(looking(lambda lane: lane.result("op-1"))) == first
        assert await bench.after_kill(looking(_results)) == ["paid 1", "goods"]

        second = await lane.run("two")
        assert await bench.after_kill(looking(lambda lane: lane.result(second.operation_id))) == second
        said = (await lane.entries(types=["user"], limit=1))[0].id
        moved = await lane.rewind(said, label="left")
        assert await bench.after_kill(looking(_tip)) == lane.tip() != said and moved.messages

        tip = lane.tip()
        compacted = await lane.compact(keep_tokens=0, operation_id="op-c")
        assert compacted.status == "completed" and compacted.summary is not None
        assert await bench.after_kill(looking(lambda lane: lane.result("op-c"))) == compacted
        assert await bench.after_kill(looking(_tip)) == compacted.summary
        went = await lane.navigate(None, summarize=True, label="all of it")
        assert went.summary is not None and await bench.after_kill(looking(_tip)) == went.summary
        assert await bench.after_kill(lambda s: s.label(compacted.summary or "")) == "all of it"
        assert (await bench.after_kill(_kinds)).count("summary") == 2
        await lane.navigate(tip)

        await lane.follow_up("later", request_id="r-1")
        await lane.next_run("next", request_id="r-2")
        assert await bench.after_kill(looking(_waiting)) == ["later", "next"]
        for each in lane.queued():
            await lane.cancel_queued(each.id)
        await lane.accept(Prompt("three"), operation_id="op-3")
        await lane.requestAbort("op-3")
        (found,) = await bench.after_kill(_open)
        assert found.cancel_requested_at is not None
        ended = await lane.abort()
        assert ended.status == "aborted"
        assert await bench.after_kill(looking(lambda lane: lane.result("op-3"))) == ended
        entries = await session.entries()
    if isinstance(live, SqliteStore):
        await live.optimize()
    await live.export(info.id, bench.folder / "out.export")
    assert await bench.after_kill(lambda session: session.entries()) == entries
    if bench.power is None:
        assert (bench.folder / "out.export").read_bytes().endswith(b"}\n")
    await live.close()


READS = {
    *(
        "result",
        "receipt",
        "stream",
        "watch",
        "wait_idle",
        "entries",
        "messages",
        "export_markdown",
        "elements",
        "entry",
    ),
    *("label", "operations", "search", "usage", "value", "values", "memo", "list", "open", "open_operations", "verify"),
    *("salvage", "reopen", "search_by_reading", "sleep_until"),
}
"""What is no write: it reads, or waits."""
MADE_OF_OTHERS = {"run_when_idle"}
"""What does what it is given."""
HOLDERS = (
    "AgentLane",
    "Branch",
    "Session",
    "ToolContext",
    "Store",
    "Exchange",
    "Repairing",
    "Forking",
    "JsonlStore",
    "SqliteStore",
    "MemoryStore",
)


def rows_of_the_page() -> str:
    page = (ROOT / "docs" / "reference" / "durability.md").read_text()
    return page[page.index("| after this returned") : page.index("What is not in the table")]


def test_every_public_call_that_writes_is_on_the_page() -> None:
    """Each asynchronous call of the objects that people hold; and the page has none that is not there."""
    public = {name.rpartition(".")[2] for name in surface() if name.split(".")[0] in HOLDERS or "." not in name}
    writes = {name for name in public if not name.startswith("_")} - READS - MADE_OF_OTHERS - {"load"}
    rows = rows_of_the_page()
    called = set(re.findall(r"(\w+)\(", rows))

    assert writes - called == set()
    assert called - public - {"load"} == set()
    assert all(row.rsplit("|", 2)[1].strip() in ("commit", "copy", "file") for row in rows.strip().splitlines()[2:])


def test_every_call_of_the_page_is_tried_here() -> None:
    called = set(re.findall(r"(\w+)\(", rows_of_the_page()))

    assert {"accept", "drive", "set_memo", "record_usage"} <= called
    assert {name for name in called if f".{name}(" not in Path(__file__).read_text()} - {"open_session"} == set()


async def _id(session: Session) -> str:
    return session.id


async def _open(session: Session) -> list[Operation]:
    return session.open_operations()


async def _statuses(session: Session) -> list[str]:
    return [each.status for each in session.open_operations()[0].calls]


async def _kinds(session: Session) -> list[str]:
    return [element.row.kind for element in await session.usage()]


async def _results(lane: Any) -> list[str]:
    return [each.content[0].text for each in await lane.messages() if isinstance(each, ToolResultMessage)]


async def _tip(lane: Any) -> Any:
    return lane.tip()


async def _waiting(lane: Any) -> list[str]:
    return [each.text for each in lane.queued()]


async def _branches(session: Session) -> list[str]:
    return session.branches()


async def _tip_of(session: Session, name: str) -> str | None:
    return session.branch(name).tip()


async def _name(session: Session) -> Any:
    return session.name


async def _stats(session: Session) -> Any:
    return session.stats()


async def _texts(lane: Any) -> list[str]:
    found = []
    for message in await lane.messages():
        parts = message.content if isinstance(message, UserMessage) else [message]
        found.append("".join(part.text for part in parts))
    return found


async def _settings(lane: Any) -> Any:
    await lane.run(Prompt("look"))
    return lane.agent.model.requests[0].settings
