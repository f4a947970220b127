"""Calls that are runs of other agents: accepted on lanes of their own, and driven to the end by their parent's pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from agentlane.agent import Agent
from agentlane.agent_tool import AgentTool
from agentlane.data import addresses, codec
from agentlane.data.messages import ToolCallPart, user
from agentlane.data.operations import (
    Approved,
    Checkpoint,
    LaneConfig,
    LaneState,
    OperationMeta,
    ParentCall,
    Planned,
    Tools,
    WaitingChild,
)
from agentlane.data.requests import RequestInfo, request_digest
from agentlane.data.results import ChildReason, OperationResult, Settled, Waiting
from agentlane.data.writes import SetValue, Write
from agentlane.driver.draft import PathDraft, opening_writes
from agentlane.driver.effects import EffectMark, StopReason, waiting_on
from agentlane.driver.lane_core import LaneCore, RunningPass
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.reserved import child_lane
from agentlane.driver.tool_results import Sealed, seal_error, seal_message, seal_value
from agentlane.driver.views import ResolvedCall, refused
from agentlane.errors import AgentLaneError, LaneBusy
from agentlane.ids import call_id
from agentlane.machine.outcomes import ABORTED, interrupted


def children_of(lane: LaneCore) -> Iterator[LaneCore]:
    """The lanes of open operations that the lane's open one waits for."""
    operation = lane.operation
    if operation is None or not isinstance(operation.state, Tools):
        return
    for index, call in enumerate(operation.state.calls):
        if isinstance(call, WaitingChild):
            id = call_id(operation.state.answer, index)
            child = lane.lanes.get(child_lane(id))
            # It may have ended, and its lane gone on by itself, before the parent has taken its end.
            if child is not None and child.operation is not None and child.operation.id == id:
                yield child


def family_of(lane: LaneCore) -> Iterator[LaneCore]:
    """The lane, its children, and theirs: each before its own children."""
    yield lane
    for child in children_of(lane):
        yield from family_of(child)


def version_of(lane: LaneCore) -> int:
    """A number that grows with each commit of the lane's open operation, and of all that runs for it."""
    return sum(each.operation.version + 1 for each in family_of(lane) if each.operation is not None)


class ChildWait(NamedTuple):
    """A child that could not go on: what it waits for, and the state that it was in."""

    lane: LaneCore
    version: int
    waiting: Waiting
    reason: ChildReason

    def holds(self, now: int) -> bool:
        """Whether it still cannot: nothing of it has changed, and its time has not come."""
        wake_at = self.waiting.wake_at
        return version_of(self.lane) == self.version and (wake_at is None or now < wake_at)


class ChildStart(NamedTuple):
    """A child's operation in the making: what is written, and what memory takes over once that is committed."""

    writes: list[Write]
    publish: Callable[[], None]


def start_child(
    lane: LaneCore, operation: OpenOperation, tool: AgentTool, prompt: str, id: str, start: str | None
) -> ChildStart:
    """Accept the run of another agent as an operation of its own, on a lane of its own that begins at ``start``."""
    runtime, name, agent = lane.runtime, child_lane(id), tool.agent
    message = user(prompt)
    payload, body = codec.BODY.seal(message, "prompt")
    path = PathDraft(name, start)
    path.place(runtime.ids.new(), body, payload)
    path.seal_tip()
    inputs = (path.placed[0][0],)
    config = LaneConfig(agent=agent.name)
    meta = OperationMeta(
        lane=name,
        request=RequestInfo(kind="prompt", digest=request_digest(name, (message,))),
        inputs=inputs,
        start_tip=start,
        started_at=runtime.clock.now_ms(),
        key_operation=id,
        parent_call=ParentCall(lane=lane.name, operation_id=operation.id),
    )
    child = OpenOperation(id, meta, agent.resolve(config), Checkpoint(next="respond", trigger=inputs[-1]))
    state = LaneState(current=id)
    writes: list[Write] = [
        *path.writes,
        SetValue(addresses.lane_config(name), codec.encode(config)),
        SetValue(addresses.lane_state(name), codec.encode(state)),
        *opening_writes(child),
    ]

    def publish() -> None:
        core = lane.lanes.get(name) or LaneCore(runtime, name, None, lane.lanes)
        lane.lanes[name] = core
        core.exists = True
        core.reset(path.tip, config, LaneState(), None)
        core.begin(child)
        if start is None:  # else the path is read when the child is driven
            core.loaded = True
            core.take_path(path)

    return ChildStart(writes, publish)


def refuse_taken(lane: LaneCore, state: Tools, resolved: list[ResolvedCall]) -> list[ResolvedCall]:
    """The calls of a batch; those that are runs of other agents only where nothing else has their name or their id."""
    found = list(resolved)
    for index, call in enumerate(state.calls):
        if resolved[index].view.child and isinstance(call, Planned | Approved):
            id = call_id(state.answer, index)
            core = lane.lanes.get(child_lane(id))
            if (core is not None and core.exists) or id in lane.runtime.open_operations:
                found[index] = refused(resolved[index], f"The run of this call cannot start: {id} is in use already.")
    return found


def refuse_child(lane: LaneCore) -> None:
    """Raise ``LaneBusy`` if the lane's open operation is the work of a call: only the parent's pass drives it."""
    operation, parent = lane.operation, lane.parent()
    if operation is not None and operation.meta.parent_call is not None and parent is not None:
        caller = operation.meta.parent_call.operation_id
        raise LaneBusy(
            f"operation {operation.id} of lane {lane.name!r} is the work of a call of operation {caller} on lane "
            f"{parent.name!r}; drive that one",
            operation_id=caller,
        )


class ChildOwner(Protocol):
    """What the driving of a child asks of the pass that its call belongs to."""

    def call_ended(self, index: int, outcome: Sealed | None, *, begun: bool) -> None: ...
    def child_waits(self, index: int, wait: ChildWait) -> None:
        """The child cannot go on now, and nobody drives it until that has changed."""
        ...

    def install(self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> RunningPass:
        """Install a pass on a child's lane."""
        ...


class ChildEffect:
    """Drives the operation of a call that is another agent's run; its end is the call's outcome."""

    def __init__(
        self,
        owner: ChildOwner,
        lane: LaneCore,
        *,
        index: int,
        call: ToolCallPart,
        operation_id: str,
        agent: Agent[Any, Any],
        limit_bytes: int,
    ) -> None:
        self._owner = owner
        self._lane = lane
        self._index = index
        self._call = call
        self._id = operation_id
        self._agent = agent
        self._limit_bytes = limit_bytes
        self._mark = EffectMark(lane)
        self._closing = False
        self._ended = False
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Begin, or go on where the child stands."""
        self._task = self._lane.runtime.spawn(self._run(), f"agentlane child {self._id}", self._task_done)

    def stop(self, why: StopReason) -> None:
        """A close ends the child's pass, as its parent's. An abort is committed for the child too: it ends by that."""
        if why == "close":
            self._closing = True
            child = self._child()
            if child is not None and child.running is not None:
                child.running.stop("close")

    def drop(self) -> None:
        """The session is dead or faulted: no report will be taken."""
        self._ended = self._mark.ended = True
        if self._task is not None:
            self._task.cancel()

    def _child(self) -> LaneCore | None:
        return self._lane.lanes.get(child_lane(self._id))

    async def _run(self) -> None:
        self._mark.set()
        outcome: Sealed | None
        try:
            ended = await self._ended_or_waits()
            if isinstance(ended, ChildWait):
                self._ended = self._mark.ended = True
                self._owner.child_waits(self._index, ended)
                return
            outcome = self._sealed(ended)
        except AgentLaneError:  # the session is closed or faulted, or the child's pass was cancelled: no outcome
            outcome = None
        except Exception as error:
            self._lane.runtime.found(f"operation {self._id}, a call of agent {self._agent.name!r}: {error!r}")
            outcome = None
        self._end(outcome)

    async def _ended_or_waits(self) -> OperationResult | ChildWait:
        runtime = self._lane.runtime
        while True:
            runtime.check_writable()
            child = self._child()
            current = None if child is None else child.operation
            if child is None or current is None or current.id != self._id:
                return await self._record()
            with waiting_on(child):
                child.show_as(self._agent)
                await child.load()
                if child.operation is not current:
                    continue
                running = child.running
                if running is not None and running.stopping:
                    await running.ended()
                    continue
                if running is None:
                    runtime.check_writable()  # it may have been closed meanwhile, and nobody would stop a new pass
                    if self._closing:
                        raise asyncio.CancelledError
                    running = self._owner.install(child, current, self._agent)
                outcome = await running.observe(wait_for_retry=False, wait_for_answers=False)
                if isinstance(outcome, Settled):
                    return outcome.result
                reason = ChildReason(call_id=self._id, operation_id=self._id, lane=child.name, reasons=outcome.reasons)
                return ChildWait(child, child.waited_at, outcome, reason)

    async def _record(self) -> OperationResult:
        payload = await self._lane.runtime.storage.value(addresses.result(self._id))
        if payload is None:
            raise RuntimeError("it is neither open nor settled")
        return codec.RESULT.decode(payload, f"result {self._id}")

    def _sealed(self, result: OperationResult) -> Sealed:
        """What the child's end is to the parent's model."""
        if result.status == "completed":
            return seal_value(self._call, result.text, self._limit_bytes)
        if result.status == "aborted":
            return seal_message(interrupted(self._call, ABORTED, ()))
        why = result.code or "failed" if result.error is None else result.error.message
        return seal_error(self._call, f"The agent {result.agent!r} failed: {why}", self._limit_bytes)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # a KeyboardInterrupt is raised by the loop
        self._end(None)

    def _end(self, outcome: Sealed | None) -> None:
        if self._ended:
            return
        self._ended = self._mark.ended = True
        self._owner.call_ended(self._index, outcome, begun=True)
