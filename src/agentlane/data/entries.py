"""Entries: the write-once nodes of a session's conversation tree."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from agentlane.data.messages import AssistantMessage, ToolResultMessage, UserMessage


class Custom(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="role", tag="custom"):
    """An application's own entry; not shown to the model. ``type`` is a name, ``data`` is JSON data."""

    type: str
    data: Any = None


EntryBody: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage | Custom
"""What an entry holds."""


class Entry(Struct, frozen=True, gc=False, kw_only=True):
    """One node of the tree: its id, its parent's, its place in the session's total order, when, and its content."""

    id: str
    parent_id: str | None
    seq: int
    at: int
    body: EntryBody

    @property
    def type(self) -> str:
        """``message`` or ``custom``."""
        return "custom" if type(self.body) is Custom else "message"


def kind_of(body: EntryBody) -> str:
    """The word by which reads filter: ``user``, ``assistant``, ``tool_result`` or ``custom``."""
    return _KINDS[type(body)]


_KINDS: dict[type, str] = {
    UserMessage: "user",
    AssistantMessage: "assistant",
    ToolResultMessage: "tool_result",
    Custom: "custom",
}

KINDS: tuple[str, ...] = tuple(_KINDS.values())
"""All of those words."""
