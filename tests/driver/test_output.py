"""Claim: the answer that ends a run is of the type that is asked for, or the run says that none was."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from agentlane import (
    Agent,
    InvalidDefinition,
    InvalidMessage,
    OperationResult,
    Prompt,
    ToolResult,
    UserMessage,
    open_session,
    tool,
)
from agentlane.data import addresses
from agentlane.ids import correction_id
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import answer, call, fail, hang, say, think

TARGETS = (":memory:", "session.jsonl", "session.db")


class Step(Struct):
    what: str
    minutes: int


class Plan(Struct):
    title: str
    steps: list[Step] = []


GOOD = '{"title": "tidy", "steps": [{"what": "look", "minutes": 5}]}'
PLAN = Plan("tidy", [Step("look", 5)])


def target_in(folder: Path, name: str) -> str:
    return name if name == ":memory:" else str(folder / name)


def told(messages: list[Any]) -> list[str]:
    """What the model was told of its answers."""
    texts = ["".join(part.text for part in each.content) for each in messages if isinstance(each, UserMessage)]
    return texts[1:]


@pytest.mark.parametrize("name", TARGETS)
async def test_the_answer_is_the_type(tmp_path: Path, name: str) -> None:
    model = ScriptedModel([GOOD])
    async with open_session(target_in(tmp_path, name), durability="process") as session:
        lane = await session.lane("main", Agent(model=model, output=Plan))
        result = await lane.run("plan it", operation_id="op")

        assert result.status == "completed"
        assert result.output == {"title": "tidy", "steps": [{"what": "look", "minutes": 5}]}
        assert lane.output(result) == PLAN
        assert (await lane.result("op")) == result, "it is stored with the result"
        assert model.requests[0].output is not None
        assert model.requests[0].output.name == "Plan"
        assert model.requests[0].output.schema["properties"]["title"] == {"type": "string"}
        assert model.requests[0].output.schema["required"] == ["title"]


@pytest.mark.parametrize("name", TARGETS)
async def test_the_model_is_told_what_is_wrong_and_asked_again(tmp_path: Path, name: str) -> None:
    model = ScriptedModel(["Here you are.", '{"title": 1}', GOOD])
    async with open_session(target_in(tmp_path, name), durability="process") as session:
        lane = await session.lane("main", Agent(model=model, output=Plan))
        result = await lane.run("plan it")
        messages, entries = await lane.messages(), await lane.entries(newest_first=False)

    assert (result.status, result.turns, lane.output(result)) == ("completed", 3, PLAN)
    assert [text.split(": ", 1)[0] for text in told(messages)] == ["The answer does not fit the schema 'Plan'"] * 2
    assert "Expected `str`, got `int` - at `$.title`" in told(messages)[1]
    assert list(model.requests[1].messages) == messages[:3], "the correction is in the next request"
    assert entries[2].id == correction_id(entries[1].id)


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_it_is_asked_again_so_often_and_then_the_run_fails(retries: int) -> None:
    model = ScriptedModel(["no"] * 9)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, output=Plan, max_output_retries=retries))
        result = await lane.run("plan it")
        messages = await lane.messages()

    assert (result.status, result.code, result.output, len(model.requests)) == (
        "failed",
        "invalid_output",
        None,
        retries + 1,
    )
    assert result.error is not None and result.error.message.startswith("the answer is no Plan")
    assert len(told(messages)) == retries and result.answer is not None
    with pytest.raises(InvalidMessage, match="is failed: it has no output"):
        lane.output(result)


@pytest.mark.parametrize("name", TARGETS[1:])
async def test_how_often_it_was_asked_lasts_over_a_restart(tmp_path: Path, name: str) -> None:
    path = target_in(tmp_path, name)
    script = ["no", hang(), "no", "no"]
    async with open_session(path) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(script), output=Plan))
        await lane.accept(Prompt("plan it"))
        driving = asyncio.ensure_future(lane.drive())
        await lane.agent.model.hanging()  # type: ignore[attr-defined]
    await asyncio.gather(driving, return_exceptions=True)
    async with open_session(path) as session:
        model = ScriptedModel(["no"] * 9)
        result = await (await session.lane("main", Agent(model=model, output=Plan))).resume()

    assert result is not None and result.code == "invalid_output"
    assert len(model.requests) == 2


async def test_each_operation_may_be_asked_anew_and_a_retry_too() -> None:
    model = ScriptedModel(["no", "no", "no", GOOD, "no", "no", GOOD])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, output=Plan))
        failed = await lane.run("plan it", operation_id="op")
        assert failed.code == "invalid_output"
        await lane.retry("op")
        again = await lane.resume()
        assert again is not None and (again.status, again.turns) == ("completed", 1)
        assert (await lane.run("once more")).status == "completed"


async def test_a_retry_is_asked_anew_after_a_restart_too(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    async with open_session(path) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["no"] * 3), output=Plan))
        assert (await lane.run("plan it", operation_id="op")).code == "invalid_output"
        await lane.retry("op")
    async with open_session(path) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([*["no"] * 4, GOOD]), output=Plan))
        result = await lane.resume()

    assert result is not None and (result.status, result.turns) == ("completed", 2)


@pytest.mark.parametrize("text", ['{"a": ' + "[" * 80 + "]" * 80 + "}", '{"a": 99999999999999999999999}'])
async def test_what_the_type_would_take_and_the_store_would_not_is_asked_for_again(text: str) -> None:
    model = ScriptedModel([text, '{"a": 1}'])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, output=dict[str, Any]))
        result = await lane.run("go")

    assert (result.status, result.output, len(model.requests)) == ("completed", {"a": 1}, 2)


async def test_calls_in_between_are_calls() -> None:
    @tool
    async def look() -> str:
        return "seen"

    model = ScriptedModel([[say("let me look"), call("look")], "no", [call("look")], [think("hm"), say(GOOD)]])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[look], output=Plan))
        result = await lane.run("plan it")

    assert result.status == "completed" and lane.output(result) == PLAN


FENCED = [
    (f"```json\n{GOOD}\n```", True),
    (f"```\n{GOOD}\n```\n", True),
    (f"  \n{GOOD}\n", True),
    (f"```json\n{GOOD}```", True),
    (f"Here:\n```json\n{GOOD}\n```", False),
    (f"```json\n{GOOD}\n```\nThat is all.", False),
    (f"{GOOD}\n{GOOD}", False),
    ("```json\n```", False),
    ("", False),
]


@pytest.mark.parametrize(("text", "taken"), FENCED)
async def test_one_fenced_block_and_nothing_else_is_taken_for_what_is_in_it(text: str, taken: bool) -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([text]), output=Plan, max_output_retries=0))
        result = await lane.run("plan it")

    assert (result.status == "completed") == taken
    assert result.text == (text if taken else "")


BAD = [
    '{"title": NaN}',
    '{"title": "a", "steps": 99999999999999999999999}',
    '"a"',
    "null",
    "[" * 100,
    "\ud800",
    '{"title": "\\ud800"}',
]


@pytest.mark.parametrize("text", BAD)
async def test_what_breaks_the_border_rule_or_is_no_json_is_asked_for_again(text: str) -> None:
    model = ScriptedModel([text, GOOD])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, output=Plan))
        result = await lane.run("plan it")

    assert result.status == "completed" and len(model.requests) == 2


class Picky(Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number == 1:
            raise ValueError("not one")
        if self.number == 2:
            raise KeyError("two")


@pytest.mark.parametrize(("number", "said"), [(1, "not one"), (2, "KeyError: 'two'")])
async def test_a_type_may_check_for_itself(number: int, said: str) -> None:
    model = ScriptedModel([f'{{"number": {number}}}', '{"number": 3}'])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, output=Picky))
        result = await lane.run("count")
        messages = await lane.messages()

    assert lane.output(result) == Picky(3)
    assert said in told(messages)[0]


@dataclass
class Point:
    x: float


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (int, "3", 3),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (dict[int, str], '{"1": "a"}', {1: "a"}),
        (Point, '{"x": 1}', Point(1.0)),
        (bytes, '"aGk="', b"hi"),
        (str, '"text"', "text"),
        (int | None, "null", None),
    ],
)
async def test_any_type_that_msgspec_reads(type: Any, text: str, value: object) -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([text]), output=type))
        result = await lane.run("go")

    assert result.status == "completed" and lane.output(result) == value


@pytest.mark.parametrize("type", [object(), "Plan", 3, lambda: 1, list[object()]])  # type: ignore[misc]
def test_what_msgspec_cannot_read_is_refused(type: Any) -> None:
    with pytest.raises(InvalidDefinition, match="output="):
        Agent(model=ScriptedModel([]), output=type)


@pytest.mark.parametrize("retries", [-1, True, 1.5, None])
def test_the_bound_is_a_whole_number(retries: Any) -> None:
    with pytest.raises(InvalidDefinition, match="max_output_retries"):
        Agent(model=ScriptedModel([]), max_output_retries=retries)


async def test_an_agent_without_a_type_has_its_text() -> None:
    model = ScriptedModel(["as it is"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))
        await lane.accept(Prompt("go"), operation_id="op")
        stored = await session._runtime.storage.value(addresses.op_config("op"))
        result = await lane.resume()

    assert result is not None
    text: str = lane.output(result)
    assert (text, result.output, model.requests[0].output) == ("as it is", None, None)
    assert stored is not None and b"output" not in stored


async def test_tools_that_end_the_run_leave_no_output() -> None:
    @tool
    async def stop() -> ToolResult:
        return ToolResult(content="enough", terminate=True)

    async with open_session(":memory:") as session:
        model = ScriptedModel([[say(GOOD), call("stop")]])
        lane = await session.lane("main", Agent(model=model, tools=[stop], output=Plan))
        result = await lane.run("go")

    assert (result.status, result.output) == ("completed", None)
    with pytest.raises(InvalidMessage, match="is no Plan"):
        lane.output(result)


async def test_a_cut_answer_is_asked_for_again_and_an_abort_and_a_limit_win() -> None:
    async with open_session(":memory:") as session:
        cut = ScriptedModel([answer('{"title": "ti', stop_reason="length"), GOOD])
        lane = await session.lane("cut", Agent(model=cut, output=Plan))
        assert lane.output(await lane.run("go")) == PLAN

        limited = await session.lane("limited", Agent(model=ScriptedModel(["no"]), output=Plan, max_turns=1))
        assert (await limited.run("go")).code == "limit_reached"

        failing = await session.lane("failing", Agent(model=ScriptedModel(["no", fail("refused")]), output=Plan))
        assert (await failing.run("go")).code == "refused"

        stuck = ScriptedModel(["no", hang()])
        aborted = await session.lane("aborted", Agent(model=stuck, output=Plan))
        running = asyncio.ensure_future(aborted.run("go", operation_id="op"))
        await stuck.hanging()
        await aborted.request_abort("op")
        assert (await running).status == "aborted"


async def restarted(path: Path, before: Any, after: Any, *answers: str) -> tuple[OperationResult, Any]:
    """Accepted by one agent and driven by another; the result and what its lane makes of it."""
    async with open_session(str(path)) as session:
        await (await session.lane("main", Agent(model=ScriptedModel([]), output=before))).accept(Prompt("go"))
    async with open_session(str(path)) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(answers), output=after))
        result = await lane.resume()
        assert result is not None
        return result, lane.output(result)


async def test_after_a_restart_the_type_is_the_current_agents(tmp_path: Path) -> None:
    """Whether one is asked for at all was captured with the accept."""
    result, output = await restarted(tmp_path / "a.db", Plan, Step, GOOD, '{"what": "look", "minutes": 1}')
    assert (output, result.turns) == (Step("look", 1), 2)
    result, output = await restarted(tmp_path / "b.db", Plan, None, "anything")
    assert (output, result.output) == ("anything", None)
    with pytest.raises(InvalidMessage):
        await restarted(tmp_path / "c.db", None, Plan, "anything")


async def test_an_adapter_may_change_what_it_is_given() -> None:
    class Changes(ScriptedModel):
        def stream(self, request: Any) -> Any:
            if request.output is not None:
                request.output.schema.clear()
            return super().stream(request)

    model = Changes(["no", GOOD])
    agent = Agent(model=model, output=Plan)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", agent)
        assert lane.output(await lane.run("go")) == PLAN
    assert agent.output is not None and agent.output.shown().schema["properties"]
