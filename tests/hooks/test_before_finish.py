"""Claim: a run goes on with what its before_finish hooks have to say, within a bound, and says it once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import BeforeFinish, ImagePart, Prompt, SessionClosed, TextPart, Tool, ToolResult, UserMessage, hook
from agentlane.data.messages import user
from agentlane.testing import FaultPlan, ScriptedModel, call, fail
from agentlane.testing.matrix.lives import bury
from tests.hooks.asked import GRACE_MS, Asked, Hands, Stuck, agent_with, pass_grace
from tests.hooks.test_before_tool import raising
from tests.races.stage import shape
from tests.session.places import Place

IMAGE = UserMessage(content=(ImagePart(data="aGk=", mime_type="image/png"),))


def once(*messages: Any) -> Any:
    return lambda info: None if info.follow_ups else (messages[0] if len(messages) == 1 else list(messages))


async def test_a_follow_up_is_placed_with_the_commit_that_goes_on_and_the_model_answers_it(place: Place) -> None:
    plan = FaultPlan()
    first, second = Asked(once("and now?")), Asked(once(IMAGE, "really?"))
    model = ScriptedModel(turns=[["one"], [], [], ["two"]])
    session = await place.open(probe=plan)
    lane = await session.lane(
        "main", agent_with(model, hook("before_finish", first), hook("before_finish", second), deps="mine")
    )

    result = await lane.run("go", operation_id="op")

    assert (result.status, result.text, result.turns) == ("completed", "two", 2)
    assert [each.content for each in (await lane.messages())[2:5]] == [  # type: ignore[union-attr]
        user("and now?").content,
        IMAGE.content,
        user("really?").content,
    ]
    assert "commit.follow_up+intent.after" in plan.trace
    told = first.seen[0]
    assert isinstance(told, BeforeFinish)
    assert (told.text, told.turn, told.follow_ups, told.deps) == ("one", 1, 0, "mine")
    assert (first.seen[1].text, first.seen[1].turn, first.seen[1].follow_ups) == ("two", 2, 3)
    assert list(model.requests[1].messages[2:]) == [user("and now?"), IMAGE, user("really?")]
    entries = await lane.entries(newest_first=False)
    assert entries[-1].body.answers == tuple(entry.id for entry in entries[2:5])  # type: ignore[union-attr]
    assert len({entry.id for entry in entries}) == len(entries) and result.inputs == (entries[0].id,)


async def test_follow_ups_end_at_their_bound(place: Place) -> None:
    always = Asked(lambda info: "again")
    model = ScriptedModel(turns=[["one"], ["two"], ["three"]])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("before_finish", always), max_follow_ups=2))

    result = await lane.run("go", operation_id="op")

    assert (result.status, result.text) == ("completed", "three")
    assert [each.follow_ups for each in always.seen] == [0, 1, 2]
    assert session.findings == (
        "operation op: hooks have 1 messages to follow, and 0 are left of 2 (at most 16 at once); the others are "
        "dropped",
    )


async def test_the_bound_counts_those_before_a_death(place: Place) -> None:
    stuck = Stuck()

    async def twice(info: BeforeFinish[Any]) -> Any:
        return "again" if info.turn < 3 else await stuck(info)

    model = ScriptedModel(turns=[["one"], ["two"], ["three"]])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("before_finish", twice), max_follow_ups=2))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await bury(session, running)

    always = Asked(lambda info: "again")
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("before_finish", always), max_follow_ups=2))
    result = (await lane.drive("op")).result  # type: ignore[union-attr]

    assert result.text == "three" and len(session.findings) == 1
    assert [(each.follow_ups, each.recovered, each.text) for each in always.seen] == [(2, True, "three")]


async def test_a_batch_that_ends_the_run_is_followed_up_too(place: Place) -> None:
    async def end(arguments: dict[str, Any], ctx: Any) -> ToolResult:
        return ToolResult(content="end", terminate=True)

    model = ScriptedModel(turns=[[[call("end"), call("end")]], ["so"]])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("before_finish", Asked(once("why?"))), tools=[Tool("end", end)])
    )

    assert (await lane.run("go")).text == "so"
    assert shape(await lane.messages())[-2:] == ["user why?", "assistant[stop] so"]
    model.require_no_violations()


async def test_a_run_that_does_not_complete_is_not_followed_up(place: Place) -> None:
    seen = Asked(lambda info: "again")
    model = ScriptedModel([fail("refused")])
    lane = await (await place.open()).lane("main", agent_with(model, hook("before_finish", seen)))

    assert (await lane.run("go")).code == "refused"
    assert seen.seen == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (raising(LookupError("who?")), "failed: LookupError: who?"),
        (raising(asyncio.CancelledError()), "cancelled itself"),
        (lambda info: 3, "a text, a UserMessage, a list of these or None is needed here, not int"),
        (lambda info: ["fine", 3], "or None is needed here, not int"),
        (lambda info: "", "it is empty"),
        (lambda info: UserMessage(content=(3,)), "a TextPart or ImagePart is needed here, not int"),  # type: ignore[arg-type]
    ],
    ids=["raises", "cancels itself", "a number", "a number among others", "empty", "no part"],
)
@pytest.mark.parametrize("blocks", [False, True], ids=["passed over", "blocks"])
async def test_a_failure_completes_the_run_or_fails_it(place: Place, answer: Any, text: str, blocks: bool) -> None:
    fails = hook("before_finish", Asked(answer), on_error="block" if blocks else None)
    session = await place.open()
    lane = await session.lane("main", agent_with(ScriptedModel(["done"]), fails))

    result = await lane.run("go", operation_id="op")

    told = result.error.message if result.error is not None else session.findings[0]
    assert (result.status, result.code) == (("failed", "hook_failed") if blocks else ("completed", None))
    assert "hook 'Asked' at before_finish " in told and text in told
    assert len(session.findings) == (0 if blocks else 1)


async def test_no_more_than_sixteen_are_taken_at_once(place: Place) -> None:
    many = Asked(once(*(f"n{i}" for i in range(17))))
    model = ScriptedModel(turns=[["one"], *[[]] * 15, ["two"]])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("before_finish", many), max_follow_ups=100))

    assert (await lane.run("go")).text == "two"
    texts = [part.text for each in await lane.messages() for part in each.content if isinstance(part, TextPart)]
    assert texts == ["go", "one", *(f"n{i}" for i in range(16)), "two"]
    assert len(session.findings) == 1


@pytest.mark.parametrize("end", ["abort", "close", "kill"])
async def test_a_hook_that_is_stopped(place: Place, end: str) -> None:
    """Under an abort the run ends aborted; else nothing of it is durable, and the next drive asks again."""
    stuck = Stuck()
    model = ScriptedModel(turns=[["one"], ["two"]])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("before_finish", stuck)))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    if end == "abort":
        await lane.request_abort("op")
        assert (await running).status == "aborted"
        return
    if end == "close":
        await session.close()
        with pytest.raises(SessionClosed):
            await running
    else:
        await bury(session, running)

    again = Asked(once("again"))
    lane = await (await place.open()).lane("main", agent_with(model, hook("before_finish", again)))
    outcome = await lane.drive("op")

    assert outcome.result.text == "two"  # type: ignore[union-attr]
    assert [each.recovered for each in again.seen] == [True, True] and len(model.requests) == 2


async def test_an_agent_without_hooks_pays_nothing(place: Place) -> None:
    """Its run makes the commits it always made, in as many turns of the loop as without the word hooks in the code."""
    plan = FaultPlan()
    session = await place.open(probe=plan)
    lane = await session.lane(
        "main", agent_with(ScriptedModel([[call("do", x=1)], "done"]), tools=[Hands().tool("do")])
    )
    await lane.accept(Prompt("go"))
    before = len(plan.trace)

    await lane.drive()

    names = [name for name in plan.trace[before:] if name.endswith(".after") or name.startswith("effect.")]
    assert names == [
        "commit.intent.after",
        "effect.model.start",
        "effect.model.end",
        "commit.settlement+tool_intents.after",
        "effect.tool.start",
        "effect.tool.end",
        "commit.outcome_placed+intent.after",
        "effect.model.start",
        "effect.model.end",
        "commit.settlement+terminal.after",
    ]


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends", "left behind"])
async def test_a_hook_that_input_has_overtaken_is_asked_to_end_and_ends_before_others_and_the_run(
    place: Place, stubborn: bool
) -> None:
    """What it says then is not used; one that will not end is left behind after its grace, and named."""
    asked: list[str] = []
    stuck = Stuck(stubborn=stubborn, value="stale")

    async def first_hangs(info: BeforeFinish[Any]) -> Any:
        asked.append(f"{info.text} asked")
        try:
            return await stuck(info) if info.text == "one" else None
        finally:
            asked.append(f"{info.text} ended")

    session = await place.open()
    agent = agent_with(
        ScriptedModel(turns=[["one"], ["two"]]), hook("before_finish", first_hangs), cancel_grace_ms=GRACE_MS
    )
    lane = await session.lane("main", agent)
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await lane.steer("wait")
    if stubborn:
        await pass_grace(place.clock, stuck)

    result = await running

    assert (result.status, result.text) == ("completed", "two")
    assert [getattr(each, "text", "") for each in await lane.messages()] == ["", "one", "", "two"]
    assert asked == (["one asked", *(["one ended"] * (not stubborn)), "two asked", "two ended"])
    assert len(session.findings) == stubborn and all(
        "at before_finish did not end" in each for each in session.findings
    )
    stuck.go_on.set()
