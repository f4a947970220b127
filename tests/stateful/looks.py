"""What can be seen of a session by public reads, in the plain model's words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agentlane import (
    AbortReceipt,
    AgentLane,
    Decision,
    Entry,
    ListAddress,
    Message,
    NavigateResult,
    OperationMismatch,
    OperationResult,
    Queued,
    Receipt,
    RewindResult,
    Session,
    ToolResultMessage,
    UnknownOperation,
    Waiting,
)
from tests.stateful.effects import Effects
from tests.stateful.moving import told_move
from tests.stateful.plain_disk import Disk
from tests.stateful.shapes import Names, model_number, tokens
from tests.stateful.talk import REQUEST_IDS


class Looker:
    """Looks at a session, and keeps what ids stand for."""

    def __init__(self, names: Names, effects: Effects) -> None:
        self.names = names
        self._agent = effects.agent(0)
        self.bodies: dict[str, tuple[Any, ...]] = {}

    async def learn(self, session: Session, disk: Disk) -> None:
        """Find out which ids the plain model's numbers and labels stand for."""
        self.names.take_entries([entry.id for entry in await session.entries()])
        self.names.receipts = set(disk.inbox.receipts)
        for number, entries in disk.inbox.placed.items():  # it may have been placed before anybody looked
            self.names.take_items([number], [self.names.entry(entries[0]) or ""])
        self.names.take_calls(disk.kin)
        for name, plain in disk.lanes.items():
            if self.names.lane_id(name) in session.lanes():
                lane = await session.lane(self.names.lane_id(name), self._agent)
                seen = lane.inspect()
                self.names.take_operation(plain.last, seen.last_operation_id)
                self.names.take_operation(
                    plain.current, None if seen.operation is None else seen.operation.operation_id
                )
                self.names.take_asked(
                    disk.asking(name), [each.approval_id for each in session.approvals() if each.lane == name]
                )
                waiting = [item.number for item in disk.inbox.of(name)]
                self.names.take_items(waiting, [each.id for each in lane.queued()])

    async def _page(self, session: Session) -> None:
        """Pages of a read are the whole of it, in either direction and by kind."""
        for name in session.branches():
            branch = session.branch(name)
            whole = await branch.entries(newest_first=False)
            paged: list[Entry] = []
            while page := await branch.entries(newest_first=False, limit=3, after=paged[-1].id if paged else None):
                paged += page
            assert paged == whole, f"pages of {name}"
            results = await branch.entries(types=["tool_result"])
            assert results == [each for each in reversed(whole) if isinstance(each.body, ToolResultMessage)], name
            assert await branch.messages() == [each.body for each in whole if isinstance(each.body, Message)], name
        for key in range(2):
            place = ListAddress("app.lists", f"l{key}", int)
            elements = await session.elements(place)
            assert await session.elements(place, reverse=True) == elements[::-1], place.address
            assert await session.elements(place, after=elements[0][0] if elements else 0) == elements[1:], place.address

    def told(self, outcome: Any) -> Any:
        """An outcome in the plain model's words, once names are learnt."""
        if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], OperationResult):
            return (outcome[0], self._record(outcome[1]))
        if isinstance(outcome, Receipt):
            return ("receipt", *self.names.receipt(outcome))
        if isinstance(outcome, Waiting):
            return self.names.waits(outcome)
        if isinstance(outcome, Decision):
            return ("decided", self.names.decided(outcome))
        if isinstance(outcome, Queued):
            return ("queued", self.names.where((outcome.id,)), outcome.kind)
        if isinstance(outcome, NavigateResult | RewindResult):
            return told_move(self.names, outcome)
        if isinstance(outcome, AbortReceipt):
            returned = tuple(self.names.waiting(each) for each in outcome.returned)
            return ("abort", outcome.newly_requested, outcome.status, returned)
        return outcome

    def _record(self, record: OperationResult) -> dict[str, Any]:
        prompt = int(self.bodies[record.inputs[0]][1].split()[1]) if record.inputs else None
        return {**self.names.record(record), "prompt": prompt}

    async def view(
        self, session: Session, *, labels: Collection[int] | None = None, results: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Everything that the public reads show; ``labels`` and ``results``: those to read, or all of them."""
        names = self.names
        entries = await session.entries()
        names.take_entries([entry.id for entry in entries])
        self.bodies = {entry.id: names.body(entry.body) for entry in entries}
        if labels is None:
            await self._page(session)
        branches = session.branches()
        paths = {name: await session.branch(name).entries() for name in branches}
        lanes, records, inbox, receipts = {}, {}, {}, {}
        reader = None
        for id in session.lanes():
            lane = reader = await session.lane(id, self._agent)
            name = names.lane(id)
            seen = lane.inspect()
            current = None if seen.operation is None else names.label(seen.operation.operation_id)
            lanes[name] = (names.number(seen.tip), current, names.label(seen.last_operation_id))
            inbox[name] = [names.waiting(each) for each in lane.queued()]
            for place in {*names.receipts, *((name, id) for id in REQUEST_IDS)}:
                if place[0] == name and (receipt := await lane.receipt(names.key(place[1]))) is not None:
                    receipts[place] = names.receipt(receipt)
        open_ones = session.open_operations()
        for label, id in names.operations.items():
            if reader is not None and (results is None or label in results):
                record = await _result(reader, id)
                if isinstance(record, OperationResult):
                    records[label] = self._record(record)
        lists = {f"l{key}": await session.elements(ListAddress("app.lists", f"l{key}", int)) for key in range(2)}
        numbers = range(len(entries)) if labels is None else [each for each in labels if each < len(entries)]
        texts = {number: await session.label(entries[number].id) for number in numbers}
        stats, sums = session.stats(), session.stats().usage
        return {
            "branches": {names.lane(name): names.number(session.branch(name).tip()) for name in branches},
            "lanes": lanes,
            "entries": [(names.number(entry.parent_id), self.bodies[entry.id]) for entry in entries],
            "paths": {names.lane(name): [names.numbers[entry.id] for entry in path] for name, path in paths.items()},
            "values": await session.values("app.values", int),
            "lists": {key: [value for _, value in elements] for key, elements in lists.items() if elements},
            "labels": {number: text for number, text in texts.items() if text is not None},
            "name": session.name,
            "open": {names.label(each.operation_id): names.operation_seen(each) for each in open_ones},
            "results": records,
            "inbox": inbox,
            "receipts": receipts,
            "asked": [names.asks(each) for each in session.approvals()],
            "stats": (
                stats.entries,
                sums.rows,
                sums.unknown_rows,
                sums.input_tokens,
                sums.output_tokens,
                sums.cost_nanos,
            ),
            "ledger": [
                (
                    each.row.kind,
                    tokens(each.row.usage),
                    names.number(each.row.entry_id),
                    names.label(each.row.operation_id),
                    model_number(each.row.model),
                )
                for each in await session.usage()
            ],
        }


async def _result(lane: AgentLane[Any, Any], id: str) -> OperationResult | None:
    try:
        return await lane.result(id)
    except (OperationMismatch, UnknownOperation):
        return None
