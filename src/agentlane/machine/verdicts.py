"""What can be next for an operation, as ``plan`` says it: one struct for each verdict."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from agentlane.data.messages import ErrorInfo, UserMessage
from agentlane.data.operations import ReplayPolicy, SummaryReason


class AskModel(Struct, frozen=True, gc=False):
    """Intend a model request."""


class RecoverRequest(Struct, frozen=True, gc=False):
    """Settle a request that an earlier pass left without an answer."""


class DropRequest(Struct, frozen=True, gc=False):
    """Settle a request that was intended and, since an abort came, never sent."""


class AskSummary(Struct, frozen=True, gc=False):
    """Intend a request for a summary: the first of its task, or the next one."""

    reason: SummaryReason


class TakeSummary(Struct, frozen=True, gc=False):
    """Place the summary that the application has written."""

    reason: SummaryReason
    text: str


class RefuseSummary(Struct, frozen=True, gc=False):
    """There will be no summary."""

    reason: SummaryReason
    error: ErrorInfo


class RecoverSummary(Struct, frozen=True, gc=False):
    """Settle a request for a summary that an earlier pass left without an answer."""


class DropSummary(Struct, frozen=True, gc=False):
    """Settle a request for a summary that was intended and, since an abort came, never sent."""


class Navigate(Struct, frozen=True, gc=False):
    """Move the lane."""


class StartCalls(Struct, frozen=True, gc=False):
    """Intend these planned calls together; ``children`` are those that are runs of other agents."""

    calls: tuple[tuple[int, ReplayPolicy], ...]
    children: tuple[int, ...] = ()


class DriveChildren(Struct, frozen=True, gc=False):
    """Go on driving the operations of these calls, which an earlier pass has accepted. Nothing is written."""

    indices: tuple[int, ...]


class ReplayCall(Struct, frozen=True, gc=False):
    """Intend to run this call of an earlier pass again."""

    index: int
    policy: ReplayPolicy


class AskPredicates(Struct, frozen=True, gc=False):
    """Ask the application whether these planned calls need a person's yes."""

    calls: tuple[int, ...]


class AskApprovals(Struct, frozen=True, gc=False):
    """Ask people about these calls, all of the running group together."""

    calls: tuple[int, ...]


SettledWithout: TypeAlias = Literal["not_started", "interrupted", "aborted", "refused", "cut", "expired", "stranded"]
"""Why a call gets a result that its tool did not give."""


class SettleCalls(Struct, frozen=True, gc=False):
    """Give these calls results that their tools did not give."""

    calls: tuple[tuple[int, SettledWithout], ...]


class PlaceReady(Struct, frozen=True, gc=False):
    """Place staged outcomes, as far as they are next and not held."""


class FollowUp(Struct, frozen=True, gc=False):
    """Place what hooks have to say, and go on."""


class PlaceQueued(Struct, frozen=True, gc=False):
    """Place this many of the deferred writes, the steers and the follow-ups that wait, those that came first, or as
    many of them as one commit holds."""

    writes: int = 0
    steers: int = 0
    follow_ups: int = 0


class Finish(Struct, frozen=True, gc=False):
    """End the operation."""


class GiveUp(Struct, frozen=True, gc=False):
    """End the operation: its model is not here."""

    error: ErrorInfo


class Fail(Struct, frozen=True, gc=False):
    """End the operation: it may not go on."""

    error: ErrorInfo


class AskAgain(Struct, frozen=True, gc=False):
    """Tell the model what is wrong with its answer."""

    message: UserMessage


class SleepUntil(Struct, frozen=True, gc=False):
    """Nothing can go on before this time."""

    at: int


class AwaitAnswers(Struct, frozen=True, gc=False):
    """Nothing can go on before somebody outside answers."""


class Idle(Struct, frozen=True, gc=False):
    """Something that runs in this pass must report first."""


Verdict: TypeAlias = (
    AskModel
    | RecoverRequest
    | DropRequest
    | AskSummary
    | TakeSummary
    | RefuseSummary
    | RecoverSummary
    | DropSummary
    | Navigate
    | StartCalls
    | DriveChildren
    | ReplayCall
    | AskPredicates
    | AskApprovals
    | SettleCalls
    | PlaceReady
    | FollowUp
    | PlaceQueued
    | Finish
    | GiveUp
    | Fail
    | AskAgain
    | SleepUntil
    | AwaitAnswers
    | Idle
)
