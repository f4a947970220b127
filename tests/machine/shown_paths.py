"""What a path shows, said once more and plainly: from its whole length at once, with nothing kept between entries."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from agentlane.data.entries import BranchSummary, Compaction, Custom
from agentlane.data.messages import AssistantMessage, Message, TextPart, ToolCallPart, ToolResultMessage, UserMessage
from agentlane.ids import call_index
from agentlane.machine.context import NO_OUTPUT, not_available
from agentlane.machine.summaries import shown_branch_summary, shown_summary
from tests.machine.test_context import Placed


def projected(_id: str, custom: Custom) -> UserMessage | None:
    """What the applications of these tests show: of a note its text, of anything else nothing."""
    return UserMessage(content=(TextPart(text=custom.data),)) if custom.type == "note" else None


def counted(entries: Sequence[Placed]) -> tuple[Compaction | None, list[Placed]]:
    """The newest compaction, and the entries that count besides it."""
    at = max((n for n, each in enumerate(entries) if isinstance(each.body, Compaction)), default=None)
    if at is None:
        return None, list(entries)
    newest = entries[at].body
    assert isinstance(newest, Compaction)
    ids = [each.id for each in entries[:at]]
    tail = [] if newest.kept_from is None else entries[ids.index(newest.kept_from) : at]
    return newest, [each for each in (*tail, *entries[at + 1 :]) if not isinstance(each.body, Compaction)]


def shown_of(entries: Sequence[Placed]) -> list[tuple[str | None, Message]]:
    """The messages that a whole path shows, each with its entry; None: the summary, and results that are missing."""
    newest, rest = counted(entries)
    shown: list[tuple[str | None, Message]] = [] if newest is None else [(None, shown_summary(newest.summary))]
    used: set[str] = set()
    while rest:
        id, body = rest.pop(0)
        if isinstance(body, AssistantMessage) and not _failed(body):
            answer = _answer(body, used)
            if answer is None:
                continue
            shown.append((id, answer))
            if body.calls:
                end = next((n for n, each in enumerate(rest) if _ends_a_batch(each)), len(rest))
                shown += _batch(id, body, answer, rest[:end])
                rest = rest[end:]
        elif (message := _said(id, body)) is not None:
            shown.append((id, message))
    return shown


def messages_of(entries: Sequence[Placed]) -> list[Message]:
    return [message for _, message in shown_of(entries)]


def _failed(body: object) -> bool:
    return isinstance(body, AssistantMessage) and body.stop_reason in ("error", "aborted")


def _ends_a_batch(entry: Placed) -> bool:
    return isinstance(entry.body, UserMessage | AssistantMessage | BranchSummary) and not _failed(entry.body)


def _said(id: str, body: object) -> UserMessage | None:
    message = body if isinstance(body, UserMessage) else None
    if isinstance(body, BranchSummary):
        message = shown_branch_summary(body.summary)
    elif isinstance(body, Custom):
        message = projected(id, body)
    content = () if message is None else tuple(each for each in message.content if each != TextPart(text=""))
    return UserMessage(content=content) if content else None


def _answer(body: AssistantMessage, used: set[str]) -> AssistantMessage | None:
    parts = []
    for part in body.content:
        if isinstance(part, ToolCallPart):
            base = part.id or "call"
            names = (base if n == 1 else f"{base}-{n}" for n in range(1, len(used) + 2))
            part = replace(part, id=next(name for name in names if name not in used))
            used.add(part.id)
        if part != TextPart(text=""):
            parts.append(part)
    return replace(body, content=tuple(parts)) if parts else None


def _batch(
    id: str, body: AssistantMessage, answer: AssistantMessage, span: Sequence[Placed]
) -> list[tuple[str | None, Message]]:
    """What stands between an answer with calls and the next thing that somebody says."""
    found: dict[int, Placed] = {}
    for each in span:
        if not isinstance(each.body, ToolResultMessage):
            continue
        free = [index for index in range(len(body.calls)) if index not in found]
        reserved = call_index(id, each.id)
        named = [index for index in free if body.calls[index].id == each.body.call_id]
        if reserved in free:
            found[reserved] = each
        elif named:
            found[named[0]] = each
    shown: list[tuple[str | None, Message]] = []
    for index, call in enumerate(answer.calls):
        if index not in found:
            shown.append((None, not_available(call)))
            continue
        result = found[index]
        assert isinstance(result.body, ToolResultMessage)
        content = tuple(part for part in result.body.content if part != TextPart(text=""))
        content = content or (TextPart(text=NO_OUTPUT),)
        shown.append((result.id, replace(result.body, call_id=call.id, name=call.name, content=content)))
    for each in span:
        if (message := _said(each.id, each.body)) is not None:
            shown.append((each.id, message))
    return shown
