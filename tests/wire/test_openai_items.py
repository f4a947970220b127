"""Claim: however a server numbers the items of the Responses API, each is in the answer once, whole and as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentlane import TextPart, ThinkingPart, ToolCallPart
from tests.wire.openai_answers import function_call, message, reasoning, response_events
from tests.wire.openai_apis import RESPONSES
from tests.wire.openai_wire import Wire
from tests.wire.server import Reply, sse

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITEMS = [
    reasoning("hm"),
    message("Well"),
    function_call("f", '{"a": 1}', call_id="c1", id="fc_1"),
    function_call("f", '{"a": 2}', call_id="c2", id="fc_2"),
]
WHOLE = ["hm", "Well", ("c1", {"a": 1}), ("c2", {"a": 2})]
Event = dict[str, Any]


def without(event: Event, *names: str) -> Event:
    return {name: value for name, value in event.items() if name not in names}


def moved(event: Event, of: Callable[[int], int]) -> Event:
    return event | {"output_index": of(event["output_index"])} if "output_index" in event else event


def other_ids(event: Event) -> Event:
    """As of a server that makes up an id for every event."""
    made = f"made_up_{event['sequence_number']}"
    if "item" in event:
        return event | {"item": event["item"] | {"id": made}}
    return event | {"item_id": made} if "item_id" in event else event


def no_ids(event: Event) -> Event:
    if "item" in event:
        return event | {"item": without(event["item"], "id")}
    if "response" in event:
        output = [without(item, "id", "call_id") for item in event["response"]["output"]]
        return event | {"response": event["response"] | {"output": output}}
    return without(event, "item_id")


WAYS: dict[str, Callable[[Event], Event]] = {
    "by the rule": lambda event: event,
    "from one": lambda event: moved(event, lambda place: place + 1),
    "backwards": lambda event: moved(event, lambda place: 9 - place),
    "all alike": lambda event: moved(event, lambda place: 0),
    "no places": lambda event: without(event, "output_index"),
    "other ids": other_ids,
    "no places, other ids": lambda event: without(other_ids(event), "output_index"),
    "from one, no ids": lambda event: moved(no_ids(event), lambda place: place + 1),
    "neither places nor ids": lambda event: without(no_ids(event), "output_index"),
    "contents from one": lambda event: event | {"content_index": 1} if "content_index" in event else event,
    "no numbers of contents": lambda event: without(event, "content_index"),
}


async def answered(wire: Wire, events: list[Event]) -> Any:
    found = await wire.answered(RESPONSES, Reply(pieces=[sse(*events, named=True)]))
    assert found.error is None and found.message is not None
    return found


def parts_of(message: Any) -> list[Any]:
    return [(part.id, part.arguments) if isinstance(part, ToolCallPart) else part.text for part in message.content]


@pytest.mark.parametrize("lists", [True, False], ids=["listed", "not listed"])
@pytest.mark.parametrize("way", WAYS)
async def test_each_item_is_in_the_answer_once(wire: Wire, way: str, lists: bool) -> None:
    events = [WAYS[way](event) for event in response_events(*ITEMS)]
    if not lists:
        events[-1]["response"]["output"] = []

    found = await answered(wire, events)

    assert parts_of(found.message) == WHOLE
    assert found.message.stop_reason == "tool_calls"
    assert found.shown == 'hmWell{"a": 1}{"a": 2}'


@pytest.mark.parametrize("way", ["by the rule", "from one", "no places"])
async def test_an_item_that_only_the_list_has_is_one_more(wire: Wire, way: str) -> None:
    events = [WAYS[way](event) for event in response_events(*ITEMS[:3])]
    events[-1]["response"]["output"] = ITEMS

    found = await answered(wire, events)

    assert parts_of(found.message) == WHOLE


@pytest.mark.parametrize("lists", [True, False], ids=["listed", "not listed"])
async def test_items_of_which_nobody_says_that_they_end_are_whole_with_the_answer(wire: Wire, lists: bool) -> None:
    ends = ("response.output_item.done", "response.output_text.done", "response.content_part.done")
    events = [event for event in response_events(*ITEMS) if event["type"] not in ends]
    if not lists:
        events[-1]["response"]["output"] = []

    found = await answered(wire, events)

    assert parts_of(found.message) == WHOLE
    assert found.message.stop_reason == "tool_calls"


async def test_items_that_were_not_whole_where_the_answer_was_cut_by_its_limit_stay_so(wire: Wire) -> None:
    events = response_events(*ITEMS[:3], status="incomplete", reason="max_output_tokens")
    cut = [event for event in events[:-1] if event["type"] != "response.output_item.done"]
    events[-1]["response"]["output"] = []

    found = await answered(wire, [*cut, events[-1]])

    assert found.message.stop_reason == "length"
    assert found.message.content == (
        ThinkingPart(text="hm"),
        TextPart(text="Well"),
        ToolCallPart(id="c1", name="f", arguments_text='{"a": 1}'),
    )
