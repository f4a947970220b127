"""What happened outside of the store: each start and end of a tool, each request to a model and what it answered."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentlane.agent import Agent
from agentlane.data.messages import AssistantMessage, Message, ModelIdentity
from agentlane.data.operations import ReplayPolicy
from agentlane.model import Model, ModelError, ModelLimits, ModelRequest, StreamItem
from agentlane.testing.matrix.family import with_tools
from agentlane.testing.matrix.hooked import Hooked, untouched_by, watched
from agentlane.tool import NotStarted, Tool
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
    """One request to a model: what it was shown, and its settled answer if it gave one; whether it failed instead."""

    life: int
    operation_id: str
    attempt: int
    messages: Sequence[Message]
    untouched: Sequence[Message] = ()
    """What it would have been shown without hooks."""
    answer: AssistantMessage | None = None
    purpose: str = "answer"
    instructions: str = ""
    failed: bool = False


class Witness:
    """Sees every start and every request of one history, over all of its processes."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.asked: list[Asked] = []
        self.hooked: list[Hooked] = []
        self._lock = threading.Lock()
        self._dead: set[int] = set()
        self._inside: Counter[int] = Counter()
        self._quiet: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = {}

    def agent(self, agent: Agent[Any, Any], *, life: int) -> Agent[Any, Any]:
        """A copy of ``agent`` whose tools and models are watched."""
        seen = copy.copy(agent)
        seen.models = {identity: _WatchedModel(each, self, life) for identity, each in agent.models.items()}
        seen.model = seen.models[agent.model.identity]
        seen.tools = {name: _WatchedTool(each, self, life) for name, each in agent.tools.items()}
        seen.tools |= with_tools(agent, lambda other: self.agent(other, life=life))
        seen.hooks = watched(agent.hooks, self.hooked, life, lambda life: life not in self._dead)
        return seen

    async def bury(self, life: int) -> None:
        """No tool begins in this process any more. Returns once plain functions that run in its threads have ended.

        A real death would end them; here they would go on beside the next process.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            self._dead.add(life)
            if not self._inside[life]:
                return
            future = loop.create_future()
            self._quiet[life] = loop, future
        await future

    def enter(self, life: int) -> None:
        """A tool begins; ``ProcessIsDead`` if its process is."""
        with self._lock:
            if life in self._dead:
                raise ProcessIsDead(f"process {life} is dead")
            self._inside[life] += 1

    def leave(self, life: int) -> None:
        """A tool has returned: with its value, or with what is to be awaited."""
        with self._lock:
            self._inside[life] -= 1
            waiting = None if self._inside[life] else self._quiet.pop(life, None)
        if waiting is not None:
            waiting[0].call_soon_threadsafe(_wake, waiting[1])

    def of_call(self, call_id: str) -> list[Start]:
        """The starts of one call, in order."""
        return [each for each in self.starts if each.call_id == call_id]

    def begun(self, call_id: str) -> list[Start]:
        """Those of them that count: one that said that it did not begin may be made again by a later process."""
        starts = self.of_call(call_id)
        again = {(each.life, each.attempt) for each in starts}
        return [
            each
            for each in starts
            if not isinstance(each.error, NotStarted)
            or not any(life > each.life and attempt == each.attempt for life, attempt in again)
        ]


class ProcessIsDead(BaseException):
    """A thread of a process that was killed goes no further."""


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _WatchedTool(Tool[Any, Any]):
    def __init__(self, inner: Tool[Any, Any], witness: Witness, life: int) -> None:
        self.__dict__.update(inner.__dict__)
        self._inner = inner
        self._witness = witness
        self._life = life

    def call(self, checked: Any, context: ToolContext[Any]) -> Any:
        self._witness.enter(self._life)
        try:
            return self._begin(checked, context)
        finally:
            self._witness.leave(self._life)

    def _begin(self, checked: Any, context: ToolContext[Any]) -> Any:
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
        sent = tuple(request.messages)
        untouched: Sequence[Message] = sent
        if request.purpose == "answer":
            untouched = untouched_by(self._witness.hooked, self._life, request.operation_id, sent)
        asked = Asked(self._life, request.operation_id, request.attempt, sent, untouched)
        asked.purpose, asked.instructions = request.purpose, request.instructions
        self._witness.asked.append(asked)
        stream = self._inner.stream(request)
        try:
            async for item in stream:
                if isinstance(item, AssistantMessage):
                    asked.answer = item
                yield item
        except ModelError:
            asked.failed = True
            raise
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
