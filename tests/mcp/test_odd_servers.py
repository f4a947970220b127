"""Claim: whatever a server sends in the place of an answer, a call ends, and is told as what is known of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2
import pytest
from mcp.client.auth import OAuthTokenError

from agentlane import RetryPolicy, ToolOptions
from agentlane.mcp import HttpServer, StdioServer, wire
from agentlane.testing import call
from tests.mcp.conftest import HERE, PATIENCE_S
from tests.mcp.odd_server import FINE, answer_to
from tests.mcp.test_calls import NO_TLS, UNKNOWN, texts

ONCE = RetryPolicy(attempts=1)


def unknown(why: str) -> tuple[str, bool]:
    return f"The call was sent to the server 't', and no answer came: {why}. {UNKNOWN}", True


def not_started(why: str) -> tuple[str, bool]:
    return f"The tool 't__x' was not started: the server 't' could not be asked: {why}. The call had no effect.", True


def refused(why: str) -> tuple[str, bool]:
    return f"The server 't' refused the call: {why}.", True


# Programs.


def program(how: str, **options: Any) -> StdioServer:
    return StdioServer("t", sys.executable, ["-I", "-S", str(HERE / "odd_server.py"), how], retry=ONCE, **options)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("logs", ("fine", False)),
        ("asks", ("fine", False)),
        ("floods", ("fine", False)),
        ("half a pair", ("a\ufffd b\U0001f600", False)),
        ("no result", unknown("its answer cannot be read")),
        ("unknown part", None),
        ("dies", unknown("Connection closed")),
        ("closes", unknown("Connection closed")),
    ],
)
async def test_a_program_that_says_odd_things(how: str, told: tuple[str, bool] | None) -> None:
    with open(os.devnull, "w") as nowhere:
        async with asyncio.timeout(PATIENCE_S), program(how, stderr=nowhere) as server:
            (result,) = await texts(server, [call("t__x")])

    if told is None:
        assert result[1] and result[0].startswith("The server 't' ran the call, but the answer is no result (")
    else:
        assert result == told


async def test_offers_that_are_none_do_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with program("odd tools") as server:
        tools = {tool.name: tool.definition.parameters for tool in server.tools()}

    assert list(tools)[:2] == ["t__x", "t__bare"] and len(tools) == 4, tools
    assert list(tools)[2].startswith("t__says_nothing_") and tools["t__bare"] == {"type": "object"}
    left_out = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(left_out) == 4 and any("'endless'" in each for each in left_out), left_out


# Servers at a URL.


class Reply(NamedTuple):
    """An answer to a call as bytes; ``ID`` in it is that of the request."""

    status: int
    body: bytes = b""
    kind: str = "application/json"
    cut: bool = False

    def written(self, id: object) -> bytes:
        body = self.body.replace(b"ID", str(id).encode())
        length = len(body) + 500 * self.cut
        sized = "Connection: close" if self.kind == "text/event-stream" else f"Content-Length: {length}"
        return f"HTTP/1.1 {self.status} so\r\nContent-Type: {self.kind}\r\n{sized}\r\n\r\n".encode() + body


class Site:
    """A server that speaks the protocol by hand, and answers calls as it is told to."""

    def __init__(self, reply: Reply | None) -> None:
        self.reply = reply
        self.calls = 0

    async def serve(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
        try:
            while await self._answered(reads, writes):
                await writes.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writes.close()

    async def _answered(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        head = (await reads.readuntil(b"\r\n\r\n")).decode().lower()
        if not head.startswith("post"):
            writes.write(b"HTTP/1.1 405 no\r\nContent-Length: 0\r\n\r\n")
            return True
        (length,) = [line.split(":")[1] for line in head.split("\r\n") if line.startswith("content-length")]
        message = json.loads(await reads.readexactly(int(length)))
        if "id" not in message:
            writes.write(b"HTTP/1.1 202 so\r\nContent-Length: 0\r\n\r\n")
            return True
        answer = answer_to(message, "")
        if answer is not None:
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode()
            writes.write(Reply(200, body).written(0))
            return True
        self.calls += 1
        if self.reply is None:
            return False
        writes.write(self.reply.written(message["id"]))
        return not self.reply.cut and self.reply.kind != "text/event-stream"


@asynccontextmanager
async def site(reply: Reply | None, **options: Any) -> AsyncIterator[tuple[Site, HttpServer]]:
    made = Site(reply)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with HttpServer("t", f"http://127.0.0.1:{port}/mcp", retry=ONCE, **NO_TLS, **options) as server:
        yield made, server
    listening.close()


ERROR = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no such thing"}}'
NO_ANSWER = "HTTP 200 without an answer to the call"
EVENTS = "text/event-stream"


@pytest.mark.parametrize(
    ("reply", "told", "sent"),
    [
        (Reply(200, FINE), ("fine", False), 1),
        (Reply(200, b"data: " + FINE + b"\n", EVENTS), ("fine", False), 1),
        (Reply(200, b"data: " + FINE.replace(b"fine", b"f" * 2_000_000) + b"\n", EVENTS), ("f" * 2_000_000, False), 1),
        (Reply(200, FINE.replace(b"fine", rb"a\ud800")), ("a\ufffd", False), 1),
        # Looked at, and refused.
        (Reply(400), refused("HTTP 400"), 1),
        (Reply(413, b"<p>too much", "text/html"), refused("HTTP 413"), 1),
        (Reply(400, ERROR), refused("no such thing (error -32602)"), 1),
        (Reply(500, ERROR), refused("no such thing (error -32602)"), 1),
        # Not looked at: tried once more.
        (Reply(401), not_started("HTTP 401"), 2),
        (Reply(429, b"wait", "text/plain", cut=True), not_started("HTTP 429"), 2),
        # Nobody knows.
        (Reply(500), unknown("HTTP 500"), 1),
        (Reply(500, b'{"detail":"Internal Server Error"}'), unknown("HTTP 500"), 1),
        (Reply(502, b"<h1>Bad Gateway</h1>", "text/html"), unknown("HTTP 502"), 1),
        (Reply(408), unknown("HTTP 408"), 1),
        (Reply(202), unknown("HTTP 202 without an answer to the call"), 1),
        (Reply(200, b"<h1>Log in</h1>", "text/html"), unknown(NO_ANSWER), 1),
        (Reply(200, b"{nope"), unknown(NO_ANSWER), 1),
        (Reply(200), unknown(NO_ANSWER), 1),
        (Reply(200, FINE.replace(b"ID", b"99")), unknown(NO_ANSWER), 1),
        (Reply(200, b'{"jsonrpc"', cut=True), None, 1),
        (Reply(200, b'data: {"jsonrpc"', EVENTS), unknown("SSE stream ended without a response"), 1),
        (Reply(200, b"data: {nope\n\n", EVENTS), unknown("its answer cannot be read"), 1),
        (None, None, 1),
    ],
)
async def test_a_site_that_says_odd_things(reply: Reply | None, told: tuple[str, bool] | None, sent: int) -> None:
    large = {"x": ToolOptions(max_result_bytes=1 << 24)}
    async with asyncio.timeout(PATIENCE_S), site(reply, options=large) as (made, server):
        (result,) = await texts(server, [call("t__x")])

        assert made.calls == sent, "what may have run is not sent again"
    if told is None:
        assert result[1] and result[0].endswith(UNKNOWN) and "no answer came: RemoteProtocolError" in result[0]
    else:
        assert result == told


async def test_an_answer_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ANSWER_BYTES_MAX", 10_000)
    long = FINE.replace(b"fine", b"f" * 20_000)
    for kind, body in (("application/json", long), (EVENTS, b"data: " + long + b"\n")):
        async with asyncio.timeout(PATIENCE_S), site(Reply(200, body, kind)) as (made, server):
            ((text, is_error),) = await texts(server, [call("t__x")])

            assert is_error and text.endswith(UNKNOWN) and "10000" in text and made.calls == 1


@pytest.mark.parametrize("reply", [Reply(502), Reply(200, b"{nope"), Reply(200, b"data: {nope\n\n", EVENTS), None])
async def test_what_may_be_repeated_is_sent_once_more(reply: Reply | None) -> None:
    async with asyncio.timeout(PATIENCE_S), site(reply, options={"x": ToolOptions(replay="safe")}) as (made, server):
        ((text, is_error),) = await texts(server, [call("t__x")])

        assert is_error and text.endswith(UNKNOWN) and made.calls == 2


class Raising(httpx2.Auth):
    """Raises when a call is sent."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def async_auth_flow(self, request: httpx2.Request) -> Any:
        if b'"tools/call"' in request.content:
            raise self.error
        yield request


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OAuthTokenError("expired"), not_started("OAuthTokenError: expired")),
        (RuntimeError("broken"), unknown("RuntimeError: broken")),
    ],
)
async def test_what_an_auth_raises_ends_one_call_and_no_connection(error: Exception, told: tuple[str, bool]) -> None:
    async with asyncio.timeout(PATIENCE_S), site(Reply(200, FINE), auth=Raising(error)) as (made, server):
        assert await texts(server, [call("t__x")]) == [told]
        assert made.calls == 0 and server.status.state in ("ready", "not_ready")
