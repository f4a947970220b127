"""Entries as Markdown for people: a heading for each message, its texts in fences that nothing in them can end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from agentlane.data.entries import BranchSummary, Compaction, Custom, Entry
from agentlane.data.messages import (
    AssistantMessage,
    AssistantPart,
    ImagePart,
    ModelIdentity,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    UserMessage,
)

_TICKS = re.compile("`+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def markdown_title(branch: str, session_id: str) -> str:
    """How the Markdown of a branch begins."""
    return f"# Branch {_code(branch)} of session {_code(session_id)}\n"


def markdown_entry(entry: Entry) -> str:
    """One entry as Markdown; begins with an empty line and ends with a newline.

    Texts stand in fences longer than any run of backticks in them, exactly as they are, with one newline added.
    """
    body = entry.body
    said_at = _time(entry.at)
    if isinstance(body, UserMessage | AssistantMessage | ToolResultMessage) and body.sent_at is not None:
        said_at = _time(body.sent_at)
    if isinstance(body, UserMessage):
        blocks = [f"## User · {said_at}", *map(_said, body.content)]
    elif isinstance(body, AssistantMessage):
        blocks = [f"## Assistant{_by(body.model)} · {said_at}", *map(_answered, body.content), *_ending(body)]
    elif isinstance(body, ToolResultMessage):
        what = "Error of" if body.is_error else "Result of"
        blocks = [f"### {what} {_code(body.name)} {_code(body.call_id)} · {said_at}", *map(_said, body.content)]
        if body.details is not None:
            blocks.append(_collapsed("Details", _fenced(_json(body.details), "json")))
    elif isinstance(body, Custom):
        blocks = [f"## Entry {_code(body.type)} · {said_at}"]
        if body.data is not None:
            blocks.append(_collapsed("Data", _fenced(_json(body.data), "json")))
    elif isinstance(body, Compaction):
        place = (
            "anything that came before" if body.kept_from is None else f"what came before entry {_code(body.kept_from)}"
        )
        blocks = [f"## Summary{_by(body.model)} · {said_at}", _fenced(body.summary, "text")]
        blocks.append(f"*The model is shown this, not {place}; before it was shown {body.tokens_before:,} tokens*")
    elif isinstance(body, BranchSummary):
        blocks = [f"## Summary of another path{_by(body.model)} · {said_at}", _fenced(body.summary, "text")]
        blocks.append(f"*Of the path that ends with entry {_code(body.left)}*")
    else:  # a kind of entry that came later
        blocks = [f"## Entry · {said_at}", _fenced(_json(msgspec.to_builtins(body)), "json")]
    return "".join(f"\n{block}\n" for block in blocks)


def _by(model: ModelIdentity | None) -> str:
    return "" if model is None else f" · {_code(str(model))}"


def _said(part: TextPart | ImagePart) -> str:
    if isinstance(part, ImagePart):
        return f"*An image: {_code(part.mime_type)}, {len(part.data) * 3 // 4:,} bytes*"
    return _fenced(part.text, "text")


def _answered(part: AssistantPart) -> str:
    if isinstance(part, TextPart):
        return _fenced(part.text, "text")
    if isinstance(part, ThinkingPart):
        if part.redacted:
            return "*Thinking that the provider keeps to itself*"
        return _collapsed("Thinking", _fenced(part.text, "text"))
    if isinstance(part, ToolCallPart):
        given = _fenced(part.arguments_text or "", "text")
        if part.arguments is not None:
            given = _fenced(_json(part.arguments), "json")
        return f"**Call of** {_code(part.name)} {_code(part.id)}\n\n{given}"
    return _collapsed(f"A part of {_plain(part.provider)}", _fenced(_json(part.data), "json"))


def _ending(body: AssistantMessage) -> Iterator[str]:
    """What is to be said of an answer that did not end well."""
    if body.error is not None:
        yield f"*Ended as {body.stop_reason}: {_code(body.error.message)}*"
    elif body.stop_reason in ("length", "error", "aborted"):
        yield f"*Ended as {body.stop_reason}*"


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _collapsed(summary: str, block: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{block}\n\n</details>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _code(text: str) -> str:
    """Text inside of a line, as code: its line ends and other white space become single spaces."""
    line = " ".join(text.split())
    if not line:
        return "(none)"
    ticks = "`" * (max((len(run) for run in _TICKS.findall(line)), default=0) + 1)
    space = " " if "`" in (line[0], line[-1]) else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _plain(text: str) -> str:
    """Text inside of HTML."""
    line = " ".join(text.split())
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(at_ms: int) -> str:
    """A time in UTC, to the second; one that no calendar has as the milliseconds that it is."""
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M:%S UTC")
    except OverflowError:
        return f"{at_ms} ms"
