"""Lanes that were written by somebody, entry by entry, as a store holds them before a session opens it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agentlane import Session
from agentlane.data import addresses, codec
from agentlane.data.entries import Compaction, EntryBody, kind_of
from agentlane.data.messages import AssistantMessage, TextPart, ToolCallPart, ToolResultMessage, user
from agentlane.data.operations import LaneConfig, LaneState, OperationConfig, OperationMeta, OperationState
from agentlane.data.requests import RequestInfo
from agentlane.data.writes import InsertEntry, SetValue, Write
from agentlane.driver.draft import opening_writes
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.ids import call_id
from agentlane.storage.contract import SessionStorage
from tests.session.places import Place

CHUNK = 1_000


def entry_id(number: int) -> str:
    return f"0000bbbb-0000-7000-8000-{number:08x}0000"


def said(text: str) -> AssistantMessage:
    return AssistantMessage(content=(TextPart(text=text),), stop_reason="stop")


def asks(number: int, tool: str = "echo") -> AssistantMessage:
    call = ToolCallPart(id=f"c{number}", name=tool, arguments={})
    return AssistantMessage(content=(TextPart(text=f"asks {number}"), call), stop_reason="tool_calls")


def compaction(kept_from: str | None, summary: str = "so far") -> Compaction:
    return Compaction(summary=summary, kept_from=kept_from, tokens_before=1)


class Path:
    """A path in the making."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, EntryBody]] = []

    def add(self, *bodies: EntryBody) -> str:
        """Put entries at the end; the id of the last one."""
        for body in bodies:
            self.entries.append((entry_id(len(self.entries) + 1), body))
        return self.entries[-1][0]

    def batch(self) -> str:
        """An answer with a call and the result under the id reserved for it; the answer's id."""
        number = len(self.entries)
        answer = self.add(asks(number))
        result = ToolResultMessage(call_id=f"c{number}", name="echo", content=(TextPart(text=f"result {number}"),))
        self.entries.append((call_id(answer, 0), result))
        return answer

    def turns(self, count: int) -> None:
        for _ in range(count):
            number = len(self.entries)
            self.add(user(f"asked {number}"), said(f"said {number}"))

    @property
    def tip(self) -> str:
        return self.entries[-1][0]


def operation(
    state: OperationState, *, inputs: tuple[str, ...] = (), start_tip: str | None = None, **more: Any
) -> OpenOperation:
    """An open operation of the lane ``main``."""
    request = RequestInfo(kind="prompt" if inputs else "compact", digest="d")
    meta = OperationMeta(
        lane="main", request=request, inputs=inputs, start_tip=start_tip, started_at=1, key_operation="op", **more
    )
    return OpenOperation("op", meta, OperationConfig(agent="agent"), state)


async def write(place: Place, path: Path, opened: OpenOperation | None = None, also: Sequence[Write] = ()) -> None:
    """Make the session ``s`` with the lane ``main`` at the path's end."""
    await place.store.create("s")
    storage = await place.store.open("s")
    for chunk in _chunks(list(_inserts(path))):
        await storage.submit(chunk)
    state = LaneState(current=None if opened is None else opened.id)
    writes: list[Write] = [
        SetValue(addresses.branch_tip("main"), codec.encode(path.tip)),
        SetValue(addresses.lane_config("main"), codec.encode(LaneConfig(agent="agent"))),
        SetValue(addresses.lane_state("main"), codec.encode(state)),
        *([] if opened is None else opening_writes(opened)),
        *also,
    ]
    await storage.submit(writes)
    await storage.close()


class Rows:
    """How many rows of paths the storage gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, storage: SessionStorage) -> None:
        self.count = 0
        read = type(storage).path

        async def path(storage: SessionStorage, *given: Any, **options: Any) -> Any:
            rows = await read(storage, *given, **options)
            self.count += len(rows)
            return rows

        monkeypatch.setattr(type(storage), "path", path)


def core_of(session: Session) -> LaneCore:
    return session._cores["main"]


def _inserts(path: Path) -> Iterator[Write]:
    parent: str | None = None
    for id, body in path.entries:
        yield InsertEntry(id, parent, kind_of(body), codec.encode(body))
        parent = id


def _chunks(writes: list[Write]) -> Iterator[list[Write]]:
    for start in range(0, len(writes), CHUNK):
        yield writes[start : start + CHUNK]
