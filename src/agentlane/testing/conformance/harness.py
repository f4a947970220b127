"""What the suite is told of a backend: how to make stores on one place, and how to do it harm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TypeAlias

from msgspec import Struct

from agentlane.storage.contract import Store


class Harness(Struct, frozen=True, kw_only=True):
    """One place where sessions can be kept, empty at first, and what can be done to it. All but ``store`` is optional.

    A check whose means are missing here is skipped, and the report says why. The means are called with a session's id.
    """

    store: Callable[[], Store]
    """A new store object. If it is persistent, each call gives one on the same place, as a new process would."""

    break_medium: Callable[[str], AbstractContextManager[None]] | None = None
    """While entered, whatever is asked of the medium to write for that session fails with an error of the medium."""

    take_over: Callable[[str], Awaitable[None]] | None = None
    """Do to an open session what a newer owner does: its epoch on the medium is no longer the owner's."""

    open_elsewhere: Callable[[str], Awaitable[str | None]] | None = None
    """In another process, open the session for writing, and close it: the ``code`` of the error it got, or None."""

    damages: Mapping[str, Callable[[str], None]] = {}
    """Ways to damage a session that is closed and has ten entries; each must be found as ``CorruptSession``."""

    make_newer: Callable[[str], None] | None = None
    """Make a session that is closed look as if a newer format had been used."""

    make_older: Callable[[str], None] | None = None
    """Make a session that is closed one of an older format, as a version wrote it that knew no newer one."""

    content: Callable[[], Mapping[str, bytes]] | None = None
    """Every byte that the place holds, by name, locks and the like left out. Called while nothing is open."""


HarnessMaker: TypeAlias = Callable[[], AbstractAsyncContextManager[Harness]]
"""Makes a fresh place for one check, and clears it away."""
