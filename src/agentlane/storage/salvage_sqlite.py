"""What can be read of a session in a SQLite file, and what is wrong with it: by a connection of its own, beside whoever
writes the file, in short reads. Nothing is changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

from agentlane.data.findings import Finding, FindingCode
from agentlane.data.usage import Stats
from agentlane.errors import AgentLaneError, SessionClosed, UnknownSession
from agentlane.storage import damaged_tables as tables
from agentlane.storage import schema
from agentlane.storage import sqlite_reads as reads
from agentlane.storage.contract import EntryRow, LedgerRow, Row, SessionInfo
from agentlane.storage.damaged_tables import Broken, Damage, rows_behind, tried
from agentlane.storage.damaged_values import row_finding
from agentlane.storage.database_check import Copied, check_file, copy_session
from agentlane.storage.database_look import Look
from agentlane.storage.index import check_payload, check_texts, check_usage_row
from agentlane.storage.index_snapshot import PAGE_BYTES
from agentlane.storage.intake import TIME_MAX
from agentlane.storage.salvage import Findings, NothingSalvaged, Salvage
from agentlane.storage.search_check import check_search
from agentlane.storage.sqlite_connect import translated
from agentlane.storage.sqlite_snapshot import SteppedPages, paged

Query: TypeAlias = Callable[[sqlite3.Connection], Any]
_VALUES = (": value ", ": element ", ": table value", ": table element")
"""In the place of a finding about values or elements of lists."""
Steps: TypeAlias = Generator[Query | Sequence[Row], Any, None]


async def salvage_database(path: str, session_id: str, *, busy_timeout_ms: int, unknown: UnknownSession) -> Salvage:
    """Look at the file and at what can change of the session; ``unknown`` is raised where nothing of it is there."""
    findings = Findings()
    look = Look(path, busy_timeout_ms=busy_timeout_ms)
    try:
        with translated(path):
            checked = await look.read(partial(check_file, path, look.refused, look.loading()))
            for finding in checked.findings:
                findings.add(finding)
            if not checked.readable:
                await look.end()
                return NothingSalvaged(session_id, findings)
            copied, found = await look.read(partial(copy_session, path, session_id, checked))
        for finding in found:
            findings.add(finding)
        if copied is None:
            if not found:
                raise unknown
            await look.end()
            return NothingSalvaged(session_id, findings)
        return SqliteSalvage(look, copied, findings, damaged=checked.damaged)
    except GeneratorExit:
        look.let_go()
        raise
    except BaseException:
        await look.end()
        raise


class SqliteSalvage:
    """``Salvage`` of a session in a SQLite file."""

    def __init__(self, look: Look, copied: Copied, findings: Findings, *, damaged: bool) -> None:
        """Take over ``look``. ``damaged``: rows are looked for one by one, not in the order of an index alone."""
        self.findings = findings
        self._look = look
        self._copied = copied
        self._damaged = damaged
        self._search = True  # it is looked at once
        self._closed = False

    @property
    def info(self) -> SessionInfo:
        return self._copied.info

    @property
    def last_seq(self) -> int:
        return self._copied.last_seq

    @property
    def trusted_from(self) -> int:
        """A value is there as it was last written, or is not. What is not may be the arguments that a person gave a
        call, or what its tool had kept, so nothing is trusted that was written before one was lost."""
        found = self.findings
        places = (each.place for each in found.all if each.loses)
        lost = found.more or any(part in place for place in places for part in _VALUES)
        return self.last_seq + 1 if lost else 0

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        return SteppedPages(self._read, self._steps())

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._look.end()

    def release(self) -> None:
        if not self._closed:
            self._closed = True
            self._look.let_go()

    async def _read(self, query: Query) -> Any:
        with translated(self._look.path):
            return await self._look.read(query)

    def _steps(self) -> Steps:
        reading = _Reading(self._look.path, self._copied, self.findings.add, self._check_open)
        yield from reading.entries(damaged=self._damaged)
        yield from reading.ledger()
        for rows in (self._copied.elements, self._copied.values):
            for page in paged(rows):
                self._check_open()
                yield page
        yield from reading.sums(damaged=self._damaged)
        if self._search:
            self._search = False
            yield from check_search(self._look.path, self._copied, self.findings)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"the salvage of session {self.info.id!r} is closed", id=self.info.id)


class _Reading:
    """One reading of all rows of a session."""

    def __init__(
        self, path: str, copied: Copied, found: Callable[[Finding], None], check_open: Callable[[], None]
    ) -> None:
        self._path = path
        self._copied = copied
        self._found = found
        self._lost = False
        self._check_open = check_open
        self._ids: set[str] = set()
        self._seq = self._time = 0
        self._stats = Stats()

    def entries(self, *, damaged: bool) -> Steps:
        """The entries in order of their numbers."""
        key, last_seq = self._copied.key, self._copied.last_seq
        after = 0
        while not damaged:
            self._check_open()
            found = yield partial(rows_behind, statement=tables.RELATED_BY_SEQ, before=(key, last_seq), after=after)
            if isinstance(found, Broken):
                break
            if not found:
                return
            after = found[-1][0]
            yield from self._page([entry for row in found if (entry := self._entry(row)) is not None])
        places = yield from self._places(after)
        begin = 0
        while begin < len(places):
            self._check_open()
            some = yield partial(_entries_at, places=places[begin : begin + tables.READ_ROWS])
            page = []
            for (_, place), row in zip(places[begin:], some, strict=False):
                if isinstance(row, str):
                    text = f"an entry cannot be read: {row}"
                    self._tell("unreadable", f"table entry, place {place}", text, loses=True)
                elif (entry := self._entry(row)) is not None:
                    page.append(entry)
            yield from self._page(page)
            begin += len(some)

    def ledger(self) -> Steps:
        """The rows of the ledger in order of their numbers."""
        self._seq = after = 0
        while True:
            self._check_open()
            found = yield partial(rows_behind, statement=schema.SCAN_USAGE, before=(self._copied.key,), after=after)
            if isinstance(found, Broken):
                self._broken("usage", "seq", found)
                if found.before is None:
                    return
                after = found.before - 1
                continue
            if not found:
                return
            after = found[-1][0]
            rows = [each for row in found if row[0] <= self._copied.last_seq and (each := self._ledger_row(row))]
            yield from self._page(rows)
            if after > self._copied.last_seq:
                return

    def sums(self, *, damaged: bool) -> Steps:
        """Whether all that the session is said to hold was read."""
        if damaged or self._copied.stats is None or self._stats == self._copied.stats:
            return
        there = yield lambda database: tried(
            lambda: database.execute(schema.SELECT_SESSION_ID, (self._copied.key,)).fetchall()
        )
        if there == []:
            raise UnknownSession(f"session {self._copied.info.id!r} was deleted while it was read")
        if not self._lost:
            want, got = self._copied.stats, self._stats
            text = f"the session is said to hold {want}, and {got} can be read"
            self._tell("stats", "", text, loses=True)

    def _places(self, after: int) -> Generator[Query, Any, list[tuple[int, int]]]:
        """Numbers and places of the entries behind ``after``: those that the index has, and those of the table."""
        key, last_seq = self._copied.key, self._copied.last_seq
        places: dict[int, int] = {}
        missing: list[Broken] = []
        seq: int | None = after
        while seq is not None:
            found = yield partial(rows_behind, statement=tables.PLACES_BY_SEQ, before=(key,), after=seq)
            if isinstance(found, Broken):
                missing.append(found)
                seq = None if found.before is None else found.before - 1
                continue
            places.update((place, number) for number, place in found)
            seq = found[-1][0] if found else None
        place: int | None = 0
        while place is not None:
            found = yield partial(rows_behind, statement=tables.PLACES_BY_PLACE, before=(), after=place)
            if isinstance(found, Broken):
                if missing:
                    self._broken("entry", "place", found)
                place = None if found.before is None else found.before - 1
                continue
            for each, session, number in found:
                if session == key and type(number) is int:
                    self._same_number(each, number, places.get(each, number))
                    places[each] = number
            place = found[-1][0] if found else None
        return sorted((number, where) for where, number in places.items() if after < number <= last_seq)

    def _same_number(self, place: int, number: int, indexed: int) -> None:
        if number != indexed:
            text = f"an entry has number {number}, and {indexed} in the index: one of them was changed"
            self._tell("undecodable", f"table entry, place {place}", text, loses=True)

    def _entry(self, row: Sequence[Any]) -> EntryRow | None:
        """A row as an entry, and what does not agree with it; None for what is none."""
        seq, place, entry_id, parent_id, at, kind, payload = row[:7]
        where = f"table entry, place {place}"
        wrong = "its place is of no segment" if place < 0 else ""
        if (type(seq), type(at), type(payload)) != (int, int, bytes) or not isinstance(parent_id, str | None):
            wrong = "a column is of another type than was written"
        if not wrong:
            wrong = _refused(lambda: check_texts(entry_id, kind)) or _refused(lambda: check_payload(payload))
        if not wrong and seq <= self._seq:
            wrong = f"its number {seq} is not greater than the one before it"
        if wrong:
            self._tell("undecodable", where, f"entry {entry_id!r} cannot be read: {wrong}", loses=True)
            return None
        if entry_id in self._ids:
            self._tell("duplicate_id", where, f"entry {entry_id} comes again; the first one counts", loses=True)
            return None
        if parent_id is not None and _refused(lambda: check_texts(parent_id)):
            before = row[9] if len(row) > 7 else None  # which its place says, too
            text = f"its parent is {parent_id!r}, which can be no id; it stands behind {before or 'nothing'}"
            unknown: FindingCode = "entry_path" if before else "missing_parent"
            self._tell(unknown, where, f"entry {entry_id}: {text}", loses=not before)
            row, parent_id = (*row[:3], before, *row[4:10], 0, *row[11:]) if before else row[:7], before
        for code, text in tables.disagreements(row) if len(row) > 7 else ():
            self._tell(code, where, f"entry {entry_id}: {text}", loses=code == "missing_parent")
        at = self._timed(where, at)
        self._ids.add(entry_id)
        self._seq = seq
        self._stats = Stats(entries=self._stats.entries + 1, usage=self._stats.usage)
        return EntryRow(entry_id, parent_id, seq, at, kind, payload)

    def _ledger_row(self, row: Sequence[Any]) -> LedgerRow | None:
        where = f"table usage, seq {row[0]}"
        try:
            usage = reads.usage_row(tuple(row))
        except AgentLaneError as error:
            self._tell("newer_format", where, str(error), loses=True)
            return None
        wrong = _refused(lambda: check_usage_row(usage))
        if (type(row[0]), type(row[1])) != (int, int) or row[0] <= self._seq:
            wrong = "its number or time is not what was written"
        if wrong:
            self._tell("undecodable", where, f"usage row {usage.id!r} cannot be read: {wrong}", loses=True)
            return None
        if usage.id in self._ids:
            self._tell("duplicate_id", where, f"id {usage.id} is an entry's too, or comes again", loses=True)
            return None
        at = self._timed(where, row[1])
        self._ids.add(usage.id)
        self._seq = row[0]
        self._stats = Stats(entries=self._stats.entries, usage=self._stats.usage.plus(usage))
        return LedgerRow(row[0], at, usage)

    def _timed(self, where: str, at: int) -> int:
        """A time that can be one, or that of the row before."""
        if abs(at) > TIME_MAX:
            text = f"its time {at} is none that was written; that of the row before it is taken, {self._time}"
            self._tell("undecodable", where, text, loses=True)
            return self._time
        self._time = at
        return at

    def _page(self, rows: list[Any]) -> Steps:
        if rows:
            yield rows

    def _broken(self, table: str, column: str, part: Broken) -> None:
        end = "to its end" if part.before is None else f"and before {part.before}"
        text = f"rows behind {column} {part.after} {end} cannot be read: {part.reason}"
        self._tell("unreadable", f"table {table}, {column} {part.after}", text, loses=True)

    def _tell(self, code: FindingCode, where: str, text: str, *, loses: bool = False) -> None:
        self._lost = self._lost or loses
        self._found(row_finding(self._path, code, where, text, loses=loses))


def _entries_at(database: sqlite3.Connection, places: Sequence[tuple[int, int]]) -> list[Sequence[Any] | str]:
    """The first of the entries at some places, as many as fit in a page."""
    found: list[Sequence[Any] | str] = []
    size = 0
    for _, place in places:
        row = _entry_at(database, place)
        found.append(row)
        size += sum(len(field) for field in row if isinstance(field, bytes))
        if size >= PAGE_BYTES:
            break
    return found


def _entry_at(database: sqlite3.Connection, place: int) -> Sequence[Any] | str:
    """The entry at a place with what is related to it, or alone where that cannot be read; or why it cannot."""
    found: list[Any] | Damage = []
    for statement in (tables.RELATED_BY_PLACE, tables.ENTRY_BY_PLACE):
        found = tried(partial(_all, database, statement, place))
        if not isinstance(found, Damage) and found:
            row: Sequence[Any] = found[0]
            return row
    return str(found) if isinstance(found, Damage) else "the index has it, and the table does not"


def _all(database: sqlite3.Connection, statement: str, place: int) -> list[Any]:
    return database.execute(statement, (place,)).fetchall()


def _refused(check: Callable[[], object]) -> str:
    """Why ``check`` refuses something; empty if it does not."""
    try:
        check()
    except AgentLaneError as error:
        return str(error)
    return ""
