"""What a check works with: its place, its sessions, and the history of what it did; and how it says what is wrong."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from msgspec import Struct

from agentlane.data.findings import VerifyReport
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
from agentlane.errors import InvalidWrite
from agentlane.storage.contract import Commit, Pending, Probe, SessionInfo, SessionStorage, Store
from agentlane.testing.clock import CountingIds
from agentlane.testing.conformance.harness import Harness
from agentlane.testing.conformance.model import ReferenceSession, difference, dump
from agentlane.testing.wrapping import WrappedStorage, WrappedStore

HISTORY_LINES_MAX = 400
READS_AT_ONCE = 64
"""How many reads are under way together where a check has thousands to make: more than any pool of a backend has."""
NAMESPACE = "app.check"


class Check(Struct, frozen=True, kw_only=True):
    """One numbered check. ``needs`` names means of the harness without which it is skipped."""

    name: str
    rules: tuple[str, ...]
    needs: tuple[str, ...]
    run: Callable[[Bench], Awaitable[None]]

    def __str__(self) -> str:
        return self.name


def check(*rules: str, needs: Sequence[str] = ()) -> Callable[[Callable[[Bench], Awaitable[None]]], Check]:
    """Make a check of a function that raises ``Broken`` when the backend breaks one of ``rules``."""

    def of(function: Callable[[Bench], Awaitable[None]]) -> Check:
        return Check(name=function.__name__, rules=rules, needs=tuple(needs), run=function)

    return of


class Broken(AssertionError):
    """A rule is broken."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


def true(condition: bool, rule: str, message: str) -> None:
    """Raise ``Broken`` unless ``condition``."""
    if not condition:
        raise Broken(rule, message)


def equal(got: Any, want: Any, rule: str, what: str) -> None:
    """Raise ``Broken`` that names the first difference unless ``got`` equals ``want``."""
    found = difference(got, want)
    if found is not None:
        raise Broken(rule, f"{what}: {found}")


async def read_and_compare(reads: Iterable[tuple[Callable[[], Awaitable[Any]], Any, str]], rule: str) -> None:
    """Make each read, some at once, and raise ``Broken`` unless it gives what is wanted; told is what was read."""
    left = iter(reads)
    while chosen := list(islice(left, READS_AT_ONCE)):
        found = await asyncio.gather(*(read() for read, _, _ in chosen))
        for got, (_, want, what) in zip(found, chosen, strict=True):
            equal(got, want, rule, what)


@contextmanager
def raises(kind: type[Exception] | tuple[type[Exception], ...], rule: str, what: str) -> Iterator[None]:
    """Raise ``Broken`` unless the block raises one of ``kind``."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = " or ".join(each.__name__ for each in kinds)
    try:
        yield
    except kinds:
        return
    except Broken:
        raise
    except Exception as error:
        raise Broken(rule, f"{what} raised {type(error).__name__}: {error}, not {names}") from error
    raise Broken(rule, f"{what} did not raise {names}")


class Bench:
    """One check's place: makes stores and sessions on it, and writes down what is asked of them."""

    def __init__(self, harness: Harness, another: Callable[[], Awaitable[Harness]]) -> None:
        self.harness = harness
        self._another = another
        self.ids = CountingIds()
        self.history: deque[str] = deque(maxlen=HISTORY_LINES_MAX)
        self._stores: list[Store] = []
        self._made = 0
        self.store = self.another_store()

    def another_store(self) -> Store:
        """One more store object, on the same place if the store is persistent."""
        self._made += 1
        store = _RecordedStore(self.harness.store(), self.history, f"store{self._made}")
        self._stores.append(store)
        return store

    async def session(self, session_id: str | None = None) -> SessionStorage:
        """A new session, open for writing."""
        info = await self.store.create(session_id)
        return await self.store.open(info.id)

    async def reopen(self, storage: SessionStorage) -> SessionStorage:
        """Close ``storage`` and open it again; a persistent store is closed too, so that nothing is kept in memory."""
        await storage.close()
        return await self.open_again(storage.info.id)

    async def open_again(self, session_id: str) -> SessionStorage:
        """Open a session that is not open, through a new store object if the store is persistent."""
        await self.renew_store()
        return await self.store.open(session_id)

    async def renew_store(self) -> None:
        """Close the store and make another on the same place, if it is persistent."""
        if self.store.capabilities.persistent:
            await self.store.close()
            self.store = self.another_store()

    async def another_place(self) -> None:
        """Close every store that was made, and go on at a fresh place."""
        await self.close()
        self.harness = await self._another()
        self.store = self.another_store()

    async def close(self) -> None:
        """Close every store that was made."""
        while self._stores:
            await self._stores[-1].close()
            self._stores.pop()

    def entry(
        self, parent: str | InsertEntry | None = None, kind: str = "user", payload: bytes = b'"e"'
    ) -> InsertEntry:
        """A write of a new entry with a fresh id."""
        parent_id = parent.id if isinstance(parent, InsertEntry) else parent
        return InsertEntry(self.ids.new(), parent_id, kind, payload)

    def usage(self, input_tokens: int | None = 10, output_tokens: int | None = 5, **fields: Any) -> InsertUsage:
        """A write of a new ledger row with a fresh id; ``fields`` are those of ``UsageRow``."""
        usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens, cost_nanos=fields.pop("cost_nanos", None))
        given: dict[str, Any] = {"id": self.ids.new(), "kind": "attempt", "usage": usage}
        return InsertUsage(UsageRow(**given | fields))


async def commit(storage: SessionStorage, model: ReferenceSession, *writes: Write) -> Commit:
    """Commit ``writes`` and let ``model`` follow."""
    done = await storage.submit(writes)
    model.commit(writes, done)
    return done


async def refused(storage: SessionStorage, writes: Sequence[Write], what: str) -> bool:
    """Check that ``writes`` are refused (S2), by ``submit`` or later by the medium; whether it was by ``submit``."""
    published: list[Commit] = []
    by_submit = True
    with raises(InvalidWrite, "S2", f"a commit with {what}"):
        pending = storage.submit(writes, publish=published.append)
        by_submit = False
        await pending
    true(not published, "S2", f"a commit with {what} was refused and published all the same")
    return by_submit


async def same_as(storage: SessionStorage, model: ReferenceSession, rule: str, when: str) -> None:
    """Check that everything ``storage`` answers is what ``model`` says."""
    namespaces = {NAMESPACE, *(each.namespace for each in (*model.values_at, *model.lists_at))}
    equal(await dump(storage, namespaces), model.dump(namespaces), rule, when)


def at(key: str) -> Address:
    """An address of the checks' own namespace."""
    return Address(NAMESPACE, key)


def put(key: str, payload: bytes = b'"v"') -> SetValue:
    return SetValue(at(key), payload)


def append(key: str, payload: bytes = b'"x"') -> AppendElement:
    return AppendElement(at(key), payload)


class _RecordedStore(WrappedStore):
    """Writes down what is asked of a store and what it answers."""

    def __init__(self, inner: Store, history: deque[str], name: str) -> None:
        super().__init__(inner)
        self._history = history
        self._name = name

    async def create(self, session_id: str | None = None, *, metadata: Mapping[str, Any] | None = None) -> SessionInfo:
        with self._line(f"create({session_id!r})"):
            info = await super().create(session_id, metadata=metadata)
        return info

    async def open(self, session_id: str, *, read_only: bool = False, probe: Probe | None = None) -> SessionStorage:
        with self._line(f"open({session_id!r}{', read_only' if read_only else ''})"):
            storage = await self.inner.open(session_id, read_only=read_only, probe=probe)
        return _RecordedStorage(storage, self._history, f"{self._name}/{session_id}")

    async def delete(self, session_id: str) -> None:
        with self._line(f"delete({session_id!r})"):
            await super().delete(session_id)

    async def verify(self, session_id: str) -> VerifyReport:
        with self._line(f"verify({session_id!r})"):
            return await super().verify(session_id)

    async def close(self) -> None:
        with self._line("close()"):
            await super().close()

    @contextmanager
    def _line(self, what: str) -> Iterator[None]:
        with _recorded(self._history, f"{self._name}.{what}"):
            yield


class _RecordedStorage(WrappedStorage):
    """Writes down what changes a session; reads are told by the message of what they got wrong."""

    def __init__(self, inner: SessionStorage, history: deque[str], name: str) -> None:
        super().__init__(inner)
        self._history = history
        self._name = name

    def inner_faulted(self, error: BaseException) -> None:
        self._history.append(f"{self._name}.on_fault({error!r})")
        super().inner_faulted(error)

    def submit(
        self, writes: Sequence[Write], *, publish: Callable[[Commit], None] | None = None, name: str = "commit"
    ) -> Pending:
        text = "; ".join(_in_words(write) for write in writes[:12]) + (" ..." if len(writes) > 12 else "")

        def reported(done: Commit) -> None:
            self._history.append(f"{self._name} reports seq {done.first_seq}: {text[:60]}")
            if publish is not None:
                publish(done)

        with _recorded(self._history, f"{self._name}.submit({text})"):
            return self.inner.submit(writes, publish=reported, name=name)

    async def close(self) -> None:
        with _recorded(self._history, f"{self._name}.close()"):
            await super().close()

    def kill(self) -> None:
        self._history.append(f"{self._name}.kill()")
        super().kill()


@contextmanager
def _recorded(history: deque[str], text: str) -> Iterator[None]:
    history.append(text)
    try:
        yield
    except BaseException as error:
        history.append(f"    raised {type(error).__name__}: {error}")
        raise


def _in_words(write: Write) -> str:
    match write:
        case InsertEntry(id=new, parent_id=parent, kind=kind):
            return f"{kind} {_tail(new)} under {_tail(parent)}"
        case InsertUsage(row=row):
            return f"usage {_tail(row.id)}"
        case SetValue(address=address, payload=payload):
            return f"set {'/'.join(address)} = {payload[:20]!r}"
        case DeleteValue(address=address):
            return f"delete {'/'.join(address)}"
        case AppendElement(address=address, payload=payload):
            return f"append to {'/'.join(address)}: {payload[:20]!r}"
        case DeleteList(address=address):
            return f"delete list {'/'.join(address)}"


def _tail(entry_id: str | None) -> str:
    """The part of a counted id that counts."""
    return "nothing" if entry_id is None else entry_id[-12:].lstrip("0") or entry_id
