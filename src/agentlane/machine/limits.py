"""Which limit of an operation is reached, told from what it has spent. Pure."""

from __future__ import annotations

from msgspec import Struct

from agentlane.data.messages import ErrorInfo
from agentlane.data.operations import RunLimits


class Spent(Struct, frozen=True, gc=False, kw_only=True):
    """What an operation has used up when it is about to ask the model.

    ``turns`` is None where the turn that it is in goes on. What is not known of tokens and cost counts as nothing.
    ``calls`` is how often the call was asked for that was asked for most, ``tool`` the tool of it.
    """

    turns: int | None
    requests: int
    tokens: int
    cost_nanos: int
    time_ms: int
    calls: int = 0
    tool: str = ""


def limit_reached(limits: RunLimits, spent: Spent) -> ErrorInfo | None:
    """The first limit that leaves no room for another request; None if there is room."""
    counts: tuple[tuple[str, int | None, int | None, str], ...] = (
        ("max_turns", limits.max_turns, spent.turns, "turns were taken"),
        ("max_requests", limits.max_requests, spent.requests, "requests were made"),
        ("max_tokens", limits.max_tokens, spent.tokens, "tokens are known to be used"),
        ("max_cost_nanos", limits.max_cost_nanos, spent.cost_nanos, "billionths are known to be charged"),
        ("max_time_ms", limits.max_time_ms, spent.time_ms, "ms were spent in passes"),
    )
    for name, bound, value, what in counts:
        if bound is not None and value is not None and value >= bound:
            return _error(name, value, bound, what)
    bound = limits.max_identical_calls
    if bound is not None and spent.calls > bound:
        return _error("max_identical_calls", spent.calls, bound, f"calls of {spent.tool!r} had the same arguments")
    return None


def repeated(tool: str, bound: int) -> str:
    """What the model is told of a call beyond ``max_identical_calls``."""
    times = "once" if bound == 1 else f"{bound} times"
    return (
        f"The tool {tool!r} was called with the same arguments {times} already, which is as often as this run "
        "may. This call was not run."
    )


def _error(name: str, value: int, bound: int, what: str) -> ErrorInfo:
    return ErrorInfo(code="limit_reached", message=f"{name}: {value} {what}; the limit is {bound}")
