"""AgentLane: a branch with an agent on it, and at most one open operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic

from msgspec import UNSET, UnsetType
from typing_extensions import TypeVar

from agentlane.agent import Agent, clean_settings
from agentlane.data.approvals import Decision
from agentlane.data.events import LaneSnapshot
from agentlane.data.inbox import Receipt
from agentlane.data.messages import ModelIdentity, UserMessage
from agentlane.data.navigation import NavigateResult, RewindResult
from agentlane.data.requests import Compact, Navigate, Prompt, Request
from agentlane.data.results import AbortReceipt, Admitted, OperationResult, Settled, Waiting
from agentlane.data.usage import Usage, UsageRow
from agentlane.driver import aborting, answering, deciding, delivering, idle, navigating, retrying, submitting, verbs
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.ledger import record_adjustment
from agentlane.errors import InvalidMessage, InvalidNavigation, NoActiveOperation
from agentlane.inspection import LaneInspection, inspect_lane
from agentlane.lane_inbox import LaneInbox
from agentlane.model import Model
from agentlane.stream import OperationStream
from agentlane.watch import LaneSource, Watch, checked_options

Deps = TypeVar("Deps", default=Any)
Output = TypeVar("Output", default=str)
T = TypeVar("T")


class AgentLane(LaneInbox, Generic[Deps, Output]):
    """A lane: accept work on it, drive it, abort it. Made by ``session.lane(name, agent)``.

    A call that writes and is cancelled is made whole or not at all, as with ``Session``. Of ``run`` and ``abort`` that
    holds for each of their steps: what is accepted, or to be aborted, then goes on with ``drive``.
    """

    def __init__(self, core: LaneCore, agent: Agent[Deps, Output]) -> None:
        super().__init__(core)
        self.agent = agent

    async def accept(
        self, request: Request, *, operation_id: str | None = None, deps: Deps | UnsetType = UNSET
    ) -> Admitted:
        """Commit ``request`` as this lane's open operation, and start nothing; durable on return.

        With an ``operation_id`` it is safe to call again: the same request gets the same ``Admitted``, also after it
        has settled. Cancelled: the operation is accepted or not; asking again with the same id tells. What waits in the
        inbox is placed with it, or where that is more than one commit holds, as much of it as is needed before.

        ``deps`` are for this operation in the place of the agent's: its tools and its instructions function get them.
        They stay in this process, are never stored, and are let go when the operation settles or the session closes.
        After a restart the agent's are used, until this call is made again or ``drive`` brings others.

        A ``Skill`` or ``Template`` is one of the lane's agent. What it says, with the arguments, is committed as a user
        message, with its name, arguments and digest: what changes in its file later changes nothing of the operation.
        The same request is the one that asks for the same with the same arguments, whatever the file says by then, or
        if it is gone.

        Raises ``InvalidMessage`` for a bad request (also for a skill, template or argument that there is not: it lists
        those that there are), ``InvalidName`` for a bad id, ``RequestConflict`` for an id that
        was used for another request, ``LaneBusy`` (naming it) while another operation is open, ``PayloadTooLarge`` for
        a request of more than 48 MiB.
        """
        return await verbs.accept(self._core, self.agent, request, operation_id, deps)

    async def drive(
        self,
        operation_id: str | None = None,
        *,
        wait_for_retry: bool = True,
        wait_for_answers: bool = False,
        deps: Deps | UnsetType = UNSET,
    ) -> Settled | Waiting:
        """Advance the open operation until it settles, or until it must wait and nobody sits that out.

        Installs the lane's one pass or joins it. A settled id returns its record. ``Waiting`` is returned when nothing
        can go on before a time or before somebody answers: a wait for a retry alone only with
        ``wait_for_retry=False``, any other unless ``wait_for_answers=True``. Everything that is reported is durable.
        Cancelled: this caller stops observing, the pass goes on; before the pass is installed nothing starts.
        ``deps`` are what ``accept`` may give, for the effects that start from now on.

        Raises ``NoActiveOperation`` without an id when nothing is open, ``OperationMismatch`` or ``UnknownOperation``
        for an id that is not this lane's, ``WouldDeadlock`` from inside an effect of this lane, ``SessionClosed`` when
        the session is closed meanwhile, ``SessionFaulted`` when a write fails, ``StoreBusy`` when the store was locked
        by another program for too long (drive again: nothing is lost).
        """
        self._core.show_as(self.agent)
        return await verbs.drive(
            self._core,
            self.agent,
            operation_id,
            wait_for_retry=wait_for_retry,
            wait_for_answers=wait_for_answers,
            deps=deps,
        )

    async def request_abort(self, operation_id: str) -> AbortReceipt:
        """Commit the cancellation of this operation and of no other; durable on return.

        Input that waits for it (steering, follow-ups, submitted messages) is returned with the receipt, and kept in the
        operation's record; of more than 32 MiB the first is, and the rest waits on in ``queued()``. It does not wait
        for effects to stop: a drive reconciles. Asking again, or for a settled operation, changes nothing and says so.
        Cancelled: the abort is committed or not; asking again tells. Allowed from inside a tool. Raises
        ``UnknownOperation`` or ``OperationMismatch``.
        """
        return await aborting.request_abort(self._core, operation_id)

    async def requestAbort(self, operation_id: str) -> AbortReceipt:
        """The same as ``request_abort``."""
        return await self.request_abort(operation_id)

    async def result(self, operation_id: str) -> OperationResult | None:
        """The terminal record of an operation of this session; None while it is open on this lane.

        ``OperationMismatch`` while it is open on another one, ``UnknownOperation`` for an id never seen.
        """
        self._core.check()
        return await verbs.result(self._core, operation_id)

    def output(self, result: OperationResult) -> Output:
        """The output of a completed operation as the agent's output type; the answer's text if the agent has none.

        Raises ``InvalidMessage`` for an operation that did not complete or whose tools ended it, and if what it has
        does not fit the type, which may be another one than when it was accepted.
        """
        if result.status != "completed":
            raise InvalidMessage(f"operation {result.operation_id} is {result.status}: it has no output")
        if self.agent.output is not None and result.kind in ("compact", "navigate"):
            raise InvalidMessage(
                f"operation {result.operation_id} is of kind {result.kind!r}: it has no output; result.text is its "
                "summary"
            )
        if self.agent.output is None:
            return result.text  # type: ignore[return-value]  # what an agent without a type is typed as
        try:
            return self.agent.output.decode(result.output)
        except Exception as error:  # a type's own checks may raise anything
            raise InvalidMessage(
                f"operation {result.operation_id}: its output is no {self.agent.output.shown().name}: {error}"
            ) from error

    def inspect(self) -> LaneInspection:
        """What is committed of this lane now, and whether it is being driven here. No I/O."""
        self._core.check()
        return inspect_lane(self._core, self.agent)

    def watch(
        self, *, cursor: str | None = None, history: int = 50, coalesce: bool = False, buffer: int = 1_000
    ) -> Watch[LaneSnapshot]:
        """Watch this lane: a snapshot, then every event behind it without gap or repeat. See ``Watch``.

        ``history``: how many entries a snapshot shows at most. ``cursor``, of an item taken earlier in this process:
        go on behind it, if the events are still there (the newest few thousand are), else begin with a snapshot, as
        with a cursor of another process. ``coalesce`` joins neighbouring events of one answer, one call's progress, or
        one operation's steps that were not taken yet. ``buffer``: how many events wait for a slow reader, who is told
        to look anew beyond that; no run ever waits for one.

        Raises ``InvalidMessage`` for options of a wrong kind; all else is raised where the watch is begun.
        """
        checked_options(cursor, history, coalesce, buffer)
        source = LaneSource(self._core)
        return Watch(source, cursor=cursor, history=history, coalesce=coalesce, buffer=buffer)

    def stream(self, operation_id: str) -> OperationStream:
        """What a user interface shows of one operation, until it settles. See ``OperationStream``. Drives nothing."""
        return OperationStream(self._core, operation_id)

    async def run(
        self, prompt: str | Request, *, operation_id: str | None = None, deps: Deps | UnsetType = UNSET
    ) -> OperationResult:
        """``accept`` and ``drive``; returns the terminal record, whatever its status. Errors are those of the two.

        It sits every wait out, those for answers too.
        """
        request = Prompt(prompt) if isinstance(prompt, str) else prompt
        admitted = await self.accept(request, operation_id=operation_id, deps=deps)
        return await self._drive_to_end(admitted.operation_id)

    async def retry(
        self,
        settled_id: str,
        /,
        *,
        same_keys: bool = False,
        operation_id: str | None = None,
        deps: Deps | UnsetType = UNSET,
    ) -> Admitted:
        """Open an operation that tries a failed or aborted one again, and start nothing; durable on return.

        It has the same input, adds no entry, and goes on where the other ended: what that one was answered, and what
        its calls gave, stays. If an abort came behind a whole answer, that answer ends it. Limits and usage begin anew.
        Idempotency keys name the new operation, or with ``same_keys`` the old one's, so that a receiver knows calls
        that are made again. ``operation_id`` names the new operation, and makes the call safe to repeat as in
        ``accept``. ``deps`` are for the new operation, as in ``accept``: what the old one was given was let go when it
        settled. Cancelled: the operation is opened or not; asking again with the same id tells.

        Raises ``RequestConflict`` for an operation that completed or an id that was used for another request,
        ``OperationMismatch`` if the lane's tip has moved since or the operation is another lane's, ``LaneBusy`` while
        an operation is open, ``UnknownOperation``, ``InvalidName``.
        """
        return await retrying.retry(self._core, self.agent, settled_id, operation_id, deps, same_keys=same_keys)

    async def submit(self, prompt: str | UserMessage | Prompt, *, request_id: str | None = None) -> Receipt:
        """Accept ``prompt`` if the lane is idle, else steer with it; start nothing; durable on return.

        What no operation has taken when its operation ends becomes the next one in that same commit: open, undriven,
        named by ``result.next_operation``, with all such messages in order as its prompt (of more than 32 MiB the first
        ones, and the rest is steering for it). So does what is submitted while the lane is being aborted. The receipt
        tells what became of the message; ``receipt()`` tells it later too, by the request id, or by the receipt's own
        ``request_id`` if none was given.

        Errors are those of ``steer``.
        """
        return await submitting.submit(self._core, self.agent, prompt, request_id)

    async def resume(self) -> OperationResult | None:
        """Drive the open operation to its end, if there is one, and sit waits out. Errors are those of ``drive``."""
        operation = self._core.operation
        self._core.check()
        return None if operation is None else await self._drive_to_end(operation.id)

    async def abort(self) -> OperationResult:
        """``request_abort`` for the open operation and ``drive``; ``NoActiveOperation`` when nothing is open.

        Raises ``WouldDeadlock`` from inside an effect of this lane, before anything is committed.
        """
        self._core.check()
        operation = self._core.operation
        if operation is None:
            raise NoActiveOperation(f"lane {self.name!r} has no open operation to abort")
        verbs.check_waitable(self._core)
        await self.request_abort(operation.id)
        return await self._drive_to_end(operation.id)

    async def decide(
        self,
        approval_id: str,
        *,
        allow: bool,
        reason: str | None = None,
        by: str | None = None,
        args: dict[str, Any] | None = None,
    ) -> Decision:
        """Answer an approval of this lane's open operation, once; durable on return.

        A yes lets the call start (or, for a replay, start once more) when it is driven; a no is its error result, with
        ``reason``. ``by`` says who answered. With ``args`` it runs with these arguments instead of the model's; they
        are checked by the tool if it is here. Works before anything drives, from any task, from inside a tool too, and
        wakes a drive that waits. Cancelled: the answer is committed or not; answering again tells.

        Raises ``ApprovalNotPending`` for one that is answered, expired, void or not known (``details["became"]``), and
        ``InvalidMessage`` for a bad answer or bad arguments.
        """
        return await deciding.decide(self._core, self.agent, approval_id, allow=allow, reason=reason, by=by, args=args)

    async def answer(self, question_id: str, value: Any, *, by: str | None = None) -> Decision:
        """Answer what a tool of this lane's open operation asks with ``ctx.ask``, once; durable on return.

        ``value`` is JSON data: what the tool's ``ask`` returns when it has started again, which it does when it is
        driven. It is gone once the call has its result; that the question was answered, when, and ``by`` whom stays in
        the operation's record. Works before anything drives, from any task, from inside a tool too, and wakes a drive
        that waits. Cancelled: the answer is committed or not; answering again tells.

        Raises ``ApprovalNotPending`` for a question that is answered, void or not known (``details["became"]``), and
        ``InvalidMessage`` for a value that cannot be kept, or the id of an approval, which ``decide`` answers.
        """
        return await answering.answer(self._core, question_id, value, by=by)

    async def navigate(
        self, to: str | None, *, label: str | None = None, summarize: bool = False, instructions: str = ""
    ) -> NavigateResult:
        """Move this idle lane's tip to an entry of the session (None: before the first); durable on return.

        What comes next then goes on from there. Entries are never removed: what is left behind stays readable by its
        ids, ``label`` names its last entry in the same commit, and ``create_branch`` makes a path of it again. Going
        where the tip is writes nothing. Only the conversation moves: what tools did stays done. Cancelled: it moved or
        not; ``tip()`` tells.

        The agent's ``before_navigation`` hooks are asked first, here, and again if the lane has moved meanwhile.

        With ``summarize`` the model is asked for a summary of what is left behind, which is placed where the lane goes,
        and shown there to the model: an operation (``run`` of a ``Navigate``), whose last commit places it and moves.
        ``instructions`` say what it should look at. Where nothing is left behind nothing is summarized. If it fails or
        is aborted the lane does not move, and ``InvalidNavigation`` names the operation.

        Raises ``InvalidNavigation`` for what is no entry of this session, for a label where nothing is left behind, and
        with the reason of a hook that refuses or fails, ``LaneBusy`` while an operation is open.
        """
        if not summarize and not instructions:
            return await navigating.navigate(self._core, self.agent, to, label)
        result = await self.run(Navigate(to, label, summarize, instructions))
        if result.status != "completed":
            why = result.code if result.error is None else result.error.message
            raise InvalidNavigation(
                f"lane {self.name!r} did not move: operation {result.operation_id} is {result.status}: {why}",
                operation_id=result.operation_id,
            )
        return NavigateResult(from_tip=result.from_tip, tip=result.to_tip, summary=result.summary)

    async def compact(
        self,
        *,
        instructions: str = "",
        keep_tokens: int | None = None,
        operation_id: str | None = None,
        deps: Deps | UnsetType = UNSET,
    ) -> OperationResult:
        """Have the older part of what the model is shown summarized: ``run`` of a ``Compact``; returns its record.

        Nothing of the conversation is removed: an entry with the summary comes behind it, and what comes next is shown
        behind that and the tail that is kept. ``instructions`` say what the summary should look at; ``keep_tokens`` is
        how much is kept, if not what the agent's policy says. ``result.summary`` is the entry, ``result.text`` the
        summary. The request for it is tried again, recovered and aborted like any other, and charged to the operation.
        Input that comes meanwhile waits, and is placed behind it.

        Raises ``NothingToCompact`` where nothing stands before what is kept, ``LaneBusy`` while an operation is open;
        else as ``run``.
        """
        request = Compact(instructions=instructions, keep_tokens=keep_tokens)
        return await self.run(request, operation_id=operation_id, deps=deps)

    async def rewind(self, before: str, *, label: str | None = None) -> RewindResult:
        """Go back to before a user entry of this lane's path, to say it otherwise; durable on return.

        The tip moves to the entry's parent. The result has the user messages that stood there: that of ``before`` and
        those directly behind it. Nothing of them is placed again: edit them and accept. The rest is as with
        ``navigate``, files and everything else that tools changed included: they are not changed back.

        Raises ``InvalidNavigation`` for what is no user entry on the path, ``LaneBusy`` while an operation is open.
        """
        return await navigating.rewind(self._core, self.agent, before, label)

    async def wait_idle(self) -> None:
        """Wait until no operation is open on this lane and no pass runs; returns at once if that is so.

        It says that the lane was idle; by the time the caller goes on somebody may have accepted again. An operation
        that waits and that nobody drives is open. Several may wait, and cancelling one means nothing to the others.

        Raises ``SessionClosed`` when the session is closed meanwhile, ``SessionFaulted``, ``WouldDeadlock`` from inside
        an effect of this lane, ``ReadOnlySession`` for a lane that is not idle in a session that is only read.
        """
        await idle.wait_idle(self._core)

    async def run_when_idle(self, function: Callable[[], Awaitable[T]]) -> T:
        """Wait until the lane is idle, then run an async function as its only visitor, and return what that returns.

        From the moment the lane is idle until the function ends, ``accept`` and ``retry`` of others wait (other verbs
        do not). The function may use the lane freely: what it accepts and drives is its own; an operation that it
        leaves open stays open, and accepts of others hear ``LaneBusy`` then. Visitors come in the order they asked.
        Whatever the function raises is raised here, and the lane is let go. Cancelled: before the function begins
        nothing happens; then the function is cancelled.

        Raises ``WouldDeadlock`` from inside an effect of this lane or another visit of it, ``SessionClosed`` and
        ``SessionFaulted`` while it waits, ``InvalidMessage`` for what is no function.
        """
        return await idle.run_when_idle(self._core, function)

    async def deliver(self, call_id: str, result: Any) -> None:
        """Give the result of a call whose tool returned ``PendingResult``, once; durable on return.

        It may be all that a tool returns: text, JSON data, parts, or a ``ToolResult``; what does not fit is cut as of a
        tool. Works before anything drives, in any process, from any task, and wakes a drive that waits. Cancelled: it
        is delivered or not; ``inspect()`` tells.

        Raises ``ApprovalNotPending`` for a call that does not wait for its result (``details["became"]``: it has one,
        its tool has not returned yet, its operation is being aborted, or it is not known), ``InvalidMessage`` for a
        value that cannot be kept.
        """
        await delivering.deliver(self._core, self.agent, call_id, result)

    async def configure(
        self,
        *,
        model: str | ModelIdentity | Model | Sequence[str | ModelIdentity | Model] | None = None,
        tools: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Choose the model, the active tools or the model settings of this lane; what is left out stays as it is.

        ``model`` may be a list, as of ``Agent``.

        Durable on return; an open operation goes on with it from its next step. Raises ``UnknownModel``,
        ``UnknownTool`` or ``InvalidMessage``.
        """
        await verbs.configure(
            self._core,
            self.agent,
            models=None if model is None else self.agent.model_identities(model),
            tools=None if tools is None else self.agent.tool_names(tools),
            settings=None if settings is None else clean_settings(settings),
        )

    async def record_usage(
        self, usage: Usage, *, operation_id: str | None = None, entry_id: str | None = None, note: str | None = None
    ) -> UsageRow:
        """Add an adjustment to the ledger (a charge that was unknown, say); durable on return."""
        self._core.check()
        return await record_adjustment(
            self._core.runtime, usage, operation_id=operation_id, entry_id=entry_id, note=note
        )

    async def _drive_to_end(self, operation_id: str) -> OperationResult:
        outcome = await self.drive(operation_id, wait_for_answers=True)
        if isinstance(outcome, Waiting):
            raise RuntimeError(f"operation {operation_id}: a drive that sits every wait out returned one")
        return outcome.result


async def accept(
    lane: AgentLane[Deps, Any],
    request: Request,
    *,
    operation_id: str | None = None,
    deps: Deps | UnsetType = UNSET,
) -> Admitted:
    """The same as ``lane.accept``."""
    return await lane.accept(request, operation_id=operation_id, deps=deps)


async def drive(
    lane: AgentLane[Deps, Any],
    operation_id: str | None = None,
    *,
    wait_for_retry: bool = True,
    wait_for_answers: bool = False,
    deps: Deps | UnsetType = UNSET,
) -> Settled | Waiting:
    """The same as ``lane.drive``."""
    return await lane.drive(operation_id, wait_for_retry=wait_for_retry, wait_for_answers=wait_for_answers, deps=deps)


async def request_abort(lane: AgentLane[Any, Any], operation_id: str) -> AbortReceipt:
    """The same as ``lane.request_abort``."""
    return await lane.request_abort(operation_id)


requestAbort = request_abort
"""The same as ``request_abort``."""
