"""What the records of a session can be found to be: each kind of fault with the invariant that it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

RecordCode: TypeAlias = Literal[
    "approval",
    "bad_result",
    "batch",
    "child_run",
    "duplicate_id",
    "half_lane",
    "half_operation",
    "inbox",
    "kept_tail",
    "left_over",
    "missing_content",
    "missing_entry",
    "missing_input",
    "missing_parent",
    "missing_result",
    "newer_record",
    "outlived",
    "receipt",
    "reserved_id",
    "result_order",
    "settled_twice",
    "stale_receipt",
    "stats",
    "stray_result",
    "unanswered_call",
    "undecodable",
    "unheld_operation",
    "wrong_kind",
    "wrong_lane",
]
"""What a fault among records is about."""

FAULTS_MAX = 10_000
"""How many faults are kept; those behind are counted."""


class FaultKind(NamedTuple):
    """What holds of every fault with one code."""

    invariant: str
    """The number that it has among the invariants of ``agentlane.testing``."""
    loses: bool
    """Whether something that was committed is gone."""
    advice: str


_REPAIR = "repair the session into a copy"
_UPDATE = "open the session with the version of agentlane that wrote it, or a newer one"
_NOTHING = "nothing has to be done"
_REPAIR_OPERATION = "repair the session into a copy, where the operation is ended and not run again"

KINDS: dict[RecordCode, FaultKind] = {
    "approval": FaultKind("I4", True, _REPAIR_OPERATION),
    "bad_result": FaultKind("I8", True, _REPAIR),
    "batch": FaultKind("I5", True, _REPAIR_OPERATION),
    "child_run": FaultKind("I3", True, _REPAIR_OPERATION),
    "duplicate_id": FaultKind("I1", True, _REPAIR),
    "half_lane": FaultKind("I3", True, _REPAIR),
    "half_operation": FaultKind("I3", True, _REPAIR_OPERATION),
    "inbox": FaultKind("I4", True, _REPAIR),
    "kept_tail": FaultKind("I10", True, _REPAIR),
    "left_over": FaultKind("I4", False, f"{_NOTHING}; a repaired copy keeps it as a custom entry"),
    "missing_content": FaultKind("I4", True, _REPAIR),
    "missing_entry": FaultKind("I11", True, _REPAIR),
    "missing_input": FaultKind("I5", True, _REPAIR_OPERATION),
    "missing_parent": FaultKind("I1", True, _REPAIR),
    "missing_result": FaultKind("I5", True, _REPAIR),
    "newer_record": FaultKind("I12", False, _UPDATE),
    "outlived": FaultKind("I3", False, f"{_NOTHING}; a repaired copy keeps it as a custom entry"),
    "receipt": FaultKind("I4", False, f"{_NOTHING}; delete it if its request is to be made again"),
    "reserved_id": FaultKind("I4", True, _REPAIR_OPERATION),
    "result_order": FaultKind("I5", False, f"{_NOTHING}; the model is shown the result of each call once"),
    "settled_twice": FaultKind("I8", True, _REPAIR_OPERATION),
    "stale_receipt": FaultKind("I4", False, f"{_NOTHING}; delete it if its request is to be made again"),
    "stats": FaultKind("I9", False, f"{_REPAIR}; its sums are made again"),
    "stray_result": FaultKind("I5", False, f"{_NOTHING}; the model is not shown it"),
    "unanswered_call": FaultKind("I5", False, f"{_NOTHING}; the model is told that the result is not available"),
    "undecodable": FaultKind("I12", True, f"restore it from a backup, or {_REPAIR}"),
    "unheld_operation": FaultKind("I3", True, _REPAIR),
    "wrong_kind": FaultKind("I12", False, f"{_REPAIR}; reads that ask for one kind miss it"),
    "wrong_lane": FaultKind("I3", True, _REPAIR),
}


class Fault(NamedTuple):
    """One thing that is wrong among the records of a session. ``place`` is an entry, an address or a usage row."""

    code: RecordCode
    place: str
    text: str
    operation: str | None = None
    """The open operation whose records cannot be trusted for it."""


class Faults:
    """Faults as they are found."""

    def __init__(self) -> None:
        self._found: list[Fault] = []
        self.more = 0
        """How many were found behind those that are kept."""
        self.operations: dict[str, dict[RecordCode, str]] = {}
        """The operations whose records cannot be trusted, with the reasons: the first of each kind."""

    def add(self, code: RecordCode, place: str, text: str, operation: str | None = None) -> None:
        """One more."""
        if operation is not None:
            self.operations.setdefault(operation, {}).setdefault(code, text)
        if len(self._found) < FAULTS_MAX:
            self._found.append(Fault(code, place, text, operation))
        else:
            self.more += 1

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found) + self.more
