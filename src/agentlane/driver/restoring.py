"""Reads back what is open in a session: operations with the calls and questions they hold, and inboxes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agentlane.data import addresses, codec
from agentlane.data.messages import AssistantMessage
from agentlane.data.operations import Tools, WaitingApproval, WaitingQuestion
from agentlane.driver.inbox import Inbox, restored_inboxes
from agentlane.driver.open_operation import OpenOperation
from agentlane.errors import CorruptSession
from agentlane.ids import call_index
from agentlane.storage.contract import SessionStorage


async def read_open_operations(storage: SessionStorage, session_id: str) -> dict[str, OpenOperation]:
    """Operations that are not settled, by id, as they were left; ``CorruptSession`` if one is not whole."""
    metas = await storage.values(addresses.OP_META)
    configs = await storage.values(addresses.OP_CONFIG) if metas else {}
    states = await storage.values(addresses.OP_STATE) if metas else {}
    returned = await storage.values(addresses.OP_RETURNED) if metas else {}
    operations: dict[str, OpenOperation] = {}
    for id, meta in metas.items():
        if id not in configs or id not in states:
            raise CorruptSession(f"session {session_id!r}: operation {id} is not whole; config or state is missing")
        place = f"operation {id}"
        operations[id] = OpenOperation(
            id,
            codec.META.decode(meta, place),
            codec.CONFIG.decode(configs[id], place),
            codec.STATE.decode(states[id], place),
        )
        operations[id].restored = True
        if id in returned:
            operations[id].returned = codec.RETURNED.decode(returned[id], place)
    await _name_calls(storage, operations)
    await _find_approvals(storage, operations, session_id)
    return operations


async def _find_approvals(storage: SessionStorage, operations: Mapping[str, OpenOperation], session_id: str) -> None:
    """Read what waits for a person, so that it is listed, and answered, before anything drives."""
    states = [each.state for each in operations.values()]
    calls = [call for each in states if isinstance(each, Tools) for call in each.calls]
    if not any(isinstance(call, WaitingApproval | WaitingQuestion) for call in calls):
        return
    for id, payload in (await storage.values(addresses.PENDING_APPROVAL)).items():
        approval = codec.APPROVAL.decode(payload, f"approval {id}")
        operation = operations.get(approval.operation_id)
        index = None if operation is None else call_index(str(operation.state.answer), approval.call_id)
        if operation is None or index is None:
            raise CorruptSession(f"session {session_id!r}: approval {id} belongs to no call that is open")
        operation.pending[index] = approval


async def read_inboxes(storage: SessionStorage, lanes: Collection[str], session_id: str) -> dict[str, Inbox]:
    """What waits on lanes, by lane; ``CorruptSession`` if a lane is not among ``lanes``."""
    items = await storage.values(addresses.INBOX)
    if not items:
        return {}
    inboxes = restored_inboxes(items, await storage.values(addresses.PENDING_ENTRY))
    for name in inboxes:
        if name not in lanes:
            raise CorruptSession(f"session {session_id!r}: something waits on lane {name!r}, and there is no such lane")
    return inboxes


async def _name_calls(storage: SessionStorage, operations: Mapping[str, OpenOperation]) -> None:
    """Read the answers whose calls are under way, so that an inspection can name them before anything drives."""
    answers = {each.state.answer: each for each in operations.values() if isinstance(each.state, Tools)}
    for row in await storage.entries(list(answers)) if answers else ():
        if row is not None:
            body = codec.BODY.decode(row.payload, f"entry {row.id}")
            if isinstance(body, AssistantMessage):
                answers[row.id].take_answer(body)
