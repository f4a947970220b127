"""Claim: what a recovery makes of what was left says whose it was, what is known of it, and why nothing more came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentlane import AgentLane, ModelIdentity, Prompt, Session
from agentlane.data.messages import (
    AssistantMessage,
    ErrorInfo,
    Frame,
    PartDelta,
    PartStart,
    StopReason,
    TextPart,
    ToolCallPart,
    UsageSeen,
    user,
)
from agentlane.data.operations import Checkpoint, OperationConfig, OperationMeta
from agentlane.data.requests import RequestInfo
from agentlane.data.usage import Usage, UsageTotals
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.recovery import INTERRUPTED, restored_answer
from agentlane.testing.faults import FaultPlan
from tests.crash.world import World, finish, live, make_agent

MODEL = ModelIdentity(provider="p", name="m")
CALL = ToolCallPart(id="c", name="t", arguments={})
NOT_ANSWERS: tuple[StopReason, ...] = ("error", "aborted")


def test_a_saved_prefix_becomes_an_error_answer_of_its_model_that_may_be_asked_again() -> None:
    frames: list[Frame] = [
        PartStart(index=0, kind="text"),
        PartDelta(index=0, text="ha"),
        UsageSeen(usage=Usage(input_tokens=3)),
    ]

    assert restored_answer(frames, MODEL) == AssistantMessage(
        content=(TextPart(text="ha"),),
        stop_reason="error",
        model=MODEL,
        usage=Usage(input_tokens=3),
        error=ErrorInfo(code="interrupted", message=INTERRUPTED, retryable=True),
    )
    assert INTERRUPTED == (
        "the process stopped while the model was answering; what is here was saved before that, and what the provider "
        "charged is not known"
    )
    assert restored_answer([], None) == AssistantMessage(
        content=(), stop_reason="error", error=ErrorInfo(code="interrupted", message=INTERRUPTED, retryable=True)
    )


def test_an_operation_takes_the_last_answer_that_was_one() -> None:
    operation = an_operation()
    asks = AssistantMessage(content=(TextPart(text="so"), CALL), stop_reason="length")

    operation.take_answer(asks)
    for stop_reason in NOT_ANSWERS:
        operation.take_answer(AssistantMessage(content=(TextPart(text="no"),), stop_reason=stop_reason))

    assert (operation.answer_text, operation.calls, operation.cut) == ("so", (CALL,), True)
    operation.take_answer(AssistantMessage(content=(TextPart(text="done"),), stop_reason="stop"))
    assert (operation.answer_text, operation.calls, operation.cut) == ("done", (), False)


def test_an_operation_that_is_made_knows_nothing_yet() -> None:
    operation = an_operation()

    assert (operation.version, operation.answer_text, operation.calls, operation.cut) == (0, "", (), False)
    assert (operation.usage, operation.frames, operation.result) == (UsageTotals(), [], None)
    assert (operation.staged, operation.progress, operation.memos) == ({}, {}, {})
    assert operation.abort_waiting is False and operation.cancelled is False


def test_each_step_that_is_taken_gives_the_operation_a_version_it_never_had() -> None:
    operation = an_operation()
    finish = Checkpoint(next="finish", trigger="in")

    versions = []
    for _ in range(3):
        operation.take_state(finish, UsageTotals(rows=1), {})
        versions.append(operation.version)

    assert versions == [1, 2, 3] and operation.state is finish and operation.usage.rows == 1


def test_what_was_read_from_the_store_is_taken_whole() -> None:
    operation, read = an_operation(), an_operation()
    read.take_answer(AssistantMessage(content=(TextPart(text="so"), CALL), stop_reason="length"))
    read.usage = UsageTotals(rows=3)
    read.staged, read.progress = {0: object()}, {1: (TextPart(text="half"),)}  # type: ignore[dict-item]
    read.memos, read.frames = {2: {"m": b"1"}}, [PartStart(index=0, kind="text")]

    operation.take_restored(read)

    for name in ("usage", "answer_text", "calls", "cut", "staged", "progress", "memos", "frames"):
        assert getattr(operation, name) == getattr(read, name) != getattr(an_operation(), name), name


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World("memory", tmp_path)


async def test_a_restart_whose_model_is_not_here_any_more_fails_and_says_so(world: World) -> None:
    # Given: a process that died with a request under way.
    async def ask(session: Session) -> None:
        lane = await session.lane("main", make_agent(world, world.model(["done"]), []))
        await lane.accept(Prompt("go"), operation_id="op")
        await finish(world, lane, "op")

    assert not await live(world, ask, FaultPlan().kill_at("effect.model.start"))

    # When: the next one has another model.
    results: list[Any] = []

    async def go_on(session: Session) -> None:
        other = world.model(["done"], identity=ModelIdentity(provider="other", name="other"))
        lane: AgentLane[Any, Any] = await session.lane("main", make_agent(world, other, []))
        results.append(await finish(world, lane, "op"))
        results.append(await lane.messages())

    assert await live(world, go_on)

    # Then: it is not asked, and the interrupted answer is there under the name of the model that began it.
    result, messages = results
    assert (result.status, result.code, result.turns) == ("failed", "model_unavailable", 1)
    assert "not among the models" in result.error.message
    assert messages[0] == user("go")
    assert [each.stop_reason for each in messages[1:]] == ["error"]
    assert messages[1].model == world.models[0].identity and messages[1].error.code == "interrupted"
    assert world.models[1].requests == []


def an_operation() -> OpenOperation:
    request = RequestInfo(kind="prompt", digest="d")
    meta = OperationMeta(lane="main", request=request, inputs=("in",), start_tip=None, started_at=1, key_operation="op")
    return OpenOperation("op", meta, OperationConfig(agent="agent"), Checkpoint(next="respond", trigger="in"))
