"""Claim: results that are large are kept each on its own: none is lost because of what came together with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentlane import (
    Agent,
    PendingResult,
    Prompt,
    Session,
    SessionClosed,
    Tool,
    ToolContext,
    ToolResultMessage,
    Waiting,
    hook,
)
from agentlane.data.writes import AppendElement, InsertEntry, SetValue, Write
from agentlane.driver import amounts, tool_results
from agentlane.storage.contract import Commit, Pending
from agentlane.testing.invariants import check_invariants
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call
from tests.races.stage import settled
from tests.session.places import Place

CALLS = 12
RESULT_BYTES = 10_000
COMMIT_BYTES = 3 * RESULT_BYTES


class Sizes:
    """The bytes of payloads of each commit of a session."""

    def __init__(self, session: Session) -> None:
        self.of_commits: list[int] = []
        self._submit = session._runtime.storage.submit
        session._runtime.storage.submit = self._measured  # type: ignore[method-assign]

    def _measured(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        payloads = [each.payload for each in writes if isinstance(each, InsertEntry | SetValue | AppendElement)]
        self.of_commits.append(sum(map(len, payloads)))
        return self._submit(writes, publish=publish, name=name)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is much for one commit is little here, so that no test has to move as much."""
    monkeypatch.setattr(amounts, "COMMIT_BYTES", COMMIT_BYTES)
    monkeypatch.setattr(tool_results, "RESULT_BYTES_MAX", 2 * RESULT_BYTES)


class Bulk:
    """Tools with large results: ``starts`` says which calls ran; the first call waits for ``gate`` if there is one."""

    def __init__(self, gate: asyncio.Event | None = None, *, deferred: bool = False) -> None:
        self.starts: list[int] = []
        self.ended = 0
        self._gate = gate
        self._deferred = deferred
        self.tool = Tool("bulk", self._run, replay="never")

    async def _run(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        number = arguments["n"]
        self.starts.append(number)
        try:
            if number == 0 and self._deferred:
                return PendingResult()
            if number == 0 and self._gate is not None:
                await self._gate.wait()
            return text_of(number)
        finally:
            self.ended += 1

    def agent(self, **options: Any) -> Agent:
        asked = [call("bulk", n=number) for number in range(CALLS)]
        return Agent(model=ScriptedModel([asked, "done"]), tools=[self.tool], max_parallel=CALLS, **options)


def text_of(number: int) -> str:
    return f"{number} " + "x" * RESULT_BYTES


async def results_of(lane: Any) -> list[str]:
    """Each result in short."""
    results = [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]
    return [short(each.content[0].text) for each in results]  # type: ignore[union-attr]


def short(text: str) -> str:
    return f"{text[:30]} ... {len(text)}"


def judge(bulk: Bulk, sizes: Sizes, found: list[str]) -> None:
    assert found == [short(text_of(number)) for number in range(CALLS)]
    assert sorted(bulk.starts) == list(range(CALLS)), "each ran once"
    assert max(sizes.of_commits) < COMMIT_BYTES + 2 * RESULT_BYTES
    assert len([size for size in sizes.of_commits if size > RESULT_BYTES]) <= CALLS + CALLS // 2


@pytest.mark.parametrize("hooked", [False, True], ids=["", "with a hook"])
@pytest.mark.parametrize("first_is_last", [False, True], ids=["together", "the first is the last"])
async def test_what_comes_together_is_kept_in_as_many_commits_as_it_needs(
    place: Place, first_is_last: bool, hooked: bool
) -> None:
    """All end at once; or all are staged, and placed when the first has ended: no commit is much too large."""
    gate = asyncio.Event()
    bulk = Bulk(gate)
    seen: list[str] = []
    agent = bulk.agent(hooks=[hook("after_tool", lambda info: seen.append(info.call_id))] if hooked else [])
    session = await place.open()
    sizes = Sizes(session)
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    if first_is_last:
        while [each.status for each in session.open_operations()[0].calls[1:]] != ["outcome_ready"] * (CALLS - 1):
            await asyncio.sleep(0)
    gate.set()
    assert settled(await driving).status == "completed"

    judge(bulk, sizes, await results_of(lane))
    assert len(seen) == (CALLS if hooked else 0)
    assert await check_invariants(session) == []


async def test_what_comes_while_the_session_is_closed_is_kept_too(place: Place) -> None:
    gate = asyncio.Event()
    bulk = Bulk(gate)
    agent = bulk.agent()
    session = await place.open()
    sizes = Sizes(session)
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive("op"))
    while bulk.ended < CALLS - 1:
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(session.close())
    gate.set()
    await closing
    with pytest.raises(SessionClosed):
        await driving

    session = await place.open()
    lane = await session.lane("main", agent)
    assert settled(await lane.drive("op")).status == "completed"
    found = await results_of(lane)
    assert found[1:] == [short(text_of(number)) for number in range(1, CALLS)]
    assert sorted(bulk.starts) == list(range(CALLS))
    assert max(sizes.of_commits) < COMMIT_BYTES + 2 * RESULT_BYTES
    assert await check_invariants(session) == []


async def test_what_waits_behind_a_delivered_result_is_placed_in_parts(place: Place) -> None:
    bulk = Bulk(deferred=True)
    agent = bulk.agent()
    session = await place.open()
    sizes = Sizes(session)
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    outcome = await lane.drive("op")
    assert isinstance(outcome, Waiting)
    (reason,) = outcome.reasons
    await lane.deliver(reason.call_id, text_of(0))  # type: ignore[union-attr]
    assert settled(await lane.drive("op")).status == "completed"

    judge(bulk, sizes, await results_of(lane))
    assert await check_invariants(session) == []


async def test_a_result_that_no_store_takes_is_that_calls_error(place: Place) -> None:
    """Also where the tool was allowed more: it has run once, the model hears of it, and its siblings' results stand."""
    starts: list[int] = []

    async def huge(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        starts.append(arguments["n"])
        return "x" * arguments["n"]

    tool = Tool("huge", huge, replay="safe", max_result_bytes=1 << 40)
    asked = [call("huge", n=5), call("huge", n=2 * RESULT_BYTES), call("huge", n=7)]
    session = await place.open()
    lane = await session.lane("main", Agent(model=ScriptedModel([asked, "done"]), tools=[tool]))
    assert (await lane.run("go")).status == "completed"

    first, second, third = [each for each in await lane.messages() if isinstance(each, ToolResultMessage)]
    assert (first.content[0].text, third.content[0].text) == ("xxxxx", "xxxxxxx")  # type: ignore[union-attr]
    assert second.is_error
    assert f"and {2 * RESULT_BYTES} can be kept" in second.content[0].text  # type: ignore[union-attr]
    assert starts == [5, 2 * RESULT_BYTES, 7]
    assert await check_invariants(session) == []
