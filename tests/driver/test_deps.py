"""Claim: what is given for one operation reaches its effects and nobody else's, is never stored, and is let go."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from agentlane import Agent, Prompt, RequestConflict, RunInfo, SessionFaulted, ToolContext, open_session, tool
from agentlane.storage import SqliteStore
from agentlane.testing.faults import FailingStore
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang

TARGETS = ("session.jsonl", "session.db")


class Secret:
    """Something that must not stay."""

    def __init__(self, text: str) -> None:
        self.text = text


class Seen:
    """What tools and instructions were given, by the text of it."""

    def __init__(self) -> None:
        self.by_tools: list[str] = []
        self.by_instructions: list[str] = []

        @tool(replay="safe")
        async def use(ctx: ToolContext[Secret]) -> str:
            self.by_tools.append(ctx.deps.text)
            return "used"

        self.tool = use

    def instructions(self, info: RunInfo[Secret]) -> str:
        self.by_instructions.append(info.deps.text)
        return "be brief"

    def agent(self, *answers: Any, turns: list[Any] | None = None) -> Agent[Secret]:
        model = ScriptedModel(answers) if turns is None else ScriptedModel(turns=turns)
        return Agent(model=model, tools=[self.tool], instructions=self.instructions, deps=Secret("the agent's"))


async def collect() -> None:
    """Let cancelled tasks come to their end, and free what nothing holds."""
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()


async def test_they_are_for_that_operation_only() -> None:
    seen = Seen()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", seen.agent(turns=[[[call("use")], "done"], [[call("use")], "done"]]))
        other = await session.lane("other", seen.agent([call("use")], "done"))
        await asyncio.gather(
            lane.run("go", deps=Secret("Ada's")),
            other.run("go", deps=Secret("Bob's")),
        )
        await lane.run("go")

    assert sorted(seen.by_tools) == ["Ada's", "Bob's", "the agent's"]
    assert sorted(seen.by_instructions) == sorted(seen.by_tools * 2)


async def test_nothing_of_them_is_left_when_the_operation_has_settled() -> None:
    seen = Seen()
    secret = Secret("Ada's")
    gone = weakref.ref(secret)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", seen.agent([call("use")], "done"))
        await lane.accept(Prompt("go"), deps=secret)
        operation = lane._core.operation  # whoever still holds it does not hold what it was given
        result = await lane.resume()
        assert result is not None and result.status == "completed" and seen.by_tools == ["Ada's"]
        del secret
        await collect()
        assert gone() is None and operation is not None


@pytest.mark.parametrize("status", ["failed", "aborted"])
async def test_however_it_settles(status: str) -> None:
    seen = Seen()
    secret = Secret("Ada's")
    gone = weakref.ref(secret)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", seen.agent(fail("refused") if status == "failed" else hang()))
        running = asyncio.ensure_future(lane.run("go", operation_id="op", deps=secret))
        if status == "aborted":
            await lane.agent.model.hanging()  # type: ignore[attr-defined]
            await lane.request_abort("op")
        assert (await running).status == status
        del secret, running
        await collect()
        assert gone() is None


async def test_a_close_lets_them_go_though_the_session_object_stays() -> None:
    secret = Secret("Ada's")
    gone = weakref.ref(secret)
    session = await open_session(":memory:")
    lane = await session.lane("main", Seen().agent("done"))
    await lane.accept(Prompt("go"), deps=secret)
    await session.close()
    del secret
    await collect()
    assert gone() is None
    assert lane.name == "main"


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("again", ["nothing", "drive", "accept"])
async def test_after_a_restart_the_agents_are_used_unless_others_are_brought(
    tmp_path: Path, name: str, again: str
) -> None:
    """And no byte of them is on disk."""
    seen, path = Seen(), tmp_path / name
    async with open_session(str(path)) as session:
        lane = await session.lane("main", seen.agent([call("use")], hang(), [call("use")], "done"))
        await lane.accept(Prompt("go"), operation_id="op", deps=Secret("Ada's hush-hush"))
        driving = asyncio.ensure_future(lane.drive())
        await lane.agent.model.hanging()  # type: ignore[attr-defined]
    await asyncio.gather(driving, return_exceptions=True)
    assert b"hush-hush" not in path.read_bytes()

    async with open_session(str(path)) as session:
        lane = await session.lane("main", seen.agent([call("use")], [call("use")], "done"))
        if again == "accept":
            await lane.accept(Prompt("go"), operation_id="op", deps=Secret("Ada's new hush-hush"))
        if again == "drive":
            await lane.drive("op", deps=Secret("Ada's new hush-hush"))
        else:
            await lane.resume()
    assert seen.by_tools == ["Ada's hush-hush", "the agent's" if again == "nothing" else "Ada's new hush-hush"]
    assert b"hush-hush" not in path.read_bytes()


async def test_another_request_under_the_same_id_brings_nothing() -> None:
    seen = Seen()
    async with open_session(":memory:") as session:
        lane = await session.lane("main", seen.agent([call("use")], "done"))
        await lane.accept(Prompt("go"), operation_id="op", deps=Secret("Ada's"))
        with pytest.raises(RequestConflict):
            await lane.accept(Prompt("other"), operation_id="op", deps=Secret("Eve's"))
        await lane.accept(Prompt("go"), operation_id="op")
        await lane.resume()

    assert seen.by_tools == ["Ada's"]


@pytest.mark.parametrize("target", [":memory:", *TARGETS])
async def test_what_is_tried_again_is_given_its_own(tmp_path: Path, target: str) -> None:
    """The old operation's are gone with it; what is tried again without any gets the agent's."""
    seen, path = Seen(), target if target == ":memory:" else str(tmp_path / target)
    secret = Secret("Bob's hush-hush")
    gone = weakref.ref(secret)
    async with open_session(path) as session:
        answers = [[call("use")], fail("refused"), [call("use")], fail("refused"), [call("use")], "done"]
        lane = await session.lane("main", seen.agent(*answers))
        await lane.run("go", operation_id="first", deps=Secret("Ada's hush-hush"))

        await lane.retry("first", operation_id="second", deps=secret)
        assert (await lane.drive("second")).result.status == "failed"  # type: ignore[union-attr]
        await lane.retry("second", operation_id="third")
        result = await lane.resume()

        assert result is not None and (result.status, result.retry_of) == ("completed", "second")
        del secret
        await collect()
        assert gone() is None
    assert seen.by_tools == ["Ada's hush-hush", "Bob's hush-hush", "the agent's"]
    if target != ":memory:":
        assert b"hush-hush" not in Path(path).read_bytes()


@pytest.mark.parametrize("name", TARGETS)
async def test_a_retry_that_is_asked_for_again_brings_them_back_after_a_restart(tmp_path: Path, name: str) -> None:
    seen, path = Seen(), str(tmp_path / name)
    async with open_session(path) as session:
        lane = await session.lane("main", seen.agent(fail("refused")))
        await lane.run("go", operation_id="first")
        admitted = await lane.retry("first", operation_id="second", deps=Secret("Ada's"))

    async with open_session(path) as session:
        lane = await session.lane("main", seen.agent([call("use")], "done"))
        with pytest.raises(RequestConflict):
            await lane.retry("first", operation_id="second", same_keys=True, deps=Secret("Eve's"))
        assert await lane.retry("first", operation_id="second", deps=Secret("Bob's")) == admitted
        await lane.resume()
        assert await lane.retry("first", operation_id="second", deps=Secret("Cid's")) == admitted  # it has settled

    assert seen.by_tools == ["Bob's"]


async def test_nothing_may_be_given_too() -> None:
    """None is something to give: it is not the same as leaving it out."""
    seen: list[object] = []

    @tool
    async def use(ctx: ToolContext[Any]) -> str:
        seen.append(ctx.deps)
        return "used"

    async with open_session(":memory:") as session:
        agent: Agent[Any] = Agent(model=ScriptedModel([[call("use")], "done"]), tools=[use], deps=Secret("the agent's"))
        await (await session.lane("main", agent)).run("go", deps=None)
    assert seen == [None]


async def test_a_fault_is_no_restart(tmp_path: Path) -> None:
    """The process goes on, and so does what it was given."""
    seen = Seen()
    store = FailingStore(SqliteStore(tmp_path / "s.db"), nth=None)
    await store.create("s")
    async with open_session(store, session_id="s") as session:
        lane = await session.lane("main", seen.agent([call("use")], "done"))
        await lane.accept(Prompt("go"), operation_id="op", deps=Secret("Ada's"))
        store.fail_next(3)  # the outcome of the call
        with pytest.raises(SessionFaulted):
            await lane.drive()
        await session.reopen()
        await lane.resume()
    await store.close()

    assert seen.by_tools == ["Ada's", "Ada's"]
