"""The models and tools of the programs, as the library runs them: they do what the program says, and are counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from agentlane import (
    Agent,
    ModelIdentity,
    PendingResult,
    RetryPolicy,
    Tool,
    ToolContext,
    ToolResult,
    UserMessage,
    agent_tool,
)
from agentlane.model import ModelRequest, StreamItem
from agentlane.testing import Answer, answer, call, cut, fail, hang, say
from agentlane.testing.playback import PlayedModel
from agentlane.testing.script import ScriptPart
from tests.stateful.again import LIMITS
from tests.stateful.delivery import DEFERRING_POLICIES
from tests.stateful.hooked import MARK, Hooked
from tests.stateful.hooks import FOLLOW_UPS_MAX, Hooks
from tests.stateful.kin import KIN, agent_name, called_handle, spoken
from tests.stateful.people import manners
from tests.stateful.plain_calls import arguments_of
from tests.stateful.programs import (
    ATTEMPTS,
    BARRIERS,
    MAX_REPLAYS,
    MAX_RESTARTS,
    POLICIES,
    TOOLS_OF_HANDLE,
    Call,
    Prompts,
    Reply,
)
from tests.stateful.questions import QUESTIONS
from tests.stateful.shapes import message_shape, result_text
from tests.stateful.summing import Summing, asked_about, counted, projected
from tests.stateful.talk import PLACING

HALF = "half an answer"


class Effects:
    """What happens outside of the process: no death forgets it."""

    def __init__(
        self,
        prompts: Prompts,
        hooks: Hooks = (),
        summing: Summing | None = None,
        summaries: tuple[Reply, ...] = (),
    ) -> None:
        self.prompts = prompts
        self.hooked = Hooked(hooks)
        self.summing = summing
        self.summaries = summaries
        self.asked: Counter[str] = Counter()
        self.summed: Counter[str] = Counter()
        self.requests: list[tuple[Any, ...]] = []
        self.started: Counter[tuple[str, str]] = Counter()
        self.keys: list[str] = []
        self.violations: list[str] = []
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self.outcomes: set[str] = set()
        """The ids of calls whose outcome is durable."""

    def agent(self, handle: int) -> Agent[Any, Any]:
        """The agent of a handle, made anew as a new process would."""
        models = [_Model(self, number, handle) for number in (0, 1)]
        return Agent(
            agent_name(handle),
            model=models[0],
            models=models[1:],
            tools=[self._tool(name, handle) for name in TOOLS_OF_HANDLE[handle]],
            retry=RetryPolicy(attempts=ATTEMPTS, base_ms=0),
            max_restarts=MAX_RESTARTS,
            max_replays=MAX_REPLAYS,
            steering=PLACING[handle][0],
            follow_ups=PLACING[handle][1],
            hooks=self.hooked.of(handle),
            max_follow_ups=FOLLOW_UPS_MAX,
            **LIMITS[handle],
            **self._summed_up(),
        )

    def _summed_up(self) -> dict[str, Any]:
        if self.summing is None:
            return {}
        projectors = {"note": projected} if self.summing.projects else None
        return {"compaction": self.summing.policy, "token_counter": counted, "projectors": projectors}

    def durable(self, ids: set[str]) -> None:
        """These calls have their outcomes."""
        self.outcomes |= ids
        for id, future in self._waiting:
            if id in self.outcomes and not future.done():
                future.set_result(None)
        self._waiting = [each for each in self._waiting if not each[1].done()]

    def _tool(self, name: str, handle: int) -> Tool[Any, Any]:
        if name in KIN:
            called = self.agent(called_handle(handle, name))
            return agent_tool(called, name=name, description="Ask it.", history=KIN[name], parallel=False)

        async def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
            index, attempt = arguments["index"], ctx.attempt
            self.started[ctx.operation_id, ctx.call_id] += 1
            self.keys.append(ctx.idempotency_key)
            if arguments["keeps"]:
                if name not in QUESTIONS or attempt == 1:
                    await ctx.progress(f"{name} {index} is at attempt {attempt}")
                if await ctx.memo("m") is None:
                    await ctx.set_memo("m", attempt)
            loop = asyncio.get_running_loop()
            if attempt <= arguments["hang"]:
                await loop.create_future()
            behind = arguments["behind"]
            if attempt == 1 and behind is not None:
                id = f"{ctx.call_id[:-4]}{behind + 2:04x}"
                if id not in self.outcomes:
                    future: asyncio.Future[None] = loop.create_future()
                    self._waiting.append((id, future))
                    await future
            said = tuple([await ctx.ask(each, f"{each}?") for each in QUESTIONS.get(name, ())])
            memo = await ctx.memo("m")
            if arguments["end"] == "raise":
                raise ValueError("on purpose")
            note = arguments.get(MARK, "") + arguments.get("note", "")
            if name in DEFERRING_POLICIES:
                return PendingResult()
            note += f" says {said}" if said else ""
            return ToolResult(
                content=f"{name} {index} attempt {attempt} memo {memo}{note}",
                terminate=arguments["end"] == "stop",
            )

        return Tool(name, run, replay=POLICIES[name], parallel=name not in BARRIERS, **manners(name))  # type: ignore[arg-type]


class _Model(PlayedModel):
    """Answers as the program says, by how many requests of the operation there were before."""

    def __init__(self, effects: Effects, number: int, handle: int) -> None:
        super().__init__(identity=ModelIdentity(provider="plain", name=f"m{number}"))
        self._effects = effects
        self._number = number
        self._handle = handle
        self.violations = effects.violations

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        await self._effects.hooked.gone(request.operation_id)
        async for item in super().stream(request):
            yield item

    def _find(self, request: ModelRequest) -> tuple[Answer, str]:
        effects, op = self._effects, request.operation_id
        if request.purpose == "summary":
            return self._summarize(request)
        number = effects.asked[op]
        effects.asked[op] += 1
        shown = [message_shape(message) for message in request.messages]
        tools = tuple(tool.name for tool in request.tools)
        effects.requests.append((op, request.attempt, self._number, request.settings, tools, shown))
        replies = replies_to(effects.prompts, shown)
        reply = replies[number] if number < len(replies) else Reply()
        return _answer(spoken(reply, self._handle), number, len(effects.prompts)), f"{op}-{number}"

    def _summarize(self, request: ModelRequest) -> tuple[Answer, str]:
        effects, op = self._effects, request.operation_id
        number = effects.summed[op]
        effects.summed[op] += 1
        (message,) = request.messages
        assert isinstance(message, UserMessage)
        about = asked_about("".join(getattr(part, "text", "?") for part in message.content), result_text)
        effects.requests.append((op, "summary", request.attempt, self._number, request.settings, *about))
        reply = effects.summaries[number] if number < len(effects.summaries) else Reply()
        if reply.kind == "calls":
            reply = replace(reply, calls=(Call("ghost"),))
        return _answer(reply, number, 1, "summary"), f"{op}-summary-{number}"


def replies_to(prompts: Prompts, shown: Sequence[tuple[Any, ...]]) -> tuple[Reply, ...]:
    """What the newest prompt that is shown gets; where a summary has taken its place, plain texts."""
    texts = [shape[1] for shape in reversed(shown) if shape[0] == "user" and shape[1].startswith("prompt ")]
    return prompts[int(texts[0].split()[1])] if texts else ()


def _answer(reply: Reply, number: int, prompts: int, what: str = "answer") -> Answer:
    if reply.kind == "fail":
        again = reply.after_ms is not None
        return fail("overloaded", retryable=again, retry_after_ms=reply.after_ms)
    if reply.kind == "long":
        return fail("context_overflow", retryable=False)
    if reply.kind == "cut":
        return cut(HALF)
    if reply.kind == "hang":
        return hang(HALF)
    parts: list[ScriptPart] = [say(" " if reply.kind == "empty" else f"{what} {number + 1}")]
    for index, each in enumerate(reply.calls):
        parts.append(call(each.tool, **arguments_of(reply.calls, index, number, prompts)))
    stop = "length" if reply.kind == "length" else None
    return answer(parts, stop_reason=stop) if reply.usage else answer(parts, stop_reason=stop, usage=None)  # type: ignore[arg-type]
