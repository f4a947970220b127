"""What waits in a lane's inbox, as it is stored and as callers see it, and the receipts that tell what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from agentlane.data.digests import digest
from agentlane.data.entries import EntryBody
from agentlane.data.messages import TextPart, UserMessage

QueuedKind: TypeAlias = Literal["steer", "follow_up", "next_run", "write"]
"""When it is placed: at the next boundary, when the run would otherwise finish, with the next accepted prompt; a
``write`` is an append that was made during an operation, placed at the next boundary."""

QueuedState: TypeAlias = Literal["queued", "placed", "taken", "returned", "cancelled"]
"""What became of it: it waits, is part of the conversation, is the prompt of an operation, was given back by an abort,
or was cancelled."""


class QueuedItem(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One item of the inbox (``inbox/{lane}|{entry}``); what it says is at ``pending.entry/{entry}``, one for each of
    ``entries``. ``order`` grows within a lane. With a ``request_id`` there is a receipt."""

    kind: QueuedKind
    entries: tuple[str, ...]
    order: int
    submitted: bool = False
    request_id: str | None = None


class Queued(Struct, frozen=True, gc=False, kw_only=True):
    """What was queued: durable, and placed later as the entry ``id`` (and those behind it, if it is several)."""

    id: str
    lane: str
    kind: QueuedKind
    request_id: str | None = None


class QueuedInput(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What waits, or waited until an abort gave it back: its content under the id that it was queued with."""

    id: str
    kind: QueuedKind
    content: tuple[EntryBody, ...]
    submitted: bool = False
    request_id: str | None = None

    @property
    def text(self) -> str:
        """The text parts of its user messages, each on lines of its own."""
        messages = [body for body in self.content if isinstance(body, UserMessage)]
        return "\n".join(part.text for each in messages for part in each.content if isinstance(part, TextPart))


class Receipt(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What became of a message (``receipt/{lane}|{request_id}``): kept until somebody deletes it.

    ``entries`` are the ids that its messages have, or will have. ``operation_id`` is the operation that it was placed
    in, that took it as its prompt, or whose abort returned it. ``digest`` is of what was asked for.
    """

    request_id: str
    lane: str
    kind: QueuedKind
    entries: tuple[str, ...]
    digest: str
    submitted: bool = False
    state: QueuedState = "queued"
    operation_id: str | None = None


def queued_digest(kind: QueuedKind, payloads: Sequence[bytes], *, submitted: bool) -> str:
    """SHA-256 over what was asked for and the messages in their stored form, cut to 128 bits; lanes may be renamed."""
    word = "submit" if submitted else kind
    listed = [piece for payload in payloads for piece in (b"|", payload)]
    # JSON on one line, so a bar cannot make two lists look alike
    return digest(f"{word}|{len(payloads)}".encode(), *listed)
