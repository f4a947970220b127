"""Claim: a bound on an answer is sent by every adapter, and a summary is asked for in plain text and without tools."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("anthropic")
pytest.importorskip("openai")
pytest.importorskip("pydantic_ai")

from pydantic_ai.models.anthropic import AnthropicModel as TheirAnthropicModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.providers.anthropic import AnthropicProvider

from agentlane import Model, ToolDefinition
from agentlane.models.anthropic import AnthropicModel
from agentlane.models.openai import OpenAIModel
from agentlane.models.openai_chat import OpenAIChatModel
from agentlane.models.pydantic_ai import PydanticAIModel
from tests.wire import anthropic_format
from tests.wire.anthropic_client import client_of
from tests.wire.anthropic_rules import Provider
from tests.wire.asking import ask, request
from tests.wire.openai_apis import CHAT, RESPONSES
from tests.wire.openai_wire import Wire
from tests.wire.pydantic_ai_places import chat_model, openai_client
from tests.wire.server import WireServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOK = ToolDefinition(name="look", description="Looks.", parameters={"type": "object"})
SUMMARY: dict[str, Any] = {"purpose": "summary", "max_output_tokens": 4_096}
THINKS = {"type": "enabled", "budget_tokens": 10_000}


def reply() -> Any:
    return anthropic_format.reply(anthropic_format.answer(anthropic_format.text("short")))


async def of_anthropic(**given: Any) -> dict[str, Any]:
    """The body that Anthropic gets of a request, which it takes."""
    with Provider(reply()) as provider:
        async with client_of(provider) as client:
            found = await ask(AnthropicModel("claude-test", client=client), request(**given))
        provider.require_kept()
    assert found.message is not None and found.message.text == "short"
    body: dict[str, Any] = provider.bodies[0]
    return body


async def of_pydantic_ai(own: Any = None, native_tools: Any = (), **given: Any) -> dict[str, Any]:
    """The body that Anthropic gets of a request through pydantic-ai, which it takes."""
    with Provider(reply()) as provider:
        async with client_of(provider) as client:
            theirs = TheirAnthropicModel(
                "claude-test", provider=AnthropicProvider(anthropic_client=client), settings=own
            )
            model = PydanticAIModel(theirs, native_tools=native_tools)
            found = await ask(model, request(**given))
        assert found.message is not None, found.error
        provider.require_kept()
    assert found.message.text == "short"
    body: dict[str, Any] = provider.bodies[0]
    return body


def of_responses(**given: Any) -> dict[str, Any]:
    fields: dict[str, Any] = OpenAIModel("gpt-5", api_key="k").stream(request(**given))._fields  # type: ignore[attr-defined]
    return fields


def of_chat(url: str | None = None, **given: Any) -> dict[str, Any]:
    model = OpenAIChatModel("gpt-5", api_key="k", base_url=url)
    fields: dict[str, Any] = model.stream(request(**given))._fields  # type: ignore[attr-defined]
    return fields


@pytest.mark.parametrize(
    ("setting", "bound", "sent"), [(None, 500, 500), (700, 500, 500), (300, 500, 300), (500, 500, 500)]
)
async def test_a_bound_is_sent_in_the_place_of_a_greater_one(setting: int | None, bound: int, sent: int) -> None:
    def settings(name: str) -> dict[str, Any]:
        return {} if setting is None else {name: setting}

    responses = of_responses(settings=settings("max_output_tokens"), max_output_tokens=bound)
    anthropic = await of_anthropic(settings=settings("max_tokens"), max_output_tokens=bound)
    pydantic_ai = await of_pydantic_ai(settings=settings("max_tokens"), max_output_tokens=bound)
    of_its_own = await of_pydantic_ai(own=settings("max_tokens"), max_output_tokens=bound)

    assert responses["max_output_tokens"] == sent
    assert [body["max_tokens"] for body in (anthropic, pydantic_ai, of_its_own)] == [sent] * 3
    for name, other in (("max_completion_tokens", "max_tokens"), ("max_tokens", "max_completion_tokens")):
        chat = of_chat(settings=settings(name) or {name: bound}, max_output_tokens=bound)
        assert (chat[name], other in chat) == (sent, False)


async def test_a_chat_is_bounded_by_the_field_that_its_server_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    assert of_chat(max_output_tokens=9)["max_completion_tokens"] == 9
    assert "max_tokens" not in of_chat(max_output_tokens=9)
    elsewhere = of_chat("http://localhost:1/v1", max_output_tokens=9)
    assert (elsewhere["max_tokens"], "max_completion_tokens" in elsewhere) == (9, False)


async def test_without_a_bound_nothing_is_said_of_one(wire: Wire) -> None:
    assert "max_output_tokens" not in of_responses()
    assert not {"max_tokens", "max_completion_tokens"} & set(of_chat())
    assert (await of_anthropic())["max_tokens"] == 16_384


async def test_reasoning_is_left_out_where_its_budget_does_not_fit_under_the_bound() -> None:
    manages = {"edits": [{"type": "clear_thinking_20251015"}]}
    small = {"type": "enabled", "budget_tokens": 1_024}

    assert "thinking" not in await of_anthropic(settings={"thinking": THINKS}, max_output_tokens=10_000)
    kept = await of_anthropic(settings={"thinking": small, "max_tokens": 20_000}, max_output_tokens=2_000)
    assert (kept["thinking"], kept["max_tokens"]) == (small, 2_000)
    left = await of_anthropic(settings={"thinking": THINKS, "context_management": manages}, max_output_tokens=2_000)
    assert not {"thinking", "context_management"} & set(left)

    assert "thinking" not in await of_pydantic_ai(settings={"anthropic_thinking": THINKS}, max_output_tokens=10_000)
    kept = await of_pydantic_ai(settings={"anthropic_thinking": small}, max_output_tokens=2_000)
    assert (kept["thinking"], kept["max_tokens"]) == (small, 2_000)
    off = await of_pydantic_ai(own={"anthropic_thinking": THINKS, "max_tokens": 20_000}, max_output_tokens=2_000)
    assert (off["thinking"], off["max_tokens"]) == ({"type": "disabled"}, 2_000)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}], ids=str)
async def test_anthropic_is_asked_for_a_summary_without_tools_and_reasoning(choice: dict[str, Any]) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {}, "additionalProperties": False}}
    settings = {
        "tool_choice": choice,
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "container": "c",
        "mcp_servers": [],
        "output_config": {"effort": "low", "format": form},
        "temperature": 1,
    }

    body = await of_anthropic(settings=settings, **SUMMARY)

    left = {"tools", "tool_choice", "thinking", "context_management", "container", "mcp_servers"}
    assert not left & set(body)
    assert body["output_config"] == {"effort": "low"}
    assert (body["max_tokens"], body["temperature"]) == (4_096, 1)
    assert "output_config" not in await of_anthropic(settings={"output_config": {"format": form}}, **SUMMARY)
    answered = await of_anthropic(
        tools=[LOOK], settings={"tool_choice": {"type": "any"}, "output_config": {"effort": "low"}}
    )
    assert (answered["tool_choice"], answered["output_config"]) == ({"type": "any"}, {"effort": "low"})


async def test_openai_is_asked_for_a_summary_without_tools_and_in_plain_text(wire: Wire) -> None:
    settings = {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "tools": [{"type": "web_search"}],
        "include": ["web_search_call.results"],
        "prompt": {"id": "p"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "high"},
    }

    body = await wire.sent(RESPONSES, settings=settings, **SUMMARY)

    left = {"tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "include", "prompt"}
    assert not left & set(body)
    assert (body["text"], body["reasoning"]) == ({"verbosity": "low"}, {"effort": "high"})
    assert body["max_output_tokens"] == 4_096
    assert "text" not in of_responses(settings={"text": {"format": {"type": "json_object"}}}, **SUMMARY)
    assert of_responses(settings=settings)["text"] == settings["text"], "an answer is asked for as the settings say"
    assert of_responses(settings=settings)["prompt"] == {"id": "p"}


async def test_a_chat_is_asked_for_a_summary_without_tools_and_in_plain_text(wire: Wire) -> None:
    settings = {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "function_call": "auto",
        "tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "object", "properties": {}}}}],
        "response_format": {"type": "json_object"},
        "web_search_options": {},
        "prediction": {"type": "content", "content": "x"},
        "temperature": 0.5,
    }

    body = await wire.sent(CHAT, settings=settings, **SUMMARY)

    assert not (set(settings) - {"temperature"}) & set(body)
    assert (body["temperature"], body["max_tokens"]) == (0.5, 4_096)
    assert of_chat(settings=settings)["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("choice", ["required", ["look"]], ids=str)
@pytest.mark.parametrize(
    "thinking",
    [
        {"thinking": "high"},
        {"anthropic_thinking": {"type": "adaptive"}},
        {"anthropic_thinking": THINKS},
        {"extra_body": {"thinking": THINKS}},
    ],
    ids=str,
)
async def test_pydantic_ai_is_asked_for_a_summary_without_tools_and_reasoning(
    choice: Any, thinking: dict[str, Any]
) -> None:
    settings = {"tool_choice": choice, "parallel_tool_calls": False, **thinking, "temperature": 0.5}

    body = await of_pydantic_ai(native_tools=[WebSearchTool()], settings=settings, **SUMMARY)

    assert not {"tools", "tool_choice", "thinking"} & set(body)
    assert (body["max_tokens"], body["temperature"]) == (4_096, 0.5)


@pytest.mark.parametrize("own", [{"thinking": "high"}, {"anthropic_thinking": THINKS}], ids=str)
async def test_reasoning_that_a_model_object_has_by_itself_is_switched_off_for_a_summary(own: dict[str, Any]) -> None:
    body = await of_pydantic_ai(own={"max_tokens": 20_000, **own}, **SUMMARY)

    assert body.get("thinking", {"type": "disabled"}) == {"type": "disabled"}
    assert body["max_tokens"] == 4_096


async def test_a_summary_goes_over_chat_completions_through_pydantic_ai() -> None:
    with WireServer([CHAT.reply("short")]) as server:
        async with openai_client(server.url) as client:
            model: Model = chat_model(client)
            settings = {"tool_choice": "required", "extra_body": {"response_format": {"type": "json_object"}}}
            found = await ask(model, request(settings=settings, **SUMMARY))

    assert found.message is not None and found.message.text == "short", found.error
    body = server.requests[0].body
    assert body["max_completion_tokens"] == 4_096
    assert not {"tools", "tool_choice", "response_format"} & set(body)
