"""What this process knows of an operation's calls and model: the view that the machine plans with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.agent_tool import AgentTool
from agentlane.data.messages import ErrorInfo, ModelIdentity, ToolCallPart
from agentlane.data.operations import OperationConfig
from agentlane.driver.arguments import ChangedArguments, effective_call
from agentlane.machine.planning import CallView
from agentlane.model import Model
from agentlane.tool import ArgumentsError, Tool

CHANGED = "The arguments of this call were changed before it started."


class ResolvedCall(NamedTuple):
    """A call with the tool and checked arguments of this process, or the reason why it cannot run here."""

    view: CallView
    tool: Tool[Any, Any] | None = None
    checked: Any = None


def resolve_call(agent: Agent[Any, Any], config: OperationConfig, call: ToolCallPart) -> ResolvedCall:
    """Find the tool of a call and check its arguments. Never raises."""
    tool = agent.tools.get(call.name)
    if tool is None or call.name not in config.tools:
        known = ", ".join(name for name in config.tools if name in agent.tools) or "none"
        problem = f"The tool {call.name!r} is not available here. Available: {known}."
        # A call of it may be running: a barrier stays one when its tool is configured away.
        return ResolvedCall(CallView(policy=None, parallel=tool is None or tool.options.parallel, problem=problem))
    parallel = tool.options.parallel
    try:
        checked = tool.check(call.arguments, call.arguments_text)
    except ArgumentsError as error:
        return ResolvedCall(CallView(policy=tool.options.replay, parallel=parallel, problem=str(error)))
    needed, child = tool.options.approval, isinstance(tool, AgentTool)
    if needed is False:
        return ResolvedCall(CallView(policy=tool.options.replay, parallel=parallel, child=child), tool, checked)
    view = CallView(tool.options.replay, parallel, approval="yes" if needed is True else "open", child=child)
    return ResolvedCall(view, tool, checked)


def refused(resolved: ResolvedCall, why: str) -> ResolvedCall:
    """The call, with a reason why it does not start."""
    return ResolvedCall(replace(resolved.view, problem=why), resolved.tool)


def resolve_model(
    agent: Agent[Any, Any], models: Sequence[ModelIdentity], model_index: int
) -> tuple[int, Model | None, ErrorInfo | None]:
    """The model to ask: the one at ``model_index`` of an operation's list, else the next one that is in this process,
    from the list's start again where none follows; or the error that none is."""
    for index in chain(range(model_index, len(models)), range(min(model_index, len(models)))):
        model = agent.models.get(models[index])
        if model is not None:
            return index, model, None
    names = " or ".join(map(str, models))
    text = f"model {names} is not among the models of agent {agent.name!r} in this process"
    return model_index, None, ErrorInfo(code="model_unavailable", message=text)


def fallback_of(agent: Agent[Any, Any], models: Sequence[ModelIdentity], model_index: int) -> int | None:
    """The index of the next model behind ``model_index`` that is in this process, if there is one."""
    for index in range(model_index + 1, len(models)):
        if models[index] in agent.models:
            return index
    return None


class Resolver:
    """The calls of the current batch as this process can run them, found once per batch and configuration."""

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._agent = agent
        self._for: tuple[str | None, OperationConfig | None, ChangedArguments | None] = (None, None, None)
        self.resolved: list[ResolvedCall] = []
        self.calls: Sequence[ToolCallPart] = ()
        """The calls as they run: with the arguments that took the place of the model's."""
        self.consults = False
        """Whether a predicate says of one of them if a person is to be asked."""

    def batch(
        self,
        answer: str | None,
        calls: Sequence[ToolCallPart],
        config: OperationConfig,
        changed: ChangedArguments,
    ) -> list[ResolvedCall]:
        """The calls of ``answer``, each with its tool and checked arguments, or why it cannot run."""
        if self._for[0] != answer or self._for[1] is not config or self._for[2] is not changed:
            self.calls = (
                [effective_call(call, index, changed) for index, call in enumerate(calls)] if changed else calls
            )
            self.resolved = [resolve_call(self._agent, config, call) for call in self.calls]
            self.consults = any(each.view.approval == "open" for each in self.resolved)
            self._for = (answer, config, changed)
        return self.resolved
