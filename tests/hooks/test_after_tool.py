"""Claim: a call's outcome is durable before its after_tool hooks see it, and what they make of it is placed once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    AfterTool,
    Agent,
    ApprovalReason,
    Block,
    ExternalReason,
    PendingResult,
    Prompt,
    SessionClosed,
    Settled,
    Tool,
    ToolContext,
    ToolResult,
    ToolResultMessage,
    Waiting,
    hook,
)
from agentlane.data import addresses
from agentlane.ids import call_id
from agentlane.testing import FaultPlan, ScriptedModel, call
from agentlane.testing.matrix.lives import bury
from tests.hooks.asked import GRACE_MS, Asked, Hands, Stuck, agent_with, pass_grace, results
from tests.hooks.test_before_tool import raising
from tests.races.stage import turns
from tests.session.places import Place


async def test_hooks_see_the_durable_outcome_in_their_order_and_the_last_word_is_placed(place: Place) -> None:
    hands, plan = Hands(), FaultPlan()
    pending: list[dict[str, bytes]] = []

    async def first(info: AfterTool[Any]) -> ToolResult | None:
        pending.append(await session._runtime.storage.values(addresses.PENDING_ENTRY))
        if info.result.text == "do:10 done":
            return ToolResult(content="masked", details={"was": "long"}, terminate=True)
        return None

    second = Asked(lambda info: replace_text(info, "twice") if info.result.text == "masked" else None)
    change = Asked(lambda info: {"x": 10} if info.arguments["x"] == 1 else None)
    hooks = [hook("before_tool", change), hook("after_tool", first), hook("after_tool", second)]
    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    session = await place.open(probe=plan)
    lane = await session.lane("main", agent_with(model, *hooks, tools=[hands.tool("do")], deps="mine"))

    assert (await lane.run("go", operation_id="op")).status == "completed"

    assert await results(lane) == ["masked twice", "do:2 done"]
    answer, placed = (await lane.entries(newest_first=False))[1:3]
    assert isinstance(placed.body, ToolResultMessage) and placed.body.details == {"was": "long"}
    assert all(call_id(answer.id, index) in each for index, each in enumerate(pending))
    told = second.seen[0]
    assert isinstance(told, AfterTool)
    assert (told.call_id, told.name, told.arguments, told.terminate) == (call_id(answer.id, 0), "do", {"x": 10}, True)
    assert (told.operation_id, told.turn, told.recovered, told.deps) == ("op", 1, False, "mine")
    assert await session._runtime.storage.values(addresses.PENDING_ENTRY) == {}
    # The model is shown what was placed, and nothing of what it replaced.
    assert [each.text for each in model.requests[1].messages[2:]] == ["masked twice", "do:2 done"]


def replace_text(info: AfterTool[Any], more: str) -> ToolResult:
    result = info.result
    return ToolResult(content=f"{result.text} {more}", details=result.details, terminate=info.terminate)


async def test_results_keep_the_order_of_the_calls_whichever_hook_speaks_first(place: Place) -> None:
    stuck = Stuck(value=ToolResult(content="slow"))
    quick = Asked(lambda info: ToolResult(content="quick"))

    async def each(info: AfterTool[Any]) -> Any:
        return await (stuck if info.arguments == {"x": 1} else quick)(info)

    hands = Hands()
    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("after_tool", each), tools=[hands.tool("do")])
    )
    running = asyncio.ensure_future(lane.run("go"))
    await stuck.entered.wait()
    while not quick.seen:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)

    assert await results(lane) == []
    stuck.go_on.set()
    await running
    assert await results(lane) == ["slow", "quick"]


@pytest.mark.parametrize("wish", [True, False])
async def test_the_wish_to_end_the_run_is_the_hooks(place: Place, wish: bool) -> None:
    async def ends(arguments: dict[str, Any], ctx: Any) -> ToolResult:
        return ToolResult(content="end", terminate=not wish)

    change = Asked(lambda info: ToolResult(content="so", terminate=wish))
    model = ScriptedModel([[call("end")], "asked again"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("after_tool", change), tools=[Tool("end", ends)])
    )

    await lane.run("go")

    assert change.seen[0].terminate is not wish
    assert len(model.requests) == (1 if wish else 2)


async def test_results_that_no_tool_gave_are_shown_too(place: Place) -> None:
    seen = Asked(lambda info: None)
    block = Asked(lambda info: Block("no") if info.arguments["x"] == 1 else None)
    model = ScriptedModel([[call("do", x=1), call("gone", x=2)], "done"])
    agent = agent_with(model, hook("before_tool", block), hook("after_tool", seen), tools=[Hands().tool("do")])
    lane = await (await place.open()).lane("main", agent)

    await lane.run("go")

    assert [each.result.is_error for each in seen.seen] == [True, True]
    assert {each.name: each.result.text.split(".")[0] for each in seen.seen} == {
        "do": "no",
        "gone": "The tool 'gone' is not available here",
    }
    assert len(await results(lane)) == 2


FAILURES = [
    (raising(LookupError("who?")), "failed: LookupError: who?"),
    (raising(SystemExit(3)), "failed: SystemExit: 3"),
    (raising(asyncio.CancelledError()), "cancelled itself"),
    (lambda info: "text", "returned something that cannot be used: a ToolResult or None is needed here, not str"),
    (lambda info: ToolResult(content=object()), "result.content: text or parts are needed here, not object"),  # type: ignore[arg-type]
    (lambda info: ToolResult(content="x", details={1: 2}), "result.details: key 1 is not text"),
]


@pytest.mark.parametrize(("answer", "text"), FAILURES, ids=[text[:24] for _, text in FAILURES])
async def test_a_failure_is_reported_and_the_outcome_is_placed_as_it_was(place: Place, answer: Any, text: str) -> None:
    fails, after = Asked(answer), Asked(lambda info: replace_text(info, "and seen"))
    model = ScriptedModel([[call("do", x=1)], "done"])
    session = await place.open()
    hooks = [hook("after_tool", fails), hook("after_tool", after)]
    lane = await session.lane("main", agent_with(model, *hooks, tools=[Hands().tool("do")]))

    assert (await lane.run("go", operation_id="op")).status == "completed"

    assert await results(lane) == ["do:1 done and seen"]
    (finding,) = session.findings
    assert finding.startswith("operation op: hook 'Asked' at after_tool ") and text in finding


async def test_a_result_of_a_hook_is_cut_like_a_tools(place: Place) -> None:
    change = Asked(lambda info: ToolResult(content="é" * 100))
    model = ScriptedModel([[call("do", x=1)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("after_tool", change), tools=[Hands().tool("do", max_result_bytes=51)])
    )

    await lane.run("go")

    (text,) = await results(lane)
    assert text.startswith("é" * 25) and len(text) < 80


async def test_a_hook_that_spoils_what_it_is_shown_spoils_nothing(place: Place) -> None:
    def spoil(info: AfterTool[Any]) -> None:
        info.result.details["n"] = 2
        info.arguments["x"] = "spoiled"  # type: ignore[index]

    async def details(arguments: dict[str, Any], ctx: Any) -> ToolResult:
        return ToolResult(content="fine", details={"n": 1})

    model = ScriptedModel([[call("do", x=1)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("after_tool", spoil), tools=[Tool("do", details)])
    )

    await lane.run("go")

    assert (await lane.messages())[2].details == {"n": 1}  # type: ignore[union-attr]
    assert (await lane.messages())[1].calls[0].arguments == {"x": 1}  # type: ignore[union-attr]


# Ends.


@pytest.mark.parametrize("end", ["kill", "close"])
async def test_a_hook_that_was_stopped_is_asked_again_about_the_outcome_and_the_tool_is_not_run(
    place: Place, end: str
) -> None:
    hands, stuck = Hands(), Stuck(value=ToolResult(content="not used"))
    model = ScriptedModel([[call("do", x=1)], "done"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("after_tool", stuck), tools=[hands.tool("do")]))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    if end == "kill":
        await bury(session, running)
    else:
        await session.close()
        with pytest.raises(SessionClosed):
            await running

    again = Asked(lambda info: replace_text(info, "and seen"))
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("after_tool", again), tools=[hands.tool("do")])
    )
    await lane.drive("op")

    assert hands.starts == ["do:1"]
    assert [(each.result.text, each.recovered) for each in again.seen] == [("do:1 done", True)]
    assert await results(lane) == ["do:1 done and seen"]


async def test_without_the_hook_the_outcome_is_placed_as_it_was_staged(place: Place) -> None:
    """A deploy that takes the hook away while an outcome waits for it."""
    hands, stuck = Hands(), Stuck()
    model = ScriptedModel([[call("do", x=1)], "done"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("after_tool", stuck), tools=[hands.tool("do")]))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await bury(session, running)

    lane = await (await place.open()).lane("main", agent_with(model, tools=[hands.tool("do")]))
    await lane.drive("op")

    assert await results(lane) == ["do:1 done"] and hands.starts == ["do:1"]


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends", "left behind"])
async def test_an_abort_places_the_outcome_as_it_was(place: Place, stubborn: bool) -> None:
    hands, stuck = Hands(), Stuck(stubborn=stubborn, value=ToolResult(content="late"))
    model = ScriptedModel([[call("do", x=1)], "done"])
    session = await place.open()
    lane = await session.lane(
        "main", agent_with(model, hook("after_tool", stuck), tools=[hands.tool("do")], cancel_grace_ms=GRACE_MS)
    )
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await lane.request_abort("op")
    if stubborn:
        await pass_grace(place.clock, stuck)

    assert (await running).status == "aborted"
    assert await results(lane) == ["do:1 done"] and stuck.told == 1
    assert bool(session.findings) == stubborn
    stuck.go_on.set()


async def test_an_abort_uses_nothing_that_hooks_have_said(place: Place) -> None:
    """The hook of the second call has spoken; its word waited for the first call's place."""
    stuck, quick = Stuck(), Asked(lambda info: ToolResult(content="quick"))

    async def each(info: AfterTool[Any]) -> Any:
        return await (stuck if info.arguments == {"x": 1} else quick)(info)

    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("after_tool", each), tools=[Hands().tool("do")])
    )
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    while not quick.seen:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)

    await lane.request_abort("op")

    assert (await running).status == "aborted"
    assert await results(lane) == ["do:1 done", "do:2 done"]


async def test_a_call_is_staged_and_placed_in_commits_of_their_own_only_with_a_hook(place: Place) -> None:
    model = ScriptedModel(turns=[[[call("do", x=1)], "done"]] * 2)
    plan = FaultPlan()
    session = await place.open(probe=plan)
    tools = [Hands().tool("do")]
    lane = await session.lane("main", agent_with(model, tools=tools))
    await lane.accept(Prompt("go"))
    before = len(plan.trace)
    await lane.drive()
    without = [name for name in plan.trace[before:] if name.endswith(".after")]

    lane = await session.lane("main", agent_with(model, hook("after_tool", Asked(lambda info: None)), tools=tools))
    await lane.accept(Prompt("go"))
    before = len(plan.trace)
    await lane.drive()
    with_hook = [name for name in plan.trace[before:] if name.endswith(".after")]

    assert "commit.outcome_placed+intent.after" in without and "commit.outcome_staged.after" not in without
    assert len(with_hook) == len(without) + 1
    assert "commit.outcome_staged.after" in with_hook


# A hook that fails the run.


async def test_a_failure_that_blocks_fails_the_run_once_every_call_has_its_result(place: Place) -> None:
    hands, stuck = Hands(), Stuck()

    async def each(info: AfterTool[Any]) -> Any:
        if info.arguments == {"x": 1}:
            raise LookupError("who?")
        return await stuck(info)

    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "not asked for"])
    session = await place.open()
    hooks = [hook("after_tool", each, on_error="block")]
    lane = await session.lane("main", agent_with(model, *hooks, tools=[hands.tool("do")]))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert await results(lane) == []  # a crash before the end asks the hook again, so that it fails again
    stuck.go_on.set()

    result = await running

    assert (result.status, result.code) == ("failed", "hook_failed")
    assert result.error is not None and result.error.message.endswith("at after_tool failed: LookupError: who?")
    assert await results(lane) == ["do:1 done", "do:2 done"]
    assert len(model.requests) == 1 and session.findings == ()


async def test_a_failure_that_blocks_stands_in_the_way_of_the_end_too(place: Place) -> None:
    async def end(arguments: dict[str, Any], ctx: Any) -> ToolResult:
        return ToolResult(content="end", terminate=True)

    fails = hook("after_tool", Asked(raising(LookupError("who?"))), on_error="block")
    model = ScriptedModel([[call("end")]])
    lane = await (await place.open()).lane("main", agent_with(model, fails, tools=[Tool("end", end)]))

    result = await lane.run("go")

    assert (result.status, result.code) == ("failed", "hook_failed")
    assert await results(lane) == ["end"]


@pytest.mark.parametrize("by", ["deliver", "decide"])
async def test_who_delivers_may_have_no_hooks_and_those_of_who_drives_are_asked(place: Place, by: str) -> None:
    """A webhook opens the lane with an agent of its own while another handle drives."""

    async def later(arguments: dict[str, Any], ctx: ToolContext[Any]) -> PendingResult:
        return PendingResult()

    def agent(*hooks: Any) -> Agent[Any, Any]:
        tools = [Tool("later", later), Tool("ask", later, approval=True)]
        script = [[call("later" if by == "deliver" else "ask")], "done"]
        return Agent("a", model=ScriptedModel(script), tools=tools, hooks=hooks)

    session = await place.open()
    lane = await session.lane("main", agent(hook("after_tool", lambda info: ToolResult(content="hidden"))))
    await lane.accept(Prompt("go"))
    waiting = await lane.drive()
    assert isinstance(waiting, Waiting)
    driving = asyncio.ensure_future(lane.drive(wait_for_answers=True))
    await turns()
    other = await session.lane("main", agent())
    reason = waiting.reasons[0]
    if isinstance(reason, ExternalReason):
        await other.deliver(reason.call_id, "secret")
    else:
        assert isinstance(reason, ApprovalReason)
        await other.decide(reason.approval_id, allow=False, reason="secret")

    assert isinstance(await driving, Settled)
    assert await results(lane) == ["hidden"]
