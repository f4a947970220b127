"""Claim: whichever adapter asks: it asks once, hangs up at once, leaves nothing behind, and tells no secret."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("anthropic")

from agentlane import Agent, AssistantMessage, InvalidDefinition, ModelError, ModelLimits, RetryPolicy, open_session
from agentlane.models.anthropic import AnthropicModel
from tests.wire import anthropic_format
from tests.wire.asking import ask, request
from tests.wire.openai_answers import deltas, response
from tests.wire.openai_apis import CHAT, RESPONSES
from tests.wire.server import Reply, WireServer, failure

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

SECRET = "sk-test-0123456789"


class Adapter(NamedTuple):
    """A model of a server, a client of its SDK, and what its provider says."""

    name: str
    model: Callable[..., Any]
    client: Callable[..., Any]
    reply: Callable[[str], Reply]
    begun: Reply
    """An answer that has said something, and hangs."""


def _openai(api: Any, shown: int) -> Adapter:
    return Adapter(
        api.name,
        lambda url, **options: api.model(url, **{"api_key": SECRET} | options),
        lambda url, **options: openai.AsyncOpenAI(base_url=f"{url}/v1", **{"api_key": SECRET} | options),
        api.reply,
        api.broken(api.events("Hello"), shown, "hang"),
    )


ADAPTERS = [
    _openai(RESPONSES, 6),
    _openai(CHAT, 3),
    Adapter(
        "anthropic",
        lambda url, **options: AnthropicModel("claude-test", base_url=url, **{"api_key": SECRET} | options),
        lambda url, **options: anthropic.AsyncAnthropic(base_url=url, **{"api_key": SECRET} | options),
        lambda text: anthropic_format.reply(anthropic_format.answer(anthropic_format.text(text))),
        anthropic_format.reply(anthropic_format.answer(anthropic_format.text("a", "b"))[:5], end="hang"),
    ),
]
each = pytest.mark.parametrize("adapter", ADAPTERS, ids=[adapter.name for adapter in ADAPTERS])


def with_client(adapter: Adapter, client: Any) -> Any:
    return {"responses": RESPONSES.adapter, "chat": CHAT.adapter, "anthropic": AnthropicModel}[adapter.name](
        "a-model", client=client
    )


@each
async def test_the_sdk_counts_no_retry_and_is_asked_once(adapter: Adapter) -> None:
    replies = [failure(500, {}, retry_after="0", x_should_retry="true"), adapter.reply("hi")]
    with WireServer(replies) as server:
        model = adapter.model(server.url)
        first, second = await ask(model), await ask(model)
        await model.aclose()

    assert first.message is None and second.message is not None and second.message.text == "hi"
    assert [received.headers["x-stainless-retry-count"] for received in server.requests] == ["0", "0"]


@each
@pytest.mark.parametrize(
    "options",
    [
        *({"prices": given} for given in ("cheap", {"input": 1})),
        *({"limits": given} for given in ("big", ModelLimits(output_tokens=0))),
        *({"headers": given} for given in (["a"], {"X-a": 1}, {"X-a": None}, {1: "a"})),
        *({"provider": given} for given in ("", None)),
        *({"timeout_ms": given} for given in (0, True, "1")),
        {"api_key": 5},
    ],
    ids=str,
)
def test_options_of_the_wrong_kind_are_refused_where_the_model_is_made(
    adapter: Adapter, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidDefinition, match=next(iter(options))):
        adapter.model("http://there", **options)


@each
def test_a_model_without_a_name_or_with_an_address_of_another_kind_is_refused(adapter: Adapter) -> None:
    adapter_of = type(adapter.model("http://there"))
    for name in ("", " ", None, 5):
        with pytest.raises(InvalidDefinition, match="name="):
            adapter_of(name)
    with pytest.raises(InvalidDefinition, match="base_url="):
        adapter_of("a-model", base_url=5)


@each
@pytest.mark.parametrize("tools", ["abc", 5, [None], {"a": 1}], ids=str)
async def test_tools_in_the_settings_that_are_no_list_are_an_invalid_request_that_is_not_sent(
    adapter: Adapter, tools: Any
) -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=adapter.model("http://there"), settings={"tools": tools}))
        failed = await lane.run("go")

    assert failed.error is not None and "'tools'" in failed.error.message
    assert (failed.code, failed.error.retryable, failed.usage.unknown_rows) == ("invalid_request", False, 0)


@each
async def test_cancelled_before_the_first_byte_it_hangs_up_and_is_not_sent_again(adapter: Adapter) -> None:
    with WireServer([Reply(end="hang"), adapter.reply("hi")]) as server:
        model = adapter.model(server.url)
        stream: Any = model.stream(request())
        task = asyncio.create_task(anext(stream))
        await asyncio.to_thread(server.asked, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await stream.aclose()
        await asyncio.to_thread(server.left)

        found = await ask(model)
        await model.aclose()

    assert found.message is not None and len(server.requests) == 2


@each
async def test_a_connection_that_is_dropped_behind_its_headers_is_a_cut_one(adapter: Adapter) -> None:
    with WireServer([Reply(end="cut"), Reply(end="reset"), Reply()]) as server:
        model = adapter.model(server.url)
        errors = [(await ask(model)).error for _ in range(3)]
        await model.aclose()

    assert [(error.kind, error.retryable, error.sent) for error in errors if isinstance(error, ModelError)] == [
        ("stream_cut", True, True)
    ] * 3


@each
async def test_a_stream_that_is_closed_half_way_leaves_nothing_of_the_sdk_suspended(adapter: Adapter) -> None:
    """A generator that is left waiting is closed by the loop, later, in a task of its own; or never."""
    made: list[Any] = []
    before = sys.get_asyncgen_hooks()

    def first(generator: Any) -> None:
        made.append(generator)
        if before.firstiter is not None:
            before.firstiter(generator)

    with WireServer([adapter.begun]) as server:
        model = adapter.model(server.url)
        stream: Any = model.stream(request())
        sys.set_asyncgen_hooks(firstiter=first)
        try:
            await anext(stream)
            await stream.aclose()
        finally:
            sys.set_asyncgen_hooks(*before)
        await asyncio.to_thread(server.left)
        await model.aclose()

    assert made and [generator for generator in made if generator.ag_frame is not None] == []


@each
async def test_no_secret_is_told_or_stored_or_shown(
    adapter: Adapter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = failure(401, {"error": {"message": f"the key {SECRET} is not known, nor is of-a-header"}})
    caplog.set_level(logging.DEBUG, logger="agentlane")
    for name in ("s.db", "s.jsonl"):
        with WireServer([told]) as server:
            model = adapter.model(server.url, headers={"x-token": "Bearer of-a-header"})
            async with open_session(tmp_path / name) as session:
                lane = await session.lane("main", Agent(model=model))
                result = await lane.run("go")
            await model.aclose()

        assert result.error is not None and result.error.code == "authentication_failed"
        assert result.error.message == "the provider answered 401: the key *** is not known, nor is ***"
        assert SECRET not in repr(model) + repr(result) + caplog.text
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"is not known" in stored
    assert SECRET.encode() not in stored and b"of-a-header" not in stored


@each
async def test_a_failure_that_an_answer_ends_in_says_no_secret_either(adapter: Adapter) -> None:
    said = f"not with the key {SECRET}"
    replies = {
        "responses": response(status="failed", error={"code": "server_error", "message": said}),
        "chat": deltas({"refusal": said}),
        "anthropic": anthropic_format.reply(anthropic_format.answer(reason="refusal", details={"explanation": said})),
    }
    with WireServer([replies[adapter.name]]) as server:
        model = adapter.model(server.url)
        found = await ask(model)
        await model.aclose()

    assert found.message is not None and found.message.error is not None
    assert found.message.error.message.endswith("not with the key ***")


@each
async def test_no_secret_is_told_where_a_long_text_was_cut_in_it(adapter: Adapter) -> None:
    texts = [f"{'x' * length} the key {SECRET}" for length in range(1_940, 1_990)]
    with WireServer([failure(400, {"error": {"message": text}}) for text in texts]) as server:
        model = adapter.model(server.url)
        told = [str((await ask(model)).error) for _ in texts]
        await model.aclose()

    ends = {text[1_900:].lstrip("x") for text in told}
    assert any("***" in end for end in ends) and any("the key" in end and "***" not in end for end in ends)
    assert [end for end in ends if SECRET[:4] in end] == []


@each
@pytest.mark.parametrize("key", [f"{SECRET}\n", f"{SECRET}\r\nx: y"])
async def test_a_key_that_is_no_header_is_a_failure_at_once_that_does_not_say_it(adapter: Adapter, key: str) -> None:
    """As one is that was read from a file with the end of its line."""
    with WireServer() as server:
        model = adapter.model(server.url, api_key=key)
        found = await ask(model)
        await model.aclose()

    assert isinstance(found.error, ModelError) and not server.requests
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("invalid_request", False, False)
    assert SECRET not in str(found.error) and found.error.__cause__ is None and found.error.__suppress_context__


@each
@pytest.mark.parametrize("url", ["localhost:1", "nonsense", "http://[::1"])
async def test_an_address_that_is_none_is_a_failure_at_once(adapter: Adapter, url: str) -> None:
    model = adapter.model(url)
    found = await ask(model)
    await model.aclose()

    assert isinstance(found.error, ModelError), repr(found.error)
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("invalid_request", False, False)


@each
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the connection that the first loop leaves open
def test_a_client_of_ones_own_goes_on_on_another_event_loop(adapter: Adapter) -> None:
    """It may try the connection that the first loop left open, which cannot be used; the next attempt goes on."""
    with WireServer(lambda _: adapter.reply("hi")) as server:
        first, second = _on_two_loops(adapter, server)
        gc.collect()

    assert first == ("hi", [])
    assert second[0] == "hi" and all("give each loop a client of its own" in told for told in second[1])


def _on_two_loops(adapter: Adapter, server: WireServer) -> list[tuple[str, list[str]]]:
    client = adapter.client(server.url)
    model = with_client(adapter, client)

    async def once(*, last: bool) -> tuple[str, list[str]]:
        async with open_session(":memory:") as session:
            lane = await session.lane("main", Agent(model=model, retry=RetryPolicy(attempts=2, base_ms=0)))
            result = await lane.run("go")
            answers = [m for m in await lane.messages() if isinstance(m, AssistantMessage)]
        if last:
            await client.close()
        return result.text, [answer.error.message for answer in answers if answer.error]

    return [asyncio.run(once(last=last)) for last in (False, True)]


@each
async def test_a_client_that_is_closed_is_a_failure_at_once(adapter: Adapter) -> None:
    with WireServer() as server:
        client = adapter.client(server.url)
        await client.close()
        found = await ask(with_client(adapter, client))

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("invalid_request", False, False)
    assert "closed" in str(found.error)
