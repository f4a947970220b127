"""Claim: a model of pydantic-ai's is had by its name or as an object, on one event loop after another; what is missing
for it is named; and whatever pydantic-ai raises is told as the failure that it stands for.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("openai")

from pydantic_ai import exceptions as raised
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from agentlane import (
    Agent,
    AssistantMessage,
    InvalidDefinition,
    ModelError,
    ModelIdentity,
    TextPart,
    ToolDefinition,
    ToolResultMessage,
    Usage,
    open_session,
)
from agentlane.models.names import model_named
from agentlane.models.pydantic_ai import PydanticAIModel
from agentlane.models.pydantic_ai_answer import usage_of
from agentlane.models.pydantic_ai_errors import failure_of
from agentlane.models.pydantic_ai_marks import Marks, Origin
from agentlane.models.pydantic_ai_request import Options, sent_request
from tests.wire.asking import ask, request, said
from tests.wire.openai_answers import chat
from tests.wire.pydantic_ai_places import openai_client
from tests.wire.server import WireServer, failure


def test_a_name_is_handed_on_behind_its_first_word() -> None:
    model: Any = model_named("pydantic-ai:openai-chat:ft:gpt-4.1:mine")

    assert (model.identity.provider, model.identity.name) == ("pydantic-ai", "openai-chat:ft:gpt-4.1:mine")
    assert repr(model) == "PydanticAIModel('openai-chat:ft:gpt-4.1:mine')"


@pytest.mark.parametrize("name", ["acme:large", "large", "gpt-5"])
def test_a_name_that_pydantic_ai_does_not_know_is_refused_where_the_agent_is_made(name: str) -> None:
    with pytest.raises(InvalidDefinition, match=name):
        Agent(model=f"pydantic-ai:{name}")


def test_an_sdk_that_is_missing_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "groq", None)
    monkeypatch.delitem(sys.modules, "pydantic_ai.providers.groq", raising=False)

    with pytest.raises(InvalidDefinition, match=r"groq.*not installed.*pydantic-ai-slim\[groq\]"):
        Agent(model="pydantic-ai:groq:llama-3.3-70b")


async def test_a_missing_key_is_seen_when_a_request_is_made_and_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    found = await ask(model_named("pydantic-ai:openai-chat:gpt-5"))

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.sent, found.error.retryable) == ("authentication_failed", False, False)
    assert "OPENAI_API_KEY" in str(found.error)


def test_a_named_model_goes_on_on_another_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with WireServer([chat("one"), chat("two"), failure(500, {}, retry_after="0"), chat("three")]) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        model = PydanticAIModel("openai-chat:gpt-x")

        async def once() -> str:
            async with open_session(":memory:") as session:
                lane = await session.lane("main", Agent(model=model))
                result = await lane.run("go")
            await model.aclose()
            await model.aclose()
            return result.text or str(result.error)

        assert [asyncio.run(once()) for _ in range(2)] == ["one", "two"]

        async def asked() -> Any:
            try:
                return await ask(model)
            finally:
                await model.aclose()

        found = asyncio.run(asked())
        assert isinstance(found.error, ModelError) and found.error.kind == "server_error"
        assert len(server.requests) == 3, "the client that pydantic-ai made tried again by itself"


@pytest.mark.parametrize(
    "options",
    [{"timeout_ms": 0}, {"timeout_ms": 1.5}, {"prices": "cheap"}, {"limits": 5}, {"headers": ["a"]}, {"provider": ""}],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition, match=next(iter(options))):
        PydanticAIModel("test", **options)
    with pytest.raises(InvalidDefinition, match=r"a pydantic_ai\.models\.Model is needed"):
        PydanticAIModel(object())


async def test_the_second_of_a_chain_answers_and_its_marks_say_whose_they_are() -> None:
    with WireServer(
        [failure(503, {}), chat("", ("c", "f", "{}"), reasoning="hm"), failure(503, {}), chat("ok")]
    ) as server:
        async with openai_client(server.url) as client:
            chain = [OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client)) for name in ("a", "b")]
            model = PydanticAIModel(FallbackModel(*chain), name="chain")
            first = (await ask(model)).message
            assert first is not None
            own = AssistantMessage(content=first.content, stop_reason="tool_calls", model=model.identity)
            result = ToolResultMessage(call_id="c", name="f", content=(TextPart(text="r"),))
            second = await ask(model, request(said("go"), own, result))

    assert second.message is not None and second.message.text == "ok"
    assert [each.body["model"] for each in server.requests] == ["a", "b", "a", "b"]
    assert server.requests[-1].body["messages"][1]["reasoning"] == "hm"


async def test_when_every_model_of_a_chain_fails_what_may_pass_decides() -> None:
    with WireServer([failure(503, {}, retry_after="3"), failure(400, {"error": {"message": "no"}})]) as server:
        async with openai_client(server.url) as client:
            chain = [OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client)) for name in ("a", "b")]
            found = await ask(PydanticAIModel(FallbackModel(*chain)))

    assert isinstance(found.error, ModelError)
    assert (found.error.kind, found.error.retryable, found.error.retry_after_ms) == ("overloaded", True, 3_000)


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


HTTP = raised.ModelHTTPError
RAISED: dict[str, tuple[Exception, bool, str, bool, bool]] = {
    # what was raised, whether the answer had begun, and the failure: kind, retryable, sent
    "filter": (raised.ContentFilterError("no"), False, "content_filter", False, True),
    "misuse": (raised.UserError("no such setting"), False, "invalid_request", False, False),
    "no key": (raised.UserError("Set the `X_API_KEY` variable"), False, "authentication_failed", False, False),
    "odd": (raised.UnexpectedModelBehavior("what is this?"), True, "invalid_response", True, True),
    "empty": (
        raised.UnexpectedModelBehavior("Streamed response ended without content"),
        False,
        "stream_cut",
        True,
        True,
    ),
    "too many": (raised.ConcurrencyLimitExceeded("busy"), False, "overloaded", True, False),
    "deadline": (raised.ModelRequestTimeout("m", 3), True, "timeout", True, True),
    "no pool": (raised.ModelTimeoutError("m", "slow", phase="pool"), False, "timeout", True, False),
    "silent": (raised.ModelTimeoutError("m", "slow", phase="read"), True, "stream_cut", True, True),
    "no network": (raised.ModelConnectionError("m", "no", phase="connect"), False, "connection_failed", True, False),
    "broken": (raised.ModelConnectionError("m", "no", phase="read"), True, "stream_cut", True, True),
    "no JSON": (caused(raised.ModelAPIError("m", "no"), ValueError("x")), True, "invalid_response", True, True),
    "lost": (caused(raised.ModelAPIError("m", "no"), ConnectionError("x")), True, "stream_cut", True, True),
    "nothing known": (raised.ModelAPIError("m", "no"), True, "model_error", True, True),
    "rate without status": (raised.ModelRateLimitError("m", "slow"), True, "rate_limited", True, True),
    "day is over": (
        HTTP.for_category(raised.ModelQuotaExceededError, status_code=429, model_name="m"),
        False,
        "quota_exhausted",
        False,
        True,
    ),
    "overflow": (
        HTTP.for_category(raised.ModelContextWindowExceededError, status_code=400, model_name="m", body="too much"),
        False,
        "context_overflow",
        False,
        True,
    ),
    "wrong key": (
        HTTP.for_category(raised.ModelAuthenticationError, status_code=400, model_name="m"),
        False,
        "authentication_failed",
        False,
        True,
    ),
    "never again": (HTTP(500, "m", headers={"x-should-retry": "false"}), False, "server_error", False, True),
    "not there": (NotImplementedError("no files"), False, "invalid_request", False, False),
    "an SDK's own": (TimeoutError("slow"), False, "timeout", True, True),
}


@pytest.mark.parametrize("given", RAISED)
def test_what_pydantic_ai_raises_is_told_as_what_it_is(given: str) -> None:
    error, begun, *wanted = RAISED[given]
    found = failure_of(error, begun=begun)

    assert found is not None
    assert [found.kind, found.retryable, found.sent] == wanted


def test_a_wait_that_only_pydantic_ai_can_read_is_told() -> None:
    found = failure_of(raised.ModelRateLimitError("m", "slow", retry_after=1.5), begun=False)

    assert found is not None and found.retry_after_ms == 1_500


async def test_a_key_that_the_provider_repeats_is_in_no_message() -> None:
    body = {"error": {"message": "wrong key sk-secret-1234, header hidden-5678"}}
    with WireServer([failure(401, body)]) as server:
        async with openai_client(server.url, key="sk-secret-1234") as client:
            own = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            found = await ask(PydanticAIModel(own, headers={"x-pass": "hidden-5678"}))

    assert isinstance(found.error, ModelError) and found.error.kind == "authentication_failed"
    assert "wrong key" in str(found.error)
    assert "sk-secret" not in repr(found.error) and "hidden-5678" not in repr(found.error)


def test_a_count_that_was_not_given_is_unknown_and_never_zero() -> None:
    assert usage_of(RequestUsage(input_tokens=10, details={"reasoning_tokens": 3})) == Usage(
        input_tokens=10, output_tokens=None, reasoning_tokens=3
    )
    assert usage_of(RequestUsage()) is None
    assert usage_of(RequestUsage(input_tokens=10, unmeasured_requests=1)) is None


def test_a_mistake_in_code_is_no_failure_of_a_request() -> None:
    assert failure_of(KeyError("x"), begun=False) is None


def test_a_choice_of_tools_says_the_names_that_are_sent_through_pydantic_ai_too() -> None:
    tools = [ToolDefinition(name=name, description="", parameters={"type": "object"}) for name in ("files/read", "b")]
    given = request(tools=tools, settings={"tool_choice": ["files/read", "b"]})
    options, marks = Options({}, {}, (), False), Marks(Origin("openai", None))

    sent = sent_request(given, options, marks, ModelIdentity(provider="p", name="m"))

    assert sent.settings["tool_choice"] == [tool.name for tool in sent.parameters.function_tools]
    assert "files/read" not in sent.settings["tool_choice"] and "b" in sent.settings["tool_choice"]
