"""The plain model of agents as tools: a call that is an operation of its own, on a lane of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.stateful.kin import ABSENT, KIN, called_handle, own_handle
from tests.stateful.plain_disk import Disk, Lane, Op

CHILD = "child:"


def call_of(op: Op, index: int) -> str:
    """A call of the batch, by the name of its operation."""
    return f"call-{op.answer}-{index}"


def lane_of(call: str) -> str:
    return f"{CHILD}{call}"


def call_on(lane: str) -> str:
    """The call whose lane this is."""
    return lane.removeprefix(CHILD)


def open_child(disk: Disk, op: Op, index: int, prompt: int, handle: int, now: int) -> None:
    """A call becomes an operation on a lane that begins empty, or behind what was said before the answer."""
    tool, call = op.calls[index].tool, call_of(op, index)
    lane = lane_of(call)
    assert op.answer is not None
    begin = disk.entries[op.answer].parent if KIN[tool] == "path" else None
    disk.tips[lane] = begin
    disk.lanes[lane] = Lane()
    disk.kin[call] = own_handle(tool)
    inputs = (disk.add(lane, ("user", f"prompt {prompt}")),)
    disk.open(call, lane, prompt, inputs, begin, now, called_handle(handle, tool))
    disk.ops[call].parent = op.id
    op.calls[index].status = "waiting_child"


def children_of(disk: Disk, op: Op) -> Iterator[Op]:
    """The open operations that this one waits for."""
    for index, call in enumerate(op.calls if op.at == "tools" else ()):
        if call.status == "waiting_child" and call_of(op, index) in disk.ops:
            yield disk.ops[call_of(op, index)]


def family_of(disk: Disk, op: Op) -> Iterator[Op]:
    """The operation, and all that runs for it."""
    yield op
    for child in children_of(disk, op):
        yield from family_of(disk, child)


def ancestors_of(disk: Disk, op: Op) -> Iterator[Op]:
    """The operations that wait for this one, the nearest first."""
    while op.parent is not None and op.parent in disk.ops:
        op = disk.ops[op.parent]
        yield op


def wake_of(disk: Disk, op: Op, now: int) -> int | None:
    """When an operation goes on that can only wait now; None if it can go on."""
    if op.cancelled:
        return None
    if op.at in ("retry_wait", "summary_wait"):
        return op.not_before if now < op.not_before else None
    times = [wake_of(disk, child, now) for child in children_of(disk, op)]
    return min((each for each in times if each is not None), default=None)


def waiting_of(disk: Disk, op: Op) -> tuple[Any, ...]:
    """What a drive tells of an operation that waits."""
    if op.at in ("retry_wait", "summary_wait"):
        return ("waiting", op.not_before, op.attempt + 1, op.error)
    reason, wake = _reason_of(disk, op)
    return ("waiting", wake, (reason,))


def _reason_of(disk: Disk, op: Op) -> tuple[tuple[Any, ...], int]:
    if op.at in ("retry_wait", "summary_wait"):
        return ("retry", op.not_before, op.attempt + 1, op.error), op.not_before
    (child,) = children_of(disk, op)
    reason, wake = _reason_of(disk, child)
    return ("child", child.id, (reason,)), wake


def left_to_drive(disk: Disk, op: Op, live: list[int], now: int) -> list[int]:
    """The calls that are operations of their own, which can go on and which nobody drives."""
    waiting = [i for i, call in enumerate(op.calls) if call.status == "waiting_child" and i not in live]
    open_ones = {i: disk.ops.get(call_of(op, i)) for i in waiting}
    return [i for i, child in open_ones.items() if child is None or wake_of(disk, child, now) is None]


def outcome_of(record: dict[str, Any], tool: str) -> tuple[Any, ...]:
    """What an operation's end is to the call that it was."""
    if record["status"] == "completed":
        return ("result", tool, record["text"], False)
    return ("result", tool, "aborted" if record["status"] == "aborted" else f"failed: {record['code']}", True)


def configure_as(op: Op, other: Op) -> None:
    op.tools, op.model, op.settings = other.tools, other.model, other.settings
    op.steering, op.follow_ups, op.limits = other.steering, other.follow_ups, other.limits


def unsettled_beside(disk: Disk, op: Op, driven: list[str]) -> bool:
    """Whether an abort of it would settle calls of it, or of what runs for it, beside the ends of what they called.

    ``driven`` are the lanes with passes. Which of the two came first would be anybody's guess.
    """
    return any(
        any(call.status == "planned" for call in each.calls)
        and any(child.lane in driven for child in children_of(disk, each))
        for each in family_of(disk, op)
        if each.at == "tools" and not each.cancelled
    )


def has_model(handle: int) -> bool:
    return handle != ABSENT
