"""``read_history``: the messages of another program, as a history that can be written, and what was done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, get_args

from agentlane.errors import InvalidMessage
from agentlane.histories.findings import HistoryFormat, ImportedHistory, ImportReport

if TYPE_CHECKING:
    from agentlane.histories.reading import Reading


def read_history(messages: Iterable[object], *, format: HistoryFormat) -> ImportedHistory:
    """Read the messages of another program, each an object as its JSON is parsed; writes nothing and changes nothing.

    Every call has one result in what comes out, whatever went in, and what has no place in a message of this library
    is in a custom entry, verbatim. ``report.findings`` names each such thing and each repair by the index of its
    message. Raises ``InvalidMessage`` with the path of what is no message of the form (``messages[3].role``), or no
    JSON data, and for a ``format`` that is none.
    """
    reader = _reader(format)
    if reader is None:
        raise InvalidMessage(f"format={format!r}: one of {', '.join(get_args(HistoryFormat))} is needed here")
    if isinstance(messages, str | bytes | dict):
        raise InvalidMessage(f"messages: a list of messages is needed here, not {type(messages).__name__}")
    try:
        given = list(messages)
    except TypeError as error:
        raise InvalidMessage(f"messages: a list is needed here, not {type(messages).__name__}") from error
    from agentlane.histories.pairing import paired
    from agentlane.histories.reading import Reading

    reading = Reading(format)
    reader(reading, given)
    bodies = paired(reading)
    findings = tuple(sorted(reading.findings, key=lambda each: each.index))
    report = ImportReport(
        format=format,
        messages=len(given),
        entries=len(bodies),
        findings=findings,
        instructions="\n\n".join(text for text in reading.instructions if text),
    )
    return ImportedHistory(bodies=bodies, report=report)


def _reader(format: object) -> Callable[[Reading, Sequence[object]], None] | None:
    """What reads messages of a form; a program that imports has one of them, so the others are not imported."""
    if format == "openai":
        from agentlane.histories.openai import read_openai

        return read_openai
    if format == "anthropic":
        from agentlane.histories.anthropic import read_anthropic

        return read_anthropic
    if format == "recorded":
        from agentlane.histories.recorded import read_recorded

        return read_recorded
    return None
