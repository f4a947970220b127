"""Claim: what comes from outside between a pass's last look and its wait is seen: nobody sleeps over it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentlane import (
    Agent,
    AgentLane,
    PendingResult,
    Prompt,
    Session,
    Settled,
    Tool,
    ToolContext,
    agent_tool,
    open_session,
    tool,
)
from agentlane.storage.contract import Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.memory import MemoryStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.gates import GatedStore
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.races.stage import BACKENDS, Backend


def store_at(backend: Backend, folder: Path) -> Store:
    if backend == "memory":
        return MemoryStore()
    return JsonlStore(folder / "sessions") if backend == "jsonl" else SqliteStore(folder / "s.db")


@tool(replay="safe")
async def form(ctx: ToolContext) -> str:
    await ctx.progress("one")
    await ctx.progress("two")  # too soon after the first: it is saved when the pass waits
    return str(await ctx.ask("q", "?"))


@tool(replay="safe")
async def order(ctx: ToolContext) -> PendingResult:
    await ctx.progress("one")
    await ctx.progress("two")
    return PendingResult()


@tool(approval=True)
async def allowed() -> str:
    return "ran"


def agents(*calls: str, child: bool, more: Tool | None = None) -> tuple[Agent, Agent]:
    """The agent whose calls wait, and the one to drive: itself, or one that has it as a tool."""
    tools = [form, order, allowed, *([more] if more else [])]
    own = Agent("kid", model=ScriptedModel([[call(each) for each in calls], "end"]), tools=tools)
    script = ScriptedModel([[call("kid", prompt="p")], "end"])
    return own, Agent("a", model=script, tools=[agent_tool(own, name="kid", description="d")]) if child else own


async def lane_of(session: Session, own: Agent, *, child: bool) -> AgentLane:
    return await session.lane(next(name for name in session.lanes() if (name != "main") == child), own)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("child", [False, True])
@pytest.mark.parametrize("what", ["answer", "deliver", "abort"])
async def test_what_comes_while_progress_is_saved(tmp_path: Path, backend: Backend, child: bool, what: str) -> None:
    """The pass has found that it must wait, and saves progress first; the step from outside is in before it waits."""
    store = GatedStore(store_at(backend, tmp_path), hold="before_report")
    store.gate.open()
    async with open_session(store) as session:
        own, driven = agents("order" if what == "deliver" else "form", child=child)
        lane = await session.lane("main", driven)
        await lane.accept(Prompt("go"), operation_id="op")
        store.gate.shut()
        driving = asyncio.ensure_future(lane.drive("op", wait_for_retry=child, wait_for_answers=child))
        while True:
            await store.gate.arrived()
            if store.gate.held in (("question_asked",), ("deferred",)):
                break
            store.gate.release()
        waiting = await lane_of(session, own, child=child)
        go = asyncio.Event()

        async def act() -> None:
            await go.wait()
            open_now = waiting.inspect().operation
            assert open_now is not None
            if what == "answer":
                await waiting.answer(session.approvals()[0].approval_id, "A")
            elif what == "deliver":
                await waiting.deliver(open_now.calls[0].call_id, "A")
            else:
                await waiting.request_abort(open_now.operation_id)

        acting = asyncio.ensure_future(act())
        await asyncio.sleep(0)
        go.set()
        store.gate.release()  # who acts is told before the pass runs on
        store.gate.open()
        await acting
        outcome = await driving
        if not isinstance(outcome, Settled):  # told of the wait before the step was in: then it says what for
            assert outcome.reasons
            outcome = await lane.drive("op")
        assert isinstance(outcome, Settled)
        assert outcome.result.status == ("aborted" if what == "abort" and not child else "completed")


async def test_two_steps_that_are_published_in_one_go() -> None:
    """A question of the child's is asked, and its other call allowed, before its pass runs on: that call runs."""
    ask = asyncio.Event()

    @tool(replay="safe")
    async def late(ctx: ToolContext) -> str:
        await ask.wait()
        return str(await ctx.ask("q", "?"))

    store = GatedStore(MemoryStore())
    store.gate.open()
    async with open_session(store) as session:
        own, driven = agents("late", "allowed", child=True, more=late)
        lane = await session.lane("main", driven)
        await lane.accept(Prompt("go"), operation_id="op")
        driving = asyncio.ensure_future(lane.drive("op", wait_for_answers=True))
        while not session.approvals():
            await asyncio.sleep(0)
        waiting = await lane_of(session, own, child=True)
        store.gate.shut()
        ask.set()
        await store.gate.arrived()
        assert store.gate.held == ("question_asked",)
        deciding = asyncio.ensure_future(waiting.decide(session.approvals()[0].approval_id, allow=True))
        for _ in range(10):  # in memory, where nothing but turns of the loop passes
            await asyncio.sleep(0)
        store.gate.open()
        await deciding
        for _ in range(100):
            await asyncio.sleep(0)
        operation = waiting.inspect().operation
        assert operation is not None
        assert [each.status for each in operation.calls] == ["waiting_question", "outcome_ready"]
        await waiting.answer(session.approvals()[0].approval_id, "A")
        outcome = await driving
        assert isinstance(outcome, Settled) and outcome.result.status == "completed"
