"""Branch: a named path through the session's tree, read page by page and appended to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from io import StringIO
from typing import Any, Literal, Protocol, TypeAlias, get_args, overload

from agentlane.data import codec
from agentlane.data.border import clean_json, clean_text
from agentlane.data.entries import Entry
from agentlane.data.inbox import Queued
from agentlane.data.messages import AssistantMessage, Message, ToolResultMessage, UserMessage
from agentlane.data.reads import id_text, kinds_of, page_limit
from agentlane.data.requests import Skill, Template, checked_part, checked_time, checked_user
from agentlane.driver import appending
from agentlane.driver.frames import clean_answer
from agentlane.driver.lane_core import LaneCore
from agentlane.errors import InvalidMessage, UnknownEntry
from agentlane.ids import CALLS_MAX

EntryKind: TypeAlias = Literal["user", "assistant", "tool_result", "custom", "compaction", "branch_summary"]
"""What an entry is, as reads filter."""

MARKDOWN_PAGE = 16
"""How many entries an export holds at a time."""


class TextFile(Protocol):
    """What text is written to: a file opened for text, say."""

    def write(self, text: str, /) -> object:
        """Take the next piece."""
        ...


class Branch:
    """A named path; its tip is the entry at its end. The handle of a lane's branch writes through the lane.

    A call that writes and is cancelled is made whole or not at all, as with ``Session``.
    """

    def __init__(self, core: LaneCore) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """The branch's name."""
        return self._core.name

    def tip(self) -> str | None:
        """The id of the entry at the branch's end; None if it is empty. Committed state, no I/O."""
        self._core.check()
        return self._core.tip

    async def entries(
        self,
        *,
        newest_first: bool = True,
        limit: int | None = None,
        after: str | None = None,
        types: Iterable[EntryKind] | None = None,
        stop_at: str | None = None,
    ) -> list[Entry]:
        """Entries of the path, a page at a time: ``after`` is the id of the last one of the page before.

        ``types`` filters what is returned. ``stop_at`` ends the walk towards the root at (and with) that entry.
        Raises ``UnknownEntry`` for an ``after`` that is not on the path (or for what can be no entry's id),
        ``InvalidMessage`` for a ``limit`` that is neither None nor a whole number of at least 0, and for ``types``
        that are not a list of kinds.
        """
        self._core.check()
        limit = page_limit(limit)
        kinds = kinds_of(types, get_args(EntryKind), "types")
        after, stop_at = self._entry_id(after), self._entry_id(stop_at)
        tip = self._core.tip
        if tip is None:
            if after is not None:
                raise self._unknown(after)
            return []
        rows = await self._core.runtime.storage.path(
            tip, newest_first=newest_first, limit=limit, after=after, kinds=kinds, stop_at=stop_at
        )
        return [codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload) for row in rows]

    async def messages(self) -> list[Message]:
        """All messages of the path, oldest first."""
        entries = await self.entries(newest_first=False)
        return [entry.body for entry in entries if isinstance(entry.body, Message)]

    @overload
    async def export_markdown(self) -> str: ...
    @overload
    async def export_markdown(self, file: TextFile) -> None: ...
    async def export_markdown(self, file: TextFile | None = None) -> str | None:
        """The path as Markdown for people, oldest entry first, as of the call; nothing is written to the session.

        A heading with a time for each message, texts in fences that they cannot end, calls with arguments and results,
        thinking and an application's entries collapsed, summaries with what they stand for, a line for each
        image. With a ``file`` it is written there piece by piece, a few entries in memory at a time, each ``write`` on
        the event loop; what a ``write`` raises is raised, and what came before it is in the file, as it is when the
        call is cancelled.
        """
        from agentlane.histories.markdown import markdown_entry, markdown_title

        self._core.check()
        runtime, tip = self._core.runtime, self._core.tip
        gathered = StringIO()
        target: TextFile = gathered if file is None else file
        target.write(markdown_title(self.name, runtime.session_id))
        after: str | None = None
        while tip is not None and after != tip:
            rows = await runtime.storage.path(tip, newest_first=False, limit=MARKDOWN_PAGE, after=after)
            for row in rows:
                target.write(markdown_entry(codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload)))
            after = rows[-1].id
            await asyncio.sleep(0)  # not every backend waits for anything: others have their turn
        return gathered.getvalue() if file is None else None

    async def append_message(self, message: Message) -> Entry | Queued:
        """Append a message; durable on return. Cancelled: it may be appended, and then is in ``entries``.

        While an operation is open on the lane it is queued as a deferred write instead: a ``Queued`` tells the id that
        its entry will have. It is placed at the operation's next boundary, before steering, and does not make a run go
        on that is about to finish; one that is left over is placed before the next accepted prompt.

        Behind an answer whose calls have no results here, one result that says so is placed for each first (not before
        a tool result that answers one of them). Raises ``InvalidMessage``, also for a tool result that is not the
        answer's next one (results come in the order of its calls, under their names), and, while an operation is open,
        for any tool result and any answer with calls; ``PayloadTooLarge`` for what the
        store, or the inbox, does not take.
        """
        return await appending.append(self._core, _checked(message))

    async def append_custom(self, type: str, data: Any = None) -> Entry | Queued:
        """Append an application's own entry, which a model is shown only by ``projectors``; durable on return.

        While an operation is open it is queued, as by ``append_message``. Raises ``InvalidName``, ``InvalidMessage``
        for data that is not JSON, ``PayloadTooLarge`` as there.
        """
        return await appending.append(self._core, appending.custom(type, data))

    def _entry_id(self, entry_id: str | None) -> str | None:
        if entry_id is None:
            return None
        text = id_text(entry_id)
        if text is None:
            raise self._unknown(entry_id)
        return text

    def _unknown(self, entry_id: object) -> UnknownEntry:
        return UnknownEntry(f"no entry {entry_id!r} is on branch {self.name!r}", entry_id=repr(entry_id))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _checked(message: object) -> UserMessage | AssistantMessage | ToolResultMessage:
    if isinstance(message, UserMessage):
        return checked_user(message, "message")
    try:
        if isinstance(message, AssistantMessage):
            answer = clean_answer(message)
            if len(answer.calls) > CALLS_MAX:  # each call's result has an id of the answer's block
                raise InvalidMessage(f"message: {len(answer.calls)} calls; at most {CALLS_MAX} are taken")
            return answer
        if isinstance(message, ToolResultMessage):
            return _checked_result(message)
    except (AttributeError, TypeError) as error:
        raise InvalidMessage(f"message: {error}") from error
    way = "; give agent.expand(...) of it" if isinstance(message, Skill | Template) else ""
    raise InvalidMessage(f"message: a message record is needed here, not {type(message).__name__}{way}")


def _checked_result(message: ToolResultMessage) -> ToolResultMessage:
    return ToolResultMessage(
        call_id=clean_text(message.call_id, "message.call_id"),
        name=clean_text(message.name, "message.name"),
        content=tuple(checked_part(part, f"message.content[{i}]") for i, part in enumerate(message.content)),
        details=clean_json(message.details, "message.details"),
        is_error=message.is_error,
        sent_at=checked_time(message.sent_at, "message.sent_at"),
    )
