"""Sessions that have everything in them, and all that is stored of one, for the tests of copies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from agentlane import (
    Agent,
    AgentLane,
    AssistantMessage,
    ListAddress,
    ModelRequest,
    Prompt,
    RetryPolicy,
    Session,
    StreamItem,
    TextPart,
    Tool,
    ToolCallPart,
    ToolContext,
    Usage,
    UserMessage,
    ValueAddress,
)
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, SessionStorage, Store, ValueRow
from tests.cancellation.talker import Talker

HOUR_MS = 3_600_000


class Rows(NamedTuple):
    """Everything that a store has of one session."""

    entries: list[EntryRow]
    ledger: list[LedgerRow]
    elements: list[ElementRow]
    values: dict[tuple[str, str], bytes]
    last_seq: int


async def rows_of(store: Store, session_id: str) -> Rows:
    """What is stored, read as a reader beside its owner does."""
    storage = await store.open(session_id, read_only=True)
    found = await rows_in(storage)
    await storage.close()
    return found


async def rows_in(storage: SessionStorage) -> Rows:
    snapshot = await storage.snapshot()
    rows: list[Any] = [row async for page in snapshot.pages() for row in page]
    await snapshot.close()
    return Rows(
        [row for row in rows if isinstance(row, EntryRow)],
        [row for row in rows if isinstance(row, LedgerRow)],
        [row for row in rows if isinstance(row, ElementRow)],
        {(row.address.namespace, row.address.key): row.payload for row in rows if isinstance(row, ValueRow)},
        snapshot.last_seq,
    )


class Speaker(Talker):
    """A ``Talker`` who is told several tools at a time: ``call echo hold echo``."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        last = request.messages[-1]
        said = last.content if isinstance(last, UserMessage) else ()
        words = "".join(part.text for part in said if isinstance(part, TextPart)).split()
        if words[:1] != ["call"]:
            async for item in super().stream(request):
                yield item
            return
        calls = [ToolCallPart(id=f"call-{n}", name=name, arguments={"n": n}) for n, name in enumerate(words[1:])]
        yield AssistantMessage(content=tuple(calls), stop_reason="tool_calls", usage=Usage(input_tokens=1))


def speaker(began: asyncio.Event | None = None) -> Agent[Any, Any]:
    """An agent that does what it is told; ``began`` is set when its tool ``hold`` runs."""

    async def hold(arguments: Mapping[str, Any], ctx: ToolContext[Any]) -> str:
        await ctx.set_memo("step", 1)
        await ctx.progress("under way")
        if began is not None:
            began.set()
        await asyncio.Event().wait()
        return "never"

    return Agent(
        "speaker",
        model=Speaker(),
        tools=[
            Tool("echo", _echo, replay="safe"),
            Tool("hold", hold, replay="safe"),
            Tool("asks", _echo, replay="never", approval=True),
        ],
        retry=RetryPolicy(base_ms=HOUR_MS),
        cancel_grace_ms=0,
    )


async def _echo(arguments: Mapping[str, Any], ctx: ToolContext[Any]) -> str:
    return f"echoed {arguments}"


async def play(session: Session, seed: int, steps: int = 30) -> None:
    """A random life: branches that grow, are moved, named anew and left; work that ends, waits and stays open."""
    rng = random.Random(seed)
    agent = speaker()
    lanes: dict[str, AgentLane[Any, Any]] = {}
    names = 0

    async def some_entry() -> str | None:
        found = await session.entries()
        return rng.choice(found).id if found and rng.random() < 0.8 else None

    async def idle_lane() -> AgentLane[Any, Any]:
        nonlocal names
        free = [lane for lane in lanes.values() if lane.inspect().operation is None]
        if free and rng.random() < 0.7:
            return rng.choice(free)
        names += 1
        lane = lanes[f"lane-{names}"] = await session.lane(f"lane-{names}", agent, at=await some_entry())
        return lane

    for number in range(steps):
        step = rng.choice(STEPS)
        if step == "run":
            await (await idle_lane()).run(rng.choice(["hello", "refuse", "call echo echo", "call echo none"]))
        elif step == "wait":
            lane = await idle_lane()
            await lane.accept(Prompt(rng.choice(["fail", "call echo asks echo", "call asks", "call echo asks asks"])))
            await lane.drive(wait_for_retry=False)
        elif step == "accept":
            await (await idle_lane()).accept(Prompt(f"waits {number}"))
        elif step == "say":
            lane = rng.choice(list(lanes.values())) if lanes else await idle_lane()
            say = rng.choice([lane.steer, lane.follow_up, lane.next_run, lane.submit])
            await say(f"said {number}", request_id=rng.choice([None, f"r-{number}"]))
        elif step == "append":
            lane = rng.choice(list(lanes.values())) if lanes else await idle_lane()
            await lane.append_custom("note", {"n": number, "text": "\x00\u2028 \U0001f600"})
        elif step == "branch":
            names += 1
            await session.create_branch(f"branch-{names}", at=await some_entry())
        elif step == "move":
            await (await idle_lane()).navigate(await some_entry())
        elif step == "rename":
            lane = await idle_lane()
            names += 1
            del lanes[lane.name]
            await session.rename_branch(lane.name, f"lane-{names}")
            lanes[lane.name] = lane
        elif step == "configure":
            await (await idle_lane()).configure(settings={"n": number})
        elif step == "value":
            await session.set_value(ValueAddress("app.notes", rng.choice("abc"), int), number)
        elif step == "list":
            await session.append(ListAddress(rng.choice(["app.notes", "app.other"]), rng.choice("abc"), int), number)
        elif step == "drop":
            await session.delete_list(ListAddress("app.notes", rng.choice("abc"), int))
            await session.delete_value(ValueAddress("app.notes", rng.choice("abc"), int))
        elif step == "label" and (entry := await some_entry()) is not None:
            await session.set_label(entry, f"label {number}")
        elif step == "name":
            await session.set_name(rng.choice([None, "a name", "\u540d"]))
        elif step == "usage":
            await session.record_usage(Usage(input_tokens=number))


STEPS = (
    *("run", "run", "run", "wait", "wait", "accept", "say", "append", "append", "branch", "move", "rename"),
    *("configure", "value", "list", "list", "list", "drop", "label", "label", "name", "usage"),
)
