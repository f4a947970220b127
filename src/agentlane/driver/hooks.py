"""Hooks that stand before a step: run as effects of the pass, and what they said kept until a commit has used it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from agentlane.agent import Agent
from agentlane.data import codec
from agentlane.data.border import clean_object
from agentlane.data.messages import ErrorInfo, ModelIdentity, ToolResultMessage, UserMessage
from agentlane.data.operations import (
    Checkpoint,
    Generating,
    Navigating,
    OperationState,
    OutcomeReady,
    Placed,
    Planned,
    RetryWait,
    Summarizing,
    SummaryWait,
    Tools,
)
from agentlane.driver import hook_answers as answers
from agentlane.driver.arguments import ChangedArguments, effective_call
from agentlane.driver.draft import OperationDraft
from agentlane.driver.effects import StopReason
from agentlane.driver.hook_calls import TEXT_BYTES_MAX, HookCaller, HookEffect, HookFailed, HookOwner, Said
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.request_hooks import RequestHooks
from agentlane.driver.summarizing import Summaries
from agentlane.driver.tool_results import Sealed, bounded_text
from agentlane.driver.views import CHANGED, ResolvedCall, refused, resolve_model
from agentlane.hooks import (
    AfterTool,
    BeforeCompaction,
    BeforeFinish,
    BeforeNavigation,
    BeforeRequest,
    BeforeRun,
    BeforeTool,
    Block,
    Decline,
    Hook,
    HookPoint,
    SummaryText,
)
from agentlane.ids import FOLLOW_UPS_AT_ONCE, call_id, follow_up_id
from agentlane.machine import verdicts
from agentlane.machine.table import asks_at_once

Place: TypeAlias = tuple[HookPoint, str, int]
"""A point, the entry it is about, and which call of it."""


class Permit(NamedTuple):
    """What ``before_tool`` hooks made of a call: arguments if they changed them, or why it must not start."""

    arguments: dict[str, Any] | None = None
    refusal: str | None = None


class Gates:
    """What hooks said before steps of one pass, by their place. A step is not taken before its hooks have spoken."""

    def __init__(
        self,
        owner: HookOwner,
        lane: LaneCore,
        operation: OpenOperation,
        agent: Agent[Any, Any],
        summaries: Summaries,
    ) -> None:
        self._owner = owner
        self._summaries = summaries
        self._lane = lane
        self._operation = operation
        self._agent = agent
        self._recovered = operation.driven
        self._running: dict[Place, HookEffect] = {}
        self._overtaken: dict[Place, HookEffect] = {}
        """Hooks that nobody waits for any more, until they have ended."""
        self._said: dict[Place, Said] = {}
        self._merged: tuple[ChangedArguments, ChangedArguments, ChangedArguments] = ({}, {}, {})
        self._before_run = _at(agent.hooks, "before_run")
        self._before_request = _at(agent.hooks, "before_request")
        self._before_tool = _at(agent.hooks, "before_tool")
        self._after_tool = _at(agent.hooks, "after_tool")
        self._before_finish = _at(agent.hooks, "before_finish")
        self._before_compaction = _at(agent.hooks, "before_compaction")
        self._before_navigation = _at(agent.hooks, "before_navigation")
        self._around_request = bool(_at(agent.hooks, "transform_context") or _at(agent.hooks, "after_response"))

    @property
    def busy(self) -> bool:
        """Whether hooks are being asked."""
        return bool(self._running or self._overtaken)

    @property
    def failure(self) -> ErrorInfo | None:
        """Why the run must not go on past the next boundary."""
        return next(
            (said.error for place, said in self._said.items() if said.error and place[0] != "before_tool"), None
        )

    # What a step has to know.

    def held(self, state: OperationState) -> frozenset[int]:
        """Calls whose result must not be placed yet. One whose hook fails the run waits for all others. # I5"""
        if not self._after_tool or not isinstance(state, Tools) or state.cancel_requested_at is not None:
            return frozenset()
        said = {index: self._said.get(("after_tool", state.answer, index)) for index in range(len(state.calls))}
        held = {index for index, each in said.items() if each is None and _is_open(state, index)}
        failed = {index for index, each in said.items() if each is not None and each.error is not None}
        return frozenset(held | failed) if held else frozenset()

    def resolved(self, draft: OperationDraft, resolved: list[ResolvedCall]) -> list[ResolvedCall]:
        """The calls of the batch, with those that hooks refuse."""
        found = list(resolved)
        for index, permit in self._permits(draft):
            problem = permit.refusal or found[index].view.problem
            if permit.refusal is not None:
                found[index] = refused(found[index], permit.refusal)
            elif permit.arguments is not None and problem is not None:
                found[index] = refused(found[index], f"{CHANGED} {problem}")
        return found

    def arguments(self, draft: OperationDraft) -> ChangedArguments:
        """What calls run with instead of the model's arguments: what is kept, and what hooks gave those to come."""
        changed = self.changed_arguments(draft)
        if not changed:
            return draft.args
        if self._merged[0] is not draft.args or self._merged[1] != changed:  # the same as long as it holds the same
            self._merged = (draft.args, changed, {**draft.args, **changed})
        return self._merged[2]

    def changed_arguments(self, draft: OperationDraft) -> dict[int, dict[str, Any]]:
        """Arguments that hooks gave calls that have not started."""
        return {index: permit.arguments for index, permit in self._permits(draft) if permit.arguments is not None}

    def changed_results(self, draft: OperationDraft) -> list[tuple[int, Sealed]]:
        """Results that hooks put in the place of those that are ready and next."""
        state, held, changed = draft.state, self.held(draft.state), []
        for index, call in enumerate(state.calls if isinstance(state, Tools) else ()):
            if isinstance(call, Placed):
                continue
            if index in held or not isinstance(call, OutcomeReady):
                break
            said = self._said.get(("after_tool", state.answer or "", index))
            if said is not None and isinstance(said.value, Sealed):
                changed.append((index, said.value))
        return changed

    def settings(self, state: OperationState) -> dict[str, Any]:
        """The settings of the request that was just intended."""
        said = self._said.get(_request_place(state, 0)) if isinstance(state, Generating) else None
        return self._operation.config.settings if said is None or said.value is None else said.value

    def around_request(self, state: OperationState, model: ModelIdentity) -> RequestHooks | None:
        """The hooks of the request that was just intended."""
        if not self._around_request or not isinstance(state, Generating):
            return None
        info, runtime = self._info(state.turn), self._lane.runtime
        return RequestHooks(runtime, self._agent, info, attempt=state.attempt, model=model)

    def follow_ups(self, draft: OperationDraft) -> tuple[tuple[str, UserMessage], ...]:
        """What hooks have to say where the run would finish."""
        state = draft.state
        said = self._said.get(_finish_place(state)) if isinstance(state, Checkpoint) else None
        return () if said is None or said.value is None else said.value

    def summary(self, state: OperationState) -> Decline | SummaryText | None:
        """What hooks said to the summary that is about to be asked for."""
        said = self._said.get(self._summary_place(state)) if isinstance(state, Checkpoint) else None
        return None if said is None else said.value

    def asked_about_summary(self, state: OperationState) -> bool:
        """Whether hooks are being asked about the summary that is next, or have spoken."""
        if not isinstance(state, Checkpoint):
            return False
        place = self._summary_place(state)
        return place in self._running or place in self._said

    def _summary_place(self, state: Checkpoint) -> Place:
        """What is committed before a summary is asked for may change what it is about: then hooks are asked again."""
        return "before_compaction", state.trigger, self._operation.version

    def _permits(self, draft: OperationDraft) -> Iterable[tuple[int, Permit]]:
        state = draft.state
        for (point, answer, index), said in self._said.items():
            if point == "before_tool" and isinstance(state, Tools) and answer == state.answer:
                if not isinstance(state.calls[index], Planned):
                    continue
                if said.error is not None:
                    limit_bytes = self._operation.config.limits.max_result_bytes
                    yield index, Permit(refusal=bounded_text(said.error.message, limit_bytes))
                else:
                    yield index, said.value

    # Asking.

    def stand_before(self, verdict: verdicts.Verdict, draft: OperationDraft, batch: Sequence[ResolvedCall]) -> bool:
        """Whether hooks have to speak before this verdict is followed. They are asked if all before it is committed."""
        state = draft.state
        may_ask = draft.empty and not self._operation.abort_waiting
        if not isinstance(state, Tools):
            return self._stand_between(verdict, state, may_ask)
        if self._after_tool and may_ask:
            for index in self._operation.staged:
                self._ask(("after_tool", state.answer, index), partial(self._ask_after, state, index, batch[index]))
        if isinstance(verdict, verdicts.AwaitAnswers) and self._will_speak(draft):
            return True
        if not self._before_tool:
            return False
        match verdict:
            case verdicts.StartCalls(starts, children):
                asked = [*(index for index, _ in starts), *children]
            case verdicts.AskPredicates(calls) | verdicts.AskApprovals(calls):
                asked = list(calls)
            case _:
                return False
        planned = [index for index in asked if isinstance(state.calls[index], Planned)]
        silent = [i for i in planned if ("before_tool", state.answer, i) not in self._said]
        if may_ask:
            for index in silent:
                self._ask(("before_tool", state.answer, index), partial(self._ask_before, state, index))
        return bool(silent)

    def _will_speak(self, draft: OperationDraft) -> bool:
        """Whether hooks are asked, or will be, about what is staged."""
        answer = draft.state.answer or ""
        return self.busy or any(
            ("after_tool", answer, index) not in self._said for index in draft.staged if self._after_tool
        )

    def _stand_between(self, verdict: verdicts.Verdict, state: OperationState, may_ask: bool) -> bool:
        """The same between effects: before a request, and before the end, which comes behind all hooks."""
        if self._overtaken and isinstance(verdict, verdicts.Finish | verdicts.Fail | verdicts.GiveUp):
            return True
        silent: list[tuple[Place, Callable[[HookCaller], Awaitable[Any]]]] = []
        asks = isinstance(verdict, verdicts.AskModel) or (
            isinstance(verdict, verdicts.RecoverRequest)
            and isinstance(state, Generating)
            and asks_at_once(state, self._operation.rules)
        )
        summarizes = isinstance(verdict, verdicts.AskSummary) and isinstance(state, Checkpoint)
        if (asks or summarizes) and self._before_run and _is_first(state):
            silent.append((_RUN, self._ask_run))
        navigate = self._operation.meta.navigate
        leaves = bool(self._before_navigation) and navigate is not None and navigate.to != self._lane.tip
        if leaves and (summarizes or isinstance(verdict, verdicts.Navigate)):
            silent.append((_NAVIGATION, self._ask_navigation))
        if summarizes and self._before_compaction and isinstance(state, Checkpoint):
            silent.append((self._summary_place(state), self._ask_compaction))
        if asks and self._before_request:
            place = _request_place(state, 1)
            silent.append((place, partial(self._ask_request, int(place[1]), place[2], state)))
        answered = isinstance(verdict, verdicts.Finish) and bool(self._before_finish)
        if answered and isinstance(state, Checkpoint) and state.next == "finish":
            silent.append((_finish_place(state), partial(self._ask_finish, state)))
        for place, ask in silent:
            if place not in self._said:
                if may_ask:
                    self._ask(place, ask)
                return True
        return False

    def _ask(self, place: Place, ask: Callable[[HookCaller], Awaitable[Any]]) -> None:
        overtaken = any(each[0] == place[0] for each in self._overtaken)  # hooks of a point end before others begin
        if place in self._running or place in self._said or overtaken:
            return
        effect = HookEffect(self._owner, self._lane, self._operation, ask, partial(self._told, place))
        self._running[place] = effect
        effect.start(place[0])

    def _told(self, place: Place, said: Said | None) -> None:
        if self._overtaken.pop(place, None) is not None:
            self._owner.hook_ended(lost=False)
            return
        if self._running.pop(place, None) is None:
            return
        if said is not None:
            self._said[place] = said
        self._owner.hook_ended(lost=said is None)

    def forget(self, state: OperationState) -> None:
        """A commit is published: what it used, and what nobody will ask for any more, goes, and is asked to end."""
        for place in [place for place in self._running if not self._is_needed(place, state)]:
            self._overtaken[place] = effect = self._running.pop(place)
            effect.stop()
        if self._said:
            self._said = {place: said for place, said in self._said.items() if self._is_needed(place, state)}

    def _is_needed(self, place: Place, state: OperationState) -> bool:
        if place[0] == "before_compaction":
            return isinstance(state, Checkpoint) and place == self._summary_place(state)
        return _is_needed(place, state)

    # Ending.

    def signal(self, why: StopReason) -> None:
        """Ask what runs to end. Nothing is made of what was said under an abort."""
        for effect in (*self._running.values(), *self._overtaken.values()):
            effect.stop()
        if why == "abort":
            self._said.clear()

    def drop(self) -> None:
        """The session is dead or faulted: no report will be taken."""
        for effect in (*self._running.values(), *self._overtaken.values()):
            effect.drop()
        self._running.clear()
        self._overtaken.clear()

    # The points.

    async def _ask_run(self, caller: HookCaller) -> None:
        operation, lane = self._operation, self._lane
        rows = await lane.runtime.storage.entries(operation.meta.inputs)
        bodies = [codec.BODY.decode(row.payload, f"entry {row.id}") for row in rows if row is not None]
        inputs = tuple(body for body in bodies if isinstance(body, UserMessage))
        for hook in self._before_run:
            await caller.ask(hook, BeforeRun(**self._info(1), inputs=inputs), answers.nothing)

    async def _ask_request(
        self, turn: int, attempt: int, state: OperationState, caller: HookCaller
    ) -> dict[str, Any] | None:
        config = self._operation.config
        wanted = state.model_index if isinstance(state, Generating | RetryWait) else 0
        model = config.models[resolve_model(self._agent, config.models, wanted)[0]]
        settings = config.settings
        for hook in self._before_request:
            given = clean_object(settings, "settings")
            info = BeforeRequest(**self._info(turn), attempt=attempt, model=model, settings=given)
            said = await caller.ask(hook, info, answers.settings)
            settings = settings if said is None else said
        return None if settings is config.settings else settings

    async def _ask_finish(self, state: Checkpoint, caller: HookCaller) -> tuple[tuple[str, UserMessage], ...]:
        operation = self._operation
        found: list[UserMessage] = []
        for hook in self._before_finish:
            info = BeforeFinish(**self._info(state.turn), text=operation.answer_text, follow_ups=operation.follow_ups)
            said = await caller.ask(hook, info, answers.follow_ups)
            found.extend(said or ())
        room = min(max(0, self._agent.max_follow_ups - operation.follow_ups), FOLLOW_UPS_AT_ONCE)
        if len(found) > room:
            self._lane.runtime.found(
                f"operation {operation.id}: hooks have {len(found)} messages to follow, and {room} are left of "
                f"{self._agent.max_follow_ups} (at most {FOLLOW_UPS_AT_ONCE} at once); the others are dropped"
            )
        answer = state.answer or state.trigger
        return tuple((follow_up_id(answer, index), message) for index, message in enumerate(found[:room]))

    async def _ask_compaction(self, caller: HookCaller) -> Decline | SummaryText | None:
        state, summaries = self._operation.state, self._summaries
        wanted = summaries.now
        if wanted is None or wanted.prep is None:
            return None
        messages, _ = await summaries.messages(wanted.prep)
        for hook in self._before_compaction:
            info = BeforeCompaction(
                **self._info(state.turn + 1),
                reason=wanted.reason,
                messages=tuple(messages),
                earlier=summaries.earlier,
                tokens_before=wanted.prep.tokens_before,
                instructions=summaries.instructions,
            )
            said = await caller.ask(hook, info, lambda value: answers.summary(value, summaries.check_own))
            if said is not None:
                return said
        return None

    async def _ask_navigation(self, caller: HookCaller) -> None:
        lane, navigate = self._lane, self._operation.meta.navigate
        if navigate is None:
            raise RuntimeError(f"operation {self._operation.id} is no navigation")
        info = BeforeNavigation(
            session_id=lane.runtime.session_id,
            lane=lane.name,
            deps=self._operation.deps_of(self._agent),
            from_tip=lane.tip,
            to=navigate.to,
            label=navigate.label,
            messages=(),
        )
        for hook in self._before_navigation:
            said = await caller.ask(hook, info, answers.refusal)
            if said is not None:
                text = f"lane {lane.name!r} does not move: {said.reason}"
                raise HookFailed(ErrorInfo(code=NAVIGATION_REFUSED, message=bounded_text(text, TEXT_BYTES_MAX)))

    async def _ask_before(self, state: Tools, index: int, caller: HookCaller) -> Permit:
        call = self._operation.calls[index]
        given = effective_call(call, index, self._operation.args).arguments or {}
        arguments = clean_object(given, "arguments")
        for hook in self._before_tool:
            info = BeforeTool(
                **self._info(state.turn),
                call_id=call_id(state.answer, index),
                name=call.name,
                arguments=clean_object(arguments, "arguments"),  # what a hook does to them is no answer
            )
            said = await caller.ask(hook, info, answers.arguments_or_block)
            if isinstance(said, Block):
                return Permit(refusal=bounded_text(said.reason, self._operation.config.limits.max_result_bytes))
            arguments = arguments if said is None else said
        return Permit(arguments=None if codec.same_json(arguments, given) else arguments)

    async def _ask_after(self, state: Tools, index: int, resolved: ResolvedCall, caller: HookCaller) -> Sealed | None:
        operation = self._operation
        call, raw, tool = operation.calls[index], operation.staged[index], resolved.tool
        limit_bytes = operation.config.limits.max_result_bytes
        if tool is not None and tool.options.max_result_bytes:
            limit_bytes = tool.options.max_result_bytes
        now = raw
        for hook in self._after_tool:
            message = codec.BODY.decode(now.payload, "result")
            if not isinstance(message, ToolResultMessage):
                raise RuntimeError(f"operation {operation.id}: the staged result {index} is none")
            given = effective_call(call, index, operation.args).arguments
            info = AfterTool(
                **self._info(state.turn),
                call_id=call_id(state.answer, index),
                name=call.name,
                arguments=None if given is None else clean_object(given, "arguments"),
                result=message,
                terminate=now.terminate,
            )
            said = await caller.ask(hook, info, lambda value: answers.result(call, value, limit_bytes))
            now = now if said is None else said
        return None if now is raw else now

    def _info(self, turn: int) -> dict[str, Any]:
        lane = self._lane
        return {
            "session_id": lane.runtime.session_id,
            "lane": lane.name,
            "operation_id": self._operation.id,
            "turn": turn,
            "recovered": self._recovered,
            "deps": self._operation.deps_of(self._agent),
        }


def gates_of(
    owner: HookOwner, lane: LaneCore, operation: OpenOperation, agent: Agent[Any, Any], summaries: Summaries
) -> Gates | None:
    """The gates of a pass; None for an agent without hooks, which costs nothing then."""
    return Gates(owner, lane, operation, agent, summaries) if agent.hooks else None


NAVIGATION_REFUSED = "navigation_refused"

_RUN: Place = ("before_run", "", 0)
_NAVIGATION: Place = ("before_navigation", "", 0)


def _is_first(state: OperationState) -> bool:
    """Whether a run has not asked its model yet, for a summary neither."""
    if not isinstance(state, Checkpoint) or state.turn or state.next != "respond":
        return False
    return state.overflow is None and not state.compacted


def _request_place(state: OperationState, ahead: int) -> Place:
    """The place of the request that is under way, or of the one after it."""
    attempt = state.attempt if isinstance(state, Generating | RetryWait) else 0
    turn = state.turn + 1 if isinstance(state, Checkpoint) else state.turn
    return "before_request", str(turn), attempt + ahead


def _finish_place(state: Checkpoint) -> Place:
    return "before_finish", state.trigger, 0


def _at(hooks: Sequence[Hook], point: HookPoint) -> tuple[Hook, ...]:
    return tuple(hook for hook in hooks if hook.point == point)


def _is_open(state: Tools, index: int) -> bool:
    return not isinstance(state.calls[index], Placed)


def _is_needed(place: Place, state: OperationState) -> bool:
    point, answer, index = place
    if point == "before_run":
        return isinstance(state, Checkpoint | Summarizing | SummaryWait) and state.turn == 0
    if point == "before_navigation":
        return isinstance(state, Checkpoint | Summarizing | SummaryWait | Navigating)
    if point == "before_request":
        asks = isinstance(state, Checkpoint | Generating | RetryWait)
        asks = asks and not (isinstance(state, Checkpoint) and state.next == "summarize")
        return asks and place in (_request_place(state, 0), _request_place(state, 1))
    if point == "before_finish":
        return isinstance(state, Checkpoint) and place == _finish_place(state)
    if not isinstance(state, Tools) or state.answer != answer:
        return False
    return isinstance(state.calls[index], Planned if point == "before_tool" else OutcomeReady)
