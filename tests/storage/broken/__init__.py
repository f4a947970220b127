"""Backends that each break one rule, so that the conformance suite can show that it catches them."""

from __future__ import annotations

from tests.storage.broken import commits, data, owners, paths, searching, stores, verifying, wholes
from tests.storage.broken.base import Broken, BrokenStore

STORAGES: list[type[Broken]] = [
    each
    for module in (commits, data, paths, owners, wholes, searching)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Broken) and each not in (Broken, paths.BrokenPath)
]
STORES: list[type[BrokenStore]] = [
    each
    for module in (stores, wholes, searching, verifying)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, BrokenStore) and each is not BrokenStore
]

__all__ = ["STORAGES", "STORES", "Broken", "BrokenStore"]
