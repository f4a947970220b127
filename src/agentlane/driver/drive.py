"""The pass: advances one open operation until it settles or must wait, and tells whoever watches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

from agentlane.agent import Agent, RunInfo
from agentlane.data import addresses, codec
from agentlane.data.border import clean_json
from agentlane.data.messages import AssistantMessage, Frame, UserPart
from agentlane.data.operations import (
    Checkpoint,
    EffectPending,
    Generating,
    OperationConfig,
    OperationState,
    RetryWait,
    Tools,
)
from agentlane.data.results import RetryReason, Settled, Waiting
from agentlane.data.writes import AppendElement, SetValue
from agentlane.driver.calls import CallEffect
from agentlane.driver.draft import OperationDraft, with_answers
from agentlane.driver.effects import StopReason
from agentlane.driver.generation import FLUSH_EVERY_MS, GenerationEffect
from agentlane.driver.line import Decision, Done
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.recovery import restored_answer
from agentlane.driver.runtime import Runtime
from agentlane.driver.tool_results import Sealed, progress_parts, seal_message
from agentlane.driver.views import ResolvedCall, resolve_call, resolve_model
from agentlane.errors import NoActiveOperation, SessionClosed, SessionFaulted, StoreBusy
from agentlane.ids import call_id
from agentlane.machine import planning
from agentlane.machine.facts import (
    Answered,
    CallsIntended,
    CallsNotBegun,
    Effect,
    Fact,
    Finished,
    Interrupted,
    ModelUnavailable,
    Outcome,
    OutcomesArrived,
    ReplayIntended,
    RequestIntended,
    RequestModel,
    RunCall,
)
from agentlane.machine.outcomes import settled_without
from agentlane.machine.table import step
from agentlane.model import ModelRequest
from agentlane.names import check_name
from agentlane.storage.contract import Commit
from agentlane.tool_context import ToolContext

if TYPE_CHECKING:
    from agentlane.driver.lane_core import LaneCore

StopMode: TypeAlias = Literal["close", "fault"]

STEPS_MAX = 100_000
"""Steps that one commit may merge; more of them means that the machine makes no progress."""


class _Observer:
    """One caller of drive."""

    __slots__ = ("future", "wait_for_retry")

    def __init__(self, future: asyncio.Future[Settled | Waiting], wait_for_retry: bool) -> None:
        self.future = future
        self.wait_for_retry = wait_for_retry


class Pass:
    """One pass over one open operation. Its effects report to it; each of its steps goes through the lane's line."""

    def __init__(self, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any]) -> None:
        self.lane = lane
        self.operation = operation
        self.agent = agent
        self.runtime: Runtime = lane.runtime
        self._wake = asyncio.Event()
        self._observers: list[_Observer] = []
        self._stopping: StopMode | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        # Effects that run, and their reports that no commit has taken yet.
        self._calls: dict[int, CallEffect] = {}
        self._outcomes: list[tuple[int, Sealed]] = []
        self._request: GenerationEffect | None = None
        self._last_request: GenerationEffect | None = None
        self._answered: AssistantMessage | None = None
        self._held: list[Effect] = []
        """Effects whose intent is committed and which were not started, since an abort or a close came."""
        self._never_begun: set[int] = set()
        self._lost = False
        self._resolved: list[ResolvedCall] = []
        self._resolved_for: tuple[str | None, OperationConfig | None] = (None, None)
        self._progress: dict[int, tuple[UserPart, ...]] = {}
        self._progress_at: dict[int, int] = {}
        self._progress_timers: dict[int, asyncio.Task[Any]] = {}

    # What the lane's verbs use.

    def start(self) -> None:
        """Install the pass."""
        self.lane.running = self
        self._task = self.runtime.spawn(
            self._run(), f"agentlane pass {self.lane.name}", lambda _task: self._close_out(asyncio.CancelledError())
        )

    @property
    def stopping(self) -> bool:
        """Whether the pass takes no new observers."""
        return self._stopping is not None or self._ended.is_set()

    async def observe(self, wait_for_retry: bool) -> Settled | Waiting:
        """Wait for the operation's end, or for a wait if the caller does not want to sit it out."""
        observer = _Observer(self.runtime.loop.create_future(), wait_for_retry)
        self._observers.append(observer)
        self.poke()
        try:
            return await observer.future
        finally:
            self._observers.remove(observer)
            self.poke()

    async def ended(self) -> None:
        """Wait until the pass is over and everything of it has stopped or is left behind."""
        await self._ended.wait()

    def poke(self) -> None:
        self._wake.set()

    def abort_committed(self) -> None:
        if self._request is not None:
            self._request.stop("abort")
        for call in tuple(self._calls.values()):
            call.stop("abort")
        self.poke()

    def stop(self, mode: StopMode) -> None:
        """End the pass as a controlled crash: effects are stopped, nothing new begins, nothing is marked cancelled."""
        if self._stopping is None or mode == "fault":
            self._stopping = mode
        if self.runtime.killed:
            self._drop_effects()
        self.poke()

    # The pass itself.

    async def _run(self) -> None:
        try:
            while self._stopping is None and not self._lost:
                self._wake.clear()
                try:
                    verdict = await self.lane.line.run(self._decide)
                except StoreBusy as error:
                    # Nothing was written and nothing is lost: reports are kept until somebody drives again.
                    self._tell(error)
                    await self._wake.wait()
                    continue
                if self.operation.result is not None:
                    self._tell(Settled(self.operation.result))
                    return
                if isinstance(verdict, planning.SleepUntil):
                    if not await self._sleep(verdict.at):
                        return
                else:
                    await self._wake.wait()
            await self._wind_down()
        except asyncio.CancelledError:
            # Natively cancelled (the loop ends, perhaps): as close, for this operation only.
            self._stopping = self._stopping or "close"
            await self._wind_down()
            raise
        except Exception as error:  # every pass turns errors into values: observers get it
            self._tell(error)
            self._stopping = "fault"
            await self._wind_down()
        finally:
            self._close_out(self._ending())

    def _ending(self) -> BaseException:
        if self.runtime.phase == "faulted":
            return self.runtime.faulted()
        if self.runtime.phase in ("closing", "closed"):
            return SessionClosed(
                f"session {self.runtime.session_id!r} closed; operation {self.operation.id} is open and goes on when "
                "it is driven again"
            )
        return asyncio.CancelledError()

    def _tell(self, outcome: Settled | Waiting | BaseException) -> None:
        for observer in self._observers:
            if observer.future.done():
                continue
            if isinstance(outcome, asyncio.CancelledError):
                observer.future.cancel()
            elif isinstance(outcome, BaseException):
                observer.future.set_exception(outcome)
            else:
                observer.future.set_result(outcome)

    def _close_out(self, ending: BaseException) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        for timer in self._progress_timers.values():
            timer.cancel()
        if self.lane.running is self:
            self.lane.running = None
        self._tell(ending)

    async def _sleep(self, at: int) -> bool:
        """Announce the wait; sleep while somebody sits it out. False: nobody does, so the pass ends."""
        reasons = self._wait_reasons(self.operation.state)
        waiting = Waiting(self.operation.id, reasons, at)
        for observer in self._observers:
            if not observer.wait_for_retry and not observer.future.done():
                observer.future.set_result(waiting)
        if all(observer.future.done() for observer in self._observers):
            return False
        timer = self.runtime.spawn(self._wake_at(at), "agentlane retry timer")
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        return True

    async def _wake_at(self, at: int) -> None:
        await self.runtime.clock.sleep_until(at)
        self.poke()

    def _wait_reasons(self, state: OperationState) -> tuple[RetryReason, ...]:
        if not isinstance(state, RetryWait):
            return ()
        return (RetryReason(not_before=state.not_before, attempt=state.attempt + 1, error=state.error),)

    # Deciding: at the head of the line, synchronous, changes nothing but the draft.

    def _decide(self) -> Decision[planning.Verdict] | Done[planning.Verdict]:
        operation = self.operation
        verdict: planning.Verdict = planning.Idle()
        if operation.result is not None or self._stopping == "fault" or (self._lost and self._stopping is None):
            return Done(verdict)
        if self._stopping is None and not operation.abort_waiting and not operation.cancelled:
            self._start_held()
        draft = OperationDraft(operation, self.lane.name, self.lane.tip, now=self.runtime.clock.now_ms())
        answered, outcomes = self._answered, tuple(self._outcomes)
        if answered is not None:
            message = with_answers(answered, tuple(self.lane.unanswered))
            self._take(draft, Answered(message, draft.now, self.runtime.rng.random()))
        if outcomes:
            self._take_outcomes(draft, outcomes)
        if self._stopping is not None:
            self._put_back(draft)
        else:
            for _ in range(STEPS_MAX):
                if draft.result is not None:
                    break
                verdict = planning.plan(draft.state, self._view(draft), operation.rules)
                if isinstance(verdict, planning.Idle | planning.SleepUntil):
                    break
                self._follow(verdict, draft)
                if isinstance(verdict, planning.AskModel | planning.StartCalls | planning.ReplayCall):
                    verdict = planning.Idle()  # what was just intended must report first
                    break
            else:
                raise RuntimeError(f"operation {operation.id} makes no progress at {draft.state!r}")
        if draft.empty:
            return Done(verdict)
        version = operation.version

        def publish(commit: Commit) -> planning.Verdict:
            if operation.version != version:
                raise RuntimeError(f"operation {operation.id}: a step was published on a state it was not made for")
            if answered is not None:
                self._answered = None
            del self._outcomes[: len(outcomes)]
            self._publish(draft)
            return verdict

        return Decision(draft.writes(), draft.boundary, publish)

    def _take(self, draft: OperationDraft, fact: Fact, sealed: dict[int, Sealed] | None = None) -> None:
        draft.take(step(draft.state, fact, self.operation.rules), sealed)

    def _take_outcomes(self, draft: OperationDraft, outcomes: Sequence[tuple[int, Sealed]]) -> None:
        sealed = dict(outcomes)
        facts = tuple(Outcome(index, each.message, each.terminate) for index, each in outcomes)
        self._take(draft, OutcomesArrived(facts), sealed)

    def _put_back(self, draft: OperationDraft) -> None:
        """A clean close knows which effects never began."""
        held = {effect.index for effect in self._held if isinstance(effect, RunCall)} | self._never_begun
        if draft.result is None and isinstance(draft.state, Tools):
            calls = draft.state.calls
            indices = tuple(i for i in sorted(held) if isinstance(calls[i], EffectPending))
            if indices:
                self._take(draft, CallsNotBegun(indices))

    def _view(self, draft: OperationDraft) -> planning.View:
        state = draft.state
        held = () if self.operation.cancelled else self._held
        started = (*draft.effects, *held)
        if isinstance(state, Tools):
            resolved = self._resolve(draft)
            running = {effect.index for effect in started if isinstance(effect, RunCall)}
            never_begun = {effect.index for effect in self._held if isinstance(effect, RunCall)} | self._never_begun
            return planning.View(
                now=draft.now,
                calls=[each.view for each in resolved],
                live=frozenset(running.union(self._calls)),
                not_begun=frozenset(never_begun),
                cut=draft.cut,
            )
        model_index = 0 if isinstance(state, Checkpoint) else state.model_index
        _, problem = resolve_model(self.agent, self.operation.config, model_index)
        return planning.View(
            now=draft.now,
            request_live=self._request is not None or any(isinstance(effect, RequestModel) for effect in started),
            request_not_begun=any(isinstance(effect, RequestModel) for effect in self._held),
            model_problem=problem,
        )

    def _resolve(self, draft: OperationDraft) -> list[ResolvedCall]:
        """Tools and checked arguments of the batch's calls, found once per batch and configuration."""
        config = self.operation.config
        answer = draft.state.answer
        if self._resolved_for[0] != answer or self._resolved_for[1] is not config:
            self._resolved = [resolve_call(self.agent, config, call) for call in draft.calls]
            self._resolved_for = (answer, config)
        return self._resolved

    def _follow(self, verdict: planning.Verdict, draft: OperationDraft) -> None:
        """Turn a verdict into a fact and take its step."""
        runtime = self.runtime
        match verdict:
            case planning.AskModel():
                self._take(draft, RequestIntended(runtime.ids.new()))
            case planning.RecoverRequest():
                self._take(draft, self._interrupted(draft))
            case planning.DropRequest():
                self._take(draft, Answered(GenerationEffect.dropped(), draft.now, 0.0))
            case planning.StartCalls(calls):
                self._take(draft, CallsIntended(calls))
            case planning.ReplayCall(index, policy):
                self._take(draft, ReplayIntended(index, policy))
            case planning.SettleCalls(calls):
                self._take_outcomes(draft, [(i, self._settled_without(draft, i, why)) for i, why in calls])
            case planning.Finish():
                self._take(draft, Finished())
            case planning.GiveUp(error):
                self._take(draft, ModelUnavailable(error))
            case planning.SleepUntil() | planning.Idle():
                raise RuntimeError("there is nothing to follow")
            case _:
                assert_never(verdict)

    def _interrupted(self, draft: OperationDraft) -> Interrupted:
        state = draft.state
        if not isinstance(state, Generating):
            raise RuntimeError(f"no request is under way at {state!r}")
        config = self.operation.config
        identity = config.models[state.model_index] if state.model_index < len(config.models) else None
        _, problem = resolve_model(self.agent, config, state.model_index)
        return Interrupted(
            message=restored_answer(self.operation.frames, identity),
            response_id=self.runtime.ids.new(),
            now=draft.now,
            jitter=self.runtime.rng.random(),
            unavailable=problem,
        )

    def _settled_without(self, draft: OperationDraft, index: int, why: planning.SettledWithout) -> Sealed:
        problem = self._resolve(draft)[index].view.problem if why == "refused" else None
        progress = self.progress_of(index)
        return seal_message(settled_without(draft.calls[index], why, problem=problem, progress=progress))

    # Publishing: memory takes over what is committed, and the effects that it admits start, in one synchronous step.

    def _publish(self, draft: OperationDraft) -> None:
        operation = self.operation
        draft.hand_over()
        for index in draft.settled_calls:
            operation.progress.pop(index, None)
            operation.memos.pop(index, None)
            self._progress.pop(index, None)
            self._never_begun.discard(index)
        if draft.answers:
            operation.frames.clear()
            self._held.clear()
        self._held = [effect for effect in self._held if self._still_held(effect, draft.state)]
        self.lane.take_path(draft.path)
        if draft.result is not None:
            self.lane.settle(operation, draft.result)
        for effect in draft.effects:
            # An abort or a close that came while the commit was under way is looked at here.
            if self._stopping is None and not operation.abort_waiting:
                self._start(effect)
            else:
                self._held.append(effect)
        self.poke()

    def _still_held(self, effect: Effect, state: OperationState) -> bool:
        if isinstance(effect, RunCall):
            return isinstance(state, Tools) and isinstance(state.calls[effect.index], EffectPending)
        return isinstance(state, Generating)

    def _start_held(self) -> None:
        """The abort that held these effects back was not committed after all."""
        held, self._held = self._held, []
        for effect in held:
            self._start(effect)

    def _start(self, effect: Effect) -> None:
        match effect:
            case RequestModel():
                self._start_request(effect)
            case RunCall():
                self._start_call(effect)
            case _:
                assert_never(effect)

    def _start_request(self, effect: RequestModel) -> None:
        runtime, operation, lane, agent = self.runtime, self.operation, self.lane, self.agent
        model, problem = resolve_model(agent, operation.config, effect.model_index)
        if model is None:
            raise RuntimeError(f"a request was intended without its model: {problem}")
        messages = lane.context.view()

        def build(instructions: str) -> ModelRequest:
            return ModelRequest(
                instructions=instructions,
                messages=messages,
                tools=tuple(agent.tools[name].definition for name in operation.config.tools if name in agent.tools),
                settings=operation.config.settings,
                session_id=runtime.session_id,
                lane=lane.name,
                operation_id=operation.id,
                attempt=effect.attempt,
            )

        info = RunInfo(runtime.session_id, lane.name, operation.id, agent.deps)
        self._request = GenerationEffect(
            self,
            runtime,
            lane,
            response_id=effect.response_id,
            model=model,
            agent=agent,
            info=info,
            build=build,
            grace_ms=operation.config.limits.cancel_grace_ms,
        )
        self._request.start()

    def _start_call(self, effect: RunCall) -> None:
        operation, lane, index = self.operation, self.lane, effect.index
        state = operation.state
        resolved = self._resolved[index]
        if resolved.tool is None or not isinstance(state, Tools):
            raise RuntimeError(f"call {index} was intended without its tool at {state!r}")
        answer = state.answer
        limit = resolved.tool.options.max_result_bytes or operation.config.limits.max_result_bytes
        call = CallEffect(
            self,
            self.runtime,
            lane,
            index=index,
            call=operation.calls[index],
            tool=resolved.tool,
            checked=resolved.checked,
            limit_bytes=limit,
            grace_ms=operation.config.limits.cancel_grace_ms,
        )
        self._calls[index] = call
        context = ToolContext(
            port=call,
            key=lambda: lane.call_key(operation, answer, index),
            operation_id=operation.id,
            turn_id=answer,
            call_id=call_id(answer, index),
            attempt=effect.attempt,
            recovered=effect.attempt > 1,
            epoch=self.runtime.storage.epoch,
            deps=self.agent.deps,
        )
        call.start(context)

    # Reports of effects.

    def call_ended(self, index: int, outcome: Sealed | None, *, begun: bool) -> None:
        if self._calls.pop(index, None) is None:
            return
        if outcome is not None:
            self._outcomes.append((index, outcome))
        elif not begun:
            self._never_begun.add(index)
        if outcome is None and self._stopping is None and not (self.operation.cancelled and not begun):
            self._lost = True
        self.poke()

    def answered(self, message: AssistantMessage | None) -> None:
        self._answered = message
        self._lost = self._lost or message is None
        self._last_request, self._request = self._request, None
        self.poke()

    async def save_frames(self, response_id: str, frames: tuple[Frame, ...]) -> None:
        operation = self.operation

        def decide() -> Decision[None] | Done[None]:
            state = operation.state
            if not frames or not isinstance(state, Generating) or state.response_id != response_id:
                return Done(None)
            address = addresses.pending_frames(operation.id, response_id)

            def publish(commit: Commit) -> None:
                operation.frames.extend(frames)

            return Decision([AppendElement(address, codec.encode(frames))], "frames", publish)

        await self.lane.line.run(decide)

    async def save_progress(self, index: int, content: str | Sequence[UserPart]) -> None:
        parts = progress_parts(content, self.operation.config.limits.max_result_bytes)
        if index not in self._calls:
            return
        self._progress[index] = parts
        now = self.runtime.clock.now_ms()
        due = self._progress_at.get(index, now)
        if now >= due:
            self._progress_at[index] = now + FLUSH_EVERY_MS
            await self._commit_progress(index)
        elif index not in self._progress_timers:
            timer = self.runtime.spawn(self._progress_later(index, due), "agentlane progress")
            self._progress_timers[index] = timer

    async def _progress_later(self, index: int, due: int) -> None:
        await self.runtime.clock.sleep_until(due)
        self._progress_timers.pop(index, None)
        self._progress_at[index] = self.runtime.clock.now_ms() + FLUSH_EVERY_MS
        try:
            await self._commit_progress(index)
        except (SessionFaulted, StoreBusy):
            pass  # a fault tells whoever drives; on a busy store the next report, or the close, saves it

    async def _commit_progress(self, index: int) -> None:
        operation = self.operation

        def decide() -> Decision[None] | Done[None]:
            state = operation.state
            parts = self._progress.get(index)
            pending = isinstance(state, Tools) and isinstance(state.calls[index], EffectPending)
            if parts is None or not pending or operation.progress.get(index) == parts or not isinstance(state, Tools):
                return Done(None)
            address = addresses.pending_output(operation.id, call_id(state.answer, index))

            def publish(commit: Commit) -> None:
                operation.progress[index] = parts

            return Decision([SetValue(address, codec.encode(parts))], "progress", publish)

        await self.lane.line.run(decide)

    def progress_of(self, index: int) -> tuple[UserPart, ...]:
        return self._progress.get(index) or self.operation.progress.get(index, ())

    async def save_memo(self, index: int, name: str, value: Any) -> None:
        check_name(name, "memo")
        payload = codec.encode(clean_json(value, f"memo {name}"))
        operation = self.operation

        def decide() -> Decision[None] | Done[None]:
            state = operation.state
            if index not in self._calls or not isinstance(state, Tools):
                raise NoActiveOperation(f"memo {name!r}: the call has its result already")
            address = addresses.op_memo(operation.id, call_id(state.answer, index), name)

            def publish(commit: Commit) -> None:
                operation.memos.setdefault(index, {})[name] = payload

            return Decision([SetValue(address, payload)], "memo", publish)

        await self.lane.line.run(decide)

    def memo(self, index: int, name: str, default: Any) -> Any:
        check_name(name, "memo")
        payload = self.operation.memos.get(index, {}).get(name)
        return default if payload is None else codec.JSON.decode(payload, f"memo {name}")

    # The end of a pass whose operation goes on later.

    async def _wind_down(self) -> None:
        if self.runtime.killed:
            self._drop_effects()
            return
        try:
            await self._stop_effects("close")
            if self._stopping != "fault" and self.runtime.phase != "faulted":
                self._stopping = self._stopping or "close"
                await self._save_rest()
        except asyncio.CancelledError:
            self._drop_effects()
            raise
        except Exception as error:  # a fault, or a busy store: what is not committed is dropped
            self.runtime.found(f"closing operation {self.operation.id}: {error!r}")

    async def _stop_effects(self, why: StopReason) -> None:
        if self._request is not None:
            self._request.stop(why)
        for call in tuple(self._calls.values()):
            call.stop(why)
        while self._request is not None or self._calls:  # each ends within its grace, or is left behind then
            self._wake.clear()
            await self._wake.wait()
            if self.runtime.killed:
                self._drop_effects()

    async def _save_rest(self) -> None:
        """Flush what was shown and said, commit what came back in time, and put back what never began."""
        request = self._last_request
        if request is not None and self._answered is None:
            await self.save_frames(request.response_id, request.take_unsaved())
        for index in tuple(self._progress):
            await self._commit_progress(index)
        await self.lane.line.run(self._decide)

    def _drop_effects(self) -> None:
        for call in tuple(self._calls.values()):
            call.drop()
        self._calls.clear()
        if self._request is not None:
            self._request.drop()
            self._request = None
        self.poke()
