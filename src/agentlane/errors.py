"""Every exception that agentlane raises on purpose: one root, a stable ``code`` each, all of them picklable."""

from __future__ import annotations

from typing import Any, ClassVar


class AgentLaneError(Exception):
    """Root of all errors of this library.

    ``code`` is a stable machine-readable word; ``details`` holds the values that the message names.
    """

    code: ClassVar[str] = "agentlane_error"

    def __init__(self, message: str = "", **details: Any) -> None:
        super().__init__(message)
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), self.details))


def _rebuild(kind: type[AgentLaneError], message: str, details: dict[str, Any]) -> AgentLaneError:
    return kind(message, **details)


# Misuse: the caller can avoid these.


class InvalidMessage(AgentLaneError):
    """A message, prompt or JSON value has a shape that cannot be stored; the text names the path of the bad part."""

    code = "invalid_message"


class InvalidName(AgentLaneError):
    """A name or an id given by the caller does not follow the pattern for names."""

    code = "invalid_name"


class InvalidDefinition(AgentLaneError):
    """An agent, tool or option is declared in a way that cannot work; raised at definition, before anything runs."""

    code = "invalid_definition"


class InvalidWrite(AgentLaneError):
    """A commit was refused before it reached the medium: unknown parent, used id, nothing to write."""

    code = "invalid_write"


class UnknownSession(AgentLaneError):
    """No session with that id is in the store, or several are and none was named."""

    code = "unknown_session"


class UnknownBranch(AgentLaneError):
    """No branch with that name is in the session."""

    code = "unknown_branch"


class UnknownEntry(AgentLaneError):
    """No entry with that id is in the session."""

    code = "unknown_entry"


class UnknownModel(AgentLaneError):
    """A model that was asked for is not among the agent's models."""

    code = "unknown_model"


class UnknownTool(AgentLaneError):
    """A tool that was asked for by name is not among the agent's tools."""

    code = "unknown_tool"


class InvalidNavigation(AgentLaneError):
    """A lane was to go where it cannot: no such entry, or to rewind behind what is no user entry on its path."""

    code = "invalid_navigation"


class NothingToCompact(AgentLaneError):
    """A lane was to be compacted that shows its model nothing beyond what is kept."""

    code = "nothing_to_compact"


class UnknownOperation(AgentLaneError):
    """No open or settled operation with that id is known to the lane."""

    code = "unknown_operation"


class PayloadTooLarge(AgentLaneError):
    """One value or message is larger than the store takes; nothing was written."""

    code = "payload_too_large"


class WrongLoop(AgentLaneError):
    """A session was used from another event loop than the one it was opened on."""

    code = "wrong_loop"


class WrongProcess(AgentLaneError):
    """A session was used in a forked child of the process that opened it."""

    code = "wrong_process"


class WouldDeadlock(AgentLaneError):
    """An effect of a lane tried to drive, abort or wait for that same lane."""

    code = "would_deadlock"


class ReadOnlySession(AgentLaneError):
    """A session that was opened for reading was asked to write."""

    code = "read_only_session"


class SearchUnavailable(AgentLaneError):
    """SQLite is built without FTS5 here, so there is no search index; ``scan=True`` reads the entries instead."""

    code = "search_unavailable"


# Races: another caller came first.


class LaneBusy(AgentLaneError):
    """The lane has an open operation; ``details["operation_id"]`` names it."""

    code = "lane_busy"


class OperationMismatch(AgentLaneError):
    """The lane's open operation is another one than the caller named."""

    code = "operation_mismatch"


class NoActiveOperation(AgentLaneError):
    """Nothing is open on the lane and no operation was named."""

    code = "no_active_operation"


class RequestConflict(AgentLaneError):
    """The operation id was used before with another request."""

    code = "request_conflict"


class ApprovalNotPending(AgentLaneError):
    """What was to be answered or delivered is answered already, void, or not known; ``details["became"]`` says which.

    Of an approval it is ``allowed``, ``denied``, ``expired`` or ``unknown``, of a question ``answered`` or ``unknown``;
    of a call whose result is delivered its status (``effect_pending`` while its tool has not returned), ``aborting`` or
    ``unknown``.
    """

    code = "approval_not_pending"


# Lifecycle.


class SessionClosed(AgentLaneError):
    """The session is closed, or closed while the caller waited; open operations go on after the next open."""

    code = "session_closed"


class DriveInterrupted(AgentLaneError):
    """The pass ended from outside: its task was cancelled, or its event loop ends. Driving again goes on."""

    code = "drive_interrupted"


class SessionFaulted(AgentLaneError):
    """A write failed, so what is in memory may not be on disk; ``__cause__`` says why, ``reopen()`` goes on."""

    code = "session_faulted"


class SessionOwned(AgentLaneError):
    """Another owner has this session open for writing."""

    code = "session_owned"


class StoreOwned(AgentLaneError):
    """Another owner has this database file open for writing."""

    code = "store_owned"


class StoreBusy(AgentLaneError):
    """Another program holds the database's write lock for longer than the waiting time; nothing was written."""

    code = "store_busy"


class OwnershipLost(AgentLaneError):
    """The file or its lock was replaced behind the owner's back, or a newer owner has written."""

    code = "ownership_lost"


# Data.


class CorruptSession(AgentLaneError):
    """Stored data is damaged; the message names the place and the reason. Nothing was changed."""

    code = "corrupt_session"


class UnsupportedFormat(AgentLaneError):
    """Stored data has a format or a tag that this version does not know. Nothing was changed."""

    code = "unsupported_format"
