"""How much one commit holds: what large outcomes there are, and what much waits, is taken and placed in several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from agentlane.data import codec
from agentlane.data.operations import OutcomeReady, Placed, Tools
from agentlane.data.writes import InsertEntry, SetValue
from agentlane.driver.draft import OperationDraft, PathDraft
from agentlane.driver.inbox import WaitingItem, due
from agentlane.driver.tool_results import Sealed
from agentlane.errors import PayloadTooLarge
from agentlane.machine.facts import QueuedPlaced
from agentlane.machine.verdicts import Finish, PlaceQueued, Verdict

COMMIT_BYTES = 32 << 20
"""From here on what else there is waits for the next commit. With one result more (``tool_results.RESULT_BYTES_MAX``)
it is below what any store takes in one: results that each can be kept must not be lost because they came together."""

INPUT_BYTES_MAX = 48 << 20
"""How large what is said at once may be: what an abort gives back and the prompt behind it fit in one commit."""

WRITE_BYTES = 128
"""What a write costs beside its payload."""

ENTRY_BYTES = 4 * WRITE_BYTES
"""What an entry that waited costs beside what it says: its place, the end of its waiting, its receipt."""

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
    total = sum(len(sealed.payload) for sealed in arrived.values()) + written(draft.path)
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


def written(path: PathDraft) -> int:
    """How much a commit in the making holds by now."""
    payloads = (write.payload for write in path.writes if isinstance(write, InsertEntry | SetValue))
    return sum(map(len, payloads)) + WRITE_BYTES * len(path.writes)


# Input.


def check_input(payloads: Sequence[bytes], place: str) -> None:
    """Refuse what is said at once if it is too large to be placed together with what may have to be."""
    size = sum(map(len, payloads))
    if size > INPUT_BYTES_MAX:
        raise PayloadTooLarge(
            f"{place}: {size} bytes as it is stored, and {INPUT_BYTES_MAX} are taken at once; say it in several "
            "messages, or store large content elsewhere and say where",
            size_bytes=size,
        )


def size_of(item: WaitingItem) -> int:
    """What it costs to place an item of the inbox, or to give it back."""
    return sum(map(len, item.payloads)) + ENTRY_BYTES * len(item.payloads)


def fitting_items(items: Iterable[WaitingItem], total: int) -> list[WaitingItem]:
    """The first of the items, as many as fit in a commit that holds ``total`` bytes; one at least in an empty one."""
    taken: list[WaitingItem] = []
    for item in items:
        total, before = total + size_of(item), total
        if before and total > COMMIT_BYTES:
            break
        taken.append(item)
    return taken


def all_fit(items: Iterable[WaitingItem], total: int) -> bool:
    """Whether a commit that holds ``total`` bytes holds all of them too."""
    return total + sum(map(size_of, items)) <= COMMIT_BYTES


def queued_to_place(draft: OperationDraft, verdict: PlaceQueued) -> QueuedPlaced:
    """What a verdict speaks of, as far as the draft has room for it."""
    items = fitting_items(due(draft.inbox, verdict, draft.consumed), 0 if draft.empty else written(draft.path))
    input = [item for item in items if item.item.kind != "write"]
    more = bool(input) and len(items) < verdict.writes + verdict.steers + verdict.follow_ups and verdict.follow_ups > 0
    trigger = input[-1].item.entries[-1] if input else None
    return QueuedPlaced(tuple(item.id for item in items), trigger, more)


def is_full(draft: OperationDraft, verdict: Verdict) -> bool:
    """Whether what is next is for the next commit, for this one holds enough."""
    if draft.empty:
        return False
    if isinstance(verdict, PlaceQueued):
        return not queued_to_place(draft, verdict).items
    if isinstance(verdict, Finish) and draft.operation.returned:
        return written(draft.path) + len(codec.encode(draft.operation.returned)) > COMMIT_BYTES
    return False
