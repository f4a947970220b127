"""The log beside a SQLite file (its ``-wal``), kept bounded by the file's one writer, on its thread."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable

from agentlane.errors import AgentLaneError
from agentlane.storage import schema
from agentlane.storage.sqlite_errors import code_of

CHECKPOINT_PAGES = 2000
"""After about this many changed pages the log is copied into the file as soon as nothing is written for a while."""
BACKLOG_PAGES = 500
"""A log of so many pages that an owner before has left is copied into the file before the first commit."""
LOG_PAGES_MAX = 8000
"""At this many pages SQLite copies the log into the file in the middle of work."""

_log = logging.getLogger("agentlane")


class Log:
    """How far the log has grown, and when it is copied into the file."""

    def __init__(self, path: str, findings: list[str]) -> None:
        """``findings`` takes what people should know."""
        self.pages = 0
        """About how many pages were changed since it was last copied."""
        self._path = path
        self._findings = findings
        self._held = False  # by a reader of another program, when last looked at

    @property
    def due(self) -> bool:
        """Whether it is to be copied once nothing is written for a while."""
        return self.pages >= CHECKPOINT_PAGES

    def grew(self, database: sqlite3.Connection, pages: int) -> None:
        """A commit changed so many pages more."""
        self.pages += pages
        if self.pages >= 2 * LOG_PAGES_MAX:  # never idle: SQLite has tried meanwhile, and says nothing of it
            self.copy(database)

    def copy(self, database: sqlite3.Connection) -> None:
        """Copy the log into the file as far as no reader holds it. Our own never do for longer than a page takes."""
        ((_, pages, copied),) = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self.pages = 0
        held = copied < pages and pages >= LOG_PAGES_MAX
        if held and not self._held:
            self._tell(
                f"{self._path}: the log beside it has {pages * schema.PAGE_BYTES >> 20} MB and grows, for another "
                "program has a read transaction open on it; end that one"
            )
        self._held = held

    def copy_backlog(self, database: sqlite3.Connection) -> None:
        """Copy what an owner before has left, so that the log begins anew and a disk that was full goes further."""
        try:
            backlog = os.stat(f"{self._path}-wal").st_size // schema.PAGE_BYTES
        except OSError:
            return
        if backlog < BACKLOG_PAGES:
            return
        try:
            self.copy(database)
        except sqlite3.Error as error:
            if code_of(error) != sqlite3.SQLITE_FULL:
                raise  # else nothing is amiss: the log has everything, and the commit says what there is room for

    def copy_at_end(self, database: sqlite3.Connection, check: Callable[[sqlite3.Connection], None]) -> None:
        """Copy all of it before the connection is closed, if ``check`` does not raise; whatever fails is told, and no
        error: nobody waits for a commit who could be told."""
        try:
            check(database)
            database.execute("PRAGMA busy_timeout = 0")  # closing does not wait for other programs that read
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:
            pass  # the log has everything; the next owner copies it
        except (AgentLaneError, OSError) as error:
            self._tell(str(error))

    def _tell(self, text: str) -> None:
        self._findings.append(text)
        _log.warning("%s", text)
