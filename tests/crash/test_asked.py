"""Claim: what somebody asks of the matrix with an agent of their own is done, or the report says what was not."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from agentlane import Agent, InvalidDefinition, Navigate, Prompt, agent_tool, hook, tool
from agentlane.testing import CrashMatrixError, Depth, History, Life, Scenario, ScriptedModel, call, crash_matrix, fail

FEW = Depth(every=7, again=0)


def sender(life: Life[list[str]]) -> Agent:
    @tool(replay="safe")
    async def send(to: str) -> str:
        life.world.append(to)
        return "sent"

    return Agent(model=ScriptedModel([[call("send", to="Ada")], "Done."]), tools=[send])


async def complaints(scenario: Scenario[Any], **options: Any) -> str:
    with pytest.raises(CrashMatrixError) as caught:
        await crash_matrix(scenario, stores=["memory"], **options)
    return "\n".join(line for failure in caught.value.report.failures for line in failure.complaints)


async def test_an_async_check_is_awaited() -> None:
    seen: list[int] = []

    async def check(history: History[list[str]]) -> None:
        seen.append(len(history.world))
        raise AssertionError("not so")

    said = await complaints(Scenario("s", agent=sender, world=list, check=check), depth=FEW)
    assert "AssertionError: not so" in said and seen


async def test_a_check_that_gives_false_has_failed() -> None:
    said = await complaints(Scenario("s", agent=sender, world=list, check=lambda history: False), depth=FEW)
    assert "check gave False" in said


@pytest.mark.parametrize(
    "only",
    ["kill@effect.tool.strt#1", "kill@effect.tool.start#9", "kill@effect.tool.start#1 / kill@effect.tool.start#2"],
)
async def test_a_stop_that_was_named_and_did_not_come_about_is_a_failure(only: str) -> None:
    said = await complaints(Scenario("s", agent=sender, world=list), only=only)
    assert f"{only.split(' / ')[-1]} did not come about" in said


async def test_a_world_that_histories_would_share_is_refused() -> None:
    shared: list[str] = []
    with pytest.raises(InvalidDefinition, match=r"world\(\) gave the same list twice"):
        await crash_matrix(Scenario("s", agent=sender, world=lambda: shared), stores=["memory"], depth=FEW)


async def test_an_act_may_drive_its_lane_as_a_program_does() -> None:
    """From the second restart of a turn on, an operation waits; such a wait passes at once."""

    async def act(life: Life[list[str]]) -> None:
        lane = await life.lane()
        await lane.accept(Prompt("go"), operation_id="op")
        await lane.drive("op")

    scenario = Scenario("s", agent=sender, act=act, world=list)
    stops = "kill@commit.intent.after#1 / kill@effect.model.start#1"
    assert (await crash_matrix(scenario, stores=["memory"], only=stops)).passed


@pytest.mark.parametrize("steady", [True, False])
async def test_a_tool_that_says_something_else_each_time_is_not_steady(steady: bool) -> None:
    numbers = count()

    def agent(life: Life[Any]) -> Agent:
        @tool(replay="safe")
        async def tick() -> str:
            return str(next(numbers))

        return Agent(model=ScriptedModel([[call("tick")], "Done."]), tools=[tick])

    scenario = Scenario("s", agent=agent, steady=steady)
    if not steady:
        assert (await crash_matrix(scenario, stores=["memory"], depth=Depth(every=2, again=9))).passed
        return
    with pytest.raises(CrashMatrixError) as caught:
        await crash_matrix(scenario, stores=["memory"], failures_max=1)
    assert "steady=False" in caught.value.report.failures[0].complaints[0]


async def test_hooks_of_an_agent_that_is_a_tool_count() -> None:
    """Only the child stages raw outcomes for its hook; what is found then is no breach of order."""

    @tool(replay="safe")
    async def look(x: int) -> str:
        return f"{x}"

    async def seen(info: object) -> None:
        return None

    def agent(life: Life[Any]) -> Agent[Any, Any]:
        calls = [call("look", x=1), call("look", x=2)]
        kid = Agent("kid", model=ScriptedModel([calls, "end"]), tools=[look], hooks=[hook("after_tool", seen)])
        script = ScriptedModel([[call("kid", prompt="p")], "end"])
        return Agent("a", model=script, tools=[agent_tool(kid, name="kid", description="d")])

    assert (await crash_matrix(Scenario("hooked child", agent=agent), stores=["memory"], depth=Depth(again=0))).passed


@pytest.mark.parametrize("submits", [False, True], ids=["nothing is left", "it stays"])
async def test_a_navigation_is_without_a_summary_where_it_need_not_have_one(submits: bool) -> None:
    """Where an application's entry alone is left nothing is asked; a lane that stays goes on with what was said."""

    async def act(life: Life[None]) -> None:
        lane = await life.lane()
        await lane.accept(Prompt("go"), operation_id="op-1")
        await lane.drive("op-1")
        first = await lane.entries(newest_first=False)
        if not submits and life.number == 1:
            await lane.append_custom("note", {})
        await lane.accept(Navigate(first[0 if submits else 1].id, summarize=True), operation_id="op-2")
        if submits:
            await lane.submit("on", request_id="r")
        await lane.drive("op-2")
        await lane.resume()

    model = ["one", "two"]
    scenario = Scenario(
        "s", agent=lambda life: Agent(model=ScriptedModel(model, summaries=[fail("invalid_request")])), act=act
    )
    assert (await crash_matrix(scenario, stores=["memory"], only="")).passed
