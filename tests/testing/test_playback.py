"""Claim: a played model keeps and checks what it was asked, and its streams hang, are held and are let go as told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane.data.messages import (
    AssistantMessage,
    PartEnd,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    user,
)
from agentlane.data.usage import Usage
from agentlane.model import ToolDefinition
from agentlane.testing.models import ScriptedModel
from agentlane.testing.pair import PairingError
from agentlane.testing.script import (
    call,
    fail,
    half,
    hang,
    hold,
    say,
)
from tests.testing.conversation import Conversation, interrupt, take

SEEN = Usage(input_tokens=7, output_tokens=0)


# Hanging and held streams.


async def test_a_stream_hangs_only_once_all_before_it_was_taken() -> None:
    model = ScriptedModel([hang([say("a"), half(say("b"))], usage=SEEN)])
    conversation = Conversation()
    conversation.prompt("hello")
    stream = model.stream(conversation.request())
    waiting = asyncio.ensure_future(model.hanging())

    for _ in range(5):  # usage, start, end, start, delta
        await anext(stream)
        await asyncio.sleep(0)
        assert not waiting.done()
    last = asyncio.ensure_future(anext(stream))
    await waiting

    assert not last.done()
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)


async def test_a_stream_that_was_cancelled_hangs_no_more() -> None:
    model = ScriptedModel([hang("a"), hang("b")])
    conversation = Conversation()
    conversation.prompt("hello")
    await interrupt(model, conversation)
    waiting = asyncio.ensure_future(model.hanging())
    await asyncio.sleep(0)

    assert not waiting.done()
    conversation.prompt("again")
    assert PartEnd(index=0, part=TextPart(text="b")) in await interrupt(model, conversation)
    await waiting


async def test_hanging_streams_are_told_apart_by_lane_and_number() -> None:
    model = ScriptedModel([hang()])
    first, second = Conversation(lane="a"), Conversation(lane="b")
    first.prompt("x")
    second.prompt("y")
    both = asyncio.ensure_future(model.hanging(count=2))
    of_b = asyncio.ensure_future(model.hanging(lane="b"))
    tasks = [asyncio.ensure_future(take(model, first.request()))]
    await model.hanging(lane="a")
    assert not both.done() and not of_b.done()

    tasks.append(asyncio.ensure_future(take(model, second.request())))
    await of_b
    await both

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_held_answer_ends_when_it_is_let_go() -> None:
    model = ScriptedModel([hold("one"), hold(fail("bad"))])
    conversation = Conversation()
    for expected in ("one", "<bad>"):
        conversation.prompt("hello")
        asked = asyncio.ensure_future(conversation.ask(model))
        await model.hanging()
        assert not asked.done()
        model.release()
        assert (await asked).said == expected


async def test_release_lets_go_only_what_is_held() -> None:
    model = ScriptedModel([hold("one")])
    with pytest.raises(RuntimeError):
        model.release()
    conversations = [Conversation(lane="a"), Conversation(lane="b")]
    tasks = []
    for conversation in conversations:
        conversation.prompt("x")
        tasks.append(asyncio.ensure_future(conversation.ask(model)))
    await model.hanging(count=2)

    model.release(lane="b")
    assert (await tasks[1]).said == "one"
    assert not tasks[0].done()
    model.release()
    assert (await tasks[0]).said == "one"


async def test_what_hangs_is_not_let_go() -> None:
    model = ScriptedModel([hang()])
    conversation = Conversation()
    conversation.prompt("hello")
    asked = asyncio.ensure_future(conversation.ask(model))
    await model.hanging()
    with pytest.raises(RuntimeError):
        model.release()

    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


def test_one_model_serves_one_event_loop_after_another() -> None:
    model = ScriptedModel([hang("a"), "b"])
    conversation = Conversation()
    conversation.prompt("hello")
    asyncio.run(interrupt(model, conversation))

    assert asyncio.run(conversation.ask(model)).said == "b"


# What is kept of requests.


async def test_requests_are_kept_as_they_were_when_they_came() -> None:
    model = ScriptedModel([[call("read", path=["a"])], "done"])
    conversation = Conversation()
    conversation.prompt("hello")
    got = await conversation.ask(model)
    await conversation.ask(model)
    assert got.message is not None and got.message.calls[0].arguments is not None
    got.message.calls[0].arguments["path"].append("changed")
    conversation.prompt("more")

    first, second = model.requests
    assert first.messages == (user("hello"),)
    assert len(second.messages) == 3
    asked = second.messages[1]
    assert isinstance(asked, AssistantMessage) and asked.calls[0].arguments == {"path": ["a"]}
    assert (first.attempt, first.operation_id) == (1, "op-1")


async def test_details_settings_and_tools_are_copied_too() -> None:
    details, settings = {"diff": ["+1"]}, {"stop": ["x"]}
    parameters: dict[str, Any] = {"properties": {"a": {}}}
    result = ToolResultMessage(call_id="a", name="read", content=(), details=details)
    conversation = Conversation(messages=[user("hello"), result])
    tool = ToolDefinition(name="read", description="", parameters=parameters)
    model = ScriptedModel(["done"], check_pairs=False)
    await take(model, replace(conversation.request(), settings=settings, tools=[tool]))
    details["diff"].append("-1")
    settings["stop"].append("y")
    parameters["properties"].clear()

    kept = model.requests[0]
    assert kept.messages[1] == replace(result, details={"diff": ["+1"]})
    assert kept.settings == {"stop": ["x"]}
    assert kept.tools[0].parameters == {"properties": {"a": {}}}


async def test_a_message_that_changed_between_requests_is_copied_again() -> None:
    model = ScriptedModel([[call("read", path="a")], "one", "two"])
    conversation = Conversation()
    await conversation.say(model, "hello")
    await conversation.ask(model)
    asked = conversation.messages[1]
    assert isinstance(asked, AssistantMessage) and asked.calls[0].arguments is not None
    asked.calls[0].arguments["path"] = "changed"
    await conversation.say(model, "more")

    paths = [message.calls[0].arguments for kept in model.requests[1:] for message in kept.messages[1:2]]  # type: ignore[union-attr]
    assert paths == [{"path": "a"}, {"path": "changed"}]


async def test_the_script_is_not_changed_through_what_it_gave() -> None:
    model = ScriptedModel([[call("read", path=["a"]), ToolCallPart(id="x", name="read", arguments={"n": [1]})]])
    for lane in ("a", "b"):
        conversation = Conversation(lane=lane)
        conversation.prompt("hello")
        got = await conversation.ask(model)
        assert got.message is not None
        assert [each.arguments for each in got.message.calls] == [{"path": ["a"]}, {"n": [1]}]
        for each in got.message.calls:
            assert each.arguments is not None
            each.arguments.clear()


async def test_a_request_that_breaks_pairing_is_refused_and_noted() -> None:
    model = ScriptedModel([[call("read")], "done"])
    conversation = Conversation()
    await conversation.say(model, "hello")
    model.require_no_violations()
    conversation.messages.pop()
    got = await take(model, conversation.request())

    assert isinstance(got.raised, PairingError) and got.frames == []
    assert model.violations == ["request 2: messages[1]: call 'call_1_1' has no result directly after"]
    with pytest.raises(AssertionError, match="request 2"):
        model.require_no_violations()


async def test_the_check_can_be_switched_off() -> None:
    model = ScriptedModel([[call("read")], "done"], check_pairs=False)
    conversation = Conversation()
    await conversation.say(model, "hello")
    conversation.messages.pop()

    assert (await take(model, conversation.request())).said == "done"
    assert model.violations == []
