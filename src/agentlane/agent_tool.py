"""Agents as tools: a tool whose calls are runs of another agent, each on a lane of its own in the same session."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from agentlane.agent import Agent
from agentlane.approval import ApprovalPredicate
from agentlane.errors import InvalidDefinition
from agentlane.tool import Tool

ChildHistory: TypeAlias = Literal["none", "path"]
"""What a called agent is shown before its prompt: nothing, or the conversation up to the answer that calls it."""

_PARAMETERS = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "What the agent is asked to do, in full."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


class AgentTool(Tool[Any, Any]):
    """A tool whose calls are runs of ``agent``. Made by ``agent_tool``."""

    def __init__(
        self,
        agent: Agent[Any, Any],
        name: str,
        description: str,
        *,
        history: ChildHistory,
        parallel: bool,
        approval: bool | ApprovalPredicate,
    ) -> None:
        super().__init__(
            name,
            _run_by_the_library,
            description=description,
            parameters=_PARAMETERS,
            validate=_prompt_of,
            replay="safe",
            parallel=parallel,
            approval=approval,
        )
        self.agent = agent
        self.history: ChildHistory = history

    def __repr__(self) -> str:
        return f"AgentTool({self.name!r}, {self.agent!r})"


def agent_tool(
    agent: Agent[Any, Any],
    *,
    name: str | None = None,
    description: str,
    history: ChildHistory = "none",
    parallel: bool = True,
    approval: bool | ApprovalPredicate = False,
) -> AgentTool:
    """A tool by which a model asks ``agent`` to do something: one argument, ``prompt``, and the text of its answer.

    Each call is an operation of its own on a lane of its own in the same session, named ``child:<call id>``, which
    begins empty, or with ``history="path"`` behind the conversation up to the answer that calls it. Its id is the
    call's, and it is accepted in the commit in which the call would be intended: a parent that is recovered finds its
    child, open or settled, and never starts a second one, so a call of an agent is never interrupted by a crash. The
    child is driven by its parent's pass only: whoever else drives its lane while it is open gets ``LaneBusy``, which
    names the parent. An abort of the parent aborts the child in the same commit. A child that fails or is aborted gives
    an error result that says why.

    While a child waits (for a retry, or a person's answer), its parent waits: ``Waiting`` has a ``ChildReason``.

    What the child used is counted once: in its own result and in the session's ledger, not in the parent's result.

    ``name`` is the agent's if left out; ``parallel`` and ``approval`` are those of any tool. Raises
    ``InvalidDefinition`` or ``InvalidName``.
    """
    if not isinstance(agent, Agent):
        raise InvalidDefinition(f"agent_tool({agent!r}): an Agent is needed here, not {type(agent).__name__}")
    _check_description(agent, description)
    if history not in get_args(ChildHistory):
        raise InvalidDefinition(
            f"agent_tool({agent!r}): history={history!r} is not one of {', '.join(get_args(ChildHistory))}"
        )
    tool_name = agent.name if name is None else name
    return AgentTool(agent, tool_name, description, history=history, parallel=parallel, approval=approval)


def _check_description(agent: Agent[Any, Any], description: object) -> None:
    if not isinstance(description, str) or not description:
        raise InvalidDefinition(
            f"agent_tool({agent!r}): description={description!r} must say to a model what the agent is for"
        )


def _prompt_of(arguments: dict[str, Any]) -> str:
    prompt = arguments.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError("`prompt` must be a text that says what the agent is to do")
    if len(arguments) > 1:
        raise ValueError(f"there is one argument, `prompt`; leave out {', '.join(sorted(set(arguments) - {'prompt'}))}")
    return prompt


def _run_by_the_library(prompt: str, context: object) -> Any:
    raise InvalidDefinition("an agent that is a tool is run by the lane whose model calls it; run the agent on a lane")
