"""Effects made ready to start: a request with what the model is shown, a call with its context."""

from __future__ import annotations

from copy import copy
from typing import Any

from msgspec import UNSET

from agentlane.agent import Agent, RunInfo
from agentlane.agent_tool import AgentTool
from agentlane.data.border import copied
from agentlane.data.messages import Frame, UsageSeen
from agentlane.data.operations import REPEATABLE, EffectPending, Tools
from agentlane.driver.calls import CallEffect, CallOwner
from agentlane.driver.children import ChildEffect, ChildOwner
from agentlane.driver.generation import GenerationEffect, GenerationOwner
from agentlane.driver.hooks import Gates
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.summarizing import Summaries
from agentlane.driver.views import ResolvedCall, resolve_model
from agentlane.ids import call_id
from agentlane.machine.facts import DriveChild, RequestModel, RequestSummary, RunCall
from agentlane.model import ModelRequest
from agentlane.tool_context import ToolContext


def launch_request(
    owner: GenerationOwner,
    lane: LaneCore,
    operation: OpenOperation,
    agent: Agent[Any, Any],
    effect: RequestModel,
    gates: Gates | None = None,
) -> GenerationEffect:
    """The effect of an intended request. What the model is shown is taken now: committed entries only."""
    runtime = lane.runtime
    index, model, problem = resolve_model(agent, operation.config.models, effect.model_index)
    if model is None:
        raise RuntimeError(f"a request was intended without its model: {problem}")
    messages, stands_for = lane.context.view(), lane.context.stands_for
    config = operation.config
    settings = config.settings if gates is None else gates.settings(operation.state)

    def build(instructions: str) -> ModelRequest:
        return ModelRequest(
            instructions=agent.shown_instructions(instructions, config.tools),
            messages=messages,
            tools=tuple(agent.tools[name].shown() for name in config.tools if name in agent.tools),
            settings=copied(settings),  # an adapter may keep or change it
            session_id=runtime.session_id,
            lane=lane.name,
            operation_id=operation.id,
            attempt=effect.attempt,
            output=None if agent.output is None or config.output_retries is UNSET else agent.output.shown(),
            stands_for=stands_for,
        )

    def show(frame: Frame) -> None:
        if lane.feed.watched and not isinstance(frame, UsageSeen):
            lane.feed.shown(operation, effect.response_id, frame)

    made = GenerationEffect(
        owner,
        runtime,
        lane,
        response_id=effect.response_id,
        model=model,
        identity=config.models[index],
        agent=agent,
        info=RunInfo(runtime.session_id, lane.name, operation.id, operation.deps_of(agent)),
        build=build,
        show=show,
        hooks=None if gates is None else gates.around_request(operation.state, config.models[index]),
        grace_ms=config.limits.cancel_grace_ms,
    )
    operation.streaming = (effect.response_id, made.frames)
    return made


def launch_summary(
    owner: GenerationOwner,
    lane: LaneCore,
    operation: OpenOperation,
    agent: Agent[Any, Any],
    effect: RequestSummary,
    summaries: Summaries,
) -> GenerationEffect:
    """The effect of an intended request for a summary, of what was prepared for it."""
    runtime, config, prep = lane.runtime, operation.config, operation.prep
    models = config.summary_models
    index, model, problem = resolve_model(agent, models, effect.model_index)
    if model is None or prep is None:
        raise RuntimeError(f"summary {effect.task} was intended without its model or preparation: {problem}")
    stands_for = lane.context.stands_for

    async def build(_: str) -> ModelRequest:
        asked = await summaries.request(prep, effect.shorter, models[index])
        return ModelRequest(
            instructions=asked.instructions,
            messages=(asked.message,),
            tools=(),
            settings=copied(config.settings),
            session_id=runtime.session_id,
            lane=lane.name,
            operation_id=operation.id,
            attempt=effect.attempt,
            purpose="summary",
            max_output_tokens=summaries.output_tokens,
            stands_for=stands_for,
        )

    return GenerationEffect(
        owner,
        runtime,
        lane,
        response_id=effect.response_id,
        model=model,
        identity=models[index],
        agent=agent,
        info=RunInfo(runtime.session_id, lane.name, operation.id, operation.deps_of(agent)),
        build=build,
        show=lambda _: None,
        kind="summary",
        grace_ms=config.limits.cancel_grace_ms,
    )


def launch_call(
    owner: CallOwner,
    lane: LaneCore,
    operation: OpenOperation,
    agent: Agent[Any, Any],
    effect: RunCall,
    resolved: ResolvedCall,
) -> tuple[CallEffect, ToolContext[Any]]:
    """The effect of an intended call, and what its tool is told."""
    index, state = effect.index, operation.state
    if resolved.tool is None or not isinstance(state, Tools):
        raise RuntimeError(f"call {index} was intended without its tool at {state!r}")
    answer, begun = state.answer, state.calls[index]
    limits = operation.config.limits
    call = CallEffect(
        owner,
        lane.runtime,
        lane,
        index=index,
        call=operation.calls[index],
        tool=resolved.tool,
        checked=resolved.checked,
        limit_bytes=resolved.tool.options.max_result_bytes or limits.max_result_bytes,
        grace_ms=limits.cancel_grace_ms,
        may_ask=isinstance(begun, EffectPending) and begun.policy in REPEATABLE,
    )
    context = ToolContext(
        port=call,
        key=lambda: lane.call_key(operation, answer, index),
        operation_id=operation.id,
        turn_id=answer,
        call_id=call_id(answer, index),
        attempt=effect.attempt,
        recovered=effect.replays > 0,
        epoch=lane.runtime.storage.epoch,
        deps=operation.deps_of(agent),
    )
    return call, context


def launch_child(
    owner: ChildOwner,
    lane: LaneCore,
    operation: OpenOperation,
    agent: Agent[Any, Any],
    effect: DriveChild,
) -> ChildEffect:
    """The driving of a call that is another agent's run, with the agent that this process has for it.

    If it has none, one without models and tools stands in: the child ends as what it lacks, and its parent goes on.
    """
    state = operation.state
    if not isinstance(state, Tools):
        raise RuntimeError(f"call {effect.index} has no child at {state!r}")
    call = operation.calls[effect.index]
    tool = agent.tools.get(call.name)
    limit_bytes = None if tool is None else tool.options.max_result_bytes
    return ChildEffect(
        owner,
        lane,
        index=effect.index,
        call=call,
        operation_id=call_id(state.answer, effect.index),
        agent=tool.agent if isinstance(tool, AgentTool) else _without_means(agent, call.name),
        limit_bytes=limit_bytes or operation.config.limits.max_result_bytes,
    )


def _without_means(agent: Agent[Any, Any], name: str) -> Agent[Any, Any]:
    """An agent of that name that has nothing: what ``agent`` was given is for its own runs, not for those of others."""
    absent = copy(agent)
    absent.name, absent.models, absent.tools = name, {}, {}
    absent.instructions, absent.settings, absent.hooks = "", {}, ()
    absent.deps, absent.output, absent.projectors = None, None, {}
    return absent
