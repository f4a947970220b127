"""Scenarios in which nothing but the stop goes wrong: every state, every call status, parallel and in sequence."""

from __future__ import annotations

import asyncio
from typing import Any

from agentlane.data.requests import Prompt
from agentlane.testing.matrix.builtin.hands import Hands, agent_of, check_effects, hand, mixed
from agentlane.testing.matrix.history import Life
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import answer, call, fail, hold, raw_call, say, think
from agentlane.tool import Tool, ToolResult
from agentlane.tool_context import ToolContext

PARALLEL = Scenario(
    "parallel calls of all policies that end out of order, then a second prompt",
    world=Hands,
    check=check_effects,
    prompt=["first", "second"],
    agent=agent_of(
        lambda: [
            [
                [
                    think("hm", signature="sig"),
                    say("look"),
                    call("safe", x=1, after=[1, 3]),
                    call("never", x=2),
                    call("key", x=3, after=[0]),
                    call("never", x=4, after=[1]),
                ],
                "so it is",
            ],
            [[call("never", x=5)], "bye"],
        ]
    ),
)

EQUAL = Scenario(
    "the same call in one operation after the other",
    world=Hands,
    check=check_effects,
    prompt=["first", "second"],
    agent=agent_of(lambda: [[[call("key", x=1)], "so it is"], [[call("key", x=1), call("key", x=1)], "again"]]),
)

BARRIER = Scenario(
    "a barrier among parallel calls",
    world=Hands,
    check=check_effects,
    agent=agent_of(
        lambda: [
            [
                [call("safe", x=1), call("never", x=2), call("alone", x=3), call("key", x=4), call("never", x=5)],
                "done",
            ]
        ]
    ),
)

SLOTS = Scenario(
    "more calls than slots",
    world=Hands,
    check=check_effects,
    agent=agent_of(lambda: [[[call("never", x=i) for i in range(5)], "done"]], max_parallel=2),
)

RETRY = Scenario(
    "retry waits between failed requests",
    world=Hands,
    check=check_effects,
    agent=agent_of(
        lambda: [
            [
                [call("never", x=1)],
                fail("overloaded", retryable=True, retry_after_ms=700, parts="Hel"),
                fail("overloaded", retryable=True),
                "hello",
            ]
        ]
    ),
)


async def _refuse(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
    raise ValueError("no")


def _picky(arguments: dict[str, Any]) -> Any:
    raise ValueError("not this one")


def _with_bad_ones(life: Life[Hands]) -> list[Tool[Any, Any]]:
    raises, picky = hand(life, "raises", "never", body=_refuse), hand(life, "picky", "never", validate=_picky)
    return [*mixed(life), raises, picky]


BAD_CALLS = Scenario(
    "calls that cannot run, among good ones",
    world=Hands,
    check=check_effects,
    agent=agent_of(
        lambda: [
            [
                [
                    call("safe", x=1, after=[1, 2, 3, 4]),
                    call("unknown", x=2),
                    raw_call("never", "{not json"),
                    call("raises", x=4),
                    call("picky", x=5),
                    call("never", x=6),
                ],
                "done",
            ]
        ],
        _with_bad_ones,
    ),
)


async def _end(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
    return ToolResult(content="end", terminate=True)


TERMINATE = Scenario(
    "a batch whose calls all end the run, and one in which not all do",
    world=Hands,
    check=check_effects,
    prompt=["first", "second"],
    agent=agent_of(
        lambda: [[[call("stop", x=1), call("stop", x=2)]], [[call("stop", x=3), call("never", x=4)], "one did not"]],
        lambda life: [hand(life, "stop", "safe", body=_end), *mixed(life)],
    ),
)

CUT = Scenario(
    "an answer cut by its length limit",
    world=Hands,
    check=check_effects,
    agent=agent_of(
        lambda: [[answer([say("long"), call("never", x=1), call("safe", x=2)], stop_reason="length"), "short"]]
    ),
)


async def _in_steps(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
    """A long tool: a memo, progress, then the end, which says what the memo held."""
    if await ctx.memo("step") is None:
        await ctx.set_memo("step", {"n": arguments["x"]})
    await ctx.progress(f"half of {arguments['x']}")
    return f"memo {(await ctx.memo('step'))['n']}"


MEMO = Scenario(
    "memos and progress",
    world=Hands,
    check=check_effects,
    agent=agent_of(
        lambda: [[[call("long", x=1), call("never", x=2), call("long", x=3)], "done"]],
        lambda life: [hand(life, "long", "safe", body=_in_steps), *mixed(life)],
    ),
)


def _in_thread(life: Life[Hands]) -> list[Tool[Any, Any]]:
    def run(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        life.world.effects.append((f"plain:{arguments['x']}", "never"))
        return f"plain:{arguments['x']} done"

    return [Tool("plain", run)]


THREADS = Scenario(
    "plain functions in threads, one after the other",
    world=Hands,
    check=check_effects,
    agent=agent_of(lambda: [[[call("plain", x=1), call("plain", x=2)], "done"]], _in_thread, max_parallel=1),
)


async def _stream(life: Life[Hands]) -> None:
    """Let frames be committed while the answer is held, then let it end."""
    lane = await life.lane()
    admitted = await lane.accept(Prompt("go"), operation_id="op-1")
    showing = asyncio.ensure_future(_show(life))
    try:
        await life.drive(lane, admitted.operation_id)
    finally:
        showing.cancel()


async def _show(life: Life[Hands]) -> None:
    """Whenever an answer is held: let what it showed be committed, then let it go."""
    model = life.own_agent.model
    assert isinstance(model, ScriptedModel)
    while True:
        await model.hanging()
        saved = asyncio.ensure_future(life.published("pending.frames"))
        await asyncio.sleep(0)
        life.clock.advance(100)
        await saved
        model.release()
        while model._hanging:
            await asyncio.sleep(0)


STREAM = Scenario(
    "a streamed answer with a committed prefix",
    world=Hands,
    act=_stream,
    agent=agent_of(lambda: [[hold([think("why", signature="s"), say("a long answer")])]], lambda life: [], deltas=4),
)

PLAIN = (PARALLEL, EQUAL, BARRIER, SLOTS, RETRY, BAD_CALLS, TERMINATE, CUT, MEMO, THREADS, STREAM)
