"""Claim: what is said to a lane while it runs is placed once, whole, where its kind says, and nowhere in a batch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    Agent,
    AssistantMessage,
    CorruptSession,
    Custom,
    Entry,
    ImagePart,
    InvalidMessage,
    InvalidName,
    Prompt,
    Queued,
    RequestConflict,
    Settled,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
    Waiting,
    tool,
)
from agentlane.data import addresses, codec
from agentlane.data.inbox import QueuedItem
from agentlane.data.writes import SetValue
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hold, say
from tests.session.places import Place, agent_of, echo
from tests.session.saying import commits, shown, sound, told, user


class Desk:
    """A lane whose tool ``work`` says things to it, as a list of functions tells, one for each call."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.says: list[Any] = []

    async def open(self, turns: list[list[Any]], **options: Any) -> None:
        self.model = ScriptedModel(turns=turns)
        self.plan = FaultPlan()
        self.session = await self.place.open(probe=self.plan)
        self.lane = await self.session.lane("main", agent_of(model=self.model, tools=[self.tool()], **options))

    def tool(self) -> Tool[Any, Any]:
        @tool(name="work", replay="safe")
        async def work() -> str:
            await self.says.pop(0)()
            return "worked"

        return work


@pytest.fixture
def desk(place: Place) -> Desk:
    return Desk(place)


async def test_steering_comes_behind_the_batch_that_runs_and_before_the_model_is_asked_again(desk: Desk) -> None:
    await desk.open([[[say("a"), call("work"), call("work")]], [], ["ended"]])
    queued: list[Queued] = []

    async def steer() -> None:
        queued.append(await desk.lane.steer("to the left"))

    desk.says = [steer, steer]  # the same twice, without a request id: two messages
    result = await desk.lane.run("go")

    assert result.text == "ended"
    lines = [
        "user go",
        "assistant a (2 calls)",
        "result worked",
        "result worked",
        "user to the left",
        "user to the left",
    ]
    assert shown(desk.model.requests[1]) == lines
    assert await told(desk.lane) == [*lines, "assistant ended"]
    entries = await desk.lane.entries(types=["user"])
    assert sorted(each.id for each in queued) == sorted(each.id for each in entries[:2])
    assert desk.lane.queued() == []
    # One commit for each message, none for placing them
    names = commits(desk.plan)
    assert names.count("queue") == 2
    assert names[-2:] == ["outcome_placed+placement+intent", "settlement+terminal"]
    await sound(desk.session)


async def test_a_run_that_would_end_goes_on_with_steering_and_then_with_one_follow_up_at_a_time(desk: Desk) -> None:
    await desk.open([[[call("work")]], ["steered"], ["first"], ["second"]])

    async def say_all() -> None:
        await desk.lane.follow_up("f1")
        await desk.lane.follow_up("f2")
        await desk.lane.steer("s")

    desk.says = [say_all]
    result = await desk.lane.run("go")

    assert await told(desk.lane) == [
        *("user go", "assistant  (1 calls)", "result worked"),
        *("user s", "assistant steered", "user f1", "assistant first", "user f2", "assistant second"),
    ]
    assert (result.status, result.text, result.turns) == ("completed", "second", 4)
    assert commits(desk.plan)[-3:] == ["settlement+placement+intent"] * 2 + ["settlement+terminal"]


async def test_follow_ups_come_together_and_steering_one_by_one_where_the_agent_says_so(desk: Desk) -> None:
    await desk.open(
        [[[call("work")]], ["one"], ["two"], [], ["both"]],
        steering="one",
        follow_ups="all",
    )

    async def say_all() -> None:
        for text in ("f1", "f2"):
            await desk.lane.follow_up(text)
        for text in ("s1", "s2"):
            await desk.lane.steer(text)

    desk.says = [say_all]
    await desk.lane.run("go")

    assert (await told(desk.lane))[3:] == [
        *("user s1", "assistant one", "user s2", "assistant two"),
        *("user f1", "user f2", "assistant both"),
    ]


async def test_what_is_captured_at_accept_is_what_counts_after_a_reopen(desk: Desk) -> None:
    await desk.open([["a"], ["b"]], steering="one")
    await desk.lane.accept(Prompt("go"), operation_id="op")
    await desk.lane.steer("s1")
    await desk.lane.steer("s2")
    await desk.session.close()
    await desk.open([[], ["a"], ["b"]])  # an agent that places all at once

    assert desk.lane.queued()[0].text == "s1"
    await desk.lane.resume()

    assert await told(desk.lane) == ["user go", "user s1", "assistant a", "user s2", "assistant b"]


async def test_steering_that_comes_while_the_last_answer_streams_is_answered_too(desk: Desk) -> None:
    await desk.open([[hold([say("almost")])], ["and more"]])
    driving = asyncio.create_task(desk.lane.run("go"))
    await desk.model.hanging()
    await desk.lane.steer("wait")
    assert [each.text for each in desk.lane.inspect().queued] == ["wait"]
    desk.model.release()
    result = await driving

    assert result.text == "and more"
    assert await told(desk.lane) == ["user go", "assistant almost", "user wait", "assistant and more"]
    answers = [each.body for each in await desk.lane.entries(types=["assistant"], newest_first=False)]
    inputs = [each.id for each in await desk.lane.entries(types=["user"], newest_first=False)]
    assert [each.answers for each in answers if isinstance(each, AssistantMessage)] == [(inputs[0],), (inputs[1],)]


async def test_a_request_that_is_tried_again_is_answered_before_anything_is_placed(desk: Desk) -> None:
    await desk.open([[fail("overloaded", retryable=True), "after all"], ["steered"]])
    await desk.lane.accept(Prompt("go"), operation_id="op")
    assert isinstance(await desk.lane.drive(wait_for_retry=False), Waiting)
    await desk.lane.steer("quick")
    waiting = await desk.lane.drive(wait_for_retry=False)
    assert isinstance(waiting, Waiting) and waiting.wake_at is not None
    desk.place.clock.advance(waiting.wake_at - desk.place.clock.now_ms())

    assert isinstance(await desk.lane.drive(), Settled)

    assert shown(desk.model.requests[1]) == ["user go"]
    assert (await told(desk.lane))[-3:] == ["assistant after all", "user quick", "assistant steered"]


async def test_a_lane_that_sleeps_goes_on_sleeping_when_something_is_queued(desk: Desk) -> None:
    await desk.open([[fail("overloaded", retryable=True, retry_after_ms=5_000), "after all"], ["steered"]])
    driving = asyncio.create_task(desk.lane.run("go"))
    while desk.lane.inspect().operation is None or desk.lane.inspect().operation.at != "retry_wait":  # type: ignore[union-attr]
        await asyncio.sleep(0)
    await desk.lane.steer("quick")
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(desk.model.requests) == 1 and not driving.done()
    desk.place.clock.advance(60_000)

    assert (await driving).text == "steered"


async def test_the_next_run_has_what_was_said_for_it_right_before_its_prompt(desk: Desk) -> None:
    await desk.open([[[call("work")], "one"], [], ["two"]])
    said: list[Queued] = []

    async def later() -> None:
        said.append(await desk.lane.next_run("by the way", request_id="r"))

    desk.says = [later]
    first = await desk.lane.run("go")
    assert "user by the way" not in await told(desk.lane)
    receipt = await desk.lane.receipt("r")
    assert receipt is not None and (receipt.state, receipt.operation_id) == ("queued", None)

    admitted = await desk.lane.accept(Prompt("again"), operation_id="op-2")

    assert desk.lane.queued() == []
    entries = await desk.lane.entries(newest_first=False, types=["user"])
    assert [each.id for each in entries][1:] == [said[0].id, *admitted.inputs]
    receipt = await desk.lane.receipt("r")
    assert receipt is not None
    assert (receipt.state, receipt.operation_id, receipt.entries) == ("placed", "op-2", (said[0].id,))
    second = await desk.lane.resume()
    assert second is not None and second.text == "two" and second.inputs == admitted.inputs
    assert second.from_tip == first.to_tip
    await sound(desk.session)


async def test_an_append_while_an_operation_is_open_is_placed_before_steering_under_the_id_it_said(desk: Desk) -> None:
    await desk.open([[[call("work")]], ["ended"]])
    written: list[Entry | Queued] = []

    async def write() -> None:
        await desk.lane.steer("s")
        written.append(await desk.session.branch("main").append_custom("note", {"n": 1}))

    desk.says = [write]
    await desk.lane.run("go")

    assert isinstance(written[0], Queued) and written[0].kind == "write"
    assert (await told(desk.lane))[2:] == ["result worked", "custom note", "user s", "assistant ended"]
    entry = await desk.session.entry(written[0].id)
    assert isinstance(entry.body, Custom) and entry.body.data == {"n": 1}
    idle = await desk.lane.append_custom("after")
    assert isinstance(idle, Entry) and idle.id == desk.lane.tip()


async def test_a_deferred_write_does_not_make_a_run_go_on_that_is_about_to_end(desk: Desk) -> None:
    await desk.open([[hold([say("the end")])]])
    driving = asyncio.create_task(desk.lane.run("go"))
    await desk.model.hanging()
    await desk.lane.append_message(user("for the record"))
    await desk.lane.append_message(AssistantMessage(content=(TextPart(text="noted"),), stop_reason="stop"))
    desk.model.release()
    result = await driving

    assert (result.status, result.text, len(desk.model.requests)) == ("completed", "the end", 1)
    assert (await told(desk.lane))[1:] == ["assistant the end", "user for the record", "assistant noted"]
    assert result.to_tip == desk.lane.tip()
    await sound(desk.session)


async def test_what_belongs_to_one_place_cannot_be_deferred(desk: Desk) -> None:
    await desk.open([["x"]])
    await desk.lane.accept(Prompt("go"), operation_id="op")
    asked = AssistantMessage(content=(ToolCallPart(id="c", name="work", arguments={}),), stop_reason="tool_calls")

    with pytest.raises(InvalidMessage, match="an answer with calls cannot be appended while operation op is open"):
        await desk.lane.append_message(asked)
    with pytest.raises(InvalidMessage, match="a tool result cannot be appended while operation op is open"):
        await desk.lane.append_message(ToolResultMessage(call_id="c", name="work", content=()))
    assert desk.lane.queued() == []


async def test_what_is_left_and_what_is_said_to_an_idle_lane_comes_before_the_next_prompt_in_order(desk: Desk) -> None:
    await desk.open([[[call("work")], fail("refused")], [], [], [], ["fine"]])

    async def say_all() -> None:
        await desk.lane.follow_up("left over")
        await desk.lane.append_custom("written")

    desk.says = [say_all]
    failed = await desk.lane.run("go")
    assert failed.status == "failed" and failed.next_operation is None
    # The write was placed at the boundary before the request that failed; the follow-up waits.
    assert [each.kind for each in desk.lane.queued()] == ["follow_up"]
    await desk.lane.steer("said at rest")
    await desk.lane.next_run("and this")
    await desk.session.close()
    await desk.open([[[call("work")], fail("refused")], [], [], [], ["fine"]])
    assert [(each.kind, each.text) for each in desk.lane.queued()] == [
        ("follow_up", "left over"),
        ("steer", "said at rest"),
        ("next_run", "and this"),
    ]

    result = await desk.lane.run("again")

    assert result.text == "fine"
    assert (await told(desk.lane))[-5:] == [
        *("user left over", "user said at rest", "user and this", "user again"),
        "assistant fine",
    ]
    await sound(desk.session)


async def test_several_messages_of_one_item_stay_together_and_images_come_as_they_are(desk: Desk) -> None:
    await desk.open([], steering="one")
    await desk.lane.accept(Prompt("go"))
    image = ImagePart(data="aGk=", mime_type="image/png")
    pair = await desk.lane.steer(Prompt(messages=(user("one"), user("two", "parts"))))
    picture = await desk.lane.steer(Prompt("look", images=(image,)))
    alone = await desk.lane.cancel_queued((await desk.lane.steer(user("alone"))).id)

    assert alone == "cancelled"
    assert [len(each.content) for each in desk.lane.queued()] == [2, 1]
    desk.model = ScriptedModel(turns=[[], [], ["a"], ["b"]])
    lane = await desk.session.lane("main", agent_of(model=desk.model, steering="one"))
    await lane.resume()

    assert await told(lane) == [
        *("user go", "user one", "user two+parts", "assistant a"),
        *("user look", "assistant b"),
    ]
    last = (await desk.session.entry(picture.id)).body
    assert isinstance(last, UserMessage) and last.content == (TextPart(text="look"), image)
    first = await desk.session.entry(pair.id)
    assert first.body == user("one")


async def test_taking_back_tells_what_it_found(desk: Desk) -> None:
    await desk.open([[], ["a"]])
    taken = await desk.lane.steer("no", request_id="r-1")
    kept = await desk.lane.steer("yes", request_id="r-2")

    assert await desk.lane.cancel_queued(taken.id) == "cancelled"
    assert await desk.lane.cancel_queued(taken.id) == "not_found"
    await desk.lane.run("go")
    assert await desk.lane.cancel_queued(kept.id) == "already_consumed"
    assert await desk.lane.cancel_queued("\ud800") == "not_found"

    receipts = [await desk.lane.receipt(id) for id in ("r-1", "r-2", "r-3")]
    assert [each and each.state for each in receipts] == ["cancelled", "placed", None]
    assert await told(desk.lane) == ["user yes", "user go", "assistant a"]
    await sound(desk.session)


# Request ids.


async def test_the_same_request_id_is_the_same_message_whatever_became_of_it(desk: Desk) -> None:
    await desk.open([[], ["a"]])
    first = await desk.lane.steer("hi", request_id="r")
    assert await desk.lane.steer(user("hi"), request_id="r") == first
    await desk.session.close()
    await desk.open([[], ["a"]])
    assert await desk.lane.steer("hi", request_id="r") == first
    await desk.lane.run("go")

    assert await desk.lane.steer("hi", request_id="r") == first
    assert await told(desk.lane) == ["user hi", "user go", "assistant a"] and desk.lane.queued() == []
    for other in (desk.lane.steer("ho", request_id="r"), desk.lane.follow_up("hi", request_id="r")):
        with pytest.raises(RequestConflict, match="request id 'r' was used on lane 'main' for another message"):
            await other
    other_lane = await desk.session.lane("other", agent_of("x"))
    assert (await other_lane.steer("ho", request_id="r")).id != first.id  # an id is one lane's


async def test_calls_with_one_request_id_at_the_same_time_are_one_message(desk: Desk) -> None:
    await desk.open([["a"]])

    found = await asyncio.gather(*(desk.lane.steer("hi", request_id="r") for _ in range(5)))
    both = await asyncio.gather(
        desk.lane.steer("one", request_id="q"), desk.lane.steer("other", request_id="q"), return_exceptions=True
    )

    assert len({each.id for each in found}) == 1
    assert [type(each) for each in both] == [Queued, RequestConflict]
    assert [each.text for each in desk.lane.queued()] == ["hi", "one"]


@pytest.mark.parametrize("message", ["", user(), Prompt(), {"role": "user"}, None])
async def test_what_is_no_message_is_refused_before_anything_is_written(memory: Place, message: Any) -> None:
    session = await memory.open()
    lane = await session.lane("main", agent_of("x"))

    for verb in (lane.steer, lane.follow_up, lane.next_run, lane.submit):
        with pytest.raises(InvalidMessage):
            await verb(message)
    with pytest.raises(InvalidName):
        await lane.steer("fine", request_id="not fine")
    assert lane.queued() == [] and session.stats().entries == 0


@pytest.mark.parametrize("option", [{"steering": "some"}, {"follow_ups": 1}, {"steering": None}])
def test_a_mode_that_is_neither_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"must be 'all' or 'one'"):
        Agent(model=ScriptedModel([]), tools=[echo], **option)


# Damage.


async def test_half_an_item_is_corruption_that_names_its_place(place: Place) -> None:
    session = await place.open()
    await session.lane("main", agent_of("x"))
    item = QueuedItem(kind="steer", entries=("e-1",), order=1)
    await session._runtime.storage.submit([SetValue(addresses.inbox("main", "e-1"), codec.encode(item))])
    await session.close()

    with pytest.raises(CorruptSession, match=r"inbox/main\|e-1: its content is not at pending\.entry/e-1"):
        await place.open()


async def test_an_item_of_no_lane_is_corruption(place: Place) -> None:
    session = await place.open()
    item = QueuedItem(kind="steer", entries=("e-1",), order=1)
    content = codec.encode(user("x"))
    await session._runtime.storage.submit(
        [
            SetValue(addresses.inbox("gone", "e-1"), codec.encode(item)),
            SetValue(addresses.pending_entry("e-1"), content),
        ]
    )
    await session.close()

    with pytest.raises(CorruptSession, match="something waits on lane 'gone'"):
        await place.open()
