"""A server at a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
from typing_extensions import Unpack

from agentlane.mcp.server import McpServer, ServerOptions
from agentlane.mcp.wire import HttpTransport


class HttpServer(McpServer):
    """A server at a URL, spoken to over streamable HTTP.

    ``headers`` go with every request; ``auth`` is an ``httpx2.Auth``, those of the ``mcp`` SDK for OAuth among them.
    ``client_options`` are given to ``httpx2.AsyncClient`` as they are (``verify``, ``proxy``, ``timeout``, ...). There
    is no limit on reading unless they set one: a call's limit is ``timeout_ms``.

    For the other options and for errors see ``ServerOptions`` and ``McpServer``.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: httpx2.Auth | None = None,
        client_options: Mapping[str, Any] | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(name, **options)
        self._url = url
        self._headers = dict(headers or {})
        self._auth = auth
        self._client_options = dict(client_options or {})

    def transport(self) -> tuple[AbstractAsyncContextManager[Any], Callable[[], None]]:
        """For connections: a client of its own for the URL."""
        if not self._client_options.keys() & {"verify", "cert", "trust_env", "transport"}:
            self._client_options["verify"] = httpx2.create_ssl_context()  # it takes long, and is the same each time
        made = HttpTransport(self._url, headers=self._headers, auth=self._auth, options=self._client_options)
        return made, made.settled
