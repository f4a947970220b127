"""The effects of one pass: what runs, what it has reported, and what was intended and not started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.messages import AssistantMessage, Frame, UserPart
from agentlane.data.operations import EffectPending, Generating, OperationState, Summarizing, Tools
from agentlane.data.writes import AppendElement
from agentlane.driver.calls import CallEffect
from agentlane.driver.children import ChildEffect, ChildWait
from agentlane.driver.effects import StopReason
from agentlane.driver.generation import GenerationEffect
from agentlane.driver.hooks import gates_of
from agentlane.driver.lane_core import LaneCore, RunningPass
from agentlane.driver.launch import launch_call, launch_child, launch_request, launch_summary
from agentlane.driver.line import Decision, Done
from agentlane.driver.notes import CallNotes
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.predicates import Predicates
from agentlane.driver.summarizing import Summaries
from agentlane.driver.tool_results import Sealed
from agentlane.driver.views import Resolver
from agentlane.machine.facts import DriveChild, Effect, RequestModel, RequestSummary, RunCall
from agentlane.storage.contract import Commit


class EffectsOwner(Protocol):
    """What the effects ask of the pass that they belong to."""

    @property
    def winding_down(self) -> bool:
        """Whether the pass was told to stop, so that ends of effects are expected."""
        ...

    def poke(self) -> None:
        """Something was reported: look again."""
        ...

    def being_cancelled(self) -> bool:
        """Whether the pass itself is being cancelled natively, as everything is when the loop ends."""
        ...

    def install(self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> RunningPass:
        """Install a pass on the lane of another agent's run."""
        ...


class RunningEffects:
    """Starts effects, takes their reports and keeps those that no commit has taken yet."""

    def __init__(
        self, owner: EffectsOwner, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any], resolver: Resolver
    ) -> None:
        self._owner = owner
        self._lane = lane
        self._operation = operation
        self._agent = agent
        self._resolver = resolver
        self.calls: dict[int, CallEffect | ChildEffect] = {}
        self.outcomes: list[tuple[int, Sealed]] = []
        """Outcomes of calls that no commit has taken yet."""
        self.request: GenerationEffect | None = None
        self.answered: AssistantMessage | None = None
        """The answer of the request, until a commit has taken it."""
        self.waits: dict[int, ChildWait] = {}
        """Children that could not go on when they were driven last."""
        self.held: list[Effect] = []
        """Effects whose intent is committed and which were not started, since an abort or a close came."""
        self.never_begun: set[int] = set()
        """Calls whose effect was started and ended before it began."""
        self.lost = False
        """An effect ended of which nothing may be made: the pass ends, and another one recovers it."""
        self.predicates = Predicates(lane, operation, agent, owner.poke)
        self.summaries = Summaries(lane, operation, agent)
        self.gates = gates_of(self, lane, operation, agent, self.summaries)
        """What hooks have to say before steps; None without hooks."""
        self.notes = CallNotes(lane.runtime, lane.line, operation, lambda index: index in self.calls)
        self._last_request: GenerationEffect | None = None

    # Starting.

    def start(self, effect: Effect) -> None:
        """Start an effect; its intent is committed. # I6"""
        match effect:
            case RequestModel():
                self.request = launch_request(self, self._lane, self._operation, self._agent, effect, self.gates)
                self.request.start()
            case RequestSummary():
                self.request = launch_summary(self, self._lane, self._operation, self._agent, effect, self.summaries)
                self.request.start()
            case RunCall():
                resolved = self._resolver.resolved[effect.index]
                call, context = launch_call(self, self._lane, self._operation, self._agent, effect, resolved)
                self.calls[effect.index] = call
                call.start(context)
            case DriveChild():
                child = launch_child(self, self._lane, self._operation, self._agent, effect)
                self.waits.pop(effect.index, None)
                self.calls[effect.index] = child
                child.start()
            case _:
                assert_never(effect)

    def start_held(self) -> None:
        """The abort that held these effects back was not committed after all."""
        held, self.held = self.held, []
        for effect in held:
            self.start(effect)

    def settled(self, state: OperationState, calls: Sequence[int], *, answered: bool) -> None:
        """A commit is published that settled these calls, or an answer."""
        for index in calls:
            self.waits.pop(index, None)
            self.notes.forget(index)
            self.never_begun.discard(index)
        if answered:
            self.held.clear()
        self.held = [effect for effect in self.held if _still_held(effect, state)]

    def calls_not_begun(self) -> set[int]:
        """Calls that were intended and whose effect never began in this pass."""
        return {effect.index for effect in self.held if isinstance(effect, RunCall)} | self.never_begun

    # Reports.

    def call_ended(self, index: int, outcome: Sealed | None, *, begun: bool) -> None:
        if self.calls.pop(index, None) is None:
            return
        if outcome is not None:
            self.outcomes.append((index, outcome))
        elif not begun:
            self.never_begun.add(index)
        if outcome is None and not self._owner.winding_down and not (self._operation.cancelled and not begun):
            self.lost = True
        self._owner.poke()

    def hook_ended(self, *, lost: bool) -> None:
        if lost and not self._owner.winding_down and not self._operation.cancelled:
            self.lost = True
        self._owner.poke()

    def being_cancelled(self) -> bool:
        return self._owner.being_cancelled()

    def child_waits(self, index: int, wait: ChildWait) -> None:
        if self.calls.pop(index, None) is not None:
            self.waits[index] = wait
        self._owner.poke()

    def children_waiting(self, now: int) -> dict[int, ChildWait]:
        """Children that still cannot go on."""
        return {index: wait for index, wait in self.waits.items() if wait.holds(now)} if self.waits else {}

    def install(self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> RunningPass:
        return self._owner.install(lane, operation, agent)

    def answer(self, message: AssistantMessage | None) -> None:
        self.answered = message
        self.lost = self.lost or message is None
        self._last_request, self.request = self.request, None
        self._owner.poke()

    async def save_frames(self, response_id: str, frames: tuple[Frame, ...]) -> None:
        operation = self._operation

        def decide() -> Decision[None] | Done[None]:
            state = operation.state
            if operation.result is not None or not frames:
                return Done(None)
            if not isinstance(state, Generating) or state.response_id != response_id:
                return Done(None)
            address = addresses.pending_frames(operation.id, response_id)

            def publish(commit: Commit) -> None:
                operation.frames.extend(frames)

            return Decision([AppendElement(address, codec.encode(frames))], "frames", publish)

        await self._lane.line.run(decide)

    async def save_progress(self, index: int, content: str | Sequence[UserPart]) -> None:
        await self.notes.save_progress(index, content)

    def progress_of(self, index: int) -> tuple[UserPart, ...]:
        return self.notes.progress_of(index)

    async def save_memo(self, index: int, name: str, value: Any, running: Callable[[], bool]) -> None:
        await self.notes.save_memo(index, name, value, running)

    def answer_to(self, index: int, name: str) -> bytes | None:
        return self.notes.answer(index, name)

    def memo(self, index: int, name: str, default: Any) -> Any:
        return self.notes.memo(index, name, default)

    # Stopping.

    def signal(self, why: StopReason) -> None:
        """Ask everything that runs to end."""
        self.predicates.stop()
        if self.request is not None:
            self.request.stop(why)
        for call in tuple(self.calls.values()):
            call.stop(why)
        if self.gates is not None:
            self.gates.signal(why)

    async def stop(self, why: StopReason, wake: asyncio.Event) -> None:
        """Ask everything to end and wait until it has, or is left behind after its grace."""
        self.signal(why)
        while self.request is not None or self.calls or (self.gates is not None and self.gates.busy):
            wake.clear()
            await wake.wait()
            if self._lane.runtime.killed:
                self.drop()

    async def flush(self) -> None:
        """Save what was shown and said and is not saved yet."""
        request = self._last_request
        if request is not None and self.answered is None:
            await self.save_frames(request.response_id, request.take_unsaved())
        await self.notes.flush()

    def drop(self) -> None:
        """The session is dead or faulted: no report will be taken."""
        self.predicates.stop()
        for call in tuple(self.calls.values()):
            call.drop()
        self.calls.clear()
        if self.request is not None:
            self.request.drop()
            self.request = None
        if self.gates is not None:
            self.gates.drop()
        self._owner.poke()


def _still_held(effect: Effect, state: OperationState) -> bool:
    if isinstance(effect, RunCall):
        return isinstance(state, Tools) and isinstance(state.calls[effect.index], EffectPending)
    if isinstance(effect, DriveChild):
        return False  # what the child is to do now is in its own state: it is driven when that is looked at next
    return isinstance(state, Summarizing if isinstance(effect, RequestSummary) else Generating)
