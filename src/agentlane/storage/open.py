"""Targets to stores: what ``open_session`` may be given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from agentlane.clock import Clock
from agentlane.errors import CorruptSession, InvalidMessage, InvalidName
from agentlane.ids import IdSource
from agentlane.storage.contract import Durability, Store
from agentlane.storage.paths import SUFFIX

Target: TypeAlias = "str | os.PathLike[str] | Store"
"""A path, ``":memory:"``, or a store."""

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def open_store(target: Target, *, durability: Durability, clock: Clock, ids: IdSource) -> tuple[Store, bool]:
    """The store that ``target`` names, and whether it was made here (and so is closed with the session).

    ``":memory:"`` is a new memory store; a path that ends in ``.db``, ``.sqlite`` or ``.sqlite3`` a SQLite file; one
    that ends in ``.jsonl`` a single session's file; any other path a folder of JSONL sessions. A kind of store is
    imported when it is first needed.
    """
    if not isinstance(target, str | os.PathLike):
        return target, False
    if target == ":memory:":
        from agentlane.storage.memory import MemoryStore

        return MemoryStore(clock=clock, ids=ids), True
    path = Path(target)
    suffix = suffix_of(path)
    if suffix in SQLITE_SUFFIXES:
        from agentlane.storage.sqlite import SqliteStore

        return SqliteStore(path, durability=durability, clock=clock, ids=ids), True
    from agentlane.storage.jsonl import JsonlStore

    if suffix == SUFFIX:
        return JsonlStore.for_file(path, durability=durability, clock=clock, ids=ids), True
    if os.path.exists(path) and not os.path.isdir(path):
        raise CorruptSession(
            f"{path}: a path without one of the suffixes {', '.join((*SQLITE_SUFFIXES, SUFFIX))} is a folder of "
            "sessions, and this is a file",
            path=str(path),
        )
    return JsonlStore(path, durability=durability, clock=clock, ids=ids), True


def checked_target(target: Target) -> Target:
    """``target`` if it may be one, a path as plain ``str``.

    ``InvalidName`` for a path that no file can have, ``InvalidMessage`` for what is neither a path nor a store.
    """
    if not isinstance(target, str | os.PathLike):
        if not hasattr(target, "open_operations"):
            raise InvalidMessage(f"target: a path, ':memory:' or a store is needed here, not {type(target).__name__}")
        return target
    path: object = os.fspath(target)
    if not isinstance(path, str):
        raise InvalidMessage(f"target {path!r}: a path of text is needed here, not of {type(path).__name__}")
    text = str.__str__(path)
    if not text:
        raise InvalidName("target: it is empty; name a file or a folder ('.' is the current one)", value=text)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidName(f"target {text!r}: no file can have this name: {error}", value=repr(text)) from error
    if "\0" in text:
        raise InvalidName(f"target {text!r}: no file can have this name: it holds a NUL", value=repr(text))
    if (name := Path(text).name).lower() in (*SQLITE_SUFFIXES, SUFFIX):
        raise InvalidName(
            f"target {text!r}: it is a suffix without a name; write one before, as in 'work{name}'", value=text
        )
    return text


def suffix_of(path: Path) -> str:
    """The suffix of a target that says what kind it is; case does not count."""
    return path.suffix.lower()


def session_of(target: Target) -> str | None:
    """The session id that a target itself names: the stem of a ``.jsonl`` file, links followed as the store does."""
    if isinstance(target, str | os.PathLike) and suffix_of(Path(target)) == SUFFIX:
        return Path(os.path.realpath(target)).stem
    return None
