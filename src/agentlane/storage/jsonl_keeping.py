"""When the index of a session file is written, by its owner: when it is closed, and now and then while it grows."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from agentlane.errors import AgentLaneError
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import operation_list
from agentlane.storage.index import SessionIndex
from agentlane.storage.jsonl_index import fresh_index_path, index_head, remove_index, write_index
from agentlane.storage.jsonl_writer import JsonlWriter

GROWTH = 8
"""An index that is of all of a file but an eighth is as good as one of all of it."""

_log = logging.getLogger("agentlane")


class IndexKeeper:
    """The index beside one session file, of a file with at least ``min_bytes``; of none where that is None."""

    def __init__(self, files: FileSystem, path: Path, session_id: str, *, min_bytes: int | None, size: int) -> None:
        """``size``: how much of the file the index is of that is there."""
        self._files = files
        self._path = path
        self._session_id = session_id
        self._min_bytes = min_bytes
        self._size = size
        self._next = self._after(size)

    def due(self, end: int) -> bool:
        """Whether it is time for one, of a file of so many bytes, while it is open."""
        return end >= self._next

    def keep(
        self,
        writer: JsonlWriter,
        index: SessionIndex[int],
        *,
        end: int,
        epoch: int,
        operations: dict[str, tuple[str, int]],
        closing: bool = False,
    ) -> None:
        """Write one if it is due; whatever fails, nobody is told. All that was written must be published."""
        if self._is_wanted(end, closing=closing):
            self._next = self._after(end)  # a failed one is not tried again with each commit
            self._write(writer, index, end, epoch, operations)
        elif closing and self._min_bytes is not None:
            with suppress(OSError):  # what is left of one that was being written when its process died
                self._files.unlink(fresh_index_path(self._path))

    def _is_wanted(self, end: int, *, closing: bool) -> bool:
        if self._min_bytes is None or end < self._min_bytes:
            return False
        return end - self._size >= max(1, self._size // GROWTH) if closing else end >= self._next

    def _write(
        self,
        writer: JsonlWriter,
        index: SessionIndex[int],
        end: int,
        epoch: int,
        operations: dict[str, tuple[str, int]],
    ) -> None:
        sums = writer.sums
        if sums is None or sums.size != end:
            return
        try:
            writer.check_owner()
            head = index_head(
                writer.descriptor,
                self._files,
                session_id=self._session_id,
                sums=sums,
                index=index,
                epoch=epoch,
                operations=operation_list(operations),
                operations_at=writer.operations_at,
            )
        except (OSError, AgentLaneError) as error:
            _log.debug("%s: its index was not written: %r", self._path, error)
            return
        if write_index(self._files, self._path, head, index):
            self._size = end

    def replaced(self) -> None:
        """The file is another one now: the index is of the old one."""
        if self._size:
            remove_index(self._files, self._path)
        self._size, self._next = 0, self._after(0)

    def _after(self, size: int) -> float:
        return float("inf") if self._min_bytes is None else max(self._min_bytes, 2 * size)
