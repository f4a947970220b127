"""The transports, watched: whether a request was handed over, whether the connection ended, and why it failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import anyio
import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, JSONRPCRequest

from agentlane.mcp.failures import marked, text_of
from agentlane.mcp.mending import mended, plain_json

CONNECT_TIMEOUT_S = 30
FAREWELL_TIMEOUT_S = 5
"""How long the end of a session is waited for, which a server need not hear."""

ANSWER_BYTES_MAX = 64 << 20
"""How long one answer over HTTP may be: as long as a result that every store takes."""

_REFUSED = {401, 403, 429}
"""HTTP answers that come before a request is looked at."""


class Handover:
    """Whether a call's request may have reached the server: from the moment that the transport could have it."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


handover: ContextVar[Handover | None] = ContextVar("agentlane_mcp_handover", default=None)
"""Of the request that is sent in this context."""


class Watched(AbstractAsyncContextManager[Any]):
    """A transport whose streams tell when the connection has ended and what was handed over."""

    def __init__(self, inner: AbstractAsyncContextManager[Any], ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended = ended

    async def __aenter__(self) -> Any:
        reads, writes = await self._inner.__aenter__()
        return _Reads(reads, self._ended), _Writes(writes)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


class _Stream:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def close(self) -> None:
        self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


class _Reads(_Stream):
    def __init__(self, inner: Any, ended: Callable[[], None]) -> None:
        super().__init__(inner)
        self._ended = ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return mended(await self._inner.__anext__())
        except Exception:  # its end among them
            self._ended()
            raise

    async def receive(self) -> Any:
        try:
            return mended(await self._inner.receive())
        except Exception:
            self._ended()
            raise


class _Writes(_Stream):
    async def send(self, item: SessionMessage) -> None:
        mark = handover.get() if isinstance(item.message, JSONRPCRequest) else None
        if mark is not None:
            mark.done = True  # a send that is cancelled may have handed over all the same
        try:
            await self._inner.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            if mark is not None:
                mark.done = False  # nobody is there to take it
            raise


class HttpTransport(AbstractAsyncContextManager[Any]):
    """Streamable HTTP with a client of its own. Until ``settled`` failures are raised, from then on they are answers.

    So one call that cannot be sent does not end the connection that its siblings use.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], auth: httpx2.Auth | None, options: Mapping[str, Any]
    ) -> None:
        given = {"timeout": httpx2.Timeout(CONNECT_TIMEOUT_S, read=None), **options}
        self._client = _Client(headers=dict(headers), auth=auth, **given)
        self._inner: AbstractAsyncContextManager[Any] = streamable_http_client(
            url, http_client=self._client, max_sse_event_size=ANSWER_BYTES_MAX
        )

    def settled(self) -> None:
        """The handshake is over."""
        self._client.settled = True

    async def __aenter__(self) -> Any:
        await self._client.__aenter__()
        try:
            return await self._inner.__aenter__()
        except BaseException:
            await self._client.__aexit__()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._inner.__aexit__(kind, error, trace)
        finally:
            await self._client.__aexit__()


class _Client(httpx2.AsyncClient):  # type: ignore[misc]  # its SDK need not be there where types are checked
    """A client that makes answers of failures which concern one request alone, and says what is known of them."""

    settled = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":  # a farewell
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(FAREWELL_TIMEOUT_S).as_dict()}
        if request.method != "POST" or not self.settled:
            return await super().send(request, **options)
        try:
            response = await super().send(request, **options)
            return await _looked_at(request, response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, OAuthFlowError) as error:
            return _answer(request, 503, "not_begun", text_of(error))
        except Exception as error:  # whatever an application's own ``auth`` raises included
            return _answer(request, 502, "lost", text_of(error))


async def _looked_at(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """The response, if it is for the SDK to read; one that says what is known of the call, if there is no answer in it.

    A refusal before the request was looked at is told apart from a server that failed, which may have run the tool.
    """
    status, kind = response.status_code, response.headers.get("content-type", "").lower()
    asked = _read(request.content)
    if response.next_request is not None or (status < 300 and kind.startswith("text/event-stream")):
        return response
    if asked.id is None and status < 400:  # a notification, which gets no answer
        return response
    if (status == 404 and "mcp-session-id" in request.headers) or status in _REFUSED:
        await response.aclose()
        why = "the server does not know the session any more" if status == 404 else f"HTTP {status}"
        return _answer(request, status, "not_begun", why)
    answer = _Envelope()
    body = await _body_of(response) if kind.startswith("application/json") else b""
    await response.aclose()
    if body:
        body, answer = _readable(body)
    if status >= 400 and answer.error is not None:
        return _copied(request, response, body)
    if status == 408 or status >= 500:
        return _answer(request, status, "lost", f"HTTP {status}")
    if status >= 400:
        return _answer(request, status, "refused", f"HTTP {status}")
    if body is None:
        return _answer(request, 502, "lost", f"its answer has more than {ANSWER_BYTES_MAX} bytes")
    if answer.id is None or answer.id != asked.id:
        return _answer(request, 502, "lost", f"HTTP {status} without an answer to the call")
    return _copied(request, response, body)


class _Envelope(msgspec.Struct):
    """What is looked at of a message: whom it is for, and whether it is an error."""

    id: int | str | None = None
    error: dict[str, Any] | None = None


def _read(body: bytes) -> _Envelope:
    try:
        return msgspec.json.decode(body, type=_Envelope)
    except (msgspec.MsgspecError, ValueError):
        return _Envelope()


def _readable(body: bytes) -> tuple[bytes, _Envelope]:
    """A body as JSON that the SDK can read, if it is any."""
    answer = _read(body)
    if answer.id is None and answer.error is None and (text := plain_json(body)) is not None:
        body = text.encode()
        answer = _read(body)
    return body, answer


async def _body_of(response: httpx2.Response) -> bytes | None:
    """All of it, or None for too much."""
    body = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                return None
    finally:
        await response.aclose()
    return bytes(body)


def _copied(request: httpx2.Request, response: httpx2.Response, body: bytes | None) -> httpx2.Response:
    """The same response, read: what it was sent in (its encoding, its pieces) is no more."""
    kind = {"content-type": response.headers["content-type"]}
    return httpx2.Response(response.status_code, headers=kind, content=body, request=request)


def _answer(request: httpx2.Request, status: int, what: str, why: str) -> httpx2.Response:
    error = {"code": INTERNAL_ERROR, "message": why, "data": marked(what)}
    answer = {"jsonrpc": "2.0", "id": _read(request.content).id, "error": error}
    return httpx2.Response(status, json=answer, request=request)
