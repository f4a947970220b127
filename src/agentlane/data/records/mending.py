"""What is to be done so that the records of a damaged session hold together, decided from one reading of them.

Rules
- What can be read is kept, byte for byte, where it is. Nothing is guessed from what is absent.
- An entry that is lost and that others name is stood in for, under its own id: the result of a call by a result that
  says so, behind those of the calls before it; anything else by a custom entry, at the root where its parent is not
  known. A lost tip stands behind the last entry that a record of its lane names.
- A compaction whose kept tail does not begin on its path any more keeps all of what is left of that.
- An operation stays open if all of its records hold, and nothing that was written since it began is lost. Any other is
  ended: what its calls may have done is not known, and they never run again.
- Where entries are lost, every end of the tree that no branch leads to gets a branch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import NamedTuple

from agentlane.data import addresses, codec
from agentlane.data.inbox import QueuedItem
from agentlane.data.messages import ToolResultMessage
from agentlane.data.operations import LaneConfig, LaneState, OutcomeReady, Tools
from agentlane.data.records.check import RecordCheck
from agentlane.data.records.conversation import NOWHERE
from agentlane.data.records.operations import NO_END, PARTS, owner_of
from agentlane.data.writes import Address
from agentlane.ids import call_id, call_index, derive

SEVERAL = -2
RECOVERED = "recovered"
"""What the names of branches begin with that a repair makes."""


class StandIn(NamedTuple):
    """What stands for a lost entry. As the result of a call it names the answer and which of its calls."""

    id: str
    parent_id: str | None
    seq: int
    answer: str | None = None
    call: int = 0


class Mending:
    """What becomes of the records that ``check`` has read to their end.

    ``trusted_from``: nothing that was written under this number or a higher one is lost; 0 if nothing is lost at all.
    ``ledger_seqs`` are the numbers of the ledger rows, rising.
    """

    def __init__(self, check: RecordCheck, *, last_seq: int, trusted_from: int, ledger_seqs: array[int]) -> None:
        self._check = check
        self._entries = check.conversation
        self._operations = check.operations
        self._trusted_from = trusted_from
        self._ledger_seqs = ledger_seqs
        self._completed: dict[str, str] = {}  # entries inside a batch that is completed, with the last result
        self._taken: list[int] = []  # numbers that were given out below the last one, rising
        self.last_seq = self._last_read = last_seq
        self.tips = dict(self._operations.tips)
        self.closed: dict[str, str] = {}
        """Operations that are ended, with the reason."""
        self.lane_states: dict[str, LaneState] = {}
        self.lane_configs: dict[str, LaneConfig] = {}
        self.stand_ins: dict[str, StandIn] = {}
        self.rooted: set[str] = set()
        """Entries that lose their parent: it is no entry before them, and nothing can stand there."""
        self.tails: dict[str, str | None] = {}
        """Compactions whose kept tail begins with another entry now; None: with none."""
        self.branches: dict[str, str] = {}
        """New branches, with their tips."""
        self._close()
        self._hold_lanes()
        self._stand_in()
        self._keep_tails()
        self._keep_inbox()
        self._name_ends()

    def lane_of(self, operation: str) -> str:
        """The lane of an operation that is ended; empty if no record says."""
        meta = self._operations.metas.get(operation)
        held = (name for name, state in self._operations.lanes.items() if state.current == operation)
        return meta.lane if meta is not None else next(held, "")

    def answer_of(self, operation: str) -> str | None:
        """The answer whose calls an ended operation was running."""
        state = self._operations.states.get(operation)
        return state.answer if isinstance(state, Tools) else None

    def keeps(self, address: Address) -> bool:
        """Whether a value or list stays where it is; what does not is set aside."""
        namespace, key = address
        if (namespace, key) in self._operations.unreadable:
            return False
        if namespace in PARTS or namespace in (addresses.OP_META, addresses.PENDING_FRAMES):
            return owner_of(key) in self._operations.metas and owner_of(key) not in self.closed
        if namespace == addresses.PENDING_APPROVAL:
            approval = self._operations.approvals[key]
            return approval.operation_id in self._operations.metas and approval.operation_id not in self.closed
        if namespace == addresses.PENDING_ENTRY:
            return key in self._waiting and key not in self.stand_ins
        if namespace == addresses.INBOX:
            return key in self._items
        if namespace == addresses.RECEIPT:
            return key not in self._stale and key not in self.untold
        if namespace == addresses.LABEL:
            return key in self._entries or key in self.stand_ins
        if namespace == addresses.RESULT:
            return key not in self.bad_results
        return True

    @property
    def ended(self) -> list[str]:
        """Operations that get a terminal record: those that are ended and have none, and those whose own is bad."""
        settled = self._operations.settled
        return [*(id for id in self.closed if id not in settled), *sorted(self.bad_results - set(self.closed))]

    def answers(self) -> set[str]:
        """The answers of which some result is stood in for."""
        places = (self.result_place(id) for id in self._entries.unreadable)
        return {
            *(each.answer for each in self.stand_ins.values() if each.answer is not None),
            *(place[0] for place in places if place is not None),
        }

    def values(self) -> dict[Address, bytes]:
        """What branches and lanes are from now on."""
        return {
            **{addresses.branch_tip(name): codec.encode(tip) for name, tip in self.tips.items()},
            **{addresses.lane_config(name): codec.encode(config) for name, config in self.lane_configs.items()},
            **{addresses.lane_state(name): codec.encode(state) for name, state in self.lane_states.items()},
        }

    def content_of(self, id: str) -> bool:
        """Whether what a lost entry said is there, waiting for its place: then that is what stands for it."""
        body = self._operations.pending.get(id)
        return body is not None and (body.type is ToolResultMessage) == (self.stand_ins[id].answer is not None)

    def result_place(self, id: str) -> tuple[str, int] | None:
        """The answer, and which call of it, whose result has this id."""
        answer = derive(id, 0)
        row = self._entries.rows.get(answer)
        index = call_index(answer, id)
        batch = None if row is None else next((each for each in self._entries.batches if each.answer == row), None)
        return None if batch is None or index is None or index >= len(batch.calls) else (answer, index)

    # Operations.

    def _close(self) -> None:
        """Tell which operations cannot go on."""
        operations, closed = self._operations, self.closed
        known = {
            *operations.metas,
            *operations.parts[addresses.OP_STATE],
            *operations.parts[addresses.OP_CONFIG],
            *(key for space, key in operations.unreadable if space == addresses.OP_META),
            *(state.current for state in operations.lanes.values()),
        }
        for id, reasons in self._check.faults.operations.items():
            if id not in known:
                continue  # something was left of one that is over
            if set(reasons) != {"unheld_operation"} or not self._can_be_held(id):
                closed[id] = next(iter(reasons.values()))
        for id, meta in operations.metas.items():
            rows = [self._entries.rows.get(entry, NOWHERE) for entry in meta.inputs]
            if id in closed:
                continue
            if self._trusted_from and not all(
                row != NOWHERE and self._entries.seqs[row] >= self._trusted_from for row in rows or [NOWHERE]
            ):  # one without a prompt has nothing that says when it began
                closed[id] = f"something that was written since operation {id} began is lost"
            elif any(entry in self._entries.unreadable for entry in meta.inputs):
                closed[id] = f"the input of operation {id} cannot be read"
        children = {id: meta.parent_call for id, meta in operations.metas.items() if meta.parent_call is not None}
        found = True
        while found:
            found = False
            for id, call in children.items():
                if id not in closed and call.operation_id in closed:
                    closed[id], found = f"operation {call.operation_id}, which it ran for, is ended", True
        self.bad_results = {
            key for namespace, key in operations.unreadable if namespace == addresses.RESULT
        } | operations.misnamed

    def _can_be_held(self, operation: str) -> bool:
        """Whether the only thing wrong is that its lane has no state."""
        lane = self._operations.metas[operation].lane
        others = [id for id, meta in self._operations.metas.items() if meta.lane == lane]
        return lane not in self._operations.lanes and others == [operation]

    # Lanes.

    def _hold_lanes(self) -> None:
        operations = self._operations
        lost = {key for space, key in operations.unreadable if space in (addresses.LANE_STATE, addresses.LANE_CONFIG)}
        held = {meta.lane for id, meta in operations.metas.items() if id not in self.closed}
        for name in sorted({*operations.lanes, *operations.lane_configs, *lost, *held}):
            state = operations.lanes.get(name, LaneState())
            end = operations.ends.get(name, NO_END)
            current = state.current
            if name not in operations.lanes:
                current = next((id for id, meta in operations.metas.items() if meta.lane == name), None)
            last = state.last or end.last or None
            config = operations.lane_configs.get(name)
            if config is None:
                captured = operations.configs.get(current or "")
                agent = end.agent if captured is None else captured.agent
                config = LaneConfig(agent=agent) if agent else None
            if current in operations.metas and operations.metas[current].lane != name:
                current = None
            elif current in self.closed or (current is not None and current not in operations.metas):
                current, last = None, current
            if last in operations.metas and last not in self.closed:
                last = end.last or None
            if config is None:
                continue  # a branch: whoever opens it as a lane says with which agent
            self.lane_configs[name] = config
            self.lane_states[name] = LaneState(current=current, last=last)
        lost_tips = {name for space, name in operations.unreadable if space == addresses.BRANCH_TIP}
        self._lost_tips = lost_tips | {name for name in self.lane_states if name not in operations.tips}
        for name in sorted(self._lost_tips):
            self.tips[name] = self._anchor(name)

    # Entries.

    def _stand_in(self) -> None:
        """Give every entry that is lost and named a place."""
        entries = self._entries
        needed: dict[str, int | None] = {}  # what must come before which number
        for row, parent in entries.lost_parents.items():
            if parent in entries:
                self.rooted.add(entries.ids[row])
            else:
                known = needed.get(parent)
                needed[parent] = entries.seqs[row] if known is None else min(known, entries.seqs[row])
        ends: dict[str, str] = {}
        for lane, tip in (*self._operations.lost_ends.values(), *self.tips.items()):
            if tip is not None and tip not in entries:
                needed.setdefault(tip, None)
                ends[tip] = lane
        self.lost_entries = bool(needed or self.rooted)
        for batch in entries.batches:
            answer = entries.ids[batch.answer]
            running = self._operations.running.get(answer)
            if running is not None and running[0] not in self.closed:
                continue
            ids = entries.calls_of(batch)
            missing = [id for id in ids if id not in entries]
            if any(id in needed for id in missing) or running is not None or entries.is_settled(batch):
                self._stand_in_results(answer, ids, {id: needed.pop(id, None) for id in missing})
        for id, before in sorted(needed.items(), key=lambda each: (each[1] is None, each[1] or 0, each[0])):
            self._stand_in_entry(id, before, ends.get(id))

    def _stand_in_results(self, answer: str, ids: list[str], missing: dict[str, int | None]) -> None:
        """Complete the results of one answer."""
        entries = self._entries
        before, behind = answer, entries.seqs[entries.rows[answer]]
        bounds = [missing.get(id) for id in ids]
        for index, id in enumerate(ids):
            if id in missing:
                later = [bound for bound in bounds[index:] if bound is not None]
                seq = self._number_between(behind, min(later)) if later else self._next()
                if seq is None:
                    self._root_children(id)
                    return
                self.stand_ins[id] = StandIn(id, before, seq, answer, index)
                if not later:
                    self._move_tips(before, ids[-1])
                behind = seq
            else:
                behind = entries.seqs[entries.rows[id]]
            before = id

    def _stand_in_entry(self, id: str, before: int | None, lane: str | None) -> None:
        anchor = None if lane is None or before is not None else self._anchor(lane)
        seq = self._next() if before is None else self._number_below(before)
        if seq is None:
            self._root_children(id)
        else:
            self.stand_ins[id] = StandIn(id, anchor, seq)

    def _root_children(self, parent: str) -> None:
        entries = self._entries
        self.rooted.update(entries.ids[row] for row, lost in entries.lost_parents.items() if lost == parent)

    def _keep_tails(self) -> None:
        """Tell where the tails of compactions begin that cannot begin where they are said to."""
        entries = self._entries
        for row, kept_from in entries.tails.items():
            id = entries.ids[row]
            first, at = None, self.parent_of(id)
            while at is not None and at != kept_from:
                first, at = at, self.parent_of(at)
            if at is None:
                self.tails[id] = first
            elif (answer := entries.batch_around(kept_from)) is not None:
                self.tails[id] = answer

    def _anchor(self, lane: str) -> str | None:
        """The end of a lane whose tip is lost: behind the newest entry that a record names, as far as nothing parts."""
        entries = self._entries
        named = [entry for meta in self._operations.metas.values() if meta.lane == lane for entry in meta.inputs]
        named += [answer for answer, (id, _) in self._operations.running.items() if self.lane_of(id) == lane]
        row = self._operations.ends.get(lane, NO_END).row
        row = max([row, *(entries.rows.get(entry, NOWHERE) for entry in named)])
        others = {tip for name, tip in self.tips.items() if name != lane}
        only_child = self._only_children()
        while row != NOWHERE and entries.ids[row] not in others and only_child[row] >= 0:
            row = only_child[row]
        if row == NOWHERE:
            return None
        return self._completed.get(entries.ids[row], entries.ids[row])

    def _only_children(self) -> array[int]:
        """By row: the only entry behind it, or ``NOWHERE``, or ``SEVERAL``."""
        found = array("i", [NOWHERE]) * len(self._entries)
        for row, parent in enumerate(self._entries.parents):
            if parent != NOWHERE:
                found[parent] = row if found[parent] == NOWHERE else SEVERAL
        return found

    def _move_tips(self, before: str, last: str) -> None:
        """Branches that end where results were lost end behind them."""
        self._completed.setdefault(before, last)
        for name, tip in self.tips.items():
            if tip == before and name in self.lane_states:
                self.tips[name] = last

    # What waits, and ends.

    def _keep_inbox(self) -> None:
        """Tell which items, contents and receipts stay."""
        inbox, pending = self._check.inbox, self._operations.pending
        self._items: set[str] = set()
        self.untold: dict[str, QueuedItem] = {}
        """What waits and whose receipt is lost, or says something else, by the receipt's key."""
        self._waiting: set[str] = set()
        requests: set[str] = set()
        for key, item in inbox.items.items():
            lane = key.partition("|")[0]
            there = all(
                pending.get(id) is not None and id not in self._entries and id not in self.stand_ins
                for id in item.entries
            )
            if there and key not in inbox.bad and lane in self.lane_states:
                self._items.add(key)
                self._waiting.update(item.entries)
                if item.request_id is not None:
                    receipt = f"{lane}|{item.request_id}"
                    requests.add(receipt)
                    if not inbox.is_told_of(receipt, item):
                        self.untold[receipt] = item
        for id, state in self._operations.states.items():
            if isinstance(state, Tools) and id in self._operations.metas and id not in self.closed:
                staged = (i for i, call in enumerate(state.calls) if isinstance(call, OutcomeReady))
                self._waiting.update(call_id(state.answer, index) for index in staged)
        self._stale = inbox.said_to_wait - requests

    def _name_ends(self) -> None:
        """Where entries are lost, give a branch to every end of the tree that none leads to."""
        lost_values = self._trusted_from > self._last_read  # any of them, tips too
        if not (self.lost_entries or self._lost_tips or lost_values):
            return
        entries = self._entries
        led_to = bytearray(len(entries))
        for tip in self.tips.values():
            at = tip
            while at is not None:
                row = entries.rows.get(at)
                if row is not None:
                    if led_to[row]:
                        break
                    led_to[row] = True
                at = self.parent_of(at)
        for row, child in enumerate(self._only_children()):
            if child == NOWHERE and not led_to[row]:
                tip = entries.ids[row]
                self.branches[self.free_name()] = self._completed.get(tip, tip)

    def parent_of(self, id: str) -> str | None:
        """The parent that an entry has from now on."""
        if id in self.stand_ins:
            return self.stand_ins[id].parent_id
        if id in self.rooted:
            return None
        row = self._entries.rows[id]
        parent = self._entries.parents[row]
        return self._entries.lost_parents.get(row) if parent == NOWHERE else self._entries.ids[parent]

    def free_name(self, word: str | None = None) -> str:
        """A name for a new branch: with a number, or with this word and a number where that is taken."""
        number = 1
        while True:
            name = f"{RECOVERED}/{number}" if word is None else f"{RECOVERED}/{word}{'' if number == 1 else number}"
            if name not in self.tips and name not in self.branches:
                return name
            number += 1

    # Numbers.

    def _next(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def _is_free(self, seq: int) -> bool:
        for taken in (self._entries.seqs, self._ledger_seqs, self._taken):
            at = bisect_left(taken, seq)
            if at < len(taken) and taken[at] == seq:
                return False
        return True

    def _number_between(self, behind: int, before: int) -> int | None:
        """The lowest number that nothing has, between these two."""
        return self._take(next((seq for seq in range(behind + 1, before) if self._is_free(seq)), None))

    def _number_below(self, before: int) -> int | None:
        """The highest number that nothing has, below this one."""
        return self._take(next((seq for seq in range(before - 1, 0, -1) if self._is_free(seq)), None))

    def _take(self, seq: int | None) -> int | None:
        if seq is not None:
            insort(self._taken, seq)
        return seq
