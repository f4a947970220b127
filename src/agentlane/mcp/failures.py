"""What can go wrong with a server: the error that applications see, and what is known of a call that got no answer."""

from __future__ import annotations

from typing import Any

from agentlane import AgentLaneError


class ServerNotReady(AgentLaneError):
    """An MCP server could not be reached or started in all its attempts, or is closed.

    ``details["server"]`` names it. A call that meets this has not begun: it gets an error result that says so.
    """

    code = "server_not_ready"


class NotBegun(Exception):
    """A request certainly never reached its server's tool; internal, the call may be tried on another connection."""


class Lost(Exception):
    """The connection ended after the request was handed over: whether the tool ran is not known; internal."""


def text_of(error: BaseException) -> str:
    """What an error says, in one line; of a group, what its first member says."""
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    said = " ".join(str(inner).split())
    return f"{type(inner).__name__}: {said}" if said else type(inner).__name__


def marked(what: str) -> dict[str, Any]:
    """The ``data`` of an error that the transport made itself: ``not_begun`` or ``lost``."""
    return {"agentlane": what}
