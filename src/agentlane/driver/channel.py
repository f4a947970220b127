"""Channels: events numbered over a session, kept for a while, and handed to readers that never hold up anybody."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from weakref import ref

from msgspec.structs import replace

from agentlane.data.events import AnswerShown, Event, LaneOpened, OperationAdvanced, PathMoved, ProgressSaved
from agentlane.data.messages import Frame
from agentlane.data.partial import joined

KEPT_MAX = 4_000
"""Events that a channel keeps for cursors, and makes after its last reader has left."""

FRAMES_JOINED_EVERY = 1_024


class Numbers:
    """The order of a session's events: a number for each, and cursors that nobody but this open of it understands."""

    def __init__(self) -> None:
        self.last = 0
        self.renew()

    def renew(self) -> None:
        """Cursors that were given out are worth nothing from now on."""
        self._prefix = f"{os.urandom(8).hex()}."

    def next(self) -> str:
        """The cursor of a new event, whose number is ``last`` until the next one."""
        self.last += 1
        return f"{self._prefix}{self.last}"

    def now(self) -> str:
        """The cursor of the last event."""
        return f"{self._prefix}{self.last}"

    def of(self, cursor: str) -> int | None:
        """The number that a cursor stands for; None if it is not one of ours."""
        digits = cursor.removeprefix(self._prefix)
        if digits == cursor or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            return None
        number = int(digits)
        return number if number <= self.last else None


class Reader:
    """The events that one watcher has not taken yet: at most ``size``, or the knowledge that it missed some."""

    __slots__ = ("__weakref__", "_buffer", "_coalesce", "_size", "_waiter", "ended", "error", "missed")

    def __init__(self, *, size: int, coalesce: bool) -> None:
        self._size = size
        self._coalesce = coalesce
        self._buffer: deque[Event | _Shown] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.missed = False
        """It was too slow: nothing more is kept for it until ``catch_up``."""
        self.ended = False
        self.error: BaseException | None = None

    def push(self, events: Sequence[tuple[int, Event]]) -> None:
        """Take numbered events."""
        for _, event in events:
            if self.missed:
                return
            if self._coalesce and self._merge(event):
                continue
            if len(self._buffer) >= self._size:
                self.miss()
            else:
                self._buffer.append(event)
        self._wake()

    def miss(self) -> None:
        """Let go of everything; the reader has to look anew."""
        self._buffer.clear()
        self.missed = True
        self._wake()

    def catch_up(self) -> None:
        """The reader looks at everything now: keep what comes from here on."""
        self._buffer.clear()
        self.missed = False

    def ready(self) -> Event | None:
        """Take the oldest event, if it is whole: nothing has to be read for it."""
        if not self._buffer:
            return None
        event = self._buffer[0]
        if type(event) is PathMoved or type(event) is LaneOpened:
            return None
        self._buffer.popleft()
        return event.event() if isinstance(event, _Shown) else event

    def first(self) -> PathMoved | LaneOpened | None:
        """The oldest event, if something has to be read for it; it stays."""
        event = self._buffer[0] if self._buffer else None
        return event if isinstance(event, PathMoved | LaneOpened) else None

    def take(self) -> None:
        """The oldest event is taken."""
        self._buffer.popleft()

    def end(self, error: BaseException | None) -> None:
        """Nothing more will come."""
        if not self.ended:
            self.ended = True
            self.error = error
            self._wake()

    async def wait(self) -> None:
        """Until something has come. Cancelling it loses nothing."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _merge(self, event: Event) -> bool:
        if not self._buffer:
            return False
        last = self._buffer[-1]
        if isinstance(event, AnswerShown):
            if isinstance(last, AnswerShown):
                last = _Shown(last)
            if isinstance(last, _Shown) and last.add(event):
                self._buffer[-1] = last
                return True
        elif isinstance(event, ProgressSaved):
            if isinstance(last, ProgressSaved) and (last.lane, last.call_id) == (event.lane, event.call_id):
                self._buffer[-1] = event
                return True
        elif (
            isinstance(event, OperationAdvanced)
            and isinstance(last, OperationAdvanced)
            and (last.lane, last.operation_id) == (event.lane, event.operation_id)
        ):
            self._buffer[-1] = replace(event, steps=(*last.steps, *event.steps))
            return True
        return False


class _Shown:
    """Neighbouring pieces of one answer, being collected; ``_before`` are those of them that are joined already."""

    __slots__ = ("_before", "_frames", "_last")

    def __init__(self, event: AnswerShown) -> None:
        self._last = event
        self._before: list[Frame] = []
        self._frames: list[Frame] = [*event.frames]

    def add(self, event: AnswerShown) -> bool:
        if self._last.response_id != event.response_id:
            return False
        self._last = event
        self._frames.extend(event.frames)
        if len(self._frames) >= FRAMES_JOINED_EVERY:
            self._before.extend(joined(self._frames))
            self._frames.clear()
        return True

    def event(self) -> AnswerShown:
        return replace(self._last, frames=joined([*self._before, *self._frames]))


class Channel:
    """Events of one lane, or of a whole session, for those who read them. Active from its first reader on, until it
    has made ``KEPT_MAX`` events that nobody was there to read."""

    def __init__(self, numbers: Numbers, changed: Callable[[], None]) -> None:
        self._numbers = numbers
        self._changed = changed
        self._kept: deque[tuple[int, Event]] = deque()
        self._floor = 0
        """The number up to which events are not kept."""
        self._readers: list[ref[Reader]] = []
        self._unread = 0
        self.active = False

    def since(self, cursor: str, limit: int) -> list[tuple[int, Event]] | None:
        """The events after a cursor; None if they are not all here, if there are more than ``limit``, or if it is
        not one of this channel's."""
        number = self._numbers.of(cursor)
        if number is None or not self.active or number < self._floor:
            return None
        found = [each for each in self._kept if each[0] > number]
        return found if len(found) <= limit else None

    def add(self, reader: Reader) -> None:
        """Hand over what comes from now on, for as long as somebody holds the reader."""
        self._readers = [each for each in self._readers if each() is not None]
        self._readers.append(ref(reader))
        self._unread = 0
        if not self.active:
            self.active = True
            self._floor = self._numbers.last
            self._changed()

    def remove(self, reader: Reader) -> None:
        """It reads no more."""
        self._readers = [each for each in self._readers if each() not in (None, reader)]

    def emit(self, events: Sequence[tuple[int, Event]]) -> None:
        """Keep numbered events, and hand them over."""
        kept = self._kept
        kept.extend(events)
        while len(kept) > KEPT_MAX:
            self._floor = kept.popleft()[0]
        read = False
        for each in self._readers:
            reader = each()
            if reader is not None:
                reader.push(events)
                read = True
        if not read:
            self._readers.clear()
            self._unread += len(events)
            if self._unread > KEPT_MAX:
                self._stop()

    def miss(self) -> None:
        """What happened cannot be told in events: cursors are worth nothing, and readers look anew."""
        self._kept.clear()
        self._floor = self._numbers.last + 1
        self._numbers.last += 1
        for each in self._readers:
            if (reader := each()) is not None:
                reader.miss()

    def end(self, error: BaseException | None) -> None:
        """Nothing more will come: the session is closed, or faulted with ``error``."""
        for each in self._readers:
            if (reader := each()) is not None:
                reader.end(error)
        self._readers.clear()
        self._stop()

    def _stop(self) -> None:
        self._kept.clear()
        self._unread = 0
        if self.active:
            self.active = False
            self._changed()
