"""Trying a settled operation again: a new operation with the old input, at the place where the old one ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.digests import digest
from agentlane.data.entries import Entry
from agentlane.data.messages import AssistantMessage
from agentlane.data.operations import Checkpoint, LaneConfig, LaneState, OperationMeta
from agentlane.data.requests import RequestInfo
from agentlane.data.results import Admitted, OperationResult
from agentlane.data.writes import SetValue, Write
from agentlane.driver import verbs
from agentlane.driver.bounded_path import read_path
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.reserved import check_free_id, check_no_open_call
from agentlane.errors import LaneBusy, OperationMismatch, RequestConflict, UnknownOperation
from agentlane.machine.context import ModelContext
from agentlane.names import check_name
from agentlane.storage.contract import Commit


async def retry(
    lane: LaneCore,
    agent: Agent[Any, Any],
    settled_id: str,
    operation_id: str | None,
    deps: Any | UnsetType = UNSET,
    *,
    same_keys: bool,
) -> Admitted:
    """Open an operation that goes on where a settled one ended. See ``AgentLane.retry``."""
    runtime = lane.runtime
    lane.check_writable()
    settled_id = verbs.operation_id_of(lane, settled_id)
    id = runtime.ids.new() if operation_id is None else check_name(operation_id, "operation id")
    await lane.load()
    inside = lane.idle.inside()
    while True:
        lane.check_writable()
        digest = _digest(lane.name, settled_id, same_keys=same_keys)
        settled_count = runtime.settled_count
        if operation_id is not None and (record := await verbs.stored_result(lane, id)) is not None:
            return _same(record.lane, record.request_digest, record.inputs, id, lane, digest)
        current = lane.operation
        if current is not None and current.id == id:
            admitted = _same(lane.name, current.meta.request.digest, current.meta.inputs, id, lane, digest)
            current.take_deps(deps)
            return admitted
        if operation_id is not None:
            await check_free_id(lane, id)
        old = await verbs.result(lane, settled_id)
        if old is None:
            raise LaneBusy(
                f"operation {settled_id} is open; drive it, there is nothing to retry", operation_id=settled_id
            )
        _check_retryable(lane, old)
        path = await read_path(runtime.storage, old.to_tip, since=old.inputs[0])
        await lane.idle.admission(inside=inside)
        opened = await lane.line.run(
            lambda count=settled_count, given=digest, old=old, path=path: _decide(  # type: ignore[misc]
                lane, agent, id, given, old, path, count, deps, inside=inside, same_keys=same_keys
            )
        )
        if opened is not None:
            return opened


def _decide(
    lane: LaneCore,
    agent: Agent[Any, Any],
    id: str,
    digest: str,
    old: OperationResult,
    path: Sequence[Entry],
    settled_count: int,
    deps: Any | UnsetType,
    *,
    inside: bool,
    same_keys: bool,
) -> Decision[Admitted | None] | Done[Admitted | None]:
    runtime = lane.runtime
    current = lane.operation
    looked_too_soon = runtime.settled_count != settled_count or (current is not None and current.id == id)
    if looked_too_soon or lane.idle.holds(inside=inside):
        return Done(None)
    if id in runtime.open_operations:
        raise RequestConflict(
            f"operation id {id!r} is open on lane {runtime.open_operations[id]!r}; an id names one request on one lane"
        )
    check_no_open_call(lane, id)
    if current is not None:
        raise LaneBusy(
            f"lane {lane.name!r} has the open operation {current.id}; drive or abort it first", operation_id=current.id
        )
    _check_tip(lane, old)
    if lane.config is None or lane.state is None:
        raise UnknownOperation(f"branch {lane.name!r} is not a lane; open it with session.lane(name, agent)")
    config = lane.config if lane.config.agent == agent.name else LaneConfig(agent=agent.name)
    meta = OperationMeta(
        lane=lane.name,
        request=RequestInfo(kind=old.kind, digest=digest),
        inputs=old.inputs,
        start_tip=lane.tip,
        started_at=runtime.clock.now_ms(),
        key_operation=old.key_operation if same_keys else id,
        retry_of=old.operation_id,
    )
    operation = OpenOperation(id, meta, agent.resolve(config), _first_state(old, path))
    operation.take_deps(deps)
    for entry in path:
        if isinstance(entry.body, AssistantMessage):
            operation.take_answer(entry.body)
    writes: list[Write] = [
        SetValue(addresses.op_meta(id), codec.encode(meta)),
        SetValue(addresses.op_config(id), codec.encode(operation.config)),
        SetValue(addresses.op_state(id), codec.encode(operation.state)),
        SetValue(addresses.lane_state(lane.name), codec.encode(LaneState(current=id, last=lane.state.last))),
    ]
    if config is not lane.config:
        writes.append(SetValue(addresses.lane_config(lane.name), codec.encode(config)))
    runtime.open_operations[id] = lane.name

    def publish(commit: Commit) -> Admitted | None:
        lane.config = config
        lane.begin(operation)
        lane.begin_again(path)
        return Admitted(operation_id=id, lane=lane.name, inputs=meta.inputs)

    def refused() -> None:
        runtime.open_operations.pop(id, None)

    return Decision(writes, "retry", publish, refused)


def _first_state(old: OperationResult, path: Sequence[Entry]) -> Checkpoint:
    """Where it goes on: the model is asked, unless the path ends with a whole answer (an abort came behind it). What
    applications have put behind that asks nothing, whatever the model is shown of it."""
    context = ModelContext()
    for entry in path:
        context.add(entry.id, entry.body)
    shown = context.view()
    last = shown[-1] if shown else None
    if isinstance(last, AssistantMessage) and not last.calls:
        for entry in reversed(path):
            body = entry.body
            if isinstance(body, AssistantMessage) and body.stop_reason not in ("error", "aborted"):
                code = "length" if body.stop_reason == "length" else None
                return Checkpoint(next="finish", trigger=entry.id, code=code, answer=entry.id)
    return Checkpoint(next="respond", trigger=old.inputs[-1])


def _check_retryable(lane: LaneCore, old: OperationResult) -> None:
    if old.lane != lane.name:
        raise OperationMismatch(f"operation {old.operation_id} belongs to lane {old.lane!r}, not {lane.name!r}")
    if old.status == "completed" or not old.inputs:
        way_out = {"compact": "ask for another one with lane.compact()", "navigate": "ask for it anew"}.get(
            old.kind, "accept a new prompt, or go back with lane.rewind(before=...)"
        )
        raise RequestConflict(
            f"operation {old.operation_id} is {old.status}: there is nothing of it to try again; {way_out}",
            operation_id=old.operation_id,
        )
    _check_tip(lane, old)


def _check_tip(lane: LaneCore, old: OperationResult) -> None:
    if lane.tip != old.to_tip:
        raise OperationMismatch(
            f"lane {lane.name!r} is at {lane.tip}, and operation {old.operation_id} ended at {old.to_tip}; what came "
            "since would be left out: accept a new prompt, or navigate back first",
            operation_id=old.operation_id,
        )


def _same(lane_name: str, found: str, inputs: tuple[str, ...], id: str, lane: LaneCore, digest: str) -> Admitted:
    if lane_name != lane.name or found != digest:
        raise RequestConflict(
            f"operation id {id!r} was used for another request (on lane {lane_name!r}); use a new id", operation_id=id
        )
    return Admitted(operation_id=id, lane=lane_name, inputs=inputs)


def _digest(lane: str, settled_id: str, *, same_keys: bool) -> str:
    text = f"{lane}|retry|{settled_id}|{'same keys' if same_keys else ''}"
    return digest(text.encode())
