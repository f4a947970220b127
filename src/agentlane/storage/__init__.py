"""Where sessions live: the storage contract, and the memory, JSONL and SQLite stores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentlane.data.search import Search
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.storage.contract import (
    Capabilities,
    Commit,
    Compacted,
    Durability,
    Element,
    ElementRow,
    EntryRow,
    Found,
    LedgerRow,
    OpenOperation,
    Pending,
    Probe,
    Row,
    SessionInfo,
    SessionStorage,
    Snapshot,
    Store,
    ValueRow,
)

if TYPE_CHECKING:
    from agentlane.storage.exchange import Exchange, ExchangeFile
    from agentlane.storage.forks import Forking
    from agentlane.storage.jsonl import JsonlStore
    from agentlane.storage.memory import MemoryStore
    from agentlane.storage.repairing import Repairing
    from agentlane.storage.salvage import Findings, Salvage
    from agentlane.storage.searching import search_by_reading
    from agentlane.storage.sqlite import SqliteStore
    from agentlane.storage.verifying import Verifying

__all__ = [
    "Address",
    "AppendElement",
    "Capabilities",
    "Commit",
    "Compacted",
    "DeleteList",
    "DeleteValue",
    "Durability",
    "Element",
    "ElementRow",
    "EntryRow",
    "Exchange",
    "ExchangeFile",
    "Findings",
    "Forking",
    "Found",
    "InsertEntry",
    "InsertUsage",
    "JsonlStore",
    "LedgerRow",
    "MemoryStore",
    "OpenOperation",
    "Pending",
    "Probe",
    "Repairing",
    "Row",
    "Salvage",
    "Search",
    "SessionInfo",
    "SessionStorage",
    "SetValue",
    "Snapshot",
    "SqliteStore",
    "Store",
    "ValueRow",
    "Verifying",
    "Write",
    "search_by_reading",
]

# A program mostly uses one store: the others, and what they are made of, are imported by whoever names them.
_HOMES = {
    "Exchange": "exchange",
    "ExchangeFile": "exchange",
    "Findings": "salvage",
    "Forking": "forks",
    "JsonlStore": "jsonl",
    "MemoryStore": "memory",
    "Repairing": "repairing",
    "Salvage": "salvage",
    "SqliteStore": "sqlite",
    "Verifying": "verifying",
    "search_by_reading": "searching",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
