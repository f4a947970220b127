"""One call of a server's tool: what is sent, what is known when no answer comes, and when it may be sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

import mcp_types
from mcp import MCPError
from msgspec import Struct
from pydantic import ValidationError

from agentlane import Clock, NoActiveOperation, NotStarted, ToolContext, ToolResult
from agentlane.mcp.connection import Connection
from agentlane.mcp.failures import Lost, NotBegun, ServerNotReady, marked, text_of
from agentlane.mcp.results import details_of, result_of
from agentlane.mcp.wire import Handover

IDEMPOTENCY_KEY = "agentlane/idempotencyKey"
"""Under this key a request's ``_meta`` has the call's idempotency key: the same at every start of the same call."""

SENDINGS_MAX = 2
"""How often one call is sent when it certainly did not reach the tool, or may be repeated."""

ROUNDS_MAX = 10
"""How often a server may put off its answer to one request."""

ROUND_DELAY_MS = 100


class CallingServer(Protocol):
    """What a call asks of its server."""

    name: str
    clock: Clock

    async def connection(self) -> Connection:
        """A connection that is alive, made if there is none; ``ServerNotReady`` after all attempts."""
        ...


class _Heard:
    """What has come of a running request: the latest progress, or that there is something to look at."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self._said: str | None = None

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        how_far = f"{done:g}" if total is None else f"{done:g}/{total:g}"
        self._said = f"{how_far}: {message}" if message else how_far
        self.wake.set()

    def ended(self, _: object) -> None:
        self.wake.set()

    def take(self) -> str | None:
        said, self._said = self._said, None
        return said


class RemoteCall(Struct, frozen=True, kw_only=True):
    """A call that is under way. ``repeatable`` says whether it may run twice, when its start is not known."""

    server: CallingServer
    tool: str
    arguments: dict[str, Any]
    context: ToolContext[Any]
    repeatable: Callable[[], bool]

    async def run(self) -> ToolResult:
        """Its result. Raises ``NotStarted`` where the tool was certainly not reached, on a cancellation too."""
        began = False
        for sending in range(1, SENDINGS_MAX + 1):
            last = sending == SENDINGS_MAX
            try:
                connection = await self.server.connection()
            except ServerNotReady as error:
                if began:
                    return self._lost(str(error))
                raise NotStarted(str(error)) from error
            except asyncio.CancelledError:
                if began:
                    raise
                raise NotStarted(f"it was stopped while the server {self.server.name!r} was not ready") from None
            try:
                return await self._sent(connection, began=began)
            except NotBegun as error:
                connection.retire()
                if last:
                    if began:
                        return self._lost(str(error))
                    raise NotStarted(f"the server {self.server.name!r} could not be asked: {error}") from error
            except Lost as error:
                connection.retire()
                began = True
                if last or not self.repeatable():
                    return self._lost(str(error))
        raise AssertionError("unreachable")

    async def _sent(self, connection: Connection, *, began: bool) -> ToolResult:
        """The result of one sending, over the rounds in which the server puts its answer off."""
        state: str | None = None
        for number in range(ROUNDS_MAX):
            if number:
                await self.server.clock.sleep_until(self.server.clock.now_ms() + ROUND_DELAY_MS)
                if not connection.alive:
                    raise Lost("the connection ended")
            params = mcp_types.CallToolRequestParams(
                name=self.tool,
                arguments=self.arguments,
                request_state=state,
                _meta=cast(mcp_types.RequestParamsMeta, {IDEMPOTENCY_KEY: self.context.idempotency_key}),
            )
            try:
                answer = await self._answer(connection, params, began=began or number > 0)
            except NotBegun as error:
                if number:  # an earlier round reached the tool
                    raise Lost(str(error)) from error
                raise
            if isinstance(answer, ToolResult):
                return answer
            if answer.input_requests:
                asked = ", ".join(sorted({each.method for each in answer.input_requests.values()}))
                return _error(
                    f"The server {self.server.name!r} asks for more before it goes on with the call ({asked}), which "
                    "nobody answers here, so the call was not finished."
                )
            state = answer.request_state
        return _error(f"The server {self.server.name!r} put its answer off {ROUNDS_MAX} times. Nothing more is known.")

    async def _answer(
        self, connection: Connection, params: mcp_types.CallToolRequestParams, *, began: bool
    ) -> ToolResult | mcp_types.InputRequiredResult:
        heard, mark = _Heard(), Handover()
        request = connection.request(params, mark, heard.progress)
        request.add_done_callback(heard.ended)
        try:
            while not request.done():
                await heard.wake.wait()
                heard.wake.clear()
                if (said := heard.take()) is not None and not request.done():
                    await self._tell(said)
        except asyncio.CancelledError:
            request.cancel()  # its task tells the server, and is not waited for here
            if began or mark.done:
                raise
            raise NotStarted(f"it was stopped before the server {self.server.name!r} was asked") from None
        except BaseException:
            request.cancel()
            raise
        try:
            answer = request.result()
        except MCPError as error:
            return self._refused(error, mark)
        except ValidationError as error:
            said = f"the answer is no result ({error.error_count()} problems)"
            return _error(f"The server {self.server.name!r} ran the call, but {said}.")
        except asyncio.CancelledError:
            raise (Lost if mark.done else NotBegun)("the connection was closed") from None
        except Exception as error:
            raise (Lost if mark.done else NotBegun)(text_of(error)) from error
        return result_of(answer) if isinstance(answer, mcp_types.CallToolResult) else answer

    def _refused(self, error: MCPError, mark: Handover) -> ToolResult:
        """A request that got an error: of the transport, or of the server, whose word it is to the model."""
        code, data = error.error.code, error.error.data
        said = error.error.message
        if data == marked("not_begun") or code == mcp_types.HEADER_MISMATCH:  # its schema is not the one listed
            raise NotBegun(said) from error
        if data == marked("lost") or code == mcp_types.CONNECTION_CLOSED:
            raise (Lost if mark.done else NotBegun)(said) from error
        if code == mcp_types.PARSE_ERROR:  # of the SDK, on what the server sent
            raise Lost("its answer cannot be read") from error
        if data == marked("refused"):
            return _error(f"The server {self.server.name!r} refused the call: {said}.")
        return ToolResult(
            content=f"The server {self.server.name!r} refused the call: {said} (error {code}).",
            details=details_of({"code": code, "message": said, "data": data}),
            is_error=True,
        )

    async def _tell(self, said: str) -> None:
        try:
            await self.context.progress(said)
        except NoActiveOperation:
            pass  # the call is over, and this one is being left

    def _lost(self, why: str) -> ToolResult:
        return _error(
            f"The call was sent to the server {self.server.name!r}, and no answer came: {why}. The call may have run "
            "in part, or may have finished. Check before doing it again."
        )


def _error(text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True)
