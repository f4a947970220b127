"""The operations of a session, open and settled, a page at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from agentlane.data import addresses, codec
from agentlane.data.inspection import Operation
from agentlane.data.results import OperationResult, Status
from agentlane.driver.runtime import Runtime

OperationStatus: TypeAlias = Literal["open"] | Status
STATUSES: tuple[OperationStatus, ...] = ("open", "completed", "failed", "aborted")

PAGE = 256
"""Records that are read at once."""


async def operations(
    runtime: Runtime,
    now_open: Iterable[Operation],
    *,
    status: OperationStatus | None,
    lane: str | None,
    after: str | None,
    limit: int | None,
) -> list[Operation]:
    """See ``Session.operations``. ``now_open`` is looked at before anything is read, so that none is in neither."""
    behind = "" if after is None else after
    waiting = sorted((each for each in now_open if each.operation_id > behind), key=_id)
    if status is not None and status != "open":
        waiting = []
    if lane is not None:
        waiting = [each for each in waiting if each.lane == lane]
    if status == "open":
        return waiting[:limit]
    found: list[Operation] = []
    cursor = after
    while limit is None or len(found) < limit:
        rows = await runtime.storage.values(addresses.RESULT, after=cursor, limit=PAGE)
        for id, payload in rows.items():
            while waiting and waiting[0].operation_id <= id:
                each = waiting.pop(0)
                if each.operation_id < id:  # else it has settled since
                    found.append(each)
            record = codec.RESULT.decode(payload, f"result {id}")
            if status in (None, record.status) and lane in (None, record.lane):
                found.append(settled_record(record))
        if len(rows) < PAGE:
            found += waiting
            break
        cursor = next(reversed(rows))
    return found[:limit]


def settled_record(result: OperationResult) -> Operation:
    """The record of an operation that has its terminal record."""
    return Operation(
        operation_id=result.operation_id,
        lane=result.lane,
        agent=result.agent,
        inputs=result.inputs,
        started_at=result.started_at,
        status=result.status,
        turn=result.turns,
        result=result,
    )


def _id(operation: Operation) -> str:
    return operation.operation_id
