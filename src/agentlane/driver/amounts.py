"""How much of what tools returned one commit holds: large outcomes are taken, and placed, in several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agentlane.data.operations import OutcomeReady, Placed, Tools
from agentlane.data.writes import InsertEntry, SetValue
from agentlane.driver.draft import OperationDraft
from agentlane.driver.tool_results import Sealed

COMMIT_BYTES = 32 << 20
"""From here on what else there is waits for the next commit. With one result more (``tool_results.RESULT_BYTES_MAX``)
it is below what any store takes in one: results that each can be kept must not be lost because they came together."""

NONE: Mapping[int, Sealed] = MappingProxyType({})


def fitting(outcomes: Sequence[tuple[int, Sealed]]) -> tuple[tuple[int, Sealed], ...]:
    """Those of the outcomes, from the first on, that one commit takes; one at least."""
    total = 0
    for count, (_, sealed) in enumerate(outcomes):
        total += len(sealed.payload)
        if count and total > COMMIT_BYTES:
            return tuple(outcomes[:count])
    return tuple(outcomes)


def is_much(staged: Mapping[int, Sealed], arrived: Mapping[int, Sealed] = NONE) -> bool:
    """Whether these may be too much to place in one commit."""
    sizes = (len(sealed.payload) for each in (staged, arrived) for sealed in each.values())
    return sum(sizes) > COMMIT_BYTES // 2


def held_back(draft: OperationDraft, arrived: Mapping[int, Sealed] = NONE) -> frozenset[int]:
    """The staged outcome that is placed in a later commit, for this one is full; ``arrived`` come in with it."""
    state = draft.state
    if not draft.staged or not isinstance(state, Tools):
        return frozenset()
    if not is_much(draft.staged, arrived):
        return frozenset()
    came = sum(len(sealed.payload) for sealed in arrived.values())
    written = (write for write in draft.path.writes if isinstance(write, InsertEntry | SetValue))
    total = came + sum(len(write.payload) for write in written)
    for index, call in enumerate(state.calls):
        if isinstance(call, Placed) or index in arrived:
            continue
        if not isinstance(call, OutcomeReady):
            break
        size = len(draft.staged[index].payload)
        if total and total + size > COMMIT_BYTES:
            return frozenset((index,))
        total += size
    return frozenset()
