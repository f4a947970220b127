"""Samples of what is stored of compactions and navigations; part of ``samples``."""

from __future__ import annotations

from typing import Any

from agentlane.data import codec
from agentlane.data.codec import Kind
from agentlane.data.entries import BranchSummary, Compaction, StandsFor
from agentlane.data.messages import ErrorInfo, ModelIdentity
from agentlane.data.operations import (
    Checkpoint,
    CompactionPolicy,
    Generating,
    Navigating,
    OperationConfig,
    OperationMeta,
    Planned,
    RetryWait,
    Summarizing,
    SummaryPrep,
    SummaryWait,
    Tools,
)
from agentlane.data.requests import Compact, Navigate, RequestInfo
from agentlane.data.results import OperationResult
from agentlane.data.usage import Usage, UsageRow

ENTRY = "0192f0c0-0000-7000-8000-000000010000"
ANSWER = "0192f0c0-0000-7000-8000-000000020000"
TASK = "0192f0c0-0000-7000-8000-000000030000"
MODEL = ModelIdentity(provider="acme", name="large")
STANDS_FOR = StandsFor(users=3, answers={"acme:large": 4}, answers_since={"acme:large": 1})
LONG = ErrorInfo(code="context_overflow", message="it is too long")
BUSY = ErrorInfo(code="overloaded", message="busy", retryable=True, retry_after_ms=20)

SUMMARY_SAMPLES: dict[str, tuple[Kind[Any], Any]] = {
    "entry.compaction.bare": (codec.BODY, Compaction(summary="So far.", kept_from=None, tokens_before=12)),
    "entry.compaction.full": (
        codec.BODY,
        Compaction(
            summary="So far.",
            kept_from=ENTRY,
            tokens_before=120_000,
            split=True,
            model=MODEL,
            stands_for=STANDS_FOR,
        ),
    ),
    "entry.branch_summary.bare": (codec.BODY, BranchSummary(summary="Elsewhere.", left=ENTRY)),
    "entry.branch_summary.full": (codec.BODY, BranchSummary(summary="Elsewhere.", left=ENTRY, model=MODEL)),
    "op.state.checkpoint.summarize": (codec.STATE, Checkpoint(next="summarize", trigger=ENTRY)),
    "op.state.checkpoint.overflow": (
        codec.STATE,
        Checkpoint(next="summarize", trigger=ANSWER, turn=2, answer=ENTRY, overflow=LONG, unsummarized=True),
    ),
    "op.state.checkpoint.compacted": (
        codec.STATE,
        Checkpoint(next="respond", trigger=ENTRY, turn=2, compacted=True, unsummarized=True),
    ),
    "op.state.checkpoint.end": (codec.STATE, Checkpoint(next="end", trigger=TASK)),
    "op.state.generating.compacted": (
        codec.STATE,
        Generating(response_id=ANSWER, attempt=1, turn=1, overflow=LONG, compacted=True, unsummarized=True),
    ),
    "op.state.retry_wait.compacted": (
        codec.STATE,
        RetryWait(attempt=2, not_before=3000, error=BUSY, turn=1, overflow=LONG, compacted=True, unsummarized=True),
    ),
    "op.state.tools.unsummarized": (codec.STATE, Tools(calls=(Planned(),), answer=ANSWER, unsummarized=True)),
    "op.state.summarizing.bare": (
        codec.STATE,
        Summarizing(task=TASK, reason="manual", response_id=ANSWER, attempt=1, trigger=ENTRY),
    ),
    "op.state.summarizing.full": (
        codec.STATE,
        Summarizing(
            task=TASK,
            reason="overflow",
            response_id=ANSWER,
            attempt=5,
            trigger=ENTRY,
            retries=1,
            restarts=2,
            shorter=3,
            model_index=1,
            turn=4,
            answer=ENTRY,
            cancel_requested_at=2000,
            time_ms=70,
            overflow=LONG,
            unsummarized=True,
        ),
    ),
    "op.state.summary_wait.bare": (
        codec.STATE,
        SummaryWait(task=TASK, reason="threshold", attempt=1, trigger=ENTRY, not_before=3000, error=BUSY),
    ),
    "op.state.summary_wait.full": (
        codec.STATE,
        SummaryWait(
            task=TASK,
            reason="navigation",
            attempt=5,
            trigger=ENTRY,
            not_before=3000,
            error=BUSY,
            retries=1,
            restarts=2,
            shorter=3,
            model_index=1,
            turn=4,
            answer=ENTRY,
            cancel_requested_at=2000,
            time_ms=70,
            overflow=LONG,
            unsummarized=True,
        ),
    ),
    "op.state.navigating.bare": (codec.STATE, Navigating(target=None)),
    "op.state.navigating.full": (
        codec.STATE,
        Navigating(target=ENTRY, label="tried", turn=1, answer=ANSWER, cancel_requested_at=2000, time_ms=70),
    ),
    "op.prep.bare": (codec.PREP, SummaryPrep(tip=ANSWER)),
    "op.prep.full": (
        codec.PREP,
        SummaryPrep(
            tip=ANSWER,
            kept_from=ENTRY,
            split=True,
            tokens_before=120_000,
            target=ENTRY,
            stands_for=STANDS_FOR,
            shown_tokens=30_000,
        ),
    ),
    "op.meta.compact": (
        codec.META,
        OperationMeta(
            lane="main",
            request=RequestInfo(kind="compact", digest="d" * 32),
            inputs=(),
            start_tip=ANSWER,
            started_at=1000,
            key_operation="op-1",
            compact=Compact(instructions="names above all", keep_tokens=500),
        ),
    ),
    "op.meta.navigate": (
        codec.META,
        OperationMeta(
            lane="main",
            request=RequestInfo(kind="navigate", digest="d" * 32),
            inputs=(),
            start_tip=ANSWER,
            started_at=1000,
            key_operation="op-1",
            navigate=Navigate(to=ENTRY, label="tried", summarize=True, instructions="what failed"),
            base=ENTRY,
        ),
    ),
    "op.config.compaction": (
        codec.CONFIG,
        OperationConfig(
            agent="coder",
            compaction=CompactionPolicy(
                context_tokens=100_000,
                reserve_tokens=1,
                keep_tokens=2,
                max_summary_tokens=3,
                instructions="names above all",
            ),
        ),
    ),
    "op.config.summary_model": (
        codec.CONFIG,
        OperationConfig(agent="coder", compaction=CompactionPolicy(model=ModelIdentity(provider="p", name="small"))),
    ),
    "op.config.no_compaction": (codec.CONFIG, OperationConfig(agent="coder", compaction=None)),
    "result.summary": (
        codec.RESULT,
        OperationResult(
            operation_id="op-1",
            lane="main",
            agent="coder",
            kind="compact",
            status="completed",
            request_digest="d" * 32,
            key_operation="op-1",
            inputs=(),
            from_tip=ANSWER,
            to_tip=TASK,
            started_at=1000,
            ended_at=2000,
            text="So far.",
            summary=TASK,
        ),
    ),
    "usage.summary": (
        Kind(UsageRow, "usage row"),
        UsageRow(
            id=ANSWER,
            kind="summary",
            usage=Usage(input_tokens=9, output_tokens=3),
            entry_id=TASK,
            operation_id="op-1",
            model="acme:large",
        ),
    ),
}
