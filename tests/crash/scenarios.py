"""What is killed: scripts, tools and what the host does, each written so that doing it again after a death goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentlane import AgentLane, Prompt, Session, ToolContext, ToolResult
from agentlane.testing.script import answer, call, fail, hang, hold, raw_call, say, think
from tests.crash.world import World, finish, make_agent

Act: TypeAlias = Callable[[World, AgentLane[Any, Any]], Awaitable[Any]]


async def two_prompts(world: World, lane: AgentLane[Any, Any]) -> None:
    await prompts(world, lane, "first", "second")


async def one_prompt(world: World, lane: AgentLane[Any, Any]) -> None:
    await prompts(world, lane, "go")


async def prompts(world: World, lane: AgentLane[Any, Any], *texts: str) -> None:
    """Accept and drive one prompt after the other; said again after a death, each is the same request."""
    for index, text in enumerate(texts):
        admitted = await lane.accept(Prompt(text), operation_id=f"op-{index}")
        await finish(world, lane, admitted.operation_id)


@dataclass(frozen=True)
class Scenario:
    """One thing to kill. ``plain``: what the conversation is without kills."""

    name: str
    script: Callable[[], list[Any]]
    plain: tuple[str, ...]
    act: Act = one_prompt
    tools: Callable[[World], list[Any]] = lambda world: []
    agent: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)

    async def run(self, world: World, session: Session) -> None:
        """What the process does after it has opened the session."""
        model = world.model(self.script(), **self.model)
        agent = make_agent(world, model, self.tools(world), **self.agent)
        await self.act(world, await session.lane("main", agent))


def mixed(world: World) -> list[Any]:
    """One tool of each policy, and a barrier."""
    return [
        world.tool("safe", "safe"),
        world.tool("key", "idempotent"),
        world.tool("never", "never"),
        world.tool("alone", "never", parallel=False),
    ]


PARALLEL = Scenario(
    name="parallel calls of all policies that end out of order, then a second prompt",
    tools=mixed,
    act=two_prompts,
    script=lambda: [
        [
            think("hm", signature="sig"),
            say("look"),
            call("safe", x=1, after=[1, 3]),
            call("never", x=2),
            call("key", x=3, after=[0]),
            call("never", x=4, after=[1]),
        ],
        "so it is",
        [call("never", x=5)],
        "bye",
    ],
    plain=(
        "user first",
        "assistant[tool_calls] look (safe,never,key,never)",
        "result safe:1 done",
        "result never:2 done",
        "result key:3 done",
        "result never:4 done",
        "assistant[stop] so it is",
        "user second",
        "assistant[tool_calls]  (never)",
        "result never:5 done",
        "assistant[stop] bye",
    ),
)

BARRIER = Scenario(
    name="a barrier among parallel calls",
    tools=mixed,
    script=lambda: [
        [call("safe", x=1), call("never", x=2), call("alone", x=3), call("key", x=4), call("never", x=5)],
        "done",
    ],
    plain=(
        "user go",
        "assistant[tool_calls]  (safe,never,alone,key,never)",
        "result safe:1 done",
        "result never:2 done",
        "result alone:3 done",
        "result key:4 done",
        "result never:5 done",
        "assistant[stop] done",
    ),
)

SLOTS = Scenario(
    name="more calls than slots",
    tools=mixed,
    agent={"max_parallel": 2},
    script=lambda: [[call("never", x=i) for i in range(5)], "done"],
    plain=(
        "user go",
        "assistant[tool_calls]  (never,never,never,never,never)",
        *(f"result never:{i} done" for i in range(5)),
        "assistant[stop] done",
    ),
)

RETRY = Scenario(
    name="retry waits between failed requests",
    tools=mixed,
    script=lambda: [
        [call("never", x=1)],
        fail("overloaded", retryable=True, retry_after_ms=700, parts="Hel"),
        fail("overloaded", retryable=True),
        "hello",
    ],
    plain=(
        "user go",
        "assistant[tool_calls]  (never)",
        "result never:1 done",
        "assistant[stop] hello",
    ),
)

BAD_CALLS = Scenario(
    name="calls that cannot run, among good ones",
    tools=lambda world: [*mixed(world), raising(world), world.tool("picky", "never", validate=picky)],
    script=lambda: [
        [
            call("safe", x=1, after=[1, 2, 3, 4]),
            call("unknown", x=2),
            raw_call("never", "{not json"),
            call("raises", x=4),
            call("picky", x=5),
            call("never", x=6),
        ],
        "done",
    ],
    plain=(
        "user go",
        "assistant[tool_calls]  (safe,unknown,never,raises,picky,never)",
        "result safe:1 done",
        "result! The tool 'unknown' is not available here. Available: safe, key, never, alone, raises, picky.",
        "result! The arguments of 'never' are not a JSON object: '{not json'. Send one object.",
        "result! The tool 'raises' failed: ValueError: no",
        "result! The arguments of 'picky' are not valid: not this one",
        "result never:6 done",
        "assistant[stop] done",
    ),
)

TERMINATE = Scenario(
    name="a batch whose calls all end the run",
    tools=lambda world: [world.tool("stop", "safe", body=terminating), *mixed(world)],
    script=lambda: [
        [call("stop", x=1), call("stop", x=2)],
        "never reached by the first",
        [call("stop", x=3), call("never", x=4)],
        "one did not",
    ],
    act=two_prompts,
    plain=(
        "user first",
        "assistant[tool_calls]  (stop,stop)",
        "result end",
        "result end",
        "user second",
        "assistant[stop] never reached by the first",
    ),
)

CUT = Scenario(
    name="an answer cut by its length limit",
    tools=mixed,
    script=lambda: [answer([say("long"), call("never", x=1), call("safe", x=2)], stop_reason="length"), "short"],
    plain=(
        "user go",
        "assistant[length] long (never,safe)",
        *[
            "result! " + "The answer was cut off at its length limit, so none of its calls was run. Ask again with a "
            "shorter answer, or in smaller steps."
        ]
        * 2,
        "assistant[stop] short",
    ),
)


async def durable_steps(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
    """A long tool: a memo, progress, then the end, which says what the memo held."""
    if await ctx.memo("step") is None:
        await ctx.set_memo("step", {"n": arguments["x"]})
    await ctx.progress(f"half of {arguments['x']}")
    return f"memo {(await ctx.memo('step'))['n']}"


MEMO = Scenario(
    name="memos and progress",
    tools=lambda world: [world.tool("long", "safe", body=durable_steps), *mixed(world)],
    script=lambda: [[call("long", x=1), call("never", x=2), call("long", x=3)], "done"],
    plain=(
        "user go",
        "assistant[tool_calls]  (long,never,long)",
        "result memo 1",
        "result never:2 done",
        "result memo 3",
        "assistant[stop] done",
    ),
)


async def streaming(world: World, lane: AgentLane[Any, Any]) -> None:
    """Let frames be committed while the answer is held, then let it end."""
    model = world.models[-1]
    admitted = await lane.accept(Prompt("go"), operation_id="op-0")
    showing = asyncio.ensure_future(show(world, model))
    try:
        await finish(world, lane, admitted.operation_id)
    finally:
        showing.cancel()


async def show(world: World, model: Any) -> None:
    """Whenever an answer is held: let what it showed be committed, then let it go."""
    while True:
        await model.hanging()
        saved = asyncio.ensure_future(world.published("pending.frames"))
        await asyncio.sleep(0)
        world.clock.advance(100)
        await saved
        model.release()
        while model._hanging:
            await asyncio.sleep(0)


STREAM = Scenario(
    name="a streamed answer with a committed prefix",
    script=lambda: [hold_text()],
    model={"deltas": 4},
    act=streaming,
    plain=("user go", "assistant[stop] a long answer"),
)


def hold_text() -> Any:
    return hold([think("why", signature="s"), say("a long answer")])


def raising(world: World) -> Any:
    async def body(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        raise ValueError("no")

    return world.tool("raises", "never", body=body)


def picky(arguments: dict[str, Any]) -> Any:
    raise ValueError("not this one")


async def terminating(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
    return ToolResult(content="end", terminate=True)


async def abort_while_it_hangs(world: World, lane: AgentLane[Any, Any]) -> None:
    """Abort a run once everything that can go on has, and go on with another prompt on the same branch."""
    admitted = await lane.accept(Prompt("go"), operation_id="op-0")
    if await lane.result("op-0") is None:
        driving = asyncio.ensure_future(finish(world, lane, admitted.operation_id))
        try:
            await idle(world, lane, driving)
            await lane.request_abort("op-0")
            await driving
        finally:
            driving.cancel()
    await lane.accept(Prompt("and now"), operation_id="op-1")
    await finish(world, lane, "op-1")


async def idle(world: World, lane: AgentLane[Any, Any], driving: asyncio.Future[Any]) -> None:
    """Return once the model hangs, or a tool does."""
    model = world.models[-1]
    hanging = asyncio.ensure_future(model.hanging())
    stuck = asyncio.ensure_future(world.stuck())
    await asyncio.wait({hanging, stuck, driving}, return_when=asyncio.FIRST_COMPLETED)
    hanging.cancel()
    stuck.cancel()


ABORT_STREAM = Scenario(
    name="an abort while the model answers",
    script=lambda: [hang([say("Hel")]), "after", "more"],
    act=abort_while_it_hangs,
    plain=("user go", "user and now", "assistant[stop] after"),
)

ABORT_TOOLS = Scenario(
    name="an abort while one call hangs, one is done and one is planned",
    tools=mixed,
    script=lambda: [
        [
            call("never", x=1, after=[1], hang=True),
            call("never", x=2),
            call("safe", x=3, after=[1], hang=True),
            call("alone", x=4),
        ],
        "after",
        "more",
    ],
    act=abort_while_it_hangs,
    plain=(),
)

PLAIN = [PARALLEL, BARRIER, SLOTS, RETRY, BAD_CALLS, TERMINATE, CUT, MEMO, STREAM]
ABORTS = [ABORT_STREAM, ABORT_TOOLS]
