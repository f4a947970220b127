"""Claim: what is committed when a close comes is kept and told; what comes later is refused, and nothing is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentlane import ListAddress, Prompt, SessionClosed, Settled, Usage, ValueAddress, open_session
from agentlane.testing.gates import Hold
from agentlane.testing.script import call, hang, hold, say
from tests.races.pairs import plays
from tests.races.stage import HOLDS, Stage, Staged, turns

LOG = ListAddress("app.races", "log", str)
VALUE = ValueAddress("app.races", "value", str)
GUARD_S = 60.0
"""How long a close is waited for before the test fails, rather than hang."""


@plays("close/settlement", first="settlement")
@pytest.mark.parametrize("where", HOLDS)
async def test_settlement_then_close(staged: Staged, where: Hold) -> None:
    """An admitted commit finishes, and its observers hear of it."""
    async with staged([hold("done")], hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert not closing.done()
        at.gate.open()
        await closing

        assert isinstance(await driving, Settled)
        assert at.names()[-1] == "settlement+terminal"


@plays("close/settlement", first="close")
async def test_close_then_settlement(staged: Staged) -> None:
    """The close stops the answer; the operation stays open, and nothing is settled by it."""
    async with staged([hold("done")]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        await at.session.close()

        with pytest.raises(SessionClosed):
            await driving
        assert at.names()[-1] == "frames"


@plays("close/intent", first="intent")
@pytest.mark.parametrize("where", HOLDS)
async def test_close_in_the_middle_of_an_intent(staged: Staged, where: Hold) -> None:
    """The intent is admitted and its effects are not started: calls go back to planned in the same close."""
    async with staged([hold([call("t", x=1), call("t", x=2)])], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        at.gate.shut()
        at.model.release()
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert at.gate.held == ("settlement+tool_intents",)
        at.gate.release()
        await at.gate.arrived()
        await turns()
        assert at.gate.held == ("close",)
        assert at.tools.starts == []
        at.gate.open()
        await closing

        with pytest.raises(SessionClosed):
            await driving
        assert at.tools.starts == []
        assert at.names()[-2:] == ["settlement+tool_intents", "close"]


# Every write of callers against the close.


def writes(at: Stage) -> dict[str, tuple[str, Callable[[], Awaitable[Any]]]]:
    """What callers may write while ``op`` is open or settled: the commit's name, and the call."""
    return {
        "abort": ("abort", lambda: at.lane.request_abort("op")),
        "accept": ("accept", lambda: at.lane.accept(Prompt("more"), operation_id="x")),
        "append": ("append", lambda: at.lane.append_custom("note", {})),
        "branch": ("branch", lambda: at.session.create_branch("b")),
        "configure": ("configure", lambda: at.lane.configure(settings={"a": 1})),
        "label": ("label", lambda: label_first(at)),
        "lane": ("lane", lambda: at.session.lane("b", at.lane.agent)),
        "list": ("list", lambda: at.session.append(LOG, "x")),
        "name": ("name", lambda: at.session.set_name("n")),
        "usage": ("usage", lambda: at.session.record_usage(Usage(input_tokens=1))),
        "value": ("value", lambda: at.session.set_value(VALUE, "v")),
    }


async def label_first(at: Stage) -> None:
    tip = at.lane.tip()
    assert tip is not None
    await at.session.set_label(tip, "l")


async def found(at: Stage, what: str) -> object:
    """What the store has of the write, for those that are not a step of the lane's."""
    tip = at.lane.tip()
    assert tip is not None
    match what:
        case "name":
            return at.session.name
        case "label":
            return await at.session.label(tip)
        case "list":
            return [text for _, text in await at.session.elements(LOG)]
        case "value":
            return await at.session.value(VALUE)
        case "usage":
            return [row.row.kind for row in await at.session.usage()].count("adjustment")
        case "branch" | "lane":
            return at.session.branches()
        case _:
            return None


WRITTEN: dict[str, tuple[object, object]] = {
    "name": ("n", None),
    "label": ("l", None),
    "list": (["x"], []),
    "value": ("v", None),
    "usage": (1, 0),
    "branch": (["b", "main"], ["main"]),
    "lane": (["b", "main"], ["main"]),
}
"""What is found of a write that was committed, and of one that was refused."""

EVERY_WRITE = [
    "abort", "accept", "append", "branch", "configure", "label", "lane", "list", "name", "usage", "value",
]  # fmt: skip


@plays("close/append", first="append")
@plays("close/commit", first="commit")
@plays("close/label", first="label")
@plays("close/list", first="list")
@plays("close/name", first="name")
@plays("close/usage", first="usage")
@plays("close/value", first="value")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("what", EVERY_WRITE)
async def test_a_callers_commit_then_close(staged: Staged, where: Hold, what: str) -> None:
    """R52: an admitted commit is finished, told and there in the next life; what comes after the close is refused."""
    async with staged(["done"], hold=where) as at:
        if what in ("accept", "append"):
            await at.end()
        name, make = writes(at)[what]
        at.gate.shut()
        task = asyncio.ensure_future(make())
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert at.gate.held == (name,)
        assert not closing.done()
        assert not task.done()
        at.gate.open()
        await closing

        await task
        assert at.names()[-1] == name
        with pytest.raises(SessionClosed):
            await make()
        await at.open_again()
        assert what not in WRITTEN or await found(at, what) == WRITTEN[what][0]
        await at.sound()


@plays("close/append", first="close")
@plays("close/commit", first="close")
@plays("close/label", first="close")
@plays("close/list", first="close")
@plays("close/name", first="close")
@plays("close/usage", first="close")
@plays("close/value", first="close")
@pytest.mark.parametrize("what", EVERY_WRITE)
async def test_close_then_a_callers_commit(staged: Staged, what: str) -> None:
    """The close is under way, held up by what it flushes: nothing else is written any more."""
    async with staged([hang([say("Hel")])]) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.model.hanging()
        _, make = writes(at)[what]
        at.gate.shut()
        before = len(at.trace)
        closing = asyncio.ensure_future(at.session.close())
        await at.gate.arrived()
        with pytest.raises(SessionClosed):
            await make()
        assert at.gate.held == ("frames",)
        at.gate.open()
        await closing
        with pytest.raises(SessionClosed):
            await driving

        assert at.names(since=before) == ["frames"]
        await at.open_again()
        assert what not in WRITTEN or await found(at, what) == WRITTEN[what][1]
        await at.sound()


@plays("close/close", first="one")
@plays("close/close", first="other")
@pytest.mark.parametrize("where", HOLDS)
@pytest.mark.parametrize("leaves", ["nobody", "the first", "the second"])
async def test_two_closes_are_one(staged: Staged, where: Hold, leaves: str) -> None:
    """Both wait for the admitted commit, and whoever is cancelled waits for the end of it all and is told then."""
    async with staged(["done"], hold=where) as at:
        at.gate.shut()
        task = asyncio.ensure_future(at.session.set_name("n"))
        await at.gate.arrived()
        one = asyncio.ensure_future(at.session.close())
        other = asyncio.ensure_future(at.session.close())
        await turns()
        leaver = {"nobody": None, "the first": one, "the second": other}[leaves]
        if leaver is not None:
            leaver.cancel()
            await turns()
        assert not one.done()
        assert not other.done()
        at.gate.open()
        ends = await asyncio.gather(one, other, return_exceptions=True)

        await task
        cancelled = [isinstance(end, asyncio.CancelledError) for end in ends]
        assert cancelled == [one is leaver, other is leaver]
        await at.session.close()
        await at.open_again()  # the store is free
        assert at.session.name == "n"


@pytest.mark.parametrize("first", ["owner", "reader"])
async def test_an_owner_and_a_reader_close_at_once(staged: Staged, first: str) -> None:
    """Both come to an end, whoever begins; the store is free then."""
    async with staged(["done"]) as at:
        reader = await open_session(at.failing.inner, session_id="s", read_only=True)
        assert len(await reader.entries()) == len(await at.session.entries())
        both = [at.session, reader] if first == "owner" else [reader, at.session]
        closes = [asyncio.ensure_future(session.close()) for session in both]
        _, hanging = await asyncio.wait(closes, timeout=GUARD_S)
        assert not hanging

        await at.open_again()
        assert (await at.end()).status == "completed"


@plays("close/intent", first="close")
@pytest.mark.parametrize("where", HOLDS)
async def test_close_then_an_intent(staged: Staged, where: Hold) -> None:
    """The pass has its place in the line and the close comes before its step: nothing is intended, nobody is asked."""
    async with staged(["done"], hold=where) as at:
        before = len(at.trace)
        at.gate.shut()
        configuring = asyncio.ensure_future(at.lane.configure(settings={"a": 1}))
        await at.gate.arrived()
        driving = asyncio.ensure_future(at.lane.drive())
        await turns()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert at.gate.held == ("configure",)
        at.gate.open()
        await configuring
        with pytest.raises(SessionClosed):
            await driving
        await closing

        assert at.names(since=before) == ["configure"]
        assert at.model.requests == []
        await at.open_again()
        assert (await at.end()).status == "completed"


@plays("close/outcome", first="outcome")
@pytest.mark.parametrize("where", HOLDS)
async def test_outcome_then_close(staged: Staged, where: Hold) -> None:
    """The outcome is admitted: it is kept, and the request intended with it is not sent before the next life."""
    async with staged([[call("t", x=1)], "done"], "t", hold=where) as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        at.gate.shut()
        at.tools.release("t1")
        await at.gate.arrived()
        closing = asyncio.ensure_future(at.session.close())
        await turns()
        assert at.gate.held == ("outcome_placed+intent",)
        at.gate.open()
        await closing
        with pytest.raises(SessionClosed):
            await driving

        assert len(at.model.requests) == 1
        await at.open_again()
        assert (await at.end()).status == "completed"
        assert at.tools.starts == ["t1"]
        lines = await at.sound()
        assert (lines[2], lines[-1]) == ("result t1 done", "assistant[stop] done")


@plays("close/outcome", first="close")
async def test_close_then_outcome(staged: Staged) -> None:
    """The close stops the call, which raises on that: no outcome is made of it, and the operation stays open."""
    async with staged([[call("t", x=1)], "done"], "t") as at:
        driving = asyncio.ensure_future(at.lane.drive())
        await at.tools.begun("t1")
        before = len(at.trace)
        await at.session.close()
        with pytest.raises(SessionClosed):
            await driving

        assert at.names(since=before) == []
        await at.open_again()
        assert (await at.end()).status == "completed"
        assert at.tools.starts == ["t1"]
        lines = await at.sound()
        assert lines[2].startswith("result! ")
