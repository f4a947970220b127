"""What ``verify`` finds: where something is wrong with a stored session, what, and what a person can do about it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from agentlane.data.records.faults import RecordCode

MediumCode: TypeAlias = Literal[
    "bad_base",
    "bad_header",
    "bad_record",
    "being_written",
    "crlf",
    "database",
    "duplicate_id",
    "empty_line",
    "entry_path",
    "epoch_order",
    "foreign_record",
    "half_loaded",
    "leftover",
    "missing_numbers",
    "missing_parent",
    "newer_format",
    "not_a_session",
    "nul_bytes",
    "number_again",
    "open_operations",
    "other_session",
    "out_of_order",
    "renamed",
    "repeated_record",
    "search_index",
    "segment",
    "session_row",
    "set_aside",
    "stats",
    "torn_tail",
    "undecodable",
    "unowned_rows",
    "unreadable",
]
"""What a ``Finding`` about the medium is about."""

FindingCode: TypeAlias = MediumCode | RecordCode
"""What a ``Finding`` is about: the medium, or the records in it; see docs/reference/findings.md."""

FINDINGS_MAX = 1000
"""How many findings a report holds; those behind are counted."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing about a stored session that a person should know: where, what, and what to do.

    ``place`` is a file's name with line and byte, a table with its row, or an entry or address of the session.
    ``loses``: something that was committed cannot be read there. Findings without it are no loss: what a crash or an
    upkeep left behind, or what can be put right without one.
    """

    code: FindingCode
    place: str
    text: str
    advice: str
    loses: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.text}; {self.advice}"


class VerifyReport(Struct, frozen=True, kw_only=True):
    """What is wrong with a session, and how much of it can be read. A session with nothing wrong has no findings.

    Counts are of what can be read, damage or not; ``last_seq`` is the highest sequence number among it, or above it.
    ``more`` findings were found behind those that are listed, and only counted.
    """

    session_id: str
    findings: tuple[Finding, ...] = ()
    more: int = 0
    entries: int = 0
    usage_rows: int = 0
    elements: int = 0
    values: int = 0
    last_seq: int = 0

    @property
    def losses(self) -> tuple[Finding, ...]:
        """The findings that say that something committed cannot be read."""
        return tuple(each for each in self.findings if each.loses)
