"""Where a copy of a session goes: the store that a target names, opened for as long as the copy takes."""

from __future__ import annotations

import os

from agentlane.clock import Clock
from agentlane.errors import InvalidDefinition, InvalidMessage
from agentlane.ids import IdSource
from agentlane.storage.contract import Store
from agentlane.storage.holding import Hold
from agentlane.storage.jsonl import JsonlStore
from agentlane.storage.open import Target, checked_target, open_store


def checked_place(target: Target | None) -> Target | None:
    """A target that can keep what is made in it. ``InvalidDefinition``, ``InvalidMessage``, ``InvalidName``."""
    if target is None:
        return None
    target = checked_target(target)
    if target == ":memory:":
        raise InvalidDefinition(
            "target ':memory:': what is made in it is gone when this call returns; hand in a MemoryStore that you keep"
        )
    if not isinstance(target, str | os.PathLike) and not all(hasattr(target, each) for each in ("create", "load")):
        raise InvalidMessage(f"target: a path, ':memory:' or a store is needed here, not {type(target).__name__}")
    return target


def opened(target: Target | None, store: Store, clock: Clock, ids: IdSource) -> Hold[Store]:
    """The store that a copy goes to, ``store`` or what it is a file of if none is named. One that is made for it is
    closed with it."""
    if target is None:
        return Hold(store.whole_folder() if isinstance(store, JsonlStore) else store)
    place, made = open_store(target, durability="disk", clock=clock, ids=ids)
    return Hold(place, place.close if made else None)
