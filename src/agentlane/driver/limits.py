"""The limits of one operation in one pass: what it has spent, the calls it may not repeat, and the time that counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from agentlane.data.messages import ErrorInfo, ToolCallPart
from agentlane.data.operations import Checkpoint, RunLimits
from agentlane.data.usage import Usage
from agentlane.driver.draft import OperationDraft
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.views import ResolvedCall
from agentlane.machine.limits import Spent, limit_reached, repeated


class LimitWatch:
    """Made with the pass; time counts from then on, and what earlier passes have committed of it."""

    def __init__(self, lane: LaneCore, operation: OpenOperation, limits: RunLimits) -> None:
        self._lane = lane
        self._limits = limits
        self._began_at = lane.runtime.clock.now_ms()
        self._before_ms = operation.state.time_ms
        self._counted = lane.earlier_batches
        self._counts: Counter[tuple[str, str]] = Counter()
        """Calls of answers that have their results; those of the answer in hand are counted anew each time."""

    def reached(self, draft: OperationDraft, interrupted: Usage | None = None) -> ErrorInfo | None:
        """The limit that is reached; ``interrupted`` is the usage of a request that is about to be settled."""
        usage = draft.usage
        requests, tokens, cost = usage.rows, usage.input_tokens + usage.output_tokens, usage.cost_nanos
        if interrupted is not None:
            requests += 1
            tokens += (interrupted.input_tokens or 0) + (interrupted.output_tokens or 0)
            cost += interrupted.cost_nanos or 0
        (tool, _), calls = self._most_asked_for(draft)
        spent = Spent(
            turns=draft.state.turn if isinstance(draft.state, Checkpoint) else None,
            requests=requests,
            tokens=tokens,
            cost_nanos=cost,
            time_ms=self._time_ms(draft.now),
            calls=calls,
            tool=tool,
        )
        return limit_reached(self._limits, spent)

    def refuse(self, draft: OperationDraft, resolved: list[ResolvedCall]) -> list[ResolvedCall]:
        """The calls of the batch, those beyond ``max_identical_calls`` with a problem."""
        bound = self._limits.max_identical_calls
        if bound is None:
            return resolved
        counts = self._earlier(draft.state.answer).copy()
        found = list(resolved)
        for index, call in enumerate(draft.calls):
            key = _key(call)
            counts[key] += 1
            if counts[key] > bound:
                view = found[index].view
                found[index] = ResolvedCall(replace(view, problem=repeated(call.name, bound)))
        return found

    def stamp(self, draft: OperationDraft) -> None:
        """Put the time that counts into the state that is about to be committed."""
        if self._limits.max_time_ms is not None and not draft.empty and draft.result is None:
            draft.state = replace(draft.state, time_ms=self._time_ms(draft.now))

    def sleep_until(self, at: int) -> int:
        """``at``, or when the time is used up if that is sooner."""
        if self._limits.max_time_ms is None:
            return at
        now = self._lane.runtime.clock.now_ms()
        return min(at, now + max(0, self._limits.max_time_ms - self._time_ms(now)))

    def _time_ms(self, now: int) -> int:
        return self._before_ms + max(0, now - self._began_at)

    def _earlier(self, answer: str | None) -> Counter[tuple[str, str]]:
        """How often each call was asked for before ``answer``."""
        for id, calls in self._lane.batches(self._counted):
            if id == answer:
                break
            self._counts.update(map(_key, calls))
            self._counted += 1
        return self._counts

    def _most_asked_for(self, draft: OperationDraft) -> tuple[tuple[str, str], int]:
        if self._limits.max_identical_calls is None:
            return ("", ""), 0
        counts = self._earlier(draft.state.answer)
        last: Sequence[ToolCallPart] = () if draft.cut or draft.state.answer is None else draft.calls
        here = Counter(map(_key, last))
        most = max(here, key=lambda key: counts[key] + here[key], default=("", ""))
        return most, counts[most] + here[most]


def _key(call: ToolCallPart) -> tuple[str, str]:
    """The same for calls of one tool with the same arguments, in canonical JSON or as the text that did not parse."""
    if call.arguments is None:
        return call.name, f"text {call.arguments_text}"
    return call.name, json.dumps(call.arguments, sort_keys=True, separators=(",", ":"))
