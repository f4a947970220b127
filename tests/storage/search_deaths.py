"""A program that searches, or deletes, once for each statement of its writer, and is killed before that statement.

``python search_deaths.py PATH WORK FIRST STEP``: copies of the SQLite file at PATH are made for it, one a death, and
left behind; the number of deaths is printed when a life has come to its end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

from agentlane.storage import SqliteStore, search_index, sqlite_search
from agentlane.storage.sqlite_writer import Writer


def copy_of(path: Path, death: int) -> Path:
    return path.with_name(f"{path.stem}-{death}.db")


def main(path: Path, work: str, first: int, step: int) -> None:
    search_index.READ_ROWS, sqlite_search.WRITE_ROWS, search_index.FORGET_ROWS = 2, 3, 4
    death, deaths = first, 0
    while True:
        shutil.copy(path, copy_of(path, death))
        child = os.fork()
        if not child:
            asyncio.run(life(copy_of(path, death), work, death))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(deaths if os.WEXITSTATUS(status) == 0 else "failed")
            return
        deaths += 1
        death += step


async def life(path: Path, work: str, death: int) -> None:
    """Die before the statement of that number, counted from 1."""
    left = death
    init = Writer.__init__

    def traced(text: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self: Writer, *arguments: object, **options: object) -> None:
        init(self, *arguments, **options)  # type: ignore[arg-type]

        def trace() -> None:
            if self.thread.database is not None:
                self.thread.database.set_trace_callback(traced)

        self.thread.post(trace)

    Writer.__init__ = begin  # type: ignore[method-assign]
    store = SqliteStore(path, durability="process")
    if work == "search":
        await store.search("red")
    else:
        await store.delete("a")
    await store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
