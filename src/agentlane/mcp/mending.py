"""What servers send that the SDK cannot read: mended where it is clear what is meant, else told to who waits for it."""

from __future__ import annotations

import json
import logging
from typing import Any

import mcp_types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

_log = logging.getLogger("agentlane.mcp")


def mended(item: Any) -> Any:
    """What came of a stream of messages, or an exception in the place of one that could not be read."""
    if isinstance(item, ValidationError):
        return _read_again(item)
    if isinstance(item, SessionMessage) and isinstance(item.message, mcp_types.JSONRPCResponse):
        tools = item.message.result.get("tools")
        if isinstance(tools, list):
            item.message.result["tools"] = [each for each in tools if _is_tool(each)]
    return item


def plain_json(text: str | bytes) -> str | None:
    """JSON whose texts are whole: halves of surrogate pairs, which some write, become U+FFFD. None for what is none."""
    try:
        written = json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_again(error: ValidationError) -> Any:
    """The message that could not be read; if it was an answer, the error that its call gets in its place."""
    found: Any = error.errors(include_url=False, include_context=False)[0]["input"]
    try:
        text = plain_json(found) if isinstance(found, str) else json.dumps(found)
        if text is None:
            return error
        try:
            return mended(SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)))
        except ValidationError:
            answer = json.loads(text)
            problem = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message="an answer that is none")
            if "method" in answer:
                return error
            return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=answer["id"], error=problem))
    except (LookupError, TypeError, ValueError):
        return error  # a line of a log, most likely


def _is_tool(offered: Any) -> bool:
    """Whether an offer is one; one bad offer must not hide the others. An input that says nothing is any object."""
    if isinstance(offered, dict) and isinstance(offered.get("name"), str):
        schema = offered.setdefault("inputSchema", {})
        if isinstance(schema, dict) and schema.setdefault("type", "object") == "object":
            return True
    _log.warning(
        "an MCP server offers a tool that is left out, for it has no name or its input is no object: %.200r", offered
    )
    return False
