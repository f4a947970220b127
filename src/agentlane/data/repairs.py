"""What a repair reports: what was wrong with the session, and what had to be done so that its copy holds together."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from agentlane.data.findings import Finding, VerifyReport

RepairCode: TypeAlias = Literal[
    "ended",
    "kept_tail",
    "lane",
    "lost_entry",
    "lost_result",
    "new_branch",
    "new_root",
    "receipt",
    "set_aside",
    "unreadable_entry",
    "unreadable_record",
    "wrong_kind",
]
"""What a ``RepairNote`` is about; see docs/reference/findings.md."""


class RepairNote(Struct, frozen=True, kw_only=True):
    """One thing that is different in the copy: where, and what was done about what was found there."""

    code: RepairCode
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class RepairReport(Struct, frozen=True, kw_only=True):
    """A repaired copy, and what is not in it.

    ``source`` is what ``verify`` says of the damaged session; its ``losses`` say what is lost, with lines and rows.
    ``notes`` say what was done about it in the copy. ``ended`` are the operations that cannot go on, as nobody can tell
    how far they came: each has a terminal record that says ``failed`` with the code ``uncertain``. ``branches`` are
    new: they lead to what no other branch leads to any more, and to what was set aside. ``left`` is what ``verify``
    finds among the copy's records.
    """

    session_id: str
    source: VerifyReport
    notes: tuple[RepairNote, ...] = ()
    more: int = 0
    """How many notes there are behind those that are listed."""
    ended: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    left: tuple[Finding, ...] = ()

    @property
    def losses(self) -> tuple[Finding, ...]:
        """What was lost, and where."""
        return self.source.losses
