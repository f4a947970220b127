"""Claim: what waits on a lane is told apart by its id alone, and interrupts nothing."""

from __future__ import annotations

from typing import Any

from agentlane import Agent, ImagePart, Prompt, Tool, ToolContext, UserMessage
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.session.places import Place
from tests.session.saying import sound, told


async def test_equal_and_empty_messages_are_each_placed_once(place: Place) -> None:
    """Two equal texts, one of nothing but space, and an image without any."""
    image = ImagePart(data="aGk=", mime_type="image/png")
    session = await place.open()
    lane = await session.lane("main", Agent(model=ScriptedModel(turns=[[], [], [], [], ["seen"]])))
    await lane.accept(Prompt("go"))
    said = [await lane.steer(each) for each in ("a", "a", " ", Prompt(images=(image,)))]
    result = await lane.resume()

    assert result is not None and result.text == "seen"
    entries = await lane.entries(types=["user"], newest_first=False)
    assert [each.id for each in entries[1:]] == [each.id for each in said]
    assert await told(lane) == ["user go", "user a", "user a", "user  ", "user ", "assistant seen"]
    last = entries[-1].body
    assert isinstance(last, UserMessage) and last.content == (image,)
    assert lane.queued() == []
    await sound(session)


async def test_what_is_said_in_a_batch_skips_none_of_its_calls(place: Place) -> None:
    """Of three calls one after the other, the first says something: the others run, and have their results first."""
    ran: list[int] = []
    session = await place.open()

    async def work(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        ran.append(arguments["x"])
        if arguments["x"] == 1:
            await lane.steer("now")
            await lane.follow_up("later")
        return f"did {arguments['x']}"

    calls = [call("work", x=1), call("work", x=2), call("work", x=3)]
    model = ScriptedModel(turns=[[calls], ["now it is"], ["later it was"]])
    lane = await session.lane("main", Agent(model=model, tools=[Tool("work", work, parallel=False)]))
    result = await lane.run("go")

    assert result.status == "completed" and ran == [1, 2, 3]
    assert (await told(lane))[2:] == [
        *("result did 1", "result did 2", "result did 3"),
        *("user now", "assistant now it is", "user later", "assistant later it was"),
    ]
