"""The ways in which a call is cancelled at one of its suspensions, each as the standard library or anyio does it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import anyio

from tests.cancellation.watched import Awaited, ThrownAway, TickingLoop, Watched

HOUR_S = 3_600.0

Way: TypeAlias = Callable[[Watched], Awaitable[bool]]
"""Runs a watched call with its strike set up; True if the call ended by the cancellation, False if it returned."""


class Kind(NamedTuple):
    """A way to cancel. ``again``: how many more suspensions are struck.

    ``at_once``: it cannot be late. The others come in the next turn of the loop, when the call may have ended.
    """

    name: str
    run: Way
    again: int = 0
    at_once: bool = True
    by_boundary: bool = False


async def by_task(watched: Watched) -> bool:
    """``task.cancel()`` as soon as the call waits: what it waits for has not arrived."""
    task = asyncio.ensure_future(_whole(watched))
    watched.strike = lambda awaited: _cancel(task)
    return await _ended(task)


async def as_it_arrives(watched: Watched) -> bool:
    """``task.cancel()`` when what the call waits for has arrived and the task has not gone on yet."""
    task = asyncio.ensure_future(_whole(watched))

    def strike(awaited: Awaited) -> None:
        if awaited is None:
            task.cancel()
        else:  # before the task's own callback, which is added when the suspension reaches the task
            awaited.add_done_callback(lambda _: _cancel(task))

    watched.strike = strike
    return await _ended(task)


async def by_scope(watched: Watched) -> bool:
    """An anyio scope around the call, which cancels in each turn of the loop until the call has left."""

    async def whole() -> bool:
        with anyio.CancelScope() as scope:
            watched.strike = lambda awaited: scope.cancel()
            await watched
        return scope.cancelled_caught

    return await asyncio.ensure_future(whole())


async def by_scope_and_task(watched: Watched) -> bool:
    """An anyio scope first, and the task itself while that is being handled."""

    async def whole() -> bool:
        with anyio.CancelScope() as scope:
            watched.strike = lambda awaited: _cancel(task) if scope.cancel_called else scope.cancel()
            await watched
        return scope.cancelled_caught

    task = asyncio.ensure_future(whole())
    return await _ended(task)


async def by_timeout(watched: Watched) -> bool:
    """``asyncio.timeout`` runs out."""

    async def whole() -> bool:
        try:
            async with asyncio.timeout(HOUR_S):
                await watched
        except TimeoutError:
            return True
        return False

    watched.strike = _run_out
    return await asyncio.ensure_future(whole())


async def by_wait_for(watched: Watched) -> bool:
    """``asyncio.wait_for`` runs out; until Python 3.12 it has a task of its own for the call."""
    watched.strike = _run_out
    try:
        await asyncio.wait_for(_whole(watched), HOUR_S)
    except TimeoutError:
        return True
    return False


async def by_throwing_away(watched: Watched) -> bool:
    """``coroutine.close()``, as a coroutine ends whose task was forgotten with its loop: it may not wait any more."""
    watched.strike = lambda awaited: watched.throw_away()
    return await asyncio.ensure_future(_value(watched))


async def before_its_first_step(watched: Watched) -> bool:
    """The task is cancelled before it has begun."""
    watched.struck = True
    task = asyncio.ensure_future(_whole(watched))
    task.cancel()
    try:
        return await _ended(task)
    finally:
        watched.coroutine.close()


async def not_at_all(watched: Watched) -> bool:
    """For reference: run to the end."""
    return await _ended(asyncio.ensure_future(_whole(watched)))


def turns_later(turns: int, *, everything: bool = False) -> Kind:
    """``task.cancel()`` so many turns of the loop after the first suspension: what is waited for has gone on by then.

    With ``everything`` each task of the loop is cancelled, as at the end of ``asyncio.run``, but not who waits here.
    """

    async def run(watched: Watched) -> bool:
        loop, cancel = asyncio.get_running_loop(), _canceller(watched, everything=everything)

        def strike(left: int) -> None:
            if left:
                loop.call_soon(strike, left - 1)
            else:
                cancel(task)

        task = asyncio.ensure_future(_whole(watched))
        watched.strike = lambda awaited: strike(turns)
        return await _ended(task)

    return Kind(f"{_what(everything)}, {turns} turns later", run, at_once=False)


def at_boundary(number: int, *, everything: bool = False) -> Kind:
    """The same when so many boundaries of commits and effects were reached, on whichever thread."""

    async def run(watched: Watched) -> bool:
        loop, cancel = asyncio.get_running_loop(), _canceller(watched, everything=everything)
        watched.at = 0
        task = asyncio.ensure_future(_whole(watched))
        watched.bell.set(number, lambda: _soon(loop, cancel, task))
        try:
            return await _ended(task)
        finally:
            watched.bell.set(0, lambda: None)

    return Kind(f"{_what(everything)} at boundary {number}", run, at_once=False, by_boundary=True)


def _canceller(watched: Watched, *, everything: bool) -> Callable[[asyncio.Task[bool]], None]:
    us = asyncio.current_task()

    def cancel(task: asyncio.Task[bool]) -> None:
        watched.struck_now()
        for each in asyncio.all_tasks() if everything else {task}:
            if each is not us:
                each.cancel()

    return cancel


def _what(everything: bool) -> str:
    return "everything" if everything else "task"


def _soon(
    loop: asyncio.AbstractEventLoop, cancel: Callable[[asyncio.Task[bool]], None], task: asyncio.Task[bool]
) -> None:
    loop.call_soon_threadsafe(cancel, task)


TASK = Kind("task", by_task)
KINDS = [
    TASK,
    Kind("as it arrives", as_it_arrives),
    Kind("task, again and again", by_task, again=3),
    Kind("scope", by_scope, at_once=False),
    Kind("scope, then task", by_scope_and_task, again=3, at_once=False),
    Kind("timeout", by_timeout, at_once=False),
    Kind("wait_for", by_wait_for, at_once=False),
    Kind("thrown away", by_throwing_away),
]
UNSTARTED = Kind("unstarted", before_its_first_step)
UNCANCELLED = Kind("not at all", not_at_all)


async def _whole(watched: Watched) -> bool:
    await watched
    return False


async def _value(watched: Watched) -> bool:
    return isinstance(await watched, ThrownAway)


async def _ended(task: asyncio.Task[bool]) -> bool:
    await asyncio.wait({task})
    return True if task.cancelled() else task.result()


def _cancel(task: asyncio.Task[bool]) -> None:
    task.cancel()


def _run_out(awaited: Awaited) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TickingLoop)
    loop.move_on(2 * HOUR_S)


async def cancelled(coroutine: Coroutine[Any, Any, Any], kind: Kind = TASK, *, at: int = 1) -> bool:
    """Run the coroutine, cancelled at its suspension ``at``; whether it ended by that."""
    return await kind.run(Watched(coroutine, at=0 if kind is UNCANCELLED else at, again=kind.again))


def trials(kinds: Sequence[Kind], folder: Path, *, part: int, of: int, whole: bool) -> Iterator[tuple[Kind, Path]]:
    """Each of the kinds with an empty folder of its own; in a reduced run only one part of so many."""
    for kind in kinds if whole else kinds[part % of :: of]:
        place = folder / kind.name.replace(" ", "-")
        place.mkdir()
        yield kind, place
