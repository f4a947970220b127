"""Waiting: for something that belongs to somebody else, and to the end under any cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")


class Outcome(Generic[T]):
    """How something will end, told once. ``await`` gives the value or raises; several may wait, any may be cancelled.

    Each waiter has a future of its own, so that cancelling one, natively or by anyio, means nothing to anyone else.
    """

    __slots__ = ("_done", "_error", "_value", "_waiters")

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def error(self) -> BaseException | None:
        """What it failed with, if it has."""
        return self._error

    def done(self) -> bool:
        """Whether it has ended."""
        return self._done

    def succeed(self, value: T) -> None:
        """It has ended well. Only the first end counts."""
        if not self._done:
            self._value = value
            self._end()

    def fail(self, error: BaseException) -> None:
        """It has failed. Only the first end counts."""
        if not self._done:
            self._error = error
            self._end()

    def result(self) -> T:
        """The value, once it is done; raises what it failed with."""
        if not self._done:
            raise asyncio.InvalidStateError("it has not ended yet")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                yield from waiter
            finally:
                if not self._done:
                    self._waiters.remove(waiter)
        return self.result()

    def _end(self) -> None:
        self._done = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def finish(future: asyncio.Future[T]) -> T:
    """Wait until ``future`` is done, whatever happens to the caller; what cancelled the caller is raised then.

    A native cancellation arrives even inside anyio's shield, and an anyio scope cancels again on every turn of the loop
    unless shielded, so both are met: the first cancellation is taken note of, and the rest of the wait is shielded.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            if cancelled is None:
                await asyncio.wait({future})
            else:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # it is retrieved: the cancellation is what the caller hears of
        raise cancelled
    return future.result()
