"""Stream: one operation as a user interface shows it, from its beginning, until it settles."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from msgspec.structs import replace

from agentlane.data.entries import BranchSummary, Compaction, Entry
from agentlane.data.events import AnswerShown, EntryAdded, Event, LaneSnapshot, OperationSettled, Resnapshot
from agentlane.data.inspection import CallRecord, Operation
from agentlane.data.messages import AssistantMessage, PartDelta, PartEnd, PartStart, TextPart, ThinkingPart
from agentlane.data.messages import ToolResultMessage as Result
from agentlane.data.operations import SummaryReason
from agentlane.data.partial import PartialAnswer
from agentlane.data.results import OperationResult, Settled
from agentlane.data.streaming import (
    Aborting,
    AnswerEnded,
    CallEnded,
    CallProgress,
    CallRequested,
    CallStarted,
    CallWaiting,
    Retrying,
    Shown,
    SummaryEnded,
    SummaryStarted,
    TextDelta,
    ThinkingDelta,
)
from agentlane.driver import verbs
from agentlane.driver.lane_core import LaneCore
from agentlane.ids import call_id
from agentlane.watch import Fill, LaneSource, Watch, read_path


class OperationStream:
    """What ``lane.stream(operation_id)`` returns: an async context manager, and an async iterator.

    What was shown of the operation so far comes first, then what happens, and last ``Settled``. Of an operation that
    has settled already it is the only item. Leaving it stops nothing. A reader that is slow misses intermediate states,
    never text or an end. When the session is closed the iteration ends without ``Settled``; after a fault it raises
    ``SessionFaulted``. It drives nothing: while nobody drives the operation, it waits.
    """

    def __init__(self, core: LaneCore, operation_id: str) -> None:
        self._core = core
        self._id = operation_id
        self._watch: Watch[LaneSnapshot] | None = None
        self._telling = Telling(operation_id)
        self._snapshot: LaneSnapshot | None = None
        self._pending: deque[Shown] = deque()
        self._over = False

    async def __aenter__(self) -> OperationStream:
        """Begin. Raises what the first read raises."""
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> OperationStream:
        return self

    async def __anext__(self) -> Shown:
        """The next item; waits for it. Cancelling it loses nothing.

        When it begins with this: ``UnknownOperation`` or ``OperationMismatch`` for an id that is not this lane's,
        ``WouldDeadlock`` from inside an effect of this lane, ``SessionClosed``, ``SessionFaulted``.
        """
        await self._start()
        while not self._pending:
            if self._over or self._watch is None:
                raise StopAsyncIteration
            self._take(await self._watch.__anext__())
        return self._pending.popleft()

    async def aclose(self) -> None:
        """Read no more. Twice does nothing."""
        self._over = True
        self._pending.clear()
        if self._watch is not None:
            await self._watch.aclose()

    async def _start(self) -> None:
        if self._watch is not None or self._over:
            return
        self._core.check()
        verbs.check_waitable(self._core)
        record = await verbs.result(self._core, self._id)
        if record is not None:
            self._pending.append(Settled(record))
            self._over = True
            return
        watch = Watch(OperationSource(self._core, self._id), coalesce=True)
        await watch.__aenter__()
        self._watch = watch

    def _take(self, item: LaneSnapshot | Event | Resnapshot[LaneSnapshot]) -> None:
        if isinstance(item, LaneSnapshot):
            self._snapshot = item
        elif isinstance(item, Resnapshot):
            self._snapshot = item.snapshot
        elif self._snapshot is not None:
            if not isinstance(item, AnswerShown):  # it says by itself what is new; to fold it is to copy what is old
                self._snapshot = self._snapshot.apply(item)
            self._pending.extend(self._telling.event(item, self._snapshot))
            self._over = self._telling.settled
            return
        if self._snapshot is not None:
            self._pending.extend(self._telling.snapshot(self._snapshot))
            self._snapshot = replace(self._snapshot, history=0, entries=(), answer=None)  # they are told
            self._over = self._telling.settled


class OperationSource(LaneSource):
    """One lane, for as long as one operation is open on it: its entries are those since the operation began."""

    def __init__(self, core: LaneCore, operation_id: str) -> None:
        super().__init__(core)
        self._operation_id = operation_id

    def capture(self, history: int | None) -> Fill[LaneSnapshot]:
        core, operation = self._core, self._core.operation
        snapshot = core.feed.capture(None)
        if operation is not None and operation.id == self._operation_id:
            start = operation.meta.start_tip

            async def fill() -> LaneSnapshot:
                return replace(snapshot, entries=await read_path(core.runtime, snapshot.tip, None, start))

            return fill

        async def fill_settled() -> LaneSnapshot:
            result = await verbs.stored_result(core, self._operation_id)
            entries: tuple[Entry, ...] = ()
            if result is not None:
                entries = await read_path(core.runtime, result.to_tip, None, result.from_tip)
            blank = LaneSnapshot(lane=snapshot.lane, cursor=snapshot.cursor, agent=snapshot.agent)
            return replace(blank, entries=entries, last_result=result)

        return fill_settled


class _Answer:
    """What was told of one answer."""

    def __init__(self) -> None:
        self.parts: dict[int, tuple[str, list[str]]] = {}
        self.text: list[str] = []
        self.thinking: list[str] = []


class Telling:
    """Turns what is known of an operation into what was not told of it yet."""

    def __init__(self, operation_id: str) -> None:
        self._id = operation_id
        self._answers: dict[str, _Answer] = {}
        self._entries: set[str] = set()
        self._started: dict[str, int] = {}
        self._waiting: dict[str, tuple[str, str | None]] = {}
        self._progress: dict[str, object] = {}
        self._ended: set[str] = set()
        self._retrying: tuple[int, int, SummaryReason | None] | None = None
        self._summarizing = False
        self._aborting = False
        self.settled = False

    def event(self, event: Event, snapshot: LaneSnapshot) -> list[Shown]:
        """What an event shows; ``snapshot`` is the one after it."""
        found: list[Shown] = []
        if event.operation_id != self._id:
            return found
        if isinstance(event, AnswerShown):
            self._frames(found, event)
        elif isinstance(event, EntryAdded):
            self._entry(found, event.entry)
        elif isinstance(event, OperationSettled):
            self._end(found, event.result)
        elif snapshot.operation is not None:
            self._operation(found, snapshot, snapshot.operation)
        return found

    def snapshot(self, snapshot: LaneSnapshot) -> list[Shown]:
        """What a snapshot shows beyond what was told."""
        found: list[Shown] = []
        operation = snapshot.operation
        ours = operation is not None and operation.operation_id == self._id
        for entry in snapshot.entries:
            self._entry(found, entry)
        if ours and operation is not None:
            if snapshot.answer is not None:
                self._partial(found, snapshot.answer)
            self._operation(found, snapshot, operation)
        elif snapshot.last_result is not None and snapshot.last_result.operation_id == self._id:
            self._end(found, snapshot.last_result)
        return found

    def _end(self, found: list[Shown], result: OperationResult) -> None:
        if self._summarizing:  # what a navigation summarizes is on the path that it moves to
            self._summary_ended(found, result.summary, None if result.summary is None else result.text)
        found.append(Settled(result))
        self.settled = True

    def _frames(self, found: list[Shown], event: AnswerShown) -> None:
        answer = self._answers.setdefault(event.response_id, _Answer())
        for frame in event.frames:
            if isinstance(frame, PartStart):
                answer.parts.setdefault(frame.index, (frame.kind, []))
            elif isinstance(frame, PartDelta):
                kind, pieces = answer.parts.setdefault(frame.index, ("text", []))
                self._more(found, event.response_id, answer, kind, pieces, frame.text)
            elif isinstance(frame, PartEnd) and isinstance(frame.part, TextPart | ThinkingPart):
                kind = "text" if isinstance(frame.part, TextPart) else "thinking"
                self._rest(found, event.response_id, answer, frame.index, kind, frame.part.text)

    def _entry(self, found: list[Shown], entry: Entry) -> None:
        body = entry.body
        if entry.id in self._entries:
            return
        self._entries.add(entry.id)
        if isinstance(body, AssistantMessage):
            answer = self._answers.pop(entry.id, None) or _Answer()
            thinking = "".join(part.text for part in body.content if isinstance(part, ThinkingPart))
            for kind, whole, told in (("thinking", thinking, answer.thinking), ("text", body.text, answer.text)):
                before = "".join(told)
                if whole.startswith(before):
                    self._more(found, entry.id, answer, kind, [], whole[len(before) :])
            found.append(AnswerEnded(entry_id=entry.id, message=body))
            if body.stop_reason not in ("error", "aborted"):
                for index, call in enumerate(body.calls):
                    id = call_id(entry.id, index)
                    found.append(CallRequested(call_id=id, tool=call.name, arguments=call.arguments))
        elif isinstance(body, Result):
            self._call_ended(found, entry.id, body)
        elif isinstance(body, Compaction | BranchSummary):
            self._summary_ended(found, entry.id, body.summary)

    def _operation(self, found: list[Shown], snapshot: LaneSnapshot, operation: Operation) -> None:
        if operation.cancel_requested_at is not None and not self._aborting:
            self._aborting = True
            found.append(Aborting(requested_at=operation.cancel_requested_at))
        if operation.summarizing is not None and not self._summarizing:
            self._summarizing = True
            found.append(SummaryStarted(reason=operation.summarizing))
        elif operation.summarizing is None and self._summarizing:
            self._summary_ended(found, None, None)
        for call in operation.calls:
            self._call(found, snapshot, call)
        if operation.not_before is not None and operation.last_error is not None:
            retrying = (operation.turn, operation.attempt, operation.summarizing)
            if retrying != self._retrying:
                self._retrying = retrying
                attempt, error = operation.attempt + 1, operation.last_error
                found.append(Retrying(not_before=operation.not_before, attempt=attempt, error=error))

    def _call(self, found: list[Shown], snapshot: LaneSnapshot, call: CallRecord) -> None:
        if call.status == "effect_pending" and self._started.get(call.call_id) != call.attempt:
            self._started[call.call_id] = call.attempt
            found.append(CallStarted(call_id=call.call_id, tool=call.tool, attempt=call.attempt))
        if call.status.startswith("waiting") and self._waiting.get(call.call_id) != (call.status, call.approval_id):
            self._waiting[call.call_id] = (call.status, call.approval_id)
            asked = None if snapshot.operation is None else snapshot.operation.approvals
            approval = next((each for each in asked or () if each.approval_id == call.approval_id), None)
            found.append(CallWaiting(call_id=call.call_id, tool=call.tool, status=call.status, approval=approval))
        content = snapshot.progress.get(call.call_id)
        if content is not None and self._progress.get(call.call_id) != content:
            self._progress[call.call_id] = content
            found.append(CallProgress(call_id=call.call_id, tool=call.tool, content=content))
        message = snapshot.staged.get(call.call_id)
        if message is not None:
            self._call_ended(found, call.call_id, message)

    def _summary_ended(self, found: list[Shown], id: str | None, summary: str | None) -> None:
        self._summarizing = False
        found.append(SummaryEnded(entry_id=id, summary=summary))

    def _call_ended(self, found: list[Shown], id: str, message: Result) -> None:
        if id not in self._ended:
            self._ended.add(id)
            found.append(CallEnded(call_id=id, tool=message.name, message=message))

    def _partial(self, found: list[Shown], partial: PartialAnswer) -> None:
        answer = self._answers.setdefault(partial.response_id, _Answer())
        for part in partial.parts:
            whole = part.whole
            if isinstance(whole, TextPart | ThinkingPart):
                kind = "text" if isinstance(whole, TextPart) else "thinking"
                self._rest(found, partial.response_id, answer, part.index, kind, whole.text)
            elif whole is None:
                self._rest(found, partial.response_id, answer, part.index, part.kind, part.text)

    def _rest(self, found: list[Shown], id: str, answer: _Answer, index: int, kind: str, whole: str) -> None:
        """What of a part's text was not told, if what was told is its beginning."""
        kind, pieces = answer.parts.setdefault(index, (kind, []))
        before = "".join(pieces)
        if whole.startswith(before):
            self._more(found, id, answer, kind, pieces, whole[len(before) :])

    def _more(self, found: list[Shown], id: str, answer: _Answer, kind: str, pieces: list[str], text: str) -> None:
        if not text or kind == "tool_call":
            return
        pieces.append(text)
        if kind == "thinking":
            answer.thinking.append(text)
            found.append(ThinkingDelta(entry_id=id, text=text))
        else:
            answer.text.append(text)
            found.append(TextDelta(entry_id=id, text=text))
