"""Tools of MCP servers as tools of an agent, on the official ``mcp`` SDK: the extra ``agentlane-runtime[mcp]``."""

try:
    import mcp as _sdk
except ImportError as _error:
    raise ModuleNotFoundError(
        "agentlane.mcp needs the mcp SDK, which is not installed here: pip install 'agentlane-runtime[mcp]'", name="mcp"
    ) from _error
del _sdk

from agentlane.mcp.calling import IDEMPOTENCY_KEY  # noqa: E402 - only once it is known that there is an SDK
from agentlane.mcp.failures import ServerNotReady  # noqa: E402
from agentlane.mcp.http import HttpServer  # noqa: E402
from agentlane.mcp.server import McpServer, ServerOptions, ServerStatus  # noqa: E402
from agentlane.mcp.stdio import StdioServer  # noqa: E402

__all__ = [
    "HttpServer",
    "IDEMPOTENCY_KEY",
    "McpServer",
    "ServerNotReady",
    "ServerOptions",
    "ServerStatus",
    "StdioServer",
]
