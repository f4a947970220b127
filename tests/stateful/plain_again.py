"""The plain model of trying settled operations again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.stateful.plain import Refused
from tests.stateful.plain_disk import Disk, Op
from tests.stateful.plain_pass import PlainRuns


@dataclass
class PlainAgain(PlainRuns):
    """The plain model with operations that are tried again."""

    def retry(self, lane: str, settled: str | None, op: str | None, handle: int, *, same_keys: bool) -> tuple[Any, ...]:
        """Open an operation that goes on where a settled one ended."""
        disk = self.disk
        settled = settled or disk.lanes[lane].last or "op-none"
        asked = (lane, settled, same_keys)
        if op is not None and (op in disk.results or op == disk.lanes[lane].current):
            known = disk.results[op]["inputs"] if op in disk.results else disk.ops[op].inputs
            if disk.retries.get(op) != asked or self.lane_of(op) != lane:
                raise Refused("RequestConflict")
            return ("admitted", known)
        old = self.result(lane, settled)
        if old is None:
            raise Refused("LaneBusy")
        if old["lane"] != lane:
            raise Refused("OperationMismatch")
        if old["status"] == "completed" or not old["inputs"]:
            raise Refused("RequestConflict")
        if disk.tips[lane] != old["tips"][1]:
            raise Refused("OperationMismatch")
        if op is not None and op in disk.ops:
            raise Refused("RequestConflict")
        if disk.lanes[lane].current is not None:
            raise Refused("LaneBusy")
        after, id = disk.copy(), op or self.new_id()
        after.open(id, lane, old["prompt"], old["inputs"], disk.tips[lane], self.now, handle)
        after.retries[id] = asked
        begun = after.ops[id]
        begun.key_operation = old["key_operation"] if same_keys else id
        _go_on(after, begun, projects=self.summing.projects)
        self.commit("retry", after)
        return ("admitted", begun.inputs)

    def lane_of(self, op: str) -> str:
        """The lane that an operation is or was on, by the name that it had then."""
        record = self.disk.results.get(op)
        return self.disk.ops[op].lane if record is None else record["lane"]


def _go_on(disk: Disk, op: Op, *, projects: bool) -> None:
    """The model is asked, unless the path ends with a whole answer."""
    shown = disk.shown(op.lane, projects=projects)
    if not shown or shown[-1][0] != "assistant" or shown[-1][2]:
        return
    for number in reversed(disk.path(disk.tips[op.lane])):
        body = disk.entries[number].body
        if body[0] == "assistant" and body[2] not in ("error", "aborted"):
            op.finish, op.answer, op.code = True, number, "length" if body[2] == "length" else None
            return
