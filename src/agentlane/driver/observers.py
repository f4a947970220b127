"""Those who wait for a pass: each is told once, and any may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentlane.data.results import Settled, Waiting, is_for_retry


class _Observer:
    __slots__ = ("answers", "future", "retry")

    def __init__(self, future: asyncio.Future[Settled | Waiting], *, retry: bool, answers: bool) -> None:
        self.future = future
        self.retry = retry
        self.answers = answers

    def sits_out(self, waiting: Waiting) -> bool:
        """A wait that has any reason beside a retry is one for answers."""
        return self.retry if all(map(is_for_retry, waiting.reasons)) else self.answers


class Observers:
    """The callers of drive that observe one pass. ``changed`` is called when one comes or goes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._all: list[_Observer] = []

    async def observe(self, *, wait_for_retry: bool, wait_for_answers: bool) -> Settled | Waiting:
        """Wait for the operation's end, or for a wait if the caller does not want to sit it out."""
        future = asyncio.get_running_loop().create_future()
        observer = _Observer(future, retry=wait_for_retry, answers=wait_for_answers)
        self._all.append(observer)
        self._changed()
        try:
            return await observer.future
        finally:
            self._all.remove(observer)
            self._changed()

    def tell(self, outcome: Settled | BaseException) -> None:
        """Tell everybody the end."""
        for observer in self._all:
            if observer.future.done():
                continue
            if isinstance(outcome, BaseException):
                observer.future.set_exception(outcome)
            else:
                observer.future.set_result(outcome)

    def announce(self, waiting: Waiting) -> bool:
        """Tell of a wait those who do not sit it out; whether somebody does."""
        for observer in self._all:
            if not observer.sits_out(waiting) and not observer.future.done():
                observer.future.set_result(waiting)
        return any(not observer.future.done() for observer in self._all)
