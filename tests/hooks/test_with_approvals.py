"""Claim: hooks come before people, who are asked about the arguments that the hooks left."""

from __future__ import annotations

import asyncio
from typing import Any

from agentlane import AfterTool, Agent, Block, Prompt, Settled, ToolResult, Waiting, agent_tool, hook
from agentlane.data import codec
from agentlane.testing import ScriptedModel, call
from tests.hooks.asked import Asked, Hands, Stuck, agent_with, arguments_kept, results
from tests.session.places import Place


async def test_a_person_is_asked_about_the_arguments_that_the_hooks_left(place: Place) -> None:
    """Also after a restart; the hooks are not asked again once the question stands."""
    hands = Hands()
    change = Asked(lambda info: Block("no") if info.arguments["x"] == 2 else {"x": 10})
    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    agent = agent_with(model, hook("before_tool", change), tools=[hands.tool("do", approval=True)])
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    waiting = await lane.drive("op")
    assert isinstance(waiting, Waiting)
    (approval,) = session.approvals()

    assert approval.arguments == {"x": 10}
    (kept,) = (await arguments_kept(session)).values()
    assert codec.JSON.decode(kept, "kept") == {"x": 10}
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.decide(approval.approval_id, allow=True)
    outcome = await lane.drive("op")

    assert isinstance(outcome, Settled) and outcome.result.status == "completed"
    assert await results(lane) == ["do:10 done", "! no"]
    assert hands.starts == ["do:10"] and len(change.seen) == 2
    assert await arguments_kept(session) == {}


async def test_a_predicate_is_asked_about_the_arguments_that_the_hooks_left(place: Place) -> None:
    hands, seen = Hands(), list[Any]()

    def needed(arguments: dict[str, Any], info: Any) -> bool:
        seen.append(dict(arguments))
        return False

    model = ScriptedModel([[call("do", x=1)], "done"])
    tools = [hands.tool("do", approval=needed)]
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("before_tool", Asked(lambda info: {"x": 10})), tools=tools)
    )

    assert (await lane.run("go")).status == "completed"
    assert seen == [{"x": 10}] and hands.starts == ["do:10"]


async def test_a_wait_for_people_is_told_only_when_the_hooks_have_spoken(place: Place) -> None:
    hands, stuck = Hands(), Stuck(value=ToolResult(content="masked"))

    async def each(info: AfterTool[Any]) -> Any:
        return await stuck(info)

    model = ScriptedModel([[call("ask", x=1), call("do", x=2)], "done"])
    tools = [hands.tool("ask", approval=True), hands.tool("do")]
    lane = await (await place.open()).lane("main", agent_with(model, hook("after_tool", each), tools=tools))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    await stuck.entered.wait()
    for _ in range(20):
        await asyncio.sleep(0)

    assert not driving.done()
    stuck.go_on.set()
    assert isinstance(await driving, Waiting)


async def test_an_agent_that_is_a_tool_is_asked_what_the_hooks_left_of_the_call(place: Place) -> None:
    child = Agent("child", model=ScriptedModel(["fine"]))
    change = Asked(lambda info: {**info.arguments, "prompt": "something else"})
    parent = agent_with(
        ScriptedModel([[call("child", prompt="this")], "done"]),
        hook("before_tool", change),
        tools=[agent_tool(child, description="asks")],
    )
    session = await place.open()
    lane = await session.lane("main", parent)

    assert (await lane.run("go")).status == "completed"

    assert await results(lane) == ["fine"]
    (request,) = child.model.requests  # type: ignore[attr-defined]
    assert request.messages[0].content[0].text == "something else"
