"""Hooks that are asked in a caller's own task, not in a pass: who asks is interrupted when the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentlane.driver.runtime import Runtime


class Interruption(Exception):
    """The session ended while hooks were asked."""


class _Question:
    """Hooks that one caller asks."""

    def __init__(self, what: str, grace_ms: int, task: asyncio.Task[Any]) -> None:
        self.what = what
        self.grace_ms = grace_ms
        self.task = task
        self.cancelled_before = task.cancelling()
        self.interrupted = False

    def interrupt(self) -> None:
        if not self.interrupted:
            self.interrupted = True
            self.task.cancel()


class Outside:
    """What callers are asking hooks now."""

    def __init__(self) -> None:
        self._asking: list[_Question] = []
        self._one_ended = asyncio.Event()

    @contextmanager
    def asking(self, what: str, grace_ms: int) -> Iterator[None]:
        """Around hooks that the current task asks; ``Interruption`` if the session ended meanwhile."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("hooks are asked in a task")
        question = _Question(what, grace_ms, task)
        self._asking.append(question)
        try:
            yield
        except asyncio.CancelledError:
            if question.interrupted and task.uncancel() <= question.cancelled_before:  # and nobody else cancelled it
                raise Interruption from None
            raise
        finally:
            self._asking.remove(question)
            self._one_ended.set()

    def asked_here(self) -> bool:
        """Whether the current task is one that asks."""
        return bool(self._asking) and any(each.task is asyncio.current_task() for each in self._asking)

    def interrupt(self) -> None:
        """The session is faulted: ask them to end, once."""
        for question in self._asking:
            question.interrupt()

    async def end(self, runtime: Runtime) -> None:
        """The session closes: ask them to end, and wait until they have or their grace is over."""
        asked = list(self._asking)
        if not asked:
            return
        for question in asked:
            question.interrupt()
        over_at = runtime.clock.now_ms() + max(each.grace_ms for each in asked)
        timer = runtime.spawn(runtime.clock.sleep_until(over_at), "agentlane grace of hooks")
        while (left := [each for each in asked if each in self._asking]) and not timer.done():
            self._one_ended.clear()
            ended = runtime.spawn(self._one_ended.wait(), "agentlane end of hooks")
            await asyncio.wait({ended, timer}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        timer.cancel()
        for each in left:
            runtime.found(f"{each.what} did not end within {each.grace_ms} ms and was left behind")
