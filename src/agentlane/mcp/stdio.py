"""A server that is a program of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TextIO, cast

from mcp import StdioServerParameters, stdio_client
from typing_extensions import Unpack

from agentlane.mcp.server import McpServer, ServerOptions


class StdioServer(McpServer):
    """A server that is a program of this machine, started here and spoken to over its standard input and output.

    ``env`` is added to the few variables that it inherits (``PATH``, ``HOME`` and the like). ``stderr`` is an open file
    for what it writes there, that of this process if left out. The program, with all that it started, has ended when
    the server is closed: it is asked to by the end of its input, and killed if it goes on for 2 seconds. It sees the
    end of its input too if this process dies.

    For the options and for errors see ``ServerOptions`` and ``McpServer``.
    """

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stderr: TextIO | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(name, **options)
        self._program = StdioServerParameters(
            command=command,
            args=list(args),
            env=None if env is None else dict(env),
            cwd=cwd,
            encoding_error_handler="replace",  # a program that logs where it should answer is not the end
        )
        self._stderr = stderr

    def transport(self) -> tuple[AbstractAsyncContextManager[Any], Callable[[], None]]:
        """For connections: the program, started."""
        errlog = sys.__stderr__ if self._stderr is None else self._stderr
        return stdio_client(self._program, errlog=cast(TextIO, errlog)), lambda: None
