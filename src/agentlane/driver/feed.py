"""Feeds: what a published commit changed of a lane, as events, made in the same synchronous step.

A feed compares what memory holds with what it told last, so that whoever changes a lane need not know of it: each part
of a snapshot is compared in one place below. While nobody watches, nothing is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Protocol, TypeVar

from msgspec.structs import replace

from agentlane.data import addresses, codec
from agentlane.data.entries import Entry
from agentlane.data.events import (
    AnswerShown,
    EntryAdded,
    Event,
    LaneConfigured,
    LaneOpened,
    LaneRemoved,
    LaneRenamed,
    LaneSnapshot,
    OperationAccepted,
    OperationAdvanced,
    OperationSettled,
    PathMoved,
    ProgressSaved,
    QueueChanged,
    ResultStaged,
    of_calls_without_outcome,
    of_staged_calls,
)
from agentlane.data.inspection import Operation
from agentlane.data.messages import Frame, PartEnd, ToolResultMessage, UserPart
from agentlane.data.operations import Generating, LaneConfig, LaneState, OperationState, Tools
from agentlane.data.partial import PartialAnswer
from agentlane.data.writes import InsertEntry, SetValue, Write
from agentlane.driver.channel import Channel, Numbers
from agentlane.driver.inbox import Inbox
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.records import operation_record
from agentlane.driver.tool_results import Sealed
from agentlane.errors import AgentLaneError
from agentlane.ids import call_id
from agentlane.storage.contract import Commit

T = TypeVar("T")


class WatchedLane(Protocol):
    """What a feed looks at."""

    name: str
    tip: str | None
    config: LaneConfig | None
    state: LaneState | None
    operation: OpenOperation | None
    inbox: Inbox

    @property
    def feed(self) -> Feed: ...


class HubRuntime(Protocol):
    """What a hub asks of the session's runtime."""

    open_operations: dict[str, str]

    def found(self, text: str) -> None: ...


class Hub:
    """The feeds of one session: who is watched, and the order of all events. One per open session."""

    def __init__(self, runtime: HubRuntime) -> None:
        self.runtime = runtime
        self.numbers = Numbers()
        self.watched = False
        """Whether any lane, or the session, is watched."""
        self._several = False
        self.channel = Channel(self.numbers, self.changed)
        self.lanes: Mapping[str, WatchedLane] = {}
        """The session's lanes, as it knows them."""

    def changed(self) -> None:
        """A channel became active, or is active no more."""
        watched = sum(lane.feed.look() for lane in self.lanes.values())
        self.watched = self.channel.active or watched > 0
        self._several = self.channel.active or watched > 1

    def published(self, own: Feed, commit: Commit, writes: Sequence[Write], boundary: str) -> None:
        """A commit of ``own``'s line is published; it may have changed other lanes too."""
        if own.watched:
            own.committed(commit, writes, boundary)
            if not self._several:
                return
        for name in self._written(writes):
            lane = self.lanes.get(name)
            if lane is not None and lane.feed is not own and lane.feed.watched:
                lane.feed.committed(commit, writes, boundary)

    def end(self, error: BaseException | None) -> None:
        """The session is closed, or faulted with ``error``: who watches is told, and cursors end with it."""
        if self.watched:
            self.channel.end(error)
            for lane in tuple(self.lanes.values()):
                lane.feed.channel.end(error)
        self.numbers.renew()

    def _written(self, writes: Sequence[Write]) -> set[str]:
        names: set[str] = set()
        for write in writes:
            if type(write) is SetValue:
                namespace, key = write.address
                if namespace == addresses.OP_STATE:
                    names.add(self.runtime.open_operations.get(key, ""))
                elif namespace in (addresses.LANE_STATE, addresses.LANE_CONFIG, addresses.BRANCH_TIP):
                    names.add(key)
        return names


class Feed:
    """The events of one lane."""

    def __init__(self, hub: Hub, lane: WatchedLane) -> None:
        self._hub = hub
        self._lane = lane
        self.channel = Channel(hub.numbers, hub.changed)
        self.watched = False
        """Whether anybody wants events of this lane; while it is False, nothing else may be asked of a feed."""
        self._told = _Told(lane.name)
        self._made: list[tuple[int, Event]] = []
        """Events of the commit that is being told of."""
        self.look()

    @property
    def listening(self) -> bool:
        """Whether anybody watches this lane, or one that a commit of this lane may change too."""
        return self._hub.watched

    def published(self, commit: Commit, writes: Sequence[Write], boundary: str) -> None:
        """A commit of the lane's line is published. Never raises."""
        self._hub.published(self, commit, writes, boundary)

    def look(self) -> bool:
        """See whether the lane is watched now."""
        watched = self.channel.active or self._hub.channel.active
        if watched and not self.watched:
            self._told = _Told.of(self._lane)
        self.watched = watched
        return watched

    def capture(self, history: int | None) -> LaneSnapshot:
        """The snapshot of now, except for what only the store holds: ``entries`` and ``last_result``."""
        lane = self._lane
        config, operation = lane.config, lane.operation
        snapshot = LaneSnapshot(
            lane=lane.name,
            cursor=self._hub.numbers.now(),
            agent="" if config is None else config.agent,
            model=None if config is None else config.model,
            tools=None if config is None else config.tools,
            settings=None if config is None else deepcopy(config.settings),
            tip=lane.tip,
            history=history,
            queued=tuple(item.shown() for item in lane.inbox),
        )
        if operation is None:
            return snapshot
        record = operation_record(operation)
        return replace(
            snapshot,
            operation=record,
            progress=of_calls_without_outcome(record, _by_call(operation.state, operation.progress)),
            staged={id: _message(each) for id, each in of_staged_calls(record, _staged(operation)).items()},
            answer=_partial(operation),
        )

    def shown(self, operation: OpenOperation, response_id: str, frame: Frame) -> None:
        """The model streamed a piece of the answer."""
        if isinstance(frame, PartEnd):
            frame = deepcopy(frame)  # what is shown is nobody's to change
        self._add(
            AnswerShown(
                lane=self._lane.name,
                cursor=self._hub.numbers.next(),
                operation_id=operation.id,
                recovered=operation.restored,
                response_id=response_id,
                frames=(frame,),
            )
        )
        self._emit()

    def committed(self, commit: Commit, writes: Sequence[Write], boundary: str) -> None:
        """A commit is published: tell what it changed. Never raises: nobody's run fails since somebody watches it."""
        try:
            self._tell(commit, writes, tuple(boundary.split("+")))
            self._emit()
        except Exception as error:  # a bug of ours: readers look anew, which always works
            self._made.clear()
            self._hub.runtime.found(f"watching lane {self._lane.name!r}: {error!r}")
            self.channel.miss()
            self._hub.channel.miss()
            self._told = _Told.of(self._lane)

    # What changed, part by part.

    def _tell(self, commit: Commit, writes: Sequence[Write], steps: tuple[str, ...]) -> None:
        lane, told = self._lane, self._told
        operation, before = lane.operation, told.operation
        if lane.name != told.name:
            was, told.name = told.name, lane.name
            if lane.config is not None:
                self._add(LaneRenamed(lane=lane.name, cursor=self._hub.numbers.next(), before=was))
        if lane.config is not told.config and self._tell_config(lane.config, told):
            return
        if (len(lane.inbox), lane.inbox.next_order) != (len(told.queued), told.next_order):
            self._tell_queue(lane.inbox, told, operation)
        new_tip = lane.tip != told.tip
        if operation is before:
            if new_tip:
                self._tell_path(commit, writes, operation)
            if operation is not None:
                self._tell_calls(operation)
                record = operation_record(operation)
                if record != told.record:
                    told.record = record
                    self._add(
                        OperationAdvanced(
                            lane=lane.name,
                            cursor=self._hub.numbers.next(),
                            operation_id=operation.id,
                            recovered=operation.restored,
                            operation=record,
                            steps=steps,
                        )
                    )
            return
        if before is not None:
            if new_tip:
                self._tell_path(commit, writes, before, until=operation)
            self._tell_end(before, steps)
        told.begin(operation)
        if operation is not None and told.record is not None:
            self._add(
                OperationAccepted(
                    lane=lane.name,
                    cursor=self._hub.numbers.next(),
                    operation_id=operation.id,
                    recovered=operation.restored,
                    operation=told.record,
                    steps=steps,
                )
            )
            if lane.tip != told.tip:
                self._tell_path(commit, writes, operation)
            self._tell_calls(operation)

    def _tell_config(self, config: LaneConfig | None, told: _Told) -> bool:
        """Tell of a lane's making, end or configuration; whether everything is said with that."""
        lane, cursor = self._lane.name, self._hub.numbers.next()
        was, told.config = told.config, config
        if config is None:
            self._add(LaneRemoved(lane=lane, cursor=cursor))
            self._emit()
            self.channel.end(None)
        elif was is None:
            self._add(LaneOpened(lane=lane, cursor=cursor, snapshot=self.capture(None)))
        else:
            settings = deepcopy(config.settings)
            self._add(
                LaneConfigured(
                    lane=lane,
                    cursor=cursor,
                    agent=config.agent,
                    model=config.model,
                    tools=config.tools,
                    settings=settings,
                )
            )
            return False
        self._told = _Told.of(self._lane)
        return True

    def _tell_queue(self, inbox: Inbox, told: _Told, operation: OpenOperation | None) -> None:
        """Tell of what came to wait, and of what waits no more. What comes later has a greater order."""
        event = QueueChanged(
            lane=self._lane.name,
            cursor=self._hub.numbers.next(),
            operation_id=None if operation is None else operation.id,
            recovered=operation is not None and operation.restored,
            added=tuple(item.shown() for item in inbox if item.id not in told.queued),
            removed=tuple(id for id in told.queued if inbox.get(id) is None),
        )
        told.take_queue(inbox)
        self._add(event)

    def _tell_path(
        self,
        commit: Commit,
        writes: Sequence[Write],
        operation: OpenOperation | None,
        *,
        until: OpenOperation | None = None,
    ) -> None:
        """Tell of entries behind the old tip (those before the input of ``until``), or of another path."""
        lane, told = self._lane, self._told
        id = None if operation is None else operation.id
        recovered = operation is not None and operation.restored
        entries = _appended(commit, writes, told.tip, lane.tip)
        if entries is None:
            told.tip = lane.tip
            cursor = self._hub.numbers.next()
            self._add(PathMoved(lane=lane.name, cursor=cursor, operation_id=id, recovered=recovered, tip=lane.tip))
            return
        inputs = () if until is None else until.meta.inputs
        for entry in entries:
            if entry.id in inputs:
                return
            told.tip = entry.id
            self._add(
                EntryAdded(
                    lane=lane.name,
                    cursor=self._hub.numbers.next(),
                    operation_id=id,
                    recovered=recovered,
                    entry=entry,
                )
            )

    def _tell_calls(self, operation: OpenOperation) -> None:
        """Tell of outcomes that are staged now, and of progress that is saved now."""
        told, state = self._told, operation.state
        if not isinstance(state, Tools):
            told.staged, told.progress = {}, {}
            return
        if operation.staged is not told.staged:
            for index in operation.staged:
                if index not in told.staged:
                    self._add(
                        ResultStaged(
                            lane=self._lane.name,
                            cursor=self._hub.numbers.next(),
                            operation_id=operation.id,
                            recovered=operation.restored,
                            call_id=call_id(state.answer, index),
                            message=_message(operation.staged[index]),
                        )
                    )
            told.staged = operation.staged
        if operation.progress != told.progress:
            for index, content in operation.progress.items():
                if told.progress.get(index) is not content:
                    self._add(
                        ProgressSaved(
                            lane=self._lane.name,
                            cursor=self._hub.numbers.next(),
                            operation_id=operation.id,
                            recovered=operation.restored,
                            call_id=call_id(state.answer, index),
                            content=content,
                        )
                    )
            told.progress = dict(operation.progress)

    def _tell_end(self, operation: OpenOperation, steps: tuple[str, ...]) -> None:
        result = operation.result
        if result is None:
            raise RuntimeError(f"operation {operation.id} is open no more and has no result")
        self._add(
            OperationSettled(
                lane=self._lane.name,
                cursor=self._hub.numbers.next(),
                operation_id=operation.id,
                recovered=operation.restored,
                result=result,
                steps=steps,
            )
        )

    def _add(self, event: Event) -> None:
        """The event that was numbered last comes with the others of its commit."""
        self._made.append((self._hub.numbers.last, event))

    def _emit(self) -> None:
        made, self._made = self._made, []
        if made:
            if self.channel.active:
                self.channel.emit(made)
            if self._hub.channel.active:
                self._hub.channel.emit(made)


class _Told:
    """What was told last of each part."""

    __slots__ = ("config", "name", "next_order", "operation", "progress", "queued", "record", "staged", "tip")

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: LaneConfig | None = None
        self.tip: str | None = None
        self.operation: OpenOperation | None = None
        self.record: Operation | None = None
        self.staged: dict[int, Sealed] = {}
        self.progress: dict[int, tuple[UserPart, ...]] = {}
        self.queued: dict[str, None] = {}
        self.next_order = 1

    @classmethod
    def of(cls, lane: WatchedLane) -> _Told:
        """What the lane is now."""
        told = cls(lane.name)
        told.config, told.tip = lane.config, lane.tip
        told.take_queue(lane.inbox)
        told.begin(lane.operation)
        if lane.operation is not None:
            told.staged, told.progress = lane.operation.staged, dict(lane.operation.progress)
        return told

    def take_queue(self, inbox: Inbox) -> None:
        """What waits is this."""
        self.queued = dict.fromkeys(item.id for item in inbox)
        self.next_order = inbox.next_order

    def begin(self, operation: OpenOperation | None) -> None:
        """Another operation is open, or none."""
        self.operation = operation
        self.record = None if operation is None else operation_record(operation)
        self.staged, self.progress = {}, {}


def _appended(commit: Commit, writes: Sequence[Write], old: str | None, new: str | None) -> list[Entry] | None:
    """The entries of a commit that lead from the old tip to the new one; None if it leads elsewhere."""
    found: list[Entry] = []
    tip = new
    for place in range(len(writes) - 1, -1, -1):
        write = writes[place]
        if type(write) is InsertEntry and write.id == tip:
            seq = commit.first_seq + place
            # Decoded anew: what readers do to it means nothing to the lane.
            found.append(codec.entry_of(write.id, write.parent_id, seq, commit.at, write.payload))
            tip = write.parent_id
            if tip == old:
                found.reverse()
                return found
    return None


def _by_call(state: OperationState, values: Mapping[int, T]) -> dict[str, T]:
    if not isinstance(state, Tools):
        return {}
    return {call_id(state.answer, index): value for index, value in values.items()}


def _staged(operation: OpenOperation) -> dict[str, Sealed]:
    return _by_call(operation.state, operation.staged)


def _message(sealed: Sealed) -> ToolResultMessage:
    """A result of its own for who reads it."""
    message = codec.BODY.decode(sealed.payload, "staged result")
    if not isinstance(message, ToolResultMessage):
        raise AgentLaneError("a staged result does not read back as one")
    return message


def _partial(operation: OpenOperation) -> PartialAnswer | None:
    """What has been shown of the answer that the operation waits for: live, or as it was saved."""
    state = operation.state
    if not isinstance(state, Generating):
        return None
    response_id, streaming = operation.streaming
    if streaming is not None and response_id == state.response_id:
        shown = PartialAnswer(response_id=response_id, parts=streaming.parts())
    else:
        shown = PartialAnswer(response_id=state.response_id).plus(operation.frames)
    return deepcopy(shown) if shown.parts else None
