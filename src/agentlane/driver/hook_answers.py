"""What hooks may return, as the library takes it: clean and of the right type; else ``InvalidMessage`` says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentlane.agent import clean_settings
from agentlane.data import codec
from agentlane.data.border import clean_object, clean_text
from agentlane.data.messages import ToolCallPart, UserMessage
from agentlane.data.requests import Prompt, prompt_messages
from agentlane.driver.amounts import check_input
from agentlane.driver.hook_calls import wrong_type
from agentlane.driver.tool_results import Sealed, seal_result
from agentlane.errors import InvalidMessage
from agentlane.hooks import Block, Decline, SummaryText
from agentlane.tool import ToolResult


def nothing(value: Any) -> None:
    """No value at all."""
    raise wrong_type("nothing", value)


def settings(value: Any) -> dict[str, Any]:
    """Model settings."""
    if not isinstance(value, Mapping):
        raise wrong_type("a settings object", value)
    return clean_settings(value)


def follow_ups(value: Any) -> list[UserMessage]:
    """One message or several, as texts or whole."""
    given = value if isinstance(value, list | tuple) else (value,)
    found: list[UserMessage] = []
    for index, each in enumerate(given):
        if not isinstance(each, str | UserMessage):
            raise wrong_type("a text, a UserMessage, a list of these", each)
        found += prompt_messages(Prompt(each) if isinstance(each, str) else Prompt(messages=(each,)))
        _, found[-1] = codec.BODY.seal(found[-1], f"follow_ups[{index}]")  # type: ignore[assignment]
    return found


def arguments_or_block(value: Any) -> Block | dict[str, Any]:
    """Arguments, or the word that a call must not start."""
    if isinstance(value, Block):
        return Block(clean_text(value.reason, "reason"))
    if isinstance(value, Mapping):
        return clean_object(value, "arguments")
    raise wrong_type("an arguments object, a Block", value)


def refusal(value: Any) -> Block:
    """The word that a lane must not move."""
    if isinstance(value, Block):
        return Block(clean_text(value.reason, "reason"))
    raise wrong_type("a Block", value)


def summary(value: Any, check: Callable[[str], None]) -> Decline | SummaryText:
    """A summary that ``check`` lets through, or the word that there will be none."""
    if isinstance(value, Decline):
        return Decline(clean_text(value.reason, "reason"))
    if isinstance(value, SummaryText):
        text = clean_text(value.text, "text")
        if not text.strip():
            raise InvalidMessage("text: the summary is empty")
        check_input([codec.encode(text)], "text")
        check(text)
        return SummaryText(text)
    raise wrong_type("a SummaryText, a Decline", value)


def result(call: ToolCallPart, value: Any, limit_bytes: int) -> Sealed:
    """The result of a call, bounded like a tool's."""
    if isinstance(value, ToolResult):
        return seal_result(call, value, limit_bytes)
    raise wrong_type("a ToolResult", value)
