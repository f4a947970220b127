"""What running calls leave behind before they have an outcome: progress and memos, durable by steps of the line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agentlane.data import addresses, codec
from agentlane.data.border import clean_json
from agentlane.data.messages import UserPart
from agentlane.data.operations import AnsweredCall, EffectPending, Tools, WaitingExternal, WaitingQuestion
from agentlane.data.writes import SetValue
from agentlane.driver.line import Decision, Done, Line
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.runtime import Runtime
from agentlane.driver.tool_results import progress_parts
from agentlane.errors import NoActiveOperation, SessionFaulted, StoreBusy
from agentlane.ids import call_id
from agentlane.names import check_name
from agentlane.storage.contract import Commit

SAVE_EVERY_MS = 100


class CallNotes:
    """Progress and memos of the calls that run in one pass; ``running`` says whether a call does."""

    def __init__(self, runtime: Runtime, line: Line, operation: OpenOperation, running: Callable[[int], bool]) -> None:
        self._runtime = runtime
        self._line = line
        self._operation = operation
        self._running = running
        self._latest: dict[int, tuple[UserPart, ...]] = {}
        self._due: dict[int, int] = {}
        self._timers: dict[int, asyncio.Task[Any]] = {}

    def progress_of(self, index: int) -> tuple[UserPart, ...]:
        """The latest progress of a call, saved or not."""
        return self._latest.get(index) or self._operation.progress.get(index, ())

    async def save_progress(self, index: int, content: str | Sequence[UserPart]) -> None:
        """Keep the latest progress: at once if the last was saved long enough ago, else soon."""
        parts = progress_parts(content, self._operation.config.limits.max_result_bytes)
        if not self._running(index):
            return
        self._latest[index] = parts
        now = self._runtime.clock.now_ms()
        due = min(self._due.get(index, now), now + SAVE_EVERY_MS)  # the clock may have been set back
        if now >= due:
            self._due[index] = now + SAVE_EVERY_MS
            await self._commit(index)
        elif index not in self._timers:
            self._timers[index] = self._runtime.spawn(self._later(index, due), "agentlane progress")

    async def flush(self) -> None:
        """Save what is not saved yet; writes nothing where all is."""
        for index, parts in tuple(self._latest.items()):
            if self._operation.progress.get(index) != parts:
                await self._commit(index)

    def forget(self, index: int) -> None:
        """The call has its outcome."""
        self._latest.pop(index, None)
        self._due.pop(index, None)
        timer = self._timers.pop(index, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Nothing more will be saved."""
        for timer in self._timers.values():
            timer.cancel()

    async def save_memo(self, index: int, name: str, value: Any, running: Callable[[], bool]) -> None:
        """Keep a value for the call; durable on return."""
        name = check_name(name, "memo")
        payload = codec.encode(clean_json(value, f"memo {name}"))
        operation = self._operation

        def decide() -> Decision[None] | Done[None]:
            state = operation.state
            if not running() or not isinstance(state, Tools):
                raise NoActiveOperation(f"memo {name!r}: the call has its result already")
            address = addresses.op_memo(operation.id, call_id(state.answer, index), name)

            def publish(commit: Commit) -> None:
                operation.memos.setdefault(index, {})[name] = payload

            return Decision([SetValue(address, payload)], "memo", publish)

        await self._line.run(decide)

    def answer(self, index: int, name: str) -> bytes | None:
        """What a person answered to the call's question of this name, as JSON."""
        return self._operation.answers.get(index, {}).get(name)

    def memo(self, index: int, name: str, default: Any) -> Any:
        """A kept value, or ``default``."""
        name = check_name(name, "memo")
        payload = self._operation.memos.get(index, {}).get(name)
        return default if payload is None else codec.JSON.decode(payload, f"memo {name}")

    async def _later(self, index: int, due: int) -> None:
        await self._runtime.clock.sleep_until(due)
        self._timers.pop(index, None)
        self._due[index] = self._runtime.clock.now_ms() + SAVE_EVERY_MS
        try:
            await self._commit(index)
        except (SessionFaulted, StoreBusy):
            pass  # a fault tells whoever drives; on a busy store the next report, or the close, saves it

    async def _commit(self, index: int) -> None:
        operation = self._operation

        def decide() -> Decision[None] | Done[None]:
            state = operation.state
            parts = self._latest.get(index)
            if parts is None or operation.progress.get(index) == parts or not isinstance(state, Tools):
                return Done(None)
            if not isinstance(state.calls[index], EffectPending | WaitingExternal | WaitingQuestion | AnsweredCall):
                return Done(None)
            address = addresses.pending_output(operation.id, call_id(state.answer, index))

            def publish(commit: Commit) -> None:
                operation.progress[index] = parts

            return Decision([SetValue(address, codec.encode(parts))], "progress", publish)

        await self._line.run(decide)
