"""What a failed statement of SQLite says: of its commit alone, of who else uses the file, or of the file."""

from __future__ import annotations

import sqlite3
from typing import Any

from agentlane.errors import AgentLaneError, InvalidWrite, OwnershipLost, PayloadTooLarge, SessionFaulted

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
"""What SQLite says where others hold its locks; the last, when it has lost too many races for one."""
_REFUSED = (InvalidWrite, OwnershipLost, PayloadTooLarge)


def code_of(error: BaseException) -> int | None:
    """SQLite's primary result code, where it has said one."""
    code: Any = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def roll_back(database: sqlite3.Connection) -> None:
    """End a transaction that is to change nothing, if there is one."""
    if database.in_transaction:
        try:
            database.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the first error is the one to tell; the connection is closed for it


def refusal_of(error: Exception) -> AgentLaneError | None:
    """What a failed statement says about its commit alone; None if it says something about the file."""
    if isinstance(error, _REFUSED):
        return error
    refusal: AgentLaneError
    if code_of(error) == sqlite3.SQLITE_TOOBIG or (isinstance(error, OverflowError) and "BLOB" in str(error)):
        refusal = PayloadTooLarge(f"a payload is larger than SQLite takes: {error}")
    elif isinstance(error, sqlite3.IntegrityError):
        refusal = InvalidWrite(f"the commit does not fit what is stored; an id is used already: {error}")
    elif isinstance(
        error, sqlite3.ProgrammingError | sqlite3.InterfaceError | OverflowError | UnicodeEncodeError | TypeError
    ):
        refusal = InvalidWrite(f"the commit holds a value that SQLite cannot store: {error}")
    else:
        return None
    refusal.__cause__ = error
    return refusal


def faulted(cause: BaseException) -> SessionFaulted:
    """What a session is told whose file could not be written."""
    error = SessionFaulted(f"the SQLite file could not be written: {cause}; open the session again to go on")
    error.__cause__ = cause
    return error
