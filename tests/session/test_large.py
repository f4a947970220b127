"""Claim: what a session holds already costs nothing to what is done next.

Times vary, so what is done is counted: rows read, bytes written, statements, calls that copy.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    AssistantMessage,
    Custom,
    Prompt,
    TextPart,
    ToolCallPart,
    ToolContext,
    ToolResultMessage,
    ValueAddress,
    open_session,
    tool,
)
from agentlane.data import codec
from agentlane.data.entries import EntryBody
from agentlane.driver import call_keys
from agentlane.driver.call_keys import CallKeys
from agentlane.machine.context import ModelContext, begins_anew
from agentlane.storage import schema, sqlite_reads
from agentlane.storage.index import SessionIndex
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.session.places import Place
from tests.session.saying import user

TRUNK = 300
BRANCHES = 40


class Reads:
    """The rows that an open session reads of paths, with and without what they hold."""

    def __init__(self, session: Any) -> None:
        self.rows = 0
        self.with_payload = 0
        storage = session._runtime.storage
        path = storage.path

        async def counted(*args: Any, **options: Any) -> Any:
            found = await path(*args, **options)
            self.rows += len(found)
            self.with_payload += sum(bool(row.payload) for row in found)
            return found

        storage.path = counted


async def test_branches_off_one_trunk_are_made_and_appended_to_without_reading_it(place: Place) -> None:
    """Not even the branches' first appends read what lies before: a trunk twice as long costs them nothing."""
    counts = []
    for length in (TRUNK, 2 * TRUNK):
        session = await place.open(f"s{length}")
        await session.import_messages(
            "trunk", [{"role": "user", "content": f"{number}"} for number in range(length)], format="openai"
        )
        middle = (await session.branch("trunk").entries(limit=length // 2))[-1].id
        reads = Reads(session)
        for number in range(BRANCHES):
            branch = await session.create_branch(f"b{number}", at=middle)
            await branch.append_message(user("here"))
            await branch.append_message(user("and here"))
        counts.append((reads.rows, reads.with_payload))
        newest = await session.branch(f"b{BRANCHES - 1}").entries(limit=3)
        assert [entry.body.content[0].text for entry in newest[:2]] == ["and here", "here"]  # type: ignore[union-attr]
        assert newest[2].id == middle

    assert counts == [(2 * BRANCHES, BRANCHES)] * 2


async def test_a_branch_at_a_large_entry_is_made_without_reading_it(place: Place) -> None:
    session = await place.open()
    trunk = await session.create_branch("trunk")
    tip = await trunk.append_message(user("x" * 100_000))
    reads = Reads(session)
    await session.create_branch("other", at=tip.id)
    await session.lane("lane", Agent(model=ScriptedModel(["yes"])), at=tip.id)

    assert (reads.rows, reads.with_payload) == (2, 0)


async def test_an_append_to_a_branch_that_nobody_reads_knows_the_calls_that_are_open_there(place: Place) -> None:
    """Behind entries of the application, after the lane has moved, and in another process."""
    calls = (ToolCallPart(id="a", name="look", arguments={}), ToolCallPart(id="b", name="look", arguments={}))
    session = await place.open()
    lane = await session.lane("main", Agent(model=ScriptedModel(["yes"])))
    question = await lane.append_message(user("go"))
    answer = await lane.append_message(AssistantMessage(content=calls, stop_reason="tool_calls"))
    await lane.append_message(ToolResultMessage(call_id="a", name="look", content=(TextPart(text="seen"),)))
    for number in range(40):  # more than are read at a time
        inside = await lane.append_custom("note", number)
    await session.close()

    session = await place.open()
    branch = session.branch("main")
    await branch.append_message(user("on"))
    added = (await branch.entries(stop_at=inside.id))[:-1]
    assert [entry.body.__class__.__name__ for entry in added] == ["UserMessage", "ToolResultMessage"]
    assert isinstance(added[1].body, ToolResultMessage) and added[1].body.call_id == "b"

    lane = await session.lane("main", Agent(model=ScriptedModel(["yes"])))
    await lane.navigate(answer.id)  # two calls are open again
    await lane.append_message(user("otherwise"))
    await lane.append_message(user("and more"))
    kinds = [entry.body.__class__.__name__ for entry in await lane.entries(stop_at=question.id)]
    assert kinds == ["UserMessage", "UserMessage", *["ToolResultMessage"] * 2, "AssistantMessage", "UserMessage"]
    assert (await lane.run("well?")).text == "yes"


@pytest.mark.parametrize("seed", range(20))
def test_the_end_of_a_path_tells_which_calls_are_open_as_the_whole_of_it_does(seed: int) -> None:
    chosen = random.Random(seed)
    bodies: list[EntryBody] = []
    whole = ModelContext()
    for number in range(200):
        bodies.append(any_body(chosen, number))
        whole.add(f"e{number}", bodies[-1])
        start = max((place for place, body in enumerate(bodies) if begins_anew(body)), default=0)
        end = ModelContext()
        for place in range(start, len(bodies)):
            end.add(f"e{place}", bodies[place])
        assert end.open_calls() == whole.open_calls(), bodies[start:]


def any_body(chosen: random.Random, number: int) -> EntryBody:
    calls = tuple(ToolCallPart(id=chosen.choice("abc"), name="look", arguments={}) for _ in range(chosen.randrange(4)))
    match chosen.randrange(7):
        case 0:
            return user(f"{number}")
        case 1:
            return AssistantMessage(content=calls, stop_reason="tool_calls" if calls else "stop")
        case 2:
            reason = chosen.choice(["error", "aborted", "length"])
            return AssistantMessage(content=calls, stop_reason=reason)  # type: ignore[arg-type]
        case 3:
            return Custom(type="note", data=number)
        case _:
            return ToolResultMessage(call_id=chosen.choice("abc"), name="look", content=(TextPart(text="seen"),))


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_commit_takes_as_many_bytes_in_a_long_session_as_in_a_short_one(tmp_path: Path, kind: str) -> None:
    """Also beside a large value of the application and a thousand branches, none of which is written again."""
    path = tmp_path / ("s.jsonl" if kind == "jsonl" else "s.db")
    address = ValueAddress("app.kept", "large", dict[str, str])
    async with open_session(path, durability="process") as session:
        branch = await session.create_branch("main")
        await session.set_value(address, {"text": "x" * 200_000})
        sizes = []
        for _ in range(2):
            before = size_of(path)
            for number in range(100):
                await branch.append_message(user(f"message {number:03}"))
            sizes.append(size_of(path) - before)
            for number in range(TRUNK):
                await session.create_branch(f"{len(sizes)}-{number:03}", at=branch.tip())
        assert await session.value(address) == {"text": "x" * 200_000}
        if kind == "jsonl":
            assert abs(sizes[1] - sizes[0]) <= 100 * 4  # digits of numbers that grow
        else:  # pages: the log is written anew from its beginning once it is copied
            assert max(sizes) < 100 * 5 * 4_096 * 1.5


def size_of(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.iterdir() if each.name in (path.name, f"{path.name}-wal"))


async def test_a_page_of_any_branch_takes_a_few_statements_and_as_many_rows_as_it_shows(tmp_path: Path) -> None:
    """The newest of the trunk, of the first and of the last of many branches, and of a kind that is not rare."""
    found: list[list[tuple[int, int]]] = []
    for length in (TRUNK, 2 * TRUNK):
        path = tmp_path / f"{length}.db"
        async with open_session(path, durability="process") as session:
            await session.import_messages(
                "trunk", [{"role": "user", "content": f"{n}"} for n in range(length)], format="openai"
            )
            middle = (await session.branch("trunk").entries(limit=length // 2))[-1].id
            for number in range(BRANCHES):
                branch = await session.create_branch(f"b{number}", at=middle)
                await branch.append_message(user("here"))
            tips = [session.branch(name).tip() or "" for name in ("trunk", "b0", f"b{BRANCHES - 1}")]
        found.append([statements_of(path, tip, kinds) for tip in tips for kinds in (None, {"user", "custom"})])

    assert found[0] == found[1]
    assert all(statements <= 6 and rows <= 1 + 64 + 64 for statements, rows in found[0])
    assert all(rows <= 20 for _, rows in found[0][::2])


def statements_of(path: Path, tip: str, kinds: set[str] | None) -> tuple[int, int]:
    """The statements of reading 20 entries newest first, and the rows that they look at."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        statements: list[str] = []
        database.set_trace_callback(statements.append)
        ((key,),) = database.execute("SELECT key FROM session").fetchall()
        rows = sqlite_reads.path(
            database,
            key,
            tip,
            newest_first=True,
            limit=20,
            after=None,
            kinds=kinds,
            stop_at=None,
            stop_kind=None,
            payloads=True,
        )
        assert len(rows) == 20
        looked = [int(each.rsplit("LIMIT", 1)[1]) for each in statements if "LIMIT" in each]
        return len(statements), sum(looked)
    finally:
        database.close()


def test_a_walk_is_a_search_by_place_and_never_a_look_at_everything() -> None:
    database = sqlite3.connect(":memory:")
    for statement in schema.CREATE:
        database.execute(statement)
    plan = database.execute(f"EXPLAIN QUERY PLAN {schema.WALK_NEWEST_FIRST}", (True, None, None, 0, 9, 1, 5)).fetchall()
    database.close()

    assert [row[3].split(" USING ")[0] for row in plan] == ["SEARCH entry"]


def test_pages_of_values_sort_their_keys_once() -> None:
    """A list of operations, say, is paged to its end in a time that grows as it does."""

    class Keys(dict[str, bytes]):
        looked_at = 0

        def __iter__(self) -> Iterator[str]:
            Keys.looked_at += len(self)
            return super().__iter__()

    index = SessionIndex[bytes]([], [])
    index.values["n"] = Keys()
    chosen = random.Random(3)
    for _ in range(500):
        index.set_value("n", f"{chosen.randrange(10**6):06}", b"1")
    after: str | None = None
    pages = 0
    while page := index.keys_after("n", "", after, 10):
        pages, after = pages + 1, page[-1]

    assert pages == 50 and Keys.looked_at == 500


@pytest.mark.parametrize("seed", range(5))
def test_keys_are_given_in_order_whatever_is_set_and_deleted_meanwhile(seed: int) -> None:
    chosen = random.Random(seed)
    index = SessionIndex[bytes]([], [])
    kept: set[str] = set()
    for _ in range(400):
        key = "".join(chosen.choice("abé𐐷|") for _ in range(chosen.randrange(4)))
        if chosen.random() < 0.6:
            index.set_value("n", key, b"1")
            kept.add(key)
        else:
            index.delete_value("n", key)
            kept.discard(key)
        prefix, after, limit = key[: chosen.randrange(3)], chosen.choice([None, key]), chosen.choice([None, 0, 2])
        wanted = sorted(each for each in kept if each.startswith(prefix) and (after is None or each > after))[:limit]
        assert index.keys_after("n", prefix, after, limit) == wanted
        assert index.keys_after("other", "", None, None) == []


async def test_keys_of_calls_are_counted_on_and_not_over_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that asks for its key in each of many turns has each call's arguments looked at twice, not once a turn."""
    counted = 0
    digest = call_keys.arguments_digest

    def counting(arguments: Any) -> str:
        nonlocal counted
        counted += 1
        return digest(arguments)

    monkeypatch.setattr(call_keys, "arguments_digest", counting)
    keys: list[str] = []

    @tool(replay="idempotent")
    async def pay(amount: int, ctx: ToolContext) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        return "paid"

    turns = 30
    session = await place.open()
    answers = [[call("pay", amount=turn % 3), call("pay", amount=1)] for turn in range(turns)]
    lane = await session.lane("main", Agent(model=ScriptedModel([*answers, "done"]), tools=[pay]))
    await lane.run(Prompt("go"))

    assert len(set(keys)) == 2 * turns
    assert sorted(int(key.rsplit("/", 1)[1]) for key in keys) == sorted([*range(10), *range(10), *range(40)])
    assert counted <= 2 * 2 * turns


@pytest.mark.parametrize("seed", range(10))
def test_a_call_is_told_from_those_before_it_that_are_alike(seed: int) -> None:
    """In whatever order calls are asked about."""
    chosen = random.Random(seed)
    answers = []
    for number in range(12):
        calls = tuple(
            ToolCallPart(id="", name=chosen.choice("ab"), arguments={"n": chosen.randrange(2)})
            for _ in range(chosen.randrange(1, 4))
        )
        answers.append((f"e{number}", calls))
    encoded = [(id, codec.encode(calls)) for id, calls in answers]
    keys = CallKeys()
    for _ in range(40):
        upto = chosen.randrange(1, len(answers) + 1)
        place = chosen.randrange(upto)
        index = chosen.randrange(len(answers[place][1]))
        mine = answers[place][1][index]
        before = [each for _, calls in answers[:place] for each in calls] + [*answers[place][1][:index]]
        earlier = sum((each.name, each.arguments) == (mine.name, mine.arguments) for each in before)
        found = keys.alike(encoded[:upto], f"e{place}", index)
        assert (found.name, found.earlier) == (mine.name, earlier)


@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite"])
async def test_a_large_result_is_written_once_and_copied_a_few_times(tmp_path: Path, kind: str) -> None:
    """One that ends before those ahead of it is written twice: staged, and in its place."""
    size = 1_000_000
    first_goes_on = asyncio.Event()

    @tool(replay="safe", max_result_bytes=2 * size)
    async def read(name: str) -> str:
        """Read."""
        if name == "first":
            await first_goes_on.wait()
        return name[0] * size

    answers = [[call("read", name="alone")], "done", [call("read", name="first"), call("read", name="second")], "done"]
    target = {"memory": ":memory:", "jsonl": str(tmp_path / "s.jsonl"), "sqlite": str(tmp_path / "s.db")}[kind]
    async with open_session(target, durability="process") as session:
        written = Written(session)
        lane = await session.lane("main", Agent(model=ScriptedModel(answers), tools=[read]))
        tracemalloc.start()
        try:
            await lane.run("go")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert size < written.bytes < 1.02 * size
        assert peak < 8 * size

        before = written.bytes
        admitted = await lane.accept(Prompt("both"))
        driving = asyncio.ensure_future(lane.drive(admitted.operation_id))
        await written.staged.wait()
        first_goes_on.set()
        await driving
        assert 3 * size < written.bytes - before < 3.05 * size


class Written:
    """The bytes that commits of a session hand over; ``staged`` is set when an outcome waits for its place."""

    def __init__(self, session: Any) -> None:
        self.bytes = 0
        self.staged = asyncio.Event()
        storage = session._runtime.storage
        submit = storage.submit

        def counted(writes: Any, **options: Any) -> Any:
            self.bytes += sum(len(getattr(write, "payload", b"")) for write in writes)
            if "staged" in options.get("name", ""):
                self.staged.set()
            return submit(writes, **options)

        storage.submit = counted
