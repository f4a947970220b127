"""Claim: of a list of models the next one is asked at once after a failure that may go away, the last one after a wait,
and each turn begins with the first that is here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    AssistantMessage,
    InvalidDefinition,
    ModelIdentity,
    Prompt,
    RetryPolicy,
    UnknownModel,
    Waiting,
    open_session,
    tool,
)
from agentlane.data import addresses
from agentlane.testing.clock import ManualClock
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import ScriptAnswer, call, fail, hang

BUSY = fail("overloaded", retryable=True, retry_after_ms=60_000)
REFUSED = fail("refused")


def model(name: str, *answers: ScriptAnswer) -> ScriptedModel:
    return ScriptedModel(answers, identity=ModelIdentity(provider="p", name=name))


@tool(replay="safe")
async def look() -> str:
    return "seen"


def asked(*models: ScriptedModel) -> list[int]:
    return [len(each.requests) for each in models]


async def models_of(lane: Any) -> list[str]:
    """Which model gave each answer."""
    return [each.model.name for each in await lane.messages() if isinstance(each, AssistantMessage) and each.model]


async def test_the_next_model_is_asked_at_once_and_the_last_one_after_a_wait() -> None:
    """Retry-After of a model binds nobody but that model, and a list is no way round the bound on attempts."""
    clock = ManualClock()
    one, two = model("one", BUSY), model("two", BUSY, BUSY, "done")
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=[one, two]))
        await lane.accept(Prompt("go"), operation_id="op")

        waiting = await lane.drive(wait_for_retry=False)

        assert isinstance(waiting, Waiting) and waiting.wake_at is not None
        assert asked(one, two) == [1, 1]
        assert waiting.wake_at >= clock.now_ms() + 60_000
        clock.advance(60_000)
        assert (await lane.drive()).result.status == "completed"  # type: ignore[union-attr]
        assert asked(one, two) == [1, 2]
        assert await models_of(lane) == ["one", "two", "two"]


async def test_each_turn_begins_with_the_first() -> None:
    one, two = model("one", BUSY, "done"), model("two", [call("look")])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=[one, two], tools=[look]))
        result = await lane.run("go")

        assert (result.status, result.text) == ("completed", "done")
        assert await models_of(lane) == ["one", "two", "one"]


async def test_attempts_bound_the_whole_list() -> None:
    three = [model(name, BUSY) for name in ("one", "two", "three")]
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=three, retry=RetryPolicy(attempts=2)))
        result = await lane.run("go")

    assert (result.status, result.code) == ("failed", "overloaded")
    assert asked(*three) == [1, 1, 0]


async def test_what_will_not_go_away_ends_the_run() -> None:
    one, two = model("one", REFUSED), model("two", "done")
    async with open_session(":memory:") as session:
        result = await (await session.lane("main", Agent(model=[one, two]))).run("go")

    assert (result.code, asked(two)) == ("refused", [0])


@pytest.mark.parametrize("target", ["s.jsonl", "s.db"])
async def test_a_model_that_is_gone_is_passed_over(tmp_path: Path, target: str) -> None:
    """After a restart: behind the one that was asked, else from the start; without any, the run says so."""
    path = str(tmp_path / target)
    names = ["one", "two", "three"]
    before = [model("one", BUSY), model("two", hang()), model("three")]
    async with open_session(path) as session:
        lane = await session.lane("main", Agent(model=before))
        await lane.accept(Prompt("go"), operation_id="op")
        driving = asyncio.ensure_future(lane.drive())
        await before[1].hanging()
    await asyncio.gather(driving, return_exceptions=True)

    for here, expected in ((["one", "three"], "three"), (["one"], "one"), (["other"], None)):
        copy = tmp_path / f"copy-{expected}" / target
        copy.parent.mkdir()
        copy.write_bytes(Path(path).read_bytes())
        after = {name: model(name, "done") for name in here}
        async with open_session(str(copy), session_id=session.id if target == "s.db" else None) as session:
            lane = await session.lane("main", Agent(model=list(after.values())))
            result = await lane.resume()
            assert result is not None
            if expected is None:
                assert result.code == "model_unavailable"
                assert all(f"p:{name}" in (result.error.message if result.error else "") for name in names)
            else:
                assert result.status == "completed"
                assert await models_of(lane) == ["one", "two", expected]


async def test_a_restart_asks_the_same_model_again(tmp_path: Path) -> None:
    """An interruption is no failure of the model's."""
    path = str(tmp_path / "s.db")
    for last in (hang(), "done"):
        one, two = model("one", BUSY), model("two", hang(), last)
        async with open_session(path) as session:
            lane = await session.lane("main", Agent(model=[one, two]))
            if lane.inspect().operation is None:
                await lane.accept(Prompt("go"), operation_id="op")
                driving = asyncio.ensure_future(lane.drive())
                await two.hanging()
            else:
                result = await lane.resume()
                assert result is not None and result.status == "completed"
                assert asked(one, two) == [0, 1]
    await asyncio.gather(driving, return_exceptions=True)


async def test_a_lane_may_be_given_a_list() -> None:
    one, two, three = model("one", "no"), model("two", BUSY), model("three", "done")
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=one, models=[two, three]))
        await lane.configure(model=["p:two", three])
        assert (await lane.run("go")).text == "done"
        assert asked(one, two, three) == [0, 1, 1]

        stored = await session._runtime.storage.value(addresses.lane_config("main"))
        assert stored is not None and b'"fallbacks":[{"provider":"p","name":"three"}]' in stored
        await lane.configure(model="p:one")
        stored = await session._runtime.storage.value(addresses.lane_config("main"))
        assert stored is not None and b"fallbacks" not in stored
        for wrong in ([], ["p:four"]):
            with pytest.raises(UnknownModel):
                await lane.configure(model=wrong)


async def test_a_shorter_list_in_the_middle_of_a_wait() -> None:
    """The wait was for a place in the list that is not there any more: the first of the new one is asked."""
    clock = ManualClock()
    one, two, three = model("one", BUSY), model("two", BUSY), model("three", "done")
    async with open_session(":memory:", clock=clock) as session:
        lane = await session.lane("main", Agent(model=[one, two], models=[three]))
        await lane.accept(Prompt("go"), operation_id="op")
        assert isinstance(await lane.drive(wait_for_retry=False), Waiting)
        await lane.configure(model=three)
        clock.advance(60_000)
        assert (await lane.drive()).result.text == "done"  # type: ignore[union-attr]


@pytest.mark.parametrize("given", [[], [1], "two", None, {"a": 1}])
def test_a_list_of_models_holds_models(given: Any) -> None:
    with pytest.raises(InvalidDefinition):
        Agent(model=given)


def test_a_model_that_is_there_twice_is_there_once() -> None:
    one = model("one")
    agent = Agent(model=[one, one], models=[one])

    assert list(agent.models) == [one.identity] and agent.model is one
