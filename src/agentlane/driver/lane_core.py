"""One lane in memory: its tip, what its path shows the model, its open operation, and the line of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol
from urllib.parse import quote

from msgspec import UNSET

from agentlane.agent import Agent
from agentlane.data import codec
from agentlane.data.entries import Compaction, Entry, EntryBody
from agentlane.data.messages import AssistantMessage, ModelIdentity, ToolCallPart, UserMessage
from agentlane.data.operations import LaneConfig, LaneState, OperationMeta
from agentlane.data.results import OperationResult, Settled, Waiting
from agentlane.data.tokens import TokenCounter
from agentlane.driver.bounded_path import end_of_path, first_input, read_path
from agentlane.driver.call_keys import CallKeys, decoded
from agentlane.driver.draft import PathDraft
from agentlane.driver.effects import WaitNode
from agentlane.driver.feed import Feed
from agentlane.driver.idle import IdleWatch
from agentlane.driver.inbox import Inbox, RecentReceipts
from agentlane.driver.line import Line
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.projecting import Projection
from agentlane.driver.recovery import restore
from agentlane.driver.runtime import Runtime
from agentlane.errors import UnknownBranch
from agentlane.machine.context import ModelContext, begins_anew
from agentlane.machine.summarizing import CONTEXT_OVERFLOW


class RunningPass(Protocol):
    """A lane's pass, as the lane's other verbs see it."""

    agent: Agent[Any, Any]

    def poke(self) -> None:
        """Something changed: look again."""
        ...

    def abort_committed(self) -> None:
        """Signal what runs."""
        ...

    def stop(self, mode: Literal["close", "fault"]) -> None:
        """End the pass as a controlled crash."""
        ...

    async def ended(self) -> None:
        """Wait until the pass is over."""
        ...

    @property
    def stopping(self) -> bool:
        """Whether the pass takes no new observers."""
        ...

    async def observe(self, *, wait_for_retry: bool, wait_for_answers: bool) -> Settled | Waiting:
        """Wait for the operation's end, or for a wait if the caller does not want to sit it out."""
        ...


class LaneCore:
    """A branch, and the lane on it if there is one. ``config`` and ``state`` are None on a branch without a lane."""

    _end: ModelContext | None
    """What the end of a path shows that is not loaded: enough of it to know which calls are open there."""

    def __init__(self, runtime: Runtime, name: str, tip: str | None, lanes: dict[str, LaneCore]) -> None:
        self.runtime = runtime
        self.name = name
        self.lanes = lanes
        """All branches of the session by name."""
        self.waited_at = 0
        """Which state of the open operation, and of all that runs for it, the last wait was announced in."""
        self.waiting_on: list[WaitNode] = []
        self.agent: Agent[Any, Any] | None = None
        self.project = Projection({}, runtime.found)
        """What the model is shown of entries of applications."""
        self.running: RunningPass | None = None
        self.idle = IdleWatch(name, lambda: self.operation is None and self.running is None)
        self.exists = False
        """Whether the branch is committed."""
        self.receipts = RecentReceipts()
        self.counter: TokenCounter | None = None
        """The agent's counter of tokens, as it was wrapped for this lane."""
        self.reset(tip, None, None, None)
        self.feed = Feed(runtime.hub, self)
        self.line = Line(runtime, self.feed)

    def reset(
        self,
        tip: str | None,
        config: LaneConfig | None,
        state: LaneState | None,
        operation: OpenOperation | None,
        inbox: Inbox | None = None,
    ) -> None:
        """Take what an open has read."""
        self.tip = tip
        self.config = config
        self.state = state
        self.operation = operation
        self.inbox = Inbox() if inbox is None else inbox
        self.loaded = False
        self._forget_path()

    def check(self) -> None:
        """Raise unless the session can be used here and now, and has this branch."""
        self.runtime.check()
        self._check_exists()

    def check_writable(self) -> None:
        """Raise unless the session can be written here and now, and has this branch."""
        self.runtime.check_writable()
        self._check_exists()

    def _check_exists(self) -> None:
        if not self.exists:
            raise UnknownBranch(f"branch {self.name!r} is not in session {self.runtime.session_id!r}", name=self.name)

    async def load(self) -> None:
        """Read as much of the path as is needed, and what the open operation left, once; and the path again where it is
        to be shown otherwise. Cancelling it leaves everything as it was."""
        while not self.loaded:
            tip, operation, storage = self.tip, self.operation, self.runtime.storage
            meta = None if operation is None else operation.meta
            path = await read_path(storage, tip, since=first_input(meta))
            fresh = None
            if operation is not None:
                fresh = OpenOperation(operation.id, operation.meta, operation.config, operation.state)
                await restore(storage, fresh, path)
            if self._changed_since(tip, operation):
                continue  # somebody else was faster
            if operation is not None and fresh is not None:
                operation.take_restored(fresh)
            self._forget_path()
            self._read_path(path, meta)
            self.loaded = True
        while self._shown_otherwise and self.running is None:
            await self._show_again()

    def show_as(self, agent: Agent[Any, Any]) -> None:
        """Show entries of applications as the agent's projectors say, from the next ``load`` on. While a pass runs they
        are shown as its agent says."""
        if self.running is None and agent.projectors != self.project.projectors:
            self.project = Projection(agent.projectors, self.runtime.found)
            self._shown_otherwise = self.loaded

    @property
    def end_known(self) -> bool:
        """Whether ``open_calls`` can be asked."""
        return self.loaded or self._end is not None

    async def load_end(self) -> None:
        """Read as much of the path's end as tells which calls are open there, once: what an append needs, of a path of
        any length. Cancelling it leaves everything as it was."""
        while not self.end_known:
            tip, operation = self.tip, self.operation
            end = ModelContext()
            for entry in await end_of_path(self.runtime.storage, tip):
                _add_to_end(end, entry.id, entry.body)
            if not self._changed_since(tip, operation):
                self._end = end

    def begin(self, operation: OpenOperation) -> None:
        """An accepted operation is the lane's open one now."""
        self.operation = operation
        self.state = LaneState(current=operation.id, last=None if self.state is None else self.state.last)
        self._batches.clear()
        self._keys = CallKeys()
        self.earlier_batches = 0
        self.runtime.open_operations[operation.id] = self.name

    def begin_again(self, path: Sequence[Entry]) -> None:
        """The operation that began goes on with an earlier one's input; ``path`` is the lane's, as far as it is needed,
        oldest first."""
        self._forget_path()
        self._read_path(path, None if self.operation is None else self.operation.meta)

    def settle(self, operation: OpenOperation, result: OperationResult) -> None:
        """The open operation has its terminal record."""
        parent = self.parent()
        operation.result = result
        operation.deps = UNSET
        self.operation = None
        self.state = LaneState(current=None, last=operation.id)
        self.runtime.open_operations.pop(operation.id, None)
        self.runtime.settled_count += 1
        if parent is not None:
            parent.poke()

    def poke(self) -> None:
        """Something changed from outside of the pass: whoever drives the lane, or waits for it, looks again."""
        if self.running is not None:
            self.running.poke()
        parent = self.parent()
        if parent is not None:
            parent.poke()

    def parent(self) -> LaneCore | None:
        """The lane whose call the open operation is, if it is one."""
        call = None if self.operation is None else self.operation.meta.parent_call
        return None if call is None else self.lanes.get(call.lane)

    def take_path(self, draft: PathDraft) -> None:
        """Entries that a published commit placed."""
        self.tip = draft.tip
        for id, body in draft.placed:
            if self.loaded:
                self._take(id, body)
            elif self._end is not None:
                if begins_anew(body):
                    self._end = ModelContext()
                _add_to_end(self._end, id, body)

    def move(self, tip: str | None, path: Sequence[Entry]) -> None:
        """A navigation is published: the tip is there now, at the end of ``path``, which is as ``read_path`` gives it
        (looked at by a loaded lane only)."""
        self.tip = tip
        self._forget_path()
        if self.loaded:
            self._read_path(path, None)

    def leave(self, tip: str | None, path: Sequence[Entry]) -> None:
        """A navigation that is an operation is published: what it places comes behind ``tip``, the end of ``path``."""
        self.tip = tip
        self._forget_path()
        self._read_path(path, None)

    def open_calls(self) -> tuple[str, Sequence[ToolCallPart]] | None:
        """The answer at the tip that settled to run its calls, and its calls without a result on this path."""
        return (self.context if self._end is None else self._end).open_calls()

    def batches(self, start: int = 0) -> list[tuple[str, tuple[ToolCallPart, ...]]]:
        """Answers since the operation's input that settled to run their calls, from the ``start``-th on."""
        return [(id, decoded(calls)) for id, calls in self._batches[start:]]

    def call_key(self, operation: OpenOperation, answer: str, index: int) -> str:
        """The idempotency key of a call: see ``ToolContext.idempotency_key``."""
        name, digest, earlier = self._keys.alike(self._batches, answer, index)
        session, key_operation = self.runtime.session_id, operation.meta.key_operation
        return f"{quote(session, safe='')}/{quote(key_operation, safe='')}/{quote(name, safe='')}#{digest}/{earlier}"

    def _changed_since(self, tip: str | None, operation: OpenOperation | None) -> bool:
        return self.loaded or self.tip != tip or self.operation is not operation

    def _forget_path(self) -> None:
        self.context = ModelContext(self.project)
        self._shown_otherwise = False
        """Entries of applications are to be shown as another agent says than the one that the path was read for."""
        self._end = None
        self.unanswered: list[str] = []
        self.refused_by: ModelIdentity | None = None
        """The model that has found a request too long since the last good answer."""
        self._batches: list[tuple[str, bytes]] = []
        self._keys = CallKeys()
        self._last: str | None = None
        self.before_answer: str | None = None
        """The entry before the last answer that settled to run its calls."""
        self.earlier_batches = 0
        """How many of the batches since the input are those of operations that were tried before."""

    def _read_path(self, path: Sequence[Entry], meta: OperationMeta | None) -> None:
        """Take the end of a path, oldest first; ``meta`` is the open operation's."""
        begun_with = first_input(meta)
        self._last = path[0].parent_id if path else None
        for entry in path:
            if entry.id == begun_with:
                self._batches.clear()
            self._take(entry.id, entry.body)
            if meta is not None and meta.retry_of is not None and entry.id == meta.start_tip:
                self.earlier_batches = len(self._batches)
        id, compaction = self.context.earlier or ("", None)
        first = None if compaction is None else compaction.kept_from
        if first is not None and all(entry.id != first for entry in path):
            self.runtime.found(
                f"lane {self.name!r}: compaction {id} keeps what is from {first} on, which is not on its path; the "
                "model is shown its summary and nothing that it keeps; repair the session into a copy"
            )

    async def _show_again(self) -> None:
        """Read again what the model is shown."""
        tip, context = self.tip, ModelContext(self.project)
        for entry in await read_path(self.runtime.storage, tip):
            context.add(entry.id, entry.body)
        if self.loaded and self.running is None and self.tip == tip and context.project is self.project:
            self.context = context
            self._shown_otherwise = False

    def _take(self, id: str, body: EntryBody) -> None:
        self.context.add(id, body)
        if isinstance(body, UserMessage):
            self.unanswered.append(id)
        elif isinstance(body, AssistantMessage) and body.stop_reason not in ("error", "aborted"):
            self.unanswered.clear()
            self.refused_by = None
            calls = body.calls
            if calls and body.stop_reason != "length":
                # Kept as text: keys must not change when somebody changes a message that a model was shown.
                self._batches.append((id, codec.encode(calls)))
                self.before_answer = self._last
        elif isinstance(body, AssistantMessage) and body.error is not None and body.error.code == CONTEXT_OVERFLOW:
            self.refused_by = body.model
        self._last = id


def _add_to_end(end: ModelContext, id: str, body: EntryBody) -> None:
    """Take an entry of which only open calls are asked: those of an answer that a compaction keeps stay open."""
    if not isinstance(body, Compaction) or begins_anew(body):
        end.add(id, body)
