"""Claim: a call starts as its before_tool hooks left it, or not at all; they are asked once for each first start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import BeforeTool, Block, Prompt, SessionClosed, WouldDeadlock, hook
from agentlane.data import codec
from agentlane.data.approvals import arguments_digest
from agentlane.ids import call_id
from agentlane.testing import FaultPlan, GatedStore, ScriptedModel, call, raw_call
from agentlane.testing.matrix.lives import bury
from tests.hooks.asked import GRACE_MS, Asked, Hands, Stuck, agent_with, arguments_kept, pass_grace, results
from tests.session.places import Place


def add(**more: Any) -> Any:
    return lambda info: {**info.arguments, **more}


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
async def test_hooks_change_arguments_in_their_order_and_the_tool_is_started_with_them(
    place: Place, plain: bool
) -> None:
    hands = Hands()
    first = Asked(lambda info: {"x": 10} if info.arguments == {"x": 1} else None, plain=plain)
    second = Asked(lambda info: {"x": info.arguments["x"] + 1} if info.arguments["x"] >= 10 else None, plain=plain)
    hooks = [hook("before_tool", first), hook("before_tool", second)]
    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, *hooks, tools=[hands.tool("do")], deps="mine"))

    result = await lane.run("go", operation_id="op")

    assert result.status == "completed"
    assert sorted(hands.starts) == ["do:11", "do:2"]
    assert await results(lane) == ["do:11 done", "do:2 done"]
    assert [each.arguments for each in first.seen] == [{"x": 1}, {"x": 2}]
    assert sorted(each.arguments["x"] for each in second.seen) == [2, 10]
    answer = (await lane.entries(newest_first=False))[1].id
    told = first.seen[0]
    assert isinstance(told, BeforeTool)
    assert (told.session_id, told.lane, told.operation_id, told.turn) == ("s", "main", "op", 1)
    assert (told.call_id, told.name, told.recovered, told.deps) == (call_id(answer, 0), "do", False, "mine")
    assert await arguments_kept(session) == {}
    # What the model asked for stays what it is.
    assert [each.arguments for each in model.requests[1].messages[1].calls] == [{"x": 1}, {"x": 2}]  # type: ignore[union-attr]


async def test_changed_arguments_are_durable_with_the_intent_and_kept_only_where_they_differ(place: Place) -> None:
    hands = Hands()
    same = {"x": 2, "hang": True}
    change = Asked(lambda info: {"x": 10, "hang": True} if info.arguments["x"] == 1 else dict(reversed(same.items())))
    model = ScriptedModel([[call("do", x=1, hang=True), call("do", x=2, hang=True)], "done"])
    agent = agent_with(model, hook("before_tool", change), tools=[hands.tool("do", "safe")])
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    while len(hands.starts) < 2:
        await asyncio.sleep(0)
    answer = (await lane.entries(newest_first=False))[1].id

    kept = await arguments_kept(session)

    assert {key: codec.JSON.decode(each, key) for key, each in kept.items()} == {
        f"op|{call_id(answer, 0)}": {"x": 10, "hang": True}
    }
    hands.go_on.set()
    await driving
    assert await arguments_kept(session) == {}


async def test_a_replay_runs_with_the_kept_arguments_under_the_same_key_and_no_hook_is_asked(place: Place) -> None:
    hands = Hands()
    change = Asked(add(x=10))
    model = ScriptedModel([[call("do", x=1, hang=True)], "done"])
    agent = agent_with(model, hook("before_tool", change), tools=[hands.tool("do", "safe")])
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    while not hands.starts:
        await asyncio.sleep(0)
    await bury(session, driving)

    hands.go_on.set()
    lane = await (await place.open()).lane("main", agent)
    outcome = await lane.drive("op")

    assert await results(lane) == ["do:10 done"]
    assert hands.starts == ["do:10", "do:10"]
    assert len(change.seen) == 1
    assert outcome.result.status == "completed"  # type: ignore[union-attr]
    digest = arguments_digest({"x": 1, "hang": True})
    assert hands.keys == [f"s/op/do#{digest}/0"] * 2  # of the arguments that the model gave


async def test_a_block_is_the_calls_error_result_and_the_others_go_on(place: Place) -> None:
    hands = Hands()
    block = Asked(lambda info: Block("not on a Sunday") if info.arguments["x"] == 1 else None)
    never = Asked(lambda info: None)
    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    hooks = [hook("before_tool", block), hook("before_tool", never)]
    lane = await (await place.open()).lane("main", agent_with(model, *hooks, tools=[hands.tool("do")]))

    assert (await lane.run("go")).status == "completed"

    assert await results(lane) == ["! not on a Sunday", "do:2 done"]
    assert hands.starts == ["do:2"]
    assert [each.arguments["x"] for each in never.seen] == [2]  # a blocked call is asked about no further


class Odd(BaseException):
    """No Exception."""


def raising(error: BaseException) -> Any:
    def answer(info: Any) -> Any:
        raise error

    return answer


FAILURES = [
    (raising(LookupError("who?")), "failed: LookupError: who?"),
    (raising(SystemExit(3)), "failed: SystemExit: 3"),
    (raising(Odd("odd")), "failed: Odd: odd"),
    (raising(asyncio.CancelledError()), "cancelled itself"),
    (
        lambda info: 7,
        "returned something that cannot be used: an arguments object, a Block or None is needed here, not int",
    ),
    (lambda info: {"x": float("nan")}, "arguments.x: nan is not a JSON number"),
    (lambda info: Block(3), "text is needed here, not int"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
@pytest.mark.parametrize(("answer", "text"), FAILURES, ids=[text[:24] for _, text in FAILURES])
async def test_any_failure_is_the_calls_error_result(place: Place, answer: Any, text: str, plain: bool) -> None:
    hands = Hands()
    fails = Asked(lambda info: answer(info) if info.arguments["x"] == 1 else None, plain=plain)
    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("before_tool", fails), tools=[hands.tool("do")]))

    assert (await lane.run("go")).status == "completed"

    first, second = await results(lane)
    assert first.startswith("! hook 'Asked' at before_tool ") and text in first
    assert second == "do:2 done"
    assert hands.starts == ["do:2"]
    assert session.findings == ()


async def test_a_failure_that_is_passed_over_is_reported_and_the_call_starts(place: Place) -> None:
    hands = Hands()
    fails, change = Asked(raising(LookupError("who?"))), Asked(add(x=5))
    hooks = [hook("before_tool", fails, on_error="continue"), hook("before_tool", change)]
    session = await place.open()
    model = ScriptedModel([[call("do", x=1)], "done"])
    lane = await session.lane("main", agent_with(model, *hooks, tools=[hands.tool("do")]))

    await lane.run("go", operation_id="op")

    assert hands.starts == ["do:5"]
    assert session.findings == (
        "operation op: hook 'Asked' at before_tool failed: LookupError: who?; the hook was passed over",
    )


async def test_changed_arguments_are_checked_like_the_models(place: Place) -> None:
    hands = Hands()

    def positive(arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["x"] < 0:
            raise ValueError("x is negative")
        return arguments

    change = Asked(add(x=-1))
    model = ScriptedModel([[call("do", x=1), raw_call("do", "{"), call("do", x=-5)], "done"])
    agent = agent_with(model, hook("before_tool", change), tools=[hands.tool("do", validate=positive)])
    lane = await (await place.open()).lane("main", agent)

    await lane.run("go")

    assert (await results(lane))[0] == (
        "! The arguments of this call were changed before it started. "
        "The arguments of 'do' are not valid: x is negative"
    )
    assert hands.starts == []
    assert len(change.seen) == 1  # the other calls were refused before any hook


async def test_a_groups_hooks_are_asked_together_and_its_calls_start_in_one_commit(place: Place) -> None:
    hands, plan = Hands(), FaultPlan()
    stuck = [Stuck(), Stuck()]
    ask = Asked(lambda info: None)

    async def each(info: BeforeTool[Any]) -> Any:
        return await (stuck[info.arguments["x"]](info) if info.arguments["x"] < 2 else ask(info))

    model = ScriptedModel([[call("do", x=0), call("do", x=1), call("alone", x=2), call("do", x=3)], "done"])
    tools = [hands.tool("do"), hands.tool("alone", parallel=False)]
    lane = await (await place.open(probe=plan)).lane("main", agent_with(model, hook("before_tool", each), tools=tools))
    running = asyncio.ensure_future(lane.run("go"))
    await stuck[0].entered.wait()
    await stuck[1].entered.wait()

    stuck[1].go_on.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert hands.starts == [] and ask.seen == []  # one of the group is silent, and the barrier is not passed
    stuck[0].go_on.set()
    await running

    assert sorted(hands.starts[:2]) == ["do:0", "do:1"] and hands.starts[2:] == ["alone:2", "do:3"]
    assert [each.arguments["x"] for each in ask.seen] == [2, 3]
    intents = [name for name in plan.trace if "tool_intents" in name and name.endswith(".after")]
    assert len(intents) == 3


# Ends.


async def test_an_abort_cancels_a_hook_once_and_starts_nothing(place: Place) -> None:
    hands, stuck = Hands(), Stuck(value={"x": 9})
    model = ScriptedModel([[call("do", x=1), call("do", x=2)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("before_tool", stuck), tools=[hands.tool("do")])
    )
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()

    await lane.request_abort("op")
    result = await running

    assert result.status == "aborted"
    assert hands.starts == [] and stuck.told == 2  # one for each call
    assert all("aborted before this call started" in text for text in await results(lane))


async def test_what_a_hook_says_after_an_abort_is_not_used(place: Place) -> None:
    hands, stuck = Hands(), Stuck(stubborn=True)
    model = ScriptedModel([[call("do", x=1)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("before_tool", stuck), tools=[hands.tool("do")])
    )
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await lane.request_abort("op")
    while not stuck.told:
        await asyncio.sleep(0)

    assert not running.done()
    stuck.go_on.set()

    assert (await running).status == "aborted"
    assert hands.starts == []


async def test_a_hook_that_does_not_end_is_left_behind_by_name(place: Place) -> None:
    stuck = Stuck(stubborn=True)
    model = ScriptedModel([[call("do", x=1)], "done"])
    session = await place.open()
    lane = await session.lane(
        "main", agent_with(model, hook("before_tool", stuck), tools=[Hands().tool("do")], cancel_grace_ms=GRACE_MS)
    )
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await lane.request_abort("op")
    await pass_grace(place.clock, stuck)

    assert (await running).status == "aborted"
    assert session.findings == ("hook 'Stuck' at before_tool did not end within 70 ms and was left behind",)
    stuck.go_on.set()


async def test_a_close_cancels_a_hook_and_the_next_drive_asks_it_again(place: Place) -> None:
    hands, stuck, plan = Hands(), Stuck(), FaultPlan()
    model = ScriptedModel([[call("do", x=1)], "done"])
    tools = [hands.tool("do")]
    session = await place.open(probe=plan)
    lane = await session.lane("main", agent_with(model, hook("before_tool", stuck), tools=tools))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    written = plan.trace.count("commit.settlement.after")

    await session.close()
    with pytest.raises(SessionClosed):
        await running

    assert written == 1 and plan.trace[-1] != "commit.close.after"  # nothing of it is durable
    ask = Asked(add(x=3))
    lane = await (await place.open()).lane("main", agent_with(model, hook("before_tool", ask), tools=tools))
    await lane.drive("op")
    assert hands.starts == ["do:3"]
    assert [each.recovered for each in ask.seen] == [True]


async def test_a_call_whose_effect_never_began_is_asked_about_again_with_the_models_arguments(place: Place) -> None:
    """The close that comes with the intent puts the call back to planned, and what the hook said goes with it."""
    hands = Hands()
    place.store = gated = GatedStore(place.store)
    gated.gate.open()

    def change_and_hold(info: BeforeTool[Any]) -> dict[str, Any]:
        gated.gate.shut()
        return {"x": info.arguments["x"] + 10}

    change = Asked(change_and_hold)
    model = ScriptedModel([[call("do", x=1)], "done"])
    session = await place.open()
    agent = agent_with(model, hook("before_tool", change), tools=[hands.tool("do")])
    lane = await session.lane("main", agent)
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await gated.gate.arrived()
    assert gated.gate.held == ("tool_intents",)
    closing = asyncio.ensure_future(session.close())
    while not lane._core.running.winding_down:  # type: ignore[union-attr]
        await asyncio.sleep(0)
    gated.gate.open()
    with pytest.raises(SessionClosed):
        await running
    await closing

    gated.gate.open()
    session = await place.open()
    assert hands.starts == []
    assert await arguments_kept(session) == {}
    lane = await session.lane("main", agent)
    driving = asyncio.ensure_future(lane.drive("op"))
    await gated.gate.arrived()
    gated.gate.open()
    await driving
    assert [each.arguments for each in change.seen] == [{"x": 1}, {"x": 1}]
    assert hands.starts == ["do:11"] and await results(lane) == ["do:11 done"]


async def test_a_hook_does_not_wait_for_its_own_lane(place: Place) -> None:
    caught: list[BaseException] = []

    async def drive(info: BeforeTool[Any]) -> None:
        try:
            await lane.drive(info.operation_id)
        except WouldDeadlock as error:
            caught.append(error)

    hands = Hands()
    model = ScriptedModel([[call("do", x=1)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("before_tool", drive), tools=[hands.tool("do")])
    )

    assert (await lane.run("go")).status == "completed"
    assert len(caught) == 1 and hands.starts == ["do:1"]
