"""What the machine is told (facts), what it answers (steps), and what a step asks to be written (changes)."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from agentlane.data.messages import AssistantMessage, ErrorInfo, ModelIdentity, ToolResultMessage, UserMessage
from agentlane.data.operations import OperationState, ReplayPolicy, SummaryReason
from agentlane.data.results import Status


class IllegalStep(RuntimeError):
    """A fact met a state that has no transition for it; the state is unmoved. Always a bug of the caller."""


# Facts. Times, ids and chance are in the fact; the machine has no source of its own.


class RequestIntended(Struct, frozen=True, gc=False):
    """A model request is about to be sent under this fresh id, to the model at ``model_index`` (None: the state's)."""

    response_id: str
    model_index: int | None = None


class Answered(Struct, frozen=True, gc=False):
    """A live request ended with this message (failed and aborted ones included). ``jitter`` is in [0, 1).

    ``fallback`` is the index of the next model in the list that is here, if there is one.
    """

    message: AssistantMessage
    now: int
    jitter: float
    fallback: int | None = None
    summarize: bool = False
    """Where the request was too long: something can be summarized, and may be."""


class Interrupted(Struct, frozen=True, gc=False):
    """A request of an earlier pass has no answer; ``message`` holds the prefix that was saved.

    ``response_id`` is fresh, for the attempt that may follow; ``unavailable`` says why none can: the model is not here,
    or a limit is reached.
    """

    message: AssistantMessage
    response_id: str
    now: int
    jitter: float
    unavailable: ErrorInfo | None = None
    model_index: int | None = None
    """The model that the attempt that may follow goes to; None: the same."""


class CallsIntended(Struct, frozen=True, gc=False):
    """These planned calls (index, declared policy) are about to start together."""

    calls: tuple[tuple[int, ReplayPolicy], ...]


class ChildrenStarted(Struct, frozen=True, gc=False):
    """These planned calls are runs of other agents: their operations are accepted in this commit."""

    indices: tuple[int, ...]


class ReplayIntended(Struct, frozen=True, gc=False):
    """The effect of this call, begun by an earlier pass, is about to start again."""

    index: int
    policy: ReplayPolicy


class ApprovalsAsked(Struct, frozen=True, gc=False):
    """People are asked about these calls (index, id of the approval): before their start, or before a replay."""

    calls: tuple[tuple[int, str], ...]


class ApprovalGiven(Struct, frozen=True, gc=False):
    """A person said yes to what this call waits for."""

    index: int
    approval: str


class CallsDeferred(Struct, frozen=True, gc=False):
    """The tools of these calls returned without a result, which will be delivered."""

    indices: tuple[int, ...]


class QuestionsAsked(Struct, frozen=True, gc=False):
    """The effects of these calls have ended with a question to a person, each under its id."""

    calls: tuple[tuple[int, str], ...]


class QuestionAnswered(Struct, frozen=True, gc=False):
    """A person answered the question of this id."""

    index: int
    question: str


class Outcome(Struct, frozen=True, gc=False):
    """The one result of one call. ``terminate`` is the tool's wish to end the run."""

    index: int
    message: ToolResultMessage
    terminate: bool = False


class OutcomesArrived(Struct, frozen=True, gc=False):
    """Outcomes, in the order they arrived. Those of ``held`` calls are not placed with them, even if they are next."""

    outcomes: tuple[Outcome, ...]
    held: frozenset[int] = frozenset()


class ReadyPlaced(Struct, frozen=True, gc=False):
    """Staged outcomes are placed as far as they are next and not ``held``; ``changed`` take the place of theirs."""

    changed: tuple[Outcome, ...] = ()
    held: frozenset[int] = frozenset()


class CallsNotBegun(Struct, frozen=True, gc=False):
    """A clean close knows that the effects of these calls never began."""

    indices: tuple[int, ...]


class FollowedUp(Struct, frozen=True, gc=False):
    """Hooks have more to say where the run would finish: these messages, under these ids, and the model is asked."""

    messages: tuple[tuple[str, UserMessage], ...]


class QueuedPlaced(Struct, frozen=True, gc=False):
    """These items of the inbox are placed, in this order; ``trigger`` is the last entry of those that are input.

    ``more``: the rest of the follow-ups that are due here comes with the next commit.
    """

    items: tuple[str, ...]
    trigger: str | None = None
    more: bool = False


class AbortRequested(Struct, frozen=True, gc=False):
    """Somebody asked to abort the operation."""

    at: int


class Finished(Struct, frozen=True, gc=False):
    """Nothing stands in the way of the operation's end."""


class Failed(Struct, frozen=True, gc=False):
    """The operation may not go on: a limit is reached, its answer is not what was asked for, a hook is in its way."""

    error: ErrorInfo


class OutputRefused(Struct, frozen=True, gc=False):
    """The answer that would end the operation is not what was asked for; ``message`` tells the model so."""

    message: UserMessage


class ModelUnavailable(Struct, frozen=True, gc=False):
    """The model that the operation was accepted with is not in this process."""

    error: ErrorInfo


class SummaryIntended(Struct, frozen=True, gc=False):
    """A summary is about to be asked for; ``task`` is the id that its entry will have. The rest is as of a request."""

    task: str
    reason: SummaryReason
    response_id: str
    model_index: int | None = None


class SummaryGiven(Struct, frozen=True, gc=False):
    """The application has written the summary itself."""

    task: str
    reason: SummaryReason
    text: str


class SummaryRefused(Struct, frozen=True, gc=False):
    """Nothing is summarized: there is nothing, the application does not want it, or no model is here to do it."""

    reason: SummaryReason
    error: ErrorInfo


class Summarized(Struct, frozen=True, gc=False):
    """A live request for a summary ended with this message; it was the ``shortest`` that can be made. The rest is as of
    ``Answered``."""

    message: AssistantMessage
    now: int
    jitter: float
    fallback: int | None = None
    shortest: bool = False


class SummaryInterrupted(Struct, frozen=True, gc=False):
    """A request for a summary of an earlier pass has no answer. The rest is as of ``Interrupted``."""

    response_id: str
    now: int
    jitter: float
    model: ModelIdentity | None = None
    unavailable: ErrorInfo | None = None
    model_index: int | None = None


class Navigated(Struct, frozen=True, gc=False):
    """Nothing stands in the way of the lane's move."""


Fact: TypeAlias = (
    RequestIntended
    | Answered
    | Interrupted
    | CallsIntended
    | ChildrenStarted
    | ReplayIntended
    | ApprovalsAsked
    | ApprovalGiven
    | CallsDeferred
    | QuestionsAsked
    | QuestionAnswered
    | OutcomesArrived
    | ReadyPlaced
    | CallsNotBegun
    | FollowedUp
    | QueuedPlaced
    | AbortRequested
    | Finished
    | Failed
    | OutputRefused
    | ModelUnavailable
    | SummaryIntended
    | SummaryGiven
    | SummaryRefused
    | Summarized
    | SummaryInterrupted
    | Navigated
)


# Changes: what a step writes beside the state itself.


class PlaceAnswer(Struct, frozen=True, gc=False):
    """The answer becomes the entry ``id``, with its ledger row; the frames saved of it go."""

    id: str
    message: AssistantMessage


class PlaceResult(Struct, frozen=True, gc=False):
    """The result of call ``index`` of ``answer`` becomes an entry; ``message`` is None for one as it was staged."""

    answer: str
    index: int
    message: ToolResultMessage | None


class PlaceInput(Struct, frozen=True, gc=False):
    """A message to the model becomes the entry ``id``."""

    id: str
    message: UserMessage


class StageResult(Struct, frozen=True, gc=False):
    """The result of call ``index`` is kept until the calls before it have theirs."""

    answer: str
    index: int
    message: ToolResultMessage


class StartChild(Struct, frozen=True, gc=False):
    """The operation of call ``index`` of ``answer``, another agent's run, is accepted."""

    answer: str
    index: int


class PlaceCorrection(Struct, frozen=True, gc=False):
    """What is wrong with ``answer`` becomes an entry behind it."""

    answer: str
    message: UserMessage


class PlaceItems(Struct, frozen=True, gc=False):
    """These items leave the inbox and their content becomes entries, in this order."""

    items: tuple[str, ...]


class SpendSummary(Struct, frozen=True, gc=False):
    """An attempt at a summary gets its ledger row; ``task`` is the entry with the summary, if it came of this one."""

    response_id: str
    message: AssistantMessage
    task: str | None = None


class PlaceSummary(Struct, frozen=True, gc=False):
    """The summary becomes the entry ``task``; what it was prepared from goes. None: the application wrote it."""

    task: str
    text: str
    model: ModelIdentity | None = None


class DropPreparation(Struct, frozen=True, gc=False):
    """Nothing comes of the summary ``task``: what it was prepared from goes."""

    task: str


class MoveLane(Struct, frozen=True, gc=False):
    """The lane's tip moves as its operation was asked to, and what is left behind gets its label."""


class End(Struct, frozen=True, gc=False):
    """The operation's terminal record is written and everything that belongs to it while open goes."""

    status: Status
    turns: int
    answer: str | None
    code: str | None = None
    error: ErrorInfo | None = None


class AskApproval(Struct, frozen=True, gc=False):
    """The question about call ``index`` is kept under this id until it is answered or void."""

    index: int
    approval: str


Change: TypeAlias = (
    PlaceAnswer
    | PlaceResult
    | PlaceInput
    | PlaceItems
    | StageResult
    | AskApproval
    | StartChild
    | PlaceCorrection
    | SpendSummary
    | PlaceSummary
    | DropPreparation
    | MoveLane
    | End
)


# Effects that may start once the step is committed.


class RequestModel(Struct, frozen=True, gc=False):
    """Send the request whose answer will be ``response_id``."""

    response_id: str
    attempt: int
    model_index: int


class RunCall(Struct, frozen=True, gc=False):
    """Start the effect of call ``index``; ``replays`` counts starts after a death."""

    index: int
    attempt: int
    replays: int


class DriveChild(Struct, frozen=True, gc=False):
    """Drive the operation of call ``index``, another agent's run, to its end."""

    index: int


class RequestSummary(Struct, frozen=True, gc=False):
    """Send the request for the summary ``task``; ``shorter`` halves what it shows, as often as it says."""

    task: str
    response_id: str
    attempt: int
    model_index: int
    shorter: int = 0


Effect: TypeAlias = RequestModel | RunCall | DriveChild | RequestSummary


class Step(Struct, frozen=True, gc=False):
    """One transition: the state after it (None when the operation has ended), what to write, what to start."""

    state: OperationState | None
    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()
    boundary: str = ""
    """The row of the commit table that this step is, by which tests name it."""
