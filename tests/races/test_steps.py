"""Claim: accepts, drives and configurations that race have exactly two histories each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import (
    Agent,
    InvalidName,
    LaneBusy,
    NoActiveOperation,
    Prompt,
    Queued,
    RequestConflict,
    TextPart,
    UserMessage,
)
from agentlane.data import addresses, codec
from agentlane.data.messages import ModelIdentity
from agentlane.testing.gates import Hold
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, hold
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Staged, settled, turns

# Accept and accept.


@pytest.mark.parametrize("where", HOLDS)
async def test_the_same_accept_twice_is_one_operation(staged: Staged, where: Hold) -> None:
    """R26: while the first is under way the second waits for it, and both are told the same."""
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        before = len(at.trace)
        one = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        two = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        await turns()
        assert at.gate.held == ("accept",)
        at.gate.open()

        assert await one == await two
        assert at.names(since=before) == ["accept"]


@plays("accept/accept", first="one")
@plays("accept/accept", first="other")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["a", "b"])
async def test_of_two_accepts_one_gets_the_lane(staged: Staged, where: Hold, first: str) -> None:
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        before = len(at.trace)
        second = {"a": "b", "b": "a"}[first]
        winner = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id=first))
        await at.gate.arrived()
        loser = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id=second))
        await turns()
        at.gate.open()

        assert (await winner).operation_id == first
        with pytest.raises(LaneBusy) as caught:
            await loser
        assert caught.value.details["operation_id"] == first
        assert at.names(since=before) == ["accept"]


async def test_one_id_on_two_lanes_is_one_request(staged: Staged) -> None:
    async with staged(["first"]) as at:
        other = await at.session.lane("other", at.lane.agent)
        await at.end()
        at.gate.shut()
        winner = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        with pytest.raises(RequestConflict):
            await other.accept(Prompt("more"), operation_id="x")
        at.gate.open()
        await winner
        with pytest.raises(RequestConflict):
            await other.accept(Prompt("more"), operation_id="x")
        with pytest.raises(RequestConflict):
            await at.lane.accept(Prompt("other words"), operation_id="x")


@plays("accept/settlement", first="settlement")
async def test_accept_while_the_same_operation_settles(staged: Staged) -> None:
    """Asked again in the middle of the terminal commit: the answer is the operation that has just ended."""
    async with staged([hold("done")]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        again = asyncio.ensure_future(at.lane.accept(Prompt("go"), operation_id="op"))
        other = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="op-2"))
        await turns()
        at.gate.open()

        assert (await again).operation_id == "op"
        assert (await other).operation_id == "op-2"
        assert settled(await driving).status == "completed"
        assert at.names()[-2:] == ["settlement+terminal", "accept"]


# Drive and drive.


@plays("drive/drive", first="one")
@plays("drive/drive", first="other")
@pytest.mark.parametrize("first", ["by id", "what is open"])
async def test_drives_share_one_pass(staged: Staged, first: str) -> None:
    """Whoever comes first installs the pass; nine others before its first step, and one while a tool runs, join it."""
    async with staged([[call("t", x=1)], "done"], "t") as at:
        ids = ["op", None] if first == "by id" else [None, "op"]
        driving = [asyncio.ensure_future(at.lane.drive(id)) for id in [*ids, *ids * 4]]
        await at.tools.begun("t1")
        driving.append(asyncio.ensure_future(at.lane.drive()))
        await turns()
        at.tools.release("t1")

        outcomes = await asyncio.gather(*driving)

        assert len(outcomes) == 11
        assert all(outcome == outcomes[0] for outcome in outcomes)
        assert at.tools.starts == ["t1"]
        assert len(at.model.requests) == 2
        assert at.names()[-3:] == ["settlement+tool_intents", "outcome_placed+intent", "settlement+terminal"]


@plays("drive/settlement", first="settlement")
async def test_drive_while_the_operation_settles(staged: Staged) -> None:
    """A drive that comes in the middle of the terminal commit hears its record; one after it as well."""
    async with staged([hold("done")]) as at:
        first = asyncio.ensure_future(at.lane.drive("op"))
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        second = asyncio.ensure_future(at.lane.drive("op"))
        await turns()
        at.gate.open()

        assert await first == await second == await at.lane.drive("op")
        with pytest.raises(NoActiveOperation):
            await at.lane.drive()


# Configure and intent.


@plays("configure/intent", first="intent")
@pytest.mark.parametrize("where", HOLDS)
async def test_intent_then_configure(staged: Staged, where: Hold) -> None:
    """The intent was first: that request goes to the old model, the next one to the new."""
    new = ScriptedModel(["by the new one"], identity=ModelIdentity(provider="scripted", name="new"))
    async with staged([[call("t", x=1, now=True)]], "t", hold=where, models=[new]) as at:
        at.gate.shut()
        driving = asyncio.ensure_future(at.lane.drive())
        await at.gate.arrived()
        configuring = asyncio.ensure_future(at.lane.configure(model="scripted:new"))
        await turns()
        assert at.gate.held == ("intent",)
        at.gate.open()
        await configuring

        assert settled(await driving).text == "by the new one"
        assert (len(at.model.requests), len(new.requests)) == (1, 1)
        new.require_no_violations()
        await at.sound()


@plays("configure/intent", first="configure")
@pytest.mark.parametrize("where", HOLDS)
async def test_configure_then_intent(staged: Staged, where: Hold) -> None:
    """The configuration was first: the request goes to the new model."""
    new = ScriptedModel(["by the new one"], identity=ModelIdentity(provider="scripted", name="new"))
    async with staged(["not asked"], hold=where, models=[new]) as at:
        at.gate.shut()
        configuring = asyncio.ensure_future(at.lane.configure(model="scripted:new"))
        await at.gate.arrived()
        driving = asyncio.ensure_future(at.lane.drive())
        await turns()
        assert at.gate.held == ("configure",)
        at.gate.open()
        await configuring

        assert settled(await driving).text == "by the new one"
        assert (len(at.model.requests), len(new.requests)) == (0, 1)


@plays("configure/outcome", first="configure")
async def test_configure_while_calls_are_planned(staged: Staged) -> None:
    """A tool that is taken away before its call was intended is not run; the one that runs goes on."""
    async with staged([[call("t", x=1), call("u", x=2)], "done"], "t", "u", max_parallel=1) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        await at.lane.configure(tools=["t"])
        at.tools.release("t1")
        await driving

        assert at.tools.starts == ["t1"]
        assert await at.sound() == [
            "user go",
            "assistant[tool_calls]  (t,u)",
            "result t1 done",
            "result! The tool 'u' is not available here. Available: t.",
            "assistant[stop] done",
        ]


@plays("configure/outcome", first="outcome")
@pytest.mark.parametrize("where", HOLDS)
async def test_outcome_then_configure(staged: Staged, where: Hold) -> None:
    """The outcome's commit frees the next call: it was intended with the old configuration, and runs."""
    async with staged([[call("t", x=1), call("u", x=2)], "done"], "t", "u", hold=where, max_parallel=1) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        at.gate.shut()
        at.tools.release("t1")
        await at.gate.arrived()
        configuring = asyncio.ensure_future(at.lane.configure(tools=["t"]))
        await turns()
        assert at.gate.held == ("outcome_placed+tool_intents",)
        at.gate.open()
        await configuring
        await at.tools.begun("u2")
        at.tools.release("u2")
        await driving

        assert at.tools.starts == ["t1", "u2"]
        assert [definition.name for definition in at.model.requests[1].tools] == ["t"]
        assert (await at.sound())[3] == "result u2 done"


# Accept and other steps of an idle lane.


@plays("accept/configure", first="accept")
@plays("accept/configure", first="configure")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["accept", "configure"])
async def test_accept_and_configure(staged: Staged, where: Hold, first: str) -> None:
    """The operation goes on with the configuration in both orders: it captures it, or it is handed on to it."""
    new = ScriptedModel(["by the new one"], identity=ModelIdentity(provider="scripted", name="new"))
    async with staged(["first"], hold=where, models=[new]) as at:
        await at.end()
        at.gate.shut()
        before = len(at.trace)
        acts: dict[str, Any] = {
            "accept": lambda: at.lane.accept(Prompt("more"), operation_id="x"),
            "configure": lambda: at.lane.configure(model="scripted:new"),
        }
        second = "configure" if first == "accept" else "accept"
        one = asyncio.ensure_future(acts[first]())
        await at.gate.arrived()
        other = asyncio.ensure_future(acts[second]())
        await turns()
        assert at.gate.held == (first,)
        at.gate.open()
        await asyncio.gather(one, other)

        assert at.names(since=before) == [first, second]
        handed_on = [
            commit.name
            for commit, _ in at.trace.commits(since=before)
            if any(getattr(write, "address", None) == addresses.op_config("x") for write in commit.writes)
        ]
        assert handed_on == (["accept", "configure"] if first == "accept" else ["accept"])
        assert settled(await at.lane.drive()).text == "by the new one"
        await at.sound()


@plays("append/accept", first="append")
@pytest.mark.parametrize("where", HOLDS)
async def test_append_then_accept(staged: Staged, where: Hold) -> None:
    """The prompt is placed behind what was appended."""
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        appending = asyncio.ensure_future(at.lane.append_message(UserMessage(content=(TextPart(text="by hand"),))))
        await at.gate.arrived()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await turns()
        assert at.gate.held == ("append",)
        at.gate.open()

        entry = await appending
        admitted = await accepting
        assert (await at.session.entry(admitted.inputs[0])).parent_id == entry.id
        await at.lane.drive()
        lines = ["user go", "assistant[stop] first", "user by hand", "user more", "assistant[stop] second"]
        assert await at.sound() == lines


@plays("append/accept", first="accept")
@pytest.mark.parametrize("where", HOLDS)
async def test_accept_then_append(staged: Staged, where: Hold) -> None:
    """The lane has an operation by then: the append waits for its first boundary."""
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        appending = asyncio.ensure_future(at.lane.append_custom("note", {}))
        await turns()
        assert at.gate.held == ("accept",)
        at.gate.open()

        await accepting
        queued = await appending
        assert isinstance(queued, Queued) and at.lane.tip() != queued.id
        await at.lane.drive()
        assert [each.id for each in await at.lane.entries(limit=2)][1] == queued.id
        assert await at.sound() == ["user go", "assistant[stop] first", "user more", "assistant[stop] second"]


@plays("accept/settlement", first="accept")
async def test_accept_then_settlement(staged: Staged) -> None:
    """The answer is whole and its step not yet decided: the operation is open, and the new request is told so."""
    async with staged([hold("done")]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.model.release()
        with pytest.raises(LaneBusy) as caught:
            await at.lane.accept(Prompt("more"))  # with an id of ours its record would be looked for first
        assert caught.value.details["operation_id"] == "op"
        assert at.names()[-1] == "intent"

        assert settled(await driving).status == "completed"
        assert await at.sound() == ["user go", "assistant[stop] done"]


@plays("drive/settlement", first="drive")
async def test_drive_then_settlement(staged: Staged) -> None:
    """The answer is whole and its step not yet decided: the second caller observes the pass that is there."""
    async with staged([hold("done")]) as at:
        first = asyncio.ensure_future(at.lane.drive("op"))
        await at.model.hanging()
        at.model.release()
        second = await at.lane.drive("op", wait_for_retry=False)

        assert second == await first
        assert at.names()[-2:] == ["intent", "settlement+terminal"]
        assert len(at.model.requests) == 1


# Making lanes and branches.


@plays("lane/lane", first="one")
@plays("lane/lane", first="other")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["a", "b"])
async def test_a_lane_is_made_once(staged: Staged, where: Hold, first: str) -> None:
    """Who comes first has written it; the other one finds it."""
    async with staged([]) as at:
        agents = {name: Agent(name=name, model=at.model) for name in "ab"}
        at.gate.shut()
        before = len(at.trace)
        one = asyncio.ensure_future(at.session.lane("new", agents[first]))
        await at.gate.arrived()
        other = asyncio.ensure_future(at.session.lane("new", agents["b" if first == "a" else "a"]))
        await turns()
        assert at.gate.held == ("lane",)
        at.gate.open()
        lanes = await asyncio.gather(one, other)

        assert at.names(since=before) == ["lane"]
        stored = (await at.stored(addresses.LANE_CONFIG))["new"]
        assert codec.LANE_CONFIG.decode(stored, "lane").agent == first
        assert [lane.tip() for lane in lanes] == [None, None]
        await at.sound()


@plays("branch/lane", first="branch")
@plays("branch/lane", first="lane")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["branch", "lane"])
async def test_a_branch_and_a_lane_of_one_name(staged: Staged, where: Hold, first: str) -> None:
    """A branch becomes a lane where its tip is; a lane is a branch already, so making it again is refused."""
    async with staged(["done"], hold=where) as at:
        await at.end()
        tip = at.lane.tip()
        at.gate.shut()
        acts: dict[str, Any] = {
            "branch": lambda: at.session.create_branch("new", at=tip),
            "lane": lambda: at.session.lane("new", at.lane.agent, at=None),
        }
        one = asyncio.ensure_future(acts[first]())
        await at.gate.arrived()
        other = asyncio.ensure_future(acts["lane" if first == "branch" else "branch"]())
        await turns()
        assert at.gate.held == (first,)
        at.gate.open()
        await one

        if first == "lane":
            with pytest.raises(InvalidName):
                await other
        else:
            await other
        assert at.session.lanes() == ["main", "new"]
        assert at.session.branch("new").tip() == (tip if first == "branch" else None)
        await at.sound()
