"""The ids that a session uses, in little memory: they rise with time, so sorted lists find them.

An id that comes a little late (it was reserved before others that are there already) is put in its place; one that
comes much later, or in no order at all, goes to a dictionary, which takes twice the memory and is right for any id.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from agentlane.storage.segments import NO_ROW

LATE_MAX = 4_096
"""Behind how many greater ids one is still put in its place."""
USAGE = -2
"""What stands in place of a row for the id of a usage row: the two share one id space."""


class IdRows:
    """Ids of entries with their rows, and ids of usage rows. It is only added to."""

    __slots__ = ("_highest", "_others", "_rows", "_sorted", "_usage", "ids")

    def __init__(self) -> None:
        self.ids: list[str] = []
        """Of entries, by row."""
        self._highest = ""
        self._sorted = self.ids  # ids of entries: the same list for as long as they come in order
        self._rows = array("I")  # their rows, once it is another list
        self._usage: list[str] = []
        self._others: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sorted) + len(self._usage) + len(self._others)

    def __contains__(self, used_id: object) -> bool:
        return self.get(used_id) != NO_ROW

    def __getitem__(self, used_id: str) -> int:
        row = self.get(used_id)
        if row == NO_ROW:
            raise KeyError(used_id)
        return row

    def get(self, used_id: object, default: int = NO_ROW) -> int:
        """The row of an entry, ``USAGE`` for a usage row, ``default`` for what is no id here."""
        if not isinstance(used_id, str) or used_id > self._highest:
            return default
        ids = self._sorted
        at = bisect_left(ids, used_id)
        if at < len(ids) and ids[at] == used_id:
            return at if ids is self.ids else self._rows[at]
        ids = self._usage
        at = bisect_left(ids, used_id)
        if at < len(ids) and ids[at] == used_id:
            return USAGE
        return self._others.get(used_id, default)

    def add(self, entry_id: str) -> int:
        """One more entry; its row, or ``NO_ROW`` where the id is used already and nothing is changed."""
        ids = self.ids
        row = len(ids)
        if entry_id > self._highest:
            self._highest = entry_id
            if self._sorted is not ids:
                self._sorted.append(entry_id)
                self._rows.append(row)
        elif entry_id in self:
            return NO_ROW
        else:
            self._add_late(entry_id, row)
        ids.append(entry_id)
        return row

    def add_usage(self, row_id: str) -> bool:
        """One more usage row; False where the id is used already and nothing is changed."""
        if row_id > self._highest:
            self._highest = row_id
            self._usage.append(row_id)
            return True
        if row_id in self:
            return False
        at = _place_late(self._usage, row_id)
        if at < 0:
            self._others[row_id] = USAGE
        else:
            self._usage.insert(at, row_id)
        return True

    def columns(self) -> tuple[array[int], list[str], dict[str, int]]:
        """What there is beside ``ids``: rows in the order of their ids, none where that is their own; ids of usage
        rows; what is in neither order. See ``fill``."""
        return self._rows, self._usage, self._others

    def fill(self, ids: list[str], rows: array[int], usage: list[str], others: dict[str, int]) -> None:
        """Hold what another one gave, in place of nothing."""
        self.ids += ids  # the list that others look at
        if rows:
            self._sorted, self._rows = [ids[row] for row in rows], rows
        self._usage, self._others = usage, others
        self._highest = max(self._sorted[-1:] + usage[-1:] + list(others), default="")

    def _add_late(self, entry_id: str, row: int) -> None:
        at = _place_late(self._sorted, entry_id)
        if self._sorted is self.ids:
            if at == row:
                return
            self._sorted, self._rows = list(self.ids), array("I", range(row))
        if at < 0:
            self._others[entry_id] = row
        else:
            self._sorted.insert(at, entry_id)
            self._rows.insert(at, row)


def _place_late(ids: list[str], new_id: str) -> int:
    """Where it belongs in a sorted list, or -1 if that is too far from the end."""
    lowest = max(0, len(ids) - LATE_MAX)
    at = bisect_left(ids, new_id, lowest)
    return at if at > lowest or not lowest else -1
