"""Short ways to write states, messages and rules of the machine."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from agentlane.data.messages import (
    AssistantMessage,
    ErrorInfo,
    StopReason,
    TextPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)
from agentlane.data.operations import CallState, Limits, OperationState, RetryPolicy, Tools
from agentlane.machine.facts import Fact, Outcome, Step
from agentlane.machine.rules import Rules

ANSWER = "0000aaaa-0000-7000-8000-000000010000"
"""The id of an answer; its calls' ids are derived from it."""

LATER = "0000aaaa-0000-7000-8000-000000020000"
OVERLOADED = ErrorInfo(code="overloaded", message="try later", retryable=True)
REFUSED = ErrorInfo(code="refused", message="no")
GONE = ErrorInfo(code="model_unavailable", message="not here")
CORRECTION = UserMessage(content=(TextPart(text="not that"),))
INVALID = ErrorInfo(code="invalid_output", message="not that")
LIMIT = ErrorInfo(code="limit_reached", message="max_turns: enough")


class Row(NamedTuple):
    """A state, a fact that comes to it, and the step that is expected."""

    name: str
    state: OperationState
    fact: Fact
    expected: Step


_State = TypeVar("_State", bound=OperationState)


def cancelled(state: _State) -> _State:
    """The same once an abort is asked for."""
    return replace(state, cancel_requested_at=77)


def rules(
    *,
    attempts: int = 3,
    base_ms: int = 500,
    cap_ms: int = 30_000,
    max_restarts: int = 3,
    max_replays: int = 3,
    max_parallel: int = 8,
) -> Rules:
    return Rules(
        RetryPolicy(attempts=attempts, base_ms=base_ms, cap_ms=cap_ms),
        Limits(max_restarts=max_restarts, max_replays=max_replays, max_parallel=max_parallel),
    )


def call(index: int, name: str = "tool") -> ToolCallPart:
    return ToolCallPart(id=f"c{index}", name=name, arguments={})


def answer(
    calls: int = 0, *, stop_reason: StopReason = "stop", text: str = "", error: ErrorInfo | None = None
) -> AssistantMessage:
    said = (TextPart(text=text),) if text else ()
    return AssistantMessage(content=(*said, *map(call, range(calls))), stop_reason=stop_reason, error=error)


def result(index: int, text: str = "fine") -> ToolResultMessage:
    return ToolResultMessage(call_id=f"c{index}", name="tool", content=(TextPart(text=text),))


def outcome(index: int, text: str = "fine", *, terminate: bool = False) -> Outcome:
    return Outcome(index, result(index, text), terminate)


def tools(*calls: CallState, turn: int = 1, cancelled_at: int | None = None) -> Tools:
    return Tools(calls=calls, answer=ANSWER, turn=turn, cancel_requested_at=cancelled_at)
