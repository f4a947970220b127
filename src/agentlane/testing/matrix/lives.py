"""The life of one process: it acts until it is done, killed or closed; and it is aborted on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from agentlane.errors import AgentLaneError, SessionClosed
from agentlane.session import Session
from agentlane.testing.faults import Point
from agentlane.testing.matrix.history import History, Life, W
from agentlane.testing.matrix.scenario import Scenario
from agentlane.testing.matrix.stops import How, Stop, StopProbe

End: TypeAlias = Literal["done", "killed", "closed", "known"]
Look: TypeAlias = Callable[[Life[Any]], Awaitable[bool]]
"""What is done with a process that has opened the session and not yet acted; False ends it there."""


class Lived(NamedTuple):
    """How a process ended, the boundaries that it reached, and whether its close or abort came about."""

    end: End
    boundaries: list[Point]
    turned: How | None


async def live(
    history: History[W], scenario: Scenario[W], stops: Sequence[Stop] = (), *, look: Look | None = None
) -> Lived:
    """One process: open, act, close; stopped as ``stops`` say. Raises what the act raised if no stop explains it.

    ``look`` is called before it acts, and its end is ``known`` if that says that there is no need to.
    """
    probe = StopProbe(stops)
    life = await history.open(scenario.agent, probe)
    try:
        needed = look is None or await look(life)
    except BaseException:
        await life.session.close()
        raise
    if not needed:
        await life.session.close()
        return Lived("known", [], None)
    end = await _ended(life, scenario, probe)
    turned = probe.turned.result() if probe.turned.done() else None
    return Lived(end, probe.boundaries(), turned)


async def _ended(life: Life[W], scenario: Scenario[W], probe: StopProbe) -> End:
    acting: asyncio.Future[Any] = asyncio.ensure_future(scenario.run(life))
    dying: asyncio.Future[Any] = asyncio.ensure_future(probe.plan.died())
    others: list[asyncio.Future[Any]] = []
    closed = False
    try:
        await asyncio.wait({acting, dying, probe.turned}, return_when=asyncio.FIRST_COMPLETED)
        if probe.died_at is None and not acting.done():
            if probe.turned.result() == "close":
                closed = True
            else:
                others.append(asyncio.ensure_future(_abort_all(life)))
                await asyncio.wait({acting, dying}, return_when=asyncio.FIRST_COMPLETED)
        if probe.died_at is None:
            if not closed:
                await asyncio.gather(acting, *others)
            others.append(asyncio.ensure_future(life.session.close()))
            await asyncio.wait({others[-1], dying}, return_when=asyncio.FIRST_COMPLETED)
        if probe.died_at is None:
            await others[-1]
            if closed:
                await _closed_on(acting)
            if life.session._runtime.tasks:
                raise AssertionError(f"tasks are left behind by close: {life.session._runtime.tasks}")
            return "closed" if closed else "done"
    except BaseException:
        await bury(life.session, acting, *others)
        raise
    finally:
        dying.cancel()
    await bury(life.session, acting, *others)
    await life.history.witness.bury(life.number)
    return "killed"


async def _abort_all(life: Life[W]) -> None:
    for operation in life.session.open_operations():
        try:
            lane = await life.lane(operation.lane)
            await lane.request_abort(operation.operation_id)
        except AgentLaneError:
            if life.session._runtime.phase == "open":
                raise


async def _closed_on(acting: asyncio.Future[Any]) -> None:
    """Wait for an act whose session was closed; only the close may be what it raises."""
    error = (await asyncio.gather(acting, return_exceptions=True))[0]
    if isinstance(error, BaseExceptionGroup):
        error = error.split(SessionClosed)[1]
    if isinstance(error, BaseException) and not isinstance(error, SessionClosed):
        raise error


async def bury(session: Session, *tasks: asyncio.Future[Any]) -> None:
    """Nothing of a dead process goes on."""
    runtime = session._runtime
    runtime.storage.kill()
    runtime.fault(asyncio.CancelledError())
    for task in tasks:
        task.cancel()
    rest = {*tasks, *runtime.tasks}
    while rest:
        await asyncio.wait(rest)
        rest = set(runtime.tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
    runtime.threads.close()
