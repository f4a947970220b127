"""Claim: an adapter or a tool with a fault in it costs its answer or its call, never the run or the session."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from agentlane import (
    Agent,
    AssistantMessage,
    ModelError,
    ModelIdentity,
    ModelLimits,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    RetryPolicy,
    TextPart,
    ToolCallPart,
    ToolContext,
    Usage,
    UsageSeen,
    open_session,
    tool,
)
from agentlane.testing.clock import ManualClock
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call


class Adapter:
    """Streams what it is given; an exception among it is raised."""

    identity = ModelIdentity(provider="test", name="adapter")
    limits = ModelLimits()

    def __init__(self, *items: Any) -> None:
        self.items = items

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        for item in self.items:
            if isinstance(item, BaseException):
                raise item
            yield item


DONE = AssistantMessage(content=(TextPart(text="done"),), stop_reason="stop")


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ((PartStart(index=0, kind="song"),), "invalid_response"),
        ((PartEnd(index=0, part=TextPart(text=b"x")),), "invalid_response"),
        ((UsageSeen(usage=Usage(input_tokens=math.nan)), DONE), "invalid_response"),
        (("a text",), "invalid_response"),
        ((AssistantMessage(content="hi", stop_reason="stop"),), "invalid_response"),
        ((AssistantMessage(content=(), stop_reason="bored"),), "invalid_response"),
        ((AssistantMessage(content=(), stop_reason="stop", usage=Usage(cost_nanos=2**64)),), "invalid_response"),
        ((AssistantMessage(content=(TextPart(text=5),), stop_reason="stop"),), "invalid_response"),
        ((AssistantMessage(content=(), stop_reason="stop", model="gpt"),), "invalid_response"),
        ((ModelError("no", usage=Usage(input_tokens=2**70)),), "model_error"),
        ((ModelError("no", usage="much", retry_after_ms=True, kind=5),), "model_error"),
        ((PartDelta(index=0, text="shown"), ValueError("\ud800")), "model_error"),
        ((PartDelta(index=0, text="shown"), SystemExit(3)), "model_error"),
    ],
    ids=[f"fault {number}" for number in range(13)],
)
async def test_a_faulty_adapter_fails_the_run_and_the_next_one_works(items: tuple[Any, ...], code: str) -> None:
    model = Adapter(*items)
    async with open_session(":memory:", clock=ManualClock()) as session:
        lane = await session.lane("main", Agent(model=model, retry=RetryPolicy(attempts=1)))

        failed = await lane.run("hi")

        assert (failed.status, failed.code) == ("failed", code)
        assert failed.usage.unknown_rows == 1 and session.stats().usage == failed.usage
        model.items = (DONE,)
        assert (await lane.run("again")).text == "done"


@pytest.mark.parametrize("bad", [{"v": math.nan}, {"v": 10**30}, {"v": {1, 2}}, json.loads("[" * 80 + "]" * 80)])
async def test_a_providers_part_that_cannot_be_stored_is_kept_as_text_and_the_calls_beside_it_run(bad: Any) -> None:
    @tool
    async def fine() -> str:
        return "fine"

    opaque = ProviderPart(provider="test", data=bad)
    asks = AssistantMessage(content=(opaque, ToolCallPart(id="c", name="fine", arguments={})), stop_reason="tool_calls")
    model = Adapter(PartEnd(index=0, part=opaque), asks)
    async with open_session(":memory:", clock=ManualClock()) as session:
        lane = await session.lane("main", Agent(model=model, tools=[fine], max_turns=1))

        await lane.run("hi")

        _, answer, result = [each.body for each in await lane.entries(newest_first=False)][:3]
        kept = answer.content[0]  # type: ignore[union-attr]
        assert isinstance(kept, ProviderPart) and isinstance(kept.data, str) and kept.data
        assert result.text == "fine" and not result.is_error  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", [PartStart(index=0, kind="song"), replace(DONE, stop_reason="bored")])
async def test_an_answer_that_cannot_be_kept_is_tried_again(bad: Any) -> None:
    model = Adapter(bad)
    async with open_session(":memory:") as session:
        agent = Agent(model=model, retry=RetryPolicy(attempts=2, base_ms=0))
        failed = await (await session.lane("main", agent)).run("hi")

    assert (failed.code, failed.usage.unknown_rows) == ("invalid_response", 2)


async def test_text_that_is_broken_in_every_place_is_mended_in_every_place() -> None:
    """R67: arguments, results, prompt, tool names and errors."""
    lone = "현\ud99c"

    @tool
    async def speak(text: str) -> str:
        if text == "현\ufffd":
            return lone
        raise ValueError(lone)

    model = ScriptedModel([[call("speak", text=lone), call("speak", text="x"), call(lone, text=lone)], "done " + lone])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[speak], instructions=lone))

        done = await lane.run(lone)

        assert done.text == "done 현\ufffd"
        results = [each.body.text for each in await lane.entries(types=["tool_result"], newest_first=False)]  # type: ignore[union-attr]
        assert results[0] == "현\ufffd" and "현\ufffd" in results[1] and "'현\ufffd' is not available" in results[2]
    model.require_no_violations()


class Rude(Struct):
    inner: Any


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value", [Rude(Shy()), {"x": Shy()}, Shy(), {1, 2}, math.nan, b"x"], ids=lambda v: type(v).__name__
)
async def test_a_tool_that_returns_something_impossible_gets_an_error_result(value: Any) -> None:
    @tool
    async def rude() -> Any:
        return value

    model = ScriptedModel([[call("rude"), call("fine")], "done"])

    @tool
    async def fine() -> str:
        return "fine"

    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[rude, fine]))

        assert (await lane.run("hi")).text == "done"

        first, second = [each.body for each in await lane.entries(types=["tool_result"], newest_first=False)]
        assert first.is_error and "cannot be kept" in first.text and second.text == "fine"  # type: ignore[union-attr]
        assert session.findings == ()


async def test_a_tool_that_changes_its_arguments_changes_neither_the_next_request_nor_its_key() -> None:
    """R79."""
    keys: list[str] = []

    @tool
    async def spoil(data: dict[str, Any], ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        data["a"].append("spoiled")
        keys.append(ctx.idempotency_key)
        return "done"

    model = ScriptedModel([[call("spoil", data={"a": [1]})], "done"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[spoil]))
        await lane.run("hi")

    asked = model.requests[1].messages[1]
    assert isinstance(asked, AssistantMessage) and asked.calls[0].arguments == {"data": {"a": [1]}}
    assert len(keys) == 2 and keys[0] == keys[1]
