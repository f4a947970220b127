"""Where sessions live: the storage contract, and the memory, JSONL and SQLite stores."""

from agentlane.storage.contract import (
    Capabilities,
    Commit,
    Durability,
    Element,
    EntryRow,
    LedgerRow,
    OpenOperation,
    Pending,
    Probe,
    SessionInfo,
    SessionStorage,
    Store,
)
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.memory import MemoryStore
from agentlane.storage.sqlite import SqliteStore

__all__ = [
    "Capabilities",
    "Commit",
    "Durability",
    "Element",
    "EntryRow",
    "JsonlStore",
    "LedgerRow",
    "MemoryStore",
    "OpenOperation",
    "Pending",
    "Probe",
    "SessionInfo",
    "SessionStorage",
    "SqliteStore",
    "Store",
]
