"""The invariant of calls that are runs of other agents, and of those runs; part of ``invariants``.

I3   such a run is open only while its call waits for it; a call waits only for one that is open or has ended; an abort
     of the one is an abort of the other
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from agentlane.data.operations import OperationMeta, OperationState, Tools, WaitingChild
from agentlane.ids import call_id


def family_violations(
    metas: Mapping[str, OperationMeta], states: Mapping[str, OperationState], settled: Collection[str]
) -> Iterator[str]:
    """Everything that is wrong between the open operations ``metas``; ``settled`` are those that have a record."""
    waiting = {id: parent for parent, state in states.items() for id in _waits_for(state)}
    for id, meta in metas.items():
        call = meta.parent_call
        if call is None:
            continue
        if waiting.get(id) != call.operation_id:
            yield f"I3: operation {id} is open for a call of operation {call.operation_id}, which does not wait for it"
        parent = metas.get(call.operation_id)
        if parent is not None and parent.lane != call.lane:
            yield f"I3: operation {id} is open for a call on lane {call.lane}, and that is on lane {parent.lane}"
    for id, parent_id in waiting.items():
        child = metas.get(id)
        if child is None:
            if id not in settled:
                yield f"I3: call {id} of operation {parent_id} waits for a run that is neither open nor has ended"
        elif child.parent_call is None:
            yield f"I3: call {id} of operation {parent_id} waits for a run that is open for no call"
        elif _to_be_aborted(states, parent_id) and not _to_be_aborted(states, id):
            yield f"I3: operation {parent_id} is to be aborted, and the run {id} of its call is not"


def _waits_for(state: OperationState) -> Iterator[str]:
    if isinstance(state, Tools):
        for index, call in enumerate(state.calls):
            if isinstance(call, WaitingChild):
                yield call_id(state.answer, index)


def _to_be_aborted(states: Mapping[str, OperationState], id: str) -> bool:
    return id in states and states[id].cancel_requested_at is not None
