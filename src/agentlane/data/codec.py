"""Records to JSON text and back, with kept typed decoders; what cannot be read is named by its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from agentlane.data.approvals import Approval, Decision
from agentlane.data.entries import Entry, EntryBody
from agentlane.data.inbox import QueuedInput, QueuedItem, Receipt
from agentlane.data.messages import Frame, ToolCallPart, UserPart
from agentlane.data.operations import LaneConfig, LaneState, OperationConfig, OperationMeta, OperationState, SummaryPrep
from agentlane.data.results import OperationResult
from agentlane.errors import CorruptSession, InvalidMessage, UnsupportedFormat

T = TypeVar("T")

encode = msgspec.json.Encoder().encode

_UNKNOWN_WORD = ("Invalid value", "Invalid enum value")
"""How msgspec begins its message when a tag, or a word of a closed set, is not one that we know."""


class Kind(Generic[T]):
    """One type of stored record with its kept decoder, which is made when something is first read with it."""

    def __init__(self, type: Any, what: str) -> None:
        self._type = type
        self._what = what
        self._decode: Callable[[bytes], Any] = self._first

    def decode(self, payload: bytes, place: str) -> T:
        """The record in ``payload``; ``CorruptSession`` or ``UnsupportedFormat`` names ``place``."""
        try:
            return self._decode(payload)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if str(error).startswith(_UNKNOWN_WORD):
                raise UnsupportedFormat(
                    f"{self._what} at {place}: {error}; it was written by a newer version", place=place
                ) from error
            raise CorruptSession(f"{self._what} at {place}: {error}", place=place) from error

    def _first(self, payload: bytes) -> Any:
        self._decode = msgspec.json.Decoder(self._type).decode
        return self._decode(payload)

    def seal(self, record: T, path: str) -> tuple[bytes, T]:
        """``record`` as stored and a copy of it as it will be read back; wrong types are refused with the path."""
        try:
            payload = encode(record)
            return payload, self._decode(payload)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise InvalidMessage(f"{path}: {error}", path=path) from error


BODY: Final[Kind[EntryBody]] = Kind(EntryBody, "entry")
META: Final[Kind[OperationMeta]] = Kind(OperationMeta, "operation")
CONFIG: Final[Kind[OperationConfig]] = Kind(OperationConfig, "operation's configuration")
PREP: Final[Kind[SummaryPrep]] = Kind(SummaryPrep, "preparation of a summary")
STATE: Final[Kind[OperationState]] = Kind(OperationState, "operation's state")
LANE_CONFIG: Final[Kind[LaneConfig]] = Kind(LaneConfig, "lane's configuration")
LANE_STATE: Final[Kind[LaneState]] = Kind(LaneState, "lane's state")
QUEUED: Final[Kind[QueuedItem]] = Kind(QueuedItem, "queued item")
RETURNED: Final[Kind[tuple[QueuedInput, ...]]] = Kind(tuple[QueuedInput, ...], "returned input")
RECEIPT: Final[Kind[Receipt]] = Kind(Receipt, "receipt")
RESULT: Final[Kind[OperationResult]] = Kind(OperationResult, "result")
APPROVAL: Final[Kind[Approval]] = Kind(Approval, "approval")
DECISION: Final[Kind[Decision]] = Kind(Decision, "decision")
FRAMES: Final[Kind[tuple[Frame, ...]]] = Kind(tuple[Frame, ...], "frames")
PROGRESS: Final[Kind[tuple[UserPart, ...]]] = Kind(tuple[UserPart, ...], "progress")
CALLS: Final[Kind[tuple[ToolCallPart, ...]]] = Kind(tuple[ToolCallPart, ...], "calls")
TEXT: Final[Kind[str]] = Kind(str, "text")
OPTIONAL_TEXT: Final[Kind[str | None]] = Kind(str | None, "text")
JSON: Final[Kind[Any]] = Kind(Any, "JSON value")


def same_json(one: Any, other: Any) -> bool:
    """Whether two pieces of JSON data are the same text, but for the order of keys."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def entry_of(id: str, parent_id: str | None, seq: int, at: int, payload: bytes) -> Entry:
    """An entry from its stored row."""
    return Entry(id=id, parent_id=parent_id, seq=seq, at=at, body=BODY.decode(payload, f"entry {id}"))
