"""Where sessions live: the storage contract, and the memory, JSONL and SQLite stores."""

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
from agentlane.storage.exchange import Exchange, ExchangeFile
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
