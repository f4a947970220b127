"""Claim: a model serves many lanes, on one event loop after another, with a client of one's own, and hangs up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, InvalidDefinition, open_session
from agentlane.models.prices import Prices
from tests.wire.asking import ask, request
from tests.wire.openai_apis import CHAT, RESPONSES, Api, both
from tests.wire.server import WireServer, failure

openai = pytest.importorskip("openai")


@both
async def test_a_client_of_ones_own_is_used_without_its_retries(api: Api) -> None:
    with WireServer([failure(500, {}, retry_after="0"), api.reply("hi")]) as server:
        async with openai.AsyncOpenAI(
            api_key="k", base_url=f"{server.url}/v1", max_retries=5, default_headers={"x-mine": "yes"}
        ) as client:
            model = api.adapter("gpt-x", client=client)
            first, second = await ask(model), await ask(model)

    assert first.message is None and second.message is not None
    assert [received.headers["x-mine"] for received in server.requests] == ["yes", "yes"]
    assert not server.surplus


@both
async def test_a_key_in_the_environment_goes_to_any_address_unless_another_is_given(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    with WireServer([api.reply("hi"), api.reply("hi")]) as server:
        for key in ({}, {"api_key": "none"}):
            model = api.adapter("gpt-x", base_url=f"{server.url}/v1", **key)
            await ask(model)
            await model.aclose()

    assert [received.headers["authorization"] for received in server.requests] == ["Bearer mine", "Bearer none"]


@both
@pytest.mark.parametrize(
    "options",
    [
        {"client": openai.AsyncOpenAI(api_key="k"), "api_key": "k"},
        {"client": openai.AsyncOpenAI(api_key="k"), "base_url": "http://there"},
        {"client": object()},
        {"timeout_ms": 0},
        {"timeout_ms": 1.5},
    ],
)
def test_options_that_do_not_go_together_are_refused(api: Api, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition):
        api.adapter("gpt-x", **options)


@pytest.mark.parametrize("given", [{"input": -1.0}, {"output": "2"}, {"cache_read": float("nan")}])
def test_prices_that_are_none_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition, match=next(iter(given))):
        Prices(**({"input": 1.0, "output": 1.0} | given))


@both
def test_a_model_goes_on_on_another_event_loop(api: Api) -> None:
    with WireServer([api.reply("one"), api.reply("two")]) as server:
        model = api.model(server.url)

        async def once() -> str:
            found = await ask(model)
            await model.aclose()
            assert found.message is not None, found.error
            return found.message.text

        assert [asyncio.run(once()), asyncio.run(once())] == ["one", "two"]


@both
async def test_closing_hangs_up_and_the_model_can_be_used_again(api: Api) -> None:
    with WireServer([api.reply("one"), api.reply("two")]) as server:
        model = api.model(server.url, headers={"x-mine": "yes"})
        await ask(model)
        await model.aclose()
        found = await ask(model)
        await model.aclose()

    assert found.message is not None and found.message.text == "two"
    assert server.connections == 2
    assert server.requests[1].headers["x-mine"] == "yes"


@both
async def test_a_stream_that_nobody_reads_on_hangs_up(api: Api) -> None:
    with WireServer([api.broken(api.events("Hello"), 5 if api is RESPONSES else 3, "hang")]) as server:
        model = api.model(server.url)
        stream = model.stream(request())
        await stream.__anext__()
        await stream.aclose()
        await asyncio.to_thread(server.left)

        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        await model.aclose()


@both
async def test_one_model_serves_many_lanes_at_once(api: Api) -> None:
    count = 5
    with WireServer([api.broken(api.events("Hello"), 3, "hang") for _ in range(count)]) as server:
        model = api.model(server.url)
        async with open_session(":memory:") as session:
            lanes = [await session.lane(f"lane-{n}", Agent(model=model)) for n in range(count)]
            running = [asyncio.create_task(lane.run("go")) for lane in lanes]
            await asyncio.to_thread(server.hanging, count)
            await asyncio.gather(*(lane.abort() for lane in lanes))
            results = await asyncio.gather(*running)
        await asyncio.to_thread(server.left, count)
        await model.aclose()

    assert [result.status for result in results] == ["aborted"] * count
    assert server.connections == count


def test_what_a_model_is_called_is_what_its_name_says() -> None:
    models = [
        RESPONSES.adapter("gpt-5"),
        CHAT.adapter("qwen3", provider="local"),
        *Agent(model="openai:o3").models.values(),
    ]

    assert [str(model.identity) for model in models] == ["openai:gpt-5", "local:qwen3", "openai:o3"]
    assert [repr(model) for model in models[:2]] == ["OpenAIModel('gpt-5')", "OpenAIChatModel('qwen3')"]
