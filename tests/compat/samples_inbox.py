"""Samples of what is stored of a lane's inbox: queued items, receipts, what an abort gave back."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from agentlane.data import codec
from agentlane.data.entries import Custom
from agentlane.data.inbox import QueuedInput, QueuedItem, Receipt
from agentlane.data.messages import TextPart, UserMessage
from agentlane.data.operations import Checkpoint, OperationConfig
from agentlane.data.results import OperationResult

ENTRY = "0192f0c0-0000-7000-8000-000000020000"
SECOND = "0192f0c0-0000-7000-8000-000000020001"
SAID = UserMessage(content=(TextPart(text="wait"),))
RETURNED = (
    QueuedInput(id=ENTRY, kind="steer", content=(SAID,)),
    QueuedInput(id=SECOND, kind="write", content=(Custom(type="note"),), submitted=True, request_id="r-1"),
)

INBOX_SAMPLES: dict[str, tuple[codec.Kind[Any], Any]] = {
    "inbox.bare": (codec.QUEUED, QueuedItem(kind="steer", entries=(ENTRY,), order=1)),
    "inbox.full": (
        codec.QUEUED,
        QueuedItem(kind="follow_up", entries=(ENTRY, SECOND), order=7, submitted=True, request_id="r-1"),
    ),
    "inbox.next_run": (codec.QUEUED, QueuedItem(kind="next_run", entries=(ENTRY,), order=2)),
    "inbox.write": (codec.QUEUED, QueuedItem(kind="write", entries=(ENTRY,), order=3)),
    "receipt.bare": (
        codec.RECEIPT,
        Receipt(request_id="r-1", lane="main", kind="steer", entries=(ENTRY,), digest="d" * 32),
    ),
    "receipt.full": (
        codec.RECEIPT,
        Receipt(
            request_id="r-1",
            lane="main",
            kind="steer",
            entries=(ENTRY, SECOND),
            digest="d" * 32,
            submitted=True,
            state="taken",
            operation_id="op-1",
        ),
    ),
    "op.returned": (codec.RETURNED, RETURNED),
    "op.state.checkpoint.placed": (codec.STATE, Checkpoint(next="respond", trigger=ENTRY, turn=1, placed=True)),
    "op.state.checkpoint.more": (
        codec.STATE,
        Checkpoint(next="respond", trigger=ENTRY, turn=1, placed=True, more=True),
    ),
    "op.config.placing": (codec.CONFIG, OperationConfig(agent="coder", steering="one", follow_ups="all")),
    "result.returned": (
        codec.RESULT,
        OperationResult(
            operation_id="op-1",
            lane="main",
            agent="coder",
            kind="prompt",
            status="aborted",
            request_digest="d" * 32,
            key_operation="op-1",
            inputs=(ENTRY,),
            from_tip=None,
            to_tip=ENTRY,
            started_at=1000,
            ended_at=2000,
            returned=RETURNED,
            next_operation="op-2",
        ),
    ),
    **{
        f"receipt.{state}": (
            codec.RECEIPT,
            replace(
                Receipt(request_id="r-1", lane="main", kind="steer", entries=(ENTRY,), digest="d" * 32), state=state
            ),
        )
        for state in ("placed", "returned", "cancelled")
    },
}
