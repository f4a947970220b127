"""Snapshots of lanes, the events that lead from one to the next, and the fold of the two.

Rules of this file
- A snapshot is total: all that is committed of a lane, as far as it is watched, and the answer that streams as shown.
- An event says what became true, and holds all that ``apply`` needs. ``apply`` is pure and never fails on an event of
  its own lane.
- The events since a snapshot, applied in order, give the snapshot of now. # the law of tests/watch
- A part of a lane that is to be watched is: a field of ``LaneSnapshot``, an event that carries it whole, a line in
  ``_FOLDS``, and a comparison in ``driver/feed.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agentlane.data.entries import Entry
from agentlane.data.inbox import QueuedInput
from agentlane.data.inspection import Operation
from agentlane.data.messages import Frame, ModelIdentity, ToolResultMessage, UserPart
from agentlane.data.partial import PartialAnswer
from agentlane.data.results import OperationResult
from agentlane.errors import InvalidMessage

S = TypeVar("S", bound="LaneSnapshot | SessionSnapshot")


class LaneSnapshot(Struct, frozen=True, kw_only=True):
    """What is committed of a lane, and the answer that streams on it, at one moment.

    ``entries`` are the newest ``history`` of the lane's path, oldest first. ``agent``, ``model``, ``tools`` and
    ``settings`` are the lane's configuration (None: the agent's). ``progress`` and ``staged`` hold, by call id, what a
    call of ``operation`` without an outcome saved last, and outcomes that wait for their place among the entries.
    ``answer`` is the answer that is not settled, if something of it was shown. ``queued`` is what waits in the inbox,
    in the order it came. ``cursor`` names the moment.
    """

    lane: str
    cursor: str
    agent: str
    model: ModelIdentity | None = None
    tools: tuple[str, ...] | None = None
    settings: dict[str, Any] | None = None
    tip: str | None = None
    history: int | None = None
    entries: tuple[Entry, ...] = ()
    operation: Operation | None = None
    progress: dict[str, tuple[UserPart, ...]] = {}
    staged: dict[str, ToolResultMessage] = {}
    answer: PartialAnswer | None = None
    queued: tuple[QueuedInput, ...] = ()
    last_result: OperationResult | None = None

    def apply(self, event: Event | Resnapshot[LaneSnapshot]) -> LaneSnapshot:
        """The snapshot after ``event``. ``InvalidMessage`` for an event of another lane."""
        if isinstance(event, Resnapshot):
            return event.snapshot
        if event.lane != self.lane and not (isinstance(event, LaneRenamed) and event.before == self.lane):
            raise InvalidMessage(f"an event of lane {event.lane!r} does not change the snapshot of {self.lane!r}")
        fold = _FOLDS.get(type(event))
        return self if fold is None else replace(fold(self, event), cursor=event.cursor)


class SessionSnapshot(Struct, frozen=True, kw_only=True):
    """All lanes of a session at one moment, by name."""

    session_id: str
    cursor: str
    lanes: dict[str, LaneSnapshot]

    def apply(self, event: Event | Resnapshot[SessionSnapshot]) -> SessionSnapshot:
        """The snapshot after ``event``."""
        if isinstance(event, Resnapshot):
            return event.snapshot
        lanes = dict(self.lanes)
        if isinstance(event, LaneRemoved):
            lanes.pop(event.lane, None)
        elif isinstance(event, LaneOpened):
            lanes[event.lane] = event.snapshot
        elif isinstance(event, LaneRenamed):
            if event.before in lanes:
                lanes[event.lane] = lanes.pop(event.before).apply(event)
        elif event.lane in lanes:
            lanes[event.lane] = lanes[event.lane].apply(event)
        return replace(self, lanes=lanes, cursor=event.cursor)


class Resnapshot(Struct, Generic[S], frozen=True):
    """The reader was too slow, and events were left out: this is how everything stands now instead."""

    snapshot: S

    @property
    def cursor(self) -> str:
        """The moment of the snapshot."""
        return self.snapshot.cursor


class LaneEvent(Struct, frozen=True, kw_only=True, tag_field="event"):
    """What all events say: the lane, the moment behind it (a cursor for ``watch``), and the operation, if it is of one.

    ``recovered``: the operation was open when the session was opened, so that this is of its recovery.
    """

    lane: str
    cursor: str
    operation_id: str | None = None
    recovered: bool = False


class LaneOpened(LaneEvent, frozen=True, kw_only=True, tag="lane_opened"):
    """A lane was made. Only who watches the session is told."""

    snapshot: LaneSnapshot


class LaneRemoved(LaneEvent, frozen=True, kw_only=True, tag="lane_removed"):
    """The lane is no more: its branch was deleted."""


class LaneRenamed(LaneEvent, frozen=True, kw_only=True, tag="lane_renamed"):
    """The lane has another name: ``lane``, which was ``before``."""

    before: str


class LaneConfigured(LaneEvent, frozen=True, kw_only=True, tag="lane_configured"):
    """The lane's configuration is this now."""

    agent: str
    model: ModelIdentity | None = None
    tools: tuple[str, ...] | None = None
    settings: dict[str, Any] | None = None


class QueueChanged(LaneEvent, frozen=True, kw_only=True, tag="queue_changed"):
    """``added`` waits in the inbox now, behind what waited; what has an id in ``removed`` was placed, taken as a
    prompt, given back by an abort, or cancelled."""

    added: tuple[QueuedInput, ...] = ()
    removed: tuple[str, ...] = ()


class EntryAdded(LaneEvent, frozen=True, kw_only=True, tag="entry_added"):
    """An entry was appended at the lane's tip. The result of a call has the call's id, an answer that was streamed the
    id it was shown under."""

    entry: Entry


class PathMoved(LaneEvent, frozen=True, kw_only=True, tag="path_moved"):
    """The lane's tip is on another path now; ``entries`` are the newest of that path, oldest first."""

    tip: str | None
    entries: tuple[Entry, ...] = ()


class OperationAccepted(LaneEvent, frozen=True, kw_only=True, tag="operation_accepted"):
    """An operation is open. ``steps`` here and below: the commit's name, the rows of the commit table it merges."""

    operation: Operation
    steps: tuple[str, ...] = ()


class OperationAdvanced(LaneEvent, frozen=True, kw_only=True, tag="operation_advanced"):
    """The open operation has another state."""

    operation: Operation
    steps: tuple[str, ...] = ()


class OperationSettled(LaneEvent, frozen=True, kw_only=True, tag="operation_settled"):
    """The operation has its terminal record."""

    result: OperationResult
    steps: tuple[str, ...] = ()


class ProgressSaved(LaneEvent, frozen=True, kw_only=True, tag="progress_saved"):
    """The latest progress of a call that has no outcome is durable."""

    call_id: str
    content: tuple[UserPart, ...]


class ResultStaged(LaneEvent, frozen=True, kw_only=True, tag="result_staged"):
    """The outcome of a call is durable and waits for those of calls before it. Comes in the order of completion."""

    call_id: str
    message: ToolResultMessage


class AnswerShown(LaneEvent, frozen=True, kw_only=True, tag="answer_shown"):
    """The model streamed more of an answer. The one kind of event that no commit stands behind."""

    response_id: str
    frames: tuple[Frame, ...]


Event: TypeAlias = (
    LaneOpened
    | LaneRemoved
    | LaneRenamed
    | LaneConfigured
    | QueueChanged
    | EntryAdded
    | PathMoved
    | OperationAccepted
    | OperationAdvanced
    | OperationSettled
    | ProgressSaved
    | ResultStaged
    | AnswerShown
)
"""What a watcher is told."""


def newest(entries: tuple[Entry, ...], history: int | None) -> tuple[Entry, ...]:
    """The last ``history`` of them."""
    return entries if history is None or len(entries) <= history else entries[len(entries) - history :]


# The fold, one function for each event that changes a lane's snapshot.


def _opened(snapshot: LaneSnapshot, event: LaneOpened) -> LaneSnapshot:
    return event.snapshot


def _renamed(snapshot: LaneSnapshot, event: LaneRenamed) -> LaneSnapshot:
    return replace(snapshot, lane=event.lane)


def _configured(snapshot: LaneSnapshot, event: LaneConfigured) -> LaneSnapshot:
    return replace(snapshot, agent=event.agent, model=event.model, tools=event.tools, settings=event.settings)


def _queue_changed(snapshot: LaneSnapshot, event: QueueChanged) -> LaneSnapshot:
    gone = set(event.removed)
    return replace(snapshot, queued=(*(each for each in snapshot.queued if each.id not in gone), *event.added))


def _entry_added(snapshot: LaneSnapshot, event: EntryAdded) -> LaneSnapshot:
    entry, answer = event.entry, snapshot.answer
    return replace(
        snapshot,
        tip=entry.id,
        entries=newest((*snapshot.entries, entry), snapshot.history),
        progress=_without(snapshot.progress, entry.id),
        staged=_without(snapshot.staged, entry.id),
        answer=None if answer is not None and answer.response_id == entry.id else answer,
    )


def _path_moved(snapshot: LaneSnapshot, event: PathMoved) -> LaneSnapshot:
    return replace(snapshot, tip=event.tip, entries=newest(event.entries, snapshot.history))


def _accepted(snapshot: LaneSnapshot, event: OperationAccepted) -> LaneSnapshot:
    return replace(snapshot, operation=event.operation, progress={}, staged={}, answer=None)


def _advanced(snapshot: LaneSnapshot, event: OperationAdvanced) -> LaneSnapshot:
    operation = event.operation
    return replace(
        snapshot,
        operation=operation,
        progress=of_calls_without_outcome(operation, snapshot.progress),
        staged=of_staged_calls(operation, snapshot.staged),
        answer=snapshot.answer if operation.at == "generating" else None,
    )


def _settled(snapshot: LaneSnapshot, event: OperationSettled) -> LaneSnapshot:
    return replace(snapshot, operation=None, progress={}, staged={}, answer=None, last_result=event.result)


def _progress_saved(snapshot: LaneSnapshot, event: ProgressSaved) -> LaneSnapshot:
    return replace(snapshot, progress={**snapshot.progress, event.call_id: event.content})


def _result_staged(snapshot: LaneSnapshot, event: ResultStaged) -> LaneSnapshot:
    return replace(
        snapshot,
        progress=_without(snapshot.progress, event.call_id),
        staged={**snapshot.staged, event.call_id: event.message},
    )


def _answer_shown(snapshot: LaneSnapshot, event: AnswerShown) -> LaneSnapshot:
    answer = snapshot.answer
    if answer is None or answer.response_id != event.response_id:
        answer = PartialAnswer(response_id=event.response_id)
    return replace(snapshot, answer=answer.plus(event.frames))


_FOLDS: dict[type, Callable[[LaneSnapshot, Any], LaneSnapshot]] = {
    LaneOpened: _opened,
    LaneRenamed: _renamed,
    LaneConfigured: _configured,
    QueueChanged: _queue_changed,
    EntryAdded: _entry_added,
    PathMoved: _path_moved,
    OperationAccepted: _accepted,
    OperationAdvanced: _advanced,
    OperationSettled: _settled,
    ProgressSaved: _progress_saved,
    ResultStaged: _result_staged,
    AnswerShown: _answer_shown,
}

V = TypeVar("V")


def of_calls_without_outcome(operation: Operation, values: dict[str, V]) -> dict[str, V]:
    """Those of ``values`` that belong to calls of ``operation`` that have no outcome yet."""
    if not values:
        return values
    ended = ("outcome_ready", "placed")
    return {each.call_id: values[each.call_id] for each in _calls(operation, values) if each.status not in ended}


def of_staged_calls(operation: Operation, values: dict[str, V]) -> dict[str, V]:
    """Those of ``values`` that belong to calls of ``operation`` whose outcome waits for its place."""
    if not values:
        return values
    return {each.call_id: values[each.call_id] for each in _calls(operation, values) if each.status == "outcome_ready"}


def _calls(operation: Operation, values: dict[str, Any]) -> list[Any]:
    return [each for each in operation.calls if each.call_id in values]


def _without(values: dict[str, V], id: str) -> dict[str, V]:
    return {key: value for key, value in values.items() if key != id} if id in values else values
