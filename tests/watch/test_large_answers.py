"""Claim: an answer that is shown in many small pieces costs in all what its length costs, whoever looks at it.

What is copied and written is counted; a whole copy for each piece would be some hundred times the bounds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from agentlane import (
    Agent,
    AssistantMessage,
    LaneSnapshot,
    ModelIdentity,
    ModelLimits,
    ModelRequest,
    PartDelta,
    PartEnd,
    PartialAnswer,
    PartStart,
    Prompt,
    ShownPart,
    StreamItem,
    TextDelta,
    TextPart,
    ToolCallPart,
    open_session,
    tool,
)
from agentlane.data.messages import Frame
from agentlane.data.writes import AppendElement
from agentlane.driver import channel
from agentlane.storage.memory import MemoryStore
from agentlane.testing.clock import ManualClock
from agentlane.testing.trace import Trace

PIECE = "0123456789"
PIECES = 2_000
DOUBLINGS = math.log2(PIECES)


class Dripping:
    """Answers with one large call, or one large text, in pieces; after each tenth the others have a turn."""

    identity = ModelIdentity(provider="test", name="dripping")
    limits = ModelLimits()

    def __init__(self, pieces: int, *, call: bool, clock: ManualClock | None = None) -> None:
        self.pieces = pieces
        self.call = call
        self.clock = clock

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """The call once, then a word; or the text."""
        whole = PIECE * self.pieces
        if len(request.messages) > 1:
            yield AssistantMessage(content=(TextPart(text="done"),), stop_reason="stop")
            return
        part: Any = ToolCallPart(id="c", name="write", arguments={"text": whole}) if self.call else TextPart(text=whole)
        yield PartStart(index=0, kind="tool_call" if self.call else "text", id="c", name="write")
        for number in range(self.pieces):
            yield PartDelta(index=0, text=PIECE)
            if number % 10 == 9:
                await asyncio.sleep(0)
                if self.clock is not None:
                    self.clock.advance(100)
                    await asyncio.sleep(0)
        yield PartEnd(index=0, part=part)
        yield AssistantMessage(content=(part,), stop_reason="tool_calls" if self.call else "stop")


@tool(replay="safe")
async def write(text: str) -> str:
    """Write."""
    return f"{len(text)}"


def test_an_answer_that_grows_is_copied_as_often_as_it_doubles() -> None:
    """And each one there was on the way stays what it was."""
    answer = PartialAnswer(response_id="r").plus([PartStart(index=0, kind="text")])
    copied, kept = 0, {}
    for number in range(PIECES):
        answer = answer.plus([PartDelta(index=0, text=PIECE)])
        copied += len(answer.parts[0].texts[-1])
        if number % 97 == 0:
            kept[number] = answer

    assert answer.text == PIECE * PIECES
    assert copied <= len(answer.text) * (DOUBLINGS + 2)
    assert all(len(each.parts[0].texts) <= DOUBLINGS + 2 for each in kept.values())
    assert [each.text for each in kept.values()] == [PIECE * (number + 1) for number in kept]


def test_parts_are_the_same_however_their_text_was_cut() -> None:
    one, other = ShownPart(index=1, texts=("ab", "c")), ShownPart(index=1, texts=("a", "bc"))
    assert one == other and hash(one) == hash(other)
    assert one != ShownPart(index=1, texts=("ab", "d")) and one != ShownPart(index=2, texts=("abc",))
    assert one != ShownPart(index=1, texts=("abc",), whole=TextPart(text="abc")) and one != "abc"
    assert PartialAnswer(response_id="r", parts=(one,)) == PartialAnswer(response_id="r", parts=(other,))
    copy = msgspec.json.decode(msgspec.json.encode(one), type=ShownPart)
    assert copy == one and copy.text == "abc"
    assert PartialAnswer(response_id="r").plus([PartDelta(index=0, text="")]).content == ()


async def test_who_folds_a_watch_and_who_reads_a_stream_see_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream folds nothing: each piece says by itself what is new."""
    folds = 0
    plus = PartialAnswer.plus

    def counted(answer: PartialAnswer, frames: Any) -> PartialAnswer:
        nonlocal folds
        folds += 1
        return plus(answer, frames)

    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=Dripping(PIECES, call=False)))
        admitted = await lane.accept(Prompt("go"))
        monkeypatch.setattr(PartialAnswer, "plus", counted)

        async def read() -> str:
            return "".join([each.text async for each in lane.stream(admitted.operation_id) if type(each) is TextDelta])

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0)
        await lane.drive()
        assert await reading == PIECE * PIECES
        assert folds == 0

        other = await session.lane("other", Agent(model=Dripping(PIECES, call=True), tools=[write]))
        longest = ""

        async def fold() -> None:
            nonlocal longest
            snapshot: LaneSnapshot | None = None
            async for item in other.watch(buffer=2 * PIECES):
                snapshot = item if isinstance(item, LaneSnapshot) else snapshot and snapshot.apply(item)  # type: ignore[arg-type]
                assert snapshot is not None
                if snapshot.answer is not None and snapshot.answer.parts[0].whole is not None:
                    longest = snapshot.answer.parts[0].text
                if snapshot.last_result is not None:
                    return

        folding = asyncio.ensure_future(fold())
        await asyncio.sleep(0)
        await other.run("go")
        await folding
        assert longest == PIECE * PIECES
        assert folds >= PIECES


async def test_what_waits_for_a_slow_reader_is_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coalescing watch that is not read meanwhile joins the pieces of the answer in portions, each of them once."""
    copied = 0
    joined = channel.joined

    def counted(frames: Sequence[Frame]) -> tuple[Frame, ...]:
        nonlocal copied
        copied += sum(len(each.text) for each in frames if isinstance(each, PartDelta))
        return joined(frames)

    monkeypatch.setattr(channel, "FRAMES_JOINED_EVERY", 16)
    monkeypatch.setattr(channel, "joined", counted)
    async with open_session(":memory:") as session:
        lane = await session.lane("main", Agent(model=Dripping(PIECES, call=False)))
        async with lane.watch(coalesce=True) as watch:
            await lane.run("go")
            shown = ""
            async for item in watch:
                if type(item).__name__ == "AnswerShown":
                    shown += "".join(each.text for each in item.frames if isinstance(each, PartDelta))  # type: ignore[union-attr]
                if type(item).__name__ == "OperationSettled":
                    break

    assert shown == PIECE * PIECES
    assert copied <= 2 * len(shown) + 16 * len(PIECE)


async def test_frames_are_saved_once_each_and_gone_when_the_answer_has_settled() -> None:
    """Arguments twice as long take twice the bytes, and as much again as themselves: no frame holds what one before
    it has held."""
    saved = []
    for pieces in (200, 400):
        clock, trace = ManualClock(), Trace()
        store = trace.store(MemoryStore(clock=clock))
        await store.create("s")
        async with open_session(store, session_id="s", clock=clock) as session:
            lane = await session.lane("main", Agent(model=Dripping(pieces, call=True, clock=clock), tools=[write]))
            await lane.run("go")
            frames = [commit for commit, _ in trace.commits() if commit.name == "frames"]
            payloads = [each.payload for commit in frames for each in commit.writes if isinstance(each, AppendElement)]
            assert len(frames) >= pieces // 20
            assert await session._runtime.storage.lists("pending.frames") == []
            saved.append(sum(map(len, payloads)) / len(PIECE * pieces))
        await store.close()

    assert saved[1] <= saved[0] * 1.05 and saved[1] < 2
