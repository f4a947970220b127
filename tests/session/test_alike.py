"""Claim: every backend gives the same answers, to the byte, to the same calls (invariant 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentlane import Agent, ListAddress, Prompt, RetryPolicy, ToolResult, Usage, ValueAddress, tool
from agentlane.data.messages import user
from agentlane.errors import AgentLaneError
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import answer, call, cut, fail, say, think
from tests.session.places import KINDS, Place


@tool(replay="safe")
def look(path: str) -> Any:
    return ToolResult(content=f"{path}\x00\u2028현", details={"n": [1, 0.5, None]})


@tool(parallel=False)
def spoil() -> Any:
    return {"bad": float("nan")}


ANSWERS = [
    [think("hm", signature="s"), say("현 😀"), call("look", path="a"), call("spoil"), call("gone"), call("look")],
    fail("overloaded", retryable=True, usage=Usage(input_tokens=3)),
    "one",
    cut("half"),
    answer([say("long"), call("look", path="b")], stop_reason="length"),
    "two",
    fail("refused"),
    "three",
]
VALUE = ValueAddress("app.v", "k", dict[str, Any])
LIST = ListAddress("app.l", "k", str)


async def refused(work: Any) -> str:
    try:
        await work
    except AgentLaneError as error:
        return f"{error.code}: {error}"
    return "taken"


async def play(place: Place) -> list[Any]:
    """A session's life, with everything that was answered on the way."""
    told: list[Any] = []
    session = await place.open()
    agent = Agent(model=ScriptedModel(ANSWERS), tools=[look, spoil], retry=RetryPolicy(base_ms=0))
    lane = await session.lane("main", agent)
    told.append(await lane.run("first", operation_id="op-1"))
    told.append(await lane.run(Prompt(messages=(user("second"), user("\ud800"))), operation_id="op-2"))
    told.append(lane.inspect())
    await session.set_value(VALUE, {"b": 1, "a": "\x85"})
    told += [await session.append(LIST, "x"), await session.append(LIST, "y")]
    told.append(await refused(lane.accept(Prompt("other"), operation_id="op-1")))
    told.append(await refused(session.lane("side", agent, at="ghost")))
    side = await session.lane("side", agent, at=told[0].answer)
    told.append(await side.append_custom("note", {"z": 1, "y": [2]}))
    told.append(await lane.accept(Prompt("third"), operation_id="op-3"))
    told.append(await refused(lane.accept(Prompt("busy"))))
    told.append(await session.record_usage(Usage(cost_nanos=-5), note="n"))
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent)
    told.append(session.open_operations())
    told.append(await lane.resume())
    told.append(await session.entries())
    told.append(await session.usage())
    told.append(session.stats())
    told.append([session.branches(), session.lanes(), session.findings])
    told.append([await lane.entries(), await session.branch("side").entries(limit=3)])
    told.append([await session.value(VALUE), await session.elements(LIST, reverse=True)])
    told.append([await lane.result(f"op-{n}") for n in (1, 2, 3)])
    told.append([msgspec.json.encode(request.messages[:]) for request in agent.model.requests])  # type: ignore[attr-defined]
    agent.model.require_no_violations()  # type: ignore[attr-defined]
    return told


async def test_one_life_on_every_backend_is_told_the_same(tmp_path: Path) -> None:
    lives: list[list[Any]] = []
    for kind in KINDS:
        place = Place(kind, tmp_path)
        lives.append(await play(place))
        await place.end()

    memory, *others = lives
    for kind, life in zip(KINDS[1:], others, strict=True):
        for left, right in zip(memory, life, strict=True):
            assert left == right, kind
        assert msgspec.json.encode(life[-7]) == msgspec.json.encode(memory[-7])
    statuses = [each.status for each in memory[-2]]
    assert statuses == ["completed", "completed", "failed"]
