"""Adjustments to the usage ledger that the caller makes."""

from __future__ import annotations

from agentlane.data.border import clean_text
from agentlane.data.reads import id_text
from agentlane.data.usage import Usage, UsageRow, checked_usage
from agentlane.data.writes import InsertUsage
from agentlane.driver.runtime import Runtime
from agentlane.errors import UnknownEntry
from agentlane.names import check_name


async def record_adjustment(
    runtime: Runtime, usage: Usage, *, operation_id: str | None, entry_id: str | None, note: str | None
) -> UsageRow:
    """Commit one adjustment row. ``UnknownEntry`` for an entry that is not there, ``InvalidMessage`` for bad counts,
    ``InvalidName`` for what is no operation's id."""
    runtime.check_writable()
    checked_usage(usage)
    if operation_id is not None:
        operation_id = check_name(operation_id, "operation id")
    if entry_id is not None:
        text = id_text(entry_id)
        if text is None or (await runtime.storage.entries([text]))[0] is None:
            raise UnknownEntry(f"no entry {entry_id!r} in session {runtime.session_id!r}")
        entry_id = text
    row = UsageRow(
        id=runtime.ids.new(),
        kind="adjustment",
        usage=usage,
        entry_id=entry_id,
        operation_id=operation_id,
        note=None if note is None else clean_text(note, "note"),
    )
    await runtime.submit([InsertUsage(row)], lambda _commit: None, "usage")
    return row
