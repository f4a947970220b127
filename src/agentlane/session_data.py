"""What a session holds beside its branches: names, entries, the application's values and lists, the ledger."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar, overload

import msgspec

from agentlane.data import addresses, codec
from agentlane.data.addresses import ListAddress, ValueAddress
from agentlane.data.border import clean_json, clean_text
from agentlane.data.entries import Entry
from agentlane.data.reads import cursor, id_text, page_limit
from agentlane.data.usage import Stats, Usage, UsageRow
from agentlane.data.writes import AppendElement, DeleteList, DeleteValue, SetValue, Write
from agentlane.driver.ledger import record_adjustment
from agentlane.driver.runtime import Runtime
from agentlane.errors import CorruptSession, InvalidMessage, InvalidName, UnknownEntry
from agentlane.storage.contract import Commit, LedgerRow

T = TypeVar("T")
A = TypeVar("A", ValueAddress[Any], ListAddress[Any])


class SessionData:
    """The part of a session that has nothing to do with lanes. Not made by itself: see ``Session``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._name: str | None = None

    # What it is.

    @property
    def id(self) -> str:
        """The session's id."""
        return self._runtime.session_id

    @property
    def metadata(self) -> dict[str, Any]:
        """What the session was created with (a copy)."""
        return dict(clean_json(self._runtime.storage.info.metadata))

    @property
    def findings(self) -> tuple[str, ...]:
        """What was noticed and has no other channel: a torn tail cut off, a task left behind, a late result refused."""
        own = self._runtime.findings
        return (*own, *(text for text in self._runtime.storage.findings if text not in own))

    @property
    def name(self) -> str | None:
        """The name that a person gave the session, if any."""
        return self._name

    async def set_name(self, name: str | None) -> None:
        """Name the session, or take its name away; durable on return."""
        text = None if name is None else clean_text(name, "name")
        address = addresses.SESSION_NAME_ADDRESS
        write = DeleteValue(address) if text is None else SetValue(address, codec.encode(text))

        def publish(_commit: Commit) -> None:
            self._name = text

        await self._commit([write], "name", publish)

    async def label(self, entry_id: str) -> str | None:
        """The label of an entry, if it has one."""
        self._runtime.check()
        text = id_text(entry_id)
        payload = None if text is None else await self._runtime.storage.value(addresses.label(text))
        return None if payload is None else codec.TEXT.decode(payload, f"label of {entry_id}")

    async def set_label(self, entry_id: str, label: str | None) -> None:
        """Label an entry, or take its label away; durable on return. ``UnknownEntry`` if it is not there."""
        address = addresses.label((await self.entry(entry_id)).id)
        text = None if label is None else codec.encode(clean_text(label, "label"))
        await self._commit([DeleteValue(address) if text is None else SetValue(address, text)], "label")

    # Entries.

    async def entry(self, entry_id: str) -> Entry:
        """One entry; ``UnknownEntry`` if it is not there."""
        self._runtime.check()
        text = id_text(entry_id)
        row = None if text is None else (await self._runtime.storage.entries([text]))[0]
        if row is None:
            raise self._unknown_entry(entry_id)
        return codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload)

    async def _known_entry(self, entry_id: str) -> str:
        """The id, if it is an entry's; what that holds is not read."""
        self._runtime.check()
        text = id_text(entry_id)
        if text is None:
            raise self._unknown_entry(entry_id)
        try:
            await self._runtime.storage.path(text, limit=1, payloads=False)
        except UnknownEntry:
            raise self._unknown_entry(entry_id) from None
        return text

    def _unknown_entry(self, entry_id: object) -> UnknownEntry:
        return UnknownEntry(f"no entry {entry_id!r} in session {self.id!r}", entry_id=entry_id)

    async def entries(self, *, after_seq: int = 0, limit: int | None = None) -> list[Entry]:
        """Entries of all branches in the order they were written, beyond ``after_seq``.

        ``InvalidMessage`` for an ``after_seq`` that is no whole number, and for a ``limit`` that is neither None nor a
        whole number of at least 0.
        """
        self._runtime.check()
        rows = await self._runtime.storage.scan(after_seq=cursor(after_seq, "after_seq"), limit=page_limit(limit))
        return [codec.entry_of(row.id, row.parent_id, row.seq, row.at, row.payload) for row in rows]

    # Values and lists of the application.

    @overload
    async def value(self, address: ValueAddress[T]) -> T | None: ...
    @overload
    async def value(self, address: ValueAddress[T], default: T) -> T: ...
    async def value(self, address: ValueAddress[T], default: T | None = None) -> T | None:
        """The value at an application's address, or ``default``. ``CorruptSession`` if it is not of the type.

        ``InvalidMessage`` for what is no ``ValueAddress``, here and below.
        """
        self._runtime.check()
        payload = await self._runtime.storage.value(_checked_address(address, ValueAddress).address)
        return default if payload is None else _decoded(payload, address.type, str(address.address))

    async def set_value(self, address: ValueAddress[T], value: T) -> None:
        """Replace the value; durable on return. ``InvalidMessage`` for what is not JSON data, or not of the type.

        Structs, dataclasses and members of enums may stand anywhere in it, where the address's type has them.
        """
        where = _checked_address(address, ValueAddress)
        await self._commit([SetValue(where.address, _encoded(value, where.type))], "value")

    async def delete_value(self, address: ValueAddress[Any]) -> None:
        """Remove the value, if there is one; durable on return."""
        await self._commit([DeleteValue(_checked_address(address, ValueAddress).address)], "value")

    async def values(self, namespace: str, type: type[T], *, prefix: str = "") -> dict[str, T]:
        """The values of an application's namespace whose keys begin with ``prefix``, by key.

        ``InvalidName`` for what is no application's namespace, or no beginning of a key; ``InvalidDefinition`` for a
        ``type`` that is none.
        """
        self._runtime.check()
        namespace = addresses.app_address(namespace, "any").namespace
        type = addresses.checked_type(type)
        start = id_text(prefix)
        if start is None:
            raise InvalidName(f"prefix {prefix!r}: the beginning of a key is needed here", value=repr(prefix))
        found = await self._runtime.storage.values(namespace, start)
        return {key: _decoded(payload, type, f"{namespace}/{key}") for key, payload in found.items()}

    async def append(self, address: ListAddress[T], value: T) -> int:
        """Append to a list; durable on return. Gives the element's ``seq``. Errors are those of ``set_value``."""
        where = _checked_address(address, ListAddress)
        commit = await self._commit([AppendElement(where.address, _encoded(value, where.type))], "list")
        return commit.first_seq

    async def elements(
        self, address: ListAddress[T], *, after: int | None = None, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[int, T]]:
        """Elements of a list with their ``seq``, in order or reversed, beyond ``after`` in that direction.

        ``InvalidMessage`` for what is no ``ListAddress``, and as for ``entries``.
        """
        self._runtime.check()
        where = _checked_address(address, ListAddress).address
        behind = None if after is None else cursor(after, "after")
        found = await self._runtime.storage.elements(where, after=behind, limit=page_limit(limit), reverse=reverse)
        return [(each.seq, _decoded(each.payload, address.type, str(address.address))) for each in found]

    async def delete_list(self, address: ListAddress[Any]) -> None:
        """Remove a list whole; durable on return."""
        await self._commit([DeleteList(_checked_address(address, ListAddress).address)], "list")

    # Usage.

    def stats(self) -> Stats:
        """Number of entries and the totals of the usage ledger, as committed. No I/O."""
        self._runtime.check()
        return self._runtime.storage.stats()

    async def usage(self, *, after_seq: int = 0, limit: int | None = None) -> list[LedgerRow]:
        """Rows of the usage ledger in the order they were written, beyond ``after_seq``.

        Errors are those of ``entries``.
        """
        self._runtime.check()
        return await self._runtime.storage.usage(after_seq=cursor(after_seq, "after_seq"), limit=page_limit(limit))

    async def record_usage(
        self, usage: Usage, *, operation_id: str | None = None, entry_id: str | None = None, note: str | None = None
    ) -> UsageRow:
        """Add an adjustment to the ledger; durable on return. ``UnknownEntry``, ``InvalidMessage``."""
        return await record_adjustment(self._runtime, usage, operation_id=operation_id, entry_id=entry_id, note=note)

    # Inside.

    async def _commit(
        self, writes: list[Write], name: str, publish: Callable[[Commit], None] = lambda _commit: None
    ) -> Commit:
        self._runtime.check_writable()
        return await self._runtime.submit(writes, publish, name)


def _encoded(value: Any, type: Any) -> bytes:
    """A value as it is stored, after making sure that it can be read back as the type."""
    try:
        payload = codec.encode(clean_json(value, "value", records=_plain))
        msgspec.json.decode(payload, type=type)
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise InvalidMessage(f"value: {error}", path="value") from error
    return payload


def _plain(value: Any) -> Any:
    """A record or a member of an enum as what msgspec reads it from; anything else as it is."""
    kind = type(value)
    if isinstance(value, msgspec.Struct | Enum) or hasattr(kind, "__dataclass_fields__"):
        return msgspec.to_builtins(value)
    return value


def _decoded(payload: bytes, type: Any, place: str) -> Any:
    try:
        return msgspec.json.decode(payload, type=type)
    except msgspec.DecodeError as error:
        raise CorruptSession(f"value at {place} is not of the type that was asked for: {error}", place=place) from error


def _checked_address(address: A, kind: type[A]) -> A:
    if not isinstance(address, kind):
        raise InvalidMessage(f"address: a {kind.__name__} is needed here, not {type(address).__name__}", path="address")
    return address
