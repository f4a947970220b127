"""One connection to a server, held by a task of its own: cancel scopes of the SDK are entered and left there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import mcp_types
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from pydantic import TypeAdapter

from agentlane import Clock
from agentlane.mcp.failures import text_of
from agentlane.mcp.wire import Handover, Watched, handover

PAGES_MAX = 100
"""How many pages a list of tools may have."""

LISTENS_MAX = 3
"""How often in a row it is tried to hear of changes."""

LISTEN_DELAY_MS = 1_000

HANDSHAKE_VERSIONS_END = "2026"
"""Protocol versions before that year tell of changed tools unasked; later ones have to be asked to."""

_ANSWERS: TypeAdapter[mcp_types.CallToolResult | mcp_types.InputRequiredResult] = TypeAdapter(
    mcp_types.CallToolResult | mcp_types.InputRequiredResult
)

_log = logging.getLogger("agentlane.mcp")

TellProgress = Callable[[float, float | None, str | None], None]


class ConnectionOwner(Protocol):
    """What a connection asks of the server that it belongs to."""

    name: str
    clock: Clock
    context: Context

    def transport(self) -> tuple[AbstractAsyncContextManager[Any], Callable[[], None]]:
        """A new transport, and what is called once the handshake is over."""
        ...

    def listed(self, tools: Sequence[mcp_types.Tool]) -> None:
        """The server said anew which tools it has."""
        ...


class Connection:
    """A connection; ``alive`` while new requests may be sent on it."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._client: Client | None = None
        self._up: asyncio.Future[str | None] = self._loop.create_future()
        self._leave = asyncio.Event()
        self._stopping = False
        self._requests: set[asyncio.Task[Any]] = set()
        self._helpers: set[asyncio.Task[Any]] = set()
        self._refresh: asyncio.Task[Any] | None = None
        self._stale = False
        self.alive = False
        self.problem = "the connection ended"
        self.task = self._spawn(self._run(), "connection")

    async def up(self, within_ms: int) -> str | None:
        """Wait until it is up: None, or what went wrong. Ended before that, cancelled too, it ends itself."""
        clock = self._owner.clock
        timer = self._spawn(clock.sleep_until(clock.now_ms() + within_ms), "timer")
        ends: set[asyncio.Future[Any]] = {self._up, timer}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            if not self._up.done():
                self.task.cancel()
        if not self._up.done():
            await asyncio.wait({self.task})
            return f"it was not up within {within_ms} ms"
        problem = self._up.result()
        if problem is not None:
            await asyncio.wait({self.task})
        return problem

    def retire(self) -> None:
        """Send nothing new on it; it ends with the last request that is under way."""
        self.alive = False
        if not self._requests:
            self._leave.set()

    def stop(self) -> None:
        """End it: what is under way is cancelled on the server."""
        self._stopping, self.alive = True, False
        self._leave.set()
        if not self._up.done():
            self.task.cancel()

    def request(
        self, params: mcp_types.CallToolRequestParams, mark: Handover, told: TellProgress
    ) -> asyncio.Task[mcp_types.CallToolResult | mcp_types.InputRequiredResult]:
        """Start a call in a task of its own, which tells the server when it is cancelled."""
        client = self._client
        if client is None or not self.alive:
            raise RuntimeError("a connection that is not alive was asked for a call")

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            told(progress, total, message)

        async def send() -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
            handover.set(mark)
            return await client.session.send_request(
                mcp_types.CallToolRequest(params=params), _ANSWERS, progress_callback=tell
            )

        # In the caller's context, for tracing: the task ends with the call.
        task = asyncio.Task(send(), loop=self._loop, name=f"agentlane mcp {self._owner.name} {params.name}")
        self._requests.add(task)
        task.add_done_callback(self._request_ended)
        return task

    def _request_ended(self, task: asyncio.Task[Any]) -> None:
        self._requests.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it, or nobody does any more
        if not self.alive and not self._requests:
            self._leave.set()

    async def _run(self) -> None:
        try:
            inner, settled = self._owner.transport()
            client = Client(
                Watched(inner, self._ended),
                cache=None,
                message_handler=self._heard,
                client_info=mcp_types.Implementation(name="agentlane", version=_own_version()),
            )
            async with client:
                tools = await _list(client)
                settled()
                self._client = client
                self.alive = not self._stopping
                self._owner.listed(tools)
                self._up.set_result(None)
                self._listen_for_changes(client)
                await self._leave.wait()
                await self._end_tasks()
        except asyncio.CancelledError:
            self.problem = "it was stopped"
            raise
        except BaseException as error:  # groups of the transport's task group included
            self.problem = text_of(error)
            _log.debug("the connection to %r failed", self._owner.name, exc_info=True)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        finally:
            self.alive = False
            self._client = None
            if not self._up.done():
                self._up.set_result(self.problem)
            for task in tuple(self._helpers):
                task.cancel()

    def _ended(self) -> None:
        """Nothing more comes from the server."""
        self.alive = False
        self._leave.set()

    async def _end_tasks(self) -> None:
        """Let requests end before the streams do: told so if we stop, by themselves if the server is gone."""
        self.alive = False
        for task in tuple(self._helpers):
            task.cancel()
        if self._stopping:
            for task in tuple(self._requests):
                task.cancel()
        left = self._helpers | self._requests
        if left:
            await asyncio.wait(left)

    # Lists of tools that change.

    async def _heard(self, message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._changed()

    def _changed(self) -> None:
        self._stale = True
        if self.alive and (self._refresh is None or self._refresh.done()):
            self._refresh = self._help(self._list_while_stale(), "list")

    def _listen_for_changes(self, client: Client) -> None:
        offered = client.server_capabilities.tools
        if offered is not None and offered.list_changed and client.protocol_version >= HANDSHAKE_VERSIONS_END:
            self._help(self._listen(client), "listen")

    async def _listen(self, client: Client) -> None:
        """Hear of changes, over streams that end: what has changed in between is asked for."""
        clock, failures = self._owner.clock, 0
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    if failures:
                        self._changed()
                    failures = 0
                    async for _ in changes:
                        self._changed()
            except (MCPError, SubscriptionLost):
                failures += 1
                if failures == LISTENS_MAX:
                    raise
            await clock.sleep_until(clock.now_ms() + LISTEN_DELAY_MS)

    async def _list_while_stale(self) -> None:
        while self._stale and self._client is not None:
            self._stale = False
            self._owner.listed(await _list(self._client))

    def _help(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[Any]:
        task = self._spawn(work, what)
        self._helpers.add(task)
        task.add_done_callback(self._help_ended)
        return task

    def _help_ended(self, task: asyncio.Task[Any]) -> None:
        self._helpers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self.alive:
            _log.warning("MCP server %r: changes of its tools are not seen: %s", self._owner.name, text_of(error))

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[Any]:
        """A task in the context that the server was started in: it outlives the call that needed it."""
        name = f"agentlane mcp {self._owner.name} {what}"
        return asyncio.Task(work, loop=self._loop, name=name, context=self._owner.context.copy())


async def _list(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise RuntimeError(f"its list of tools has more than {PAGES_MAX} pages")


def _own_version() -> str:
    try:
        return version("agentlane-runtime")
    except PackageNotFoundError:
        return "0"
