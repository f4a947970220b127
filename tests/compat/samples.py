"""One sample of every stored record: at its barest, and with every field. Samples are only ever added."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from agentlane.data import codec, features
from agentlane.data.approvals import Approval, Decision
from agentlane.data.codec import Kind
from agentlane.data.entries import Custom
from agentlane.data.messages import (
    AssistantMessage,
    ErrorInfo,
    ExpandedFrom,
    ImagePart,
    ModelIdentity,
    PartDelta,
    PartEnd,
    PartStart,
    ProviderPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UsageSeen,
    UserMessage,
)
from agentlane.data.operations import (
    AnsweredCall,
    Approved,
    AskedModel,
    Checkpoint,
    EffectGranted,
    EffectPending,
    EffectResumed,
    Generating,
    LaneConfig,
    LaneState,
    Limits,
    OperationConfig,
    OperationMeta,
    OutcomeReady,
    ParentCall,
    Placed,
    Planned,
    RetryPolicy,
    RetryWait,
    RunLimits,
    Tools,
    WaitingApproval,
    WaitingChild,
    WaitingExternal,
    WaitingQuestion,
)
from agentlane.data.requests import RequestInfo
from agentlane.data.results import OperationResult
from agentlane.data.usage import Usage, UsageRow, UsageTotals
from tests.compat.samples_inbox import INBOX_SAMPLES
from tests.compat.samples_summaries import SUMMARY_SAMPLES


class Sample(NamedTuple):
    """A record and the kind it is stored as."""

    kind: Kind[Any]
    record: Any


ANSWER = "0192f0c0-0000-7000-8000-000000010000"
ENTRY = "0192f0c0-0000-7000-8000-000000020000"
MODEL = ModelIdentity(provider="acme", name="large")
ERROR = ErrorInfo(code="overloaded", message="come back", retryable=True, retry_after_ms=1500)
USAGE = Usage(
    input_tokens=1,
    output_tokens=2,
    cache_read_tokens=3,
    cache_write_tokens=4,
    reasoning_tokens=5,
    cost_nanos=6,
)
TOTALS = UsageTotals(
    rows=1,
    unknown_rows=2,
    input_tokens=3,
    output_tokens=4,
    cache_read_tokens=5,
    cache_write_tokens=6,
    reasoning_tokens=7,
    cost_nanos=8,
)
TEXT = TextPart(text="héllo\u2028\x00", signature="sig")
IMAGE = ImagePart(data="aGk=", mime_type="image/png")
CALL = ToolCallPart(id="toolu_1", name="read", arguments={"path": "a", "n": [1, 0.5, None, True]}, signature="sig")
BROKEN_CALL = ToolCallPart(id="", name="read", arguments_text='{"path":')

BODIES = {
    "user": UserMessage(content=(TEXT, IMAGE)),
    "assistant.bare": AssistantMessage(content=(), stop_reason="stop"),
    "assistant.full": AssistantMessage(
        content=(
            TEXT,
            ThinkingPart(text="hm", signature="sig", redacted=True),
            CALL,
            BROKEN_CALL,
            ProviderPart(provider="acme", data={"search": ["x"]}),
        ),
        stop_reason="tool_calls",
        model=MODEL,
        usage=USAGE,
        error=ERROR,
        answers=(ENTRY,),
    ),
    "assistant.length": AssistantMessage(content=(TextPart(text=""),), stop_reason="length"),
    "assistant.error": AssistantMessage(
        content=(ThinkingPart(text=""),), stop_reason="error", error=ErrorInfo(code="c", message="m")
    ),
    "assistant.aborted": AssistantMessage(content=(), stop_reason="aborted", usage=Usage(input_tokens=0)),
    "tool_result.bare": ToolResultMessage(call_id="toolu_1", name="read", content=()),
    "tool_result.full": ToolResultMessage(
        call_id="toolu_1", name="read", content=(TEXT, IMAGE), details={"lines": [1]}, is_error=True
    ),
    "custom.bare": Custom(type="note"),
    "custom.full": Custom(type="note", data={"by": "me"}),
    "user.sent": UserMessage(content=(TEXT,), sent_at=1_700_000_000_000),
    "user.template": UserMessage(
        content=(TextPart(text="Review a.py."),),
        expanded_from=ExpandedFrom(
            kind="template", name="review", digest="d" * 32, arguments=("a.py",), named={"depth": "full"}
        ),
    ),
    "user.skill": UserMessage(
        content=(TextPart(text='<skill name="pdf">\nOpen it.\n</skill>'),),
        expanded_from=ExpandedFrom(kind="skill", name="pdf", digest="d" * 32),
    ),
    "assistant.sent": AssistantMessage(content=(), stop_reason="stop", sent_at=1_700_000_000_001),
    "tool_result.sent": ToolResultMessage(call_id="toolu_1", name="read", content=(), sent_at=1_700_000_000_002),
    "custom.kept": Custom(
        type="import.kept",
        data={"format": "openai", "kept": [{"index": 3, "path": "messages[3].name", "value": "ada"}]},
    ),
}
STATES = {
    "checkpoint.bare": Checkpoint(next="respond", trigger=ENTRY),
    "checkpoint.full": Checkpoint(
        next="finish", trigger=ENTRY, code="length", turn=2, answer=ANSWER, cancel_requested_at=99
    ),
    "generating.bare": Generating(response_id=ANSWER, attempt=1),
    "generating.full": Generating(
        response_id=ANSWER,
        attempt=2,
        retries=1,
        restarts=3,
        model_index=4,
        turn=5,
        answer=ENTRY,
        cancel_requested_at=99,
    ),
    "retry_wait.bare": RetryWait(attempt=1, not_before=1000, error=ErrorInfo(code="c", message="m")),
    "retry_wait.full": RetryWait(
        attempt=2,
        not_before=1000,
        error=ERROR,
        retries=1,
        restarts=3,
        model_index=4,
        turn=5,
        answer=ENTRY,
        cancel_requested_at=99,
    ),
    "tools.bare": Tools(calls=(Planned(),), answer=ANSWER),
    "tools.child": Tools(calls=(WaitingChild(),), answer=ANSWER),
    "tools.full": Tools(
        calls=(
            Planned(),
            EffectPending("never"),
            EffectPending("safe", 2, 1),
            EffectPending("idempotent", 4, 3),
            OutcomeReady(),
            OutcomeReady(True),
            Placed(),
            Placed(True),
        ),
        answer=ANSWER,
        turn=5,
        cancel_requested_at=99,
    ),
}
TIMED = {
    "checkpoint": Checkpoint(next="respond", trigger=ENTRY, time_ms=1500),
    "generating": Generating(response_id=ANSWER, attempt=1, time_ms=1500),
    "retry_wait": RetryWait(attempt=1, not_before=1000, error=ErrorInfo(code="c", message="m"), time_ms=1500),
    "tools": Tools(calls=(Planned(),), answer=ANSWER, time_ms=1500),
}
ASKED_STATE = Tools(
    calls=(
        Approved("a-1"),
        WaitingApproval("a-2"),
        WaitingApproval("a-3", "ask", 2, 1),
        EffectPending("ask"),
        EffectGranted("never", 1, 0, "a-4"),
        EffectGranted("ask", 2, 1, "a-5", permit=True),
    ),
    answer=ANSWER,
)
APPROVAL = Approval(
    approval_id="a-1",
    lane="main",
    operation_id="op-1",
    call_id=ENTRY,
    tool="read",
    kind="call",
    question="May it?",
    digest="d" * 32,
    asked_at=1000,
)
DEFERRED_STATE = Tools(calls=(WaitingExternal("never"), WaitingExternal("safe", 2, 1)), answer=ANSWER)
QUESTIONS_STATE = Tools(
    calls=(WaitingQuestion("a-6", "safe", 2, 1), AnsweredCall("idempotent", 1, 0), EffectResumed("safe", 3, 1)),
    answer=ANSWER,
)
QUESTION = Approval(
    approval_id="a-6",
    lane="main",
    operation_id="op-1",
    call_id=ENTRY,
    tool="read",
    kind="question",
    name="which",
    question="Which one?",
    arguments={"x": 1},
    digest="d" * 32,
    asked_at=1000,
)
DECISION = Decision(
    approval_id="a-1",
    call_id=ENTRY,
    tool="read",
    kind="call",
    allow=True,
    digest="d" * 32,
    at=2000,
    by="ann",
    reason="fine",
    changed=True,
    expired=True,
)
META = OperationMeta(
    lane="main",
    request=RequestInfo(kind="prompt", digest="d" * 32),
    inputs=(ENTRY,),
    start_tip=ANSWER,
    started_at=1000,
    key_operation="op-1",
)
CHILD_META = OperationMeta(
    lane="child:c",
    request=RequestInfo(kind="prompt", digest="d" * 32),
    inputs=(ENTRY,),
    start_tip=None,
    started_at=1000,
    key_operation="c",
    parent_call=ParentCall(lane="main", operation_id="op-1"),
)
RESULT = OperationResult(
    operation_id="op-1",
    lane="main",
    agent="coder",
    kind="prompt",
    status="completed",
    request_digest="d" * 32,
    key_operation="op-1",
    inputs=(ENTRY,),
    from_tip=None,
    to_tip=ANSWER,
    started_at=1000,
    ended_at=2000,
)

SAMPLES: dict[str, Sample] = {
    **{f"entry.{name}": Sample(codec.BODY, body) for name, body in BODIES.items()},
    **{f"op.state.{name}": Sample(codec.STATE, state) for name, state in STATES.items()},
    **{f"op.state.{name}.timed": Sample(codec.STATE, state) for name, state in TIMED.items()},
    "op.meta": Sample(codec.META, META),
    "op.meta.retry": Sample(codec.META, replace(META, retry_of="op-0")),
    "op.meta.template": Sample(codec.META, replace(META, request=RequestInfo(kind="template", digest="d" * 32))),
    "op.meta.child": Sample(codec.META, CHILD_META),
    "op.config.bare": Sample(codec.CONFIG, OperationConfig(agent="coder")),
    "op.config.asked": Sample(
        codec.CONFIG,
        OperationConfig(
            agent="coder",
            models=(ModelIdentity(provider="p", name="new"),),
            asked=AskedModel(ANSWER, ModelIdentity(provider="p", name="old")),
        ),
    ),
    "op.config.full": Sample(
        codec.CONFIG,
        OperationConfig(
            agent="coder",
            models=(MODEL,),
            tools=("read",),
            settings={"temperature": 0.5},
            retry=RetryPolicy(attempts=1, base_ms=2, cap_ms=3),
            limits=Limits(max_restarts=1, max_replays=2, max_parallel=4, cancel_grace_ms=5, max_result_bytes=6),
        ),
    ),
    "op.config.run_limits": Sample(
        codec.CONFIG,
        OperationConfig(
            agent="coder",
            run_limits=RunLimits(
                max_turns=1,
                max_requests=2,
                max_tokens=3,
                max_cost_nanos=4,
                max_time_ms=5,
                max_identical_calls=6,
            ),
        ),
    ),
    "op.config.output": Sample(codec.CONFIG, OperationConfig(agent="coder", output_retries=2)),
    "lane.config.bare": Sample(codec.LANE_CONFIG, LaneConfig(agent="coder")),
    "lane.config.full": Sample(
        codec.LANE_CONFIG, LaneConfig(agent="coder", model=MODEL, tools=("read",), settings={"temperature": 0.5})
    ),
    "lane.config.fallbacks": Sample(
        codec.LANE_CONFIG, LaneConfig(agent="coder", model=MODEL, fallbacks=(ModelIdentity(provider="p", name="two"),))
    ),
    "lane.state.bare": Sample(codec.LANE_STATE, LaneState()),
    "lane.state.full": Sample(codec.LANE_STATE, LaneState(current="op-2", last="op-1")),
    "result.bare": Sample(codec.RESULT, RESULT),
    "result.full": Sample(
        codec.RESULT,
        OperationResult(
            operation_id="op-1",
            lane="main",
            agent="coder",
            kind="prompt",
            status="failed",
            request_digest="d" * 32,
            key_operation="op-0",
            inputs=(ENTRY, ANSWER),
            from_tip=ENTRY,
            to_tip=ANSWER,
            started_at=1000,
            ended_at=2000,
            turns=3,
            code="overloaded",
            error=ERROR,
            answer=ANSWER,
            text="half",
            usage=TOTALS,
        ),
    ),
    "result.output": Sample(codec.RESULT, replace(RESULT, output={"number": 20, "of": ["a", None, 0.5, True]})),
    "result.retry": Sample(codec.RESULT, replace(RESULT, retry_of="op-0")),
    "result.decided": Sample(codec.RESULT, replace(RESULT, decisions=(DECISION,))),
    "op.state.tools.asked": Sample(codec.STATE, ASKED_STATE),
    "op.state.tools.deferred": Sample(codec.STATE, DEFERRED_STATE),
    "op.args": Sample(codec.JSON, {"path": "b"}),
    "op.decision.bare": Sample(
        codec.DECISION,
        Decision(approval_id="a-1", call_id=ENTRY, tool="read", kind="replay", allow=False, digest="d" * 32, at=2000),
    ),
    "op.decision.full": Sample(codec.DECISION, DECISION),
    "op.decision.answered": Sample(codec.DECISION, replace(DECISION, kind="question", changed=False, expired=False)),
    "op.state.tools.questions": Sample(codec.STATE, QUESTIONS_STATE),
    "pending.approval.question": Sample(codec.APPROVAL, QUESTION),
    "pending.approval.bare": Sample(codec.APPROVAL, APPROVAL),
    "pending.approval.full": Sample(
        codec.APPROVAL,
        replace(
            APPROVAL,
            kind="replay",
            arguments={"path": "a"},
            progress=(TEXT, IMAGE),
            expires_at=3000,
        ),
    ),
    "frames": Sample(
        codec.FRAMES,
        (
            PartStart(index=0, kind="text"),
            PartDelta(index=0, text="he"),
            PartEnd(index=0, part=TEXT),
            PartStart(index=1, kind="tool_call", id="toolu_1", name="read"),
            PartEnd(index=1, part=CALL),
            UsageSeen(usage=USAGE),
        ),
    ),
    "progress": Sample(codec.PROGRESS, (TEXT, IMAGE)),
    "branch.tip": Sample(codec.OPTIONAL_TEXT, ANSWER),
    "branch.tip.empty": Sample(codec.OPTIONAL_TEXT, None),
    "usage.bare": Sample(Kind(UsageRow, "usage row"), UsageRow(id=ANSWER, kind="adjustment", usage=Usage())),
    "usage.full": Sample(
        Kind(UsageRow, "usage row"),
        UsageRow(
            id=ANSWER,
            kind="attempt",
            usage=USAGE,
            entry_id=ENTRY,
            operation_id="op-1",
            model="acme:large",
            note="n",
        ),
    ),
    "session.feature": Sample(features.MARK, features.FeatureMark(since="1.2.0")),
    **{name: Sample(*sample) for name, sample in INBOX_SAMPLES.items()},
    **{name: Sample(*sample) for name, sample in SUMMARY_SAMPLES.items()},
}
