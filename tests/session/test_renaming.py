"""Claim: a branch is deleted or renamed whole, in one commit; entries and records stay, and no handle writes astray."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentlane import AgentLane, InvalidName, LaneBusy, Prompt, RequestConflict, UnknownBranch, Usage
from agentlane.data import addresses, codec
from agentlane.data.messages import user
from agentlane.testing import Trace, check_invariants, check_trace
from agentlane.testing.models import ScriptedModel
from tests.session.places import Place, agent_of

USES: dict[str, Callable[[AgentLane[Any, Any]], Awaitable[Any]]] = {
    "accept": lambda lane: lane.accept(Prompt("x")),
    "drive": lambda lane: lane.drive(),
    "drive what has settled": lambda lane: lane.drive("op-1"),
    "run": lambda lane: lane.run("x"),
    "resume": lambda lane: lane.resume(),
    "abort": lambda lane: lane.abort(),
    "request_abort": lambda lane: lane.request_abort("op-1"),
    "result": lambda lane: lane.result("op-1"),
    "configure": lambda lane: lane.configure(settings={"a": 1}),
    "navigate": lambda lane: lane.navigate(None),
    "rewind": lambda lane: lane.rewind("x"),
    "append_message": lambda lane: lane.append_message(user("x")),
    "append_custom": lambda lane: lane.append_custom("x"),
    "retry": lambda lane: lane.retry("op-1"),
    "decide": lambda lane: lane.decide("x", allow=True),
    "answer": lambda lane: lane.answer("x", 1),
    "deliver": lambda lane: lane.deliver("x", 1),
    "steer": lambda lane: lane.steer("x"),
    "submit": lambda lane: lane.submit("x"),
    "receipt": lambda lane: lane.receipt("x"),
    "cancel_queued": lambda lane: lane.cancel_queued("x"),
    "record_usage": lambda lane: lane.record_usage(Usage(input_tokens=1)),
    "wait_idle": lambda lane: lane.wait_idle(),
    "run_when_idle": lambda lane: lane.run_when_idle(lane.wait_idle),
    "entries": lambda lane: lane.entries(),
    "messages": lambda lane: lane.messages(),
    "export_markdown": lambda lane: lane.export_markdown(),
}


def model() -> ScriptedModel:
    return ScriptedModel(turns=[["one"], ["two"], ["three"]])


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_deleted_branch_leaves_entries_and_records(place: Place, loaded: bool) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of(model=model()))
    done = await lane.run("first", operation_id="op-1")
    other = await session.create_branch("other", at=lane.tip())
    if not loaded:
        await session.close()
        session = await place.open()
        lane = await session.lane("main", agent_of(model=model()))
        other = session.branch("other")

    await session.delete_branch("main")

    for use in USES.values():
        with pytest.raises(UnknownBranch, match="main"):
            await use(lane)
    for look in (lane.tip, lane.inspect, lane.queued):
        with pytest.raises(UnknownBranch, match="main"):
            look()
    assert (session.branches(), session.lanes()) == (["other"], [])
    assert len(await other.messages()) == 2
    assert await session.entry(done.inputs[0])
    assert [each.operation_id for each in await session.operations()] == ["op-1"]
    assert await check_invariants(session) == []
    await session.close()
    session = await place.open()
    assert session.branches() == ["other"]
    with pytest.raises(UnknownBranch):
        await session.delete_branch("main")


async def test_the_name_is_free_again(place: Place) -> None:
    """A new lane of that name knows nothing of the old one, and old handles do not come alive with it."""
    trace = Trace()
    place.store = trace.store(place.store)
    session = await place.open()
    old = await session.lane("main", agent_of(model=model()))
    await old.run("first")
    await session.delete_branch("main")

    new = await session.lane("main", agent_of(model=model()))
    assert (new.tip(), new.inspect().last_operation_id) == (None, None)
    with pytest.raises(UnknownBranch):
        await old.append_message(user("astray"))
    await new.run("other")
    assert list(new.agent.model.requests[-1].messages) == [user("other")]
    assert check_trace(trace) == []
    assert [commit.name for commit, _ in trace.commits()].count("delete_branch") == 1


async def test_an_open_operation_holds_the_name(place: Place) -> None:
    session = await place.open()
    lane = await session.lane("main", agent_of(model=model()))
    await lane.accept(Prompt("first"), operation_id="op-1")

    for change in (session.delete_branch("main"), session.rename_branch("main", "new")):
        with pytest.raises(LaneBusy) as caught:
            await change
        assert caught.value.details["operation_id"] == "op-1"
    await lane.resume()
    await session.rename_branch("main", "new")
    assert (session.lanes(), lane.name) == (["new"], "new")


async def test_handles_follow_a_renamed_lane(place: Place) -> None:
    """What was configured and said goes along, also after a reopen; records keep the name of their time."""
    trace = Trace()
    place.store = trace.store(place.store)
    session = await place.open()
    lane = await session.lane("main", agent_of(model=model()))
    branch = session.branch("main")
    await lane.configure(settings={"warm": 1})
    await lane.run("first", operation_id="op-1")

    await session.rename_branch("main", "talk")

    assert (lane.name, branch.name, session.lanes()) == ("talk", "talk", ["talk"])
    assert (await lane.run("second", operation_id="op-2")).lane == "talk"
    for name in ("main", "never"):
        with pytest.raises(UnknownBranch):
            session.branch(name)
        with pytest.raises(UnknownBranch):
            await session.rename_branch(name, "x")
    with pytest.raises(RequestConflict):
        await lane.accept(Prompt("first"), operation_id="op-1")
    assert (await lane.accept(Prompt("second"), operation_id="op-2")).lane == "talk"
    assert await check_invariants(session) == []
    await session.close()
    session = await place.open()
    lane = await session.lane("talk", agent_of(model=model()))
    assert (await lane.run("third")).text == "three"
    assert lane.agent.model.requests[-1].settings == {"warm": 1}
    assert [each.lane for each in await session.operations()] == ["talk", "main", "talk"]
    assert check_trace(trace) == []
    assert [commit.name for commit, _ in trace.commits()].count("rename_branch") == 1


@pytest.mark.parametrize("new", ["other", "lane", "", "a b", "x" * 129, 7])
async def test_a_name_that_is_taken_or_none_is_refused(place: Place, new: Any) -> None:
    session = await place.open()
    await session.create_branch("main")
    await session.create_branch("other")
    await session.lane("lane", agent_of("x"))

    with pytest.raises(InvalidName):
        await session.rename_branch("main", new)
    await session.rename_branch("main", "main")
    assert session.branches() == ["lane", "main", "other"]
    await session.rename_branch("main", "third")
    await session.rename_branch("other", "main")
    assert session.branches() == ["lane", "main", "third"]


@pytest.mark.parametrize("reopened", [False, True])
async def test_what_is_kept_under_the_lanes_name_goes_along(place: Place, reopened: bool) -> None:
    """What waits in its inbox, and receipts; those of a lane whose name begins alike stay."""
    session = await place.open()
    lane = await session.lane("main", agent_of(model=model()))
    other = await session.lane("main2", agent_of(model=model()))
    queued = await lane.next_run(Prompt(messages=(user("a"), user("b"))), request_id="r")
    await other.next_run("c", request_id="r")

    await session.rename_branch("main", "talk")
    if reopened:
        await session.close()
        session = await place.open()
        lane = await session.lane("talk", agent_of(model=model()))
    storage = session._runtime.storage
    assert list(await storage.values(addresses.INBOX, "talk|")) == [f"talk|{queued.id}"]
    assert await storage.values(addresses.INBOX, "main|") == {}
    receipts = await storage.values(addresses.RECEIPT)
    assert {key: codec.RECEIPT.decode(payload, key).lane for key, payload in receipts.items()} == {
        "main2|r": "main2",
        "talk|r": "talk",
    }
    again = await lane.next_run(Prompt(messages=(user("a"), user("b"))), request_id="r")
    assert (again.id, again.lane) == (queued.id, "talk")
    assert len(await storage.values(addresses.INBOX)) == 2
    await lane.run("go")
    assert list(await lane.messages())[:3] == [user("a"), user("b"), user("go")]
    assert await check_invariants(session) == []


async def test_what_waits_in_the_inbox_of_a_deleted_lane_is_gone(place: Place) -> None:
    """All of its content with it; what waits for a lane whose name begins alike stays."""
    session = await place.open()
    lane = await session.lane("main", agent_of(model=model()))
    other = await session.lane("main2", agent_of(model=model()))
    await lane.next_run(Prompt(messages=(user("a"), user("b"))), request_id="r")
    kept = await other.next_run("c", request_id="r")

    await session.delete_branch("main")
    storage = session._runtime.storage
    assert list(await storage.values(addresses.INBOX)) == [f"main2|{kept.id}"]
    assert list(await storage.values(addresses.RECEIPT)) == ["main2|r"]
    assert list(await storage.values(addresses.PENDING_ENTRY)) == [kept.id]
    assert await check_invariants(session) == []
