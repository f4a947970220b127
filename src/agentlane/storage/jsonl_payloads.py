"""Payloads of a session file, read where an index says that they lie."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentlane.errors import CorruptSession
from agentlane.storage.files import FileSystem, read_all
from agentlane.storage.places import LENGTH_MASK, range_of


class FilePayloads:
    """An open file as the medium of an index of places; closing it closes the descriptor."""

    def __init__(self, files: FileSystem, path: Path, descriptor: int) -> None:
        self._files = files
        self._path = path
        self.descriptor = descriptor

    def fetch(self, places: Iterable[int]) -> list[bytes]:
        """The payloads at ``places``; ``CorruptSession`` where the file has become shorter than it was."""
        pread, descriptor = self._files.pread, self.descriptor
        found = []
        for place in places:
            offset, length = range_of(place)
            payload = pread(descriptor, length, offset)
            if len(payload) < length:  # the system may give less at once
                payload = read_all(self._files, descriptor, length, offset)
            if len(payload) < length:
                raise CorruptSession(
                    f"{self._path}: {length} bytes at byte {offset} are gone: somebody cut the file while it was open",
                    path=str(self._path),
                    offset=offset,
                )
            found.append(payload)
        return found

    def size(self, place: int) -> int:
        """How many bytes the payload at ``place`` has."""
        return place & LENGTH_MASK

    def duplicate(self) -> FilePayloads:
        """The same file, whatever becomes of this descriptor and of the file's name."""
        return FilePayloads(self._files, self._path, self._files.duplicate(self.descriptor))

    def close(self) -> None:
        """Give the descriptor up."""
        self._files.close(self.descriptor)
