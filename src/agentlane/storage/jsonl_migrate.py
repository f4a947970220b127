"""Brings a session file of an older format to this version's: what it holds is written anew, and takes its place.

All steps that are due are taken at once. A step changes how a file is laid out and never what the session holds, so
the new file is what a cleanup makes of the old one. Until it is renamed the old file is the session, then the new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from agentlane.storage import jsonl_formats
from agentlane.storage.index_snapshot import IndexSnapshot
from agentlane.storage.jsonl_compact import Compaction
from agentlane.storage.jsonl_file import JsonlFile
from agentlane.storage.jsonl_payloads import FilePayloads
from agentlane.storage.jsonl_reader import LoadedFile
from agentlane.storage.jsonl_writer import JsonlWriter, NotSynced, Tail
from agentlane.storage.lock import OwnerLock
from agentlane.storage.migrating import migrated

_log = logging.getLogger("agentlane")


async def migrate(
    loaded: LoadedFile, lock: OwnerLock, *, durable: bool, going: Callable[[], None], found: Callable[[str], None]
) -> LoadedFile:
    """The file as it is then, in place of the one that ``loaded`` is of, whose descriptor is closed. For its owner.

    ``going`` raises when it is in vain; ``found`` is told what was done. ``OSError``: the old file is there as it was,
    but for a torn tail, or the new one is. Cancelled, the old one is.
    """
    file = loaded.file
    steps = jsonl_formats.due(loaded.format)
    snapshot = IndexSnapshot(
        loaded.info, loaded.index, FilePayloads(file.files, file.path, file.descriptor).duplicate()
    )
    try:
        compaction = Compaction(file.files, file.path, snapshot, epoch=loaded.epoch, cut=loaded.good_end)
    except BaseException:
        snapshot.release()
        raise
    tail = Tail(loaded.good_end, loaded.tail_reason) if file.size > loaded.good_end else None
    try:
        try:
            await compaction.fill(going)
            # In one go: whoever is cancelled has it or has it not.
            _writer(loaded, lock, tail, durable=durable, found=found).replace(compaction)
        finally:
            compaction.give_up()
        new = compaction.loaded
        new.file = JsonlFile(file.files, file.path, compaction.descriptor, loaded.info.id)
    except BaseException as error:
        if compaction.placed:
            with suppress(OSError):  # what went wrong before is the one to tell
                file.files.close(compaction.descriptor)
        if isinstance(error, NotSynced):
            raise error.cause from None  # that one is from this one: a circle
        raise
    with suppress(OSError):  # nothing was written to it
        file.files.close(file.descriptor)
    newest = steps[-1].since + 1
    _log.info("%s: migrated from format %d to %d", file.path, loaded.format, newest)
    found(migrated(file.path, loaded.format, newest))
    return new


def _writer(
    loaded: LoadedFile, lock: OwnerLock, tail: Tail | None, *, durable: bool, found: Callable[[str], None]
) -> JsonlWriter:
    """The owner of the old file, as far as it takes to let another have its place."""
    file = loaded.file
    return JsonlWriter(
        file.files,
        file.path,
        file.descriptor,
        lock,
        size=file.size,
        tail=tail,
        durable=durable,
        history=True,
        operations_at=loaded.operations_at,
        found=found,
    )
