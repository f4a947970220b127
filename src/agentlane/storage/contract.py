"""The storage contract: what a backend promises, as numbered rules and as protocols.

A *store* holds sessions; a *session storage* holds one open session. The session's owner is the only writer. The rules
(``S1`` ... ) are what ``agentlane.testing.check_storage`` checks and what its tests cite.

Commits
    S1  ``submit`` is the only write primitive. A commit is all or nothing, on the medium and in every read.
    S2  A refused commit raises ``InvalidWrite`` from ``submit`` and changes nothing, sequence numbers included. Refused
        are: no writes at all; an entry whose parent is neither stored, nor submitted before, nor earlier in the same
        commit; an entry or usage id that is used (entries and usage rows share one id space). Where only the medium can
        know, the pending commit fails with ``InvalidWrite`` instead and the storage is not faulted. A medium that
        another program holds for longer than the waiting time fails the commit, and those queued behind it, with
        ``StoreBusy``: nothing is written, and the storage is not faulted.
    S3  Sequence numbers and stats are assigned inside ``submit``, in the order of the calls, without waiting. Write
        ``i`` of a commit has ``seq = first_seq + i``; ``first_seq`` is 1 for a new session and grows strictly over
        everything that is written, reopening included. Gaps are legal (a commit refused by the medium leaves one).
    S4  The medium may take several commits at once, and takes them in the order of ``submit``.
    S5  When the medium reports, ``publish(commit)`` is called once, synchronously on the session's event loop, in
        commit order, before the pending commit is done; it is called whether or not anyone waits. A backend that needs
        no waiting may report, and publish, inside ``submit``.
    S6  Reads see exactly the published commits and those in between reports: never a commit that failed, and always
        one whose ``publish`` has been called.
    S7  With durability ``disk`` a reported commit survives power loss (data synced, and for a new file its folder
        entry); with ``process`` it survives the death of the process. ``memory`` survives neither and says so.
    S8  Cancelling whoever awaits a pending commit changes nothing about the commit.

Faults
    S9  Any failure of the medium faults the storage: all pending commits fail with ``SessionFaulted`` caused by it, in
        order, without ``publish``; then ``on_fault(error)`` is called once. Later submits raise ``SessionFaulted``
        with the same cause; reads go on serving what was published. Nothing is retried. A ``publish`` that raises is
        such a failure too: the medium has its commit, reads serve it, and its pending commit fails like those behind.
    S10 After a fault, ``close`` and a new ``open`` read what is there. A commit that failed is then there whole or not
        at all.

Data
    S11 Payloads come back byte for byte. They are JSON texts without newline bytes; a backend never looks into them
        but for ``op.meta`` (see S20).
    S12 Entries and usage rows are write-once. An entry comes back with the id, parent, seq, time, kind and payload of
        its write; all entries of a commit have the commit's time.
    S13 ``SetValue`` replaces, ``DeleteValue`` leaves no trace, a list keeps its elements in order of ``seq`` and is
        deleted whole. Writes of one commit apply in order.
    S14 ``stats()`` equals the sum over the ledger after every published commit.

Reads
    S15 ``entries(ids)`` gives the rows in the order asked, None for an id that is not there.
    S16 ``path(start, ...)`` walks from ``start`` to the root by parents, whatever else was written beside it, newest
        first or oldest first. ``after`` is the id where the page before ended (exclusive). ``kinds`` filters what is
        returned, not where it stops; ``stop_at`` and ``stop_kind`` end the walk *towards the root* after (including)
        that entry or the first entry of that kind. ``limit`` counts rows returned. Without payloads, they are empty.
        Unknown ``start``, or an ``after`` that is not on its path: ``UnknownEntry``. ``limit`` is None or a whole
        number of at least 0 (here and in S17; the session refuses others). A cycle or missing parent is
        ``CorruptSession``, not a hang.
    S17 ``values`` gives the keys of a namespace in the order of their code points; ``after``, which need not be a key,
        is exclusive. ``scan`` pages through all entries, ``usage`` through all ledger rows, by ``seq``, exclusive of
        ``after_seq``.
    S18 No read holds a transaction, or anything else that holds up the writer, across an await.
    S26 ``search`` gives the entries of which ``agentlane.data.search.total_of`` is not 0, with that total: those on the
        path from ``start`` (None: all of the session), of the kinds and times that the search lets through, and only
        then the best ``limit`` of them: highest total first, then newest by time, then by ``seq``. All that was
        published when it was called is looked at. An index that a backend keeps for it is derived: no commit waits for
        it, costs more for it or fails with it; it may be behind, and then the rest is read, but never wrong; one that
        is damaged, or was made by other rules, is made again. Unknown ``start``: ``UnknownEntry``. ``scan`` reads the
        entries themselves and finds the same. ``search_by_reading`` does all this in terms of the other reads.

Sessions and owners
    S19 ``create`` makes a session with a fresh or a given id and refuses an id that exists (``InvalidWrite``). ``open``
        never creates (``UnknownSession``). Opening writes nothing (but see S30).
    S20 ``open_operations()`` lists the values in namespace ``op.meta`` of every session without opening each, oldest
        first. ``op.meta`` payloads are JSON objects with text ``lane`` and integer ``started_at``.
    S21 One writable owner at a time: ``SessionOwned`` or ``StoreOwned`` at once for a second one, in the same process
        too. An owner in this process whose event loop is closed was forgotten: it is killed and replaced. Read-only
        opens need no ownership and refuse ``submit`` with ``ReadOnlySession``.
    S22 ``epoch`` is read at open; the storage's own epoch is one more, and is written with its first commit. A commit
        under an epoch that is not the newest fails with ``OwnershipLost`` and faults the storage.
    S23 ``close`` waits for submitted commits, then gives up files, threads and ownership; closing twice does nothing;
        cancelling ``close`` does not skip clean-up. After it, everything raises ``SessionClosed``. A session belongs
        to the event loop it was opened on, and anything from another one raises ``WrongLoop``. If that loop is closed,
        ``close`` lets go of everything from any other, and what was pending fails with ``SessionFaulted``.
    S24 Damage is ``CorruptSession`` with its place, a newer format ``UnsupportedFormat``; neither changes a byte.

Whole sessions
    S25 ``snapshot`` gives all of a session as it was at one commit, the newest that the medium has or a later one than
        every published one: entries and ledger rows in order of ``seq``, list elements, values. It stays readable and
        the same until it is closed, whatever is written beside it, and holds up no writer. A session that is closed,
        or removed, may end it with ``SessionClosed`` or ``UnknownSession``, never with fewer rows. Pages are bounded
        by bytes as well as by rows.
    S27 ``load`` makes a session of such rows: ids, parents, ``seq``, times and payloads are kept, and its first commit
        begins behind ``last_seq``. It is whole on return, and as durable as a commit; refused (``InvalidWrite``, for
        what S2 refuses and for numbers that do not rise), failed, cancelled or killed half-way it is not there: never
        listed, opened or counted, its id free, and what it left on the medium is given back by a later ``load`` in
        the same place. (Cancelled when all rows are in, it may be there, whole.) Other sessions can be used meanwhile.
        Rows are taken in as they come, in bounded memory but for their ids.
    S28 ``compact`` gives back room that holds only superseded state. To every reader, cursor and snapshot nothing
        changes, commits are taken meanwhile, and a death at any point leaves the session as it was. Where it fails,
        nothing has changed, or the storage is faulted (S9).
    S29 ``verify`` looks at all of a session, open or not, beside whoever owns it, and changes nothing: not a byte, not
        an owner, and no commit waits for it. Its report says what is wrong and where, and counts what can be read. What
        these rules leave behind (a session that is new, at any commit, loaded, cleaned up) has no findings, and after a
        death none that lose anything; damage that S24 speaks of has at least one. ``UnknownSession`` for what is not
        there. A backend that has no such look declares that it does not verify.
    S30 A session of an older format is read as it is, and not a byte changes for that. The first open for writing
        brings it to the current format before anything else: whole at each moment, nothing lost of it, operations that
        are open included; where that fails the session is there as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from agentlane.data.findings import VerifyReport
from agentlane.data.search import Search, SearchHit
from agentlane.data.usage import Stats, UsageRow
from agentlane.data.writes import Address, Write
from agentlane.errors import InvalidDefinition
from agentlane.waiting import Outcome

Durability: TypeAlias = Literal["disk", "process"]
"""What a reported commit survives: the loss of power, or the death of the process."""


def check_durability(durability: object) -> Durability:
    """One of the two words; ``InvalidDefinition`` for another, which must not quietly mean that nothing is synced."""
    if durability == "disk":
        return "disk"
    if durability == "process":
        return "process"
    raise InvalidDefinition(f"durability={durability!r}: use 'disk' or 'process'")


class Commit(NamedTuple):
    """A commit that the medium has: its first sequence number, its time in milliseconds, and the stats after it."""

    first_seq: int
    at: int
    stats: Stats


class EntryRow(NamedTuple):
    """An entry as stored; ``payload`` is empty where payloads were not asked for."""

    id: str
    parent_id: str | None
    seq: int
    at: int
    kind: str
    payload: bytes


class LedgerRow(NamedTuple):
    """A usage row with its place and time."""

    seq: int
    at: int
    row: UsageRow


class Element(NamedTuple):
    """An element of a list."""

    seq: int
    payload: bytes


class ElementRow(NamedTuple):
    """An element of a list, with the list that it is of."""

    address: Address
    seq: int
    payload: bytes


class ValueRow(NamedTuple):
    """A value with its address."""

    address: Address
    payload: bytes


Row: TypeAlias = EntryRow | LedgerRow | ElementRow | ValueRow
"""Whatever a session is made of, as snapshots give it and ``Store.load`` takes it."""


class Compacted(NamedTuple):
    """What a cleanup did: the bytes that the session's file, or all sessions of it, took before and take now."""

    bytes_before: int
    bytes_after: int


class SessionInfo(Struct, frozen=True, kw_only=True):
    """What a store knows of a session without opening it."""

    id: str
    created_at: int
    metadata: dict[str, Any] = {}


class Found(NamedTuple):
    """An entry that matches a search, without its payload, and how well (S26)."""

    row: EntryRow
    total: int


class OpenOperation(NamedTuple):
    """An operation that is not settled, as a store lists it."""

    session_id: str
    operation_id: str
    lane: str
    started_at: int


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a backend declares to the conformance suite."""

    persistent: bool
    """A new store object on the same place finds the sessions again."""
    cross_process: bool
    """Ownership is enforced between processes."""
    verifies: bool = True
    """Its sessions can be verified (S29)."""


class Pending(Outcome[Commit]):
    """A submitted commit. ``await`` gives the ``Commit`` or raises; a cancelled wait leaves the commit as it is (S8).

    Backends make one per commit and end it once, on the event loop, with ``succeed`` when the medium has the commit and
    it is published, or with ``fail`` when the medium does not have it, or it is not known whether it has.
    """

    __slots__ = ("_on_failure",)

    def __init__(self) -> None:
        super().__init__()
        self._on_failure: Callable[[BaseException], None] | None = None

    def fail(self, error: BaseException) -> None:
        """The commit is not made, or it is not known whether it is."""
        if not self.done() and self._on_failure is not None:
            callback, self._on_failure = self._on_failure, None
            super().fail(error)
            callback(error)
        else:
            super().fail(error)

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Have ``callback`` called, synchronously and once, if the commit fails (at once if it has)."""
        if self._error is not None:
            callback(self._error)
        else:
            self._on_failure = callback


class Probe(Protocol):
    """Told of each boundary that is reached. For tests: it may raise ``BaseException`` to stop everything there."""

    def reached(self, boundary: str) -> None:
        """Called at ``commit.<name>.before``, ``.inside``, ``.after`` and at effect boundaries."""
        ...


class Snapshot(Protocol):
    """All of a session as it was at one commit (S25)."""

    @property
    def info(self) -> SessionInfo: ...
    @property
    def last_seq(self) -> int:
        """The highest sequence number that was given out by then."""
        ...

    @property
    def stats(self) -> Stats: ...

    def pages(self) -> AsyncIterator[Sequence[Row]]:
        """Every row, in pages of bounded size: entries by ``seq``, then ledger rows by ``seq``, then the elements of
        each list, then values. May be called again, for all of it from the start."""
        ...

    def branch_pages(self, tip: str | None) -> AsyncIterator[Sequence[Row]]:
        """As ``pages``, but of the entries those alone that lie on the path from ``tip`` to the root (None: none), no
        other being read for it, and no ledger rows. Reading them raises ``UnknownEntry`` for a tip that is none of the
        snapshot's entries."""
        ...

    async def close(self) -> None:
        """Give up what keeps it readable; twice does nothing."""
        ...


class SessionStorage(Protocol):
    """One open session (rules S1-S30). Reads may be called while commits are pending."""

    @property
    def info(self) -> SessionInfo: ...
    @property
    def epoch(self) -> int:
        """The epoch that this owner's commits carry (S22)."""
        ...

    @property
    def read_only(self) -> bool: ...
    @property
    def findings(self) -> Sequence[str]:
        """What opening and writing noticed and nobody else was told: a torn tail cut off, say."""
        ...

    on_fault: Callable[[BaseException], None] | None

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        """Hand over one commit (S1-S8). ``name`` is what probes are told."""
        ...

    def stats(self) -> Stats: ...

    async def entries(self, ids: Sequence[str]) -> list[EntryRow | None]: ...

    async def path(
        self,
        start: str,
        *,
        newest_first: bool = True,
        limit: int | None = None,
        after: str | None = None,
        kinds: Collection[str] | None = None,
        stop_at: str | None = None,
        stop_kind: str | None = None,
        payloads: bool = True,
    ) -> list[EntryRow]: ...

    async def scan(self, *, after_seq: int = 0, limit: int | None = None) -> list[EntryRow]: ...

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]: ...

    async def value(self, address: Address) -> bytes | None: ...

    async def values(
        self, namespace: str, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> dict[str, bytes]:
        """Values of a namespace whose key begins with ``prefix``, by key, keys in order, from beyond ``after`` on."""
        ...

    async def elements(
        self, address: Address, *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[Element]:
        """Elements in order of ``seq`` (or reversed), beyond ``after`` in that direction."""
        ...

    async def lists(self, namespace: str, prefix: str = "") -> list[str]:
        """Keys of the lists of a namespace that begin with ``prefix``, in order."""
        ...

    async def snapshot(self) -> Snapshot:
        """All of the session as it is at one commit (S25); to be closed."""
        ...

    async def compact(self) -> Compacted:
        """Give back what holds only superseded state (S28). ``ReadOnlySession``, ``SessionFaulted``, ``StoreBusy``,
        ``OSError``. Cancelling the caller does not take it back."""
        ...

    async def search(self, search: Search, *, start: str | None = None, scan: bool = False) -> list[Found]:
        """What matches, best first (S26). ``SearchUnavailable`` where the index cannot be had at all; ``scan`` can."""
        ...

    async def close(self) -> None: ...

    def kill(self) -> None:
        """Die as a killed process would: no report, no flush; files and locks are let go. For crash tests."""
        ...


class Store(Protocol):
    """Where sessions live."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        """Make an empty session and return what is known of it; it is durable on return."""
        ...

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        """Open a session that exists (S19, S21).

        Opened read-only it is seen as it is now: entries, usage, stats, list elements, and those values that say where
        the session stands (``agentlane.data.addresses.CURRENT``) and results, are those of the open, as of one commit,
        whatever an owner writes later. Other values, and whether a list was deleted, may be newer. One that is deleted
        meanwhile is seen as it was, or each read raises ``UnknownSession``.
        """
        ...

    async def list(self) -> Sequence[SessionInfo]:
        """All sessions, oldest first; those of one millisecond by id."""
        ...

    async def load(
        self,
        pages: AsyncIterable[Sequence[Row]],
        *,
        last_seq: int,
        session_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        created_at: int | None = None,
    ) -> SessionInfo:
        """Make a session of rows in the order of ``Snapshot.pages`` (S27); it is there, whole and durable, on return.

        ``session_id``, ``metadata`` and ``created_at`` (milliseconds; None: now) as for ``create``, and its errors.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Remove a session that nobody has open; durable on return. ``UnknownSession``, ``SessionOwned``."""
        ...

    async def open_operations(self) -> Sequence[OpenOperation]: ...

    async def search(
        self,
        text: str,
        *,
        session_id: str | None = None,
        branch: str | None = None,
        types: Iterable[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 20,
        prefix: bool = False,
        scan: bool = False,
    ) -> Sequence[SearchHit]:
        """As ``Session.search``, over all sessions or the one named; sessions without such a branch are passed over.

        Best first, then newest, then by session. ``UnknownSession``; else as ``Session.search``.
        """
        ...

    async def verify(self, session_id: str) -> VerifyReport:
        """What is wrong with a session, also with one that does not open, and how much of it can be read (S29).

        ``UnknownSession``. ``Verifying`` is a way to have it.
        """
        ...

    async def close(self) -> None:
        """Close every session that was opened through this store, then the store."""
        ...
