"""The six writes that a commit is made of. Payloads are JSON texts on one line, encoded once and never looked into."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from agentlane.data.usage import UsageRow


class Address(NamedTuple):
    """Where a value or list lives: a namespace, and a key whose parts are joined by ``|``."""

    namespace: str
    key: str


class InsertEntry(NamedTuple):
    """A new entry under ``parent_id``, which is stored already or inserted earlier in the same commit."""

    id: str
    parent_id: str | None
    kind: str
    payload: bytes


class InsertUsage(NamedTuple):
    """A new row of the usage ledger."""

    row: UsageRow


class SetValue(NamedTuple):
    """The value at ``address`` becomes ``payload``."""

    address: Address
    payload: bytes


class DeleteValue(NamedTuple):
    """The value at ``address`` goes; none there is no error."""

    address: Address


class AppendElement(NamedTuple):
    """``payload`` becomes the newest element of the list at ``address``."""

    address: Address
    payload: bytes


class DeleteList(NamedTuple):
    """The list at ``address`` goes whole; none there is no error."""

    address: Address


Write: TypeAlias = InsertEntry | InsertUsage | SetValue | DeleteValue | AppendElement | DeleteList
"""Any of the six."""
