"""Claim: what an application put behind a whole answer does not have the model asked again, whatever it shows there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlane import Agent, Prompt, Settled, hook
from agentlane.testing import ScriptedModel, check_invariants
from tests.session.places import Place


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("projected", [False, True])
async def test_an_aborted_run_with_a_whole_answer_ends_with_it_when_it_is_tried_again(
    place: Place, projected: bool, reopened: bool
) -> None:
    asked, told = asyncio.Event(), ScriptedModel(["whole", "again"])

    async def before_finish(info: Any) -> None:
        asked.set()
        if info.lane == "main" and not aborted:
            await asyncio.Event().wait()

    aborted: list[str] = []
    projectors: dict[str, Any] = {"note": lambda data: data} if projected else {}
    agent = Agent(model=told, projectors=projectors, hooks=[hook("before_finish", before_finish)])
    session = await place.open()
    lane = await session.lane("main", agent)
    admitted = await lane.accept(Prompt("go"))
    driving = asyncio.ensure_future(lane.drive())
    await asked.wait()
    note = await lane.append_custom("note", "seen")
    async with asyncio.timeout(60):
        while lane.tip() != note.id:
            await asyncio.sleep(0)
    aborted.append(admitted.operation_id)
    await lane.request_abort(admitted.operation_id)
    ended = await driving
    assert isinstance(ended, Settled) and ended.result.status == "aborted"
    if reopened:
        await session.close()
        session = await place.open()
        lane = await session.lane("main", agent)

    again = await lane.retry(admitted.operation_id)
    settled = await lane.drive(again.operation_id)
    assert isinstance(settled, Settled)
    result = settled.result

    assert (result.status, result.text, len(told.requests)) == ("completed", "whole", 1)
    assert lane.tip() == note.id
    assert await check_invariants(session) == []
