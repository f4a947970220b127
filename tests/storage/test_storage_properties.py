"""Claim: after any sequence of commits, refusals, reads, reopenings and kills, each backend answers like the model.

The model is one for all of them, so they answer like each other (invariant 14 of the design).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from agentlane.data.usage import Usage, UsageRow
from agentlane.data.writes import (
    Address,
    AppendElement,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from agentlane.errors import InvalidWrite, UnknownEntry
from agentlane.storage.contract import Commit, EntryRow, Pending, SessionStorage, Store
from agentlane.testing.conformance import Harness, ReferenceSession, dump
from agentlane.testing.conformance.model import difference
from tests.storage.backends import BACKENDS

KINDS = ("user", "assistant", "tool_result", "compaction")
KEYS = ("a", "a|b", "a_|b", "A|b", "\uffff", "\U0001f9f5")
PREFIXES = (*KEYS, "", "a|", "a_", "a%", "%", "A")
NAMESPACES = ("app.a", "op.state")
MARK = Address("app.mark", "last")


class Insert(NamedTuple):
    """An entry: ``used`` takes an id that is used, ``parent`` counts back from the newest entry; 99 is nowhere."""

    used: int | None
    parent: int | None
    kind: str
    payload: bytes


class Charge(NamedTuple):
    """A ledger row; ``used`` as above."""

    used: int | None
    usage: Usage
    kind: str


class Submit(NamedTuple):
    """A commit, waited for at once or not."""

    writes: list[Any]
    wait: bool


class Walk(NamedTuple):
    """A path by pages; entries are counted back from the newest, 99 is nowhere."""

    start: int
    newest_first: bool
    size: int
    kinds: frozenset[str] | None
    stop_at: int | None
    stop_kind: str | None


class Read(NamedTuple):
    """The other reads, with a cursor and a limit."""

    address: Address
    after: int
    limit: int | None
    reverse: bool


class Reopen(NamedTuple):
    """Closed or killed, and opened again; by a new store object if ``fresh`` and the store is persistent."""

    kill: bool
    fresh: bool


Step: TypeAlias = Submit | Walk | Read | Reopen

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(msgspec.json.encode)
payloads = st.one_of(
    texts,
    st.sampled_from(
        [b"{}", b'{ "a": [1.0, null] }', '"\u2028\x85🧵"'.encode(), rb'"\u0000\r"', b'"' + b"x" * 9_000 + b'"']
    ),
)
addresses = st.builds(Address, st.sampled_from(NAMESPACES), st.sampled_from(KEYS))
rarely_used = st.one_of(st.none(), st.none(), st.none(), st.none(), st.integers(0, 5))
counts = st.one_of(st.none(), st.integers(0, 10**12))
writes = st.one_of(
    st.builds(
        Insert,
        rarely_used,
        st.one_of(st.none(), st.integers(0, 3), st.integers(0, 12), st.just(99)),
        st.sampled_from(KINDS),
        payloads,
    ),
    st.builds(Insert, st.none(), st.integers(0, 2), st.sampled_from(KINDS), payloads),
    st.builds(
        Charge,
        rarely_used,
        st.builds(Usage, input_tokens=counts, output_tokens=counts, cost_nanos=counts),
        st.sampled_from(["attempt", "summary", "adjustment"]),
    ),
    st.builds(SetValue, addresses, payloads),
    st.builds(DeleteValue, addresses),
    st.builds(AppendElement, addresses, payloads),
    st.builds(DeleteList, addresses),
)
submits = st.builds(Submit, st.lists(writes, min_size=1, max_size=8), st.booleans())
steps = st.one_of(
    submits,
    st.builds(Submit, st.lists(writes, max_size=1), st.booleans()),
    st.builds(
        Walk,
        st.integers(0, 15),
        st.booleans(),
        st.integers(1, 6),
        st.one_of(st.none(), st.frozensets(st.sampled_from(KINDS))),
        st.one_of(st.none(), st.integers(0, 15), st.just(99)),
        st.one_of(st.none(), st.sampled_from(KINDS)),
    ),
    st.builds(Read, addresses, st.integers(0, 60), st.one_of(st.none(), st.integers(0, 5)), st.booleans()),
    st.builds(Reopen, st.booleans(), st.booleans()),
)
programs = st.tuples(st.lists(submits, min_size=3, max_size=8), st.lists(steps, min_size=3, max_size=20)).map(
    lambda parts: [*parts[0], *parts[1]]
)


SLOW = [name for name in BACKENDS if name.startswith("sqlite")]
"""Backends whose every read is a hop to a thread."""


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in SLOW])
@settings(max_examples=settings().max_examples // 2)  # each example is some hundred reads
@given(program=programs)
def test_every_backend_answers_like_the_model(backend: str, program: list[Step]) -> None:
    play(backend, program)


@pytest.mark.parametrize("backend", SLOW)
@settings(max_examples=settings().max_examples // 4)
@given(program=programs)
def test_sqlite_answers_like_the_model(backend: str, program: list[Step]) -> None:
    play(backend, program)


def play(backend: str, program: list[Step]) -> None:
    async def run() -> None:
        with TemporaryDirectory() as folder:
            async with BACKENDS[backend](Path(folder)) as harness:
                await Driver(harness).run(program)

    asyncio.run(run())


class Driver:
    """One session of a backend and the model beside it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.store: Store = harness.store()
        self.storage: SessionStorage
        self.model = ReferenceSession()
        self.ahead = ReferenceSession()
        """The model with what was submitted, whether or not it was reported; its seqs and times mean nothing."""
        self.in_flight: list[tuple[list[Write], Pending]] = []
        self.used: list[str] = []
        self.entries: list[str] = []
        self.submitted = 0

    async def run(self, program: list[Step]) -> None:
        await self.store.create("s")
        self.storage = await self.store.open("s")
        for step in program:
            note(f"{step}")
            match step:
                case Submit():
                    await self.submit(step)
                case Walk():
                    await self.walk(self.nth(self.entries, step.start), step)
                case Read():
                    await self.read(step)
                case Reopen():
                    await self.reopen(step)
        await self.settle()
        await self.compare()
        await self.everything(part=0)
        await self.reopen(Reopen(kill=False, fresh=True))
        await self.everything(part=1)
        await self.store.close()

    async def everything(self, *, part: int) -> None:
        """Reads of every kind over what the program has left, side by side: half of them, ``part`` says which."""
        reads: list[Awaitable[None]] = []
        for number, (start, row) in enumerate(self.model.rows.items()):
            if number % 2 != part:
                continue
            kind, other = row.kind, KINDS[number % len(KINDS)]
            for newest_first in (True, False):
                for size, kinds, stop_at, stop_kind in (
                    (1 + number % 4, None, None, None),
                    (2, frozenset([other]), None, other if number % 3 else kind),
                    (3, frozenset(KINDS[:2]), (7 * number) % 9, KINDS[2]),
                    (3, frozenset[str](), None, None),
                ):
                    reads.append(self.walk(start, Walk(0, newest_first, size, kinds, stop_at, stop_kind)))
        for number, (namespace, key) in enumerate((each, key) for each in NAMESPACES for key in PREFIXES):
            for reverse in (False, True):
                reads.append(self.read(Read(Address(namespace, key), (5 * number) % 40, None, reverse)))
                reads.append(self.read(Read(Address(namespace, key), 0, number % 3, reverse)))
        await asyncio.gather(*reads)

    async def submit(self, step: Submit) -> None:
        entries, used = list(self.entries), list(self.used)
        writes = [self.write(each, entries, used) for each in step.writes]
        refused = self.ahead.refuses(writes)
        if writes:
            writes.append(SetValue(MARK, b"%d" % (self.submitted + 1)))
        try:
            pending = self.storage.submit(writes, publish=self.publisher(writes))
            if refused:
                await pending
        except InvalidWrite:
            assert refused, f"refused, but the model takes it: {writes}"
            return
        assert not refused, f"taken, but the model refuses it: {writes}"
        self.submitted += 1
        self.entries, self.used = entries, used
        self.ahead.apply(writes, first_seq=self.ahead.next_seq, at=0)
        self.in_flight.append((writes, pending))
        if step.wait:
            await self.settle()
            await self.compare()

    def publisher(self, writes: list[Write]) -> Callable[[Commit], None]:
        def publish(done: Commit) -> None:
            self.model.commit(writes, done)
            assert done.stats == self.model.stats()

        return publish

    async def walk(self, start: str, step: Walk) -> None:
        await self.settle()
        stop_at = None if step.stop_at is None else self.nth(self.entries, step.stop_at)
        options: dict[str, Any] = {
            "newest_first": step.newest_first,
            "kinds": step.kinds,
            "stop_at": stop_at,
            "stop_kind": step.stop_kind,
        }
        if start not in self.model.rows:
            with pytest.raises(UnknownEntry):
                await self.storage.path(start, **options)
            return
        want = self.model.path(start, **options)
        same(await self.storage.path(start, **options), want)
        got: list[EntryRow] = []
        for _ in range(len(want) + 1):
            page = await self.storage.path(start, limit=step.size, after=got[-1].id if got else None, **options)
            same(page, want[len(got) : len(got) + step.size])
            got += page

    async def read(self, step: Read) -> None:
        await self.settle()
        storage, model, (namespace, key) = self.storage, self.model, step.address
        after, limit, reverse = step.after or None, step.limit, step.reverse
        same(
            await storage.elements(step.address, after=after, limit=limit, reverse=reverse),
            model.elements(step.address, after=after, limit=limit, reverse=reverse),
        )
        same(await storage.value(step.address), model.value(step.address))
        same(await storage.values(namespace, key), model.values(namespace, key))
        same(await storage.lists(namespace, key), model.lists(namespace, key))
        same(await storage.scan(after_seq=step.after, limit=limit), model.scan(after_seq=step.after, limit=limit))
        same(await storage.usage(after_seq=step.after, limit=limit), model.usage(after_seq=step.after, limit=limit))
        ids = [self.nth(self.used, number) for number in (step.after, 0, 99, step.after)]
        same(await storage.entries(ids), model.entries(ids))

    async def reopen(self, step: Reopen) -> None:
        if step.kill:
            self.storage.kill()
        else:
            await self.settle()
            await self.storage.close()
        if step.fresh and self.store.capabilities.persistent:
            await self.store.close()
            self.store = self.harness.store()
        self.storage = await self.store.open("s")
        if step.kill:
            await self.adopt()
        await self.compare()

    async def adopt(self) -> None:
        """Find out which of the commits in flight the medium had when it died: the first few of them, each whole."""
        in_flight, self.in_flight = self.in_flight, []
        unreported = [writes for writes, pending in in_flight if not pending.done()]
        mark = int(await self.storage.value(MARK) or b"0")
        last = self.submitted - len(unreported)
        assert last <= mark <= self.submitted, f"{last} commits were reported, commit {mark} is the last that is there"
        for writes in unreported[: mark - last]:
            self.model.apply(writes, first_seq=self.model.next_seq, at=0)
        self.submitted = mark
        got, want = await dump(self.storage, NAMESPACES), self.model.dump(NAMESPACES)
        same(without_seqs(got), without_seqs(want))
        # Their seqs and times were never reported: they are what they are.
        self.model.rows = {row.id: row for row in got["entries"]}
        self.model.ledger = got["usage"]
        for namespace, lists in got["lists"].items():
            for key, elements in lists.items():
                self.model.lists_at[Address(namespace, key)] = elements
        self.ahead = ReferenceSession()
        self.ahead.rows, self.ahead.ledger = dict(self.model.rows), list(self.model.ledger)
        self.entries = [each for each in self.entries if each in self.model.rows]
        self.used = [each for each in self.used if self.ahead.refuses([entry(each)])]

    async def settle(self) -> None:
        """Wait for what is in flight; reads may see it before it is reported, or not."""
        for _, pending in self.in_flight:
            await pending
        self.in_flight.clear()

    async def compare(self) -> None:
        same(await dump(self.storage, NAMESPACES), self.model.dump(NAMESPACES))

    def write(self, step: Any, entries: list[str], used: list[str]) -> Write:
        match step:
            case Insert(used=again, parent=parent, kind=kind, payload=payload):
                new = self.fresh(used) if again is None else self.nth(used, again)
                above = None if parent is None else self.nth(entries, parent)
                entries.append(new)
                used.append(new)
                return InsertEntry(new, above, kind, payload)
            case Charge(used=again, usage=usage, kind=kind):
                new = self.fresh(used) if again is None else self.nth(used, again)
                used.append(new)
                return InsertUsage(UsageRow(id=new, kind=kind, usage=usage))  # type: ignore[arg-type]
            case _:
                assert isinstance(step, SetValue | DeleteValue | AppendElement | DeleteList)
                return step

    def fresh(self, used: list[str]) -> str:
        return f"id-{len(used)}-{self.submitted}"

    def nth(self, ids: list[str], back: int) -> str:
        return ids[-1 - back] if back < len(ids) else "nowhere"


def entry(entry_id: str) -> InsertEntry:
    return InsertEntry(entry_id, None, "user", b"0")


def same(got: Any, want: Any) -> None:
    found = difference(got, want)
    assert found is None, found


def without_seqs(dumped: dict[str, Any]) -> dict[str, Any]:
    return dumped | {
        "entries": [row._replace(seq=0, at=0) for row in dumped["entries"]],
        "usage": [each.row for each in dumped["usage"]],
        "lists": {
            namespace: {key: [each.payload for each in elements] for key, elements in lists.items()}
            for namespace, lists in dumped["lists"].items()
        },
    }
