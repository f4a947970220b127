"""Watch: a snapshot of a lane or of a session, then every event behind it, for as long as somebody reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from agentlane.data import codec
from agentlane.data.entries import Entry
from agentlane.data.events import Event, LaneOpened, LaneSnapshot, PathMoved, Resnapshot, SessionSnapshot
from agentlane.driver import verbs
from agentlane.driver.channel import Channel, Reader
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.runtime import Runtime
from agentlane.errors import AgentLaneError, InvalidMessage
from agentlane.storage.contract import SessionStorage

S = TypeVar("S", bound=LaneSnapshot | SessionSnapshot)
Fill: TypeAlias = Callable[[], Awaitable[S]]


class Source(Generic[S]):
    """What a watch looks at: its channel, and how a snapshot of it is taken."""

    def __init__(self, runtime: Runtime, channel: Channel) -> None:
        self.runtime = runtime
        self.channel = channel

    def check(self) -> None:
        """Raise unless it can be watched here and now."""
        self.runtime.check()

    async def load(self) -> None:
        """Read what an earlier process left, so that ``capture`` shows it."""
        raise NotImplementedError

    def capture(self, history: int | None) -> Fill[S]:
        """Take the snapshot of now; what is returned adds what only the store holds of this moment, any time later."""
        raise NotImplementedError


class Watch(Generic[S]):
    """What ``lane.watch()`` and ``session.watch()`` return: an async context manager, and an async iterator.

    The first item is a snapshot, unless a cursor is served; each later one is an event, or ``Resnapshot`` in place of
    events that this reader was too slow for. Folding them with ``snapshot.apply`` gives the snapshot of now. It is read
    by one task at a time. It reads nothing and keeps nothing before it is entered, or asked for its first item, nor
    when it is left, closed or thrown away. Cancelling a read loses nothing.

    When the session is closed, or the lane deleted, the iteration ends behind the last event; after a fault it raises
    ``SessionFaulted`` there, and a new watch works after ``reopen()``. Of a session that was opened for reading it
    gives one snapshot and ends.
    """

    def __init__(
        self,
        source: Source[S],
        *,
        cursor: str | None = None,
        history: int | None = None,
        coalesce: bool = False,
        buffer: int = 1_000,
    ) -> None:
        self._source = source
        self._asked_cursor = cursor
        self._history = history
        self._reader = Reader(size=buffer, coalesce=coalesce)
        self._buffer = buffer
        self._first: S | None = None
        self._cursor: str | None = None
        self._started = False
        self._reading = False

    @property
    def cursor(self) -> str | None:
        """The moment behind the last item that was taken, to go on from later in this process; None before that."""
        return self._cursor

    async def __aenter__(self) -> Watch[S]:
        """Begin: what becomes true from here on is not missed. Raises what the first read raises."""
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Watch[S]:
        return self

    async def __anext__(self) -> S | Event | Resnapshot[S]:
        """The next item; waits for it. Raises ``SessionFaulted`` behind the last event before a fault,
        ``CorruptSession`` for stored data that is damaged, ``WrongLoop``, and when it is begun by this, as opening a
        watch: ``SessionClosed``, ``SessionFaulted``, ``UnknownBranch`` for a lane that was deleted."""
        if self._reading:
            raise InvalidMessage("a watch is read by one task at a time; make another watch for another reader")
        event = self._reader.ready() if self._first is None else None
        if event is not None:  # the common case, without detours
            self._cursor = event.cursor
            return event
        self._reading = True
        try:
            if not self._started:
                await self._start()
            item = await self._next()
            self._cursor = item.cursor
            return item
        finally:
            self._reading = False

    async def aclose(self) -> None:
        """Read no more; nothing of it is left. Twice does nothing."""
        self._started = True
        self._first = None
        self._source.channel.remove(self._reader)
        self._reader.catch_up()
        self._reader.end(None)
        self._reader.error = None

    async def _start(self) -> None:
        if self._started:
            return
        source, runtime, reader = self._source, self._source.runtime, self._reader
        source.check()
        await source.load()
        source.check()
        if runtime.storage.read_only:
            reader.end(None)
        elif self._resume(source.channel):
            self._started = True
            return
        else:
            reader.catch_up()
            source.channel.add(reader)
        first = await self._filled(source.capture(self._history))
        if first is None:
            runtime.check()
        self._first, self._started = first, True

    def _resume(self, channel: Channel) -> bool:
        """Go on from the cursor, if everything behind it is still here."""
        cursor = self._asked_cursor
        missed = None if cursor is None else channel.since(cursor, self._buffer)
        if missed is None:
            return False
        channel.add(self._reader)
        self._reader.push(missed)
        self._cursor = cursor
        return True

    async def _next(self) -> S | Event | Resnapshot[S]:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        reader = self._reader
        while True:
            event = reader.ready()
            if event is not None:
                return event
            event = reader.first()
            if event is not None:
                filled = await self._filled_event(event)
                if filled is not None and reader.first() is event:
                    reader.take()
                    return filled
                if filled is None:
                    reader.catch_up()
            elif reader.missed and not reader.ended:
                snapshot = await self._look_anew()
                if snapshot is not None:
                    return Resnapshot(snapshot)
            elif reader.ended:
                error, reader.error = reader.error, None
                if error is None:
                    raise StopAsyncIteration
                raise error
            else:
                await reader.wait()

    async def _look_anew(self) -> S | None:
        reader = self._reader
        reader.catch_up()
        try:
            snapshot = await self._filled(self._source.capture(self._history))
        except BaseException:
            reader.miss()
            raise
        if snapshot is None:  # the session ended: what came behind the gap must not be taken for what comes next
            reader.miss()
        return snapshot

    async def _filled(self, fill: Fill[S]) -> S | None:
        """The snapshot, filled in; None if the session ended meanwhile."""
        storage = self._source.runtime.storage
        try:
            return await fill()
        except AgentLaneError:
            if self._goes_on(storage):
                raise
            return None

    def _goes_on(self, storage: SessionStorage) -> bool:
        """Whether the session is open, and has been since it had ``storage``."""
        runtime = self._source.runtime
        return runtime.phase == "open" and runtime.storage is storage

    async def _filled_event(self, event: PathMoved | LaneOpened) -> Event | None:
        """The event, with what the store holds of its moment; None if the session ended meanwhile."""
        history = self._history
        tip = event.tip if isinstance(event, PathMoved) else event.snapshot.tip
        storage = self._source.runtime.storage
        try:
            entries = await read_path(self._source.runtime, tip, history)
        except AgentLaneError:
            if self._goes_on(storage):
                raise
            return None
        if isinstance(event, PathMoved):
            return replace(event, entries=entries)
        return replace(event, snapshot=replace(event.snapshot, entries=entries, history=history))


class LaneSource(Source[LaneSnapshot]):
    """One lane."""

    def __init__(self, core: LaneCore) -> None:
        super().__init__(core.runtime, core.feed.channel)
        self._core = core

    def check(self) -> None:
        self._core.check()

    async def load(self) -> None:
        if self._core.operation is not None:
            await self._core.load()

    def capture(self, history: int | None) -> Fill[LaneSnapshot]:
        return capture_lane(self._core, history)


class SessionSource(Source[SessionSnapshot]):
    """All lanes of a session."""

    def __init__(self, runtime: Runtime, cores: Mapping[str, LaneCore]) -> None:
        super().__init__(runtime, runtime.hub.channel)
        self._cores = cores

    async def load(self) -> None:
        for core in tuple(self._cores.values()):
            if core.operation is not None:
                await core.load()

    def capture(self, history: int | None) -> Fill[SessionSnapshot]:
        taken = {n: capture_lane(core, history) for n, core in sorted(self._cores.items()) if core.config is not None}
        session_id, cursor = self.runtime.session_id, self.runtime.hub.numbers.now()

        async def fill() -> SessionSnapshot:
            lanes = {name: await fill_lane() for name, fill_lane in taken.items()}
            return SessionSnapshot(session_id=session_id, cursor=cursor, lanes=lanes)

        return fill


def capture_lane(core: LaneCore, history: int | None) -> Fill[LaneSnapshot]:
    """A lane as it is now. Entries and results are write-once, so they may be read later."""
    snapshot = core.feed.capture(history)
    last = None if core.state is None else core.state.last

    async def fill() -> LaneSnapshot:
        entries = await read_path(core.runtime, snapshot.tip, history)
        result = None if last is None else await verbs.stored_result(core, last)
        return replace(snapshot, entries=entries, last_result=result)

    return fill


async def read_path(
    runtime: Runtime, tip: str | None, limit: int | None, stop_at: str | None = None
) -> tuple[Entry, ...]:
    """The newest entries of a path, oldest first; of those behind ``stop_at`` if that is given."""
    if tip is None or limit == 0:
        return ()
    rows = await runtime.storage.path(tip, limit=limit, stop_at=stop_at)
    return tuple(
        codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload)
        for row in reversed(rows)
        if row.id != stop_at
    )


def checked_options(cursor: object, history: object, coalesce: object, buffer: object) -> None:
    """Raise ``InvalidMessage`` for options of a watch that cannot be meant."""
    if cursor is not None and not isinstance(cursor, str):
        raise InvalidMessage(f"cursor={cursor!r}: the cursor of an item, or None, is needed here", path="cursor")
    if type(history) is not int or history < 0:
        raise InvalidMessage(f"history={history!r}: a whole number of at least 0 is needed here", path="history")
    if type(coalesce) is not bool:
        raise InvalidMessage(f"coalesce={coalesce!r}: True or False is needed here", path="coalesce")
    if type(buffer) is not int or buffer < 1:
        raise InvalidMessage(f"buffer={buffer!r}: a whole number of at least 1 is needed here", path="buffer")
