"""What people are asked while an operation is open, and what they said: durable, by id, used once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from agentlane.data.digests import digest
from agentlane.data.messages import UserPart

ApprovalKind: TypeAlias = Literal["call", "replay", "question"]
"""``call``: before a call starts. ``replay``: before one that was interrupted runs again. ``question``: asked by a tool
while it ran, and answered with a value; the others are answered with a yes or a no."""


class Approval(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Something that waits for a person (``pending.approval``), kept until it is answered or void.

    ``arguments`` are those that the call would run with, and ``digest`` names them; ``question`` says it in words.
    ``progress`` is what an interrupted call, or one that asks, had saved. ``expires_at`` (ms) is when it counts as a
    no; None is never. ``name`` is that of a question, by which its tool knows the answer.
    """

    approval_id: str
    lane: str
    operation_id: str
    call_id: str
    tool: str
    kind: ApprovalKind
    question: str
    digest: str
    asked_at: int
    arguments: Any = None
    progress: tuple[UserPart, ...] = ()
    expires_at: int | None = None
    name: str = ""


class Decision(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An answered approval (``op.decision``, and then in the operation's record): used once, for this call alone.

    ``digest`` names the arguments that the answer is about: those given by whoever decided, if any. ``expired`` says
    that nobody answered in time, which is a no. To a question the answer itself is the tool's, and not kept here.
    """

    approval_id: str
    call_id: str
    tool: str
    kind: ApprovalKind
    allow: bool
    digest: str
    at: int
    by: str | None = None
    reason: str | None = None
    changed: bool = False
    expired: bool = False


def arguments_digest(arguments: Any) -> str:
    """The first 32 hexadecimal digits of SHA-256 over a call's arguments in canonical JSON."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest(text.encode())


def in_order(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Decisions by time; those of one millisecond by id, so that the order is the same after a restart."""
    return tuple(sorted(decisions, key=lambda each: (each.at, each.approval_id)))
