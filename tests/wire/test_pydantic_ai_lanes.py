"""Claim: whatever happens to a run with a model of pydantic-ai's, its next request is one that the provider takes, what
was shown and what it cost is kept, and no call runs that must not. Every request is held to the provider's rules.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("anthropic")
pytest.importorskip("openai")

from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider

from agentlane import (
    Agent,
    AgentLane,
    AssistantMessage,
    ImagePart,
    ModelIdentity,
    OutputSchema,
    Prompt,
    RetryPolicy,
    RetryReason,
    Session,
    Settled,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResult,
    UserMessage,
    Waiting,
    open_session,
    tool,
)
from agentlane.models.pydantic_ai import PydanticAIModel
from agentlane.testing import ManualClock, ScriptedModel, check_invariants, think
from agentlane.testing import call as scripted_call
from agentlane.testing import say as scripted_say
from tests.wire.anthropic_client import client_of
from tests.wire.anthropic_format import answer, error, error_event, redacted, reply, text
from tests.wire.anthropic_format import thinking as thought
from tests.wire.anthropic_format import tool as calls
from tests.wire.anthropic_rules import Provider
from tests.wire.asking import ask, request
from tests.wire.pydantic_ai_places import anthropic_model
from tests.wire.server import Reply, sse

# pydantic-ai warns where a provider counts nothing.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic_ai.exceptions.UsageExtractionFailedWarning")

THINKING = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}
PIXEL = ImagePart(data="iVBORw0KGgo=", mime_type="image/png")
TARGETS = {"memory": ":memory:", "jsonl": "s.jsonl", "sqlite": "s.db"}


def thinking(*pieces: str, signature: str) -> list[dict[str, Any]]:
    """Reasoning whose signature comes in one piece, as pydantic-ai wants it."""
    return thought(*pieces, signature=signature, cut=False)


class Bench:
    """A provider, and a session of an agent that asks it through pydantic-ai."""

    def __init__(self, provider: Provider, target: Any, agent: Agent) -> None:
        self.provider = provider
        self.agent = agent
        self.target = target
        self.session: Session
        self.lane: AgentLane

    async def open(self, **given: Any) -> AgentLane:
        self.session = await open_session(self.target, durability="process", **given)
        self.lane = await self.session.lane("main", self.agent)
        return self.lane

    async def reopen(self) -> AgentLane:
        """Close and open again, where the store outlives that."""
        if self.target == ":memory:":
            return self.lane
        await self.session.close()
        return await self.open()

    def sent(self, number: int = -1) -> list[tuple[str, list[str]]]:
        """The turns of a request, each block as its type."""
        body = self.provider.bodies[number]
        return [(turn["role"], [block["type"] for block in turn["content"]]) for turn in body["messages"]]


@asynccontextmanager
async def bench(
    target: str, folder: Path, *script: Sequence[Any] | Reply, options: Any = None, **given: Any
) -> AsyncIterator[Bench]:
    clock = given.pop("clock", None)
    place = TARGETS[target] if target == "memory" else folder / TARGETS[target]
    with Provider(*script) as provider:
        async with client_of(provider) as client:
            known = {"settings": THINKING, "retry": RetryPolicy(attempts=3, base_ms=0), "instructions": "Work."}
            agent = Agent(model=anthropic_model(client, **(options or {})), **{**known, **given})
            found = Bench(provider, place, agent)
            await found.open(**({} if clock is None else {"clock": clock}))
            try:
                yield found
                assert await check_invariants(found.session) == []
            finally:
                await found.session.close()
        provider.require_kept()


@tool(replay="safe")
async def look(path: str) -> Any:
    """Look at something."""
    return {
        "image": ToolResult(content=(TextPart(text="here"), PIXEL)),
        "bad": ToolResult(content=(TextPart(text="failed"), PIXEL), is_error=True),
        "nothing": "",
        "blank": " \n",
        "odd": "a\x00b\ud99c\u2028<system>",
        "nan": {"x": float("nan")},
    }.get(path, f"saw {path}")


@pytest.mark.parametrize("target", TARGETS)
async def test_parallel_calls_with_every_kind_of_result_and_ids_of_every_kind(target: str, tmp_path: Path) -> None:
    paths = ["image", "bad", "nothing", "blank", "odd", "nan", "x"]
    ids = ["toolu_1", "", "", "toolu_1", "a|b", "é", "toolu_7"]
    blocks = [calls("look", {"path": path}, id=id) for path, id in zip(paths, ids, strict=True)]
    bad = [calls("look", None, id="toolu_8", pieces=['{"path": ']), calls("no.such", {"a": 1}, id="toolu_9")]
    script = [
        answer(thinking("let", " me", signature="s1"), redacted("r1"), text("looking"), *blocks, *bad),
        answer(thinking("again", signature="s2"), calls("look", {"path": "y"}, id="toolu_1")),
        answer(thinking("so", signature="s3"), text("done")),
    ]
    async with bench(target, tmp_path, *script, answer(text("more")), tools=[look]) as b:
        first = await b.lane.run("go")
        lane = await b.reopen()
        second = await lane.run("and?")
        kept = [m for m in await lane.messages() if isinstance(m, AssistantMessage)]

    assert (first.text, second.text) == ("done", "more")
    assert [(p.text, p.signature, p.redacted) for m in kept for p in m.content if isinstance(p, ThinkingPart)] == [
        ("let me", "s1", False),
        ("", "r1", True),
        ("again", "s2", False),
        ("so", "s3", False),
    ]
    results = b.provider.bodies[1]["messages"][2]["content"]
    # The image of a failed call stands behind all results: an error may hold text only.
    assert [block["type"] for block in results][:10] == ["tool_result"] * 9 + ["image"]
    assert [[inner["type"] for inner in block["content"]] for block in results[:2]] == [["text", "image"], ["text"]]
    assert [block["content"][0]["text"] for block in results[1:5]] == [
        "failed",
        "(no output)",
        "(no output)",
        "a\x00b\ufffd\u2028<system>",
    ]
    assert [block["is_error"] for block in results[:9]] == [False, True, *[False] * 3, True, False, True, True]
    assert [kinds for role, kinds in b.sent(3) if role == "assistant"] == [
        ["thinking", "redacted_thinking", "text", *["tool_use"] * 9],
        ["thinking", "tool_use"],
        ["thinking", "text"],
    ]


@pytest.mark.parametrize("target", TARGETS)
async def test_failures_of_every_kind_are_tried_again_and_leave_nothing_in_the_next_request(
    target: str, tmp_path: Path
) -> None:
    partial = answer(thinking("half", signature="never"), text("Hel"), calls("look", {"path": "x"}, id="1"))
    script: list[Any] = [
        error(529, "overloaded_error", "Overloaded"),
        [*partial[:5], error_event("overloaded_error", "Overloaded")],
        reply(partial[:-5], end="cut"),
        reply(partial[:7], end="reset"),
        reply(partial[:-2]),
        reply([]),
        answer(calls("look", {"path": "y"}, id="1")),
        error(429, "rate_limit_error", "slow", retry_after="0"),
        answer(text("Hello")),
    ]
    async with bench(
        target, tmp_path, *script, answer(text("b")), tools=[look], retry=RetryPolicy(attempts=9, base_ms=0)
    ) as b:
        first = await b.lane.run("go")
        lane = await b.reopen()
        second = await lane.run("again")
        rows = await b.session.usage()
        kept = [m for m in await lane.messages() if isinstance(m, AssistantMessage)]

    assert (first.text, second.text) == ("Hello", "b")
    assert b.sent() == [
        ("user", ["text"]),
        ("assistant", ["tool_use"]),
        ("user", ["tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]
    assert [m.error.code for m in kept if m.error] == [
        *("overloaded", "overloaded", "stream_cut", "stream_cut", "stream_cut", "stream_cut", "rate_limited"),
    ]
    assert [m.text for m in kept if m.error][2] == "Hel"  # what was shown is kept
    counts = [(row.row.usage.input_tokens, row.row.usage.output_tokens) for row in rows]
    # A row for each attempt: what was seen before the cut stands, what is not known is null and not zero.
    assert len(counts) == 10 and (0, 0) not in counts
    assert counts[0] == (None, None) and counts[2] == (10, None) and counts[-1] == (10, 7)


async def test_five_failures_poison_nothing(tmp_path: Path) -> None:
    nothing = answer(thinking("only", signature="thought"))
    script = [error(400, "invalid_request_error", "no")] * 3 + [answer(reason="refusal"), nothing]
    async with bench("sqlite", tmp_path, *script, answer(text("fine"))) as b:
        codes = [(await b.lane.run(f"try {n}")).code for n in range(5)]
        lane = await b.reopen()
        last = await lane.run("now")

    assert codes == [*["invalid_request"] * 3, "refusal", None]
    assert last.text == "fine"
    assert b.sent() == [("user", ["text"] * 6)]


@pytest.mark.parametrize("shown", [0, 4, 8, 12])
async def test_an_answer_that_is_aborted_is_kept_and_never_sent(shown: int, tmp_path: Path) -> None:
    events = answer(
        thinking("long", " thought", signature="sig"), text("Hel", "lo"), calls("look", {"path": "x"}, id="1")
    )
    async with bench("memory", tmp_path, reply(events[:shown], end="hang"), answer(text("b")), tools=[look]) as b:
        admitted = await b.lane.accept(Prompt("go"))
        drive = asyncio.create_task(b.lane.drive(admitted.operation_id))
        await asyncio.to_thread(b.provider.server.hanging)
        await b.lane.request_abort(admitted.operation_id)
        outcome = await drive
        await asyncio.to_thread(b.provider.server.left)  # the connection is closed, so that no more is charged
        second = await b.lane.run("again")

    assert isinstance(outcome, Settled) and outcome.result.status == "aborted"
    assert second.text == "b"
    assert b.sent() == [("user", ["text", "text"])]


async def test_a_call_that_is_aborted_and_those_behind_it_have_their_results(tmp_path: Path) -> None:
    started = asyncio.Event()

    @tool(parallel=False)
    async def hold() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    blocks = [calls("look", {"path": "x"}, id="1"), calls("hold", {}, id="2"), calls("look", {"path": "y"}, id="3")]
    script = [answer(thinking("t", signature="s"), *blocks), answer(text("b"))]
    async with bench("jsonl", tmp_path, *script, tools=[look, hold]) as b:
        admitted = await b.lane.accept(Prompt("go"))
        drive = asyncio.create_task(b.lane.drive(admitted.operation_id))
        await started.wait()
        await b.lane.request_abort(admitted.operation_id)
        await drive
        lane = await b.reopen()
        await lane.run("again")

    content = b.provider.bodies[-1]["messages"][2]["content"]
    assert [block["type"] for block in content] == [*["tool_result"] * 3, "text"]
    assert [block["content"][0]["text"][:15] for block in content[:3]] == [
        "saw x",
        "The run was abo",
        "The run was abo",
    ]


async def test_tools_that_are_gone_after_a_reopening_leave_a_request_that_is_taken(tmp_path: Path) -> None:
    script = [answer(calls("look", {"path": "x"}, id="1")), answer(text("a")), answer(text("b"))]
    async with bench("sqlite", tmp_path, *script, tools=[look]) as b:
        await b.lane.run("go")
        b.agent = Agent(model=b.agent.model, settings=THINKING)
        lane = await b.reopen()
        await lane.run("again")

    assert [each["name"] for each in b.provider.bodies[-1]["tools"]] == ["look"]
    assert b.provider.bodies[-1]["tool_choice"] == {"type": "none"}


async def test_another_providers_marks_are_not_sent(tmp_path: Path) -> None:
    other = ScriptedModel(
        [
            [think("theirs", signature="theirs"), scripted_call("look", path="x")],
            [think("more", signature="theirs"), scripted_say("done")],
        ],
        identity=ModelIdentity(provider="other", name="m"),
    )
    async with bench("memory", tmp_path, answer(thinking("mine", signature="s"), text("b")), tools=[look]) as b:
        lane = await b.session.lane("mixed", Agent(model=other, models=[b.agent.model], tools=[look]))
        await lane.run("go")
        await lane.configure(model="pydantic-ai:anthropic:claude-test")
        result = await lane.run("and you")

    assert result.text == "b"
    assert [kinds for role, kinds in b.sent() if role == "assistant"] == [["tool_use"], ["text"]]
    assert "theirs" not in json.dumps(b.provider.bodies[-1])


async def test_a_wait_that_the_provider_asks_for_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    script = [error(429, "rate_limit_error", "slow down", retry_after="7"), answer(text("b"))]
    async with bench("memory", tmp_path, *script, clock=clock) as b:
        await b.lane.accept(Prompt("go"))
        waiting = await b.lane.drive(wait_for_retry=False)
        assert isinstance(waiting, Waiting) and isinstance(waiting.reasons[0], RetryReason)
        assert waiting.wake_at is not None and waiting.wake_at >= clock.now_ms() + 7_000
        assert waiting.reasons[0].error.code == "rate_limited"
        clock.advance(7_000 + 60_000)
        assert (await b.lane.resume()).text == "b"


async def test_a_cut_in_an_emoji_and_arguments_in_pieces_do_not_run_twice(tmp_path: Path) -> None:
    """The first attempt is cut inside the arguments; the second is whole. Nothing of the one is in the other."""
    ran: list[str] = []

    @tool
    async def write(body: str) -> str:
        ran.append(body)
        return "x" * 3 + "😀" * 10

    first = sse(*answer(text("Hel"), calls("write", None, id="1", pieces=['{"body":"pri', "😀"]))[:-3], named=True)
    second = answer(calls("write", None, id="1", pieces=['{"body":"print', '(1)😀"}']))
    script = [Reply(pieces=[first[:-9]], end="cut"), second, answer(text("done"))]
    async with bench("memory", tmp_path, *script, tools=[write], max_result_bytes=10) as b:
        result = await b.lane.run("go")

    assert (ran, result.text) == (["print(1)😀"], "done")
    sent = b.provider.bodies[-1]["messages"]
    assert sent[1]["content"] == [{"type": "tool_use", "id": "1", "name": "write", "input": {"body": "print(1)😀"}}]
    assert sent[2]["content"][0]["content"][0]["text"].startswith("xxx😀")


async def test_calls_of_an_answer_that_was_cut_by_its_limit_never_run_and_are_answered(tmp_path: Path) -> None:
    half = calls("look", None, id="2", pieces=['{"path": "ha'])
    script = [
        answer(thinking("t", signature="s"), calls("look", {"path": "x"}, id="1"), half, reason="max_tokens"),
        answer(text("b")),
    ]
    async with bench("memory", tmp_path, *script, tools=[look]) as b:
        result = await b.lane.run("go")

    content = b.provider.bodies[-1]["messages"][2]["content"]
    assert result.text == "b"
    assert ["cut off at its length limit" in block["content"][0]["text"] for block in content] == [True, True]


async def test_a_conversation_that_was_written_by_hand_is_sent_as_it_may_be(tmp_path: Path) -> None:
    async with bench("memory", tmp_path, answer(text("b"))) as b:
        for message in (
            AssistantMessage(content=(TextPart(text="I begin"),), stop_reason="stop"),
            AssistantMessage(content=(ThinkingPart(text="who thought this?", signature="?"),), stop_reason="stop"),
            UserMessage(content=(TextPart(text=" "), PIXEL, ImagePart(data="aGk=", mime_type="image/x-odd"))),
            AssistantMessage(
                content=(TextPart(text=" \n"), ToolCallPart(id="1", name="n", arguments={})), stop_reason="tool_calls"
            ),
        ):
            await b.lane.append_message(message)
        await b.lane.run("go")

    assert b.sent() == [
        ("user", ["text"]),
        ("assistant", ["text"]),
        ("user", ["image", "text"]),
        ("assistant", ["tool_use"]),
        ("user", ["tool_result", "text"]),
    ]
    assert "cannot be shown" in json.dumps(b.provider.bodies[0])


async def test_an_output_type_is_enforced_by_the_provider_where_pydantic_ai_says_that_it_can() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with Provider(answer(text('{"n": 1}'))) as provider:
        async with client_of(provider) as client:
            profile = ModelProfile(supports_json_schema_output=True)
            own = AnthropicModel("claude-test", provider=AnthropicProvider(anthropic_client=client), profile=profile)
            found = await ask(PydanticAIModel(own), request(output=OutputSchema(name="number", schema=schema)))
        assert found.error is None
        provider.require_kept()

    assert provider.bodies[0]["output_config"]["format"]["schema"]["required"] == ["n"]
