"""Adjustments to the usage ledger that the caller makes."""

from __future__ import annotations

from agentlane.data.border import clean_text
from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import InsertUsage
from agentlane.driver.runtime import Runtime
from agentlane.errors import InvalidMessage, UnknownEntry


async def record_adjustment(
    runtime: Runtime, usage: Usage, *, operation_id: str | None, entry_id: str | None, note: str | None
) -> UsageRow:
    """Commit one adjustment row. ``UnknownEntry`` for an entry that is not there, ``InvalidMessage`` for bad counts."""
    runtime.check_writable()
    if not isinstance(usage, Usage):
        raise InvalidMessage(f"usage: a Usage is needed here, not {type(usage).__name__}")
    for name in usage.__struct_fields__:
        value = getattr(usage, name)
        if value is not None and (type(value) is not int or abs(value) >= 2**63):
            raise InvalidMessage(f"usage.{name}: {value!r} is not a whole number that fits in 64 bits")
    if entry_id is not None and (await runtime.storage.entries([entry_id]))[0] is None:
        raise UnknownEntry(f"no entry {entry_id!r} in session {runtime.session_id!r}")
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
