"""What a list of messages must be like to be sent: every call with its result right behind it, and nothing empty."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.data.messages import AssistantMessage, Message, TextPart, ToolCallPart, ToolResultMessage


def pairing_problem(messages: Sequence[Message]) -> str | None:
    """The first thing that a provider would refuse, with the number of its message; None if there is none. # I10"""
    if not messages:
        return "no message is left"
    waiting: list[ToolCallPart] = []
    used: set[str] = set()
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if not message.content or any(isinstance(part, TextPart) and not part.text for part in message.content):
            return f"{place}: a message, or a text in it, is empty"
        if isinstance(message, ToolResultMessage):
            if not waiting or (waiting[0].id, waiting[0].name) != (message.call_id, message.name):
                return f"{place}: the result of {message.call_id!r} of {message.name!r} is not the one that is due"
            waiting.pop(0)
            continue
        if waiting:
            return f"{place}: call {waiting[0].id!r} has no result before it"
        if isinstance(message, AssistantMessage):
            if message.stop_reason in ("error", "aborted"):
                return f"{place}: an answer that ended as {message.stop_reason!r} is not sent"
            waiting = list(message.calls)
            ids = [call.id for call in waiting]
            if "" in ids or len({*ids}) < len(ids) or used.intersection(ids):
                return f"{place}: the ids of calls are empty or used twice"
            used.update(ids)
    return f"call {waiting[0].id!r} has no result" if waiting else None
