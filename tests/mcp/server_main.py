"""A server for the tests, on the SDK's own: ``server_main.py stdio`` or ``server_main.py http PORT``, with ``legacy``
behind it for one that knows protocol versions before 2026 only.

What it does is told as lines to the pipe NOTES: ``port N``, ``started N``, and for each call ``NAME KEY``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged
from said import LONG, PIXEL, SCHEMA, SOUND

READS = types.ToolAnnotations(read_only_hint=True)
REPEATS = types.ToolAnnotations(idempotent_hint=True)
WRITES = types.ToolAnnotations(destructive_hint=True, idempotent_hint=True)
CHANGES = InMemorySubscriptionBus()


def note(text: str) -> None:
    descriptor = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def tool(name: str, hints: types.ToolAnnotations | None = None, **more: Any) -> types.Tool:
    about = {"description": f"The tool {name}.", "input_schema": {"type": "object", "properties": {}}, **more}
    return types.Tool(name=name, annotations=hints, **about)


TOOLS = [
    tool("echo", READS, input_schema=SCHEMA),
    tool("put", REPEATS),
    tool("wipe", WRITES),
    tool("plain"),
    tool("rich"),
    tool("refuse"),
    tool("wrong", output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
    tool("hang"),
    tool("stall", READS),
    tool("later"),
    tool("ask"),
    tool("die"),
    tool("die_safe", READS),
    tool("die_once", READS),
    tool("grow"),
    tool("a.b"),
    tool("a b"),
    tool(LONG),
]


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    """In two pages, so that both are asked for."""
    if params is not None and params.cursor:
        return types.ListToolsResult(tools=TOOLS[5:])
    return types.ListToolsResult(tools=TOOLS[:5], next_cursor="more")


def text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=value)])


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult | types.InputRequiredResult:
    name, arguments = params.name, params.arguments or {}
    key = (params.meta or {}).get("agentlane/idempotencyKey")
    note(f"{name} {key}")
    match name:
        case "rich":
            return rich()
        case "refuse":
            raise MCPError(code=-32000 - 42, message="not on a Monday", data={"day": 1})
        case "wrong":
            return types.CallToolResult(content=[types.TextContent(text="done")], structured_content={"n": "many"})
        case "hang":
            try:  # it may be cancelled as soon as it has noted that it runs
                await ctx.session.report_progress(1, 2, "half way")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                note("hang cancelled")
                raise
        case "later":
            if params.request_state != "2":
                return types.InputRequiredResult(request_state=str(int(params.request_state or 0) + 1))
        case "ask":
            question = types.ElicitRequest(
                params=types.ElicitRequestFormParams(
                    message="who?", requested_schema={"type": "object", "properties": {}}
                )
            )
            return types.InputRequiredResult(input_requests={"who": question})
        case "stall":
            if not os.path.exists(os.environ["NOTES"] + ".stalled"):
                open(os.environ["NOTES"] + ".stalled", "w").close()
                await asyncio.Event().wait()
        case "die" | "die_safe":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die_once":
            if not os.path.exists(os.environ["NOTES"] + ".dead"):
                open(os.environ["NOTES"] + ".dead", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        case "grow":
            TOOLS[0] = tool("echo", READS, description="It has changed.")
            TOOLS.append(tool("new"))
            if ctx.protocol_version < "2026":
                await ctx.session.send_tool_list_changed()
            else:  # only who has asked is told
                await CHANGES.publish(ToolsListChanged())
    return text(f"{name} {arguments}")


def rich() -> types.CallToolResult:
    return types.CallToolResult(
        content=[
            types.TextContent(text="first"),
            types.ImageContent(data=PIXEL, mime_type="image/png"),
            types.AudioContent(data=SOUND, mime_type="audio/wav"),
            types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a.txt", text="of a file")),
            types.EmbeddedResource(
                resource=types.BlobResourceContents(uri="file:///b.png", blob=PIXEL, mime_type="image/png")
            ),
            types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///c.bin", blob=SOUND)),
            types.ResourceLink(uri="file:///d.txt", name="d", description="another file", size=7),
        ],
        structured_content={"n": 1},
        is_error=True,
    )


async def over_stdio(server: Server[Any], *, legacy: bool) -> None:
    options = server.create_initialization_options(notification_options=NotificationOptions(tools_changed=True))
    async with stdio_server() as (reads, writes):
        if not legacy:
            await server.run(reads, writes, options)
            return
        async with server.lifespan(server) as state:
            await serve_loop(server, reads, writes, lifespan_state=state, init_options=options)


def over_http(server: Server[Any], port: int) -> None:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    note(f"port {listening.getsockname()[1]}")
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on")).run(sockets=[listening])


async def unknown(ctx: Any, params: Any) -> types.EmptyResult:
    raise MCPError(code=types.METHOD_NOT_FOUND, message="no such method")


def serve(arguments: list[str]) -> None:
    made: Server[Any] = Server(
        "tests",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(CHANGES),
    )
    if "legacy" in arguments:
        made.add_request_handler("server/discover", types.RequestParams, unknown)
    note(f"started {os.getpid()}")
    if arguments[0] == "stdio":
        asyncio.run(over_stdio(made, legacy="legacy" in arguments))
    else:
        over_http(made, int(arguments[1]))


if __name__ == "__main__":
    serve(sys.argv[1:])
