"""Watches every session that is opened meanwhile, and holds what watchers fold against what there is, at every moment.

The truth is taken from memory in the step that publishes a commit or shows a piece of an answer. Whoever folds must be
there when it has come to the cursor of that moment. With each session go readers of several kinds: prompt ones, a slow
one, one that joins events, one that comes back with cursors, and some that break, hang or leave.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agentlane import AgentLaneError, LaneSnapshot, Resnapshot, Session, SessionFaulted, SessionSnapshot, Watch
from agentlane.data.events import newest
from agentlane.driver.feed import Feed
from agentlane.driver.lane_core import LaneCore
from agentlane.watch import LaneSource, capture_lane

HISTORY = 3
SLOW_TURNS = 7


class Law:
    """What was found of all sessions that were opened."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.seen: Counter[str] = Counter()
        """How often each kind of item was folded, and how many folds were held against the truth."""
        self.followed: list[Followed] = []

    def attach(self, session: Session) -> None:
        self.followed.append(Followed(self, session))

    def check(self) -> None:
        """Raise if a fold was wrong anywhere, or a reader did not end as it should."""
        assert not self.broken, "\n\n".join(self.broken[:3])


REPORT_TURNS_MAX = 2_000


class Followed:
    """One open of one session, its truth and its readers."""

    def __init__(self, law: Law, session: Session) -> None:
        self.law = law
        self.session = session
        self.runtime = session._runtime
        self.hub = session._runtime.hub
        self.cores: dict[str, LaneCore] = session._cores
        self.truth: dict[str, dict[str, tuple[LaneSnapshot, Any]]] = {}
        """By cursor and lane: what there was then, and how it is filled in."""
        self.tasks = [
            self.start("prompt", self.read_session(session.watch(buffer=10_000, history=HISTORY))),
            self.start("slow", self.read_session(session.watch(buffer=2, history=HISTORY), turns=SLOW_TURNS)),
            self.start("joining", self.read_session(session.watch(coalesce=True, history=HISTORY), turns=3)),
            self.start("returning", self.come_back()),
            self.start("leaving", self.leave()),
        ]
        self.hung = session.watch(buffer=3)
        self.tasks.append(self.start("hanging", self.hang()))
        for core in list(self.cores.values()):
            if core.config is not None:
                self.tasks.append(self.start(f"of lane {core.name}", self.read_lane(core)))

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.guarded(name, work))

    async def guarded(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SessionFaulted:
            self.law.seen["faulted"] += 1
        except AgentLaneError as error:
            for _ in range(REPORT_TURNS_MAX):  # a store that was killed in its thread is dead before it is told
                if self.runtime.phase != "open":
                    return
                await asyncio.sleep(0)
            if self.runtime.phase == "open":
                self.law.broken.append(f"reader {name}: {error!r}")
        except AssertionError as error:
            self.law.broken.append(f"reader {name}: {error}")

    def moment(self) -> None:
        """Something was published or shown: take the truth."""
        if self.hub.watched and self.runtime.phase == "open":  # readers were ended by a fault, and see no more
            lanes = self.truth.setdefault(self.hub.numbers.now(), {})
            for name, core in self.cores.items():
                if core.config is not None and core.feed.watched:
                    lanes[name] = (core.feed.capture(None), capture_lane(core, None))

    # Readers.

    async def read_session(self, watch: Watch[SessionSnapshot], *, turns: int = 0, items: int | None = None) -> None:
        folded: SessionSnapshot | None = None
        async for item in watch:
            self.law.seen[type(item).__name__] += 1
            if isinstance(item, SessionSnapshot):
                folded = item
            else:
                assert folded is not None
                folded = folded.apply(item)
            for lane in folded.lanes.values():
                await self.hold(lane, folded.cursor)
            for _ in range(turns):
                await asyncio.sleep(0)
            items = None if items is None else items - 1
            if items == 0:
                return

    async def read_lane(self, core: LaneCore) -> None:
        folded: LaneSnapshot | None = None
        async with Watch(LaneSource(core), history=HISTORY, buffer=10_000) as watch:
            async for item in watch:
                if isinstance(item, LaneSnapshot):
                    folded = item
                else:
                    assert folded is not None
                    assert not isinstance(item, Resnapshot), "a prompt reader missed something"
                    assert item.lane == core.name
                    folded = folded.apply(item)
                await self.hold(folded, folded.cursor)

    async def come_back(self) -> None:
        """Read a few items at a time, each time with the cursor of the last one."""
        folded: SessionSnapshot | None = None
        cursor: str | None = None
        while True:
            taken = 0
            async for item in self.session.watch(cursor=cursor, history=HISTORY, buffer=10_000):
                taken += 1
                if isinstance(item, SessionSnapshot):
                    assert folded is None, "a cursor was not served"
                    folded = item
                else:
                    assert folded is not None
                    folded = folded.apply(item)
                cursor = item.cursor
                for lane in folded.lanes.values():
                    await self.hold(lane, cursor)
                if taken == 2:
                    self.law.seen["came back"] += 1
                    break
            else:
                return

    async def leave(self) -> None:
        async for _ in self.session.watch():
            break
        with pytest.raises(ZeroDivisionError):
            await self.break_down()

    async def break_down(self) -> None:
        async with self.session.watch() as watch:
            async for _ in watch:
                raise ZeroDivisionError

    async def hang(self) -> None:
        async with self.hung:
            await asyncio.Event().wait()

    # The law.

    async def hold(self, folded: LaneSnapshot, cursor: str) -> None:
        """``folded`` was reached at ``cursor``: if a commit was published there, it is what there was."""
        found = self.truth.get(cursor, {}).get(folded.lane)
        if found is None:
            return
        captured, fill = found
        try:
            truth = await fill()
        except AgentLaneError:  # the store is gone: what memory held still counts
            truth = replace(captured, entries=folded.entries, last_result=folded.last_result)
        truth = replace(truth, history=folded.history, entries=newest(truth.entries, folded.history), cursor="")
        folded = replace(folded, cursor="")
        self.law.seen["held"] += 1
        assert folded == truth, f"lane {folded.lane} at {cursor}:\nfolded {told(folded)}\n\ntruth  {told(truth)}"


def told(snapshot: LaneSnapshot) -> str:
    return msgspec.json.format(msgspec.json.encode(snapshot), indent=1).decode()


@contextmanager
def followed() -> Iterator[Law]:
    """Follow each session that is opened, or opened anew, inside; raise at the end what was found."""
    law = Law()
    load, published, shown = Session.load, Feed.published, Feed.shown

    async def follow(session: Session) -> None:
        await load(session)
        law.attach(session)

    def moments(feed: Feed) -> None:
        for each in law.followed:
            if each.hub is feed._hub:
                each.moment()

    def publish(feed: Feed, *commit: Any) -> None:
        published(feed, *commit)
        moments(feed)

    def show(feed: Feed, *frame: Any) -> None:
        shown(feed, *frame)
        moments(feed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "load", follow)
        patch.setattr(Feed, "published", publish)
        patch.setattr(Feed, "shown", show)
        yield law
    law.check()
