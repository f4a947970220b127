"""The tree of a session's entries as a check sees it: where each stands, and what of a batch of calls it is part of."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agentlane.data.entries import Compaction, Custom, EntryBody
from agentlane.data.messages import AssistantMessage, ToolCallPart, ToolResultMessage
from agentlane.data.operations import OutcomeReady, Placed, Tools
from agentlane.data.records.faults import Faults
from agentlane.ids import call_id

NOWHERE = -1
"""The row above a root, and the number of no batch."""


class Batch(NamedTuple):
    """An answer that settled to run its calls: the row of its entry, and what names each call."""

    answer: int
    calls: tuple[int, ...]
    """Hashes of the calls' ids and names: their texts may be long, and there may be many."""


class Conversation:
    """Entries in the order of their numbers. Holds their ids and some numbers of each, never what they say."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.seqs = array("q")
        self.parents = array("i")
        self.lost_parents: dict[int, str] = {}
        """Rows whose parent is not before them, with its id."""
        self.unreadable: set[str] = set()
        """Entries whose content cannot be read."""
        self.kinds: dict[str, str] = {}
        """The true kinds of entries that are stored as ones of another kind."""
        self.batches: list[Batch] = []
        self.tails: dict[int, str] = {}
        """Rows of compactions that keep a tail, with the entry that it begins with."""
        self._batch = array("i")
        self._answered = array("i")
        """How many calls of the batch have their result on the way to this entry."""
        self._settled = bytearray()
        """Whether a ledger row says that an operation asked for this entry."""

    def __contains__(self, id: object) -> bool:
        return id in self.rows

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, id: str, parent_id: str | None, seq: int, body: EntryBody | None) -> None:
        """Take the next entry; ``body`` is None if it cannot be read."""
        row = len(self.ids)
        if id in self.rows:
            self._faults.add("duplicate_id", f"entry {id}", f"id {id} is used 2 times")
        parent = NOWHERE if parent_id is None else self.rows.get(parent_id, NOWHERE)
        if parent_id is not None and (parent == NOWHERE or self.seqs[parent] >= seq):
            self.lost_parents[row], parent = parent_id, NOWHERE
            text = f"the parent {parent_id} of entry {id} is not an earlier entry"
            self._faults.add("missing_parent", f"entry {id}", text)
        if body is None:
            self.unreadable.add(id)
        self.ids.append(id)
        self.rows[id] = row
        self.seqs.append(seq)
        self.parents.append(parent)
        self._settled.append(False)
        batch, answered = self._place(id, parent, body)
        self._batch.append(batch)
        self._answered.append(answered)
        if isinstance(body, Compaction) and body.kept_from is not None:
            self.tails[row] = body.kept_from
            self._check_tail(id, parent, body.kept_from)

    def settle(self, id: str) -> None:
        """A ledger row is of the attempt that this answer came of."""
        if id in self.rows:
            self._settled[self.rows[id]] = True

    def is_settled(self, batch: Batch) -> bool:
        """Whether an operation asked for the answer, so that its calls were run, or got a result that says why not."""
        return bool(self._settled[batch.answer])

    def path(self, tip: str | None) -> Iterator[str]:
        """Ids from ``tip`` towards the root, as far as they are there."""
        row = NOWHERE if tip is None else self.rows.get(tip, NOWHERE)
        while row != NOWHERE:  # a parent's row is lower, so this comes to an end
            yield self.ids[row]
            row = self.parents[row]

    def batch_around(self, id: str) -> str | None:
        """The answer among the results of whose calls an entry stands; None for one that stands in no batch."""
        row = self.rows.get(id, NOWHERE)
        batch = NOWHERE if row == NOWHERE else self._batch[row]
        if batch == NOWHERE or self.batches[batch].answer == row:
            return None
        return self.ids[self.batches[batch].answer]

    def calls_of(self, batch: Batch) -> list[str]:
        """The ids of the calls of an answer."""
        answer = self.ids[batch.answer]
        return [call_id(answer, index) for index in range(len(batch.calls))]

    def missing_results(self, batch: Batch) -> list[int]:
        """Which calls have no entry under their reserved id."""
        return [index for index, id in enumerate(self.calls_of(batch)) if id not in self.rows]

    def check_batches(self, running: Mapping[str, tuple[str, Tools]], *, held: bool) -> None:
        """Look at each answer with calls. ``running`` are those whose calls are being run, with their operations."""
        left = dict(running)
        for batch in self.batches:
            answer = self.ids[batch.answer]
            left.pop(answer, None)
            if answer in running:
                operation, state = running[answer]
                for text in prefix_faults(answer, state, len(batch.calls), held=held):
                    self._faults.add("batch", f"entry {answer}", text, operation)
            elif self.is_settled(batch) and (missing := self.missing_results(batch)):
                text = f"calls {missing} of answer {answer} have no result and nobody will give one"
                self._faults.add("missing_result", f"entry {answer}", text)
        for answer, (operation, _) in left.items():
            text = f"operation {operation} runs the calls of {answer}, which is no answer with calls"
            self._faults.add("batch", f"op.state/{operation}", text, operation)

    def _check_tail(self, id: str, parent: int, kept_from: str) -> None:
        """What a compaction keeps ends with its parent, and no batch is cut in two. # I10"""
        first, at = self.rows.get(kept_from, NOWHERE), parent
        while at > first:
            at = self.parents[at]
        if first == NOWHERE or at != first:
            text = f"compaction {id} keeps what is from {kept_from} on, which is not on its path"
            self._faults.add("kept_tail", f"entry {id}", text)
        elif (answer := self.batch_around(kept_from)) is not None:
            text = f"compaction {id} keeps what is from {kept_from} on, which is among the results of answer {answer}"
            self._faults.add("kept_tail", f"entry {id}", text)

    def _place(self, id: str, parent: int, body: EntryBody | None) -> tuple[int, int]:
        """The batch that the entry is part of, and how far it has come there. # I5"""
        batch, answered = (NOWHERE, 0) if parent == NOWHERE else (self._batch[parent], self._answered[parent])
        calls = self.batches[batch].calls if batch != NOWHERE else ()
        open_batch = answered < len(calls)
        if body is None or isinstance(body, Custom):
            return (batch, answered) if open_batch else (NOWHERE, 0)
        if isinstance(body, ToolResultMessage):
            return self._place_result(id, body, batch, answered)
        if open_batch:
            answer = self.ids[self.batches[batch].answer]
            text = f"{id} goes on past answer {answer} before its call {answered} has a result"
            self._faults.add("unanswered_call", f"entry {answer}", text)
        if isinstance(body, AssistantMessage) and body.calls and body.stop_reason not in ("error", "aborted"):
            self.batches.append(Batch(len(self.ids) - 1, tuple(_named(call) for call in body.calls)))
            return len(self.batches) - 1, 0
        return NOWHERE, 0

    def _place_result(self, id: str, body: ToolResultMessage, batch: int, answered: int) -> tuple[int, int]:
        if batch == NOWHERE:
            self._faults.add("stray_result", f"entry {id}", f"result {id} stands behind no answer with calls")
            return NOWHERE, 0
        answer, calls = self.ids[self.batches[batch].answer], self.batches[batch].calls
        if answered == len(calls):
            text = f"result {id} behind answer {answer} is one too many"
            self._faults.add("stray_result", f"entry {id}", text)
            return NOWHERE, 0
        if hash((body.call_id, body.name)) != calls[answered]:
            text = f"result {id} stands where call {answered} of answer {answer} has its own"
            self._faults.add("result_order", f"entry {id}", text)
        return batch, answered + 1


def prefix_faults(answer: str, state: Tools, calls: int, *, held: bool) -> Iterator[str]:
    """What is wrong between the calls of an answer and the states that they are in. # I5

    With ``held``, an outcome may wait for hooks to be placed.
    """
    if len(state.calls) != calls:
        yield f"answer {answer} has {calls} calls, its operation's state {len(state.calls)}"
    placed = [isinstance(call, Placed) for call in state.calls]
    if placed != sorted(placed, reverse=True):
        yield f"the placed calls of answer {answer} are no prefix: {placed}"
    if all(placed):
        yield f"all calls of answer {answer} are placed and its batch goes on"
    first = placed.index(False) if False in placed else len(placed)
    if not held and first < len(state.calls) and isinstance(state.calls[first], OutcomeReady):
        yield f"call {first} of answer {answer} is ready and next, and was not placed"


def _named(call: ToolCallPart) -> int:
    return hash((call.id, call.name))
