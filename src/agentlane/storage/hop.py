"""A hop to a thread and back: what was done there is told, once, to the event loop that asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Result(Generic[T]):
    """What a thread will have done, told once to the loop that made this; silent when that loop has ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def succeed(self, value: T) -> None:
        """From any thread: done."""
        tell(self._loop, _set_result, self.future, value)

    def fail(self, error: BaseException) -> None:
        """From any thread: not done."""
        tell(self._loop, _set_error, self.future, error)


async def on_new_thread(function: Callable[[], T]) -> T:
    """Run ``function`` on a daemon thread of its own; cancelling the caller does not take it back."""
    result = Result[T]()

    def run() -> None:
        try:
            result.succeed(function())
        except BaseException as error:
            result.fail(error)

    threading.Thread(target=run, daemon=True).start()
    return await result.future


def tell(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Call ``function`` on ``loop`` soon, from any thread; False if the loop is closed: nobody is there to be told."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if loop.is_closed():
            return False
        raise
    return True


def _set_result(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _set_error(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
