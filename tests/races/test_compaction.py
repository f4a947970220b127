"""Claim: what is asked for in the moment in which a summary begins or settles has exactly two histories."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from agentlane import Compact, CompactionPolicy, LaneBusy, ModelIdentity, Navigate, Prompt, SessionClosed, Settled
from agentlane.data.messages import user
from agentlane.testing import ScriptedModel
from agentlane.testing.gates import Hold
from agentlane.testing.script import hold
from tests.driver.compacting import path, shown, summaries
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, settled, turns

ALL = CompactionPolicy(keep_tokens=0)
KINDS = ["compact", "navigate"]
SECOND = ModelIdentity(provider="scripted", name="second")


async def begin(at: Stage, kind: str) -> asyncio.Future[Any]:
    """Behind the run, a drive of the operation ``c``, whose summary is being written."""
    await at.end()
    request = Compact() if kind == "compact" else Navigate(None, "left", True)
    await at.lane.accept(request, operation_id="c")
    driving = asyncio.ensure_future(at.lane.drive("c"))
    await at.model.hanging()
    return driving


def summed(kind: str) -> list[str]:
    """The path behind the summary."""
    return ["user go", "model first", "compaction S1"] if kind == "compact" else ["branch_summary S1"]


async def sound(at: Stage) -> list[str]:
    await at.sound()
    return await path(at.lane)


# While it settles.


@plays("abort/summary", first="summary")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_abort_behind_the_summary_changes_nothing(staged: Staged, where: Hold, kind: str) -> None:
    async with staged(["first"], hold=where, summaries=[hold("S1")], compaction=ALL) as at:
        driving = await begin(at, kind)
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        aborting = asyncio.ensure_future(at.lane.request_abort("c"))
        await turns()
        at.gate.open()
        receipt, outcome = await aborting, settled(await driving)
        assert (receipt.newly_requested, receipt.status, outcome.status) == (False, "completed", "completed")
        assert await sound(at) == summed(kind)


@plays("abort/summary", first="abort")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_summary_behind_the_abort_is_charged_and_not_placed(staged: Staged, where: Hold, kind: str) -> None:
    async with staged(["first"], hold=where, summaries=[hold("S1")], compaction=ALL) as at:
        driving = await begin(at, kind)
        at.gate.shut()
        aborting = asyncio.ensure_future(at.lane.request_abort("c"))
        await at.gate.arrived()
        at.model.release()
        await turns()
        assert at.gate.held == ("abort",)
        at.gate.open()
        receipt, outcome = await aborting, settled(await driving)
        assert (receipt.newly_requested, outcome.status, outcome.usage.rows) == (True, "aborted", 1)
        assert await sound(at) == ["user go", "model first"]
        assert not await at.stored("op.prep")


@plays("submit/summary", first="submit")
@plays("submit/summary", first="summary")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["submit", "summary"])
async def test_a_submitted_message_is_the_next_prompt(staged: Staged, where: Hold, kind: str, first: str) -> None:
    """Queued before the end it is taken by the end's next operation; behind it it is accepted."""
    async with staged(["first", "second"], hold=where, summaries=[hold("S1")], compaction=ALL) as at:
        driving = await begin(at, kind)
        at.gate.shut()
        if first == "submit":
            submitting = asyncio.ensure_future(at.lane.submit("more", request_id="r"))
            await at.gate.arrived()
            at.model.release()
        else:
            at.model.release()
            await at.gate.arrived()
            submitting = asyncio.ensure_future(at.lane.submit("more", request_id="r"))
        await turns()
        at.gate.open()
        receipt, outcome = await submitting, settled(await driving)
        assert outcome.status == "completed"
        found = await at.lane.receipt("r")
        current = at.lane.inspect().operation
        assert found is not None and current is not None
        assert (found.state, found.operation_id) == ("taken", current.operation_id)
        assert outcome.next_operation == (current.operation_id if receipt.state == "queued" else None)
        assert settled(await at.lane.drive()).text
        assert (await sound(at))[: len(summed(kind)) + 1] == [*summed(kind), "user more"]


@plays("append/summary", first="append")
@plays("append/summary", first="summary")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["append", "summary"])
async def test_an_appended_message_comes_behind(staged: Staged, where: Hold, kind: str, first: str) -> None:
    async with staged(["first", "second"], hold=where, summaries=[hold("S1")], compaction=ALL) as at:
        driving = await begin(at, kind)
        at.gate.shut()
        if first == "append":
            appending = asyncio.ensure_future(at.lane.append_message(user("note")))
            await at.gate.arrived()
            at.model.release()
        else:
            at.model.release()
            await at.gate.arrived()
            appending = asyncio.ensure_future(at.lane.append_message(user("note")))
        await turns()
        at.gate.open()
        made = await appending
        assert settled(await driving).status == "completed"
        await at.lane.accept(Prompt("more"), operation_id="x")
        assert await sound(at) == [*summed(kind), "user note", "user more"]
        assert (await at.lane.entries(limit=2))[1].id == made.id
        assert at.lane.queued() == []


@plays("close/summary", first="close")
@plays("close/summary", first="summary")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["close", "summary"])
async def test_a_close_has_the_summary_or_has_it_written_again(
    staged: Staged, where: Hold, kind: str, first: str
) -> None:
    async with staged(["first"], hold=where, summaries=[hold("S1")], compaction=ALL) as at:
        driving = await begin(at, kind)
        at.gate.shut()
        if first == "close":
            closing = asyncio.ensure_future(at.session.close())
            with suppress(RuntimeError):  # it may have been cancelled by then
                at.model.release()
        else:
            at.model.release()
            await at.gate.arrived()
            closing = asyncio.ensure_future(at.session.close())
        await turns()
        at.gate.open()
        await closing
        outcome = (await asyncio.gather(driving, return_exceptions=True))[0]
        assert isinstance(outcome, Settled | SessionClosed), outcome
        await at.open_again()
        current = at.lane.inspect().operation
        if current is not None:
            assert current.at in ("summarizing", "checkpoint")
            driving = asyncio.ensure_future(at.lane.drive("c"))
            if current.at == "summarizing":
                await at.model.hanging()
                at.model.release()
            await driving
        record = settled(await at.lane.drive("c"))
        assert (record.status, record.text) == ("completed", "S1")
        assert record.usage.rows == len(summaries(at.model))
        assert await path(at.lane) == summed(kind)


# While it begins.


@plays("abort/summary intent", first="abort")
@plays("abort/summary intent", first="summary intent")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["abort", "summary intent"])
async def test_an_abort_and_the_intent(staged: Staged, where: Hold, first: str) -> None:
    """Whichever is first, no request is sent once the abort stands in the line."""
    async with staged(["first"], hold=where, summaries=[hold("S1")], compaction=ALL) as at:
        await at.end()
        await at.lane.accept(Compact(), operation_id="c")
        at.gate.shut()
        steps = {
            "abort": lambda: at.lane.request_abort("c"),
            "summary intent": lambda: at.lane.drive("c"),
        }
        tasks = {first: asyncio.ensure_future(steps.pop(first)())}
        await at.gate.arrived()
        tasks |= {name: asyncio.ensure_future(step()) for name, step in steps.items()}
        await turns()
        at.gate.open()
        await tasks["abort"]
        outcome = settled(await tasks["summary intent"])
        assert (outcome.status, summaries(at.model)) == ("aborted", [])
        assert outcome.usage.rows == (1 if first == "summary intent" else 0)
        assert outcome.usage.unknown_rows == 0
        assert await sound(at) == ["user go", "model first"]


@plays("configure/summary intent", first="configure")
@plays("configure/summary intent", first="summary intent")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("first", ["configure", "summary intent"])
async def test_a_configured_model_is_asked_from_the_next_request_on(staged: Staged, where: Hold, first: str) -> None:
    second = ScriptedModel([], summaries="S2", identity=SECOND)
    async with staged(["first"], hold=where, summaries="S1", compaction=ALL, models=[second]) as at:
        await at.end()
        await at.lane.accept(Compact(), operation_id="c")
        at.gate.shut()
        steps = {
            "configure": lambda: at.lane.configure(model="scripted:second"),
            "summary intent": lambda: at.lane.drive("c"),
        }
        tasks = {first: asyncio.ensure_future(steps.pop(first)())}
        await at.gate.arrived()
        tasks |= {name: asyncio.ensure_future(step()) for name, step in steps.items()}
        await turns()
        at.gate.open()
        await tasks["configure"]
        outcome = settled(await tasks["summary intent"])
        wanted = "S2" if first == "configure" else "S1"
        assert outcome.text == wanted
        [row] = [each.row for each in await at.session.usage() if each.row.kind == "summary"]
        assert row.model == ("scripted:second" if first == "configure" else "scripted:scripted")
        assert (await sound(at))[-1] == f"compaction {wanted}"


# While it is asked for.


@plays("compact/accept", first="compact")
@plays("compact/accept", first="accept")
@plays("navigation/accept", first="navigation")
@plays("navigation/accept", first="accept")
@plays("compact/compact", first="one")
@plays("compact/compact", first="other")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Compact(), Prompt("more")),
        (Prompt("more"), Compact()),
        (Navigate(None, summarize=True), Prompt("more")),
        (Prompt("more"), Navigate(None, summarize=True)),
        (Compact(), Compact("names")),
        (Compact("names"), Compact()),
        (Navigate(None), Navigate(None)),
    ],
    ids=["compact", "accept", "navigation", "accept before it", "compacts", "compacts turned", "navigations"],
)
async def test_of_two_requests_one_is_told_that_the_lane_is_busy(
    staged: Staged, where: Hold, one: Any, other: Any
) -> None:
    async with staged(["first", "second"], hold=where, summaries="S1", compaction=ALL) as at:
        await at.end()
        at.gate.shut()
        first = asyncio.ensure_future(at.lane.accept(one, operation_id="x"))
        await at.gate.arrived()
        then = asyncio.ensure_future(at.lane.accept(other, operation_id="y"))
        await turns()
        at.gate.open()
        admitted = await first
        with pytest.raises(LaneBusy) as busy:
            await then
        assert busy.value.details["operation_id"] == "x" == admitted.operation_id
        assert settled(await at.lane.drive("x")).status == "completed"
        told = await sound(at)
        assert ("user more" in told) == isinstance(one, Prompt)
        assert len(summaries(at.model)) == (0 if isinstance(one, Prompt) or one == Navigate(None) else 1)


@plays("compact/append", first="append")
@plays("compact/append", first="compact")
@plays("navigation/append", first="append")
@plays("navigation/append", first="navigation")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("append_first", [True, False])
async def test_what_is_appended_first_is_summarized_too(
    staged: Staged, where: Hold, kind: str, append_first: bool
) -> None:
    """What came before the accept is a part of what is summarized, or left; what came after waits."""
    async with staged(["first", "second"], hold=where, summaries="S1", compaction=ALL) as at:
        await at.end()
        request = Compact() if kind == "compact" else Navigate(None, "left", True)
        steps = [lambda: at.lane.accept(request, operation_id="c"), lambda: at.lane.append_custom("app.mark", 1)]
        if append_first:
            steps.reverse()
        at.gate.shut()
        tasks = [asyncio.ensure_future(steps[0]())]
        await at.gate.arrived()
        tasks.append(asyncio.ensure_future(steps[1]()))
        await turns()
        at.gate.open()
        await asyncio.gather(*tasks)
        result = settled(await at.lane.drive("c"))
        assert result.status == "completed"
        await at.lane.accept(Prompt("more"), operation_id="x")
        told = await sound(at)
        if kind == "compact":
            wanted = ["user go", "model first", "custom app.mark", "compaction S1"]
            assert told == [*(wanted if append_first else [*wanted[:2], wanted[3], wanted[2]]), "user more"]
        else:
            assert told == ["branch_summary S1", *([] if append_first else ["custom app.mark"]), "user more"]
            assert await at.session.label(str(result.from_tip)) == "left"
        at.model.requests.clear()
        settled(await at.lane.drive("x"))
        assert shown(at.model.requests[-1])[-1] == "user more"
