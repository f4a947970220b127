"""The world around the machine, as the exploration knows it: what runs, what really began, what has its result."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from agentlane.data.messages import AssistantMessage, ErrorInfo
from agentlane.data.operations import (
    Checkpoint,
    Limits,
    Navigating,
    OperationState,
    PlaceMode,
    ReplayPolicy,
    RetryPolicy,
    SummaryReason,
)
from agentlane.machine.planning import CallView
from agentlane.machine.rules import Rules
from tests.machine.build import GONE, OVERLOADED, REFUSED, answer

Process: TypeAlias = Literal["", "intended", "running", "waiting", "withdrawn", "not_begun"]
"""An effect in the process of now: none of it; its intent is committed; it began. Under an abort: it is told to stop
before it began, and has not said so yet; it did not begin. A run of another agent may wait: nobody drives it then."""

LIVE: tuple[Process, ...] = ("intended", "running", "withdrawn")
NOT_BEGUN: tuple[Process, ...] = ("intended", "withdrawn", "not_begun")


class Call(NamedTuple):
    """What became of one call of the open batch. A call with its result has no other past."""

    process: Process = ""
    alone: bool = False
    """What runs was started as a barrier."""
    intents: int = 0
    """Intents committed and not taken back."""
    begun: bool = False
    """Its effect began in some life."""
    barred: bool = False
    """Its effect began while ``never`` was its policy."""
    result: Literal["", "staged", "placed"] = ""
    answer: Literal["", "asked", "given", "used", "deferred", "question", "answered", "resumed"] = ""
    """A person is asked about it; said yes; and that yes is what it was started by last. Or its tool returned without
    a result, which is to be delivered. Or its tool asked a person; who answered; and by that it was started last."""
    child: bool = False
    """It is another agent's run, accepted as an operation of its own: what runs here is that somebody drives it."""
    questions: int = 0
    """How often its tool has asked a person."""
    resumes: int = 0
    """Intents, of those that are not taken back, to start again with an answer."""

    @property
    def replays(self) -> int:
        """Intents to start again after a death."""
        return max(self.intents - 1 - self.resumes, 0)


class Task(NamedTuple):
    """The summary that is asked for: what it is of, and what became of its requests."""

    id: str = ""
    reason: SummaryReason = "manual"
    requests: int = 0
    failures: int = 0
    interruptions: int = 0
    shorter: int = 0
    """How often what it shows was halved."""
    model: int = 0


NO_TASK = Task()


class World(NamedTuple):
    """The operation's state, and everything that happened and still matters. ``state`` is None at the end."""

    state: OperationState | None
    calls: tuple[Call, ...] = ()
    cut: bool = False
    request: Process = ""
    turn: int = 0
    requests: int = 0
    """Requests of the turn that is open."""
    model: int = 0
    """The model of the list that the turn's last request went to, or that the next one goes to."""
    failures: int = 0
    interruptions: int = 0
    corrections: int = 0
    """How often the model was told that its answer is not what was asked for."""
    answer: str | None = None
    """The last answer that was neither an error nor aborted; at the end the status instead."""
    aborted: bool = False
    lives: int = 0
    """Processes that are over."""
    waiting: tuple[int, int, int] = (0, 0, 0)
    """Deferred writes, steers and follow-ups that wait."""
    queued: int = 0
    """All that was ever queued."""
    fed: bool = False
    """Queued input was placed since the last request."""
    unfed: bool = False
    """Follow-ups that were due together with some that were placed are still to come before the next request."""
    kind: Literal["run", "compaction", "navigation"] = "run"
    task: Task = NO_TASK
    """The summary that is under way, or waits for its next attempt; what it is made of is stored."""
    overflowed: bool = False
    """The request for the answer that is open was too long, and what it showed is, or was, to be summarized."""
    looked: bool = False
    """It was found out, for what is to be answered, whether something is summarized first."""
    unsummarized: bool = False
    """A summary failed, and the run went on."""


START = World(Checkpoint(next="respond", trigger="in"))
TO_COMPACT = World(Checkpoint(next="summarize", trigger="tip"), kind="compaction")
TO_MOVE = World(Navigating(target="there", label="left"), kind="navigation")
TO_MOVE_WITH_A_SUMMARY = World(Checkpoint(next="summarize", trigger="tip"), kind="navigation")


class Scope(NamedTuple):
    """How far an exploration goes."""

    name: str
    calls: int
    batches: int
    """Answers with calls; the one after the last of them has none."""
    deaths: int
    """Ends of a life, by death or by a clean close, each with its recovery."""
    rules: Rules
    kinds: tuple[CallView, ...]
    """What a call that never began may be like, in this process at this moment."""
    corrections: int = 0
    """How often the model may be told that its answer is not what was asked for."""
    models: int = 1
    """How long the list of models is."""
    hooks: bool = False
    """Whether outcomes may be held, for a hook to speak before they are placed."""
    room: tuple[int, ...] = (1, 2, 3)
    """What ``max_parallel`` may be at this moment."""
    deferring: bool = False
    """Whether tools may return without a result."""
    lost: tuple[CallView, ...] = ()
    """What a call of an earlier life may be like now; nothing is ``LOST_KINDS``."""
    queued: int = 0
    """How many items somebody may queue, at any moment."""
    questions: int = 0
    """How often a tool may ask a person."""
    start: World = START
    shorter: int = 0
    """How often a request for a summary may be too long; nothing is summarized unless it is at least 1."""


def scope_rules(
    *, attempts: int, restarts: int, replays: int, steering: PlaceMode = "all", follow_ups: PlaceMode = "one"
) -> Rules:
    retry, limits = RetryPolicy(attempts=attempts, base_ms=BASE_MS), Limits(max_restarts=restarts, max_replays=replays)
    return Rules(retry, limits, steering=steering, follow_ups=follow_ups)


BASE_MS = 500
RETRY_AFTER_MS = 9_000

PLAIN = CallView("safe")
KEYED = CallView("idempotent")
NEVER = CallView("never")
BARRIER = CallView("safe", parallel=False)
NEVER_BARRIER = CallView("never", parallel=False)
CHILD = CallView("safe", child=True)
CHILD_BARRIER = CallView("safe", parallel=False, child=True)
MISSING = CallView(None, problem="no such tool")
BAD_ARGUMENTS = CallView("safe", problem="bad arguments")

ASKED = CallView("never", approval="yes")
CONSULTED = CallView("safe", approval="open")
CONSULTING = CallView("safe", approval="asking")
ASKED_BARRIER = CallView("safe", parallel=False, approval="yes")
UNBOUND = CallView("safe", unbound=True)
ASKS_BEFORE_A_REPLAY = CallView("ask")
ASKED_SAFE = CallView("safe", approval="yes")

LOST_KINDS = (PLAIN, KEYED, NEVER, BARRIER, MISSING, BAD_ARGUMENTS)
"""What a call of an earlier life may be like now."""

BUSY = ErrorInfo(code="busy", message="later", retryable=True, retry_after_ms=RETRY_AFTER_MS)
OVERFLOW = ErrorInfo(code="context_overflow", message="too long")
UNAVAILABLE = GONE

FAILURES: tuple[AssistantMessage, ...] = tuple(
    answer(text="half", stop_reason="error", error=error) for error in (OVERLOADED, BUSY, REFUSED, OVERFLOW)
)
TOO_LONG = answer(stop_reason="error", error=OVERFLOW)
SUMMARY = answer(text=" what was said ")
CUT_SUMMARY = answer(text="what was sa", stop_reason="length")
NO_SUMMARIES = (answer(), answer(1, text="said"))
"""What is no summary though it is an answer: an empty one, and one that calls tools."""
CUT_STREAM = answer(
    2, stop_reason="error", error=ErrorInfo(code="stream_cut", message="no end", retryable=True)
)  # its calls are half received
ABORTED = answer(1, stop_reason="aborted", error=ErrorInfo(code="aborted", message="as asked"))
NOT_SENT = answer(stop_reason="aborted", error=ErrorInfo(code="aborted", message="never sent"))
SAVED_PREFIX = answer(1, text="ha", stop_reason="error", error=ErrorInfo(code="interrupted", message="died"))


def answers(scope: Scope, world: World) -> tuple[AssistantMessage, ...]:
    """How the request that runs may end."""
    most = scope.calls if world.turn <= scope.batches else 0
    key = (most, world.aborted)
    if key not in _ANSWERS:
        whole = [answer(n, text="said") for n in range(most + 1)]
        short = [answer(n, text="sai", stop_reason="length") for n in range(most + 1)]
        _ANSWERS[key] = (*whole, *short, *FAILURES, CUT_STREAM, *((ABORTED,) if world.aborted else ()))
    return _ANSWERS[key]


_ANSWERS: dict[tuple[int, bool], tuple[AssistantMessage, ...]] = {}


def written_summaries(scope: Scope, world: World) -> tuple[AssistantMessage, ...]:
    """How the request for a summary that runs may end; beside calls, which make worlds enough, in fewer ways."""
    ended = (SUMMARY, CUT_SUMMARY, *NO_SUMMARIES, *(each for each in FAILURES if each.error is not OVERFLOW))
    if scope.calls:
        ended = (SUMMARY, NO_SUMMARIES[0], *(each for each in FAILURES if each.error in (OVERLOADED, REFUSED)))
    too_long = (TOO_LONG,) if world.task.shorter < scope.shorter else ()
    return (*ended, *too_long, *((ABORTED,) if world.aborted else ()))


def request_id(turn: int, number: int, *, again: bool = False) -> str:
    """The id reserved for the answer to the ``number``-th request of a turn; of those after one that was too long."""
    return f"t{turn}{'s' if again else 'r'}{number}-0000"


def task_id(reason: SummaryReason, trigger: str) -> str:
    """The id of the entry with the summary: for each reason there is one of what is to be answered."""
    return f"{reason} at {trigger}"


def summary_request_id(task: str, number: int) -> str:
    """The id of the ``number``-th request for a summary."""
    return f"{task}, {number}"


def question_id(index: int) -> str:
    """The id of every question about a call."""
    return f"question-{index}"


def asked_id(index: int, number: int) -> str:
    """The id of the ``number``-th question of a call's own tool."""
    return f"asked-{index}-{number}"


def may_start_with_an_answer(stored: ReplayPolicy, now: CallView) -> bool:
    """Whether a call that asked may start again: its tool is here, takes the arguments, and may run more than once."""
    if now.problem is not None or now.policy is None:
        return False
    return {stored, now.policy}.isdisjoint({"never", "ask"})


def may_run_again_by_a_yes(stored: ReplayPolicy, replays: int, now: CallView, rules: Rules) -> bool:
    """Rule 3 of recovery, said once more: whether a person may let a call that began in an earlier life run again."""
    forbidden = now.problem is not None or now.policy is None or "never" in (stored, now.policy)
    return not forbidden and replays < rules.limits.max_replays


def may_run_again(stored: ReplayPolicy, replays: int, now: CallView, rules: Rules) -> bool:
    """Rule 1 and 2 of recovery, said once more: whether a call that began in an earlier life runs again."""
    allowed = {("safe", "safe"), ("safe", "idempotent"), ("idempotent", "safe"), ("idempotent", "idempotent")}
    return now.problem is None and (stored, now.policy) in allowed and replays < rules.limits.max_replays
