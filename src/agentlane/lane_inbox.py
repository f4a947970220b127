"""What an application says to a lane while it runs: steering, follow-ups, later prompts, and what became of them."""

from __future__ import annotations

from agentlane.branch import Branch
from agentlane.data.inbox import Queued, QueuedInput, Receipt
from agentlane.data.messages import UserMessage
from agentlane.data.requests import Prompt
from agentlane.driver import queueing
from agentlane.driver.queueing import CancelOutcome
from agentlane.names import check_name


class LaneInbox(Branch):
    """The inbox of a lane. What is queued is durable on return, is placed whole in one commit, and only once. Where
    more is due than one commit holds (32 MiB), several place it, in order and before the model is asked.

    Each call is allowed whatever the lane does: idle, driven, being aborted, and from inside its own tools, for none
    waits for the pass. ``message`` is a text, a ``UserMessage`` or a ``Prompt``; several messages stay together.

    What is left when an operation has failed or was aborted (but for what the abort returned), and what is queued on an
    idle lane, is placed before the next accepted prompt, in the order it came.

    With a ``request_id`` a call is safe to make again: the same id with the same content changes nothing and gets the
    same answer, also after the message was placed, returned or cancelled. Without one a cancelled call may have queued
    the message, and ``queued()`` or the conversation tells.
    """

    async def steer(self, message: str | UserMessage | Prompt, *, request_id: str | None = None) -> Queued:
        """Say something to the running operation: placed at its next boundary, before the model is asked again.

        Where the run would have ended, it answers instead. Never between calls of one answer; and not before a request
        that is tried again has been answered. ``Agent(steering="one")`` places one at a time.

        Raises ``InvalidMessage``, ``InvalidName`` for a bad id, ``RequestConflict`` for an id that was used for another
        message, ``PayloadTooLarge`` for one of more than 48 MiB.
        """
        return await queueing.queue(self._core, "steer", message, request_id)

    async def follow_up(self, message: str | UserMessage | Prompt, *, request_id: str | None = None) -> Queued:
        """Say something to the running operation once it would otherwise end, after all steering.

        One at a time, each answered before the next, unless ``Agent(follow_ups="all")``. Errors are those of ``steer``.
        """
        return await queueing.queue(self._core, "follow_up", message, request_id)

    async def next_run(self, message: str | UserMessage | Prompt, *, request_id: str | None = None) -> Queued:
        """Say something with the next accepted prompt, right before it; the operation that is open never sees it.

        Errors are those of ``steer``.
        """
        return await queueing.queue(self._core, "next_run", message, request_id)

    async def receipt(self, request_id: str) -> Receipt | None:
        """What became of the message that was queued or submitted on this lane with this id; None if there is none.

        Raises ``InvalidName`` for what can be no request id.
        """
        self._core.check()
        return await queueing.receipt_of(self._core, check_name(request_id, "request id"))

    async def cancel_queued(self, id: str) -> CancelOutcome:
        """Take back what was queued with this id, deferred writes included; durable on return.

        ``"cancelled"`` if it waited and does no more, ``"already_consumed"`` if it is an entry by now, ``"not_found"``
        for anything else: an id never used here, or one that was cancelled or returned. Cancelled: it was taken back or
        not; asking again tells.
        """
        return await queueing.cancel_queued(self._core, id)

    def queued(self) -> list[QueuedInput]:
        """What waits on this lane, in the order it came. Committed state, no I/O."""
        self._core.check()
        return [item.shown() for item in self._core.inbox]
