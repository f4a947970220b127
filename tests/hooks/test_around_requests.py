"""Claim: hooks around requests see each of them, change that one only, and what they spoil is told and passed over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import (
    AfterResponse,
    AssistantMessage,
    BeforeRequest,
    BeforeRun,
    ImagePart,
    Prompt,
    SessionClosed,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    TransformContext,
    Usage,
    UserMessage,
    hook,
)
from agentlane.data import addresses
from agentlane.data.messages import user
from agentlane.testing import FaultPlan, ScriptedModel, answer, call, fail, say
from agentlane.testing.matrix.lives import bury
from tests.hooks.asked import GRACE_MS, Asked, Hands, Stuck, agent_with, pass_grace, results
from tests.hooks.test_before_tool import raising
from tests.session.places import Place

BUSY = fail("overloaded", retryable=True)


def nothing(info: Any) -> None:
    return None


# Before the run, and before each request.


async def test_before_run_is_asked_once_and_before_request_for_each_attempt(place: Place) -> None:
    run, request = Asked(nothing), Asked(lambda info: {**info.settings, "attempt": info.attempt})
    second = Asked(lambda info: {**info.settings, "second": True})
    hooks = [hook("before_run", run), hook("before_request", request), hook("before_request", second)]
    model = ScriptedModel([[call("do", x=1)], BUSY, "done"])
    session = await place.open()
    agent = agent_with(model, *hooks, tools=[Hands().tool("do")], settings={"t": 1}, deps="mine")
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    await place.clock.sleeping()
    place.clock.advance_to_next()
    await driving

    (told,) = run.seen
    assert isinstance(told, BeforeRun)
    assert (told.turn, told.inputs, told.deps, told.recovered) == (1, (user("go"),), "mine", False)
    assert all(isinstance(each, BeforeRequest) and each.model == model.identity for each in request.seen)
    assert [(each.turn, each.attempt) for each in request.seen] == [(1, 1), (2, 1), (2, 2)]
    assert [each.settings for each in request.seen] == [{"t": 1}] * 3  # what is changed is for one request only
    assert [each.settings for each in second.seen] == [{"t": 1, "attempt": n} for n in (1, 1, 2)]
    assert [each.settings for each in model.requests] == [{"t": 1, "attempt": n, "second": True} for n in (1, 1, 2)]


@pytest.mark.parametrize("point", ["before_run", "before_request"])
@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (raising(LookupError("who?")), "failed: LookupError: who?"),
        (raising(SystemExit(3)), "failed: SystemExit: 3"),
        (raising(asyncio.CancelledError()), "cancelled itself"),
        (lambda info: 7, "or None is needed here, not int"),
        (lambda info: {"t": float("inf")}, "returned something that cannot be used"),
    ],
    ids=["raises", "SystemExit", "cancels itself", "a number", "no JSON"],
)
async def test_a_failure_before_a_request_fails_the_run_and_nothing_is_sent(
    place: Place, point: Any, reply: Any, text: str
) -> None:
    model = ScriptedModel(["not asked for"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook(point, Asked(reply))))

    result = await lane.run("go")

    assert (result.status, result.code, result.turns) == ("failed", "hook_failed", 0)
    assert result.error is not None
    assert result.error.message.startswith(f"hook 'Asked' at {point} ") and text in result.error.message
    assert model.requests == [] and len(await lane.messages()) == 1 and session.findings == ()
    assert (await lane.run("again", operation_id="next")).status == "failed"  # the lane goes on


async def test_a_failure_before_a_later_attempt_fails_the_run_with_every_call_answered(place: Place) -> None:
    request = Asked(lambda info: raising(LookupError("who?"))(info) if info.turn == 2 else None)
    model = ScriptedModel([[call("do", x=1)], "not asked for"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("before_request", request), tools=[Hands().tool("do")])
    )

    result = await lane.run("go")

    assert (result.status, result.code, result.turns) == ("failed", "hook_failed", 1)
    assert await results(lane) == ["do:1 done"] and len(model.requests) == 1


@pytest.mark.parametrize("point", ["before_run", "before_request"])
async def test_a_failure_before_a_request_may_be_passed_over(place: Place, point: Any) -> None:
    session = await place.open()
    fails = hook(point, Asked(raising(LookupError("who?"))), on_error="continue")
    lane = await session.lane("main", agent_with(ScriptedModel(["done"]), fails))

    assert (await lane.run("go", operation_id="op")).status == "completed"
    assert session.findings == (
        f"operation op: hook 'Asked' at {point} failed: LookupError: who?; the hook was passed over",
    )


@pytest.mark.parametrize("point", ["before_run", "before_request", "transform_context"])
@pytest.mark.parametrize("end", ["abort", "close", "kill"])
async def test_a_hook_before_a_request_that_is_stopped(place: Place, point: Any, end: str) -> None:
    """Under an abort the run ends; else nothing of it is durable, and the next drive asks again."""
    stuck = Stuck()
    model = ScriptedModel(["done"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook(point, stuck)))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    if end == "abort":
        await lane.request_abort("op")
        assert (await running).status == "aborted"
        assert stuck.told == 1 and model.requests == []
        return
    if end == "close":
        await session.close()
        with pytest.raises(SessionClosed):
            await running
    else:
        await bury(session, running)

    again = Asked(nothing)
    lane = await (await place.open()).lane("main", agent_with(model, hook(point, again)))
    outcome = await lane.drive("op")

    assert outcome.result.status == "completed"  # type: ignore[union-attr]
    assert again.seen[-1].recovered and len(again.seen) == 1
    assert len(model.requests) == 1


async def test_a_request_that_a_death_interrupted_is_sent_again_only_past_its_hook(place: Place) -> None:
    """The restart intends the next attempt in the commit that settles the lost one, so the hook comes before both."""
    stuck = Stuck()
    model = ScriptedModel(["done"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("transform_context", stuck)))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await bury(session, running)

    refuse = Asked(raising(LookupError("who?")))
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("before_request", refuse)))
    result = (await lane.drive("op")).result  # type: ignore[union-attr]

    assert (result.status, result.code) == ("failed", "hook_failed")
    assert [(each.turn, each.attempt, each.recovered) for each in refuse.seen] == [(1, 2, True)]
    assert model.requests == []
    assert (await lane.messages())[1].error.code == "interrupted"  # type: ignore[union-attr]


# The context.


async def test_a_changed_context_is_sent_once_and_stored_nowhere(place: Place) -> None:
    brief = user("go, and be brief")
    first = Asked(lambda info: [brief, *info.messages[1:]] if info.turn == 1 else None)
    second = Asked(lambda info: [*info.messages, user("please")] if info.turn == 1 else None)
    hooks = [hook("transform_context", first), hook("transform_context", second)]
    model = ScriptedModel(turns=[[], [[call("do", x=1)], "done"]])
    lane = await (await place.open()).lane("main", agent_with(model, *hooks, tools=[Hands().tool("do")]))

    await lane.run("go")

    assert list(model.requests[0].messages) == [brief, user("please")]
    assert model.requests[1].messages[0] == user("go")
    told = first.seen[0]
    assert isinstance(told, TransformContext) and told.messages == (user("go"),) and told.attempt == 1
    assert second.seen[0].messages == (brief,)
    assert (await lane.messages())[0] == user("go")


CALL = ToolCallPart(id="c1", name="do", arguments={})
ASKS = AssistantMessage(content=(CALL,), stop_reason="tool_calls")
GIVES = ToolResultMessage(call_id="c1", name="do", content=(TextPart(text="x"),))
GO = user("go")
BAD_CONTEXTS: list[tuple[Any, str]] = [
    ([], "no message is left"),
    ("text", "a list of messages or None is needed here, not str"),
    ([GO, 3], "messages[1]: a message is needed here, not int"),
    ([GO, ASKS], "call 'c1' has no result"),
    ([GO, ASKS, GO, GIVES], "messages[2]: call 'c1' has no result before it"),
    ([GO, GIVES], "messages[1]: the result of 'c1' of 'do' is not the one that is due"),
    ([GO, ASKS, GIVES, GIVES], "messages[3]: the result of 'c1' of 'do' is not the one that is due"),
    ([GO, ASKS, replace(GIVES, name="other")], "messages[2]: the result of 'c1' of 'other'"),
    ([GO, ASKS, GIVES, ASKS, GIVES], "messages[3]: the ids of calls are empty or used twice"),
    ([GO, replace(ASKS, content=(replace(CALL, id=""),))], "messages[1]: the ids of calls are empty"),
    ([GO, replace(ASKS, stop_reason="error")], "messages[1]: an answer that ended as 'error' is not sent"),
    ([UserMessage(content=())], "messages[0]: a message, or a text in it, is empty"),
    ([UserMessage(content=(TextPart(text=""),))], "messages[0]: a message, or a text in it, is empty"),
    ([UserMessage(content=(TextPart(text=3),))], "messages[0]: Expected `str`, got `int`"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("bad", "text"), BAD_CONTEXTS, ids=[text[:40] for _, text in BAD_CONTEXTS])
async def test_a_context_that_no_provider_takes_is_passed_over(place: Place, bad: Any, text: str) -> None:
    spoil = hook("transform_context", Asked(lambda info: bad))
    model = ScriptedModel(["done"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, spoil))

    assert (await lane.run("go", operation_id="op")).status == "completed"

    assert list(model.requests[0].messages) == [GO]
    (finding,) = session.findings
    assert finding.startswith("operation op: hook 'Asked' at transform_context returned something") and text in finding


async def test_a_sound_context_of_the_hooks_own_is_sent(place: Place) -> None:
    image = UserMessage(content=(ImagePart(data="aGk=", mime_type="image/png"),))
    sound = [GO, ASKS, GIVES, image]
    model = ScriptedModel(turns=[[], ["done"]])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("transform_context", Asked(lambda info: sound)))
    )

    await lane.run("go")

    assert list(model.requests[0].messages) == sound
    model.require_no_violations()


async def test_a_context_hook_that_blocks_fails_the_run_and_nothing_was_sent(place: Place) -> None:
    fails = hook("transform_context", Asked(raising(LookupError("who?"))), on_error="block")
    model = ScriptedModel(["not asked for"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, fails))

    result = await lane.run("go")

    assert (result.status, result.code) == ("failed", "hook_failed")
    assert model.requests == []
    assert (await session.usage())[0].row.usage.input_tokens == 0  # known: nothing was sent


# Answers.


async def test_an_answer_that_a_hook_replaces_is_the_one_that_counts(place: Place) -> None:
    usage = Usage(input_tokens=3, output_tokens=2)
    polish = Asked(
        lambda info: replace(info.message, content=(TextPart(text="polished"),), usage=Usage(input_tokens=9))
    )
    shout = Asked(lambda info: replace(info.message, content=(TextPart(text=info.message.text.upper()),), model=None))
    hooks = [hook("after_response", polish), hook("after_response", shout)]
    model = ScriptedModel([answer([say("rough")], usage=usage)])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, *hooks))

    result = await lane.run("go")

    assert result.text == "POLISHED"
    stored = (await lane.messages())[1]
    assert isinstance(stored, AssistantMessage)
    assert (stored.text, stored.usage, stored.model) == ("POLISHED", usage, model.identity)
    assert stored.answers == result.inputs
    told = polish.seen[0]
    assert isinstance(told, AfterResponse) and (told.message.text, told.attempt, told.turn) == ("rough", 1, 1)


async def test_calls_that_a_hook_adds_are_run_and_those_it_takes_away_are_not(place: Place) -> None:
    hands = Hands()
    added = ToolCallPart(id="mine", name="do", arguments={"x": 7})
    change = Asked(
        lambda info: replace(info.message, content=(added,), stop_reason="tool_calls") if info.turn == 1 else None
    )
    model = ScriptedModel([[call("do", x=1)], "done"])
    lane = await (await place.open()).lane(
        "main", agent_with(model, hook("after_response", change), tools=[hands.tool("do")])
    )

    await lane.run("go")

    assert hands.starts == ["do:7"] and await results(lane) == ["do:7 done"]
    model.require_no_violations()


async def test_answers_that_failed_are_not_shown(place: Place) -> None:
    seen = Asked(nothing)
    model = ScriptedModel([fail("refused")])
    lane = await (await place.open()).lane("main", agent_with(model, hook("after_response", seen)))

    assert (await lane.run("go")).code == "refused"
    assert seen.seen == []


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (raising(LookupError("who?")), "failed: LookupError: who?"),
        (raising(asyncio.CancelledError()), "cancelled itself"),
        (lambda info: "text", "an AssistantMessage or None is needed here, not str"),
        (lambda info: replace(info.message, stop_reason="aborted"), "only an abort makes an answer aborted"),
        (lambda info: replace(info.message, content=(3,)), "int is not a part of an answer"),
    ],
    ids=["raises", "cancels itself", "text", "aborted", "no part"],
)
async def test_a_failure_of_a_hook_leaves_the_answer_as_it_was(place: Place, reply: Any, text: str) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_with(ScriptedModel(["done"]), hook("after_response", Asked(reply))))

    assert (await lane.run("go", operation_id="op")).text == "done"
    (finding,) = session.findings
    assert finding.startswith("operation op: hook 'Asked' at after_response ") and text in finding


async def test_a_failure_that_blocks_keeps_the_answer_as_one_that_failed(place: Place) -> None:
    fails = hook("after_response", Asked(raising(LookupError("who?"))), on_error="block")
    hands = Hands()
    model = ScriptedModel([[say("look"), call("do", x=1)], "and now"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, fails, tools=[hands.tool("do")]))

    result = await lane.run("go")

    assert (result.status, result.code) == ("failed", "hook_failed") and hands.starts == []
    stored = (await lane.messages())[1]
    assert isinstance(stored, AssistantMessage)
    assert (stored.stop_reason, stored.text) == ("error", "look")
    assert (await session.usage())[0].row.usage.input_tokens  # it was paid for


async def test_what_was_shown_is_durable_before_a_hook_sees_the_answer(place: Place) -> None:
    saved: list[int] = []

    async def look(info: AfterResponse[Any]) -> None:
        saved.append(len(await session._runtime.storage.lists(addresses.PENDING_FRAMES)))

    model = ScriptedModel(["a long answer"], deltas=4)
    plan = FaultPlan()
    session = await place.open(probe=plan)
    lane = await session.lane("main", agent_with(model, hook("after_response", look)))

    await lane.run("go")

    assert saved == [1]
    assert plan.trace.count("commit.frames.after") == 1
    assert await session._runtime.storage.lists(addresses.PENDING_FRAMES) == []


@pytest.mark.parametrize("end", ["kill", "close"])
async def test_an_answer_whose_hook_was_stopped_is_settled_as_interrupted_and_asked_for_again(
    place: Place, end: str
) -> None:
    stuck = Stuck()
    model = ScriptedModel(["whole"])
    session = await place.open()
    lane = await session.lane("main", agent_with(model, hook("after_response", stuck)))
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    if end == "kill":
        await bury(session, running)
    else:
        await session.close()
        with pytest.raises(SessionClosed):
            await running

    again = Asked(lambda info: replace(info.message, content=(TextPart(text="seen"),)))
    lane = await (await place.open()).lane("main", agent_with(model, hook("after_response", again)))
    result = (await lane.drive("op")).result  # type: ignore[union-attr]

    assert result.text == "seen"
    lost, kept = (await lane.messages())[1:]
    assert lost.error.code == "interrupted" and lost.text == "whole"  # type: ignore[union-attr]
    assert kept.text == "seen" and [each.recovered for each in again.seen] == [True]  # type: ignore[union-attr]


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends", "left behind"])
async def test_an_abort_settles_the_answer_as_the_model_gave_it(place: Place, stubborn: bool) -> None:
    stuck = Stuck(stubborn=stubborn)
    hands = Hands()
    model = ScriptedModel([[say("whole"), call("do", x=1)]])
    session = await place.open()
    agent = agent_with(model, hook("after_response", stuck), tools=[hands.tool("do")], cancel_grace_ms=GRACE_MS)
    lane = await session.lane("main", agent)
    running = asyncio.ensure_future(lane.run("go", operation_id="op"))
    await stuck.entered.wait()
    await lane.request_abort("op")
    if stubborn:
        await pass_grace(place.clock, stuck)

    result = await running

    assert result.status == "aborted" and hands.starts == []
    stored = (await lane.messages())[1]
    assert isinstance(stored, AssistantMessage) and (stored.text, stored.stop_reason) == ("whole", "tool_calls")
    assert len(await results(lane)) == 1  # not started
    left = "hook 'Stuck' at after_response did not end within"
    assert [each.startswith(left) for each in session.findings] == [True] * stubborn
    stuck.go_on.set()
