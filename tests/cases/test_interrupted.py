"""Claim: however a run is interrupted inside a tool, the next message finds a conversation that a provider takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, LaneBusy, Prompt, Session, SessionFaulted, Tool, ToolContext
from agentlane.data.messages import AssistantMessage, ToolResultMessage
from agentlane.machine.outcomes import ABORTED, INTERRUPTED
from agentlane.testing.faults import FailingStore, Where
from agentlane.testing.invariants import check_invariants
from agentlane.testing.matrix.lives import bury
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, hang, say
from tests.races.stage import settled, shape
from tests.session.places import Place


class Stuck:
    """A tool that never ends by itself; ``starts`` counts, ``begun`` is done once it runs."""

    def __init__(self) -> None:
        self.starts = 0
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tool = Tool("pay", self._run)

    async def _run(self, arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        self.starts += 1
        self.begun.set_result(None)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody lets it end")


@pytest.mark.parametrize("how", ["death", "close", "Ctrl-C", "task cancelled"])
async def test_the_next_message_is_taken(place: Place, how: str) -> None:
    """One result that says what is not known, behind its call and before the next message; the tool ran once."""
    # Given: a run that is interrupted inside its tool.
    stuck = Stuck()
    model = ScriptedModel([[say("so"), call("pay", x=1)], "I see", "hello to you"])
    agent = Agent(model=model, tools=[stuck.tool], cancel_grace_ms=0)
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await stuck.begun
    session = await interrupted(place, session, driving, how)
    lane = await session.lane("main", agent)

    # When: the operation is open, and a new message waits for its end.
    with pytest.raises(LaneBusy) as caught:
        await lane.accept(Prompt("hello"), operation_id="op-2")
    assert caught.value.details["operation_id"] == "op"
    assert settled(await lane.drive()).status == "completed"
    assert (await lane.run("hello", operation_id="op-2")).text == "hello to you"

    # Then.
    assert shape(await lane.messages()) == [
        "user go",
        "assistant[tool_calls] so (pay)",
        f"result! {INTERRUPTED}",
        "assistant[stop] I see",
        "user hello",
        "assistant[stop] hello to you",
    ]
    assert all(words in INTERRUPTED for words in ("may not have started", "may have finished", "Check before"))
    assert stuck.starts == 1
    model.require_no_violations()
    assert await check_invariants(session) == []


async def interrupted(place: Place, session: Session, driving: asyncio.Future[Any], how: str) -> Session:
    """End the pass in the way that is asked for; the session to go on with."""
    if how == "task cancelled":
        (running,) = [each for each in session._runtime.tasks if each.get_name().startswith("agentlane pass")]
        running.cancel()
        await asyncio.wait([driving])
        await asyncio.wait([running])
        return session
    if how == "death":
        await bury(session, driving)
    elif how == "close":
        await session.close()
        await asyncio.wait([driving])
        assert driving.exception() is not None
    else:
        # What a Ctrl-C does that the loop survives: it leaves the block, which closes.
        with pytest.raises(KeyboardInterrupt):
            async with session:
                raise KeyboardInterrupt
        await asyncio.wait([driving])
        assert driving.exception() is not None
    return await place.open()


async def test_a_caller_who_is_cancelled_inside_the_only_tool_may_ask_again(place: Place) -> None:
    """The run is told as open and goes on; once it has ended, the next message is taken at once."""
    end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        begun.set_result(None)
        return await end

    model = ScriptedModel([[call("wait")], "done", "and more"])
    session = await place.open()
    lane = await session.lane("main", Agent(model=model, tools=[Tool("wait", wait)]))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await begun
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving

    with pytest.raises(LaneBusy):
        await lane.accept(Prompt("more"), operation_id="op-2")
    assert [each.operation_id for each in session.open_operations()] == ["op"]
    end.set_result("fine")
    assert settled(await lane.drive("op")).text == "done"
    assert (await lane.run("more", operation_id="op-2")).text == "and more"
    assert "result fine" in shape(await lane.messages())
    model.require_no_violations()


async def test_a_result_stands_behind_the_answer_with_its_call_after_an_abort(place: Place) -> None:
    """An aborted answer is nobody's parent by mistake: each result's path holds the answer that asked for it."""

    async def pay(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        return "paid"

    model = ScriptedModel([hang([say("Hel")]), [call("pay", x=1)], "done"])
    agent = Agent(model=model, tools=[Tool("pay", pay)])
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await model.hanging()
    await lane.request_abort("op")
    await driving
    await lane.run("more", operation_id="op-2")
    await session.close()

    session = await place.open()
    path = await session.branch("main").entries(newest_first=False)
    (at,) = [index for index, entry in enumerate(path) if isinstance(entry.body, ToolResultMessage)]
    before = path[at - 1]
    assert path[at].parent_id == before.id
    assert isinstance(before.body, AssistantMessage)
    assert [each.name for each in before.body.calls] == ["pay"]
    assert shape([entry.body for entry in path])[1] == "assistant[aborted/aborted] Hel"
    assert await check_invariants(session) == []
    model.require_no_violations()


@pytest.mark.parametrize("where", ["before", "half", "after"])
@pytest.mark.parametrize("then", ["reopen", "open anew"])
async def test_an_outcome_whose_commit_fails_is_told_and_its_effect_is_not_repeated(
    place: Place, where: Where, then: str
) -> None:
    """The finished effect does not vanish: its result is real, or says that nothing is known; nothing goes past it."""
    # Given: a paid tool whose outcome's commit fails: after lane, accept, intent and settlement the fifth.
    paid: list[Any] = []

    async def pay(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        paid.append(arguments["x"])
        return "paid"

    model = ScriptedModel([[call("pay", x=1)], "done"])
    agent = Agent(model=model, tools=[Tool("pay", pay)])
    inner = place.store
    place.store = FailingStore(inner, nth=5, where=where)
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    with pytest.raises(SessionFaulted):
        await lane.drive()
    assert (paid, len(model.requests)) == ([1], 1)
    with pytest.raises(SessionFaulted):  # the same process may not go on from what is not stored
        await lane.drive()

    # When.
    if then == "reopen":
        await session.reopen()
    else:
        await session.close()
        place.store = inner
        session = await place.open()
        lane = await session.lane("main", agent)
    assert settled(await lane.drive("op")).status == "completed"

    # Then.
    assert paid == [1]
    lines = shape(await lane.messages())
    stored = {"before": [f"result! {INTERRUPTED}"], "after": ["result paid"]}
    assert lines[2] in stored.get(where, [f"result! {INTERRUPTED}", "result paid"])
    assert lines[-1] == "assistant[stop] done"
    assert await check_invariants(session) == []
    model.require_no_violations()


async def test_a_call_that_was_aborted_says_that_it_may_have_run(place: Place) -> None:
    """Nobody is led to believe that nothing happened: the call stays, and its result says what is not known."""
    stuck = Stuck()
    model = ScriptedModel([[call("pay", x=1)], "well"])
    session = await place.open()
    lane = await session.lane("main", Agent(model=model, tools=[stuck.tool]))
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await stuck.begun
    await lane.request_abort("op")
    await driving

    await lane.run("and?", operation_id="op-2")
    sent = model.requests[-1].messages
    assert shape(sent) == ["user go", "assistant[tool_calls]  (pay)", f"result! {ABORTED}", "user and?"]
    assert "may have run in part" in ABORTED
    assert stuck.starts == 1


async def test_work_that_was_aborted_is_gone_on_with(place: Place) -> None:
    """The next message stands behind all that was done before the abort, and the model is shown it."""
    stuck = Stuck()
    done: list[int] = []

    async def save(arguments: dict[str, Any], ctx: ToolContext[Any]) -> str:
        done.append(arguments["x"])
        return f"saved {arguments['x']}"

    script: list[Any] = [[call("save", x=1)], [call("save", x=2)], [call("pay", x=3)]]
    model = ScriptedModel(turns=[script, ["all saved but the last"]])
    agent = Agent(model=model, tools=[Tool("save", save), stuck.tool], cancel_grace_ms=0)
    session = await place.open()
    lane = await session.lane("main", agent)
    await lane.accept(Prompt("go"), operation_id="op")
    driving = asyncio.ensure_future(lane.drive())
    await stuck.begun
    await lane.request_abort("op")
    assert settled(await driving).status == "aborted"
    await session.close()

    session = await place.open()
    lane = await session.lane("main", agent)
    assert (await lane.run("continue")).status == "completed"

    before = [
        "user go",
        "assistant[tool_calls]  (save)",
        "result saved 1",
        "assistant[tool_calls]  (save)",
        "result saved 2",
        "assistant[tool_calls]  (pay)",
        f"result! {ABORTED}",
        "user continue",
    ]
    assert shape(model.requests[-1].messages) == before
    assert shape(await lane.messages()) == [*before, "assistant[stop] all saved but the last"]
    assert (done, stuck.starts) == ([1, 2], 1)
    model.require_no_violations()
    assert await check_invariants(session) == []
