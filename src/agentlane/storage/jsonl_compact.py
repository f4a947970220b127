"""Cleanup of a session file: all that the session holds is written to a new file, which takes the old one's place.

The long part, a base of everything that is published, is written and read back beside the owner's commits. What was
committed meanwhile is copied behind it in one short step between two commits; then the new file is synced and renamed.
Until that moment the old file is the session, and from then on the new one, which holds the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

from agentlane.errors import CorruptSession
from agentlane.storage.files import FileSystem
from agentlane.storage.framing import decode_envelope, moved
from agentlane.storage.hop import on_new_thread
from agentlane.storage.index_snapshot import IndexSnapshot
from agentlane.storage.jsonl_base import BaseFile, fresh_path
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.jsonl_reader import LoadedFile

COPY_BYTES = 1 << 18
"""How much is copied with one write."""


class Compaction:
    """One cleanup. ``fill`` runs on the event loop, ``catch_up`` and ``put`` where the file is written."""

    def __init__(self, files: FileSystem, path: Path, snapshot: IndexSnapshot[int], *, epoch: int, cut: int) -> None:
        """Begin with a snapshot of what lies before ``cut`` in the old file, the newest of it written in ``epoch``."""
        self._files = files
        self._path = path
        self._snapshot = snapshot
        self._epoch = epoch
        self._cut = cut
        self._base = BaseFile(files, path, snapshot.info)
        self._lock = threading.Lock()  # held while a thread syncs the new file, so that nobody closes it meanwhile
        self._over = False
        self.placed = False
        """Whether the new file has the old one's name: then its descriptor is another's to close."""
        self.loaded: LoadedFile
        """What the new file holds, read back from it."""

    @property
    def descriptor(self) -> int:
        """The new file."""
        return self._base.descriptor

    @property
    def size(self) -> int:
        """How many bytes the new file has."""
        return self._base.size

    async def fill(self, going: Callable[[], None]) -> None:
        """Write the base, sync it, and read it back. ``going`` raises when that is in vain."""
        base = self._base
        async for page in self._snapshot.pages():
            going()
            base.add(page)
            await asyncio.sleep(0)
        going()
        base.end(last_seq=self._snapshot.last_seq, epoch=self._epoch)
        await on_new_thread(self._sync)  # so that the sync that commits wait for is a short one
        going()
        self.loaded = LoadedFile(
            JsonlFile(self._files, fresh_path(self._path), base.descriptor, self._snapshot.info.id), sums=True
        )
        await self.loaded.load()
        going()
        if self.loaded.index.last_seq != self._snapshot.last_seq or self.loaded.index.stats != self._snapshot.stats:
            raise CorruptSession(
                f"{self._path}: what was written in its place does not hold the same; the file was left as it is",
                path=str(self._path),
            )

    def catch_up(self, descriptor: int, size: int) -> None:
        """Copy the commits that were written behind the cut. The old file has ``size`` bytes, and nobody writes it."""
        old = JsonlFile(self._files, self._path, descriptor, self._snapshot.info.id)
        loaded, base = self.loaded, self._base
        held: list[bytes] = []
        held_bytes = 0
        for number, (offset, line) in enumerate(old.lines(self._cut, size)):
            envelope, reason = old.envelope(line, offset)
            if envelope is None or line is None:
                raise old.corrupt(None, offset, reason)
            place = base.size + held_bytes
            whole = moved(
                line,
                decode_envelope(line),
                operations_at=loaded.operations_at,
                synced=None if envelope.synced is None else place,
            )
            loaded.take(whole[:-1], place, number)
            if loaded.sums is not None:
                loaded.sums.add(whole)
            held.append(whole)
            held_bytes += len(whole)
            if held_bytes >= COPY_BYTES:
                base.write(b"".join(held))
                held, held_bytes = [], 0
        base.write(b"".join(held))
        loaded.sum_up()

    def put(self) -> None:
        """Sync the new file and give it the old one's name; the folder is for the caller to sync."""
        self._base.put()
        self._over = self.placed = True

    def give_up(self) -> None:
        """Remove the new file unless it has taken its place; twice does nothing."""
        with self._lock:
            try:
                self._snapshot.release()
            finally:
                if not self._over:
                    self._over = True
                    self._base.give_up()

    def _sync(self) -> None:
        with self._lock:
            if not self._over:
                self._files.sync(self._base.descriptor)
