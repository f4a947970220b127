"""The durable state of an open operation: total, small, and never dependent on an earlier one.

``time_ms`` is the time spent in passes; the driver writes it with each step where a limit needs it.

Schema evolution: a new field has a default, a tag is never used again for something else.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from agentlane.data.entries import StandsFor
from agentlane.data.messages import ErrorInfo, ModelIdentity
from agentlane.data.requests import Compact, Navigate, RequestInfo

ReplayPolicy: TypeAlias = Literal["never", "safe", "idempotent", "ask"]
"""What a crash inside a call allows: ``safe`` and ``idempotent`` calls may run again, ``never`` calls may not, and
``ask`` calls only if a person says so."""

REPEATABLE: frozenset[ReplayPolicy] = frozenset(("safe", "idempotent"))
"""The policies under which a call may start again and nobody has to be asked."""


WHOLE_MAX = 2**53 - 1
"""The greatest number that a definition may give: what every reader of JSON takes exactly."""


class RetryPolicy(Struct, frozen=True, gc=False, kw_only=True):
    """How failed model requests are tried again: at most ``attempts``, with capped exponential backoff and jitter."""

    attempts: int = 3
    base_ms: int = 500
    cap_ms: int = 30_000


PlaceMode: TypeAlias = Literal["all", "one"]
"""How much of what waits is placed at one boundary."""


class Limits(Struct, frozen=True, gc=False, kw_only=True):
    """The bounds an operation runs under."""

    max_restarts: int = 3
    max_replays: int = 3
    max_parallel: int = 8
    cancel_grace_ms: int = 2_000
    max_result_bytes: int = 262_144


class RunLimits(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The bounds at which an operation ends as ``failed`` with the code ``limit_reached``; None is without a bound.

    - ``max_turns``: answers asked for; repeated attempts are no new turn.
    - ``max_requests``: attempts, repeated ones included.
    - ``max_tokens``: input and output tokens together, as far as they are known.
    - ``max_cost_nanos``: billionths of the currency, as far as they are known.
    - ``max_time_ms``: time in passes, waits for a retry included.
    - ``max_identical_calls``: how often one tool may be called with the same arguments.
    """

    max_turns: int | None = None
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost_nanos: int | None = None
    max_time_ms: int | None = None
    max_identical_calls: int | None = None


class CompactionPolicy(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """When the library summarizes the older part of what a model is shown, and how much of the rest it keeps.

    - ``context_tokens``: the model's window, where its ``limits`` do not tell; the model's own wins. Without either
      nothing is summarized before a provider refuses a request as too long.
    - ``reserve_tokens``: how much of the window is left free for the answer. A request that would be longer than the
      rest has what it shows summarized first. Of a small window it is a quarter at most.
    - ``keep_tokens``: how long the tail is that is kept as it is. Of a small window it is a quarter at most.
    - ``max_summary_tokens``: how long a summary may be.
    - ``instructions``: what a summary should look at besides what it always does.
    - ``model``: which of the agent's models is asked for summaries, by its identity or ``provider:name``; the one that
      would answer if left out. Where it is not in the process, or fails, it is the turn of those that answer.
    """

    context_tokens: int | None = None
    reserve_tokens: int = 16_384
    keep_tokens: int = 20_000
    max_summary_tokens: int = 4_096
    instructions: str = ""
    model: ModelIdentity | str | None = None


class AskedModel(Struct, frozen=True, gc=False):
    """Which model was asked for an answer that was under way when the models were configured."""

    response_id: str
    model: ModelIdentity


class OperationConfig(Struct, frozen=True, gc=False, kw_only=True):
    """What an operation runs with, captured when it was accepted (``op.config``).

    Written out whole, so that a default that changes later changes nothing about an operation that is open.
    """

    agent: str
    models: tuple[ModelIdentity, ...] = ()
    tools: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    retry: RetryPolicy = RetryPolicy()
    limits: Limits = Limits()
    run_limits: RunLimits | UnsetType = UNSET
    output_retries: int | UnsetType = UNSET
    """Set where the answer has to be of the agent's output type."""
    asked: AskedModel | UnsetType = UNSET
    steering: PlaceMode | UnsetType = UNSET
    """Unset: all."""
    follow_ups: PlaceMode | UnsetType = UNSET
    """Unset: one at a time."""
    compaction: CompactionPolicy | UnsetType | None = UNSET
    """Unset: one that says nothing of its own; None: nothing is summarized by itself."""

    @property
    def summary_models(self) -> tuple[ModelIdentity, ...]:
        """The models that are asked for a summary, in order."""
        chosen = self.compaction.model if isinstance(self.compaction, CompactionPolicy) else None
        if not isinstance(chosen, ModelIdentity):
            return self.models
        return (chosen, *(each for each in self.models if each != chosen))

    def models_for(self, state: OperationState) -> tuple[ModelIdentity, ...]:
        """The models that the index of a state, or of the request that comes next, counts in."""
        summary = isinstance(state, Summarizing | SummaryWait)
        if summary or (isinstance(state, Checkpoint) and state.next == "summarize"):
            return self.summary_models
        return self.models

    def model_of(self, state: Generating | Summarizing) -> ModelIdentity | None:
        """The model that was, or is to be, asked for this answer or summary; None if there is no such model."""
        if isinstance(self.asked, AskedModel) and self.asked.response_id == state.response_id:
            return self.asked.model
        models = self.models_for(state)
        return models[state.model_index] if state.model_index < len(models) else None


class ParentCall(Struct, frozen=True, gc=False, kw_only=True):
    """The call that an operation runs for: the lane and the operation that it belongs to. Its id is the operation's."""

    lane: str
    operation_id: str


class OperationMeta(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What an operation is (``op.meta``): written once, when it is accepted."""

    lane: str
    request: RequestInfo
    inputs: tuple[str, ...]
    start_tip: str | None
    started_at: int
    key_operation: str
    retry_of: str | None = None
    parent_call: ParentCall | None = None
    compact: Compact | None = None
    """What a compaction was asked for with."""
    navigate: Navigate | None = None
    """What a navigation was asked for with."""
    base: str | None = None
    """Of a navigation, the last entry that the path which is left and the one to the target have in common."""


# One call of an answer. Arrays on disk: ["planned"], ["effect_pending", "safe", 1, 0], ["placed", false].


class Planned(Struct, frozen=True, gc=False, array_like=True, tag="planned"):
    """Not started; or known not to have begun."""


class EffectPending(Struct, frozen=True, gc=False, array_like=True, tag="effect_pending"):
    """The intent is committed: the effect may have begun. ``attempt`` counts starts, ``replays`` those after deaths."""

    policy: ReplayPolicy
    attempt: int = 1
    replays: int = 0


class EffectGranted(EffectPending, frozen=True, gc=False, array_like=True, tag="effect_granted"):
    """The same of a call that a person allowed, by the approval of this id.

    With ``permit`` the yes is for a replay that has not started: its intent uses the permit up.
    """

    approval: str = ""
    permit: bool = False


class EffectResumed(EffectPending, frozen=True, gc=False, array_like=True, tag="effect_resumed"):
    """The same of a call that started again since its question was answered. No death came before this start."""


class Approved(Struct, frozen=True, gc=False, array_like=True, tag="approved"):
    """Not started, and a yes is stored under the approval of this id."""

    approval: str


class WaitingApproval(Struct, frozen=True, gc=False, array_like=True, tag="waiting_approval"):
    """A person is asked, by the approval of this id. ``attempt`` is 0 before the first start; then it is about a replay
    of the effect that the rest says."""

    approval: str
    policy: ReplayPolicy = "never"
    attempt: int = 0
    replays: int = 0


class WaitingExternal(Struct, frozen=True, gc=False, array_like=True, tag="waiting_external"):
    """The tool has returned and its result is delivered later, by whoever has it. It never runs again."""

    policy: ReplayPolicy
    attempt: int = 1
    replays: int = 0


class WaitingQuestion(Struct, frozen=True, gc=False, array_like=True, tag="waiting_question"):
    """The tool has asked a person, by the question of this id, and has ended: with the answer it starts again."""

    question: str
    policy: ReplayPolicy
    attempt: int = 1
    replays: int = 0


class AnsweredCall(Struct, frozen=True, gc=False, array_like=True, tag="answered"):
    """Its question is answered, and it has not started again; the rest is of its last start, put back or not."""

    policy: ReplayPolicy
    attempt: int = 1
    replays: int = 0


class OutcomeReady(Struct, frozen=True, gc=False, array_like=True, tag="outcome_ready"):
    """The outcome is durable (staged) and waits for the calls before it."""

    terminate: bool = False


class Placed(Struct, frozen=True, gc=False, array_like=True, tag="placed"):
    """The outcome is an entry of the conversation."""

    terminate: bool = False


class WaitingChild(Struct, frozen=True, gc=False, array_like=True, tag="waiting_child"):
    """The call is another agent's run: an operation under the call's id, whose end is the call's outcome."""


CallState: TypeAlias = (
    Planned
    | Approved
    | WaitingApproval
    | WaitingExternal
    | WaitingQuestion
    | AnsweredCall
    | EffectPending
    | EffectGranted
    | EffectResumed
    | WaitingChild
    | OutcomeReady
    | Placed
)


class Checkpoint(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="at", tag="checkpoint"):
    """Between effects: ``next`` says whether the model is asked or the operation ends, ``trigger`` is the entry why.

    ``summarize`` asks for a summary first: that of a compaction or navigation, or where a request was too long.
    ``end`` is the end of a compaction, which asks no model any more.

    ``placed`` says that queued input was placed here, so that one item at a time is one for each request; ``more`` that
    the follow-ups which waited were too much for one commit: the others come before the request too.

    Of any state between two good answers: ``overflow`` is the error of a request that was too long, once what it showed
    is, or is about to be, summarized; ``compacted`` says that it was looked at, for this trigger, whether something is
    to be summarized. ``unsummarized`` says that a summary failed: none is made any more before a request is too long.
    """

    next: Literal["respond", "finish", "summarize", "end"]
    trigger: str
    code: str | None = None
    turn: int = 0
    answer: str | None = None
    cancel_requested_at: int | None = None
    time_ms: int = 0
    placed: bool = False
    more: bool = False
    overflow: ErrorInfo | None = None
    compacted: bool = False
    unsummarized: bool = False


class Generating(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="at", tag="generating"):
    """A model request may be under way; its answer will be the entry ``response_id``, its usage the id derived from it.

    ``attempt`` counts requests of this turn; ``retries`` those after provider errors, ``restarts`` those after deaths.
    """

    response_id: str
    attempt: int
    retries: int = 0
    restarts: int = 0
    model_index: int = 0
    turn: int = 0
    answer: str | None = None
    cancel_requested_at: int | None = None
    time_ms: int = 0
    overflow: ErrorInfo | None = None
    compacted: bool = False
    unsummarized: bool = False


class RetryWait(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="at", tag="retry_wait"):
    """The next attempt of the turn starts when the clock reaches ``not_before`` (milliseconds)."""

    attempt: int
    not_before: int
    error: ErrorInfo
    retries: int = 0
    restarts: int = 0
    model_index: int = 0
    turn: int = 0
    answer: str | None = None
    cancel_requested_at: int | None = None
    time_ms: int = 0
    overflow: ErrorInfo | None = None
    compacted: bool = False
    unsummarized: bool = False


class Tools(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="at", tag="tools"):
    """The calls of ``answer``, one short state each, in the order the model asked."""

    calls: tuple[CallState, ...]
    answer: str
    turn: int = 0
    cancel_requested_at: int | None = None
    time_ms: int = 0
    unsummarized: bool = False


SummaryReason: TypeAlias = Literal["manual", "threshold", "overflow", "navigation"]
"""Why something is summarized: somebody asked, a request would be too long, one was, or a lane leaves its path."""


class Summarizing(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="at", tag="summarizing"):
    """A request for a summary may be under way; its usage has the id derived from ``response_id``.

    ``task`` is the id that the entry with the summary will have; ``op.prep`` says what is summarized. ``shorter``
    counts requests that were too long themselves: each next one shows half as much. ``placed`` is as it was at the
    checkpoint. The rest is as with ``generating``.
    """

    task: str
    reason: SummaryReason
    response_id: str
    attempt: int
    trigger: str
    retries: int = 0
    restarts: int = 0
    shorter: int = 0
    model_index: int = 0
    turn: int = 0
    answer: str | None = None
    cancel_requested_at: int | None = None
    time_ms: int = 0
    overflow: ErrorInfo | None = None
    unsummarized: bool = False
    placed: bool = False


class SummaryWait(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="at", tag="summary_wait"):
    """The next attempt at the summary starts when the clock reaches ``not_before`` (milliseconds)."""

    task: str
    reason: SummaryReason
    attempt: int
    trigger: str
    not_before: int
    error: ErrorInfo
    retries: int = 0
    restarts: int = 0
    shorter: int = 0
    model_index: int = 0
    turn: int = 0
    answer: str | None = None
    cancel_requested_at: int | None = None
    time_ms: int = 0
    overflow: ErrorInfo | None = None
    unsummarized: bool = False
    placed: bool = False


class Navigating(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="at", tag="navigating"):
    """The lane is about to move to ``target``, and to name what it leaves ``label``, in one commit."""

    target: str | None
    label: str | None = None
    turn: int = 0
    answer: str | None = None
    cancel_requested_at: int | None = None
    time_ms: int = 0


class SummaryPrep(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a summary is made of (``op.prep``), told once, so that each attempt is about the same.

    ``tip`` is where the lane was. Of a compaction ``kept_from`` is where the tail begins that is not summarized, and of
    a navigation ``target`` where the lane goes.
    """

    tip: str
    kept_from: str | None = None
    split: bool = False
    tokens_before: int = 0
    target: str | None = None
    stands_for: StandsFor = StandsFor()
    shown_tokens: int | None = None
    """How long the part that is shown to whoever summarizes may be; None: as long as it is."""


OperationState: TypeAlias = Checkpoint | Generating | RetryWait | Tools | Summarizing | SummaryWait | Navigating


class LaneConfig(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``lane.config``: the agent's name, and only what ``configure`` set."""

    agent: str
    model: ModelIdentity | None = None
    tools: tuple[str, ...] | None = None
    settings: dict[str, Any] | None = None
    fallbacks: tuple[ModelIdentity, ...] = ()
    """The models that are asked after ``model``."""


class LaneState(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """``lane.state``: the open operation, if any, and the one settled last."""

    current: str | None = None
    last: str | None = None
