"""Claim: a server is started, met again within its bounds, or said not to be ready, and it ends without a trace."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    InvalidDefinition,
    Prompt,
    RetryPolicy,
    SessionClosed,
    Settled,
    ToolOptions,
    WrongLoop,
    open_session,
)
from agentlane.machine.outcomes import INTERRUPTED, NOT_STARTED
from agentlane.mcp import HttpServer, ServerNotReady, StdioServer
from agentlane.storage import JsonlStore, MemoryStore, SqliteStore
from agentlane.testing import ManualClock, ScriptedModel, Trace, call, check_trace
from tests.mcp.conftest import PATIENCE_S, Notes, Servers
from tests.mcp.test_calls import NO_TLS, results, serving

STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda _: MemoryStore(),
    "jsonl": lambda folder: JsonlStore(folder / "sessions", durability="process"),
    "sqlite": lambda folder: SqliteStore(folder / "sessions.db", durability="process"),
}
MUTE = [sys.executable, ["-I", "-S", "-c", "import sys; sys.stdin.read()"]]


def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


def runs(pid: int) -> bool:
    """Whether a process goes on: one that has ended may stand in the table for a moment more."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def due(clock: ManualClock, ms: int) -> None:
    """Return once the next who sleeps does so for that long."""
    async with asyncio.timeout(PATIENCE_S):
        while clock.next_due != clock.now_ms() + ms:
            await asyncio.sleep(0)


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_it_is_started_with_growing_waits_and_then_said_not_to_be_ready() -> None:
    clock = ManualClock()
    server = StdioServer("t", "no-such-program", retry=RetryPolicy(attempts=3), clock=clock)
    assert server.status.state == "new" and server.tools() == ()
    starting = asyncio.ensure_future(server.start())

    await due(clock, 500)
    assert (server.status.state, server.status.attempt) == ("connecting", 2)
    assert "no-such-program" in str(server.status.problem)
    clock.advance(500)
    await due(clock, 1_000)
    clock.advance(1_000)

    with pytest.raises(ServerNotReady) as raised:
        await starting
    assert "'t' is not ready: 3 attempts to start it failed, the last with FileNotFoundError" in str(raised.value)
    assert (raised.value.code, raised.value.details) == ("server_not_ready", {"server": "t"})
    assert server.status.state == "closed" and not others() and not clock.sleepers


async def test_one_that_is_not_required_may_come_later(servers: Servers) -> None:
    port = unused_port()
    retry = RetryPolicy(attempts=1)
    async with HttpServer("t", f"http://127.0.0.1:{port}/mcp", required=False, retry=retry, **NO_TLS) as server:
        assert server.status.state == "not_ready" and "ConnectError" in str(server.status.problem)
        assert server.tools() == ()
        await servers.http(port)

        await server.ready()

        assert server.status.state == "ready" and len(server.tools()) == 18


async def test_an_attempt_that_takes_too_long_is_given_up_with_its_process() -> None:
    clock = ManualClock()
    command, args = MUTE
    server = StdioServer("t", command, args, retry=RetryPolicy(attempts=1), start_timeout_ms=70, clock=clock)  # type: ignore[arg-type]
    starting = asyncio.ensure_future(server.start())
    await due(clock, 70)

    clock.advance(70)

    with pytest.raises(ServerNotReady, match="it was not up within 70 ms"):
        await starting
    assert not others()


async def test_a_cancelled_start_leaves_nothing() -> None:
    command, args = MUTE
    server = StdioServer("t", command, args)  # type: ignore[arg-type]
    starting = asyncio.ensure_future(server.start())
    while len(others()) < 5:  # its process runs, and streams are read
        await asyncio.sleep(0)

    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not others() and server.status.state == "closed"


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_closed_in_another_task_in_the_middle_of_a_call_it_leaves_no_task_and_no_process(
    way: str, servers: Servers, notes: Notes
) -> None:
    server = await serving(way, servers)
    await asyncio.ensure_future(server.start())
    pid = notes.last_pid() if way == "http" else await notes.pid()
    async with open_session(":memory:") as session, asyncio.timeout(PATIENCE_S):
        model = ScriptedModel([[call("t__hang")], [call("t__plain")], "done"])
        lane = await session.lane("main", Agent(model=model, tools=server.tools()))
        running = asyncio.ensure_future(lane.run("go"))
        await notes.next("hang")

        await asyncio.ensure_future(server.close())

        assert (await running).status == "completed"
        hung, later = await results(lane)
        assert hung.is_error and "may have run in part" in hung.text
        closed = "the MCP server 't' is not ready: it is closed"
        assert later.text == f"The tool 't__plain' was not started: {closed}. The call had no effect."
        await notes.next("hang cancelled")
    assert not others() and runs(pid) is (way == "http")
    await server.close()
    with pytest.raises(ServerNotReady, match="it is closed"):
        await server.start()


async def test_a_cancelled_close_ends_all_the_same(servers: Servers, notes: Notes) -> None:
    server = await serving("stdio", servers)
    await server.start()
    pid = await notes.pid()
    closing = asyncio.ensure_future(server.close())
    await asyncio.sleep(0)

    closing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not others() and not runs(pid)


async def test_a_loop_that_ends_takes_it_along(servers: Servers, notes: Notes) -> None:
    left: list[Any] = []

    async def forgetful() -> None:
        server = await serving("stdio", servers)
        await server.start()
        session = await open_session(":memory:")
        model = ScriptedModel([[call("t__hang")], "done"])
        lane = await session.lane("main", Agent(model=model, tools=server.tools()))
        await lane.accept(Prompt("go"))
        left.extend([server, asyncio.ensure_future(lane.drive())])
        await server.ready()

    await asyncio.to_thread(asyncio.run, forgetful())

    assert not runs(await notes.pid())
    with pytest.raises(WrongLoop):
        await left[0].ready()


async def test_options_for_a_tool_that_is_not_there_are_refused(servers: Servers) -> None:
    async with await serving("stdio", servers, options={"ecko": ToolOptions(approval=True)}) as server:
        with pytest.raises(InvalidDefinition, match="'ecko'; it offers 'echo', 'put'"):
            server.tools()


@pytest.mark.parametrize("kind", STORES)
async def test_a_call_that_waits_for_its_server_has_not_begun_whatever_ends_it(
    kind: str, tmp_path: Path, servers: Servers, notes: Notes
) -> None:
    clock, trace = ManualClock(), Trace()
    port = await servers.http()
    retry = RetryPolicy(attempts=2)
    async with HttpServer("t", f"http://127.0.0.1:{port}/mcp", retry=retry, clock=clock, **NO_TLS) as server:
        store = trace.store(STORES[kind](tmp_path))
        await store.create("s")
        model = ScriptedModel([[call("t__plain")], [call("t__plain")], "done"])
        agent = trace.agent(Agent(model=model, tools=server.tools()))
        await servers.kill()
        async with open_session(store, session_id="s", probe=trace.probe()) as session, asyncio.timeout(PATIENCE_S):
            lane = await session.lane("main", agent)
            running = asyncio.ensure_future(lane.run("go"))
            await due(clock, 500)
            await lane.abort()
            await running
            (told,) = await results(lane)
            assert told.text == NOT_STARTED
            clock.advance(500)  # nobody waits for that start any more
            while server.status.state != "not_ready":
                await asyncio.sleep(0)

            await lane.accept(Prompt("again"), operation_id="op")
            driving = asyncio.ensure_future(lane.drive("op"))
            await due(clock, 500)
        await asyncio.wait({driving})
        assert isinstance(driving.exception(), SessionClosed)
        await servers.http(port)
        clock.advance(500)

        async with open_session(store, session_id="s", probe=trace.probe()) as session, asyncio.timeout(PATIENCE_S):
            lane = await session.lane("main", agent)
            outcome = await lane.drive("op")
            assert isinstance(outcome, Settled) and outcome.result.status == "completed"
            assert [each.text for each in await results(lane)] == [NOT_STARTED, "plain {}"]
        assert check_trace(trace) == [], trace.history()
        await store.close()
    assert notes.count("plain") == 1


@pytest.mark.parametrize("kind", ["jsonl", "db"])
@pytest.mark.parametrize("tool", ["hang", "stall"])
async def test_killed_in_a_call_our_process_leaves_what_its_policy_says(
    kind: str, tool: str, tmp_path: Path, servers: Servers, notes: Notes
) -> None:
    target = str(tmp_path / f"s.{kind}")
    servers.fork("run", target, f"t__{tool}")
    pid = int((await notes.next("client ")).split()[1])
    await notes.next(f"{tool} ")
    os.kill(pid, 9)
    await servers.gone()
    async with asyncio.timeout(PATIENCE_S):
        async with await serving("stdio", servers, trust_hints=True) as server, open_session(target) as session:
            model = ScriptedModel([[call(f"t__{tool}")], "done"])
            lane = await session.lane("main", Agent(model=model, tools=server.tools()))
            outcome = await lane.drive("op")
            (told,) = await results(lane)

    assert isinstance(outcome, Settled) and outcome.result.status == "completed"
    keys = [line.split()[1] for line in notes.all if line.startswith(f"{tool} ") and "cancelled" not in line]
    if tool == "hang":
        assert told.is_error and told.text.endswith(INTERRUPTED) and len(keys) == 1
    else:
        assert told.text == "stall {}" and len(keys) == 2 and len(set(keys)) == 1
