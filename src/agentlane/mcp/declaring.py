"""A server's tools as declarations: their names here, their options, and which hints count as a policy."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import mcp_types
from msgspec import structs

from agentlane import InvalidDefinition, ReplayPolicy, Tool, ToolOptions

NAME_LENGTH_MAX = 64
"""What every provider takes as a tool's name."""

_PREFIX = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_MARKED = re.compile(r"_[0-9a-f]{8}\Z")
_REST = re.compile(r"[^A-Za-z0-9_-]")


def checked_prefix(prefix: str, server: str) -> str:
    """A prefix behind which names of two servers cannot be alike."""
    if prefix and (_PREFIX.fullmatch(prefix) is None or len(prefix) > NAME_LENGTH_MAX // 2):
        raise InvalidDefinition(
            f"MCP server {server!r}: prefix={prefix!r} must be at most {NAME_LENGTH_MAX // 2} letters, digits, '-' and "
            "single '_' between them; give prefix='files', say, or prefix='' for none"
        )
    return prefix


def shown_name(prefix: str, name: str) -> str:
    """The name of a server's tool here: the same at each start, whatever else the server offers.

    What providers do not take in a name becomes ``_``, too long ones are cut, and either gets a digest of the whole, so
    that no two are alike; one that ends as if it had such a digest gets it too.
    """
    plain = f"{prefix}__{name}" if prefix else name
    clean = _REST.sub("_", plain)
    if clean == plain and len(clean) <= NAME_LENGTH_MAX and _MARKED.search(clean) is None:
        return clean
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{clean[: NAME_LENGTH_MAX - len(mark) - 1]}_{mark}"


def hinted_policy(tool: mcp_types.Tool) -> ReplayPolicy:
    """What the hints of a trusted server come to; see ``McpServer``."""
    hints = tool.annotations
    if hints is None:
        return "never"
    if hints.read_only_hint:
        return "never" if hints.destructive_hint else "safe"
    if hints.idempotent_hint:
        return "ask" if hints.destructive_hint else "idempotent"
    return "never"


def declared(tool: mcp_types.Tool, name: str, function: Callable[..., Any], options: ToolOptions) -> Tool[..., Any]:
    """The declaration of a server's tool: its texts and schema as they come."""
    return Tool(
        name,
        function,
        description=tool.description or tool.title or "",
        parameters={"type": "object", **tool.input_schema},
        **structs.asdict(options),
    )
