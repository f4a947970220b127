"""Claim: each failure of a request is told apart and asked for once, and a request that is stopped hangs up."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from agentlane import Agent, ModelError, Prompt, RetryPolicy, RetryReason, Settled, TextDelta, Waiting, open_session
from agentlane.testing import ManualClock
from tests.wire.asking import ask, request
from tests.wire.openai_apis import CHAT, RESPONSES, Api, both
from tests.wire.server import Reply, WireServer, failure

STATUSES: list[tuple[Reply, str, bool, int | None]] = [
    (failure(400, {"error": {"message": "bad", "type": "invalid_request_error"}}), "invalid_request", False, None),
    (failure(400, {"error": {"message": "m", "code": "context_length_exceeded"}}), "context_overflow", False, None),
    (failure(401, {"error": {"message": "m", "code": "invalid_api_key"}}), "authentication_failed", False, None),
    (failure(403, {"error": {"message": "m"}}), "permission_denied", False, None),
    (failure(404, {"error": {"message": "m", "code": "model_not_found"}}), "not_found", False, None),
    (failure(408, {}), "timeout", True, None),
    (failure(409, {}), "conflict", True, None),
    (failure(413, {}), "context_overflow", False, None),
    (failure(429, {"error": {"message": "m"}}, retry_after="1.5"), "rate_limited", True, 1_500),
    (failure(429, {"error": {"message": "m"}}, retry_after_ms="70"), "rate_limited", True, 70),
    (
        failure(429, {}, retry_after="Wed, 21 Oct 2026 12:00:07 GMT", date="Wed, 21 Oct 2026 12:00:00 GMT"),
        "rate_limited",
        True,
        7_000,
    ),
    (failure(429, {"error": {"message": "m", "code": "insufficient_quota"}}), "quota_exhausted", False, None),
    (failure(500, {"error": {"message": "m"}}), "server_error", True, None),
    (failure(500, {}, x_should_retry="false"), "server_error", False, None),
    (failure(503, {}, retry_after="2"), "overloaded", True, 2_000),
    (failure(529, {"error": {"type": "overloaded_error", "message": "m"}}), "overloaded", True, None),
    (Reply(status=502, pieces=[b"<html>bad gateway"]), "server_error", True, None),
]


@both
async def test_each_status_is_told_apart_and_asked_for_once(api: Api) -> None:
    with WireServer([reply for reply, *_ in STATUSES]) as server:
        model = api.model(server.url)
        for number, (reply, kind, retryable, after) in enumerate(STATUSES, start=1):
            found = await ask(model)

            assert isinstance(found.error, ModelError), found
            got = (found.error.kind, found.error.retryable, found.error.retry_after_ms, found.error.sent)
            assert got == (kind, retryable, after, True), (reply, str(found.error))
            assert len(server.requests) == number, "every attempt is one of the library's"
            assert str(reply.status) in str(found.error)
        await model.aclose()


@both
async def test_nobody_at_the_address_means_that_nothing_was_sent(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    model = api.model(url)

    found = await ask(model)
    await model.aclose()

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("connection_failed", True, False)


@both
@pytest.mark.parametrize("shown", [False, True])
async def test_a_provider_that_says_nothing_any_more_is_given_up(api: Api, shown: bool) -> None:
    events = api.events("Hello")
    reply = api.broken(events, 3 if shown else 0, "hang")
    with WireServer([reply]) as server:
        model = api.model(server.url, timeout_ms=200)
        found = await ask(model)
        await asyncio.to_thread(server.left)
        await model.aclose()

    assert isinstance(found.error, ModelError)
    assert (found.error.retryable, found.error.sent) == (True, True)
    assert found.error.kind in ("stream_cut", "timeout")  # by whether the answer had begun by then


@both
async def test_a_connection_that_breaks_before_the_answer_begins_may_have_been_charged(api: Api) -> None:
    def cut(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        model = api.model(f"http://127.0.0.1:{listener.getsockname()[1]}")
        task = asyncio.create_task(asyncio.to_thread(cut, listener))
        found = await ask(model)
        await task
        await model.aclose()

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("connection_failed", True, True)


@both
async def test_without_a_key_nothing_is_sent(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    model = api.adapter("gpt-x")

    found = await ask(model)

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable, found.error.sent) == ("authentication_failed", False, False)
    assert "OPENAI_API_KEY" in str(found.error) and "api_key=" in str(found.error)


async def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with WireServer([CHAT.reply("hi")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        agent = Agent(model="openai-chat:llama")
        found = await ask(agent.model)
        await agent.model.aclose()  # type: ignore[attr-defined]

    assert found.message is not None and found.message.text == "hi"
    assert str(agent.model.identity) == "openai-chat:llama"


@both
async def test_settings_that_are_the_librarys_are_refused_before_anything_is_sent(api: Api) -> None:
    with WireServer() as server:
        model = api.model(server.url)
        with pytest.raises(ModelError, match="'stream' is the library's to fill") as raised:
            model.stream(request(settings={"stream": False}))

        assert not raised.value.sent and not server.requests


@both
async def test_an_abort_closes_the_connection_and_keeps_what_was_shown(api: Api) -> None:
    events = api.events("Hello")
    with WireServer([api.broken(events, 6 if api is RESPONSES else 3, "hang")]) as server:
        model = api.model(server.url)
        async with open_session(":memory:") as session:
            lane = await session.lane("main", Agent(model=model))
            admitted = await lane.accept(Prompt("go"))
            driving = asyncio.create_task(lane.drive(admitted.operation_id))
            async with lane.stream(admitted.operation_id) as stream:
                async for item in stream:
                    if isinstance(item, TextDelta):
                        break
            await lane.abort()
            await asyncio.to_thread(server.left)
            outcome = await driving
            entries = await lane.entries()
        await model.aclose()

    assert isinstance(outcome, Settled) and outcome.result.status == "aborted"
    answer: Any = entries[0].body
    assert answer.stop_reason == "aborted"
    assert answer.text and "Hello".startswith(answer.text)
    assert answer.usage is None


@both
async def test_a_lane_waits_as_long_as_the_provider_asked(api: Api) -> None:
    replies = [failure(429, {"error": {"message": "slow"}}, retry_after="90"), api.reply("there you are")]
    clock = ManualClock()
    with WireServer(replies) as server:
        model = api.model(server.url)
        async with open_session(":memory:", clock=clock) as session:
            lane = await session.lane("main", Agent(model=model, retry=RetryPolicy(attempts=2, base_ms=1, cap_ms=1)))
            admitted = await lane.accept(Prompt("go"))
            outcome = await lane.drive(admitted.operation_id, wait_for_retry=False)

            assert isinstance(outcome, Waiting)
            assert [reason.not_before for reason in outcome.reasons if isinstance(reason, RetryReason)] == [
                clock.now_ms() + 90_000
            ]

            waiting = asyncio.create_task(lane.drive(admitted.operation_id))
            await clock.sleeping()
            clock.advance(90_000)
            settled = await waiting
        await model.aclose()

    assert isinstance(settled, Settled) and settled.result.text == "there you are"
    assert settled.result.usage.unknown_rows == 1
