"""What transitions share: the rules they depend on, how long a failed request waits, and what a step may demand."""

from __future__ import annotations

from msgspec import Struct

from agentlane.data.messages import AssistantMessage, ErrorInfo
from agentlane.data.operations import (
    Checkpoint,
    Limits,
    OperationState,
    PlaceMode,
    RetryPolicy,
    Summarizing,
    SummaryWait,
)
from agentlane.machine.facts import IllegalStep

RETRY_AFTER_MAX_MS = 24 * 3600 * 1000


class Rules(Struct, frozen=True, gc=False):
    """The parts of the captured configuration that transitions depend on."""

    retry: RetryPolicy
    limits: Limits
    steering: PlaceMode = "all"
    follow_ups: PlaceMode = "one"


def backoff_ms(policy: RetryPolicy, failures_before: int, jitter: float, retry_after_ms: int | None) -> int:
    """How long to wait: ``base * 2**failures_before`` capped, of which half is left to chance; never below Retry-After.

    The scheme is "equal jitter": half of the exponential delay is fixed, the other half is multiplied by ``jitter``.
    """
    full = min(policy.cap_ms, policy.base_ms * (1 << min(failures_before, 30)))
    delay = full // 2 + int((full - full // 2) * jitter)
    if retry_after_ms is None:
        return delay
    return max(delay, min(max(retry_after_ms, 0), RETRY_AFTER_MAX_MS))


def turns_of(state: OperationState) -> int:
    """Turns that the model was asked for: one whose request was too long counts, also before it is asked again."""
    if isinstance(state, Checkpoint | Summarizing | SummaryWait) and state.overflow is not None:
        return state.turn + 1
    return state.turn


def error_of(message: AssistantMessage) -> ErrorInfo:
    """The error that an answer which is none ended in."""
    return message.error or ErrorInfo(code="model_error", message="the model's answer ended in an error")


def require(holds: bool, why: str, state: OperationState) -> None:
    """Raise ``IllegalStep`` unless it holds."""
    if not holds:
        raise IllegalStep(f"{why}: {state!r}")
