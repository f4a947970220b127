"""Claim: records of old operations can be dropped, and nothing else goes with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentlane import (
    Agent,
    InvalidMessage,
    Prompt,
    ReadOnlySession,
    Settled,
    UnknownOperation,
    Waiting,
    agent_tool,
    tool,
)
from agentlane.data.writes import Address, SetValue, Write
from agentlane.driver.retention import READ_ROWS
from agentlane.testing import ScriptedModel, check_invariants
from agentlane.testing.script import call
from tests.session.places import Place


async def test_what_ended_before_is_dropped_and_the_conversation_stays(place: Place) -> None:
    clock, session = place.clock, await place.open()
    lane = await session.lane("main", Agent(model=ScriptedModel(["one", "two", "three"])))
    await lane.submit("a", request_id="r1")
    await lane.resume()
    clock.advance(1_000)
    await lane.run("b", operation_id="op-b")
    clock.advance(1_000)
    cut = clock.now_ms()
    await lane.run("c", operation_id="op-c")
    messages, stats = await lane.messages(), session.stats()
    assert await lane.receipt("r1") is not None

    assert await session.drop_results(before=cut) == 2
    assert await session.drop_results(before=cut) == 0
    assert [each.operation_id for each in await session.operations()] == ["op-c"]
    assert await lane.receipt("r1") is None
    assert (await lane.messages(), session.stats()) == (messages, stats)
    assert await check_invariants(session) == []
    with pytest.raises(UnknownOperation):
        await lane.result("op-b")
    assert (await lane.result("op-c")).text == "three"
    await session.close()


async def test_what_an_open_operation_reads_is_kept(place: Place) -> None:
    """A child has ended, its parent waits for a yes: it is not asked to run again, whatever was dropped."""
    clock = place.clock

    @tool(approval=True)
    async def guarded() -> str:
        return "ran"

    def agent() -> Agent:
        kid = Agent("kid", model=ScriptedModel(["from the child"]))
        script = ScriptedModel([[call("kid", prompt="p"), call("guarded")], "end"])
        return Agent("a", model=script, tools=[agent_tool(kid, name="kid", description="d"), guarded])

    session = await place.open()
    lane = await session.lane("main", agent())
    await lane.accept(Prompt("go"), operation_id="op")
    assert isinstance(await lane.drive("op"), Waiting)
    clock.advance(10_000)
    assert await session.drop_results(before=clock.now_ms()) == 0
    await session.close()
    session = await place.open()
    lane = await session.lane("main", agent())
    await lane.decide(session.approvals()[0].approval_id, allow=True)
    assert isinstance(await lane.drive("op"), Settled)
    clock.advance(10_000)
    assert await session.drop_results(before=clock.now_ms()) == 2
    assert await check_invariants(session) == []
    await session.close()


async def test_more_than_a_page_of_records(memory: Place) -> None:
    session = await memory.open()
    lane = await session.lane("main", Agent(model=ScriptedModel(["ok"] * 600)))
    for number in range(600):
        await lane.run("x", operation_id=f"op-{number:03}")
    memory.clock.advance(1)
    assert await session.drop_results(before=memory.clock.now_ms()) == 600
    assert await session.operations() == []


async def test_few_records_are_read_at_once_and_none_that_stays_is_decoded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them could not even be: it is of a later version. And commits are few."""
    session = await place.open()
    storage: Any = session._runtime.storage
    old, new = b'{"lane":"main","ended_at":5}', b'{"lane":"main","ended_at":9,"status":"not known","text":"x"}'
    writes: list[Write] = [SetValue(Address("result", f"op-{n:03}"), new if n % 10 == 7 else old) for n in range(300)]
    await storage.submit(writes)
    asked: list[int | None] = []
    values, submit = storage.values, session._runtime.submit
    commits: list[int] = []

    def counted(namespace: str, *arguments: Any, limit: int | None = None, **options: Any) -> Any:
        asked.append(limit)
        return values(namespace, *arguments, limit=limit, **options)

    def submitted(writes: Sequence[Write], *rest: Any) -> Any:
        commits.append(len(writes))
        return submit(writes, *rest)

    monkeypatch.setattr(storage, "values", counted)
    monkeypatch.setattr(session._runtime, "submit", submitted)
    assert await session.drop_results(before=9) == 270
    assert sum(commits) == 270 and len(commits) == 2
    assert asked[:-1] == [READ_ROWS] * (300 // READ_ROWS + 1)
    assert list(await values("result")) == [f"op-{n:03}" for n in range(7, 300, 10)]


@pytest.mark.parametrize("before", [1.5, "1", None, True])
async def test_a_time_that_is_none_is_refused(memory: Place, before: object) -> None:
    session = await memory.open()
    with pytest.raises(InvalidMessage, match="before"):
        await session.drop_results(before=before)  # type: ignore[arg-type]


async def test_a_reader_drops_nothing(place: Place) -> None:
    await (await place.open()).close()
    reader = await place.open(read_only=True)
    with pytest.raises(ReadOnlySession):
        await reader.drop_results(before=1)
