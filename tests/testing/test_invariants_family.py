"""Claim: a run that is the work of a call is open only while that call waits for it; the check sees where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentlane import Agent, Prompt, Session, agent_tool, open_session
from agentlane.data import addresses, codec
from agentlane.data.operations import EffectPending, LaneState, OperationMeta, ParentCall, Tools
from agentlane.data.writes import DeleteValue, SetValue, Write
from agentlane.ids import call_id
from agentlane.testing import ManualClock, ScriptedModel, call, check_invariants, hang

TARGETS = (":memory:", "s.jsonl", "s.db")


class Family:
    """A parent whose call waits for a run that is under way, as it is stored."""

    def __init__(self, session: Session) -> None:
        self.session = session
        operation = session._cores["main"].operation
        assert operation is not None
        assert isinstance(operation.state, Tools)
        self.parent = operation.id
        self.state = operation.state
        self.child = call_id(operation.state.answer, 0)
        self.child_lane = f"child:{self.child}"
        child = session._cores[self.child_lane].operation
        assert child is not None
        self.child_meta = child.meta

    def child_is(self, meta: OperationMeta) -> list[Write]:
        return [SetValue(addresses.op_meta(self.child), codec.encode(meta))]

    def parent_is(self, state: Tools) -> list[Write]:
        return [SetValue(addresses.op_state(self.parent), codec.encode(state))]

    def gone(self, id: str, lane: str) -> list[Write]:
        """The operation is over without a word."""
        values = [addresses.op_meta(id), addresses.op_config(id), addresses.op_state(id)]
        idle = SetValue(addresses.lane_state(lane), codec.encode(LaneState()))
        return [*(DeleteValue(each) for each in values), idle]


@pytest.fixture(params=TARGETS)
async def family(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Family]:
    target = request.param if request.param == ":memory:" else str(tmp_path / request.param)
    model = ScriptedModel([hang()])
    scout: Agent[Any, Any] = Agent(name="scout", model=model)
    script = ScriptedModel([[call("scout", prompt="look")], "done"])
    chief: Agent[Any, Any] = Agent(name="chief", model=script, tools=[agent_tool(scout, description="Look.")])
    session = await open_session(target, durability="process", clock=ManualClock())
    lane = await session.lane("main", chief)
    await lane.accept(Prompt("go"))
    driving = asyncio.create_task(lane.drive())
    await model.hanging()
    yield Family(session)
    await session.close()
    await asyncio.gather(driving, return_exceptions=True)


async def test_a_parent_that_waits_and_its_run_are_sound(family: Family) -> None:
    assert family.child_meta.parent_call == ParentCall(lane="main", operation_id=family.parent)
    assert await check_invariants(family.session) == []


Break = Callable[[Family], Sequence[Write]]

BREAKS: dict[str, tuple[str, Break]] = {
    "a call that does not wait for its run": (
        "which does not wait for it",
        lambda at: at.parent_is(replace(at.state, calls=(EffectPending("never"),))),
    ),
    "a parent that ended before its run": ("which does not wait for it", lambda at: at.gone(at.parent, "main")),
    "a call that waits for nothing": (
        "neither open nor has ended",
        lambda at: at.gone(at.child, at.child_lane),
    ),
    "a run that is of no call": (
        "open for no call",
        lambda at: at.child_is(replace(at.child_meta, parent_call=None)),
    ),
    "a run of another operation's call": (
        "which does not wait for it",
        lambda at: at.child_is(
            replace(at.child_meta, parent_call=ParentCall(lane="main", operation_id="other")),
        ),
    ),
    "a run of a call on another lane": (
        "and that is on lane main",
        lambda at: at.child_is(
            replace(at.child_meta, parent_call=ParentCall(lane="other", operation_id=at.parent)),
        ),
    ),
    "an abort that forgot the run": (
        "is to be aborted",
        lambda at: at.parent_is(replace(at.state, cancel_requested_at=1)),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
async def test_a_broken_family_is_seen(family: Family, name: str) -> None:
    said, make = BREAKS[name]

    await family.session._runtime.storage.submit(make(family))

    found = await check_invariants(family.session)
    assert any(line.startswith("I3: ") and said in line for line in found), found
