"""Claim: over OpenAI's interfaces a lane keeps its promises: nothing doubled, nothing dangling, nothing poisoned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentlane import Agent, RetryPolicy, open_session, tool
from tests.wire.openai_answers import chat_events, refused, response
from tests.wire.openai_apis import CHAT, RESPONSES, Api, both
from tests.wire.openai_wire import Wire
from tests.wire.server import Reply, failure

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = RetryPolicy(attempts=3, base_ms=0, cap_ms=0)


def requests(wire: Wire, api: Api, since: int) -> list[Any]:
    """The requests that came since then; the checker has nothing against any of them."""
    bodies = [received.body for received in wire.server.requests[since:]]
    assert [breach for body in bodies for breach in api.breaches(body)] == []
    return bodies


@both
async def test_a_retry_begins_anew_and_its_tool_runs_once(wire: Wire, api: Api) -> None:
    ran: list[str] = []

    @tool
    async def write(text: str) -> str:
        """Writes."""
        ran.append(text)
        return "written"

    events = api.events("Hello", ("c", "write", '{"text": "print(1)"}'))
    since = len(wire.server.requests)
    wire.server.add(api.broken(events, len(events) - 6, "reset"), Reply(pieces=[api.body(events)]), api.reply("done"))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=wire.model(api), tools=[write], retry=AT_ONCE))
        result = await lane.run("go")
        answers = [entry.body for entry in await lane.entries(newest_first=False)]

    bodies = requests(wire, api, since)
    assert (result.status, result.text) == ("completed", "done")
    assert ran == ["print(1)"]
    assert [getattr(body, "stop_reason", None) for body in answers] == [None, "error", "tool_calls", None, "stop"]
    assert answers[1].text and "Hello".startswith(answers[1].text), "what was shown is kept"
    assert answers[2].text == "Hello"
    assert bodies[0] == bodies[1], "nothing of the first attempt is in the second"
    assert "Hello" in json.dumps(bodies[2])
    usage = result.usage
    assert (usage.rows, usage.unknown_rows, usage.input_tokens, usage.reasoning_tokens) == (3, 1, 240, 40)


@both
async def test_failures_are_kept_and_never_sent(wire: Wire, api: Api) -> None:
    shown = [
        api.events("poison"),
        api.events("", thought="poison"),
        api.events("poison", ("c", "f", '{"poison": 1}')),
    ]
    bad = [
        failure(400, {"error": {"message": "bad"}}),
        *(api.broken(events, len(events) - 2, "cut") for events in shown),
        no(api),
        api.reply(),  # empty, and well
    ]
    since = len(wire.server.requests)
    wire.server.add(*bad, api.reply("fine"))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=wire.model(api), retry=RetryPolicy(attempts=1)))
        statuses = [(await lane.run(f"try {number}")).status for number in range(len(bad))]
        last = await lane.run("once more")

    body = requests(wire, api, since)[-1]
    assert statuses == ["failed"] * 5 + ["completed"]
    assert last.text == "fine"
    items = body["input" if api is RESPONSES else "messages"]
    assert [item["role"] for item in items] == ["user"] * 7
    assert "poison" not in json.dumps(body) and "will not" not in json.dumps(body)


@both
async def test_a_refusal_ends_the_run_with_its_code_and_its_words(wire: Wire, api: Api) -> None:
    wire.server.add(no(api))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=wire.model(api), retry=AT_ONCE))
        result = await lane.run("go")

    assert (result.status, result.code, result.usage.unknown_rows) == ("failed", "refusal", 0)
    assert result.error is not None and "I will not." in result.error.message


@both
async def test_odd_characters_go_through_and_back(wire: Wire, api: Api) -> None:
    odd = "현\\ud99c 보유 a\\u0000b\\u2028c"  # as a provider escapes it: half of a character, NUL, a line separator

    @tool
    async def echo(text: str) -> str:
        """Says it."""
        return text

    text = json.dumps({"text": "x"}).replace("x", odd)
    data = api.body(api.events("MARK", ("c", "echo", "ARGS")))
    data = data.replace(b"MAR", odd.encode()).replace(b'"K"', b'""')
    data = data.replace(b'"ARG"', json.dumps(text[:9]).encode()).replace(b'"S"', json.dumps(text[9:]).encode())
    data = data.replace(b'"ARGS"', json.dumps(text).encode()).replace(b'"MARK"', b'"' + odd.encode() + b'"')
    data = data.replace(b"MARK", odd.encode())
    since = len(wire.server.requests)
    wire.server.add(Reply(pieces=[data]), api.reply("done"), api.reply("and on"))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=wire.model(api), tools=[echo]))
        first = await lane.run("go")
        second = await lane.run("on")

    bodies = requests(wire, api, since)
    assert (first.text, second.text) == ("done", "and on")
    sent = json.dumps(bodies[-1], ensure_ascii=False)
    assert sent.count("현\ufffd 보유 a") >= 2, "what the model said, and what the tool did"
    assert "\\ud99c" not in json.dumps(bodies[-1])


@both
async def test_arguments_that_are_no_json_get_an_error_and_the_next_request_is_good(wire: Wire, api: Api) -> None:
    @tool
    async def echo(text: str) -> str:
        """Says it."""
        return text

    since = len(wire.server.requests)
    given = ('{"text": NaN}', '{"text": "pri{"text": "x"}', '{"text": "x"}')
    calls = [(f"c{number}", "echo", text) for number, text in enumerate(given)]
    wire.server.add(api.reply("", *calls), api.reply("done"))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=wire.model(api), tools=[echo]))
        result = await lane.run("go")
        results = [entry.body for entry in await lane.entries(newest_first=False)][2:5]

    assert result.text == "done"
    assert [body.is_error for body in results] == [True, True, False]
    requests(wire, api, since)


@both
@pytest.mark.parametrize("ids", [("", ""), ("call_0", "call_0"), ("x" * 80, "x" * 80)])
async def test_ids_that_repeat_or_are_empty_pair_each_call_with_its_own_result(
    wire: Wire, api: Api, ids: tuple[str, str]
) -> None:
    @tool
    async def echo(text: str) -> str:
        """Says it."""
        return f"<{text}>"

    calls = [(id, "echo", json.dumps({"text": text})) for id, text in zip(ids, "ab", strict=True)]
    again = [(id, "echo", json.dumps({"text": text})) for id, text in zip(ids, "cd", strict=True)]
    since = len(wire.server.requests)
    wire.server.add(api.reply("", *calls), api.reply("", *again), api.reply("done"))
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=wire.model(api), tools=[echo]))
        result = await lane.run("go")

    assert result.text == "done"
    body = requests(wire, api, since)[-1]
    assert paired(api, body) == {"a": "<a>", "b": "<b>", "c": "<c>", "d": "<d>"}


def no(api: Api) -> Reply:
    """An answer that refuses."""
    if api is RESPONSES:
        return response(refused("I will not."))
    return Reply(pieces=[api.body(chat_events(refusal="I will not."))])


def paired(api: Api, body: Any) -> dict[str, str]:
    """The text that each call asks for, with its result."""
    if api is CHAT:
        asked = [call for item in body["messages"] for call in item.get("tool_calls", ())]
        texts = {call["id"]: json.loads(call["function"]["arguments"])["text"] for call in asked}
        return {texts[item["tool_call_id"]]: item["content"] for item in body["messages"] if item["role"] == "tool"}
    items = body["input"]
    asked = [item for item in items if item["type"] == "function_call"]
    texts = {item["call_id"]: json.loads(item["arguments"])["text"] for item in asked}
    return {texts[item["call_id"]]: item["output"] for item in items if item["type"] == "function_call_output"}
