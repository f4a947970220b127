"""Claim: an opening that is cancelled leaves no owner behind, and one that has opened is closed by whatever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentlane import Session, SessionClosed, open_session
from tests.cancellation.kinds import KINDS, TASK, Kind, cancelled, trials
from tests.cancellation.leaks import run_clean
from tests.cancellation.watched import Watched

SUSPENSIONS_MAX = 100
PLACES = ["work.jsonl", "work", "work.db"]
WAITED_FOR = [kind for kind in KINDS if kind.name != "thrown away"]
"""Thrown away, a generator is closed no sooner than the session that it lent, of which nobody is told."""


def at_each(
    main: Callable[[Kind, Path, int], Coroutine[Any, Any, bool]], kind: Kind, folder: Path, name: str, *, step: int
) -> None:
    """Run it for each suspension, on a place of its own, until it says that nothing was struck."""
    for at in range(1, SUSPENSIONS_MAX, step):
        place = folder / str(at) / name
        place.parent.mkdir()
        if not run_clean(partial(main, kind, place, at), place.parent):
            return
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize("name", PLACES)
def test_a_cancelled_opening_lets_the_next_one_in(name: str, tmp_path: Path, whole: bool) -> None:
    """A new place, then the same one again: the session that is there in the end is the only one that was made."""

    async def main(kind: Kind, place: Path, at: int) -> bool:
        watched = Watched(_opened_and_closed(place), at=at, again=kind.again)
        await kind.run(watched)
        async with open_session(place) as session:
            await session.set_name("open")
        async with open_session(place, create=False) as again:
            assert (again.id, again.name) == (session.id, "open")
        return watched.struck

    for kind, folder in trials(KINDS, tmp_path, part=PLACES.index(name), of=len(PLACES), whole=whole):
        at_each(main, kind, folder, name, step=1 if whole else 2)


@pytest.mark.parametrize("name", PLACES)
def test_one_of_two_openings_is_cancelled(name: str, tmp_path: Path, whole: bool) -> None:
    """The second waits for the first to make the session: whichever is cancelled, the other is not held up."""

    async def main(victim: int, turns: int) -> None:
        path = tmp_path / f"{victim}{turns}" / name
        path.parent.mkdir()
        openers = [open_session(path, create=True), open_session(path, create=True)]
        tasks = [asyncio.ensure_future(opener.__aenter__()) for opener in openers]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[victim].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for each in ended:
            if isinstance(each, Session):
                await each.close()
        async with open_session(path, create=False) if path.exists() else open_session(path):
            pass

    for victim in (0, 1):
        for turns in range(6) if whole else [1]:
            run_clean(partial(main, victim, turns), tmp_path)


@pytest.mark.parametrize("name", PLACES)
def test_a_body_that_is_cancelled_closes_the_session(name: str, tmp_path: Path) -> None:
    seen: list[Session] = []

    async def body() -> None:
        async with open_session(tmp_path / name) as session:
            seen.append(session)
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.ensure_future(body())
        while not seen:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        with pytest.raises(SessionClosed):
            seen[0].lanes()
        async with open_session(tmp_path / name):
            pass

    run_clean(main, tmp_path)


async def _lent(place: Path) -> AsyncIterator[Session]:
    """A generator around a session, as the fixtures and lifespans of applications are."""
    async with open_session(place) as session:
        yield session


@pytest.mark.parametrize("name", PLACES)
def test_a_generator_around_a_session(name: str, tmp_path: Path, whole: bool) -> None:
    """``aclose`` closes the session; cancelled at any checkpoint of its own it does so all the same."""

    async def main(kind: Kind, place: Path, at: int) -> bool:
        lent = _lent(place)
        session = await anext(lent)
        pending = asyncio.ensure_future(session.set_name("lent"))
        await asyncio.sleep(0)
        watched = Watched(lent.aclose(), at=at, again=kind.again)  # type: ignore[attr-defined]  # it is a generator
        await kind.run(watched)
        with pytest.raises(SessionClosed):
            session.lanes()
        await pending
        async with open_session(place, create=False) as again:
            assert again.name == "lent"
        return watched.struck

    for kind, folder in trials(WAITED_FOR, tmp_path, part=PLACES.index(name), of=len(PLACES), whole=whole):
        at_each(main, kind, folder, name, step=1 if whole else 2)


@pytest.mark.parametrize("name", PLACES)
def test_a_generator_thrown_away_in_its_beginning(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        lent = _lent(tmp_path / name)
        await cancelled(_first(lent), TASK)
        await lent.aclose()  # type: ignore[attr-defined]  # it is a generator
        async with open_session(tmp_path / name):
            pass

    run_clean(main, tmp_path)


async def _opened_and_closed(place: Path) -> None:
    async with open_session(place):
        pass


async def _first(lent: AsyncIterator[Session]) -> Session:
    return await anext(lent)
