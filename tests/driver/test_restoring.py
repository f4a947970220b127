"""Claim: a restored operation holds what is its own, nothing of another one, and what is damaged is refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from agentlane.data import addresses, codec
from agentlane.data.entries import Entry
from agentlane.data.messages import (
    AssistantMessage,
    PartDelta,
    PartStart,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    user,
)
from agentlane.data.operations import (
    EffectPending,
    Generating,
    OperationConfig,
    OperationMeta,
    OperationState,
    OutcomeReady,
    Planned,
    Tools,
)
from agentlane.data.requests import RequestInfo
from agentlane.data.usage import Usage, UsageRow, UsageTotals
from agentlane.data.writes import AppendElement, InsertEntry, InsertUsage, SetValue, Write
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.recovery import restore
from agentlane.errors import CorruptSession
from agentlane.ids import call_id
from agentlane.storage.contract import SessionStorage
from agentlane.storage.memory import MemoryStore

ANSWER = "0000aaaa-0000-7000-8000-000000030000"
IN = "0000aaaa-0000-7000-8000-000000020000"
CALLS = tuple(ToolCallPart(id=f"c{index}", name="t", arguments={}) for index in range(3))
ASKING = AssistantMessage(content=(TextPart(text="so"), *CALLS), stop_reason="tool_calls")
RESULT = ToolResultMessage(call_id="c1", name="t", content=(TextPart(text="fine"),))
BATCH = Tools(calls=(EffectPending("safe"), OutcomeReady(terminate=True), Planned()), answer=ANSWER)
HALF = (TextPart(text="half"),)


@pytest.fixture
async def storage() -> AsyncIterator[SessionStorage]:
    store = MemoryStore()
    await store.create("s")
    opened = await store.open("s")
    yield opened
    await opened.close()


def operation_at(state: OperationState) -> OpenOperation:
    request = RequestInfo(kind="prompt", digest="d")
    meta = OperationMeta(lane="main", request=request, inputs=(IN,), start_tip=None, started_at=1, key_operation="op")
    return OpenOperation("op", meta, OperationConfig(agent="agent"), state)


async def write(storage: SessionStorage, *writes: Write) -> None:
    await storage.submit(writes)


async def path_of(storage: SessionStorage, *messages: tuple[str, object]) -> Sequence[Entry]:
    """These messages as the path of the lane."""
    parent: str | None = None
    for id, message in messages:
        await write(storage, InsertEntry(id, parent, "message", codec.encode(message)))
        parent = id
    assert parent is not None
    rows = await storage.path(parent, newest_first=False)
    return [codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload) for row in rows]


async def test_a_batch_gets_its_staged_results_its_progress_and_its_memos(storage: SessionStorage) -> None:
    path = await path_of(storage, (IN, user("go")), (ANSWER, ASKING))
    payload = codec.encode(RESULT)
    await write(
        storage,
        SetValue(addresses.pending_entry(call_id(ANSWER, 1)), payload),
        SetValue(addresses.pending_output("op", call_id(ANSWER, 0)), codec.encode(HALF)),
        SetValue(addresses.op_memo("op", call_id(ANSWER, 0), "m"), b"1"),
        SetValue(addresses.op_memo("op", call_id(ANSWER, 0), "n"), b"2"),
        # another lane's operation has notes too
        SetValue(addresses.pending_output("other", "its-call"), codec.encode(HALF)),
        SetValue(addresses.op_memo("other", "its-call", "m"), b"3"),
    )
    operation = operation_at(BATCH)

    await restore(storage, operation, path)

    assert operation.calls == CALLS and operation.answer_text == "so" and operation.cut is False
    staged = operation.staged[1]
    assert [*operation.staged] == [1] and (staged.message, staged.payload) == (RESULT, payload)
    assert operation.progress == {0: HALF}
    assert operation.memos == {0: {"m": b"1", "n": b"2"}}
    assert operation.frames == []


async def test_a_request_gets_the_frames_of_its_own_stream_only(storage: SessionStorage) -> None:
    path = await path_of(storage, (IN, user("go")))
    first, second = (PartStart(index=0, kind="text"),), (PartDelta(index=0, text="ha"),)
    await write(
        storage,
        AppendElement(addresses.pending_frames("op", ANSWER), codec.encode(first)),
        AppendElement(addresses.pending_frames("other", ANSWER), codec.encode(first)),
    )
    await write(storage, AppendElement(addresses.pending_frames("op", ANSWER), codec.encode(second)))
    operation = operation_at(Generating(response_id=ANSWER, attempt=1))

    await restore(storage, operation, path)

    assert operation.frames == [*first, *second]
    assert (operation.staged, operation.progress, operation.memos) == ({}, {}, {})


async def test_usage_is_that_of_the_operations_own_requests(storage: SessionStorage) -> None:
    earlier = row("0000aaaa-0000-7000-8000-000000010001", "before", 1)
    await write(storage, InsertUsage(earlier))
    path = await path_of(storage, (IN, user("go")), (ANSWER, ASKING))
    mine, others = row(f"{ANSWER[:-4]}0001", "op", 10), row("0000aaaa-0000-7000-8000-000000040001", "other", 100)
    also_mine = row("0000aaaa-0000-7000-8000-000000050001", "op", 1_000)
    adjusted = UsageRow(id=f"{ANSWER[:-4]}0009", kind="adjustment", usage=Usage(input_tokens=7), operation_id="op")
    for each in (mine, others, also_mine, adjusted):
        await write(storage, InsertUsage(each))
    operation = operation_at(Tools(calls=(Planned(),) * 3, answer=ANSWER))

    await restore(storage, operation, path)

    assert operation.usage == UsageTotals().plus(mine).plus(also_mine)
    assert operation.usage.rows == 2 and operation.usage.input_tokens == 1_010


def row(id: str, operation_id: str, tokens: int) -> UsageRow:
    return UsageRow(id=id, kind="attempt", usage=Usage(input_tokens=tokens, output_tokens=0), operation_id=operation_id)


async def test_an_input_that_is_not_on_the_path_is_damage(storage: SessionStorage) -> None:
    path = await path_of(storage, (ANSWER, ASKING))

    with pytest.raises(CorruptSession) as caught:
        await restore(storage, operation_at(BATCH), path)

    assert str(caught.value) == f"operation op: its input {IN} is not on the path of lane 'main'"


async def test_a_state_with_another_number_of_calls_than_its_answer_is_damage(storage: SessionStorage) -> None:
    path = await path_of(storage, (IN, user("go")), (ANSWER, ASKING))

    with pytest.raises(CorruptSession) as caught:
        await restore(storage, operation_at(Tools(calls=(Planned(),), answer=ANSWER)), path)

    assert str(caught.value) == f"operation op: answer {ANSWER} has 3 calls, its state 1"


@pytest.mark.parametrize("left", [None, user("not a result")], ids=["nothing", "another kind of message"])
async def test_a_staged_result_that_is_not_there_is_damage(storage: SessionStorage, left: object) -> None:
    path = await path_of(storage, (IN, user("go")), (ANSWER, ASKING))
    staged = call_id(ANSWER, 1)
    if left is not None:
        await write(storage, SetValue(addresses.pending_entry(staged), codec.encode(left)))

    with pytest.raises(CorruptSession) as caught:
        await restore(storage, operation_at(BATCH), path)

    assert str(caught.value) == f"operation op: the staged result {staged} is not there"


@pytest.mark.parametrize("what", ["staged", "progress", "frames"])
async def test_damage_is_told_with_its_place(storage: SessionStorage, what: str) -> None:
    path = await path_of(storage, (IN, user("go")), (ANSWER, ASKING))
    call = call_id(ANSWER, 1)
    state: OperationState = BATCH
    if what == "frames":
        state = Generating(response_id=ANSWER, attempt=1)
        await write(storage, AppendElement(addresses.pending_frames("op", ANSWER), b"{"))
        place = f"frames of {ANSWER}"
    elif what == "staged":
        await write(storage, SetValue(addresses.pending_entry(call), b"{"))
        place = f"staged result {call}"
    else:
        await write(
            storage,
            SetValue(addresses.pending_entry(call), codec.encode(RESULT)),
            SetValue(addresses.pending_output("op", call), b"{"),
        )
        place = f"progress op|{call}"

    with pytest.raises(CorruptSession) as caught:
        await restore(storage, operation_at(state), path)

    assert f" at {place}: " in str(caught.value)
