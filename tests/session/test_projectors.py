"""Claim: a model is shown an application's entries as its agent's projectors say, and nothing where they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentlane import Agent, AgentLane, Prompt, agent_tool, tool
from agentlane.data.entries import Custom, Entry
from agentlane.data.messages import ImagePart, TextPart, ToolResultMessage, UserMessage, user
from agentlane.errors import InvalidDefinition, InvalidName
from agentlane.testing import ScriptedModel, call
from tests.driver.written_lanes import Rows
from tests.session.places import Place, echo

IMAGE = UserMessage(content=(ImagePart(data="aGk=", mime_type="image/png"), TextPart(text="a chart")))


def note(data: Any) -> str:
    return f"noted: {data}"


def agent_of(answer: str = "so", **projectors: Callable[[Any], Any]) -> tuple[Agent, ScriptedModel]:
    """An agent that answers the same to whatever it is shown."""
    model = ScriptedModel([answer] * 9)
    return Agent(model=model, tools=[echo], projectors=projectors), model


def texts(messages: Any) -> list[str]:
    return [part.text for each in messages for part in each.content if isinstance(part, TextPart)]


async def path_of(lane: AgentLane[Any, Any]) -> list[Entry]:
    return await lane.entries(newest_first=False)


async def noted(lane: AgentLane[Any, Any], *data: Any, type: str = "note") -> None:
    for each in data:
        await lane.append_custom(type, each)


# What is shown.


async def test_a_text_is_a_message_a_message_is_shown_as_it_is_and_nothing_else_is_shown(place: Place) -> None:
    session = await place.open()
    agent, model = agent_of(note=note, chart=lambda data: IMAGE, secret=lambda data: None, empty=lambda data: "")
    lane = await session.lane("main", agent)
    await noted(lane, 1)
    for type in ("chart", "secret", "empty", "unknown"):
        await noted(lane, {"n": 2}, type=type)
    await lane.run("hi")

    assert list(model.requests[0].messages) == [user("noted: 1"), IMAGE, user("hi")]
    assert session.findings == ()


async def test_a_reopened_session_shows_the_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, model = agent_of(note=note)
    session = await place.open()
    lane = await session.lane("main", agent)
    await noted(lane, "a")
    await lane.run("hi")
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent)
    await noted(lane, "b")
    rows = Rows(monkeypatch, session._runtime.storage)
    await lane.run("more")

    first, second = (list(request.messages) for request in model.requests)
    assert rows.count == 4, "it is read once"
    assert second[: len(first)] == first and texts(second) == ["noted: a", "hi", "so", "noted: b", "more"]


async def test_what_is_appended_inside_a_batch_is_shown_behind_its_results(memory: Place) -> None:
    session = await memory.open()

    @tool
    async def notes() -> str:
        await lane.append_custom("note", "meanwhile")
        return "fine"

    model = ScriptedModel([[call("notes"), call("notes")], "done"])
    lane = await session.lane("main", Agent(model=model, tools=[notes], projectors={"note": note}))
    await lane.run("go")

    last = list(model.requests[1].messages)
    assert [isinstance(each, ToolResultMessage) for each in last[2:]] == [True, True, False, False]
    assert last[4:] == [user("noted: meanwhile")] * 2


async def test_nothing_that_a_projector_does_to_its_data_reaches_the_entry(memory: Place) -> None:
    session = await memory.open()
    agent, model = agent_of(note=lambda data: data.append("changed") or str(data))
    lane = await session.lane("main", agent)
    await noted(lane, ["as given"])
    await lane.run("hi")
    (shown, *_) = lane._core.context.pieces(lambda message: 1)

    assert texts(model.requests[0].messages)[0] == "['as given', 'changed']"
    assert isinstance(shown.body, Custom) and shown.body.data == ["as given"]
    assert [each.body.data for each in await path_of(lane) if isinstance(each.body, Custom)] == [["as given"]]


# What fails.


def raises(error: BaseException) -> Callable[[Any], Any]:
    def fail(data: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("projector", "said"),
    [
        (raises(ValueError("no such note")), "ValueError: no such note"),
        (raises(SystemExit(3)), "SystemExit: 3"),
        (raises(asyncio.CancelledError()), "CancelledError"),
        (lambda data: 7, "a UserMessage is needed here, not int"),
        (lambda data: UserMessage(content=()), "it is empty; give a text or an image"),
        (lambda data: UserMessage(content=("x",)), "a TextPart or ImagePart is needed here, not str"),  # type: ignore[arg-type]
    ],
)
async def test_what_fails_or_says_something_else_is_a_finding_and_its_entry_is_not_shown(
    memory: Place, projector: Callable[[Any], Any], said: str
) -> None:
    session = await memory.open()
    agent, model = agent_of(bad=projector, note=note)
    lane = await session.lane("main", agent)
    await noted(lane, 1, type="bad")
    await noted(lane, 2)
    await lane.run("hi")
    await lane.navigate((await path_of(lane))[-1].id)
    await lane.rewind((await path_of(lane))[2].id)
    await lane.run("again")

    assert [texts(request.messages) for request in model.requests] == [["noted: 2", "hi"], ["noted: 2", "again"]]
    entry = (await path_of(lane))[0]
    (finding,) = session.findings
    assert finding.startswith(f"entry {entry.id} is not shown to the model: the projector of 'bad' failed: ")
    assert said in finding, "and it is told once, however often it is read"


# Whose projectors they are.


async def test_a_lane_used_with_other_projectors_is_read_again(place: Place) -> None:
    session = await place.open()
    loud, heard = agent_of("loud", note=lambda data: f"LOUD {data}")
    quiet, told = agent_of("quiet")
    first = await session.lane("main", loud)
    await noted(first, "a")
    await first.run("hi")
    second = await session.lane("main", quiet)
    await second.run("hi again")
    await first.run("back")
    await second.run("and again")

    assert [texts(request.messages)[0] for request in heard.requests] == ["LOUD a", "LOUD a"]
    assert [texts(request.messages)[0] for request in told.requests] == ["hi", "hi"]
    assert texts(heard.requests[1].messages) == ["LOUD a", "hi", "loud", "hi again", "quiet", "back"]


async def test_while_a_pass_runs_its_agent_says_what_is_shown(memory: Place) -> None:
    session = await memory.open()
    opened = asyncio.Event()

    @tool
    async def waits() -> str:
        await opened.wait()
        return "fine"

    model = ScriptedModel([[call("waits")], "done", "next"])
    lane = await session.lane("main", Agent(model=model, tools=[waits], projectors={"note": note}))
    await noted(lane, 1)
    admitted = await lane.accept(Prompt("go"))
    running = asyncio.create_task(lane.drive(admitted.operation_id))
    while not model.requests:
        await asyncio.sleep(0)
    other, _ = agent_of()
    joined = asyncio.create_task((await session.lane("main", other)).drive(admitted.operation_id))
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(running, joined)

    assert texts(model.requests[1].messages)[:2] == ["noted: 1", "go"]


async def test_the_lane_of_a_call_shows_as_the_agent_that_runs_it(memory: Place) -> None:
    session = await memory.open()
    model = ScriptedModel(["seen"])
    kid = Agent("kid", model=model, projectors={"note": lambda data: f"kid: {data}"})
    boss = ScriptedModel([[call("kid", prompt="look")], "done"])
    help = agent_tool(kid, description="Helps.", history="path")
    lane = await session.lane("main", Agent(model=boss, tools=[help], projectors={"note": note}))
    await noted(lane, 1)
    await lane.run("go")

    assert texts(boss.requests[0].messages) == ["noted: 1", "go"]
    assert texts(model.requests[0].messages) == ["kid: 1", "go", "look"]


# Definition.


@pytest.mark.parametrize(
    ("projectors", "said"),
    [
        ([("note", note)], "must map types of entries to functions"),
        ({"note": "noted"}, "the projector of 'note' must be a plain function"),
    ],
)
def test_what_is_no_mapping_of_types_to_functions_is_refused(projectors: Any, said: str) -> None:
    with pytest.raises(InvalidDefinition, match=said):
        Agent(model=ScriptedModel([]), projectors=projectors)


def test_a_projector_that_has_to_be_awaited_is_refused() -> None:
    async def later(data: Any) -> str:
        return "late"

    with pytest.raises(InvalidDefinition, match="must be a plain function"):
        Agent(model=ScriptedModel([]), projectors={"note": later})  # type: ignore[dict-item]


def test_a_type_that_no_entry_can_have_is_refused() -> None:
    with pytest.raises(InvalidName):
        Agent(model=ScriptedModel([]), projectors={"a|b": note})


def test_what_is_put_into_the_mapping_later_is_not_the_agents() -> None:
    given: dict[str, Callable[[Any], str | UserMessage | None]] = {"note": note}
    agent = Agent(model=ScriptedModel([]), projectors=given)
    given.clear()

    assert agent.projectors == {"note": note}
