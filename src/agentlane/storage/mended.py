"""The rows of a damaged session as its repaired copy has them, read page by page from its salvage."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from agentlane.clock import SystemClock
from agentlane.data import addresses, codec
from agentlane.data.approvals import Decision
from agentlane.data.entries import EntryBody, kind_of
from agentlane.data.findings import VerifyReport
from agentlane.data.inbox import QueuedInput, QueuedItem, Receipt, queued_digest
from agentlane.data.messages import AssistantMessage, ToolCallPart, UserPart
from agentlane.data.records import standing_in
from agentlane.data.records.check import KINDS as NAMESPACES
from agentlane.data.records.mending import Mending, StandIn
from agentlane.data.records.operations import owner_of
from agentlane.data.repairs import RepairCode, RepairNote, RepairReport
from agentlane.data.results import OperationResult
from agentlane.data.usage import UsageTotals
from agentlane.data.writes import Address
from agentlane.ids import DERIVED_MAX, Uuid7Source, derive
from agentlane.storage.contract import ElementRow, EntryRow, LedgerRow, Row, ValueRow
from agentlane.storage.record_findings import SoundnessCheck, is_decoded
from agentlane.storage.salvage import Findings, Salvage
from agentlane.storage.verifying import PayloadCheck, examined

NOTES_MAX = 1000
"""How many notes a report holds; those behind are counted."""

_DECIDED = (addresses.BRANCH_TIP, addresses.LANE_CONFIG, addresses.LANE_STATE)

_decode = msgspec.json.Decoder().decode


class Mended:
    """What is read of a damaged session, and what its copy has in the place of what cannot be read."""

    def __init__(self, salvage: Salvage, source: VerifyReport, check: SoundnessCheck, numbers: Numbers) -> None:
        self.source = source
        self._salvage = salvage
        self._check = check.check
        self._now = numbers.latest
        self.mending = Mending(
            check.check,
            last_seq=salvage.last_seq,
            trusted_from=salvage.trusted_from,
            ledger_seqs=numbers.ledger,
        )
        self._calls: dict[str, tuple[ToolCallPart, ...]] = {}
        self._contents: dict[str, bytes] = {}
        self._progress: dict[str, tuple[UserPart, ...]] = {}
        self._answers = self.mending.answers()
        self._usage: dict[str, UsageTotals] = dict.fromkeys(self.mending.closed, UsageTotals())
        self._untold = {entry for item in self.mending.untold.values() for entry in item.entries}
        self._decisions: dict[str, list[Decision]] = {}
        self._returned: dict[str, tuple[QueuedInput, ...]] = {}
        self._aside: list[ElementRow | ValueRow] = []
        self._notes: list[RepairNote] = []
        self._more = 0
        self._after_found = Findings()
        self._after = SoundnessCheck(self._after_found)
        self._aside_branch = self.mending.free_name("records")
        self.values = self.mending.values()
        """What is decided of branches and lanes, and not in the copy yet."""
        self._ids = Uuid7Source(SystemClock())

    @classmethod
    async def read(cls, session_id: str, salvage: Salvage) -> Mended:
        """Read everything, twice: first what is wrong, then what is needed to put it right."""
        found = salvage.findings
        check, numbers = SoundnessCheck(found), Numbers()
        source = await examined(session_id, salvage, (PayloadCheck(found), check, numbers))
        self = cls(salvage, source, check, numbers)
        async for page in salvage.pages():
            for row in page:
                self._gather(row)
            await asyncio.sleep(0)
        return self

    def rows(self) -> AsyncIterator[Sequence[Row]]:
        """What the copy is loaded from, once."""
        return _Pages(self._salvage.pages(), self)

    @property
    def last_seq(self) -> int:
        """The highest number of the copy."""
        return self.mending.last_seq + len(self._aside)

    def report(self, session_id: str) -> RepairReport:
        """The report, once the copy is made."""
        self._after.end()
        new = (*self.mending.branches, *((self._aside_branch,) if self._aside else ()))
        return RepairReport(
            session_id=session_id,
            source=self.source,
            notes=tuple(self._notes),
            more=self._more,
            ended=tuple(id for id in self.mending.ended if id in self.mending.closed),
            branches=new,
            left=self._after_found.all,
        )

    # What is needed to put it right.

    def _gather(self, row: Row) -> None:
        mending = self.mending
        if isinstance(row, EntryRow):
            if row.id in self._answers:
                body = codec.BODY.decode(row.payload, f"entry {row.id}")
                self._calls[row.id] = body.calls if isinstance(body, AssistantMessage) else ()
        elif isinstance(row, LedgerRow):
            totals = self._usage.get(row.row.operation_id or "")
            if totals is not None and row.row.kind != "adjustment":
                self._usage[row.row.operation_id or ""] = totals.plus(row.row)
        elif isinstance(row, ValueRow) and self._takes(*row.address, row.payload):
            return
        elif not mending.keeps(row.address) or not _is_sound(row):
            self._set_aside(row)

    def _takes(self, namespace: str, key: str, payload: bytes) -> bool:
        """Whether a value goes into what is made of it."""
        mending = self.mending
        if namespace == addresses.PENDING_ENTRY and key in self._untold:
            self._contents[key] = payload
        if namespace == addresses.PENDING_ENTRY and key in mending.stand_ins and mending.content_of(key):
            self._contents[key] = payload
            return True
        if owner_of(key) in mending.closed and (namespace, key) not in self._check.operations.unreadable:
            if namespace == addresses.PENDING_OUTPUT:
                self._progress[key.partition("|")[2]] = codec.PROGRESS.decode(payload, key)
            elif namespace == addresses.OP_DECISION:
                self._decisions.setdefault(owner_of(key), []).append(codec.DECISION.decode(payload, key))
            elif namespace == addresses.OP_RETURNED:
                self._returned[key] = codec.RETURNED.decode(payload, key)
        return False

    def _set_aside(self, row: ElementRow | ValueRow) -> None:
        self._aside.append(row)
        place = f"{row.address.namespace}/{row.address.key}"
        text = f"it cannot stay where it was, and is kept on the branch {self._aside_branch}"
        self.note("set_aside", place, text)

    def note(self, code: RepairCode, place: str, text: str) -> None:
        """One more thing that is different in the copy."""
        if len(self._notes) < NOTES_MAX:
            self._notes.append(RepairNote(code=code, place=place, text=text))
        else:
            self._more += 1

    # What the copy is made of.

    def made(self, stand_in: StandIn) -> tuple[EntryBody, bytes]:
        """What a stand-in says."""
        content = self._contents.get(stand_in.id)
        if content is not None:
            self.note(
                "lost_entry", f"entry {stand_in.id}", "it is lost; what it was to say waited still, and stands there"
            )
            return codec.BODY.decode(content, stand_in.id), content
        if stand_in.answer is not None:
            call = self._calls[stand_in.answer][stand_in.call]
            body: EntryBody = standing_in.lost_result(call, progress=self._progress.get(stand_in.id, ()))
            text = (
                f"the result of call {stand_in.call} ({call.name}) of answer {stand_in.answer} is lost, or never came"
            )
            self.note("lost_result", f"entry {stand_in.id}", f"{text}; one that says so stands there")
        else:
            body = standing_in.lost_entry()
            where = "at a root" if stand_in.parent_id is None else f"behind {stand_in.parent_id}"
            self.note("lost_entry", f"entry {stand_in.id}", f"it is lost; a custom entry stands for it, {where}")
        return body, codec.encode(body)

    def entry(self, row: EntryRow) -> EntryRow:
        """An entry as it is in the copy."""
        entries, mending = self._check.conversation, self.mending
        if row.id in mending.rooted:
            text = f"its parent {row.parent_id} is no entry before it; it is a root now"
            self.note("new_root", f"entry {row.id}", text)
            row = row._replace(parent_id=None)
        if row.id in entries.unreadable:
            return self._readable(row)
        if row.id in entries.kinds:
            self.note("wrong_kind", f"entry {row.id}", f"it is of kind {entries.kinds[row.id]!r}, not {row.kind!r}")
            row = row._replace(kind=entries.kinds[row.id])
        if row.id in mending.tails:
            return self._with_tail(row)
        return row._replace(payload=_one_line(row.payload))

    def _with_tail(self, row: EntryRow) -> EntryRow:
        body, tail = _decode(row.payload), self.mending.tails[row.id]
        where = "nothing is left before it" if tail is None else f"what it keeps begins with {tail} now"
        text = f"it keeps what is from {body['kept_from']} on, and that is not on its path; {where}"
        self.note("kept_tail", f"entry {row.id}", text)
        return row._replace(payload=codec.encode(body | {"kept_from": tail}))

    def _readable(self, row: EntryRow) -> EntryRow:
        place = self.mending.result_place(row.id)
        call = None if place is None else self._calls[place[0]][place[1]]
        body: EntryBody = standing_in.unreadable_entry(row.kind, row.payload)
        if call is not None:
            body = standing_in.lost_result(call, payload=row.payload)
        self.note("unreadable_entry", f"entry {row.id}", "it cannot be read; what is stored there is kept as text")
        return row._replace(kind=kind_of(body), payload=codec.encode(body))

    def last_entries(self) -> Iterator[EntryRow]:
        """What is set aside, as entries."""
        seq, parent, base = self.mending.last_seq, None, ""
        for number, row in enumerate(self._aside):
            base = self._ids.new() if number % DERIVED_MAX == 0 else base
            body = standing_in.set_aside(row.address, row.payload)
            id = derive(base, number % DERIVED_MAX)
            yield EntryRow(id, parent, seq + number + 1, self._now, kind_of(body), codec.encode(body))
            parent = id
        if parent is not None:
            self.values[addresses.branch_tip(self._aside_branch)] = codec.encode(parent)

    def value(self, row: ValueRow) -> ValueRow | None:
        """A value as it is in the copy; None if it is not there, or another one."""
        namespace, key = row.address
        if not self.mending.keeps(row.address) or not _is_sound(row):
            return None
        if namespace not in _DECIDED:
            return row._replace(payload=_one_line(row.payload))
        decided = self.values.pop(row.address, None)
        if decided is None:
            self.note("lane", f"{namespace}/{key}", "no record says which agent the lane is of; it is a branch now")
            return None
        kind = NAMESPACES[namespace]
        if kind.decode(row.payload, key) == kind.decode(decided, key):
            return row
        text = f"it said {row.payload.decode(errors='replace')}, and says {decided.decode()}"
        self.note("lane", f"{namespace}/{key}", text)
        return row._replace(payload=decided)

    def last_values(self) -> Iterator[ValueRow]:
        """Values that are new."""
        for address, payload in self.values.items():
            if address.key != self._aside_branch:
                self.note("lane", f"{address.namespace}/{address.key}", f"it is lost, and says {payload.decode()}")
            yield ValueRow(address, payload)
        for name, tip in self.mending.branches.items():
            self.note("new_branch", f"branch.tip/{name}", f"no branch led to {tip} any more; this one does")
            yield ValueRow(addresses.branch_tip(name), codec.encode(tip))
        for key, item in self.mending.untold.items():
            self.note("receipt", f"receipt/{key}", "it is lost, or wrong, and was made again of what waits")
            yield ValueRow(Address(addresses.RECEIPT, key), codec.encode(self._receipt(key, item)))
        for id in self.mending.ended:
            yield ValueRow(addresses.result(id), codec.encode(self._end(id)))

    def _receipt(self, key: str, item: QueuedItem) -> Receipt:
        lane, _, request_id = key.partition("|")
        payloads = [self._contents[entry] for entry in item.entries]
        return Receipt(
            request_id=request_id,
            lane=lane,
            kind=item.kind,
            entries=item.entries,
            digest=queued_digest(item.kind, payloads, submitted=item.submitted),
            submitted=item.submitted,
        )

    def _end(self, id: str) -> OperationResult:
        mending, operations = self.mending, self._check.operations
        lane = mending.lane_of(id)
        why = mending.closed.get(id)
        if why is None:
            self.note("unreadable_record", f"result/{id}", "it cannot be read; one that says so is there")
            why = "its terminal record could not be read"
        else:
            self.note("ended", f"op.meta/{id}", f"it cannot go on, and has ended as failed: {why}")
        return standing_in.uncertain_end(
            id,
            lane=lane,
            meta=operations.metas.get(id),
            config=operations.configs.get(id),
            why=why,
            now=self._now,
            to_tip=mending.tips.get(lane),
            usage=self._usage.get(id, UsageTotals()),
            decisions=self._decisions.get(id, ()),
            returned=self._returned.get(id, ()),
        )

    def taken(self, rows: Sequence[Row]) -> None:
        """These rows are in the copy."""
        self._after.take(rows)


class Numbers:
    """The numbers of the ledger rows, and the latest time that anything has."""

    def __init__(self) -> None:
        self.ledger = array("q")
        self.latest = 0

    def take(self, rows: Sequence[Row]) -> None:
        """The next rows."""
        for row in rows:
            if isinstance(row, EntryRow | LedgerRow):
                self.latest = max(self.latest, row.at)
            if isinstance(row, LedgerRow):
                self.ledger.append(row.seq)

    def end(self) -> None:
        """Nothing is left to be told."""


class _Pages:
    """Pages of the copy, each made of one of the salvage."""

    def __init__(self, pages: AsyncIterator[Sequence[Row]], mended: Mended) -> None:
        self._pages = pages
        self._mended = mended
        self._stand_ins = sorted(mended.mending.stand_ins.values(), key=lambda each: each.seq, reverse=True)
        self._latest = 0
        self._in_entries = True
        self._over = False

    def __aiter__(self) -> _Pages:
        return self

    async def __anext__(self) -> Sequence[Row]:
        while not self._over:
            try:
                page = await anext(self._pages)
            except StopAsyncIteration:
                self._over = True
                rows = [*self._behind_entries(), *self._mended.last_values()]
            else:
                rows = [kept for row in page for kept in self._mend(row)]
            await asyncio.sleep(0)
            if rows:
                self._mended.taken(rows)
                return rows
        raise StopAsyncIteration

    def _mend(self, row: Row) -> Iterator[Row]:
        if isinstance(row, EntryRow):
            while self._stand_ins and self._stand_ins[-1].seq < row.seq:
                yield self._stand_in(row.at)
            self._latest = row.at
            yield self._mended.entry(row)
            return
        yield from self._behind_entries()
        if isinstance(row, LedgerRow):
            yield row
        elif isinstance(row, ElementRow):
            if self._mended.mending.keeps(row.address) and _is_sound(row):
                yield row._replace(payload=_one_line(row.payload))
        elif (value := self._mended.value(row)) is not None:
            yield value

    def _behind_entries(self) -> Iterator[Row]:
        if self._in_entries:
            self._in_entries = False
            while self._stand_ins:
                yield self._stand_in(self._latest)
            yield from self._mended.last_entries()

    def _stand_in(self, at: int) -> EntryRow:
        stand_in = self._stand_ins.pop()
        body, payload = self._mended.made(stand_in)
        return EntryRow(stand_in.id, stand_in.parent_id, stand_in.seq, at, kind_of(body), payload)


def _is_sound(row: ElementRow | ValueRow) -> bool:
    """Whether what an application stored there is JSON; the library's own was looked at already."""
    if is_decoded(row.address):
        return True
    try:
        _decode(row.payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _one_line(payload: bytes) -> bytes:
    """The same JSON without newlines, which can only stand between its parts."""
    return payload.replace(b"\n", b" ")
