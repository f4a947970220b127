"""Dropping what is kept of operations that ended long ago: their records, and the receipts of what they took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from agentlane.data import addresses, codec
from agentlane.data.writes import Address, DeleteValue, Write
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.past import PAGE
from agentlane.driver.reserved import CHILD_PREFIX
from agentlane.driver.runtime import Runtime

READ_ROWS = 16
"""Records that are read at once: each may hold a long text, and of most of them only two fields are wanted."""
COMMIT_WRITES = 240
"""About how many records are dropped by one commit."""


class _Ended(Struct):
    """What of a record says whether it may be dropped; the rest of it is not decoded."""

    lane: str
    ended_at: int


_ENDED: codec.Kind[_Ended] = codec.Kind(_Ended, "result")


async def drop_results(runtime: Runtime, cores: Mapping[str, LaneCore], before: int) -> int:
    """See ``Session.drop_results``. Commits are short, so that lanes go on in between."""
    dropped = 0
    cursor: str | None = None
    writes: list[Write] = []
    while True:
        rows = await runtime.storage.values(addresses.RESULT, after=cursor, limit=READ_ROWS)
        for id, payload in rows.items():
            if _may_go(_ENDED.decode(payload, f"result {id}"), before, cores.values()):
                writes.append(DeleteValue(addresses.result(id)))
        ended = len(rows) < READ_ROWS
        if ended or len(writes) >= COMMIT_WRITES:
            await _commit(runtime, writes)
            dropped += len(writes)
            writes = []
        if ended:
            break
        cursor = next(reversed(rows))
    await _drop_receipts(runtime, cores)
    return dropped


async def _drop_receipts(runtime: Runtime, cores: Mapping[str, LaneCore]) -> None:
    """Those of messages that operations took of which nothing is left."""
    cursor: str | None = None
    while True:
        rows = await runtime.storage.values(addresses.RECEIPT, after=cursor, limit=PAGE)
        writes: list[Write] = []
        for key, payload in rows.items():
            id = codec.RECEIPT.decode(payload, f"receipt {key}").operation_id
            if id is None or id in _open(cores.values()):
                continue
            if await runtime.storage.value(addresses.result(id)) is None:
                writes.append(DeleteValue(Address(addresses.RECEIPT, key)))
        await _commit(runtime, writes)
        if len(rows) < PAGE:
            break
        cursor = next(reversed(rows))


async def _commit(runtime: Runtime, writes: list[Write]) -> None:
    if writes:
        runtime.check_writable()
        await runtime.submit(writes, lambda _commit: None, "value")


def _may_go(result: _Ended, before: int, lanes: Iterable[LaneCore]) -> bool:
    """A run of another agent stays while the operation that it is a call of may be open: that one reads its record."""
    if result.ended_at >= before:
        return False
    if not result.lane.startswith(CHILD_PREFIX):
        return True
    opened = [core.operation.meta.started_at for core in lanes if core.operation is not None]
    return all(started_at > result.ended_at for started_at in opened)


def _open(lanes: Iterable[LaneCore]) -> set[str]:
    return {core.operation.id for core in lanes if core.operation is not None}
