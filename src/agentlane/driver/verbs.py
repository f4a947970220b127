"""Accepting work on a lane, driving it, aborting it and configuring it; each a step of its line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from agentlane.agent import Agent
from agentlane.data import addresses, codec
from agentlane.data.messages import ModelIdentity, UserMessage
from agentlane.data.operations import (
    AskedModel,
    Checkpoint,
    Generating,
    LaneConfig,
    LaneState,
    OperationMeta,
    Summarizing,
)
from agentlane.data.reads import id_text
from agentlane.data.requests import (
    Compact,
    Navigate,
    Prompt,
    Request,
    RequestInfo,
    Skill,
    Template,
    checked_named,
    named_digest,
    prompt_messages,
    request_digest,
)
from agentlane.data.results import Admitted, OperationResult, Settled, Waiting
from agentlane.data.writes import SetValue, Write
from agentlane.driver import queueing
from agentlane.driver.amounts import check_input
from agentlane.driver.apart import Aside, checked, look_aside, opening
from agentlane.driver.apart import request_digest as apart_digest
from agentlane.driver.appending import repair
from agentlane.driver.children import refuse_child
from agentlane.driver.draft import PathDraft, opening_writes
from agentlane.driver.drive import Pass
from agentlane.driver.effects import waiting_on
from agentlane.driver.inbox import WaitingItem
from agentlane.driver.lane_core import LaneCore
from agentlane.driver.line import Decision, Done
from agentlane.driver.open_operation import OpenOperation
from agentlane.driver.queueing import Again
from agentlane.driver.reserved import check_free_id, check_no_open_call
from agentlane.errors import (
    AgentLaneError,
    InvalidMessage,
    LaneBusy,
    NoActiveOperation,
    OperationMismatch,
    RequestConflict,
    UnknownOperation,
)
from agentlane.ids import derive
from agentlane.names import check_name
from agentlane.storage.contract import Commit

T = TypeVar("T")
PROMPT_MESSAGES_MAX = 10_000


class Prepared(NamedTuple):
    """A request to ``lane``, as it was named then, checked and encoded before any line is entered."""

    lane: str
    kind: str
    digest: str
    sealed: tuple[tuple[bytes, UserMessage], ...]
    refused: AgentLaneError | None = None
    """Why nothing can be made of it here and now; a request that was accepted once is still the same."""
    apart: Compact | Navigate | None = None
    """The request itself, if it is for no run."""

    @property
    def size_bytes(self) -> int:
        """What its messages have together, as they are stored."""
        return sum(len(payload) for payload, _ in self.sealed)


async def stored_result(lane: LaneCore, operation_id: str) -> OperationResult | None:
    """The terminal record of an operation, if it has one."""
    payload = await lane.runtime.storage.value(addresses.result(operation_id))
    return None if payload is None else codec.RESULT.decode(payload, f"result {operation_id}")


async def accept(
    lane: LaneCore,
    agent: Agent[Any, Any],
    request: Request,
    operation_id: str | None,
    deps: Any | UnsetType = UNSET,
) -> Admitted:
    """Commit a request as the lane's open operation. See ``AgentLane.accept``."""
    runtime = lane.runtime
    lane.check_writable()
    prepared = prepare(lane, request, agent)
    id = runtime.ids.new() if operation_id is None else check_name(operation_id, "operation id")
    await lane.load()
    inside = lane.idle.inside()
    while True:
        if prepared.lane != lane.name:
            prepared = prepare(lane, request, agent)
        settled_count = runtime.settled_count
        if operation_id is not None and (record := await stored_result(lane, id)) is not None:
            return _same_request(record.lane, record.request_digest, record.inputs, id, prepared, lane)
        if operation_id is not None:
            await check_free_id(lane, id)
        aside = await look_aside(lane, prepared.apart) if isinstance(prepared.apart, Navigate) else None
        await lane.idle.admission(inside=inside)
        outcome = await lane.line.run(
            lambda given=prepared, count=settled_count, aside=aside: (  # type: ignore[misc]
                Done(Again())
                if lane.idle.holds(inside=inside)
                else decide_accept(lane, agent, id, given, count, deps, aside=aside)
            )
        )
        if isinstance(outcome, Admitted):
            return outcome


def prepare(lane: LaneCore, request: Request, agent: Agent[Any, Any] | None = None) -> Prepared:
    """A request's messages, checked and encoded; raises ``InvalidMessage``, ``PayloadTooLarge``.

    Skills and templates are those of ``agent``; without one only a prompt is taken.
    """
    if isinstance(request, Compact | Navigate):
        clean = checked(request)
        kind = "compact" if isinstance(clean, Compact) else "navigate"
        return Prepared(lane.name, kind, apart_digest(lane.name, clean), (), apart=clean)
    if agent is not None and isinstance(request, Skill | Template):
        return _expanded(lane, agent, checked_named(request))
    messages = prompt_messages(request)
    if len(messages) > PROMPT_MESSAGES_MAX:
        raise InvalidMessage(f"prompt: {len(messages)} messages; at most {PROMPT_MESSAGES_MAX} are taken at once")
    sealed: list[tuple[bytes, UserMessage]] = []
    for index, message in enumerate(messages):
        payload, copy = codec.BODY.seal(message, f"prompt.messages[{index}]")
        if isinstance(copy, UserMessage):
            sealed.append((payload, copy))
    check_input([payload for payload, _ in sealed], "prompt")
    return Prepared(lane.name, "prompt", request_digest(lane.name, messages), tuple(sealed))


def _expanded(lane: LaneCore, agent: Agent[Any, Any], request: Skill | Template) -> Prepared:
    """A request for a skill or a template; its digest is of what was asked for, not of what it became."""
    kind = "skill" if isinstance(request, Skill) else "template"
    digest = named_digest(lane.name, request)
    try:
        prompt = Prompt(messages=(agent.expand(request),))
        return prepare(lane, prompt)._replace(kind=kind, digest=digest)
    except AgentLaneError as refused:
        return Prepared(lane.name, kind, digest, (), refused)


def decide_accept(
    lane: LaneCore,
    agent: Agent[Any, Any],
    id: str,
    prepared: Prepared,
    settled_count: int,
    deps: Any | UnsetType,
    also: Callable[[tuple[str, ...]], Sequence[Write]] | None = None,
    aside: Aside | None = None,
) -> Decision[Admitted | Again] | Done[Admitted | Again]:
    """The commit that opens an operation; ``also`` gives what is written with it, for the ids of its input.

    Where more waits than one commit holds, a commit that places the first of it: look again after that. ``aside`` is
    what was read for a navigation.
    """
    known = _look(lane, id, prepared, settled_count, deps)
    if known is not None:
        return known
    if lane.config is None or lane.state is None:
        raise UnknownOperation(f"branch {lane.name!r} is not a lane; open it with session.lane(name, agent)")
    if prepared.refused is not None:
        raise prepared.refused
    config = lane.config if lane.config.agent == agent.name else LaneConfig(agent=agent.name)
    captured: Sequence[WaitingItem] = ()
    if prepared.apart is not None:
        if aside is not None and aside.tip != lane.tip:
            return Done(Again())
        operation, draft = opening(lane, agent, config, id, prepared.apart, prepared.digest, aside)
    else:
        draft = PathDraft(lane.name, lane.tip)
        repair(lane, draft)
        if not queueing.fits_before_prompt(lane, draft, prepared.size_bytes):
            return queueing.place_part(lane, draft)
        captured = queueing.place_before_prompt(lane, draft, id)
        operation = _run_of(lane, agent, config, id, prepared, draft)
    draft.seal_tip()
    inputs = operation.meta.inputs
    operation.take_deps(deps)
    writes: list[Write] = [
        *draft.writes,
        *opening_writes(operation),
        SetValue(addresses.lane_state(lane.name), codec.encode(LaneState(current=id, last=lane.state.last))),
    ]
    if config is not lane.config:
        writes.append(SetValue(addresses.lane_config(lane.name), codec.encode(config)))
    if also is not None:
        writes.extend(also(inputs))
    lane.runtime.open_operations[id] = lane.name

    def publish(commit: Commit) -> Admitted | Again:
        lane.config = config
        lane.inbox.remove(captured)
        lane.begin(operation)
        lane.take_path(draft)
        return Admitted(operation_id=id, lane=lane.name, inputs=inputs)

    return Decision(writes, "accept", publish, lambda: _forget(lane, id))


def _look(
    lane: LaneCore, id: str, prepared: Prepared, settled_count: int, deps: Any | UnsetType
) -> Done[Admitted | Again] | None:
    """What is known of a request already, and whether it has to be looked at again; raises where it can't be opened."""
    runtime = lane.runtime
    if prepared.lane != lane.name:
        return Done(Again())
    current = lane.operation
    if current is not None and current.id == id:
        meta = current.meta
        admitted = _same_request(meta.lane, meta.request.digest, meta.inputs, id, prepared, lane)
        current.take_deps(deps)
        return Done(admitted)
    if id in runtime.open_operations:
        raise RequestConflict(
            f"operation id {id!r} is open on lane {runtime.open_operations[id]!r}; an id names one request on one lane"
        )
    if runtime.settled_count != settled_count:
        return Done(Again())
    check_no_open_call(lane, id)
    if current is not None:
        raise LaneBusy(
            f"lane {lane.name!r} has the open operation {current.id}; drive or abort it first", operation_id=current.id
        )
    return None


def _run_of(
    lane: LaneCore, agent: Agent[Any, Any], config: LaneConfig, id: str, prepared: Prepared, draft: PathDraft
) -> OpenOperation:
    """The operation of a prompt, which is placed."""
    base = lane.runtime.ids.new()
    inputs = tuple(derive(base, index) for index in range(len(prepared.sealed)))
    for entry_id, (payload, message) in zip(inputs, prepared.sealed, strict=True):
        draft.place(entry_id, message, payload)
    meta = OperationMeta(
        lane=lane.name,
        request=RequestInfo(kind=prepared.kind, digest=prepared.digest),
        inputs=inputs,
        start_tip=lane.tip,
        started_at=lane.runtime.clock.now_ms(),
        key_operation=id,
    )
    return OpenOperation(id, meta, agent.resolve(config), Checkpoint(next="respond", trigger=inputs[-1]))


def _forget(lane: LaneCore, id: str) -> None:
    lane.runtime.open_operations.pop(id, None)


def _same_request(
    lane_name: str, digest: str, inputs: tuple[str, ...], id: str, prepared: Prepared, lane: LaneCore
) -> Admitted:
    if lane_name != lane.name or digest != prepared.digest:
        raise RequestConflict(
            f"operation id {id!r} was used for another request (on lane {lane_name!r}); use a new id", operation_id=id
        )
    return Admitted(operation_id=id, lane=lane_name, inputs=inputs)


async def drive(
    lane: LaneCore,
    agent: Agent[Any, Any],
    operation_id: str | None,
    *,
    wait_for_retry: bool,
    wait_for_answers: bool,
    deps: Any | UnsetType = UNSET,
) -> Settled | Waiting:
    """Advance the open operation until it settles or must wait. See ``AgentLane.drive``."""
    lane.check_writable()
    if operation_id is not None:
        operation_id = operation_id_of(lane, operation_id)
    while True:
        lane.check_writable()
        current = lane.operation
        if operation_id is not None and (current is None or current.id != operation_id):
            record = await settled_or_raise(lane, operation_id)
            if record is None:
                continue
            return Settled(record)
        if current is None:
            raise NoActiveOperation(f"lane {lane.name!r} has no open operation; accept one first")
        with waiting_on(lane):
            refuse_child(lane)
            await lane.load()
            if lane.operation is not current:
                operation_id = current.id
                continue
            current.take_deps(deps)
            running = lane.running
            if isinstance(running, Pass) and running.stopping:
                await running.ended()
                continue
            if not isinstance(running, Pass):
                lane.check_writable()
                running = Pass(lane, current, agent)
                running.start()
            return await running.observe(wait_for_retry=wait_for_retry, wait_for_answers=wait_for_answers)


def operation_id_of(lane: LaneCore, operation_id: object) -> str:
    """An id to look for; what no operation can have for its id is unknown on every backend. # I14"""
    text = id_text(operation_id)
    if text is None:
        raise UnknownOperation(f"no operation {operation_id!r} is known to lane {lane.name!r}")
    return text


async def settled_or_raise(lane: LaneCore, operation_id: str) -> OperationResult | None:
    """The record of an operation that is not open here; None if it was accepted while its record was looked for."""
    record = await stored_result(lane, operation_id)
    if record is not None:
        if record.lane != lane.name:
            raise OperationMismatch(f"operation {operation_id} belongs to lane {record.lane!r}, not {lane.name!r}")
        return record
    current = lane.operation
    if current is not None and current.id == operation_id:
        return None
    _refuse_elsewhere(lane, operation_id)
    if current is not None:
        raise OperationMismatch(f"lane {lane.name!r} has operation {current.id} open; {operation_id} is not known")
    raise UnknownOperation(f"no operation {operation_id} is known to lane {lane.name!r}")


def _refuse_elsewhere(lane: LaneCore, operation_id: str) -> None:
    elsewhere = lane.runtime.open_operations.get(operation_id)
    if elsewhere is not None and elsewhere != lane.name:
        raise OperationMismatch(f"operation {operation_id} is open on lane {elsewhere!r}, not {lane.name!r}")


async def result(lane: LaneCore, operation_id: str) -> OperationResult | None:
    """The terminal record; None while the operation is open here. ``OperationMismatch``, ``UnknownOperation``."""
    operation_id = operation_id_of(lane, operation_id)
    current = lane.operation
    if current is not None and current.id == operation_id:
        return None
    record = await stored_result(lane, operation_id)
    if record is None:
        if lane.operation is not None and lane.operation.id == operation_id:
            return None
        _refuse_elsewhere(lane, operation_id)
        raise UnknownOperation(f"no operation {operation_id} is known to lane {lane.name!r}")
    return record


async def configure(
    lane: LaneCore,
    agent: Agent[Any, Any],
    *,
    models: tuple[ModelIdentity, ...] | None,
    tools: tuple[str, ...] | None,
    settings: dict[str, Any] | None,
) -> None:
    """Set parts of the lane's configuration, and of its open operation's from its next step on."""
    lane.check_writable()

    def decide() -> Decision[None]:
        if lane.config is None:
            raise UnknownOperation(f"branch {lane.name!r} is not a lane; open it with session.lane(name, agent)")
        old = lane.config if lane.config.agent == agent.name else LaneConfig(agent=agent.name)
        operation = lane.operation
        if operation is not None and operation.config.agent != agent.name:
            raise LaneBusy(
                f"lane {lane.name!r} has operation {operation.id} of agent {operation.config.agent!r} open; configure "
                f"it with that agent, or configure {agent.name!r} when it has settled",
                operation_id=operation.id,
            )
        config = LaneConfig(
            agent=agent.name,
            model=old.model if models is None else models[0],
            fallbacks=old.fallbacks if models is None else models[1:],
            tools=old.tools if tools is None else tools,
            settings=old.settings if settings is None else settings,
        )
        writes: list[Write] = [SetValue(addresses.lane_config(lane.name), codec.encode(config))]
        resolved = agent.resolve(config)
        if operation is not None:  # its retry policy and limits stay what they were when it was accepted
            captured = operation.config
            resolved = replace(
                captured,
                models=resolved.models,
                tools=resolved.tools,
                settings=resolved.settings,
                asked=_asked(operation),
            )
            writes.append(SetValue(addresses.op_config(operation.id), codec.encode(resolved)))

        def publish(commit: Commit) -> None:
            lane.config = config
            if operation is not None:
                operation.configure(resolved)
            lane.poke()

        return Decision(writes, "configure", publish)

    await lane.line.run(decide)


def _asked(operation: OpenOperation) -> AskedModel | UnsetType:
    """The request that is under way stays one to the model that it went to, also if a later process has to say so."""
    state = operation.state
    if not isinstance(state, Generating | Summarizing):
        return UNSET
    model = operation.config.model_of(state)
    return UNSET if model is None else AskedModel(state.response_id, model)


def check_waitable(lane: LaneCore) -> None:
    """Raise ``WouldDeadlock`` if waiting for the lane's pass from here would wait for itself."""
    with waiting_on(lane):
        refuse_child(lane)
