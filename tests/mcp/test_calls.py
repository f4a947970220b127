"""Claim: a server's tools are tools of a lane over every transport: what they are, what they answer, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentlane import (
    Agent,
    AgentLane,
    ImagePart,
    OperationResult,
    RetryPolicy,
    TextPart,
    ToolOptions,
    ToolResultMessage,
    open_session,
)
from agentlane.mcp import HttpServer, McpServer, StdioServer
from agentlane.testing import ManualClock, ScriptedModel, call
from tests.mcp.conftest import PATIENCE_S, Notes, Servers
from tests.mcp.said import LONG, PIXEL, SCHEMA

WAYS = ["stdio", "stdio legacy", "http", "http legacy"]
NO_TLS: dict[str, Any] = {"client_options": {"verify": False}}  # reading certificates takes longer than a test
RETRY = RetryPolicy(attempts=2, base_ms=1, cap_ms=1)
UNKNOWN = "The call may have run in part, or may have finished. Check before doing it again."


class Reached:
    """A probe that tells of one boundary."""

    def __init__(self, boundary: str) -> None:
        self.boundary = boundary
        self.event = asyncio.Event()

    def reached(self, boundary: str) -> None:
        if boundary == self.boundary:
            self.event.set()


async def serving(way: str, servers: Servers, **options: Any) -> McpServer:
    """A server of ours, not started, that is reached this way."""
    kind, *more = way.split()
    if kind == "stdio":
        return StdioServer("t", **servers.stdio(*more), **options)
    return HttpServer("t", f"http://127.0.0.1:{await servers.http(0, *more)}/mcp", **NO_TLS, **options)


@asynccontextmanager
async def laned(
    server: McpServer, *answers: Any, probe: Any = None, **agent: Any
) -> AsyncIterator[AgentLane[Any, Any]]:
    model = ScriptedModel([*answers, "done"])
    async with open_session(":memory:", probe=probe) as session:
        yield await session.lane("main", Agent(model=model, tools=server.tools(), **agent))


async def results(lane: AgentLane[Any, Any]) -> list[ToolResultMessage]:
    """Oldest first."""
    entries = await lane.entries(newest_first=False)
    return [each.body for each in entries if isinstance(each.body, ToolResultMessage)]


async def outcome(lane: AgentLane[Any, Any]) -> OperationResult:
    async with asyncio.timeout(PATIENCE_S):
        return await lane.run("go")


async def texts(server: McpServer, *answers: Sequence[Any]) -> list[tuple[str, bool]]:
    async with laned(server, *answers) as lane:
        await outcome(lane)
        return [(each.text, each.is_error) for each in await results(lane)]


@pytest.mark.parametrize("way", WAYS)
async def test_tools_come_as_the_server_declares_them_under_names_that_providers_take(
    way: str, servers: Servers
) -> None:
    async with await serving(way, servers) as server:
        tools = {tool.name: tool for tool in server.tools()}

    names = list(tools)
    assert names[:5] == ["t__echo", "t__put", "t__wipe", "t__plain", "t__rich"] and len(names) == 18
    assert tools["t__echo"].definition.parameters == SCHEMA
    assert tools["t__echo"].definition.description == "The tool echo."
    odd = [name for name in names if name.startswith(("t__a_b", "t__long"))]
    assert len(set(odd)) == 3 and all(name.replace("_", "").isalnum() and len(name) <= 64 for name in names)
    assert {tool.options.replay for tool in tools.values()} == {"never"}, "nobody said that the hints are trusted"


async def test_hints_count_where_the_application_trusts_the_server_and_its_own_word_counts_more(
    servers: Servers,
) -> None:
    own = {"put": ToolOptions(replay="ask", timeout_ms=5), "plain": ToolOptions(replay="safe")}
    async with await serving("stdio", servers, trust_hints=True, options=own, timeout_ms=7) as server:
        tools = {tool.name.removeprefix("t__"): tool.options for tool in server.tools()}

    assert [tools[name].replay for name in ("echo", "put", "wipe", "plain", "rich")] == [
        *("safe", "ask", "ask", "safe", "never")
    ]
    assert [tools[name].timeout_ms for name in ("echo", "put", "plain")] == [7, 5, None]


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_server_answers_is_the_result_and_the_key_goes_with_the_request(
    way: str, servers: Servers, notes: Notes
) -> None:
    calls = [call("t__echo", text="a"), call("t__echo", text="a"), call("t__rich"), call("t__refuse"), call("t__wrong")]
    async with await serving(way, servers) as server, laned(server, calls, max_parallel=1) as lane:
        result = await outcome(lane)
        first, second, rich, refused, wrong = await results(lane)

    assert result.status == "completed"
    assert (first.text, first.is_error, first.details) == ("echo {'text': 'a'}", False, None)
    assert second.text == first.text
    keys = [line.split()[1] for line in notes.all if line.startswith("echo ")]
    place = f"/{result.operation_id}/t__echo#6193c97585a0f731ce7b500bb69d2476/"
    assert [key.partition(place)[2] for key in keys] == ["0", "1"], keys
    image = ImagePart(data=PIXEL, mime_type="image/png")
    assert rich.is_error and rich.content == (
        TextPart(text="first"),
        image,
        TextPart(text="[audio audio/wav, 3 bytes]"),
        TextPart(text="[resource file:///a.txt]\nof a file"),
        TextPart(text="[resource file:///b.png, image/png, 20 bytes]"),
        image,
        TextPart(text="[resource file:///c.bin, application/octet-stream, 3 bytes]"),
        TextPart(text="[link to resource file:///d.txt (d, 7 bytes)]: another file"),
    )
    assert rich.details["structured"] == {"n": 1} and set(rich.details) == {"structured", "blocks"}
    assert [block["type"] for block in rich.details["blocks"]] == ["audio", *["resource"] * 3, "resource_link"]
    assert (refused.is_error, refused.text) == (
        True,
        "The server 't' refused the call: not on a Monday (error -32042).",
    )
    assert refused.details == {"code": -32042, "message": "not on a Monday", "data": {"day": 1}}
    assert (wrong.text, wrong.is_error, wrong.details) == ("done", False, {"structured": {"n": "many"}}), (
        "what the tool did is done, though it does not say it as it promised"
    )


@pytest.mark.parametrize("way", WAYS)
async def test_progress_is_the_calls_progress_and_an_abort_reaches_the_server(
    way: str, servers: Servers, notes: Notes
) -> None:
    saved = Reached("commit.progress.after")
    async with (
        await serving(way, servers) as server,
        laned(server, [call("t__hang")], probe=saved) as lane,
        asyncio.timeout(PATIENCE_S),
    ):
        running = asyncio.ensure_future(lane.run("go"))
        await saved.event.wait()

        await lane.abort()

        (told,) = await results(lane)
        assert (await running).status == "aborted"
        assert told.content[1] == TextPart(text="1/2: half way") and "while this call was running" in told.text
        await notes.next("hang cancelled")
        assert await texts(server, [call("t__plain")]) == [("plain {}", False)], "the connection serves on"
        assert notes.count("started") == 1


@pytest.mark.parametrize("way", ["stdio", "stdio legacy", "http"])
async def test_a_changed_list_of_tools_is_taken_on_and_told(way: str, servers: Servers) -> None:
    changed: asyncio.Queue[McpServer] = asyncio.Queue()
    async with await serving(way, servers, on_change=changed.put_nowait) as server:
        before = server.tools()
        async with (
            laned(server, [call("t__grow")], "grown", [call("t__echo")], "so") as lane,
            asyncio.timeout(PATIENCE_S),
        ):
            await lane.run("go")
            assert await changed.get() is server
            await lane.run("again")
            model: Any = lane.agent.model
            shown = {tool.name: tool.description for tool in model.requests[-1].tools}

        after = server.tools()
        assert shown["t__echo"] == "It has changed.", "the agent that was made before shows what is so now"
        assert after[: len(before)] == before and [tool.name for tool in after[len(before) :]] == ["t__new"]


async def test_a_server_killed_in_a_call_leaves_it_uncertain_and_is_started_again(
    servers: Servers, notes: Notes
) -> None:
    async with await serving("stdio", servers, trust_hints=True, retry=RETRY) as server:
        assert await texts(server, [call("t__die")], [call("t__plain")]) == [
            (
                "The call was sent to the server 't', and no answer came: Connection closed. " + UNKNOWN,
                True,
            ),
            ("plain {}", False),
        ]
        assert (notes.count("die "), notes.count("started ")) == (1, 2), "it may not run twice"
        assert await texts(server, [call("t__die_once")]) == [("die_once {}", False)]
        assert await texts(server, [call("t__die_safe")]) == [
            (
                "The call was sent to the server 't', and no answer came: Connection closed. " + UNKNOWN,
                True,
            )
        ]
    keys = [line.split()[1] for line in notes.all if line.startswith("die_")]
    assert len(keys) == 4 and len(set(keys[:2])) == len(set(keys[2:])) == 1, "what may be repeated is, once, by its key"


@pytest.mark.parametrize("way", ["http", "http legacy"])
async def test_a_server_killed_over_http_leaves_its_calls_uncertain_and_the_next_are_not_started(
    way: str, servers: Servers, notes: Notes
) -> None:
    port = await servers.http(0, *way.split()[1:])
    async with HttpServer("t", f"http://127.0.0.1:{port}/mcp", retry=RETRY, **NO_TLS) as server:
        async with laned(server, [call("t__hang"), call("t__die")], [call("t__plain")]) as lane:
            running = asyncio.ensure_future(lane.run("go"))
            await notes.next("hang")
            async with asyncio.timeout(PATIENCE_S):
                result = await running
            hung, died, later = await results(lane)
        assert result.status == "completed"
        assert hung.is_error and hung.text.endswith(UNKNOWN) and died.is_error and died.text.endswith(UNKNOWN)
        assert later.is_error and later.text.startswith("The tool 't__plain' was not started: ")
        assert later.text.endswith(". The call had no effect.")
        assert server.status.state == "not_ready" and notes.count("plain") == 0
        await servers.gone()
        await servers.http(port, *way.split()[1:])
        assert await texts(server, [call("t__plain")]) == [("plain {}", False)]


async def test_an_http_server_that_forgot_the_session_is_met_anew_in_the_same_call(
    servers: Servers, notes: Notes
) -> None:
    port = await servers.http(0, "legacy")
    async with HttpServer("t", f"http://127.0.0.1:{port}/mcp", retry=RETRY, **NO_TLS) as server:
        await servers.kill()
        await servers.http(port, "legacy")

        assert await texts(server, [call("t__plain")]) == [("plain {}", False)]
    assert notes.count("plain") == 1


async def test_an_answer_that_is_put_off_is_waited_for_and_a_demand_for_input_is_refused(
    servers: Servers, notes: Notes
) -> None:
    async with await serving("stdio", servers) as server:
        assert await texts(server, [call("t__later")], [call("t__ask")]) == [
            ("later {}", False),
            (
                "The server 't' asks for more before it goes on with the call (elicitation/create), which nobody "
                "answers here, so the call was not finished.",
                True,
            ),
        ]
    assert (notes.count("later"), notes.count("ask")) == (3, 1)


async def test_two_sessions_use_one_server_at_once(servers: Servers, notes: Notes) -> None:
    saved = Reached("commit.progress.after")
    async with await serving("stdio", servers) as server, asyncio.timeout(PATIENCE_S):
        async with laned(server, [call("t__hang")], probe=saved) as slow:
            running = asyncio.ensure_future(slow.run("go"))
            await saved.event.wait()

            assert await texts(server, [call("t__plain")]) == [("plain {}", False)]

            await slow.abort()
            await running
    assert notes.count("started") == 1


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_call_of_a_server_that_does_not_react_is_left_at_once(way: str, servers: Servers, notes: Notes) -> None:
    async with await serving(way, servers) as server, asyncio.timeout(PATIENCE_S):
        pid = notes.last_pid() if way == "http" else await notes.pid()
        async with open_session(":memory:", clock=ManualClock()) as session:  # on it no grace is ever over
            model = ScriptedModel([[call("t__hang")], "done"])
            lane = await session.lane("main", Agent(model=model, tools=server.tools()))
            running = asyncio.ensure_future(lane.run("go"))
            await notes.next("hang")
            os.kill(pid, signal.SIGSTOP)
            try:
                await lane.abort()
                assert (await running).status == "aborted"
            finally:
                os.kill(pid, signal.SIGCONT)
        await notes.next("hang cancelled")


async def test_a_tool_that_takes_too_long_is_ended_on_the_server_too(servers: Servers, notes: Notes) -> None:
    clock = ManualClock()
    async with await serving("stdio", servers, timeout_ms=50) as server, asyncio.timeout(PATIENCE_S):
        async with open_session(":memory:", clock=clock) as session:
            model = ScriptedModel([[call("t__hang")], "done"])
            lane = await session.lane("main", Agent(model=model, tools=server.tools()))
            running = asyncio.ensure_future(lane.run("go"))
            await notes.next("hang")

            clock.advance(50)
            await running

            (told,) = await results(lane)
            assert told.is_error and "did not end within 50 ms" in told.text
        await notes.next("hang cancelled")
    assert len(LONG) > 64
