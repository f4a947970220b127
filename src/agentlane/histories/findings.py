"""What reading a history gives: the bodies of its entries, and a report that names whatever was changed."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from agentlane.data.entries import EntryBody

HistoryFormat: TypeAlias = Literal["openai", "anthropic", "recorded"]
"""Whose form the messages of a history have: ``openai`` is that of chat completions, ``recorded`` that of session
files with one row a line."""

ImportCode: TypeAlias = Literal[
    "bad_arguments",
    "empty_call_id",
    "empty_message",
    "image_by_reference",
    "kept_field",
    "kept_message",
    "late_result",
    "missing_result",
    "orphan_result",
    "repeated_call_id",
    "replaced_text",
    "result_name",
    "result_order",
    "role_order",
    "unknown_part",
]
"""What an ``ImportFinding`` is about."""

KEPT = "import.kept"
"""The type of the custom entries that hold, verbatim, what has no place in a message."""


class ImportFinding(Struct, frozen=True, kw_only=True):
    """One thing about an imported history that the importer should know: where, what, and what was done about it.

    ``index`` is that of the message, ``path`` says which part of it: ``messages[3].tool_calls[0].id``.
    """

    index: int
    path: str
    code: ImportCode
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


_NOTED: frozenset[ImportCode] = frozenset({"kept_field", "kept_message"})


class ImportReport(Struct, frozen=True, kw_only=True):
    """What an import read and what it made of it.

    ``messages`` were read and ``entries`` made of them, results that were missing and what is kept verbatim included.
    ``instructions`` is the text of the system messages before the first other one: hand it to the agent. ``tip`` is the
    id of the last entry, once the import is written.
    """

    format: HistoryFormat
    messages: int
    entries: int
    findings: tuple[ImportFinding, ...] = ()
    instructions: str = ""
    tip: str | None = None

    @property
    def repairs(self) -> tuple[ImportFinding, ...]:
        """The findings but for those that only say what is kept beside the messages."""
        return tuple(each for each in self.findings if each.code not in _NOTED)


class ImportedHistory(Struct, frozen=True, kw_only=True):
    """A history as it can be written: bodies of entries in order, each call with its result right behind the answer."""

    bodies: tuple[EntryBody, ...]
    report: ImportReport
