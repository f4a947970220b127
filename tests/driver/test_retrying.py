"""Claim: what failed or was aborted is tried again as an operation of its own, from its end, with the old input."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentlane import (
    Agent,
    AgentLane,
    InvalidName,
    LaneBusy,
    OperationMismatch,
    Prompt,
    RequestConflict,
    SessionFaulted,
    ToolContext,
    UnknownOperation,
    UserMessage,
    open_session,
    tool,
)
from agentlane.driver import retrying
from agentlane.testing.faults import FaultPlan
from agentlane.testing.models import ScriptedModel
from agentlane.testing.script import call, fail, hang

TARGETS = (":memory:", "session.jsonl", "session.db")


def target_in(folder: Path, name: str) -> str:
    return name if name == ":memory:" else str(folder / name)


class Sends:
    """A tool that notes the keys it is called with."""

    def __init__(self) -> None:
        self.keys: list[str] = []

        @tool(replay="idempotent")
        async def send(to: str, ctx: ToolContext) -> str:
            self.keys.append(ctx.idempotency_key)
            return "sent"

        self.tool = send


def script() -> list[Any]:
    return [[call("send", to="Ada")], fail("refused"), [call("send", to="Ada")], "done"]


async def failed(lane: AgentLane[Any, Any]) -> None:
    result = await lane.run("go", operation_id="op")
    assert (result.status, result.code) == ("failed", "refused")


@pytest.mark.parametrize("name", TARGETS)
async def test_a_failed_operation_goes_on_where_it_ended(tmp_path: Path, name: str) -> None:
    sends = Sends()
    model = ScriptedModel(script())
    async with open_session(target_in(tmp_path, name), durability="process") as session:
        lane = await session.lane("main", Agent(model=model, tools=[sends.tool]))
        await failed(lane)
        before, old = await lane.messages(), await lane.result("op")
        assert old is not None

        admitted = await lane.retry("op", operation_id="again")

        assert await lane.messages() == before and len(model.requests) == 2, "nothing is written but the operation"
        assert admitted.inputs == old.inputs
        result = await lane.resume()
        assert result is not None
        assert (result.status, result.text, result.turns) == ("completed", "done", 2)
        assert (result.operation_id, result.retry_of, result.key_operation) == ("again", "op", "again")
        assert (result.inputs, result.from_tip) == (old.inputs, old.to_tip)
        assert result.usage.rows == 2 and old.usage.rows == 2
        # The user's message is there once, and the model is shown what the first try was given.
        messages = await lane.messages()
        assert sum(isinstance(each, UserMessage) for each in messages) == 1
        assert [type(each).__name__ for each in model.requests[2].messages] == [
            "UserMessage",
            "AssistantMessage",
            "ToolResultMessage",
        ]
        assert await lane.result("op") == old


@pytest.mark.parametrize("same_keys", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
async def test_keys_name_the_operation_that_they_should(tmp_path: Path, same_keys: bool, reopened: bool) -> None:
    """The count of equal calls goes on from the input, in the process that retries and in a later one."""
    path, sends = str(tmp_path / "s.db"), Sends()
    async with open_session(path) as session:
        here = session.id
        lane = await session.lane("main", Agent(model=ScriptedModel(script()), tools=[sends.tool]))
        await failed(lane)
        if not reopened:
            await lane.retry("op", same_keys=same_keys, operation_id="again")
            await lane.resume()
    if reopened:
        async with open_session(path) as session:
            lane = await session.lane("main", Agent(model=ScriptedModel(script()), tools=[sends.tool]))
            await lane.retry("op", same_keys=same_keys, operation_id="again")
        async with open_session(path) as session:
            model = ScriptedModel([*script()[:1], *script()[2:]])
            lane = await session.lane("main", Agent(model=model, tools=[sends.tool]))
            await lane.resume()

    first, second = sends.keys
    assert first.startswith(f"{here}/op/send#") and first.endswith("/0")
    assert second == (first[:-1] + "1" if same_keys else first.replace("/op/", "/again/")[:-1] + "1")


async def test_asked_again_with_the_same_id_it_is_the_same(tmp_path: Path) -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([fail("refused"), fail("refused"), "done"])))
        await failed(lane)
        admitted = await lane.retry("op", operation_id="again")
        assert await lane.retry("op", operation_id="again") == admitted
        with pytest.raises(RequestConflict):
            await lane.retry("op", operation_id="again", same_keys=True)
        with pytest.raises(RequestConflict):
            await lane.accept(Prompt("go"), operation_id="again")
        await lane.resume()
        assert await lane.retry("op", operation_id="again") == admitted, "also when it has settled, and the tip moved"
        # The second try failed too: it can be tried again itself.
        await lane.retry("again", operation_id="third")
        result = await lane.resume()
        assert result is not None and (result.status, result.retry_of) == ("completed", "again")


@pytest.mark.parametrize("place", ["before", "inside", "after"])
@pytest.mark.parametrize("name", TARGETS[1:])
async def test_killed_at_its_commit_it_is_opened_or_not(tmp_path: Path, name: str, place: str) -> None:
    """A lost acknowledgement: whoever asks again with the id gets the one operation."""
    path = target_in(tmp_path, name)
    plan = FaultPlan().kill_at(f"commit.retry.{place}")
    answers = [fail("refused"), "done"]
    session = await open_session(path, probe=plan)
    lane = await session.lane("main", Agent(model=ScriptedModel(answers)))
    await failed(lane)
    with suppress(SessionFaulted):  # killed behind its report, it was acknowledged
        await lane.retry("op", operation_id="again")
    assert plan.died_at is not None
    async with open_session(path) as session:
        lane = await session.lane("main", Agent(model=ScriptedModel(["done"])))
        assert (lane.inspect().operation is not None) == (place == "after")
        await lane.retry("op", operation_id="again")
        result = await lane.resume()
        assert result is not None and (result.operation_id, result.status) == ("again", "completed")
        assert len(await lane.messages()) == 3


async def test_an_aborted_one_goes_on_and_its_calls_are_not_run_again(tmp_path: Path) -> None:
    sends = Sends()
    model = ScriptedModel([[call("send", to="Ada")], hang(), "done"])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model, tools=[sends.tool]))
        running = asyncio.ensure_future(lane.run("go", operation_id="op"))
        await model.hanging()
        await lane.request_abort("op")
        assert (await running).status == "aborted"
        await lane.retry("op")
        result = await lane.resume()

    assert result is not None and result.text == "done"
    assert len(sends.keys) == 1


async def test_an_abort_behind_the_last_answer_leaves_that_answer() -> None:
    """No request is made for what is there already."""
    async with open_session(":memory:") as session:
        model = ScriptedModel(["whole"])
        lane = await session.lane("main", Agent(model=model))
        plan = asyncio.get_running_loop().create_future()

        class Aborts:
            def reached(self, boundary: str) -> None:
                if boundary == "effect.model.end" and not plan.done():
                    plan.set_result(asyncio.ensure_future(lane.request_abort("op")))

        session._runtime.probe = Aborts()  # type: ignore[assignment]
        result = await lane.run("go", operation_id="op")
        if result.status == "completed":
            pytest.skip("the answer was faster than the abort")
        await lane.retry("op")
        again = await lane.resume()

    assert again is not None and (again.status, again.text) == ("completed", "whole")
    assert len(model.requests) == 1


async def test_limits_begin_anew() -> None:
    sends = Sends()
    answers = [[call("send", to="Ada")], [call("send", to="Ada")], [call("send", to="Ada")], "done"]
    async with open_session(":memory:") as session:
        agent = Agent(model=ScriptedModel(answers), tools=[sends.tool], max_identical_calls=1, max_turns=2)
        lane = await session.lane("main", agent)
        first = await lane.run("go", operation_id="op")
        assert first.error is not None and "max_turns" in first.error.message
        assert len(sends.keys) == 1
        await lane.retry("op")
        second = await lane.resume()

    assert second is not None and second.status == "completed"
    assert len(sends.keys) == 2


async def test_what_cannot_be_tried_again_is_refused_and_changes_nothing() -> None:
    model = ScriptedModel([fail("refused"), "done", hang()])
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=model))
        other = await session.lane("other", Agent(model=ScriptedModel([])))
        await failed(lane)
        with pytest.raises(OperationMismatch, match="belongs to lane 'main'"):
            await other.retry("op")
        with pytest.raises(UnknownOperation):
            await lane.retry("nobody")
        with pytest.raises(InvalidName):
            await lane.retry("op", operation_id="a b")
        await lane.append_message(UserMessage(content=(await lane.messages())[0].content))  # type: ignore[arg-type]
        with pytest.raises(OperationMismatch, match="ended at"):
            await lane.retry("op")
        done = await lane.run("more", operation_id="done")
        assert done.status == "completed"
        with pytest.raises(RequestConflict, match="is completed"):
            await lane.retry("done")
        await lane.accept(Prompt("hang"), operation_id="open")
        for settled in ("open", "op"):
            with pytest.raises((LaneBusy, OperationMismatch)):
                await lane.retry(settled)
        commits = (await lane.entries())[0].seq
        assert lane.inspect().operation is not None and commits > 0


async def test_two_at_once_open_one() -> None:
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([fail("refused"), "done"])))
        await failed(lane)
        outcomes = await asyncio.gather(*(lane.retry("op") for _ in range(3)), return_exceptions=True)

        assert sum(isinstance(each, LaneBusy) for each in outcomes) == 2
        assert sum(not isinstance(each, BaseException) for each in outcomes) == 1


async def test_what_is_appended_while_it_looks_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tip is looked at where the commit is decided, not only before."""
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=ScriptedModel([fail("refused"), "done"])))
        await failed(lane)
        looked = retrying.read_path

        async def look(*given: Any, **options: Any) -> Any:
            path = await looked(*given, **options)
            await lane.append_custom("note", {"n": 1})
            return path

        monkeypatch.setattr(retrying, "read_path", look)
        with pytest.raises(OperationMismatch):
            await lane.retry("op", operation_id="again")
        assert lane.inspect().operation is None
