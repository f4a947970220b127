"""Claim: a branch that is deleted or renamed while it is used has exactly two histories with each other step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import InvalidName, LaneBusy, Prompt, UnknownBranch
from agentlane.data.messages import user
from agentlane.testing.gates import Hold
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Staged, settled, turns

CHANGES: dict[str, Any] = {
    "rename": lambda at: at.session.rename_branch("main", "new"),
    "delete": lambda at: at.session.delete_branch("main"),
}


@plays("rename/accept", first="accept")
@plays("delete/accept", first="accept")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("change", CHANGES)
async def test_accept_then_the_change(staged: Staged, where: Hold, change: str) -> None:
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        await at.gate.arrived()
        changing = asyncio.ensure_future(CHANGES[change](at))
        await turns()
        at.gate.open()

        await accepting
        with pytest.raises(LaneBusy) as caught:
            await changing
        assert caught.value.details["operation_id"] == "x"
        assert settled(await at.lane.drive("x")).text == "second"
        assert len(await at.sound()) == 4


@plays("rename/accept", first="rename")
@pytest.mark.parametrize("where", HOLDS)
async def test_rename_then_accept(staged: Staged, where: Hold) -> None:
    """What is accepted meanwhile is accepted under the new name, and asked again it is the same request."""
    async with staged(["first", "second"], hold=where) as at:
        await at.end()
        at.gate.shut()
        renaming = asyncio.ensure_future(CHANGES["rename"](at))
        await at.gate.arrived()
        accepting = asyncio.ensure_future(at.lane.accept(Prompt("more"), operation_id="x"))
        appending = asyncio.ensure_future(at.session.lane("main", at.lane.agent))
        await turns()
        assert at.gate.held == ("rename_branch",)
        at.gate.open()

        await renaming
        admitted = await accepting
        assert admitted.lane == "new"
        await appending
        assert await at.lane.accept(Prompt("more"), operation_id="x") == admitted
        assert settled(await at.lane.drive("x")).text == "second"
        assert len(await at.sound()) == 4
        await at.session.close()
        await at.open_again()
        assert "new" in at.session.lanes()


@plays("delete/accept", first="delete")
@pytest.mark.parametrize("where", HOLDS)
async def test_delete_then_accept(staged: Staged, where: Hold) -> None:
    """Nothing is written to what is not there any more."""
    async with staged(["first"], hold=where) as at:
        await at.end()
        at.gate.shut()
        deleting = asyncio.ensure_future(CHANGES["delete"](at))
        await at.gate.arrived()
        late = [
            asyncio.ensure_future(each)
            for each in (
                at.lane.accept(Prompt("more"), operation_id="x"),
                at.lane.append_message(user("more")),
                at.lane.navigate(None),
                at.lane.configure(settings={"a": 1}),
                at.session.delete_branch("main"),
                at.session.rename_branch("main", "new"),
            )
        ]
        await turns()
        at.gate.open()

        await deleting
        for each in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(each, UnknownBranch), each
        assert at.names()[-1] == "delete_branch"
        assert at.session.branches() == []
        await at.session.lane("main", at.lane.agent)


@plays("rename/branch", first="rename")
@plays("rename/branch", first="branch")
@pytest.mark.parametrize("first", ["rename", "branch"])
async def test_two_want_one_name(staged: Staged, first: str) -> None:
    async with staged(["first"]) as at:
        await at.end()
        at.gate.shut()
        steps = {
            "rename": lambda: at.session.rename_branch("main", "new"),
            "branch": lambda: at.session.create_branch("new"),
        }
        winner = asyncio.ensure_future(steps.pop(first)())
        await at.gate.arrived()
        (step,) = steps.values()
        loser = asyncio.ensure_future(step())
        await turns()
        at.gate.open()

        await winner
        with pytest.raises(InvalidName):
            await loser
        assert at.session.branches() == (["new"] if first == "rename" else ["main", "new"])
        assert at.session.branch("new").tip() == (at.lane.tip() if first == "rename" else None)
        await at.session.branch("new").append_custom("note")
        await at.sound()


@pytest.mark.parametrize("change", CHANGES)
async def test_one_that_is_cancelled_before_its_turn_changes_nothing(staged: Staged, change: str) -> None:
    """And gives up its place: what stands behind it in the line goes on."""
    async with staged(["first"]) as at:
        await at.end()
        at.gate.shut()
        before = asyncio.ensure_future(at.lane.configure(settings={"a": 1}))
        await at.gate.arrived()
        changing = asyncio.ensure_future(CHANGES[change](at))
        await turns()
        behind = asyncio.ensure_future(at.lane.append_message(user("behind")))
        await turns()
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing
        at.gate.open()

        await before
        await behind
        assert at.names()[-2:] == ["configure", "append"]
        assert at.session.branches() == ["main"]


@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_fault_lets_go_of_the_line(staged: Staged, where: Hold, change: str) -> None:
    """The change fails with it; after a reopen the branch is as it is stored, and takes the change."""
    async with staged(["first"], hold=where) as at:
        await at.end()
        at.failing.fail_next()
        with pytest.raises(Exception, match="stopped|failed"):
            await CHANGES[change](at)
        await at.session.reopen()
        if "main" in at.session.branches():
            await CHANGES[change](at)
        assert at.session.branches() == (["new"] if change == "rename" else [])
