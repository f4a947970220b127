"""What happened outside of the store: each start and end of a tool, each request to a model and what it answered."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import AssistantMessage, Message, ModelIdentity
from agentlane.data.operations import ReplayPolicy
from agentlane.model import Model, ModelLimits, ModelRequest, StreamItem
from agentlane.tool import Tool
from agentlane.tool_context import ToolContext


@dataclass
class Start:
    """One start of a tool: in which process, of which call, as the tool was told; and how it ended, if it did.

    ``ended`` is whether the tool itself came to an end, with ``value`` or with ``error``.
    """

    life: int
    tool: str
    arguments: Any
    policy: ReplayPolicy
    operation_id: str
    call_id: str
    attempt: int
    recovered: bool
    key: str
    ended: bool = False
    value: Any = None
    error: BaseException | None = None


@dataclass
class Asked:
    """One request to a model: what it was shown, and its settled answer if it gave one."""

    life: int
    operation_id: str
    attempt: int
    messages: Sequence[Message]
    answer: AssistantMessage | None = None


class Witness:
    """Sees every start and every request of one history, over all of its processes."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.asked: list[Asked] = []

    def agent(self, agent: Agent[Any, Any], *, life: int) -> Agent[Any, Any]:
        """A copy of ``agent`` whose tools and models are watched."""
        watched = copy.copy(agent)
        watched.models = {identity: _WatchedModel(each, self, life) for identity, each in agent.models.items()}
        watched.model = watched.models[agent.model.identity]
        watched.tools = {name: _WatchedTool(each, self, life) for name, each in agent.tools.items()}
        return watched

    def of_call(self, call_id: str) -> list[Start]:
        """The starts of one call, in order."""
        return [each for each in self.starts if each.call_id == call_id]


class _WatchedTool(Tool[Any, Any]):
    def __init__(self, inner: Tool[Any, Any], witness: Witness, life: int) -> None:
        self.__dict__.update(inner.__dict__)
        self._inner = inner
        self._witness = witness
        self._life = life

    def call(self, checked: Any, context: ToolContext[Any]) -> Any:
        start = Start(
            life=self._life,
            tool=self.name,
            arguments=checked,
            policy=self.options.replay,
            operation_id=context.operation_id,
            call_id=context.call_id,
            attempt=context.attempt,
            recovered=context.recovered,
            key=context.idempotency_key,
        )
        self._witness.starts.append(start)
        try:
            value = self._inner.call(checked, context)
        except BaseException as error:
            start.error, start.ended = error, True
            raise
        if inspect.isawaitable(value):
            return _awaited(value, start)
        start.value, start.ended = value, True
        return value


async def _awaited(value: Any, start: Start) -> Any:
    try:
        got = await value
    except BaseException as error:
        start.error, start.ended = error, True
        raise
    start.value, start.ended = got, True
    return got


class _WatchedModel:
    def __init__(self, inner: Model, witness: Witness, life: int) -> None:
        self._inner = inner
        self._witness = witness
        self._life = life

    @property
    def identity(self) -> ModelIdentity:
        return self._inner.identity

    @property
    def limits(self) -> ModelLimits:
        return self._inner.limits

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        asked = Asked(self._life, request.operation_id, request.attempt, tuple(request.messages))
        self._witness.asked.append(asked)
        stream = self._inner.stream(request)
        try:
            async for item in stream:
                if isinstance(item, AssistantMessage):
                    asked.answer = item
                yield item
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
