"""The places where histories are played: the library's own stores, or an application's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from agentlane.storage.contract import Store
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.memory import MemoryStore
from agentlane.storage.sqlite import SqliteStore
from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.matrix.late import late

SESSION_ID = "s"
"""The session that every history is about."""

StoreMaker: TypeAlias = Callable[[Path], Store]
"""Makes a store object that keeps its sessions in a folder, the same each time it is called with it.

If the store is not persistent, the object itself is the place, and it is made once for each history.
"""

StoreChoice: TypeAlias = Sequence[str] | Mapping[str, StoreMaker]
"""Names of the library's stores (``memory``, ``jsonl``, ``sqlite``), or makers of others by a name for the report.

``late`` is memory that reports each commit some turns of the event loop after it is durable, as a disk does.
"""


def memory(folder: Path) -> Store:
    """Sessions in memory; ``folder`` is not used."""
    return MemoryStore(clock=ManualClock(), ids=CountingIds(series=1_000))


def jsonl(folder: Path) -> Store:
    """A folder of JSONL files. Commits survive the process, which is what is killed here; nothing is synced."""
    return JsonlStore(folder / "jsonl", durability="process", clock=ManualClock())


def sqlite(folder: Path) -> Store:
    """One SQLite file. Commits survive the process, which is what is killed here; nothing is synced."""
    return SqliteStore(folder / "a.db", durability="process", clock=ManualClock())


STORES: dict[str, StoreMaker] = {"memory": memory, "late": late, "jsonl": jsonl, "sqlite": sqlite}


def chosen_stores(choice: StoreChoice) -> dict[str, StoreMaker]:
    """Makers by name; ``ValueError`` for a name that is not one of the library's."""
    if isinstance(choice, Mapping):
        return dict(choice)
    if isinstance(choice, str):
        choice = [choice]
    unknown = [each for each in choice if each not in STORES]
    if unknown:
        raise ValueError(f"no store is called {unknown}; there are {sorted(STORES)}, or hand in a mapping of makers")
    return {each: STORES[each] for each in choice}


class Place:
    """Where one history keeps its session: store objects come and go, the place stays."""

    def __init__(self, make: StoreMaker, folder: Path, made: Mapping[str, bytes] | None = None) -> None:
        """With ``made``, files by name as ``made_in`` gives them, the session is there already."""
        self._make = make
        self._folder = folder
        self._only: Store | None = None
        self.persistent = True
        """Whether a store object of its own is made for each process."""
        self._made = made is not None
        for name, content in (made or {}).items():
            path = folder / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(content)

    def store(self) -> Store:
        """A store object of a new process; the one and only for a store that is not persistent."""
        if self._only is not None:
            return self._only
        made = self._make(self._folder)
        if not made.capabilities.persistent:
            self._only = made
            self.persistent = False
        return made

    async def make(self, store: Store) -> None:
        """Make the session in ``store``, unless it is there."""
        if not self._made and SESSION_ID not in [info.id for info in await store.list()]:
            await store.create(SESSION_ID)
        self._made = True

    def content(self) -> dict[str, bytes]:
        """The bytes of JSONL sessions; what other stores were asked to write is told by the trace."""
        return {str(path): path.read_bytes() for path in sorted(self._folder.rglob("*.jsonl"))}


async def made_in(make: StoreMaker, folder: Path) -> dict[str, bytes] | None:
    """The files of a session that was just made, with which each history can begin; None where there are none.

    Only of the library's own stores is it known that a copy of its files is the session.
    """
    if make not in (jsonl, sqlite):
        return None
    store = make(folder)
    await store.create(SESSION_ID)
    await store.close()
    return _files_in(folder)


def _files_in(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
