"""Playing on a real lane the steps that have something summarized."""

from __future__ import annotations

from typing import Any

from agentlane import AgentLane, InvalidNavigation, NavigateResult, OperationResult
from agentlane import Compact as CompactRequest
from agentlane import Navigate as NavigateRequest
from tests.stateful.shapes import Names
from tests.stateful.summing import UNIT, Compact, Leave


async def summarize(lane: AgentLane[Any, Any], action: Compact | Leave, names: Names) -> Any:
    """The operation's record, or that it was admitted."""
    if isinstance(action, Compact):
        keep = None if action.keep is None else action.keep * UNIT
        if action.driven:
            return await lane.compact(keep_tokens=keep)
        admitted = await lane.accept(CompactRequest(keep_tokens=keep))
    else:
        to = names.entry(action.to)
        if action.driven:
            return await _navigate(lane, to, action.label)
        admitted = await lane.accept(NavigateRequest(to, action.label, summarize=True))
    return ("admitted", admitted.inputs)


async def _navigate(lane: AgentLane[Any, Any], to: str | None, label: str | None) -> OperationResult:
    try:
        moved = await lane.navigate(to, label=label, summarize=True)
    except InvalidNavigation as error:
        if error.details.get("operation_id") is None:
            raise
        record = await lane.result(error.details["operation_id"])
        assert record is not None and record.status != "completed"
        return record
    done = lane.inspect().last_operation_id
    record = None if done is None else await lane.result(done)
    assert record is not None
    assert moved == NavigateResult(from_tip=record.from_tip, tip=record.to_tip, summary=record.summary)
    return record
