"""Entries: the write-once nodes of a session's conversation tree."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from agentlane.data.messages import AssistantMessage, ModelIdentity, ToolResultMessage, UserMessage


class Custom(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="role", tag="custom"):
    """An application's own entry. ``type`` is a name, ``data`` is JSON data. A model is shown it only as the projectors
    of an agent say."""

    type: str
    data: Any = None


class StandsFor(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How much of a path a summary stands for, earlier summaries included.

    ``users`` counts messages of users, ``answers`` the answers that the model was shown, by model (``provider:name``);
    ``answers_since`` are those of them behind the last of the user messages.
    """

    users: int = 0
    answers: dict[str, int] = {}
    answers_since: dict[str, int] = {}


class Compaction(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="role", tag="compaction"):
    """From here on the model is shown ``summary`` in the place of what stands before ``kept_from``.

    ``kept_from`` is the first entry of the kept tail, which ends with this entry's parent; None: nothing is kept.
    ``split`` says that the tail begins in the middle of a turn, whose beginning is in the summary. ``tokens_before`` is
    what the model was shown before, as it was counted then; ``model`` wrote the summary, None: the application did.
    """

    summary: str
    kept_from: str | None
    tokens_before: int
    split: bool = False
    model: ModelIdentity | None = None
    stands_for: StandsFor = StandsFor()


class BranchSummary(
    Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="role", tag="branch_summary"
):
    """What was said on the path that a navigation left behind, whose end is the entry ``left``; shown to the model."""

    summary: str
    left: str
    model: ModelIdentity | None = None


EntryBody: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage | Custom | Compaction | BranchSummary
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
        """``message``, ``custom``, ``compaction`` or ``branch_summary``."""
        return _TYPES.get(type(self.body), "message")


def kind_of(body: EntryBody) -> str:
    """The word by which reads filter: ``user``, ``assistant``, ``tool_result``, ``custom``, ``compaction`` or
    ``branch_summary``."""
    return _KINDS[type(body)]


_KINDS: dict[type, str] = {
    UserMessage: "user",
    AssistantMessage: "assistant",
    ToolResultMessage: "tool_result",
    Custom: "custom",
    Compaction: "compaction",
    BranchSummary: "branch_summary",
}
_TYPES: dict[type, str] = {Custom: "custom", Compaction: "compaction", BranchSummary: "branch_summary"}

KINDS: tuple[str, ...] = tuple(_KINDS.values())
"""All of those words."""
MESSAGES: frozenset[str] = frozenset(kind for body, kind in _KINDS.items() if body not in _TYPES)
"""Those of messages."""
