"""Waiting to the end under any cancellation, native or anyio's: for clean-up that must not be skipped."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import anyio

T = TypeVar("T")


async def finish(task: asyncio.Task[T]) -> T:
    """Wait until ``task`` is done, whatever happens to the caller; what cancelled the caller is raised then.

    A first cancellation is taken note of; from there on the wait is inside a shielded anyio scope, since anyio would
    deliver its cancellation again on every turn of the loop.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            if cancelled is None:
                await asyncio.wait({task})
            else:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it is retrieved: the cancellation is what the caller hears of
        raise cancelled
    return task.result()
